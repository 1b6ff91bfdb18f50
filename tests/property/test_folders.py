"""Whatever is broken in a folder, a verb that takes one does its work or says one sentence, and changes nothing."""

import json
import shutil
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.property.brought import good_rows
from tests.property.calls import called, files, one_sentence, write_table
from tests.property.odd import changed

QUICK = {"predict": 5, "rollback": 8, "back": 8, "serve": 5, "export": 2, "report": 5}
LONG = {"predict": 400, "rollback": 400, "back": 400, "serve": 400, "export": 60, "report": 400}
WORDS = {
    "predict": ["predict", "model", "new.csv"],
    "rollback": ["rollback", "model"],
    "back": ["rollback", "model", "1"],
    "serve": ["serve", "model"],
    "export": ["export", "model", "program.pt2", "--format", "torch"],
    "report": ["report", "runs"],
}
WRITTEN = {
    "predict": ("predictions.csv",),
    "back": ("model/versions/ledger.json",),
    "export": ("program.pt2", "program.pt2.json"),
    "report": ("runs/report.html",),
}
SMALL = ["--batch", "2", "--steps", "1", "--device", "cpu"]
MLP = [*SMALL, "--encoder", "mlp", "--set", "encoder.hidden=[2]"]


def numbers(*domains):
    table = good_rows(*domains)
    size = len(table.pop("text"))
    return {"x1": [i % 5 for i in range(size)], "x2": [i % 3 / 2 for i in range(size)], **table}


@st.composite
def broken(draw, whole):
    """The name of a file, and what it holds instead; None where it is gone."""
    name = draw(st.sampled_from(sorted(whole)))
    content = whole[name]
    if name.endswith(".json") and draw(st.integers(0, 3)):
        told = {key: value for key, value in json.loads(content).items() if key != "checksum"}
        return name, json.dumps(draw(changed(told))).encode()
    at = draw(st.integers(0, len(content) - 1))
    other = bytes([content[at] ^ 1 << draw(st.integers(0, 7))])
    kinds = [None, b"", content[:at], content[:at] + other + content[at + 1 :], b"\xff" * 40, b"[" * 100_000]
    return name, draw(st.sampled_from(kinds))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A model of two versions and the records of a comparison."""
    folder = tmp_path_factory.mktemp("whole")
    write_table(folder / "good.csv", numbers("a", "b", "c"))
    write_table(folder / "new.csv", numbers("new"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in (
            ["fit", "good.csv", "--out", "model", *MLP],
            ["adapt", "model", "new.csv", "--earlier", "good.csv", "--force", *SMALL],
            ["compare", "good.csv", "--no-model", "--methods", "erm", "--seeds", "1", "--out", "runs", *MLP],
        ):
            assert called(*words).code == 0, words
    return folder


@pytest.fixture
def here(whole, tmp_path, monkeypatch):
    """A copy to break; a server that is ready ends at once."""
    monkeypatch.setattr("holdfast.serve.server.serve", lambda service, *, host, port, ready: ready(f"{host}:{port}"))
    monkeypatch.chdir(shutil.copytree(whole, tmp_path / "here"))
    return tmp_path / "here"


def restore(here, kept):
    """The files as they were, and no others."""
    now = files(here)
    for extra in set(now) - set(kept):
        (here / extra).unlink()
    for name, content in kept.items():
        if now.get(name) != content:
            (here / name).write_bytes(content)


def tried(verb, count, here):
    """How often a verb on so many broken folders ended with which code."""
    kept, counts = files(here), Counter()
    top = "runs" if verb == "report" else "model"

    @seed(list(WORDS).index(verb))  # the same in every run, others for each verb
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(broken({name: content for name, content in kept.items() if name.startswith(top)}), st.booleans())
    def inner(drawn, machine):
        restore(here, kept)
        name, content = drawn
        if content is None:
            (here / name).unlink()
        else:
            (here / name).write_bytes(content)
        before = files(here)
        ran = called(*WORDS[verb], *(["--json"] if machine else []))
        one_sentence(ran, machine=machine)
        counts[ran.code] += 1
        mine = () if ran.code else WRITTEN.get(verb, ())
        others = [{key: value for key, value in told.items() if key not in mine} for told in (before, files(here))]
        assert others[0] == others[1]

    inner()
    return counts


@pytest.mark.parametrize("verb", QUICK)
def test_a_verb_works_or_says_one_sentence(here, verb):
    tried(verb, QUICK[verb], here)


@pytest.mark.slow
@pytest.mark.parametrize("verb", LONG)
def test_four_hundred_broken_folders(here, verb):
    counts = tried(verb, LONG[verb], here)
    assert min(counts[0], counts[2]) > 5, counts  # some breaks do no harm


@pytest.mark.parametrize("verb", WORDS)
@pytest.mark.parametrize("kind", ["absent", "file", "empty", "other"])
def test_what_is_no_such_folder(here, verb, kind):
    folder = here / ("runs" if verb == "report" else "model")
    shutil.rmtree(folder)
    if kind == "file":
        folder.write_text("not a folder")
    elif kind != "absent":
        folder.mkdir()
    if kind == "other":
        (folder / "thesis.txt").write_text("years of work")
    before = files(here)
    ran = called(*WORDS[verb])
    one_sentence(ran, machine=False)
    assert ran.code == 2
    assert folder.name in ran.err
    assert files(here) == before


def test_a_card_that_is_no_text_keeps_no_model_from_being_served(here):
    (here / "model" / "versions" / "2" / "README.md").write_bytes(b"# \xff\xfe")
    ran = called(*WORDS["serve"])
    assert ran.code == 0, ran.err
    assert "model answers at 127.0.0.1:8000" in ran.err
