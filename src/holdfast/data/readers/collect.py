"""Collect the assigned columns of a table batch by batch: texts stay in Arrow, names become codes."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.raw import ImageFiles, Raw, Texts
from holdfast.data.readers.arrow import TEXT, decoded
from holdfast.data.readers.codes import CodeColumn, coded_dataset, times
from holdfast.data.readers.features import FeatureCollector, unused_columns
from holdfast.data.readers.forms import Plan, stored_forms
from holdfast.data.readers.sources import TableSource


class TableCollector:
    """Rows read so far, all checked by a `CellChecker`."""

    def __init__(self, source: TableSource, plan: Plan) -> None:
        self.source, self.forms, self.rows = source, stored_forms(plan.forms), 0
        self.roles = roles = plan.roles
        names = (*roles.texts, roles.image, roles.id)
        self.strings: dict[str, list[Any]] = {name: [] for name in names if name is not None}
        self.features = FeatureCollector(source.where, roles.features, chosen=roles.chosen)
        self.coded = {role: CodeColumn() for role in ("label", "domain", "split") if getattr(roles, role) is not None}
        self.time: list[Any] = []
        self.carried: list[pa.RecordBatch] = []  # columns that are only copied
        self.numbers: list[np.ndarray] = []  # rows in the file, if some may be left out

    def add(self, batch: pa.RecordBatch) -> None:
        """Append one batch."""
        if not len(batch):
            return
        roles = self.roles
        for name, strings in self.strings.items():
            strings.append(_as_text(batch.column(name)).fill_null(""))
        if roles.features:
            self.features.add(batch)
        for role, codes in self.coded.items():
            codes.add(batch.column(getattr(roles, role)), numbers=role != "domain")
        if roles.time is not None:
            self.time.append(batch.column(roles.time))
        self.rows += len(batch)

    def dataset(self) -> Dataset:
        """Return all rows as a data set."""
        source, roles, notes = self.source, self.roles, []
        raw: Raw | None = Texts(*(self._texts(name) for name in roles.texts)) if roles.texts else None
        names, columns = roles.texts, None
        if roles.image is not None:
            folder, names = source.folder or Path(), (roles.image,)
            raw = ImageFiles([folder / path for path in self._texts(roles.image).to_pylist()])
        if roles.features:
            raw, columns, notes = self.features.result(raw, names)
        assert raw is not None
        if roles.unused:
            notes = [*notes, f"not used: {unused_columns(roles.unused)}"]
        time = times(pa.chunked_array(self.time)) if roles.time is not None else None
        if roles.time is not None and time is None:
            fault = f"column '{roles.time}' of {source.where} is not all numbers or all dates such as 2024-01-31"
            if "time" in roles.named:
                raise BadInput(f"{fault}: fix the values or remove --column time={roles.time}")
            notes.append(f"{fault}, so it is not used as the time")
        dataset = coded_dataset(
            source.name, raw, self.coded, where=source.where, notes=notes,
            ids=None if roles.id is None else self._texts(roles.id).to_pylist(), time=time, columns=columns,
            forms=self.forms, carried=pa.Table.from_batches(self.carried) if self.carried else None,
            file_rows=np.concatenate(self.numbers) if self.numbers else None,
        )  # fmt: skip
        return dataset.with_notes(*source.notes)

    def _texts(self, name: str) -> pa.ChunkedArray:
        return pa.chunked_array(self.strings[name], type=TEXT)


def _as_text(column: Any) -> Any:
    """Convert an Arrow array to large strings of valid UTF-8."""
    column = decoded(column).cast(TEXT)
    column.validate(full=True)
    return column
