"""Commands on damaged folders succeed or print one sentence, and change nothing else."""

import json
import shutil
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.calls import check_outcome, files, run_cli, write_table
from tests.generators.mutate import mutate, mutate_json
from tests.generators.user_tables import numbers

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
ERM = ["--methods", "erm", "--seeds", "1"]
MLP = [*SMALL, "--encoder", "mlp", "--set", "encoder.hidden=[2]"]


@st.composite
def damaged(draw, original):
    """Draw a file name and its new content; None if the file is removed."""
    name = draw(st.sampled_from(sorted(original)))
    content, rng = original[name], draw(st.randoms(use_true_random=False))
    if name.endswith(".json") and draw(st.integers(0, 3)):
        document = {key: value for key, value in json.loads(content).items() if key != "checksum"}
        return name, mutate_json([document], rng)
    changed = mutate([content], rng)
    return name, draw(st.sampled_from([None, b"", changed, changed, b"\xff" * 40, b"[" * 100_000]))


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A model with two versions and the records of a comparison."""
    folder = tmp_path_factory.mktemp("original")
    write_table(folder / "good.csv", numbers("a", "b", "c", size=6))
    write_table(folder / "new.csv", numbers("new", size=6))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in (
            ["fit", "good.csv", "--out", "model", *MLP],
            ["adapt", "model", "new.csv", "--earlier", "good.csv", "--force", *SMALL],
            ["compare", "--no-baselines", "good.csv", "--no-model", *ERM, "--out", "runs", *MLP],
        ):
            assert run_cli(*words).code == 0, words
    return folder


@pytest.fixture
def here(original, tmp_path, monkeypatch):
    """A copy to damage; a server that is ready stops immediately."""
    monkeypatch.setattr("holdfast.serve.server.serve", lambda *_, host, port, ready, **__: ready(f"{host}:{port}"))
    monkeypatch.chdir(shutil.copytree(original, tmp_path / "here"))
    return tmp_path / "here"


def restore(here, saved):
    """Restore the original files and remove others."""
    now = files(here)
    for extra in set(now) - set(saved):
        (here / extra).unlink()
    for name, content in saved.items():
        if now.get(name) != content:
            (here / name).write_bytes(content)


def run_examples(verb, count, here):
    """Count the exit codes of a command on `count` damaged folders."""
    saved, counts = files(here), Counter()
    top = "runs" if verb == "report" else "model"

    @seed(list(WORDS).index(verb))  # fixed per command
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(damaged({name: content for name, content in saved.items() if name.startswith(top)}), st.booleans())
    def inner(drawn, machine):
        restore(here, saved)
        name, content = drawn
        if content is None:
            (here / name).unlink()
        else:
            (here / name).write_bytes(content)
        before = files(here)
        ran = run_cli(*WORDS[verb], *(["--json"] if machine else []))
        check_outcome(ran, machine=machine)
        counts[ran.code] += 1
        written = () if ran.code else WRITTEN.get(verb, ())
        others = [
            {key: value for key, value in snapshot.items() if key not in written} for snapshot in (before, files(here))
        ]
        assert others[0] == others[1]

    inner()
    return counts


@pytest.mark.parametrize("verb", QUICK)
def test_command_succeeds_or_prints_one_sentence(here, verb):
    run_examples(verb, QUICK[verb], here)


@pytest.mark.slow
@pytest.mark.parametrize("verb", LONG)
def test_four_hundred_damaged_folders(here, verb):
    counts = run_examples(verb, LONG[verb], here)
    assert min(counts[0], counts[2]) > 5, counts  # some damage is harmless


@pytest.mark.parametrize("verb", WORDS)
@pytest.mark.parametrize("kind", ["absent", "file", "empty", "other"])
def test_missing_or_other_folder_is_rejected(here, verb, kind):
    folder = here / ("runs" if verb == "report" else "model")
    shutil.rmtree(folder)
    if kind == "file":
        folder.write_text("not a folder")
    elif kind != "absent":
        folder.mkdir()
    if kind == "other":
        (folder / "thesis.txt").write_text("years of work")
    before = files(here)
    ran = run_cli(*WORDS[verb])
    check_outcome(ran, machine=False)
    assert ran.code == 2
    assert folder.name in ran.err
    assert files(here) == before


def test_invalid_model_card_does_not_prevent_serving(here):
    (here / "model" / "versions" / "2" / "README.md").write_bytes(b"# \xff\xfe")
    ran = run_cli(*WORDS["serve"])
    assert ran.code == 0, ran.err
    assert "at 127.0.0.1:8000" in ran.err
