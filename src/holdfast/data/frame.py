"""A DataFrame of pandas as a data set: its columns are found as those of a table file are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.data.columns import assign
from holdfast.data.domain import Dataset
from holdfast.data.gathered import Gathered
from holdfast.data.table import is_number

WHERE = "the DataFrame"
Source = str | Path | Dataset | pd.DataFrame  # what a Python user may give as data


def read_frame(
    frame: pd.DataFrame,
    *,
    columns: Mapping[str, str] | None = None,
    need: Collection[str] = ("label", "domain"),
) -> Dataset:
    """Every row an example; `columns` names columns by role, `need` says which roles must be there."""
    check_names(frame)
    if not len(frame):
        raise BadInput(f"{WHERE} has no rows: give it one row an example")
    try:
        table = pa.Table.from_pandas(frame.set_axis(list(map(str, frame.columns)), axis=1), preserve_index=False)
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        raise _mixed(error) from error
    numeric = {field.name for field in table.schema if pa.types.is_boolean(field.type) or is_number(field.type)}
    roles = assign(WHERE, table.schema.names, numeric=numeric, columns=columns, need=need)
    gathered = Gathered(Path(WHERE), roles, need, before=0)
    try:
        for batch in table.to_batches():
            gathered.add(batch)
    except pa.ArrowException as error:
        raise _mixed(error) from error
    given = columns or {}
    found = gathered.dataset(named_time=bool(given.get("time")), named_features="features" in given)
    return replace(found, name="data")


def _mixed(error: Exception) -> BadInput:
    told = "; ".join(map(str, error.args))[:200]
    return BadInput(f"{WHERE} has a column that is neither all numbers nor all texts ({told}): make it one of them")


def check_names(frame: pd.DataFrame) -> None:
    """One sentence where two columns are called the same."""
    twice = [name for name, count in Counter(map(str, frame.columns)).items() if count > 1]
    if twice:
        raise BadInput(f"{WHERE} has two columns called '{twice[0]}': rename one of them")
