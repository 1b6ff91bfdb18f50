"""Planted label errors and telltale words are reported, and clean data is left alone."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from holdfast.auditing.audit import audit
from holdfast.auditing.examples import Examples
from holdfast.auditing.label_errors import (
    LabelError,
    confident_errors,
    confident_joint,
    excess_errors,
    find_label_errors,
    fit_label_noise,
    label_error_grid,
)
from holdfast.auditing.telltale_words import telltale_words
from holdfast.cli import app
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Vectors
from holdfast.data.synthetic import world
from holdfast.train.training_data import training_data

DATA = world("vector", "none", domains=3, size=200, classes=3, seed=0)
GOOD, BAD = ("fine great lovely superb", "dull poor awful broken")


def rows_of(dataset):
    return {name: dataset.rows_of(name) for name in dataset.domains}


def flipped(dataset, share=0.05, seed=0):
    """Return the data set with some labels changed, and whether each was (n,)."""
    rng, y = np.random.default_rng(seed), dataset.y.copy()
    rows = rng.permutation(len(y))[: int(share * len(y))]
    y[rows] = (y[rows] + rng.integers(1, len(dataset.classes), len(rows))) % len(dataset.classes)
    return replace(dataset, y=y), y != dataset.y


def write(path, flips=(), leak=False, size=60):
    rng, lines = np.random.default_rng(0), []
    for domain in ("books", "films", "pans"):
        for i in range(size):
            label = ("neg", "pos")[i % 2]
            words = [*rng.choice((BAD, GOOD)[i % 2].split(), 3), domain, *rng.choice(list("abcdefgh"), 4)]
            words += ["stars5"] if leak and label == "pos" else []
            lines.append([" ".join(words), label, domain])
    for row in flips:
        lines[row][1] = {"neg": "pos", "pos": "neg"}[lines[row][1]]
    path.write_text("\n".join(map(",".join, [["text", "label", "domain"], *lines])) + "\n")
    return path


def test_joint_counts_are_those_of_confident_learning():
    p = np.asarray([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7], [0.2, 0.8], [0.45, 0.55]])
    y = np.asarray([0, 0, 0, 1, 1, 1])  # thresholds 0.6 and 0.6833
    assert confident_joint(p, y) == pytest.approx(np.asarray([[2.0, 1.0], [0.0, 3.0]]))  # the last row is not counted
    assert confident_errors(p, y).tolist() == [-1, -1, 1, -1, -1, -1]
    sure = np.asarray([[1.0, 0.0], [0.0, 1.0]])
    assert confident_errors(sure, np.asarray([0, 1])).tolist() == [-1, -1]
    absent = np.asarray([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1]])  # no row has the labels 1 and 2
    assert confident_errors(absent, np.asarray([0, 0])).tolist() == [-1, -1]


@pytest.mark.parametrize("seed", [0, 1])
def test_flipped_labels_come_first(seed):
    data, wrong = flipped(DATA, seed=seed)
    errors = find_label_errors(Examples(data), rows_of(data))
    hits = [wrong[error.row - 1] for error in errors.rows]
    margins = [error.margin for error in errors.rows]
    assert margins == sorted(margins, reverse=True)
    base = np.mean(hits)
    assert base > 3 * wrong.mean()  # three times better than a random choice
    assert np.mean(hits[: wrong.sum()]) >= base
    assert sum(hits) / wrong.sum() > 0.5
    assert errors.checked == len(data)


def ambiguous(seed=0, n=250):
    """Return three domains whose labels are random draws from known probabilities: correct, but often surprising."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(3 * n, 4)).astype(np.float32)
    y = (rng.random(3 * n) < 1 / (1 + np.exp(-2.2 * x[:, 0]))).astype(np.int64)
    return Dataset("ambiguous", Vectors(x), y, ("no", "yes"), np.repeat([0, 1, 2], n), ("a", "b", "c"))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ambiguous_labels_are_expected_by_chance(seed):
    data = ambiguous(seed)
    errors = find_label_errors(Examples(data), rows_of(data))
    assert errors.skipped == ""
    assert errors.suspicious > 40
    assert errors.expected == pytest.approx(errors.suspicious, rel=0.35)
    assert len(errors.rows) <= 10


