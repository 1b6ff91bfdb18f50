"""On any table and any damaged folder a command succeeds or prints one error, and no file is lost."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.calls import check_outcome, files, run_cli, write_table
from tests.generators.mutate import mutate, mutate_json
from tests.generators.user_tables import faulty_table, good_rows, numbers
from tests.tiny import tiny_bert

SMALL = ["--batch", "2", "--steps", "1", "--device", "cpu"]
TEXTS = [*SMALL, "--encoder", "bilstm", "--set", "encoder.hidden=2", "--set", "encoder.embedding=2"]
MLP = [*SMALL, "--encoder", "mlp", "--set", "encoder.hidden=[2]"]
ONCE = ["--methods", "erm", "--seeds", "1", "--out", "runs"]
TABLE, VECTORS = good_rows("a", "b", "c"), numbers("a", "b", "c", size=6)
AMAZON = good_rows("books", "dvd", "electronics", "kitchen", labels=("positive", "negative"))
AMAZON["split"] = ["train", "train", "train", "train", "dev", "dev"] * 4


class Command(NamedTuple):
    """A command, how many examples of `make test` it gets, and what a success may change."""

    words: list[str]
    count: int
    outputs: tuple[str, ...] = ()
    table: dict = TABLE  # the valid table that faults are put into


ON_TABLES = {
    "audit": Command(["audit", "DATA", "--out", "audit.html"], 8, ("audit.html",)),
    "clean": Command(
        ["audit", "DATA", "--out", "audit.html", "--clean", "clean.jsonl"], 5, ("audit.html", "clean.jsonl")
    ),
    "fit": Command(["fit", "DATA", "--out", "model", "ENCODER"], 8, ("model",)),
    "compare": Command(
        ["compare", "--no-baselines", "DATA", "--no-model", *ONCE, "ENCODER"], 4, ("runs/report.html",)
    ),
    "sweep": Command(["sweep", "DATA", "--trials", "1", *ONCE, "ENCODER"], 4, ("runs/report.html",)),
    "adapt": Command(
        ["adapt", "model", "DATA", "--domain", "new", "--earlier", "good.csv", *SMALL, "--force"], 8,
        table=good_rows("new"),
    ),
    "predict": Command(["predict", "model", "DATA", "--out", "predictions.csv"], 12, ("predictions.csv",)),
    "predict vectors": Command(
        ["predict", "vectors", "DATA", "--out", "predictions.jsonl"], 6, ("predictions.jsonl",), VECTORS
    ),
    "pretrain": Command(
        ["pretrain", "DATA", "--from", "tiny", "--out", "encoder", *SMALL, "--length", "16"], 4, ("encoder",)
    ),
    "reproduce": Command(
        ["reproduce", "mil/table1", "--data-dir", "sets", "--rows", "baseline", "--columns", "books", "--seeds", "1",
         "--out", "runs", *SMALL, "--encoder", "hf:tiny", "--lr", "1e-3", "--set", "encoder.length=16"],
        4, ("runs/report.html",), AMAZON,
    ),
}  # fmt: skip
ON_FOLDERS = {
    "predict": Command(["predict", "adapted", "new.csv"], 5, ("predictions.csv",)),
    "rollback": Command(["rollback", "adapted"], 8),
    "back": Command(["rollback", "adapted", "1"], 8, ("adapted/versions/ledger.json",)),
    "serve": Command(["serve", "adapted"], 5),
    "export": Command(
        ["export", "adapted", "program.pt2", "--format", "torch"], 2, ("program.pt2", "program.pt2.json")
    ),
    "report": Command(["report", "runs"], 5, ("runs/report.html",)),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder as a user has one: models, one of them adapted, records, pages and predictions from before."""
    folder = tmp_path_factory.mktemp("whole")
    tiny_bert(folder / "tiny")
    (folder / "sets").mkdir()
    write_table(folder / "good.csv", TABLE)
    write_table(folder / "numbers.csv", VECTORS)
    write_table(folder / "new.csv", numbers("new", size=6))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in (
            ["fit", "good.csv", "--out", "model", *TEXTS],
            ["fit", "numbers.csv", "--out", "vectors", *MLP],
            ["fit", "numbers.csv", "--out", "adapted", *MLP],
            ["adapt", "adapted", "new.csv", "--earlier", "numbers.csv", "--force", *SMALL],
            ["compare", "--no-baselines", "good.csv", "--no-model", *ONCE, *TEXTS],
            ["predict", "model", "good.csv", "--out", "predictions.csv"],
            ["predict", "vectors", "numbers.csv", "--out", "predictions.jsonl"],
            ["audit", "good.csv", "--out", "audit.html", "--clean", "clean.jsonl"],
        ):
            assert run_cli(*words).code == 0, words
    return folder


