"""Bad input: a one-sentence error that names the problem, exit code 2, and no file is lost."""

import errno
import os
import re

import numpy as np
import pytest
from PIL import Image

from tests.e2e.conftest import write_reviews

HEAD = "text,label,domain\n"


def rows(*lines):
    return HEAD + "\n".join(lines) + "\n"


FILLER = [f"good {i},pos,{d}\nbad {i},neg,{d}" for d in ("a", "b", "c") for i in range(6)]

CASES = {
    "missing file": (None, ["nothing.csv"], r"nothing\.csv"),
    "missing column": ("text,verdict\nhi,pos\nho,neg\n", [], r"label.*--column"),
    "blank domain": (rows(*FILLER, "lost, pos,"), [], r"row 37.*domain"),
    "blank label": (rows(*FILLER, "lost,,a"), [], r"row 37.*label"),
    "single class": (rows(*(f"t {i},pos,{'ab'[i % 2]}" for i in range(20))), [], r"single label"),
    "single domain": (
        rows(*(f"t {i},{'xy'[i % 2]},only" for i in range(20))),
        [],
        r"at least 2 domains.*\(only\)",
    ),
    "tiny domains": (rows("alone,pos,a", "well,neg,b", "ill,neg,c"), [], r"domain '[abc]' has 1 example"),
    "no class of a domain in training": (
        rows(*(f"{word} {i},{word},{d}" for d, word in (("a", "pos"), ("b", "neg")) for i in range(6))),
        [],
        r"no class of domain 'a' \(pos\)",
    ),
    "several bad cells": (
        rows(*FILLER, "lost,,a", "one,two", " ,pos,"),
        [],
        r"4 bad cells in 3 rows: column 'label' has no label \(row 37\);.*row 38.*column 'text' has no text \(row 39\)",
    ),
    "unknown method": (rows(*FILLER), ["--methods", "ermm"], r"'ermm': did you mean 'erm'\? `holdfast list methods`"),
    "unknown encoder": (rows(*FILLER), ["--encoder", "minilmm"], r"did you mean 'minilm'"),
    "encoder of another kind": (rows(*FILLER), ["--encoder", "mlp"], r"'mlp'.*vector.*text"),
    "unknown metric": (rows(*FILLER), ["--metric", "acuracy"], r"did you mean 'accuracy'"),
    "unknown plan": (rows(*FILLER), ["--plan", "leave-one-in"], r"did you mean 'leave-one-out'"),
    "unknown setting": (rows(*FILLER), ["--set", "encoder.hiden=3", "--encoder", "bilstm"], r"did you mean 'hidden'"),
    "no setting": (rows(*FILLER), ["--set", "lr"], r"KEY=VALUE"),
    "wrong type of setting": (rows(*FILLER), ["--set", "steps=many", "--encoder", "bilstm"], r"steps"),
    "unknown tuning": (rows(*FILLER), ["--tune", "las:1", "--encoder", "bilstm"], r"unknown tuning 'las:1'"),
    "bad device": (rows(*FILLER), ["--device", "tpu"], r"auto, cpu.*cuda"),
    "negative decay": (rows(*FILLER), ["--set", "weight_decay=-1", "--encoder", "bilstm"], r"weight_decay"),
    "invalid fraction": (rows(*FILLER), ["--set", "plan.valid=1.5"], r"between 0 and 1.*1\.5"),
    "hidden of a wrong type": (
        rows(*FILLER),
        ["--set", "encoder.hidden=x", "--encoder", "bilstm"],
        r"hidden.*integer.*'x'",
    ),
    "out below a file": (rows(*FILLER), ["--out", "data.csv/x", "--encoder", "bilstm"], r"cannot write"),
    "negative examples": (rows(*FILLER), ["--examples", "-3"], r"-3"),
    "diverging": (rows(*FILLER), ["--lr", "1e30", "--steps", "2", "--encoder", "bilstm"], r"diverged"),
    "no steps": (rows(*FILLER), ["--steps", "0"], r"steps.*at least 1"),
    "no seeds": (rows(*FILLER), ["--seeds", "none"], r"--seeds.*none"),
    "unknown target": (
        rows(*FILLER),
        ["--set", "plan.targets=zzz", "--encoder", "bilstm"],
        r"no domain 'zzz'.*a, b, c",
    ),
    "not utf-8": (rows(*FILLER).encode() + b"caf\x81,pos,a\n", [], r"UTF-8"),
    "ragged row": (rows(*FILLER, "one,two"), [], r"data\.csv"),
    "empty file": ("", [], r"data\.csv"),
    "only a header": (HEAD, [], r"no (rows|examples)"),
}


JSON = ("missing file", "several bad cells", "diverging", "unknown method")
PRINTED = [(name, False) for name in CASES if name != "diverging"] + [(name, True) for name in JSON]


@pytest.mark.parametrize(("name", "json"), PRINTED)
def test_tables(holdfast, tmp_path, name, json):
    content, words, message = CASES[name]
    path = tmp_path / "data.csv"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        words = [path, *words]
    code = 1 if name == "diverging" else 2  # a comparison of which every run failed
    check(holdfast("compare", "--no-baselines", *words, *(["--json"] if json else [])), message, json=json, code=code)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").rglob("*.json"))


