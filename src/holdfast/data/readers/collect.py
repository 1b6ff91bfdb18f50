"""Collect the assigned columns of a table batch by batch: texts stay in Arrow, names become codes."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.raw import ImageFiles, Raw, Texts
from holdfast.data.readers.codes import CodeColumn, Strings, coded_dataset, times
from holdfast.data.readers.columns import Roles
from holdfast.data.readers.features import FeatureCollector, unused_columns

_TEXT = pa.large_string()
_CHUNK = 1 << 23  # bytes


class _StringColumn:
    """A string column that grows by batches; small batches are merged, since they waste memory."""

    def __init__(self) -> None:
        self.chunks: list[Any] = []
        self.pending: list[Any] = []

    def add(self, batch: Any) -> None:
        self.pending.append(batch)
        if sum(b.nbytes for b in self.pending) >= _CHUNK:
            self._merge()

    def column(self) -> pa.ChunkedArray:
        self._merge()
        return pa.chunked_array(self.chunks, type=_TEXT)

    def _merge(self) -> None:
        if self.pending:
            self.chunks.append(pa.concat_arrays(self.pending, memory_pool=pa.system_memory_pool()))
            self.pending = []
            pa.default_memory_pool().release_unused()  # return freed memory to the system


class TableCollector:
    """Rows read so far, all checked by a `CellChecker`; `need` lists the roles that must be present.

    Paths of images are relative to `folder`.
    """

    def __init__(self, where: str, roles: Roles, need: Collection[str] = (), *, folder: Path | None = None) -> None:
        self.where, self.roles, self.need, self.folder = where, roles, need, folder or Path()
        self.rows = 0
        self.texts = [_StringColumn() for _ in roles.texts]
        self.features = FeatureCollector(where, roles.features, chosen=roles.chosen)
        self.coded = {role: CodeColumn() for role in ("label", "domain", "split") if getattr(roles, role) is not None}
        self.time: list[Any] = []
        self.ids, self.images = _StringColumn(), _StringColumn()

    def add(self, batch: pa.RecordBatch) -> None:
        """Append one batch."""
        if not len(batch):
            return
        roles = self.roles
        for texts, name in zip(self.texts, roles.texts, strict=True):
            texts.add(_as_text(batch.column(name)).fill_null(""))
        if roles.image is not None:
            self.images.add(_as_text(batch.column(roles.image)).fill_null(""))
        if roles.features:
            self.features.add(batch)
        for role, codes in self.coded.items():
            codes.add(batch.column(getattr(roles, role)), numbers=role != "domain")
        if roles.time is not None:
            self.time.append(batch.column(roles.time))
        if roles.id is not None:
            self.ids.add(_as_text(batch.column(roles.id)).fill_null(""))
        self.rows += len(batch)

    def dataset(self, name: str) -> Dataset:
        """Return all rows as a data set."""
        where, roles, notes = self.where, self.roles, []
        raw: Raw | None = Texts(*(texts.column() for texts in self.texts)) if roles.texts else None
        names, columns = roles.texts, None
        if roles.image is not None:
            raw, names = ImageFiles([self.folder / path for path in self.images.column().to_pylist()]), (roles.image,)
        if roles.features:
            raw, columns, notes = self.features.result(raw, names)
        assert raw is not None
        if roles.unused:
            notes = [*notes, f"not used: {unused_columns(roles.unused)}"]
        time = times(pa.chunked_array(self.time)) if roles.time is not None else None
        if roles.time is not None and time is None:
            fault = f"column '{roles.time}' of {where} is not all numbers or all dates such as 2024-01-31"
            if "time" in roles.named:
                raise BadInput(f"{fault}: fix the values or remove --column time={roles.time}")
            notes.append(f"{fault}, so it is not used as the time")
        ids = None if roles.id is None else Strings(self.ids.column())
        return coded_dataset(
            name, raw, self.coded, where=where, split_name=roles.split or "",
            notes=notes, ids=ids, time=time, columns=columns,
        )  # fmt: skip


def _as_text(column: Any) -> Any:
    """Convert an Arrow array to large strings of valid UTF-8."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type != _TEXT:
        column = column.cast(_TEXT)
    column.validate(full=True)
    return column
