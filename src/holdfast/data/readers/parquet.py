"""Stream parquet files in batches of bounded memory, whatever their pages decode to.

A few bytes of parquet can decode to gigabytes, since every row may refer to one long value of a dictionary. Texts are
therefore decoded to dictionaries, which hold a value once, and become texts in batches of bounded size.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from holdfast.core.errors import BadInput
from holdfast.data.readers.arrow import compute, decoded

BATCH = 1 << 13  # rows that are decoded at once
FEW = 1 << 6  # the same of texts in the encoding DELTA_BYTE_ARRAY, which may share long beginnings
BATCH_BYTES = 1 << 26  # decoded bytes per batch
MIN_LIMIT = 1 << 30  # decoded bytes that any file may have
MAX_RATIO = 200  # beyond that, decoded bytes per byte of the file


def parquet_batches(path: Path, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these columns, or of all; raise if they decode to more than the limit.

    Texts inside lists are yielded as dictionaries, since a single row may refer to them many times.
    """
    size, total = path.stat().st_size, 0
    for batch in _decoded_batches(path, names):
        total += sum(map(_decoded_bytes, batch.columns))
        if total > max(MIN_LIMIT, MAX_RATIO * size):
            sizes = f"from {size / 2**20:.1f} MiB to at least {total / 2**30:.1f} GiB"
            fix = "if you trust it, split it into several files"
            raise BadInput(f"{path} would unpack {sizes} and fill the memory: {fix}")
        yield from _pieces(batch)


def _decoded_batches(path: Path, names: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """Yield batches with dictionaries of texts; where Arrow has none, few rows of texts."""
    metadata = parquet.read_metadata(path)  # not that of columns: pyarrow aborts at damaged statistics
    leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    texts = [leaf for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    for group in range(metadata.num_row_groups):
        done = 0
        for dictionaries, rows in (([leaf.path for leaf in texts], BATCH), ([], FEW)):
            try:
                # without pre-buffering, the compressed pages of a large row group are not all in memory at once
                options: Any = {"buffer_size": 1 << 20, "pre_buffer": False, "read_dictionary": dictionaries}
                with parquet.ParquetFile(path, **options) as file:
                    start = 0
                    for batch in file.iter_batches(rows, row_groups=[group], columns=names, use_threads=False):
                        start += len(batch)
                        if start > done:
                            yield batch.slice(max(0, len(batch) - (start - done)))
                            done = start
                break
            except OSError as error:
                if "DeltaByteArray" not in str(error) or not dictionaries:
                    raise
                if lists := [leaf.path for leaf in texts if leaf.max_repetition_level]:
                    fix = "write it as PLAIN"
                    raise BadInput(f"{path}: column {lists[0]} holds lists next to DELTA_BYTE_ARRAY: {fix}") from error


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch with texts in place of dictionaries, in halves as long as it is too large."""
    if len(batch) > 1 and sum(map(_decoded_bytes, batch.columns)) > BATCH_BYTES:
        half = len(batch) // 2
        yield from _pieces(batch.slice(0, half))
        yield from _pieces(batch.slice(half))
    else:
        yield pa.record_batch([decoded(column) for column in batch.columns], names=batch.schema.names)


def _decoded_bytes(array: Any) -> int:
    """Return the size of an array with the values of dictionaries in place."""
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return 4 * len(array) + _decoded_bytes(array.flatten())
    if pa.types.is_struct(array.type):
        return sum(map(_decoded_bytes, array.flatten()))
    if pa.types.is_dictionary(array.type):
        # every index counts as a copy of its text: later steps replace indices by texts
        lengths = compute.binary_length(array.dictionary).cast(pa.int64())
        return 4 * len(array) + (compute.sum(lengths.take(array.indices)).as_py() or 0)
    return array.nbytes
