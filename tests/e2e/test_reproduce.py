"""`holdfast reproduce` with small files and a tiny transformer."""

import re

import pytest

from tests.graphs import rings_and_stars, write_zip
from tests.published import write_published
from tests.tiny import tiny_bert


@pytest.fixture
def quick(tmp_path) -> list:
    """Options for a run that takes seconds."""
    folder = tiny_bert(tmp_path / "tiny")
    return ["--encoder", f"hf:{folder}", "--steps", 4, "--batch", 4, "--lr", "1e-3", "--set", "encoder.length=32"]


@pytest.fixture
def data(tmp_path):
    return write_published(tmp_path / "data")


def test_two_rows_of_one_column(holdfast, data, quick, tmp_path):
    words = [
        "reproduce", "mil/table1", "--data-dir", data, "--rows", "baseline,mil", "--columns", "books", "--seeds",
        2,
    ]  # fmt: skip
    words += ["--out", "runs", "--set", "neck.slots=16", *quick]
    ran = holdfast(*words, "--json")
    assert ran.code == 0, ran.out
    assert [(c["row"], c["column"], c["published"], c["n"]) for c in ran.json["table"]] == [
        ("baseline", "books", 91.5, 2),
        ("mil", "books", 93.5, 2),
    ]
    for cell in ran.json["table"]:
        assert cell["low"] <= cell["mean"] <= cell["high"]
        assert 0 <= cell["mean"] <= 100
    assert [r["episode"] for r in ran.json["records"]] == ["to-books"] * 4  # no other episode was trained
    by_method = {r["spec"]["method"]: r["spec"] for r in ran.json["records"]}
    assert by_method["mil"]["neck"] == "memory"
    published = {"slots": 16, "heads": 4, "key_width": 256, "share": 0.5}
    published |= {"fusion": "interpolate", "init": "published", "query_norm": False}
    assert by_method["mil"]["neck_args"] == published
    assert by_method["erm"]["neck_args"] == {}  # only applied to the row that has it
    assert by_method["erm"]["tune"] == "full"
    scores = [r["stages"][0]["test"]["books"]["macro_f1"] for r in ran.json["records"] if r["spec"]["method"] == "erm"]
    assert ran.json["table"][0]["mean"] == pytest.approx(100 * sum(scores) / 2)
    report = (tmp_path / "runs" / "report.html").read_text()
    assert re.search(r"MIL, published / measured: DEK→B 93\.5 / \d", report)

    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs" / "records").iterdir()}
    again = holdfast(*words)
    assert "4 of 4 runs" in again.err
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "runs" / "records").iterdir()} == before
    assert re.search(r"MIL +93\.5 / \d", again.out)
    assert "published with hf:roberta-base" in again.err


def test_rows_equal_to_the_baseline_are_skipped_with_a_reason(holdfast, data, quick):
    words = [
        "reproduce", "mil/table1", "--data-dir", data, "--rows", "baseline,coral,oracle", "--columns",
        "books,imdb",
    ]  # fmt: skip
    ran = holdfast(*words, "--seeds", 1, "--tune", "frozen", *quick)
    assert ran.code == 0, ran.err
    assert re.search(r"Deep CORAL not run: .*features", ran.err)
    assert "→IMDB not run: the file of imdb has no training rows" in ran.err
    assert re.search(r"Deep CORAL +91\.9 / – +89\.8 / –", ran.out)


def test_list_recipes_shows_published_numbers(holdfast):
    ran = holdfast("list", "recipes", "--json")
    assert ran.code == 0
    recipes = {recipe["name"]: recipe for recipe in ran.json}
    assert len(recipes) >= 7
    assert sum(len(recipes[f"mil/table{i}"]["rows"]) for i in (1, 2, 3, 5, 6)) == 45
    (row,) = [row for row in recipes["mil/table1"]["rows"] if row["row"] == "mil"]
    assert row["published"] == {
        "books": 93.5, "dvd": 92.8, "electronics": 94.7, "kitchen": 95.2, "average": 94.0, "imdb": 93.5, "sst2": 92.4,
    }  # fmt: skip
    text = holdfast("list", "recipes").out
    assert re.search(r"PADA +86\.8 +86\.9 +89\.0 +92\.6 +88\.8 +– +–", text)


def test_columns_with_missing_data_are_skipped(holdfast, tmp_path):
    pytest.importorskip("torch_geometric", reason="graphs need the extra graph")
    write_zip(tmp_path / "PROTEINS.zip", rings_and_stars(80))
    words = ["reproduce", "hma/table6", "--data-dir", ".", "--rows", "erm,hma", "--columns", "proteins,dd,average"]
    words += ["--seeds", 1, "--steps", 3, "--set", "encoder.hidden=8", "--set", "neck.real=16"]
    words += ["--analyse", "slot-attention,slot-diversity"]
    ran = holdfast(*words, "--json")
    assert ran.code == 0, ran.err
    cells = {(c["row"], c["column"]): c for c in ran.json["table"]}
    (record,) = [r for r in ran.json["records"] if r["spec"]["method"] == "hma"]
    assert record["spec"]["data"] == "proteins@shift=size"
    score = record["stages"][0]["test"]["large"]["mcc"]
    assert cells["hma", "proteins"]["mean"] == pytest.approx(score)  # not in percent
    for column in ("dd", "average"):
        assert cells["hma", column]["mean"] is None
    (note,) = [note for note in ran.json["notes"] if "DD.zip" in note]  # reported once
    assert note.startswith("DD not run: ")
    assert record["analysis"]["slot-diversity"]["slots"] == 32
    report = (tmp_path / "runs" / "reproduce" / "report.html").read_text()
    assert "slot-attention" in report
    assert re.search(r"HMA +0\.34 / -?\d\.\d\d +0\.32 / –", holdfast(*words).out)
