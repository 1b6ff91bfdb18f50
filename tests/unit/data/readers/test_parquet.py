import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as arrow

from holdfast.core.errors import BadInput
from holdfast.data.readers import formats, parquet
from holdfast.data.readers.parquet import parquet_batches
from holdfast.data.readers.tables import read_table

LONG = "x" * 100_000


def write(path, columns, **options):
    arrow.write_table(pa.table(columns), path, **options)
    return path


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_all_rows_are_read_in_order(tmp_path, version, compression):
    texts = [None if i % 7 == 0 else f"text {i % 50} " * (i % 5) for i in range(20_000)]
    columns = {"text": texts, "x": list(range(20_000)), "flag": [i % 2 == 0 for i in range(20_000)]}
    columns["tokens"] = [[f"word{j}" for j in range(i % 4)] for i in range(20_000)]
    columns["category"] = pa.array([str(i % 3) for i in range(20_000)]).dictionary_encode()
    path = write(
        tmp_path / "t.parquet", columns, row_group_size=7000, data_page_version=version, compression=compression
    )
    rows = [row for batch in parquet_batches(path) for row in batch.to_pylist()]
    assert rows == arrow.read_table(path).to_pylist()
    assert sum(len(batch) for batch in parquet_batches(path, ["x"])) == 20_000
    assert all(batch.schema.names == ["x"] for batch in parquet_batches(path, ["x"]))


DELTA = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}


@pytest.mark.parametrize("options", [{}, DELTA], ids=["dictionary", "delta"])
def test_batches_are_small_even_if_few_bytes_decode_to_many(tmp_path, options):
    path = write(tmp_path / "bomb.parquet", {"text": [LONG] * 2000}, compression="zstd", **options)
    assert path.stat().st_size < 10_000
    sizes = [batch.nbytes for batch in formats.open_table(path).batches({"text": pa.large_string()})]
    assert sum(sizes) >= 200_000_000
    assert max(sizes) <= parquet.BATCH_BYTES


def test_the_decoded_size_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "MIN_LIMIT", 1 << 24)
    many = {"label": ["a", "b"] * 500, "domain": ["u", "u", "v", "v"] * 250}
    bombs = [
        write(tmp_path / "texts.parquet", {"text": [LONG] * 1000, **many}),
        write(tmp_path / "category.parquet", {"text": pa.array([LONG] * 1000).dictionary_encode(), **many}),
        write(tmp_path / "pages.parquet", {"text": [LONG] * 1000, **many}, use_dictionary=False, compression="zstd"),
    ]
    for path in bombs:
        with pytest.raises(BadInput, match=rf"{path.name} would unpack from 0.0 MiB"):
            read_table(path)
    lists = write(tmp_path / "lists.parquet", {"tokens": [[LONG] * 500, ["a"]]})
    numbers = write(tmp_path / "numbers.parquet", {"x": [[0] * 5_000_000]})
    for path, name in ((lists, "tokens"), (numbers, "x")):
        with pytest.raises(BadInput, match="would unpack"):
            list(formats.iter_rows(path, [name]))


def test_lists_of_texts_with_shared_prefixes_are_refused(tmp_path):
    options = {"use_dictionary": False, "column_encoding": {"tokens.list.element": "DELTA_BYTE_ARRAY"}}
    path = write(tmp_path / "t.parquet", {"tokens": [["a", "ab"]]}, **options)
    with pytest.raises(BadInput, match="DELTA_BYTE_ARRAY"):
        list(parquet_batches(path))


def test_texts_with_shared_prefixes_are_read_in_order(tmp_path):
    columns = {"text": [f"a long beginning {i}" for i in range(9000)], "x": list(range(9000))}
    path = write(tmp_path / "t.parquet", columns, row_group_size=4000, **DELTA)
    assert [row for batch in parquet_batches(path) for row in batch.to_pylist()] == arrow.read_table(path).to_pylist()


def test_damaged_page_headers_are_reported(tmp_path):
    path = write(tmp_path / "t.parquet", {"text": ["a", "b"], "label": ["x", "y"], "domain": ["u", "v"]})
    content = bytearray(path.read_bytes())
    for byte in (0x00, 0x1D, 0xFF):
        content[4:40] = bytes([byte]) * 36
        path.write_bytes(content)
        with pytest.raises(BadInput, match=r"t\.parquet is damaged"):
            read_table(path)


def test_statistics_that_do_not_fit_their_column_do_not_end_the_process():
    """pyarrow aborts when it reads the metadata of such a column, so the reader does not ask for them."""
    path = Path(__file__).parents[3] / "fixtures" / "parquet-statistics.parquet"
    code = "import sys; from holdfast.data.load import load_data; load_data(sys.argv[1])"
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1)  # read, or rejected by an exception
    assert ran.returncode == 0 or "BadInput" in ran.stderr


@pytest.mark.parametrize("at", [-8, -9, -60])
def test_damaged_footers_are_reported(tmp_path, at):
    path = write(tmp_path / "t.parquet", {"text": ["a", "b"], "label": ["x", "y"], "domain": ["p", "q"]})
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(BadInput, match=r"t\.parquet"):
        read_table(path)


def test_texts_that_are_not_utf8_are_reported(tmp_path):
    columns = {"text": ["caf@", "b"], "label": ["x", "y"], "domain": ["p", "q"]}
    path = write(tmp_path / "t.parquet", columns, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"caf@", b"caf\xe9"))
    with pytest.raises(BadInput, match="UTF-8"):
        read_table(path)
