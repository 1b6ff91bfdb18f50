"""Stream parquet files in batches of bounded memory, whatever their pages decode to.

A few bytes of parquet can decode to gigabytes: every row may refer to one long value of a dictionary or share a prefix
with the row before. The metadata of a file does not contain the decoded size, so the headers of its pages are read
first (Apache Parquet format, Thrift compact protocol). The positions of the pages are read here as well, because
pyarrow ends the process if the statistics of a column do not fit its type.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
from pyarrow import parquet

from holdfast.core.errors import BadInput
from holdfast.data.readers.arrow import compute

BATCH = 1 << 14  # rows per batch
BATCH_BYTES = 1 << 26  # decoded bytes per batch
MIN_LIMIT = 1 << 30  # decoded bytes that any file may have
MAX_RATIO = 200  # beyond that, decoded bytes per byte of the file
_HEADER = 1 << 16  # bytes; headers are short, except for statistics of long values
_DICTIONARY_PAGE = 2
_DELTA_TEXTS = 7  # encoding of texts by the prefix that they share with the value before
_NESTED, _LIST, _MAP, _TEXT, _DOUBLE = 12, (9, 10), 11, 8, 7  # types of the compact protocol
_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}  # per value


def parquet_batches(path: Path, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these columns, or of all; raise if they decode to more than the limit.

    Texts inside lists are yielded as dictionaries, since a single row may refer to them many times.
    """
    limit = max(MIN_LIMIT, MAX_RATIO * path.stat().st_size)
    metadata, names, decoded = parquet.read_metadata(path), None if names is None else list(names), 0
    leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    lists = [leaf.path for leaf in leaves if leaf.max_repetition_level and leaf.physical_type not in _BYTES]
    # without pre-buffering, the compressed pages of a large row group are not all in memory at once
    with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False, read_dictionary=lists) as file:
        # row group by row group: the page headers bound the rows per batch before anything is decoded
        for group, chunks in enumerate(_chunks(path, leaves)):
            rows = _rows_per_batch(path, chunks, names, lists, limit)
            pending, size = [], 0
            for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=names, use_threads=False):
                pending.append(batch)
                # headers may be wrong, so what is decoded is counted as well
                added = sum(map(_decoded_bytes, batch.columns))
                size, decoded = size + added, decoded + added
                if decoded > limit:
                    raise _too_large(path, decoded)
                # long values force small batches; they are joined as long as rows and bytes stay within the limits
                if (len(pending) + 1) * rows > BATCH or size > BATCH_BYTES // 4:
                    yield _joined(pending)
                    pending, size = [], 0
            if pending:
                yield _joined(pending)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _decoded_bytes(array: Any) -> int:
    """Return the size of an array with the values of dictionaries in place."""
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return 4 * len(array) + _decoded_bytes(array.flatten())
    if pa.types.is_struct(array.type):
        return sum(map(_decoded_bytes, array.flatten()))
    if pa.types.is_dictionary(array.type) and pa.types.is_string(array.type.value_type):
        # every index counts as a copy of its text: later steps replace indices by texts
        lengths = compute.binary_length(array.dictionary).cast(pa.int64())
        return 4 * len(array) + (compute.sum(lengths.take(array.indices)).as_py() or 0)
    return array.nbytes


def _too_large(path: Path, decoded: int) -> BadInput:
    sizes = f"from {path.stat().st_size / 2**20:.1f} MiB to at least {decoded / 2**30:.1f} GiB"
    return BadInput(f"{path} would unpack {sizes} and fill the memory: if you trust it, split it into several files")


class _Chunk(NamedTuple):
    """A column of a row group: its leaf in the schema, number of values, position and size of its pages."""

    leaf: Any
    rows: int
    values: int
    start: int
    end: int


