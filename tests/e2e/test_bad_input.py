"""Bad input: a one-sentence error that names the problem, exit code 2, and no file is lost."""

import errno
import os

import numpy as np
import pytest

from tests.calls import check_error as check
from tests.e2e.conftest import write_reviews

HEAD = "text,label,domain\n"


def rows(*lines):
    return HEAD + "\n".join(lines) + "\n"


FILLER = [f"good {i},pos,{d}\nbad {i},neg,{d}" for d in ("a", "b", "c") for i in range(6)]

# content of data.csv, pattern of the error
CASES = {
    "missing column": ("text,verdict\nhi,pos\nho,neg\n", r"label.*--column"),
    "blank domain": (rows(*FILLER, "lost, pos,"), r"row 37.*domain"),
    "blank label": (rows(*FILLER, "lost,,a"), r"row 37.*label"),
    "single class": (rows(*(f"t {i},pos,{'ab'[i % 2]}" for i in range(20))), r"single label"),
    "single domain": (rows(*(f"t {i},{'xy'[i % 2]},only" for i in range(20))), r"at least 2 domains.*\(only\)"),
    "tiny domains": (rows("alone,pos,a", "well,neg,b", "ill,neg,c"), r"domain '[abc]' has 1 example"),
    "no class of a domain in training": (
        rows(*(f"{word} {i},{word},{d}" for d, word in (("a", "pos"), ("b", "neg")) for i in range(6))),
        r"no class of domain 'a' \(pos\)",
    ),
    "several bad cells": (
        rows(*FILLER, "lost,,a", "one,two", " ,pos,"),
        r"4 bad cells in 3 rows: column 'label' has no label \(row 37\);.*row 38.*column 'text' has no text \(row 39\)",
    ),
    "not utf-8": (rows(*FILLER).encode() + b"caf\x81,pos,a\n", r"UTF-8"),
    "ragged row": (rows(*FILLER, "one,two"), r"data\.csv"),
    "empty file": ("", r"data\.csv"),
    "only a header": (HEAD, r"no (rows|examples)"),
}
PAIRS = "message,response,domain\n" + "".join(f"hi {i},ho {i},{domain}\n" for domain in "ab" for i in range(6))
DIALOGUES = {
    "blank message": (f"{PAIRS},hello,a\n", r"row 13, column 'message' has no text"),
    "blank response": (f"{PAIRS}hello,,a\n", r"row 13, column 'response' has no text"),
    "no responses": ("message,domain\n" + "hi,a\nho,b\n" * 4, r"message and response"),
    "no domain": ("message,response\nhi,ho\n", r"no domain column"),
}


@pytest.mark.parametrize("name", [*CASES, *DIALOGUES])
def test_tables(holdfast, tmp_path, name):
    content, pattern = {**CASES, **DIALOGUES}[name]
    (tmp_path / "data.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    words = ["compare", "--no-baselines", "data.csv", *(["--task", "respond"] if name in DIALOGUES else [])]
    check(holdfast(*words), pattern)
    if name == "several bad cells":
        check(holdfast(*words, "--json"), pattern, machine=True)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").rglob("*.json"))


@pytest.mark.parametrize("machine", [False, True])
def test_comparison_of_which_every_run_failed(holdfast, tmp_path, machine):
    (tmp_path / "data.csv").write_text(rows(*FILLER))
    words = ["compare", "--no-baselines", "data.csv", "--lr", "1e30", "--steps", "2", "--encoder", "bilstm"]
    check(holdfast(*words, *(["--json"] if machine else [])), r"diverged", machine=machine, code=1)


def test_predict_rejects_invalid_models_and_other_kinds_of_data(holdfast, reviews, quick, tmp_path):
    check(holdfast("predict", "nowhere", reviews), r"nowhere is not a model folder")
    assert holdfast("fit", reviews, "--steps", 5, "--out", "model", *quick).code == 0
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 4), dtype=np.float32))
    check(holdfast("predict", "model", "x.npz"), r"texts.*vectors")
    check(holdfast("predict", "model", reviews, "--out", "p.xlsx"), r"\.csv, \.jsonl, \.parquet")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    check(holdfast("predict", "model", reviews), r"model is not a valid model folder")


def test_vectors_of_another_width_are_rejected(holdfast, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", x=rng.normal(size=(40, 4)), y=np.arange(40) % 2, domain=np.arange(40) // 20)
    assert holdfast("fit", "x.npz", "--steps", 5, "--out", "model").code == 0
    np.savez(tmp_path / "new.npz", x=np.zeros((3, 7)))
    check(holdfast("predict", "model", "new.npz"), r"\b4\b.*\b7\b|\b7\b.*\b4\b")


def test_fit_does_not_overwrite_other_files(holdfast, reviews, quick, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    check(holdfast("fit", reviews, "--steps", 5, "--out", "mine", *quick), r"mine .*thesis\.txt")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_path_without_permission_is_rejected(holdfast, tmp_path, monkeypatch):
    def stat(path, *args, real=os.stat, **more):  # root, who may run this test, ignores permissions
        if "locked" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **more)

    write_reviews(tmp_path / "r.csv")
    monkeypatch.setattr(os, "stat", stat)
    for words in (["compare", "locked/r.csv"], ["fit", "r.csv", "--out", "locked/m"], ["predict", "locked/m", "r.csv"]):
        check(holdfast(*words), r"locked/\S+ \(Permission denied\).*permissions")


def test_unexpected_errors_are_not_hidden(holdfast, monkeypatch):
    def fails(*args, **more):
        raise OSError("a library is broken")

    monkeypatch.setattr("holdfast.folders.format.check_model", fails)
    with pytest.raises(OSError, match="a library is broken"):
        holdfast("predict", "model", "r.csv")
