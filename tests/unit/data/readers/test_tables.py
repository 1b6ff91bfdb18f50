"""Table files: every format gives the same data set, in chunks or completely, and errors name file, row and column."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.data.readers import formats
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.tables import read_table, table_chunks

ROWS = {
    "text": ["123", 'two\nlines, "quoted"', "2020-01-01", "ünï"],
    "label": ["neg", "pos", "pos", "neg"],
    "domain": ["films", "books", "films", "7"],
}


def write(folder: Path, suffix: str, rows: dict) -> Path:
    path = folder / f"data{suffix}"
    table = pa.table(rows)
    if suffix == ".parquet":
        parquet.write_table(table, path)
    elif suffix in (".csv", ".tsv"):
        csv.write_csv(table, path, csv.WriteOptions(delimiter="\t" if suffix == ".tsv" else ","))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()), encoding="utf-8")
    return path


def put(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path, **options) -> str:
    with pytest.raises(BadInput) as caught:
        read_table(path, ReadOptions(**options))
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


@pytest.mark.parametrize("suffix", formats.SUFFIXES)
def test_every_format_gives_the_same_data_set(tmp_path, suffix):
    found = read_table(write(tmp_path, suffix, ROWS))
    assert found.raw.take(np.arange(4)) == ROWS["text"]
    assert found.classes == ("neg", "pos")
    assert found.y.tolist() == [0, 1, 1, 0]
    assert found.domains == ("films", "books", "7")
    assert found.domain.tolist() == [0, 1, 0, 2]
    assert (found.y.dtype, found.domain.dtype) == (np.int64, np.int64)
    assert (found.name, found.split, found.ids, found.time, found.notes) == ("data", None, None, None, ())


@pytest.mark.parametrize("suffix", formats.SUFFIXES)
@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([10, 9, 1], ("1", "9", "10")),
        ([1.0, 0.0, 1.0], ("0", "1")),
        ([1.5, 1.0, 2.0], ("1", "1.5", "2")),
        (["b", "a", "10"], ("10", "a", "b")),
    ],
)
def test_labels_of_any_type(tmp_path, suffix, labels, classes):
    rows = {"text": ["a", "b", "c"], "label": labels, "domain": [1, 2, 2]}
    found = read_table(write(tmp_path, suffix, rows))
    assert found.classes == classes
    assert found.domains == ("1", "2")
    names = [str(v).removesuffix(".0") for v in labels]
    assert [found.classes[i] for i in found.y] == names


def test_boolean_labels(tmp_path):
    for suffix in (".parquet", ".jsonl"):
        rows = {"text": ["a", "b"], "label": [True, False], "domain": ["x", "y"]}
        assert read_table(write(tmp_path, suffix, rows)).classes == ("False", "True")


def test_equal_text_and_float_labels_are_merged(tmp_path):
    found = read_table(put(tmp_path, "text,label,domain\na,1.0,x\nb,1,x\nc,01,x\nd, 2 ,x\n"))
    assert (found.classes, found.y.tolist()) == (("01", "1", "2"), [1, 1, 0, 2])


def test_columns_by_synonym_and_case(tmp_path):
    path = put(
        tmp_path,
        "GUID,Sentence1,sentence2,Gold_Label,GENRE,Fold,extra\n"
        "007,a,b,yes,fiction,Training,0\n008,c,d,no,travel,DEV,0\n009,e,f,no,travel,eval,0\n",
    )
    found = read_table(path)
    assert found.raw.take(np.array([1, 0])) == [("c", "d"), ("a", "b")]
    assert found.domains == ("fiction", "travel")
    assert found.split.tolist() == [0, 1, 2]
    assert list(found.ids) == ["007", "008", "009"]
    assert list(found.ids[1:]) == ["008", "009"]
    assert found.subset(np.array([2])).ids == ["009"]


def test_columns_named_by_the_user(tmp_path):
    path = put(tmp_path, "text,other,label,mark,domain\na,b,c,d,e\n")
    assert read_table(path, ReadOptions(columns={"text": "OTHER", "label": "mark"})).classes == ("d",)
    assert read_table(path, ReadOptions(columns={"text": "other"})).raw.take(np.array([0])) == ["b"]
    pair = read_table(path, ReadOptions(columns={"premise": "text", "hypothesis": "other"}))
    assert pair.raw.take(np.array([0])) == [("a", "b")]
    assert read_table(path, ReadOptions(columns={"domain": ""}, need=("label",))).domains == ("all",)
    assert "'nope'" in refusal(path, columns={"text": "nope"})
    assert "two roles" in refusal(path, columns={"text": "label", "label": "label"})
    assert "both" in refusal(path, columns={"premise": "text"})
    with pytest.raises(BadInput, match="did you mean 'label'"):
        read_table(path, ReadOptions(columns={"lable": "mark"}))


def test_messages_and_responses(tmp_path):
    path = tmp_path / "talks.csv"
    path.write_text("message,response,asked,domain\nhi,ho,who,a\nyes,no,why,b\n")
    rows = np.arange(2)
    assert read_table(path, ReadOptions(need=("domain",))).raw.take(rows) == [("hi", "ho"), ("yes", "no")]
    named = {"message": "asked", "response": "response"}
    assert read_table(path, ReadOptions(columns=named, need=())).raw.take(rows) == [("who", "ho"), ("why", "no")]
    assert read_table(path, ReadOptions(columns={"message": "asked"}, need=())).raw.take(rows) == ["who", "why"]
    assert "both --column message=NAME" in refusal(path, columns={"response": "response"}, need=())
    path.write_text("message,domain\nhi,a\nyes,b\n")
    assert read_table(path, ReadOptions(need=())).raw.take(rows) == ["hi", "yes"]


def test_labels_and_domains_are_optional_if_not_needed(tmp_path):
    path = put(tmp_path, "text\na\nb\n")
    found = read_table(path, ReadOptions(need=()))
    assert (found.y.tolist(), found.classes) == ([-1, -1], ())
    assert (found.domain.tolist(), found.domains) == ([0, 0], ("all",))
    assert "no label column: it has 'text'" in refusal(path)
    assert "--column domain=NAME" in refusal(put(tmp_path, "text,label\na,b\n"))
    both = put(tmp_path, "age,label,domain\n1,2,a\n")
    assert "'label' has another role" in refusal(both, columns={"features": "age,label"})
    open_label = put(tmp_path, "text,label\na,\nb,x\n")
    assert read_table(open_label, ReadOptions(need=())).y.tolist() == [-1, 0]
    assert "row 1, column 'label'" in refusal(open_label, need=("label",))


@pytest.mark.parametrize("suffix", formats.SUFFIXES)
def test_numeric_columns_are_features_without_a_text_column(tmp_path, suffix):
    rows = {"a": [1, 2, 3], "b": [0.5, 1.0, -1e3], "label": [0, 1, 0], "domain": ["x", "y", "y"], "id": [1, 2, 3]}
    found = read_table(write(tmp_path, suffix, rows))
    assert found.raw.kind == "vector"
    assert found.raw.take(np.arange(3)).tolist() == [[1, 0.5], [2, 1], [3, -1e3]]
    assert "'a', 'b'" in found.notes[0]
    only = read_table(write(tmp_path, suffix, rows), ReadOptions(columns={"features": "b, a"}))
    assert only.raw.take(np.array([0])).tolist() == [[0.5, 1]]
    assert only.notes == ()


@pytest.mark.parametrize("suffix", formats.SUFFIXES)
def test_features_must_be_finite(tmp_path, suffix):
    for bad in (float("inf"), 1e300):
        rows = {"a": [1.0, 2.0], "b": [0.5, bad], "label": [0, 1], "domain": ["x", "y"]}
        assert "row 2, column 'b'" in refusal(write(tmp_path, suffix, rows))
    path = put(tmp_path, "a,label,domain\n1,2,3\nabc,2,3\n")
    assert "row 2, column 'a' has 'abc'" in refusal(path, columns={"number": "a"})


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_one_invalid_cell_does_not_remove_a_numeric_column(tmp_path, suffix):
    mark = "\t" if suffix == ".tsv" else ","
    rows = [{"a": i, "b": 0.5 * i, "note": f"n{i}", "label": i % 2, "domain": "x"} for i in range(9)]
    rows[4]["b"] = "n/a?"
    lines = [mark.join(rows[0]), *(mark.join(map(str, row.values())) for row in rows)]
    content = "\n".join(map(json.dumps, rows) if suffix == ".jsonl" else lines) + "\n"
    path = put(tmp_path, content, f"data{suffix}")
    assert "row 5, column 'b' has 'n/a?', expected a number" in refusal(path)
    assert read_table(path, ReadOptions(columns={"features": "a"})).columns == ("a",)
    clean = put(tmp_path, content.replace('"n/a?"', "7").replace("n/a?", "7"), f"clean{suffix}")
    assert read_table(clean).columns == ("a", "b")  # every value of "note" occurs once


def test_domains_are_ordered_by_the_time_column(tmp_path):
    late = put(tmp_path, "text,label,domain,year\na,x,new,2005\nb,y,old,1999\nc,x,new,1990\nd,x,mid,1995\n")
    found = read_table(late)
    assert found.domains == ("new", "mid", "old")
    assert found.domain.tolist() == [0, 2, 0, 1]
    assert found.time.tolist() == [2005, 1999, 1990, 1995]
    dates = read_table(put(tmp_path, "text,label,domain,date\na,x,new,2020-02-01\nb,y,old,2019-12-31\n"))
    assert dates.domains == ("old", "new")
    zoned = read_table(
        put(tmp_path, "text,label,domain,date\na,x,n,2020-02-01T00:00:00Z\nb,y,o,2019-12-31T00:00:00Z\n")
    )
    assert zoned.domains == ("o", "n")
    odd = put(tmp_path, "text,label,domain,date\na,x,new,soon\nb,y,old,2019-12-31\n")
    assert read_table(odd).domains == ("new", "old")
    assert "not used as the time" in read_table(odd).notes[0]
    assert "'date'" in refusal(odd, columns={"time": "date"})


def test_a_column_that_orders_the_rows_of_a_table_is_an_input_too(tmp_path):
    lines = "".join(f"{i % 7},{2000 + i % 9},{'ab'[i % 2]},{'xy'[i % 2]}\n" for i in range(40))
    path = put(tmp_path, f"size,year,label,domain\n{lines}")
    found = read_table(path)
    assert found.columns == ("size", "year")
    assert found.time[:3].tolist() == [2000, 2001, 2002]
    named = read_table(path, ReadOptions(columns={"time": "year"}))
    assert named.columns == ("size",)


def test_unknown_split_names_are_rejected(tmp_path):
    path = put(tmp_path, "text,label,domain,split\na,x,d,train\nb,x,d,holdout\n")
    assert "row 2, column 'split' has the split 'holdout'" in refusal(path)
    assert read_table(path, ReadOptions(columns={"split": ""})).split is None


@pytest.mark.parametrize("suffix", formats.SUFFIXES)
@pytest.mark.parametrize("column", ["text", "label", "domain"])
@pytest.mark.parametrize("value", [None, "", " \t\u00a0"])
def test_blank_values_are_reported(tmp_path, suffix, column, value):
    rows = {"text": ["a", "b", "c"], "label": ["x", "y", "x"], "domain": ["d", "e", "d"]}
    rows[column][1] = value
    assert f"row 2, column '{column}'" in refusal(write(tmp_path, suffix, rows))


def test_nan_label_is_reported(tmp_path):
    rows = {"text": ["a", "b"], "label": [1.0, float("nan")], "domain": ["d", "e"]}
    assert "row 2, column 'label'" in refusal(write(tmp_path, ".parquet", rows))


def test_rows_are_counted_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "BLOCK", formats.HEAD)
    good = "some text that is long enough,x,d\n" * 60_000
    assert len(good) > formats.BLOCK
    head = "text,label,domain\n"
    assert "row 60001, column 'text'" in refusal(put(tmp_path, f"{head}{good} ,x,d\n"))
    assert "row 60001 has 2 values but the header names 3" in refusal(put(tmp_path, f"{head}{good}a,x\n"))
    assert "not UTF-8 (row 60003)" in refusal(put(tmp_path, f"{head}{good}é,x,d\né,x,d\n".encode() + b"\xe9,x,d\n"))
    line = json.dumps({"text": "some text that is long enough", "label": "x", "domain": "d"}) + "\n"
    assert "row 30001 is not JSON" in refusal(put(tmp_path, line * 30_000 + line[:20], "data.jsonl"))
    assert "row 30001, column 'text' has 5" in refusal(
        put(tmp_path, line * 30_000 + '{"text": 5, "label": "x", "domain": "d"}', "data.jsonl")
    )


def test_text_longer_than_a_block(tmp_path, monkeypatch):
    text = "word " * (formats.HEAD // 2)
    for suffix in (".csv", ".jsonl"):
        rows = {"text": ["a", text], "label": ["x", "y"], "domain": ["d", "d"]}
        assert read_table(write(tmp_path, suffix, rows)).raw.take(np.array([1])) == [text]
    monkeypatch.setattr(formats, "BLOCK", formats.HEAD)
    assert "row is longer than 1 MB: check for a quote" in refusal(write(tmp_path, ".csv", rows))


def test_wide_tables(tmp_path):
    """A header longer than a block is read; a million columns are too many."""
    wide, names = put(tmp_path, b""), [f"{'long' * 50}_{i}" for i in range(6000)]
    row = ",".join(["1"] * len(names))
    wide.write_text(f"label,domain,{','.join(names)}\nx,u,{row}\ny,v,{row}\n")
    assert len(wide.read_text().partition("\n")[0]) > formats.HEAD
    assert read_table(wide).columns == tuple(names)
    wide.write_text(",".join(f"c{i}" for i in range(1_000_000)) + "\n")
    assert "more than 100,000 columns" in refusal(wide)


@pytest.mark.parametrize("rows", [0, 400])
@pytest.mark.parametrize("cell", [r'"te\ud83dxt": "q"', r'"other": "\udc00"', r'"z": {"\ud83d": 1}'])
def test_unpaired_surrogates_are_reported_with_their_row(tmp_path, rows, cell):
    line = '{"text": "a", "label": "x", "domain": "u"}\n'
    path = put(tmp_path, line * rows + line.replace("{", "{" + cell + ", ", 1), "data.jsonl")
    assert f"row {rows + 1} has an unpaired surrogate" in refusal(path)


def test_the_limit_of_open_files_is_reported(tmp_path, monkeypatch):
    def fail(*args, **options):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    path = put(tmp_path, "text,label,domain\na,b,c\n")
    monkeypatch.setattr(formats.CsvFile, "_schema", fail)
    with pytest.raises(BadInput, match="ulimit -n"):
        read_table(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.csv", b"", "is empty"),
        ("data.csv", b"\n\n", "has no header"),
        ("data.csv", b"text,label,domain\n", "no rows"),
        ("data.jsonl", b"\n\n", "no rows"),
        ("data.csv", b"text,label,domain\na,b\n", "row 1 has 2 values"),
        ("data.csv", b"text,label,domain\na,b,c,d\n", "row 1 has 4 values"),
        ("data.csv", b'text,label,domain\na,b,c\n"a,b,c\na,b,c\n', "row 2 has 1 values"),
        ("data.csv", b"text,text,label,domain\na,b,c,d\n", "two columns named 'text'"),
        ("data.csv", b"words,label,domain\na,b,c\n", "no text column"),
        ("data.csv", b'"x; or y"\n1\n', "no label column"),
        ("data.csv", b"\x00\x01\x02" * 50, "damaged"),
        ("data.csv", b"text,label,domain\ncaf\x81,b,c\n", "not UTF-8 (and not Windows-1252)"),
        ("data.jsonl", '{"text": "a"}'.encode("utf-16"), "iconv -f UTF-16"),
        ("data.jsonl", b'{"text": "caf\xe9", "label": 1, "domain": 2}\n', "iconv"),
        ("data.jsonl", b'[{"text": "a", "label": 1, "domain": 2}]\n', "not a JSON object"),
        ("data.jsonl", b"nonsense\n", "row 1 is not JSON"),
        ("data.jsonl", b'{"text": "a", "label": [1], "domain": 2}\n', "row 1, column 'label'"),
        ("data.jsonl", b'{"text": "a", "label": 1, "domain": 2}\n{"text": "b"', "row 2 is not JSON"),
        ("data.jsonl", b'{"text": "a\n', "row 1 is not JSON: Unterminated string starting at character 10"),
        ("data.parquet", b"hello", "damaged"),
        ("data.parquet", b"hello world", "(Parquet magic bytes not found in footer)"),
        ("data.parquet", b"PAR1" + bytes(100) + b"PAR1", "damaged"),
    ],
)  # fmt: skip
def test_invalid_files_are_rejected(tmp_path, name, content, message):
    assert message in refusal(put(tmp_path, content, name))


def test_unsupported_parquet(tmp_path):
    bytes_text = {"text": [b"a", b"\xe9"], "label": [1, 2], "domain": [1, 2]}
    assert "not UTF-8" in refusal(write(tmp_path, ".parquet", bytes_text))
    nested = {"text": [["a"], ["b"]], "label": [1, 2], "domain": [1, 2]}
    assert "column 'text' holds list" in refusal(write(tmp_path, ".parquet", nested))
    none = {"text": pa.array([], pa.string()), "label": pa.array([], pa.string()), "domain": pa.array([], pa.string())}
    assert "no rows" in refusal(write(tmp_path, ".parquet", none))


def test_invalid_paths(tmp_path):
    assert "does not exist" in refusal(tmp_path / "nothing.csv")
    assert "not a file" in refusal(tmp_path)


MEASURE = """
import resource, sys
from pathlib import Path
from holdfast.data.readers.tables import read_table
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = read_table(Path(sys.argv[1]))
assert len(found) == 1_000_000 and found.classes == ("0", "1", "2") and len(found.domains) == 4
sys.stdout.write(str((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_memory_of_a_million_texts(tmp_path):
    count, random = 1_000_000, np.random.default_rng(0)
    words = np.array(["".join(random.choice(list("abcdefghijklmnop"), 6)) for _ in range(4000)])
    texts = [" ".join(row) for row in words[random.integers(0, 4000, (count, 8))]]
    rows = {
        "text": texts,
        "label": random.integers(0, 3, count),
        "domain": np.array(["books", "films", "music", "news"])[random.integers(0, 4, count)],
    }
    limit = 4 * sum(map(len, texts))
    for suffix in (".csv", ".parquet"):
        path = write(tmp_path, suffix, rows)
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) < limit, f"{suffix}: {int(done.stdout) / limit * 4:.2f} times the text"
        assert time.perf_counter() - start < 60


def write_rows(path, n=23):
    lines = ["id,text,label,domain"]
    lines += [f"{'k'}{i},www {i},{i % 3},{'ab'[i % 2]}" for i in range(n)]
    path.write_text("\n".join(lines) + "\n")
    return path


def texts(made):
    return [text for each in made for text in each.raw.take(np.arange(len(each)))]


@pytest.mark.parametrize("rows", [1, 5, 23, 100])
def test_chunks_are_the_complete_table(tmp_path, rows):
    path = write_rows(tmp_path / "t.csv")
    found, whole = list(table_chunks(path, rows=rows)), read_table(path)
    assert [len(each) for each in found] == [min(rows, 23 - i) for i in range(0, 23, rows)]
    assert texts(found) == texts([whole])
    assert [i for each in found for i in each.ids] == list(whole.ids)
    labels = [each.classes[y] for each in found for y in each.y]
    assert labels == [whole.classes[y] for y in whole.y]


def test_late_long_row_repeats_no_row(tmp_path, monkeypatch):
    """JSON is read on behind the rows that a block holds."""
    rows = [{"id": i, "text": "w" * (3000 if i == 17 else 3), "label": 0, "domain": "a"} for i in range(23)]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(formats, "HEAD", 1024)
    assert texts(table_chunks(path, rows=4)) == [row["text"] for row in rows]


COUNT = 120


def frame(**columns):
    base = {"x": [i / 7 for i in range(COUNT)], "label": ["n", "p"] * (COUNT // 2)}
    return pd.DataFrame({**base, **columns})


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"kind": list("abcd") * 30, "year": [1990 + i % 6 for i in range(COUNT)]}, ["year", "kind"]),
        ({"kind": list("ab") * 60, "region": list("pqr") * 40, "size": list(range(COUNT))}, ["region", "kind"]),
        ({"state_id": [i % 10 for i in range(COUNT)], "count": [i % 9 for i in range(COUNT)]}, ["state_id"]),
        ({"name": [f"name {i}" for i in range(COUNT)], "same": ["a"] * COUNT, "visit": ["2024-01-01"] * COUNT}, []),
        ({name: list("abc") * 40 for name in "pqrst"}, ["p", "q", "r"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["", ".csv", ".parquet", ".jsonl"])
def test_columns_for_the_domain(tmp_path, columns, names, suffix):
    data = frame(**columns)
    path = tmp_path / f"data{suffix}"
    if suffix == ".csv":
        data.to_csv(path, index=False)
    elif suffix == ".parquet":
        data.to_parquet(path)
    elif suffix:
        data.to_json(path, orient="records", lines=True)
    listing = f", for example --column domain={' or domain='.join(names)}" if names else ""
    with pytest.raises(BadInput) as caught:
        load_data(path if suffix else data)
    assert str(caught.value).endswith(f"; name it with --column domain=NAME{listing}")


def test_named_columns_are_not_suggested():
    data = frame(kind=list("abcd") * 30, group_name=list("xyz") * 40)
    with pytest.raises(BadInput, match=r"domain=NAME, for example --column domain=kind$"):
        load_data(data, columns={"label": "group_name", "ignore": "label"})