def _chunks(path: Path, leaves: Sequence[Any]) -> list[list[_Chunk]]:
    """Return the columns of every row group, from the footer of a file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        # a file ends with the footer, its length (4 bytes) and the letters PAR1; field numbers are those of
        # parquet.thrift: row groups 4 of the file, columns 1 and rows 3 of a group, metadata 3 of a column
        file.seek(size - 8)
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(0, size - 8 - length))
        content = _Content(file.read(length))
    try:
        groups = content.struct().get(4) or []
        return [
            [_chunk(leaf, group[3], column[3]) for leaf, column in zip(leaves, group[1], strict=True)]
            for group in groups
        ]
    except (IndexError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise pa.ArrowInvalid("the footer cannot be read") from error


def _chunk(leaf: Any, rows: int, details: dict[int, Any]) -> _Chunk:
    # 9 and 11: offsets of the first data page and of the dictionary, 5: number of values, 7: compressed bytes
    start = details[9]
    if 0 < details.get(11, 0) < start:  # the page of the dictionary comes first
        start = details[11]
    if min(start, rows, details[5], details[7]) < 0:
        raise ValueError("a negative number")
    return _Chunk(leaf, rows, details[5], start, start + details[7])


def _rows_per_batch(
    path: Path, chunks: Sequence[_Chunk], names: Sequence[str] | None, lists: Sequence[str], limit: int
) -> int:
    """Return the number of rows that decode to at most BATCH_BYTES, from the headers of the pages of a row group."""
    longest = total = 0
    for chunk in chunks:
        where, is_text = chunk.leaf.path, chunk.leaf.physical_type not in _BYTES
        if names is not None and not any(f"{where}.".startswith(f"{name}.") for name in names):
            continue
        # a number takes its width per value, however short its pages are; texts take at least the bytes of their pages
        pages = list(_pages(path, chunk))
        size = sum(page.size for page in pages)
        values = sum(page.values for page in pages if page.kind != _DICTIONARY_PAGE)
        total += size + values if is_text else max(size, values * _BYTES[chunk.leaf.physical_type])
        if total > limit:
            raise _too_large(path, total)
        if where in lists and any(page.encoding == _DELTA_TEXTS for page in pages):
            raise BadInput(f"{path}: column {where} holds lists in the encoding DELTA_BYTE_ARRAY: write it as PLAIN")
        if is_text and where not in lists:  # a row may refer to the longest value
            sizes = [page.size for page in pages if page.kind == _DICTIONARY_PAGE or page.encoding == _DELTA_TEXTS]
            longest += max(sizes, default=0)
    mean = total // max(1, chunks[0].rows) if chunks else 0
    return min(BATCH, max(1, BATCH_BYTES // max(1, longest, mean)))


class _Page(NamedTuple):
    """Header of a page; `size` is that of the uncompressed page in bytes."""

    kind: int
    size: int
    values: int
    encoding: int


def _pages(path: Path, chunk: _Chunk) -> Iterator[_Page]:
    """Yield the headers of all pages of a column."""
    start, end, left = chunk.start, chunk.end, chunk.values
    with path.open("rb") as file:
        while start < end and left > 0:
            header, length = _header(file, start)
            # 5, 7 and 8: header of a data page, a dictionary, and a data page of version 2 (encoding in field 4)
            details = header.get(5) or header.get(7) or header.get(8) or {}
            try:
                page = _Page(header[1], header[2], details.get(1, 0), details.get(4 if 8 in header else 2, 0))
                if min(page.size, page.values, page.encoding, header[3]) < 0:
                    raise ValueError("a negative number")
            except (AttributeError, TypeError, ValueError) as error:
                raise pa.ArrowInvalid("the header of a page is damaged") from error
            yield page
            left -= 0 if page.kind == _DICTIONARY_PAGE else page.values
            start += length + header[3]


def _header(file: BinaryIO, start: int) -> tuple[dict[int, Any], int]:
    """Return the integers of the page header at this position, and its length in bytes."""
    # a short read is enough for most headers; with long statistics the end of the bytes is reached, and more are read
    for size in (_HEADER, _HEADER << 8):
        file.seek(start)
        content = _Content(file.read(size))
        try:
            header = content.struct()
        except IndexError:
            continue
        if all(isinstance(header.get(field), int) for field in (1, 2, 3)):
            return header, content.position
        break
    raise pa.ArrowInvalid("the header of a page cannot be read")


class _Content:
    """Values of the Thrift compact protocol; texts are skipped. Raises IndexError at the end of the bytes."""

    def __init__(self, content: bytes) -> None:
        self.content, self.position, self.depth = content, 0, 0

    def byte(self) -> int:
        self.position += 1
        return self.content[self.position - 1]

    def varint(self) -> int:
        value = shift = 0
        while (byte := self.byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
        return value | byte << shift

    def integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def skip(self, count: int) -> None:
        self.position += count
        if self.position > len(self.content):
            raise IndexError("the end of the bytes")

    def struct(self) -> dict[int, Any]:
        values: dict[int, Any] = {}
        field = 0
        while kind := self.byte():
            # the upper half byte is the distance to the field before, 0 if the number follows; true and false are types
            field = field + (kind >> 4) if kind >> 4 else self.integer()
            values[field] = kind & 15 == 1 if kind & 15 in (1, 2) else self.value(kind & 15)
        return values

    def value(self, kind: int) -> Any:
        if kind in (1, 2, 3):
            return self.byte()
        if kind in (4, 5, 6):
            return self.integer()
        if kind == _DOUBLE:
            return self.skip(8)
        if kind == _TEXT:
            return self.skip(self.varint())
        if kind in _LIST:
            return self._items(self.byte())
        # headers are a few levels deep; more levels are a sign of damage
        if kind == _NESTED and self.depth < 8:
            self.depth += 1
            values = self.struct()
            self.depth -= 1
            return values
        raise IndexError(f"type {kind} does not occur in headers and footers")

    def _items(self, head: int) -> list[Any]:
        count = head >> 4 if head >> 4 < 15 else self.varint()
        # an item takes at least one byte, so a damaged count is limited by the bytes there are
        return [self.value(head & 15) for _ in range(min(count, len(self.content)))]
