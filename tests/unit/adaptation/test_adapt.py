"""Adaptation: accuracy on all domains, versions, rollback, resume and errors."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from holdfast import BadInput, DomainClassifier
from holdfast.adaptation.adapt import Terms, adapt, ledger_of
from holdfast.data.synthetic import world
from holdfast.folders.format import load_model
from holdfast.folders.versions import use_version
from holdfast.train.progress import ProgressListener
from tests.tiny import tiny_bert

LOOSE = {"device": "cpu", "max_forgetting": 100.0, "steps": 3, "batch": 4}


def early_and_new(kind, shift="none", size=24):
    """Two domains to fit on, a third to adapt to, and its name."""
    data = world(kind, shift, domains=3, size=size, classes=2, seed=0)
    new = data.subset(data.rows_of(data.domains[2]))
    early = data.subset(np.flatnonzero(data.domain < 2))
    return replace(early, domains=data.domains[:2]), new, data.domains[2]


def fitted(early, folder, *, keep=8, **more):
    classifier = DomainClassifier(steps=4, batch=4, keep_sample=keep, device="cpu", **more)
    classifier.fit_dataset(early, folder=folder)
    return folder


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    early, new, name = early_and_new("vector", "rotation", 60)
    classifier = DomainClassifier(
        steps=40,
        batch=16,
        keep_sample=10,
        device="cpu",
        settings={"encoder.hidden": [16], "neck": "memory", "neck.slots": 6},
    )
    folder = tmp_path_factory.mktemp("adapting") / "model"
    classifier.fit_dataset(early, folder=folder)
    return folder, early, new, name


@pytest.fixture
def model(vectors, tmp_path):
    shutil.copytree(vectors[0], tmp_path / "model")
    return tmp_path / "model"


def weights(folder):
    return load_model(folder).model.state_dict()


def same(a, b):
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_adapted_model_is_saved_and_can_be_rolled_back_exactly(model, vectors):
    _, early, new, name = vectors
    first = weights(model)
    files = {p: p.read_bytes() for p in model.rglob("*") if p.is_file()}
    done = adapt(model, new, Terms(method="replay", steps=30, device="cpu", max_forgetting=100), domain=name)
    assert (done.version, done.refused) == (2, "")
    assert set(done.forgetting) == set(early.domains)
    assert set(done.after) == {*early.domains, name}
    assert done.after[name] >= done.before[name]
    saved = load_model(vectors[0])
    sample = saved.sample.dataset
    for i, domain in enumerate(early.domains):
        rows = np.flatnonzero((sample.domain == i) & (sample.split == 2))
        right = saved.probabilities(sample.subset(rows).raw).argmax(1) == sample.y[rows]
        assert done.before[domain] == pytest.approx(right.mean())
        assert done.forgetting[domain] == pytest.approx(100 * (done.before[domain] - done.after[domain]))
        assert done.examples[domain] == 10
    assert not same(weights(model), first)
    assert load_model(model).domains == (*early.domains, name)
    use_version(model, ledger_of(model), 1)
    assert same(weights(model), first)
    assert all(p.read_bytes() == content for p, content in files.items())


def test_too_much_forgetting_changes_nothing_without_force(model, vectors):
    _, _, new, name = vectors
    turned = replace(new, y=1 - new.y)  # contradicts the earlier domains
    before = {p: p.read_bytes() for p in model.rglob("*") if p.is_file()}
    hard = {"method": "erm", "steps": 40, "lr": 0.05, "device": "cpu"}
    done = adapt(model, turned, Terms(**hard), domain=name)
    assert done.version is None
    assert "--max-forgetting 5" in done.refused
    assert max(done.forgetting.values()) > 5
    assert {p: p.read_bytes() for p in model.rglob("*") if p.is_file()} == before
    forced = adapt(model, turned, Terms(**hard, force=True), domain=name)
    assert forced.version == 2
    assert ledger_of(model).versions[1].forced


def test_held_out_examples_are_recognised_by_their_hashes(vectors, tmp_path):
    _, early, new, name = vectors
    folder = fitted(early, tmp_path / "bare", keep=0, settings={"encoder.hidden": [8]})
    with pytest.raises(BadInput, match=f"{early.domains[0]}, {early.domains[1]}.*--earlier.*--keep-sample.*--force"):
        adapt(folder, new, Terms(**LOOSE), domain=name)
    with pytest.raises(BadInput, match=r"ewc.*--earlier"):
        adapt(folder, new, Terms(**LOOSE, method="ewc", force=True), domain=name)
    part = early.subset(early.rows_of(early.domains[0]))
    with pytest.raises(BadInput, match=f"--earlier.*{early.domains[1]}.*--force"):
        adapt(folder, new, Terms(**LOOSE), domain=name, earlier=[part])
    order = np.random.default_rng(0).permutation(len(early))
    done = adapt(folder, new, Terms(**LOOSE, method="ewc"), domain=name, earlier=[early.subset(order)])
    assert [done.examples[domain] for domain in early.domains] == [12, 12]  # 20% per domain were held out
    assert load_model(folder).calibration is not None
    third = replace(world("vector", "rotation", domains=1, size=20, classes=2, seed=5), domains=("all",))
    with pytest.raises(BadInput, match=f"--earlier.*{name}.*--force"):
        adapt(folder, third, Terms(**LOOSE), domain="third", earlier=[early])
    both = adapt(folder, third, Terms(**LOOSE, method="replay"), domain="third", earlier=[new, early])
    assert set(both.forgetting) == {*early.domains, name}
    blind = adapt(folder, third, Terms(**LOOSE, force=True, seed=1), domain="fourth")
    assert "forgetting of" in blind.refused
    assert load_model(folder).calibration is None


def test_versions_build_on_each_other(model, vectors):
    _, _, new, name = vectors
    half = len(new) // 2
    terms = Terms(**LOOSE, method="progressive", settings={"method.slots": 2})
    for i, rows in enumerate((np.arange(half), np.arange(half, len(new)))):
        part = replace(new.subset(rows), domains=("all",), domain=np.zeros(len(rows), dtype=np.int64))
        done = adapt(model, part, terms, domain="first" if i else name)
        assert done.version == i + 2
    slots = [
        part.owner.tolist()
        for part in load_model(model).model.modules()
        if "owner" in dict(part.named_buffers(recurse=False))
    ]
    assert slots == [[0] * 6 + [1] * 2 + [2] * 2]
    assert len(load_model(model).record.stages) == 3
    with pytest.raises(BadInput, match="several versions"):
        load_model(model).save(model)
    assert set(load_model(model).held_out.hashes) == {*vectors[1].domains, name, "first"}
    assert "first" in (model / "versions" / "3" / "README.md").read_text()


@pytest.mark.parametrize("method", ["replay", "progressive(ewc)"])
def test_interrupted_adaptation_resumes_to_the_same_weights(model, vectors, tmp_path, monkeypatch, method):
    class Stopping(ProgressListener):
        left = 7

        def step(self, metrics):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    _, _, new, name = vectors
    method_settings = {"method.slots": 2} if "progressive" in method else {}
    terms = Terms(method=method, steps=12, batch=4, device="cpu", max_forgetting=100, settings=method_settings)
    shutil.copytree(model, tmp_path / "uninterrupted")
    adapt(tmp_path / "uninterrupted", new, terms, domain=name)
    monkeypatch.setenv("HOLDFAST_SAVE_SECONDS", "0")
    first = weights(model)
    with pytest.raises(KeyboardInterrupt):
        adapt(model, new, terms, domain=name, watch=Stopping())
    assert same(weights(model), first)
    assert len(list((model / "checkpoints").glob("*.safetensors"))) == 1
    adapt(model, new, terms, domain=name)
    assert same(weights(model), weights(tmp_path / "uninterrupted"))
    assert list((model / "checkpoints").iterdir()) == []


def test_a_repeated_adaptation_changes_nothing_and_reports_success(model, vectors, monkeypatch):
    """The process may have been killed after the new version was complete."""
    _, early, new, name = vectors
    terms = Terms(method="replay", **LOOSE)
    first = adapt(model, new, terms, domain=name, earlier=[early])
    files = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    monkeypatch.setattr("holdfast.adaptation.adapt.train", lambda *args, **options: pytest.fail("trained again"))
    again = adapt(model, new, terms, domain=name, earlier=[early])
    assert "created version 2 already" in again.notes[0]
    fields = ("version", "domain", "metric", "before", "after", "forgetting", "examples", "refused")
    assert [getattr(again, field) for field in fields] == [getattr(first, field) for field in fields]
    assert {path: path.read_bytes() for path in model.rglob("*") if path.is_file()} == files
    fewer = new.subset(np.arange(len(new) - 1))
    others = [(fewer, terms, [early]), (new, Terms(method="ewc", **LOOSE), [early]), (new, terms, [])]
    for data, other_terms, earlier in others:
        with pytest.raises(BadInput, match="already knows the domain"):
            adapt(model, data, other_terms, domain=name, earlier=earlier)


def test_unsuitable_data_or_settings_raise(model, vectors):
    _, early, new, name = vectors
    unknown = replace(new, classes=("0", "else"))
    for data, terms, message in (
        (unknown, Terms(**LOOSE), "'else'"),
        (new, Terms(**LOOSE, method="si"), "method si"),
        (new, Terms(**LOOSE, method="coral"), "coral.* 2 training domains"),
        (new, Terms(**LOOSE, settings={"encoder.hidden": [4]}), "encoder.hidden"),
        (world("text", "none", domains=1, size=8), Terms(**LOOSE), "vector.*text"),
    ):
        with pytest.raises(BadInput, match=message):
            adapt(model, data, terms, domain=name)
    with pytest.raises(BadInput, match=early.domains[0]):
        adapt(model, new, Terms(**LOOSE), domain=early.domains[0])
    with pytest.raises(BadInput, match=r"--max-forgetting.*-1"):
        Terms(max_forgetting=-1)
    held = load_model(model).sample.dataset
    again = held.subset(np.flatnonzero((held.domain == 0) & (held.split == 2)))
    with pytest.raises(BadInput, match="every example"):
        adapt(model, replace(again, domains=(name, *held.domains[1:])), Terms(**LOOSE), domain=name)


SMALL = {"encoder.hidden": 8, "encoder.embedding": 8}
KINDS = {
    "text": ("vocabulary", "bilstm", SMALL, "replay"),
    "growing text": ("vocabulary", "memory-lstm", {**SMALL, "encoder.slots": 3, "method.slots": 2}, "auto"),
    "frozen text": ("none", "hf:BERT", {"neck": "memory", "neck.slots": 4}, "progressive(replay)"),
    "image": ("rotation", "cnn", {"encoder.size": 16}, "lwf"),
    "graph": ("rotation", "gin", {"encoder.layers": 2, "encoder.hidden": 8}, "ewc"),
}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.graph if k == "graph" else ()) for k in KINDS])
def test_all_kinds_of_encoders_adapt_and_roll_back(kind, tmp_path):
    shift, encoder, settings, method = KINDS[kind]
    early, new, name = early_and_new(kind.split()[-1], shift)
    if encoder == "hf:BERT":
        encoder = f"hf:{tiny_bert(tmp_path / 'bert')}"
    method_settings = {key: value for key, value in settings.items() if key.startswith("method.")}
    rest = {key: value for key, value in settings.items() if key not in method_settings}
    folder = fitted(early, tmp_path / "model", encoder=encoder, settings=rest)
    before = load_model(folder).probabilities(new.raw)
    done = adapt(folder, new, Terms(**LOOSE, method=method, settings=method_settings), domain=name)
    assert done.version == 2
    after = load_model(folder).probabilities(new.raw)
    np.testing.assert_array_equal(after, done.model.probabilities(new.raw))
    assert not np.array_equal(before, after)
    use_version(folder, ledger_of(folder), 1)
    np.testing.assert_array_equal(load_model(folder).probabilities(new.raw), before)
    if kind == "growing text":
        assert done.model.record.spec["method_args"]["expand"] == "MV"
        assert done.model.encoder.words_in(new.raw.take(np.arange(3)))


def test_adapt_from_python(vectors):
    _, early, new, name = vectors
    X, y, d = early.raw.take(np.arange(len(early))).numpy(), early.y, np.asarray(early.domains)[early.domain]
    classifier = DomainClassifier(steps=20, batch=8, device="cpu", settings={"encoder.hidden": [8]}).fit(
        X, y, domains=d
    )
    X2, was = new.raw.take(np.arange(len(new))).numpy(), classifier.predict_proba(X)
    with pytest.raises(BadInput, match="--earlier"):
        classifier.adapt(X2, new.y, domain=name)
    with pytest.raises(BadInput, match="points of accuracy"):
        classifier.adapt(X2, 1 - new.y, domain=name, earlier=(X, y, d), terms=Terms(method="erm", steps=40, lr=0.05))
    np.testing.assert_array_equal(classifier.predict_proba(X), was)
    assert classifier.adapt(X2, new.y, domain=name, earlier=(X, y, d), terms=Terms(**LOOSE)) is classifier
    assert classifier.predict(X2).dtype == np.asarray(y).dtype
    assert classifier.record_.stages[-1]["train"] == [name]


def test_a_training_that_does_not_end_in_time_continues(model, vectors, monkeypatch):
    _, _, new, name = vectors
    monkeypatch.setattr("holdfast.core.stopping.Deadline.left", lambda deadline: 9.0 - deadline.seconds)
    with pytest.raises(BadInput, match=r"did not end within 10 s.*larger --budget continues"):
        adapt(model, new, Terms(**LOOSE), domain=name, budget="10s")
    assert adapt(model, new, Terms(**LOOSE), domain=name, budget="8s").version == 2
