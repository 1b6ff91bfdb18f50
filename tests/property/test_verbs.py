"""For any table, a command succeeds or prints one error with exit code 2, and no file is lost."""

import shutil
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.calls import check_outcome, files, run_cli, write_table
from tests.generators.user_tables import faulty_table, good_rows, numbers
from tests.tiny import tiny_bert

QUICK = {
    "audit": 8, "clean": 5, "fit": 8, "compare": 4, "sweep": 4, "adapt": 8, "predict": 12, "predict vectors": 6,
    "pretrain": 4, "reproduce": 4,
}  # fmt: skip
LONG = dict.fromkeys(QUICK, 400)
SMALL = ["--batch", "2", "--steps", "1", "--device", "cpu"]
TEXTS = [*SMALL, "--encoder", "bilstm", "--set", "encoder.hidden=2", "--set", "encoder.embedding=2"]
ONCE = ["--methods", "erm", "--seeds", "1", "--out", "runs"]
MLP = [*SMALL, "--encoder", "mlp", "--set", "encoder.hidden=[2]"]
TABLE = good_rows("a", "b", "c")
AMAZON = good_rows("books", "dvd", "electronics", "kitchen", labels=("positive", "negative"))
AMAZON["split"] = ["train", "train", "train", "train", "dev", "dev"] * 4
VECTORS = numbers("a", "b", "c", size=6)
TABLES = {"adapt": good_rows("new"), "reproduce": AMAZON, "predict vectors": VECTORS}
WORDS = {
    "audit": (["audit", "DATA", "--out", "audit.html"], ["audit.html"]),
    "clean": (["audit", "DATA", "--out", "audit.html", "--clean", "clean.jsonl"], ["audit.html", "clean.jsonl"]),
    "fit": (["fit", "DATA", "--out", "model", "ENCODER"], ["model"]),
    "compare": (["compare", "--no-baselines", "DATA", "--no-model", *ONCE, "ENCODER"], ["runs/report.html"]),
    "sweep": (["sweep", "DATA", "--trials", "1", *ONCE, "ENCODER"], ["runs/report.html"]),
    "adapt": (["adapt", "model", "DATA", "--domain", "new", "--earlier", "good.csv", *SMALL, "--force"], []),
    "predict": (["predict", "model", "DATA", "--out", "predictions.csv"], ["predictions.csv"]),
    "predict vectors": (["predict", "vectors", "DATA", "--out", "predictions.jsonl"], ["predictions.jsonl"]),
    "pretrain": (["pretrain", "DATA", "--from", "tiny", "--out", "encoder", *SMALL, "--length", "16"], ["encoder"]),
    "reproduce": (
        ["reproduce", "mil/table1", "--data-dir", "sets", "--rows", "baseline", "--columns", "books", "--seeds", "1",
         "--out", "runs", *SMALL, "--encoder", "hf:tiny", "--lr", "1e-3", "--set", "encoder.length=16"],
        ["runs/report.html"],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder as a user has one: models, records, pages and predictions from before."""
    folder = tmp_path_factory.mktemp("whole")
    tiny_bert(folder / "tiny")
    (folder / "sets").mkdir()
    write_table(folder / "good.csv", TABLE)
    write_table(folder / "numbers.csv", VECTORS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in (
            ["fit", "good.csv", "--out", "model", *TEXTS],
            ["fit", "numbers.csv", "--out", "vectors", *MLP],
            ["compare", "--no-baselines", "good.csv", "--no-model", *ONCE, *TEXTS],
            ["predict", "model", "good.csv", "--out", "predictions.csv"],
            ["predict", "vectors", "numbers.csv", "--out", "predictions.jsonl"],
            ["audit", "good.csv", "--out", "audit.html", "--clean", "clean.jsonl"],
        ):
            assert run_cli(*words).code == 0, words
    return folder


@pytest.fixture
def tried(whole, tmp_path, monkeypatch):
    """Runs a command on a number of tables."""
    monkeypatch.chdir(tmp_path)
    original, counts = files(whole), Counter()

    def restore():
        shutil.rmtree(tmp_path / "here", ignore_errors=True)
        monkeypatch.chdir(shutil.copytree(whole, tmp_path / "here"))

    def check(verb, drawn, machine):
        suffix, content = drawn
        words, written = WORDS[verb]
        data = f"sets/amazon{suffix}" if verb == "reproduce" else f"data{suffix}"
        encoder = MLP if b"x1" in content else TEXTS
        words = [part for word in words for part in (encoder if word == "ENCODER" else [word])]
        (tmp_path / "here" / data).write_bytes(content)
        ran = run_cli(*(data if word == "DATA" else word for word in words), *(["--json"] if machine else []))
        check_outcome(ran, machine=machine)
        counts[ran.code] += 1
        after = files(tmp_path / "here")
        assert after.pop(data) == content
        outputs = () if ran.code else tuple(written)
        for name, before in original.items():
            assert name.startswith(outputs) or after.get(name) == before, name
        left = [name for name in after if name.endswith(".draft")]
        assert not left, left
        (tmp_path / "here" / data).unlink()
        if ran.code == 0 or after.keys() - original.keys():
            restore()

    def run(verb, count):
        restore()

        @seed(list(WORDS).index(verb))  # fixed tables per command
        @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(faulty_table(TABLES.get(verb, TABLE)), st.booleans())
        def inner(drawn, machine):
            try:
                check(verb, drawn, machine)
            except BaseException:
                restore()  # for the smaller tables that hypothesis tries next
                raise

        inner()
        return counts

    return run


@pytest.mark.parametrize("verb", QUICK)
def test_command_succeeds_or_prints_one_error(tried, verb):
    tried(verb, QUICK[verb])


@pytest.mark.slow
@pytest.mark.parametrize("verb", LONG)
def test_four_hundred_tables_per_command(tried, verb):
    counts = tried(verb, LONG[verb])
    assert min(counts[0], counts[2]) > 20, counts  # both valid and invalid tables occurred
