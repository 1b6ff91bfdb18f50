"""A clean table equals the original without duplicates, and the original does not change."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

from holdfast.auditing.audit import audit
from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from tests.annotated import write_names, write_questions

ROWS = [
    {"note": "1,5", "text": "a plain thing", "label": "yes", "domain": "x", "n": 1},
    {"note": 'say "x"', "text": "another thing\nindeed", "label": "no", "domain": "y", "n": None},
    {"note": "", "text": "a plain thing", "label": "yes", "domain": "y", "n": 3},
    {"note": "007", "text": "the last of them", "label": "no", "domain": "x", "n": 4},
]
CLEAN = [ROWS[i] for i in (0, 1, 3)]


def write_rows(folder, suffix):
    path = folder / f"data.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n\n" for row in ROWS))
    elif suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        pa.csv.write_csv(pa.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_clean_table_preserves_columns_and_order(tmp_path, suffix):
    path = write_rows(tmp_path, suffix)
    before = path.read_bytes()
    result = audit(path, clean=tmp_path / f"clean.{suffix}")
    assert path.read_bytes() == before
    assert result.dropped == [{"row": 3, "reason": "equal", "of": 1}]
    assert result.clean is not None
    if suffix == "jsonl":
        assert [json.loads(line) for line in result.clean.read_text().splitlines()] == CLEAN
    elif suffix == "parquet":
        assert pq.read_table(result.clean).to_pylist() == CLEAN
    else:
        types = pa.csv.ConvertOptions(column_types={"note": pa.string(), "text": pa.string()})
        parse = pa.csv.ParseOptions(newlines_in_values=True)
        assert pa.csv.read_csv(result.clean, parse_options=parse, convert_options=types).to_pylist() == CLEAN
    assert not audit(result.clean).dropped


def test_rows_without_all_values_are_left_out(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("text,label,domain\na,yes,x\nb,no\nc,no,y\n,no,y\nd,yes,y\na,yes,x\n")
    result = audit(path, skip_bad=True, clean=tmp_path / "clean.csv")
    assert result.clean is not None
    table = pa.csv.read_csv(result.clean)
    assert table["text"].to_pylist() == ["a", "c", "d"]
    assert table["label"].to_pylist() == ["yes", "no", "yes"]


def test_images_graphs_and_arrays_are_written_as_tables(tmp_path):
    rng = np.random.default_rng(0)
    for domain in ("p", "q"):
        for label in ("u", "v"):
            (tmp_path / "images" / domain / label).mkdir(parents=True)
            pixels = rng.integers(0, 255, (9, 9, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / domain / label / "a.png")
    twin = tmp_path / "images" / "q" / "v" / "b.png"
    twin.write_bytes((tmp_path / "images" / "p" / "v" / "a.png").read_bytes())
    audit(tmp_path / "images", clean=tmp_path / "images.csv")
    files = pa.csv.read_csv(tmp_path / "images.csv").to_pylist()
    assert len(files) == 4
    assert str(twin) not in [row["file"] for row in files]
    graphs = world("graph", "size", domains=2, size=10)
    result = audit(graphs, clean=tmp_path / "graphs.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "graphs.jsonl").read_text().splitlines()]
    assert len(lines) == 20 - len(result.dropped)
    assert set(lines[0]) == {"row", "label", "domain"}
    audit(world("vector", "label", domains=2, size=10), clean=tmp_path / "numbers.parquet")
    assert pq.read_table(tmp_path / "numbers.parquet").column_names == [*(f"x{i}" for i in range(8)), "label", "domain"]


def test_tags_and_questions_are_audited_and_write_rows(tmp_path):
    names = audit(write_names(tmp_path / "names", 12), task="tag", clean=tmp_path / "names.jsonl")
    assert set(names.domains[0].labels) == {"THING", "WORK"}
    assert not names.baseline
    rows = [json.loads(line) for line in (tmp_path / "names.jsonl").read_text().splitlines()]
    assert len(rows) == 36 - len(names.dropped)
    assert len(rows[0]["tokens"]) == len(rows[0]["tags"])
    questions = write_questions(tmp_path / "questions.jsonl", 8)
    result = audit(questions, task="span")
    assert result.verdict.labels is None
    assert "--task span" in result.advice[-1]
    with pytest.raises(BadInput, match="csv"):
        audit(questions, task="span", clean=tmp_path / "q.csv")


def test_invalid_arguments_are_rejected_early(tmp_path):
    path = write_rows(tmp_path, "csv")
    for options, message in (
        ({"clean": path}, "--clean"),
        ({"clean": tmp_path / "clean.xlsx"}, r"clean.xlsx|csv"),
        ({"label_errors": path}, "--label-errors.*would overwrite the data"),
        ({"label_errors": tmp_path / "errors.txt"}, "errors.txt"),
        ({"near": 0.2}, r"near.*0\.2"),
    ):
        with pytest.raises(BadInput, match=message):
            audit(path, **options)
