"""Versions of a model folder: rollback, interrupted writes, changed or corrupted files, and earlier versions."""

import json
from pathlib import Path

import numpy as np
import pytest

from holdfast import DomainClassifier
from holdfast.core.errors import BadInput
from holdfast.folders import versions
from holdfast.folders.versions import Version, add_version, current_folder, has_versions, read_ledger, use_version

FIRST = Version(0, "", "erm", ("a", "b"), None, "accuracy", {"a": 0.9, "b": None})


def fill(folder, content):
    (folder / "preparation").mkdir(parents=True)
    (folder / "preparation" / "words.txt").write_text(content)
    for name in ("model.safetensors", "record.json", "config.json"):
        (folder / name).write_text(f"{name} {content}")


def content(folder):
    return (current_folder(folder) / "model.safetensors").read_text()


@pytest.fixture
def model(tmp_path):
    fill(tmp_path / "model", "one")
    return tmp_path / "model"


def with_versions(model, *contents):
    """Add one version per content and return the ledger."""
    for text in contents:
        add_version(model, read_ledger(model, FIRST), FIRST, lambda draft, text=text: fill(draft, text))
    return read_ledger(model, FIRST)


def test_folder_without_a_ledger_is_its_first_version(model):
    assert not has_versions(model)
    assert current_folder(model) == model
    ledger = read_ledger(model, FIRST)
    assert (ledger.current, [version.number for version in ledger.versions]) == (1, [1])
    assert set(ledger.versions[0].files) == {
        "config.json", "model.safetensors", "record.json", "preparation/words.txt"
    }  # fmt: skip


def test_every_version_can_be_restored(model):
    ledger = with_versions(model, "two", "three")
    assert content(model) == "model.safetensors three"
    for number, word in ((1, "one"), (3, "three"), (2, "two")):
        use_version(model, ledger, number)
        assert content(model) == f"model.safetensors {word}"
    after = with_versions(model, "four")  # from version 2
    assert [(version.number, version.parent) for version in after.versions] == [(1, None), (2, 1), (3, 2), (4, 2)]
    assert after.versions[0].scores == {"a": 0.9, "b": None}
    with pytest.raises(BadInput, match=r"version 9 .*1, 2, 3, 4"):
        use_version(model, after, 9)


def test_versions_are_not_overwritten_when_the_ledger_is_missing(model):
    with_versions(model, "two", "three")
    (model / "versions" / "ledger.json").unlink()
    after = with_versions(model, "four")
    assert [version.number for version in after.versions] == [1, 4]
    assert (model / "versions" / "2" / "model.safetensors").read_text() == "model.safetensors two"


@pytest.mark.parametrize("moment", ["during the write", "before the move", "before the ledger"])
def test_killed_process_leaves_the_old_version_intact(model, monkeypatch, moment):
    def interrupt(*_):
        raise KeyboardInterrupt

    def interrupted_write(draft):
        draft.mkdir(parents=True)
        (draft / "model.safetensors").write_text("half")
        raise KeyboardInterrupt

    ledger = with_versions(model, "two")
    write = interrupted_write if moment == "during the write" else lambda draft: fill(draft, "three")
    with monkeypatch.context() as patch:
        if moment == "before the move":
            patch.setattr(versions.os, "replace", interrupt)
        if moment == "before the ledger":
            patch.setattr(versions, "_write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            add_version(model, ledger, FIRST, write)
    assert content(model) == "model.safetensors two"
    assert read_ledger(model, FIRST) == ledger
    assert with_versions(model, "three again").current == 3
    assert content(model) == "model.safetensors three again"
    assert sorted(p.name for p in (model / "versions").iterdir()) == ["2", "3", "ledger.json"]


def test_version_of_a_process_killed_before_the_first_ledger_is_replaced(model, monkeypatch):
    write, calls = versions._write, []

    def interrupt_second(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(versions, "_write", interrupt_second)
        with pytest.raises(KeyboardInterrupt):
            with_versions(model, "killed")
    assert (model / "versions" / "2").is_dir()
    assert content(model) == content(versions.version_folder(model, 1))
    assert [version.number for version in with_versions(model, "two").versions] == [1, 2]
    assert content(model) == "model.safetensors two"


def test_changed_or_incomplete_version_is_not_restored(model):
    ledger = with_versions(model, "two")
    (model / "preparation" / "words.txt").write_text("other")
    with pytest.raises(BadInput, match=r"version 1 .*preparation/words.txt was changed"):
        use_version(model, ledger, 1)
    (model / "versions" / "2" / "record.json").unlink()
    with pytest.raises(BadInput, match=r"version 2 .*record.json is missing"):
        use_version(model, ledger, 2)
    assert content(model) == "model.safetensors two"


UNKNOWN = '{"format": 1, "current": 7, "versions": []}'


@pytest.mark.parametrize(
    "text", [UNKNOWN, "{", "[]", "[" * 9**6, "\xff", '{"format": 1}', '{"format": 7, "current": 1}']
)
def test_corrupted_ledger_raises(model, text):
    with_versions(model, "two")
    (model / "versions" / "ledger.json").write_text(text, encoding="latin-1")
    with pytest.raises(BadInput, match=r"ledger.json (is corrupted|has format 7)|no version 7"):
        current_folder(model)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("number", "2", "number"),
        ("files", [], "files"),
        ("learned", 3, "not iterable"),
        ("learned", [3], "learned"),
        ("scores", {"a": {}}, "real number"),
        ("scores", {"a": float("nan")}, "score"),
        ("more", 1, "more"),
    ],
)
def test_ledger_entry_with_an_invalid_field_raises(model, name, value, message):
    with_versions(model, "two")
    path = model / "versions" / "ledger.json"
    document = json.loads(path.read_text())
    document["versions"][1][name] = value
    path.write_text(json.dumps(document))
    with pytest.raises(BadInput, match=rf"ledger.json is corrupted \(.*{message}"):
        read_ledger(model, FIRST)


FOLDERS = Path(__file__).with_name("saved")
EXPECTED = json.loads((FOLDERS / "predictions.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", EXPECTED)
def test_folder_of_the_first_version_predicts_the_same(name):
    classifier = DomainClassifier.from_pretrained(FOLDERS / name)
    probabilities = classifier.predict_proba(EXPECTED[name]["inputs"])
    np.testing.assert_allclose(probabilities, EXPECTED[name]["probabilities"], atol=1e-6)
