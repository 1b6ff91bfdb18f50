"""Sets of labels that a table states in several columns of 0 and 1, or in one column of lists.

Both are converted to texts such as `red|blue`, which the task `multilabel` reads; an empty set has no label.
"""

import numpy as np
import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.data.readers.arrow import TEXT, compute, decoded, is_in, is_text, trimmed
from holdfast.data.readers.columns import JOINED, Roles

SEPARATOR = "|"
YES, NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no", "")  # in lower case


def is_list_of_texts(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of labels."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    inner = kind.value_type
    return is_text(inner.value_type if pa.types.is_dictionary(inner) else inner)


def with_label_texts(batch: pa.RecordBatch, roles: Roles, *, where: str, before: int = 0) -> pa.RecordBatch:
    """Return the batch with one text per set of labels; `before` is the number of earlier rows, for messages."""
    if roles.labels:
        joined = _joined(batch, roles.labels, where, before)
        columns = {name: batch.column(name) for name in batch.schema.names if name not in roles.labels}
        return pa.record_batch({**columns, JOINED: joined})
    if roles.label is None or not is_list_of_texts(batch.schema.field(roles.label).type):
        return batch
    column = batch.column(roles.label).cast(pa.list_(pa.string()))  # parquet files have dictionaries
    _check_names(column, f"{where}: column '{roles.label}'")
    texts = compute.binary_join(column, SEPARATOR).cast(TEXT)
    texts = compute.if_else(compute.equal(texts, ""), None, texts)
    return batch.set_column(batch.schema.names.index(roles.label), roles.label, texts)


def _check_names(column: pa.Array, where: str) -> None:
    names = compute.list_flatten(column).unique().to_pylist()
    if wrong := [name for name in names if name is not None and SEPARATOR in name]:
        raise BadInput(f"{where} has the label '{wrong[0]}', which contains {SEPARATOR}: rename it")


def _joined(batch: pa.RecordBatch, names: tuple[str, ...], where: str, before: int) -> pa.Array:
    """(n,) texts of the labels whose column is 1, null where there is none."""
    chosen = np.stack([_is_set(batch.column(name), name, where, before) for name in names], axis=1)  # (n, c)
    texts = [SEPARATOR.join(name for name, value in zip(names, row, strict=True) if value) or None for row in chosen]
    return pa.array(texts, type=TEXT)


def _is_set(column: pa.Array, name: str, where: str, before: int) -> np.ndarray:
    """(n,) whether a cell is 1, true or yes; an empty cell is not."""
    values = compute.utf8_lower(trimmed(decoded(column))).fill_null("")
    if len(wrong := np.flatnonzero(compute.invert(is_in(values, [*YES, *NO])))):
        cell = f"row {before + wrong[0] + 1}, column '{name}' is {values[wrong[0]].as_py()!r}"
        raise BadInput(f"{where}: {cell}, but columns of labels hold 0 or 1: fix it, or remove it from labels=")
    return np.asarray(is_in(values, YES))