def check(ran, message, *, json=False, code=2):
    assert ran.code == code, (ran.out, ran.err)
    sentence = ran.json["error"] if json else ran.err
    assert "Traceback" not in ran.out + ran.err
    if json:
        assert set(ran.json) == {"error"}
    else:
        assert ran.out == ""
        sentence = sentence.strip().splitlines()[-1]
        assert sentence.startswith("error: ")
        assert ran.err.count("error: ") == 1
    assert re.search(message, sentence), sentence


def test_truncated_parquet(holdfast, tmp_path):
    import pandas as pd

    pd.read_csv(write_reviews(tmp_path / "r.csv")).to_parquet(tmp_path / "r.parquet")
    content = (tmp_path / "r.parquet").read_bytes()
    (tmp_path / "r.parquet").write_bytes(content[: len(content) // 2])
    check(holdfast("compare", "r.parquet"), r"r\.parquet")


def test_nan_features(holdfast, tmp_path):
    x = np.random.default_rng(0).normal(size=(30, 4))
    x[12, 3] = np.nan
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(30) % 2, domain=np.arange(30) // 10)
    check(holdfast("compare", "x.npz"), r"row 13.*(column|feature) 4")


def write_images(folder):
    rng = np.random.default_rng(0)
    for domain in ("photo", "sketch", "art"):
        for kind in ("cat", "dog"):
            (folder / domain / kind).mkdir(parents=True)
            for i in range(4):
                data = rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(data).save(folder / domain / kind / f"{i}.png")
    return folder


def test_corrupt_image_is_named(holdfast, tmp_path):
    folder = write_images(tmp_path / "pics")
    words = ["compare", "--no-baselines", folder, "--encoder", "cnn", "--seeds", 1, "--steps", 3, "--batch", 2]
    words += ["--set", "augment=true", "--methods=erm", "--no-model"]
    good = holdfast(*words, "--json")
    assert good.code == 0, good.out
    assert {c["target"] for c in good.json["table"]} >= {"photo", "sketch", "art"}
    broken = folder / "art" / "dog" / "2.png"
    broken.write_bytes(broken.read_bytes()[:80])
    check(holdfast(*words), r"art/dog/2\.png")


def test_empty_domain_folder_is_named(holdfast, tmp_path):
    folder = write_images(tmp_path / "pics")
    (folder / "clipart").mkdir()
    check(holdfast("compare", folder), r"clipart")


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


def test_report_without_records(holdfast, tmp_path):
    (tmp_path / "empty").mkdir()
    check(holdfast("report", "empty"), r"no records")
    check(holdfast("report", "absent"), r"absent")
    (tmp_path / "empty" / "x.json").write_text("{")
    check(holdfast("report", "empty"), r"x\.json is not a run record")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "erm", "--methods=coral"], "--methods .*twice.*commas"),
        (["--seeds=1", "--seeds", "2"], "--seeds .*twice.*once"),
    ],
)
def test_repeated_options_are_rejected(holdfast, reviews, words, message):
    check(holdfast("compare", reviews, *words), message)


def test_unknown_commands_and_options(holdfast):
    check(holdfast("compair", "x"), r"compair")
    check(holdfast("list", "metods"), r"did you mean 'methods'")
    check(holdfast("list", "methods", "--jsn"), r"--jsn")
    check(holdfast("bench", "lop"), r"unknown bench 'lop'.*did you mean 'loop'")


LONG = "a" * 300


@pytest.mark.parametrize(
    "words",
    [
        ("compare", f"{LONG}.csv"),
        ("fit", "r.csv", "--out", LONG),
        ("fit", "r.csv", "--config", LONG),
        ("fit", "r.csv", "--encoder", f"hf:{LONG}", "--steps", 2),
        ("report", LONG),
        ("adapt", LONG, "r.csv"),
        ("rollback", LONG),
        ("predict", LONG, "r.csv"),
        ("pretrain", f"{LONG}.csv"),
    ],
    ids=lambda words: f"{words[0]} {words[-2] if '--' in str(words[-2]) else ''}",
)
def test_path_that_is_too_long_is_rejected(holdfast, tmp_path, words):
    write_reviews(tmp_path / "r.csv")
    check(holdfast(*words), r"a{100}.*shorter path")


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


INVALID = {
    "jobs": (["--jobs", "0"], "--jobs.*auto.*'0'"),
    "patience": (["--set", "patience=-1"], "patience.*at least 0"),
    "weight": (["--methods", "coral", "--set", "method.weight=-1"], "'coral': weight.*at least 0.*-1"),
    "order": (["--plan", "stream", "--set", "plan.order=books,books"], "'books' twice"),
    "oracle": (["--plan", "stream", "--select", "oracle"], "--select.*train-validation"),
    "rate": (["--lr", "-1"], "lr.*above 0.*-1"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_settings_are_named(holdfast, reviews, quick, name):
    words, message = INVALID[name]
    methods = [] if "--methods" in words else ["--methods", "erm"]
    options = quick[:-2]  # without --lr
    check(
        holdfast(
            "compare", "--no-baselines", reviews, *options, "--seeds", 1, "--steps", 2, "--no-model", *methods, *words
        ),
        message,
    )


def test_empty_and_unknown_names_are_rejected(holdfast, reviews):
    check(holdfast("fit", ""), "empty name")
    check(holdfast("bench", "foo"), "'foo'.*`holdfast list benches`")
