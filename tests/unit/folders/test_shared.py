"""Members of an average with the same frozen encoder: stored once, loaded once and evaluated once."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.adaptation.adapt import Terms
from holdfast.core.checkpoint import load_tensors
from holdfast.core.errors import BadInput
from holdfast.data.raw import Texts
from holdfast.estimator import DomainClassifier
from holdfast.folders.format import Member, SavedModel, load_model
from holdfast.folders.shared import shared_encoders

TEXTS = [f"{word} {i % 7}" for i, word in enumerate(["good fine", "bad poor"] * 20)]
LABELS, DOMAINS = ["yes", "no"] * 20, ["a"] * 20 + ["b"] * 20
RAW = Texts.of(TEXTS)


def fitted(method: str, *, steps: int = 2, **settings: object) -> SavedModel:
    options = {"encoder.hidden": 4, **{name.replace("_", "."): value for name, value in settings.items()}}
    classifier = DomainClassifier(
        method, encoder="bilstm", tune="frozen", steps=steps, batch=4, keep_sample=20, device="cpu", settings=options
    )
    return classifier.fit(TEXTS, LABELS, domains=DOMAINS)._model()


@pytest.fixture(scope="module")
def members() -> list[SavedModel]:
    """Two networks on the same frozen encoder, and one on another encoder."""
    return [fitted("erm"), fitted("coral", steps=6, neck="projection"), fitted("erm", encoder_hidden=6)]


@pytest.fixture
def folder(tmp_path, members) -> Path:
    first, *others = members
    return replace(first, members=tuple(Member(0.25, each) for each in others)).save(tmp_path / "model")


def expected(members: list[SavedModel]) -> np.ndarray:
    weights = (0.5, 0.25, 0.25)
    return np.sum([w * each.probabilities(RAW) for w, each in zip(weights, members, strict=True)], axis=0)


def test_equal_encoders_are_stored_and_loaded_once(folder, members):
    assert [bool(each) for each in shared_encoders([each.model for each in members])] == [False, True, False]
    names = [set(load_tensors(path / "model.safetensors")[0]) for path in (folder / "members" / "1", folder)]
    assert not any(name.startswith("backbone.") for name in names[0])
    assert any(name.startswith("backbone.") for name in names[1])
    assert not (folder / "members" / "1" / "preparation").exists()
    saved = load_model(folder)
    backbones = [each.model.backbone for _, each in saved.all_members]
    assert backbones[0] is backbones[1] is not backbones[2]
    assert saved.probabilities(RAW) == pytest.approx(expected(members))
    again = load_model(saved.save(folder.with_name("again")))
    assert again.probabilities(RAW) == pytest.approx(expected(members))


def test_shared_encoder_is_evaluated_once_per_batch(folder):
    saved, calls = load_model(folder), []
    for backbone in {each.model.backbone for _, each in saved.all_members}:
        backbone.register_forward_hook(lambda module, *_: calls.append(module))
    saved.probabilities(Texts.of(TEXTS[:4]))
    assert len(calls) == 2  # three members, two encoders


def test_member_alone_reads_the_encoder_of_the_average(folder, members, tmp_path):
    for number, member in enumerate(members[1:], start=1):
        alone = load_model(folder / "members" / str(number))
        assert alone.probabilities(RAW) == pytest.approx(member.probabilities(RAW))
    moved = shutil.copytree(folder / "members" / "1", tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="its encoder is stored in another folder: copy the complete folder"):
        load_model(moved)


def test_folder_whose_members_are_complete_still_loads(folder, members):
    members[1].save(folder / "members" / "1")
    assert json.loads((folder / "members" / "1" / "config.json").read_text())["format"] == 1
    saved = load_model(folder)
    assert saved.model.backbone is not saved.members[0].saved.model.backbone
    assert saved.probabilities(RAW) == pytest.approx(expected(members))


def test_encoders_with_other_preparation_share_their_parameters(folder, members):
    member = folder / "members" / "1"
    shutil.copytree(folder / "preparation", member / "preparation")
    change_entry(member, preparation=None)
    saved = load_model(folder)
    first, second = saved.model.backbone, saved.members[0].saved.model.backbone
    assert first is not second
    assert all(a is b for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert saved.probabilities(RAW) == pytest.approx(expected(members))


def change_entry(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["encoder"]["shared"] |= changes
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "changes",
    [
        {"encoders": {"backbone": [1, "backbone"]}},
        {"encoders": {"backbone": [-1, "backbone"]}},
        {"encoders": {"backbone": [0, "nothing"]}},
        {"encoders": [1]},
        {"preparation": "../.."},
    ],
)
def test_damaged_entry_of_a_shared_encoder_raises(folder, changes):
    change_entry(folder / "members" / "1", **changes)
    with pytest.raises(BadInput, match=r"not a valid model folder .*: fit the model again"):
        load_model(folder)


def test_adapting_an_average_trains_members_separately(folder):
    classifier = DomainClassifier.from_pretrained(folder, device="cpu")
    before = [{k: v.clone() for k, v in m.model.state_dict().items()} for _, m in classifier._model().all_members]
    classifier.adapt(TEXTS[:10], LABELS[:10], domain="c", terms=Terms(steps=2, force=True))
    after = [m.model.state_dict() for _, m in classifier._model().all_members]
    for old, new in zip(before, after, strict=True):
        changed = {name for name in old if not torch.equal(old[name], new[name])}
        assert changed
        assert not any(name.startswith("backbone.") for name in changed)
