"""Functions of Arrow that several readers apply to columns of a table."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute

TEXT = pa.large_string()
compute: Any = pyarrow.compute  # it creates its functions when it is imported, so that type checkers do not know them


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds texts."""
    return kind in (pa.string(), TEXT)


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers; booleans are not numbers."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def is_list_of_texts(kind: pa.DataType) -> bool:
    """Whether a column of this type holds lists of texts."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    inner = kind.value_type
    return is_text(inner.value_type if pa.types.is_dictionary(inner) else inner)


def decoded(column: Any) -> Any:
    """Return a column with its values in place of the codes of a dictionary."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def trimmed(column: Any) -> Any:
    """Return a column as texts without spaces around them."""
    return compute.utf8_trim_whitespace(column.cast(TEXT))


def is_in(column: Any, values: Iterable[Any]) -> Any:
    """Return a mask of the cells that have one of these values."""
    return compute.is_in(column, value_set=pa.array(values, column.type))


def matches(texts: Any, pattern: str) -> Any:
    """Return a mask of the texts in which a regular expression matches."""
    return compute.match_substring_regex(texts, pattern=pattern)


def substituted(texts: Any, pattern: str, replacement: str) -> Any:
    """Replace the matches of a regular expression in every text."""
    return compute.replace_substring_regex(texts, pattern=pattern, replacement=replacement)
