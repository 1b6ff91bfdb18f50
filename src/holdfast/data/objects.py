"""Objects of JSON as a data set, read by the rules for a table of them: what a request brings in place of a file.

n examples
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.data import formats
from holdfast.data.columns import Roles, assign
from holdfast.data.domain import Dataset
from holdfast.data.gathered import Gathered

_LIKE = Path("rows.jsonl")  # values have the types that they would have in such a file


def read_objects(rows: Sequence[Mapping[str, Any]], *, where: str, columns: Mapping[str, str] | None = None) -> Dataset:
    """The input of every row, and its id where it has one; labels, domains and whatever else is there is left aside."""
    schema = formats.json_schema(rows)
    numeric = {f.name for f in schema if f.type in (pa.bool_(), pa.int64(), pa.float64())}
    roles = assign(where, schema.names, numeric=numeric, columns=columns, need=())
    roles = replace(roles, label=None, domain=None, split=None, time=None)
    types = _types(schema, roles)
    for number, row in enumerate(rows, 1):
        if fault := formats.row_fault(number, row, types):
            raise BadInput(f"{where}: {fault}")
    table = Gathered(Path(where), roles, (), before=0)
    try:
        table.add(pa.record_batch({name: pa.array([r.get(name) for r in rows], kind) for name, kind in types.items()}))
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise BadInput(f"{where}: a value cannot be read ({str(error).splitlines()[0][:100]}): mend it") from error
    return table.dataset(named_time=False, named_features=True)


def _types(schema: pa.Schema, roles: Roles) -> dict[str, pa.DataType]:
    wanted = {name: formats.text_type(_LIKE, schema.field(name).type) for name in roles.texts}
    for name in roles.features:
        wanted[name] = pa.bool_() if schema.field(name).type == pa.bool_() else pa.float64()
    if roles.id is not None:
        wanted[roles.id] = formats.name_type(_LIKE, schema.field(roles.id).type, exact=True)
    return wanted