def test_flipped_labels_exceed_the_expected_number():
    rng = np.random.default_rng(0)
    p = 1 / (1 + np.exp(-6 * rng.normal(size=2000)))
    p = np.stack([1 - p, p], axis=1)
    y = (rng.random(2000) < p[:, 1]).astype(np.int64)
    exponent, wrong = fit_label_noise(p, y)
    assert exponent == pytest.approx(1, abs=0.2)
    assert wrong < 0.01
    flips = rng.permutation(2000)[:100]
    y[flips] = 1 - y[flips]
    exponent, wrong = fit_label_noise(p, y)
    assert exponent == pytest.approx(1, abs=0.3)  # the flips do not make all predictions seem too confident
    assert wrong == pytest.approx(0.05, abs=0.02)
    suggested, suspicious, expected = excess_errors(p, y, seed=0)
    reported = np.flatnonzero(suggested >= 0)
    assert len(reported) == round(suspicious - expected)
    assert np.isin(reported, flips).mean() > 0.6  # of 0.05 among all rows
    assert len(reported) > 50


def test_domains_that_are_predicted_badly_are_not_searched():
    data = ambiguous()
    y = data.y.copy()
    y[data.rows_of("c")] = np.random.default_rng(0).permutation(y[data.rows_of("c")])
    errors = find_label_errors(Examples(replace(data, y=y)), rows_of(data))
    assert errors.unsearched == ("c",)
    assert {error.domain for error in errors.rows} <= {"a", "b"}
    shown = replace(errors, rows=[LabelError(1, "1", "a", "no", "yes", 0.1, 0.9)])
    assert "Not searched, because their predictions are poor: c." in label_error_grid(shown, Examples(data)).about


def test_shuffled_labels_are_not_searched():
    data = replace(DATA, y=np.random.default_rng(0).permutation(DATA.y))
    errors = find_label_errors(Examples(data), rows_of(data))
    assert errors.rows == []
    assert "label errors were not searched" in errors.skipped


def test_one_domain_and_numbers_are_skipped():
    one = {DATA.domains[0]: DATA.rows_of(DATA.domains[0])}
    assert "two domains" in find_label_errors(Examples(DATA), one).skipped
    numbers = replace(DATA, targets=np.zeros(len(DATA)))
    assert "classes only" in find_label_errors(Examples(numbers), rows_of(DATA)).skipped


def test_audit_ranks_and_exports_planted_errors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flips = (3, 70, 131)
    data = write(tmp_path / "data.csv", flips)
    ran = CliRunner().invoke(app, ["audit", str(data), "--label-errors", "errors.csv", "--json"])
    document = json.loads(ran.stdout)
    reported = [error["row"] - 1 for error in document["label_errors"]["rows"]]
    assert len(reported) >= 2  # the third is predicted with less than the usual confidence
    assert set(reported) <= set(flips)
    assert document["errors_file"] == "errors.csv"
    rows = list(csv.DictReader((tmp_path / "errors.csv").read_text().splitlines()))
    assert len(rows) == len(document["label_errors"]["rows"])
    assert [row["rank"] for row in rows[:2]] == ["1", "2"]
    lines = data.read_text().splitlines()
    for row in rows:
        text, label, domain = lines[int(row["row"])].split(",")
        assert (row["example"], row["label"], row["domain"]) == (text, label, domain)
        assert row["suggested"] != label
    shown = CliRunner().invoke(app, ["audit", str(data), "--label-errors", "errors.csv"])
    assert "Likely label errors" in shown.output
    assert "likely label errors: errors.csv" in shown.output
    text = " ".join(shown.output.split())
    assert re.search(r"are suspicious \(\d contradict a confident prediction, \d are expected by chance\): check", text)
    assert "they are in errors.csv" in text
    assert "Likely label errors" in (tmp_path / "audit.html").read_text()


def test_clean_labels_have_no_errors(tmp_path):
    result = audit(str(write(tmp_path / "data.csv")))
    assert result.label_errors.rows == []
    assert "suspicious" not in " ".join(result.advice)


def test_single_words_that_identify_a_domain_or_leak_the_label(tmp_path):
    data = training_data(write(tmp_path / "leak.csv", leak=True))
    words = telltale_words(Examples(data), rows_of(data))
    assert {(each.word, each.what, each.name) for each in words} >= {
        ("books", "domain", "books"), ("films", "domain", "films"), ("stars5", "label", "pos"),
    }  # fmt: skip
    assert all(each.strength >= 0.8 for each in words)
    result = audit(str(tmp_path / "leak.csv"))
    assert any("The word 'stars5' nearly decides the label" in sentence for sentence in result.advice)
    assert any(grid.title == "Telltale words" for grid in result.grids)
    assert result.json()["telltale"][0].keys() == {"word", "what", "name", "inside", "outside"}


def test_ordinary_words_are_not_suspicious():
    data = world("text", "none", domains=3, size=80, classes=2, seed=0)
    assert not [each for each in telltale_words(Examples(data), rows_of(data)) if each.what == "domain"]
    assert telltale_words(Examples(DATA), rows_of(DATA)) == []