@pytest.fixture
def here(whole, tmp_path, monkeypatch):
    """A copy of the folder; a server that is ready stops immediately."""
    monkeypatch.setattr("holdfast.serve.server.serve", lambda *_, host, port, ready, **__: ready(f"{host}:{port}"))
    monkeypatch.chdir(shutil.copytree(whole, tmp_path / "here"))
    return tmp_path / "here"


def restore(here: Path, original: dict[str, bytes]) -> None:
    """Write the original files again and remove others."""
    now = files(here)
    for extra in set(now) - set(original):
        (here / extra).unlink()
    for name, content in original.items():
        if now.get(name) != content:
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_bytes(content)


def damaged(original: dict[str, bytes], rng: random.Random) -> tuple[str, bytes | None]:
    """Return the name of a file and its new content; None if the file is removed."""
    name = rng.choice(sorted(original))
    if name.endswith(".json") and rng.random() < 0.75:
        document = {key: value for key, value in json.loads(original[name]).items() if key != "checksum"}
        return name, mutate_json([document], rng)
    changed = mutate([original[name]], rng)
    return name, rng.choice([None, b"", changed, changed, b"\xff" * 40, b"[" * 100_000])


def run_on_tables(name: str, count: int, here: Path) -> Counter:
    """Run a command on faulty tables and count its exit codes."""
    command, original, counts = ON_TABLES[name], files(here), Counter()
    for number in range(count):
        restore(here, original)
        rng = random.Random(f"{name} {number}")
        suffix, content = faulty_table(command.table, rng)
        data = f"sets/amazon{suffix}" if name == "reproduce" else f"data{suffix}"
        encoder = MLP if b"x1" in content else TEXTS
        words = [part for word in command.words for part in (encoder if word == "ENCODER" else [word])]
        (here / data).write_bytes(content)
        machine = rng.random() < 0.5
        ran = run_cli(*(data if word == "DATA" else word for word in words), *(["--json"] if machine else []))
        check_outcome(ran, machine=machine)
        counts[ran.code] += 1
        after = files(here)
        assert after.pop(data) == content
        outputs = () if ran.code else command.outputs
        lost = [each for each, before in original.items() if not each.startswith(outputs) and after.get(each) != before]
        assert not lost, (number, lost)
        assert not [each for each in after if each.endswith(".draft")], number
    return counts


def run_on_damaged_folders(name: str, count: int, here: Path) -> Counter:
    """Run a command on folders with one damaged file and count its exit codes."""
    command, original, counts = ON_FOLDERS[name], files(here), Counter()
    inside = {each: content for each, content in original.items() if each.startswith(f"{command.words[1]}/")}
    for number in range(count):
        restore(here, original)
        rng = random.Random(f"{name} {number}")
        file, content = damaged(inside, rng)
        (here / file).unlink() if content is None else (here / file).write_bytes(content)
        before, machine = files(here), rng.random() < 0.5
        ran = run_cli(*command.words, *(["--json"] if machine else []))
        check_outcome(ran, machine=machine)
        counts[ran.code] += 1
        after, outputs = files(here), () if ran.code else command.outputs
        changed = {each for each in before.keys() | after.keys() if before.get(each) != after.get(each)}
        assert changed <= set(outputs), (number, changed)
    return counts


@pytest.mark.parametrize("name", ON_TABLES)
def test_command_on_faulty_tables(name, here):
    run_on_tables(name, ON_TABLES[name].count, here)


@pytest.mark.parametrize("name", ON_FOLDERS)
def test_command_on_damaged_folders(name, here):
    run_on_damaged_folders(name, ON_FOLDERS[name].count, here)


@pytest.mark.parametrize("name", ON_FOLDERS)
def test_missing_or_other_folder_is_rejected(name, here):
    words = ON_FOLDERS[name].words
    folder = here / words[1]
    for kind in ("absent", "file", "empty", "other"):
        shutil.rmtree(folder) if folder.is_dir() else folder.unlink(missing_ok=True)
        if kind == "file":
            folder.write_text("not a folder")
        elif kind != "absent":
            folder.mkdir()
        if kind == "other":
            (folder / "thesis.txt").write_text("years of work")
        before = files(here)
        ran = run_cli(*words)
        check_outcome(ran, machine=False)
        assert ran.code == 2
        assert folder.name in ran.err
        assert files(here) == before


def test_invalid_model_card_does_not_prevent_serving(here):
    (here / "adapted" / "versions" / "2" / "README.md").write_bytes(b"# \xff\xfe")
    ran = run_cli(*ON_FOLDERS["serve"].words)
    assert ran.code == 0, ran.err
    assert "at 127.0.0.1:8000" in ran.err
