"""Read a sheet of an Excel file (.xlsx) as a data set: one example per row, columns assigned by name.

The first row of the sheet holds the names of the columns. Values of formulas are those that Excel stored.
"""

import zipfile
from pathlib import Path
from typing import Any

import pandas as pd

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.readers.columns import DEFAULT, ReadOptions, listed
from holdfast.data.readers.in_memory import read_frame

SUFFIX = ".xlsx"
MAX_BYTES = 1 << 30  # of the unpacked file


def read_excel(path: Path, options: ReadOptions = DEFAULT, *, sheet: str = "") -> Dataset:
    """Read one sheet, by default the first one; with several sheets, a note names it."""
    frame, note = read_sheet(path, str(sheet))
    return read_frame(frame, options, where=str(path), name=path.stem, folder=path.parent).with_notes(*note)


def read_sheet(path: Path, sheet: str = "") -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return the rows of a sheet as a DataFrame, and a note if the file has several sheets."""
    try:
        import openpyxl
    except ImportError as error:
        raise BadInput(f"{path} is an Excel file, which needs openpyxl: pip install 'holdfast[excel]'") from error
    _check_size(path)
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        names = [each.title for each in book.worksheets]
        if sheet and sheet not in names:
            raise BadInput(f"{path} has no sheet '{sheet}': it has {listed(names)}; fix {path.name}@sheet={sheet}")
        if not names:
            raise BadInput(f"{path} has no sheet with cells: write one row per example")
        chosen = sheet or names[0]
        rows = [list(row) for row in book[chosen].iter_rows(values_only=True)]
        book.close()
    except BadInput:
        raise
    except Exception as error:  # the file is untrusted, and openpyxl raises many types
        reason = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        raise BadInput(f"{path} is not a valid Excel file ({reason}): save it again as .xlsx or as .csv") from error
    note = f"the sheet '{chosen}' of {len(names)} is read; {path.name}@sheet=NAME reads another"
    return _frame(path, chosen, rows), (note,) if len(names) > 1 and not sheet else ()


def _check_size(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as file:
            total = sum(member.file_size for member in file.infolist())
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise BadInput(f"{path} is not a valid Excel file ({error}): save it again as .xlsx or as .csv") from error
    if total > MAX_BYTES:
        size, limit = f"{total / (1 << 30):.1f} GB", f"{MAX_BYTES >> 30} GB"
        raise BadInput(f"{path} unpacks to {size}, more than {limit}: save it as .csv or .parquet")


def _frame(path: Path, sheet: str, rows: list[list[Any]]) -> pd.DataFrame:
    """Return a DataFrame; empty rows, and empty columns without a name, are left out."""
    filled = [row for row in rows if any(value is not None for value in row)]
    if len(filled) < 2:
        state = "no cells" if not filled else "a header but no rows"
        raise BadInput(f"{path}: the sheet '{sheet}' has {state}: write a header and one row per example")
    header, *body = filled
    used = [i for i, name in enumerate(header) if name is not None or any(row[i] is not None for row in body)]
    if unnamed := [i for i in used if header[i] is None]:
        raise BadInput(f"{path}: column {unnamed[0] + 1} of the sheet '{sheet}' has no name: write it in the first row")
    columns = [pd.Series([_plain(row[i]) for row in body], dtype=object) for i in used]
    frame = pd.concat(columns, axis=1).set_axis([str(header[i]).strip() for i in used], axis=1)
    return pd.concat([_typed(frame.iloc[:, i]) for i in range(frame.shape[1])], axis=1)


def _plain(value: Any) -> Any:
    """Return a text without surrounding spaces, or None for an empty one; other values as they are."""
    return (value.strip() or None) if isinstance(value, str) else value


def _typed(column: pd.Series) -> pd.Series:
    """Return a column with one type; of mixed types, such as numbers and texts, the texts of all values."""
    values = [value for value in column if value is not None]
    kinds = {type(value) for value in values}
    if kinds == {int} or not values:
        return column.astype("Int64") if values else column
    if kinds <= {int, float}:
        return column.astype("float64")
    if len(kinds) > 1:
        return column.map(lambda value: None if value is None else str(value))
    return column.infer_objects()
