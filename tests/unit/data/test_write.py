import json

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.write import write_tables


def tables(sizes):
    start = 0
    for size in sizes:
        rows = range(start, start + size)
        start += size
        yield pa.table({"id": [str(i) for i in rows], "label": pa.array([None, *"xy"] * size, pa.string())[:size],
                        "p": [i / 7 for i in rows], "tags": [["a", "b"]] * size})  # fmt: skip


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_chunks_give_the_same_file_as_one_table(tmp_path, suffix):
    many, one = (write_tables(tmp_path / f"{n}.{suffix}", tables(n)) for n in ((3, 3, 1), (7,)))
    whole = pa.concat_tables(tables((3, 3, 1)))
    if suffix == "parquet":
        assert pa.parquet.read_table(many).equals(whole)
        return
    lines = many.read_text().splitlines()
    assert len(lines) == 7 + (suffix == "csv")
    assert len(one.read_text().splitlines()) == len(lines)
    if suffix == "csv":
        assert lines[1].startswith('"0",,0')
        assert lines[1].endswith('"a b"')
    else:
        assert [json.loads(line)["id"] for line in lines] == [str(i) for i in range(7)]
        assert json.loads(lines[0])["label"] is None


def test_late_errors_leave_no_file(tmp_path):
    def broken():
        yield from tables((3,))
        raise BadInput("row 4 is odd")

    with pytest.raises(BadInput, match="row 4"):
        write_tables(tmp_path / "a.csv", broken())
    assert list(tmp_path.iterdir()) == []


def test_unknown_suffix_is_rejected_first(tmp_path):
    with pytest.raises(BadInput, match=r"\.csv, \.jsonl, \.parquet"):
        write_tables(tmp_path / "a.xlsx", iter(()))
