import json

import pytest

from holdfast.core.errors import BadInput
from holdfast.models import versions
from holdfast.models.versions import Version, add_version, current_folder, has_versions, read_ledger, use_version

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


def grown(model, *contents):
    for each in contents:
        add_version(model, read_ledger(model, FIRST), FIRST, lambda draft, each=each: fill(draft, each))
    return read_ledger(model, FIRST)


def test_a_folder_without_a_ledger_is_its_first_version(model):
    assert not has_versions(model)
    assert current_folder(model) == model
    ledger = read_ledger(model, FIRST)
    assert (ledger.current, [each.number for each in ledger.versions]) == (1, [1])
    assert set(ledger.versions[0].files) == {
        "config.json", "model.safetensors", "record.json", "preparation/words.txt"
    }  # fmt: skip


def test_every_version_can_be_given_back_and_none_is_lost(model):
    ledger = grown(model, "two", "three")
    assert content(model) == "model.safetensors three"
    for number, word in ((1, "one"), (3, "three"), (2, "two")):
        use_version(model, ledger, number)
        assert content(model) == f"model.safetensors {word}"
    after = grown(model, "four")  # from version 2
    assert [(each.number, each.parent) for each in after.versions] == [(1, None), (2, 1), (3, 2), (4, 2)]
    assert after.versions[0].scores == {"a": 0.9, "b": None}
    with pytest.raises(BadInput, match="no version 9 of this model: it has 1, 2, 3, 4"):
        use_version(model, after, 9)


def test_without_its_ledger_a_later_version_is_not_written_over(model):
    grown(model, "two", "three")
    (model / "versions" / "ledger.json").unlink()
    after = grown(model, "four")
    assert [each.number for each in after.versions] == [1, 4]
    assert (model / "versions" / "2" / "model.safetensors").read_text() == "model.safetensors two"


@pytest.mark.parametrize("moment", ["while it is written", "before it is in its place", "before the ledger"])
def test_a_kill_at_any_moment_leaves_the_old_version_whole(model, monkeypatch, moment):
    def killed(*_):
        raise KeyboardInterrupt

    def half(draft):
        draft.mkdir(parents=True)
        (draft / "model.safetensors").write_text("half")
        raise KeyboardInterrupt

    ledger = grown(model, "two")
    write = half if moment.startswith("while") else lambda draft: fill(draft, "three")
    with monkeypatch.context() as patch:
        if moment == "before it is in its place":
            patch.setattr(versions.os, "replace", killed)
        if moment == "before the ledger":
            patch.setattr(versions, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            add_version(model, ledger, FIRST, write)
    assert content(model) == "model.safetensors two"
    assert read_ledger(model, FIRST) == ledger
    assert grown(model, "three again").current == 3
    assert content(model) == "model.safetensors three again"
    assert sorted(p.name for p in (model / "versions").iterdir()) == ["2", "3", "ledger.json"]


def test_a_version_that_changed_on_the_disk_is_not_given_back(model):
    ledger = grown(model, "two")
    (model / "preparation" / "words.txt").write_text("other")
    with pytest.raises(BadInput, match=r"file preparation/words.txt is changed"):
        use_version(model, ledger, 1)
    (model / "versions" / "2" / "record.json").unlink()
    with pytest.raises(BadInput, match=r"version 2 .* file record.json is gone"):
        use_version(model, ledger, 2)
    assert content(model) == "model.safetensors two"


@pytest.mark.parametrize("text", ["{", "[]", "[" * 9**6, "\xff", '{"format": 1}', '{"format": 7, "current": 1}'])
def test_a_broken_ledger_is_told(model, text):
    grown(model, "two")
    (model / "versions" / "ledger.json").write_text(text, encoding="latin-1")
    with pytest.raises(BadInput, match=r"ledger.json (is broken|has format)"):
        current_folder(model)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("number", "2", "number of a version is no int"),
        ("files", [], "files of a version is no dict"),
        ("learned", 3, "not iterable"),
        ("learned", [3], "has no name"),
        ("scores", {"a": {}}, "must be real number"),
        ("scores", {"a": float("nan")}, "a score is no number"),
        ("more", 1, "unexpected keyword"),
    ],
)  # fmt: skip
def test_a_version_of_another_form_is_told(model, name, value, said):
    grown(model, "two")
    path = model / "versions" / "ledger.json"
    held = json.loads(path.read_text())
    held["versions"][1][name] = value
    path.write_text(json.dumps(held))
    with pytest.raises(BadInput, match=f"ledger.json is broken .*{said}.*: delete it"):
        read_ledger(model, FIRST)


def test_a_ledger_that_uses_a_version_it_has_not_is_told(model):
    grown(model, "two")
    path = model / "versions" / "ledger.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"current": 7}))
    with pytest.raises(BadInput, match="no version 7 of this model: it has 1, 2"):
        current_folder(model)
