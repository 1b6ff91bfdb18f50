"""The wanted columns of a table, gathered batch by batch: texts stay in arrow, names are codes already.

n examples, d features
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Raw, Texts, Vectors
from holdfast.data.readers.columns import Roles, listed
from holdfast.data.readers.names import (
    Names,
    Strings,
    blank,
    class_codes,
    domain_codes,
    first_true,
    measured,
    split_codes,
    times,
)

_TEXT = pa.large_string()
_PIECE = 1 << 23  # bytes


class _Strings:
    """A string column that grows by batches, kept in large pieces: small ones waste memory."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.loose: list[Any] = []

    def add(self, batch: Any) -> None:
        self.loose.append(batch)
        if sum(b.nbytes for b in self.loose) >= _PIECE:
            self._join()

    def column(self) -> pa.ChunkedArray:
        self._join()
        return pa.chunked_array(self.pieces, type=_TEXT)

    def _join(self) -> None:
        if self.loose:
            self.pieces.append(pa.concat_arrays(self.loose, memory_pool=pa.system_memory_pool()))
            self.loose = []
            pa.default_memory_pool().release_unused()  # else what is freed here stays with the process


class Gathered:
    """What was read so far; `before` are the rows of the file that came before these."""

    def __init__(self, path: Path, roles: Roles, need: Collection[str], *, before: int) -> None:
        self.path, self.roles, self.need, self.before = path, roles, need, before
        self.rows = 0
        self.texts = [_Strings() for _ in roles.texts]
        self.features: list[np.ndarray] = []
        self.label, self.domain, self.split = Names(), Names(), Names()
        self.time: list[Any] = []
        self.ids = _Strings()

    def add(self, batch: pa.RecordBatch) -> None:
        """Check one batch and keep it."""
        if not len(batch):
            return
        roles = self.roles
        for kept, name in zip(self.texts, roles.texts, strict=True):
            column = _as_text(batch.column(name))
            self._refuse_blank(first_true(blank(column)), "text", name)
            kept.add(column)
        if roles.features:
            self.features.append(self._numbers(batch))
        if roles.label is not None:
            self._add_names(self.label, batch.column(roles.label), "label", roles.label)
        if roles.domain is not None:
            self._add_names(self.domain, batch.column(roles.domain), "domain", roles.domain)
        if roles.split is not None:
            self.split.add(batch.column(roles.split), numbers=True)
        if roles.time is not None:
            self.time.append(batch.column(roles.time))
        if roles.id is not None:
            self.ids.add(_as_text(batch.column(roles.id)).fill_null(""))
        self.rows += len(batch)

    def _add_names(self, names: Names, column: Any, role: str, name: str) -> None:
        codes = names.add(column, numbers=role == "label")
        missing = codes < 0
        # a file to predict may leave labels open, but an example must belong somewhere
        if missing.any() and (role in self.need or role == "domain"):
            self._refuse_blank(int(missing.argmax()), role, name)

    def _refuse_blank(self, at: int | None, role: str, name: str) -> None:
        if at is None:
            return
        mend = "fill it in or take the row out"
        if role == "domain" and role not in self.need:
            mend += ", or leave the column out with --column domain="
        raise BadInput(f"{self.path}: row {self.before + self.rows + at + 1}, column '{name}' has no {role}: {mend}")

    def _numbers(self, batch: pa.RecordBatch) -> np.ndarray:
        found = np.empty((len(batch), len(self.roles.features)), dtype=np.float32)
        for i, name in enumerate(self.roles.features):
            column = batch.column(name)
            column = column.cast(pa.float64()) if column.type != pa.bool_() else column.cast(pa.int8())
            with np.errstate(over="ignore", invalid="ignore"):  # too large a number is told below
                found[:, i] = column.to_numpy(zero_copy_only=False)
            good = np.isfinite(found[:, i])
            if not good.all():
                at = int((~good).argmax())
                said = column[at].as_py()
                raise BadInput(
                    f"{self.path}: row {self.before + self.rows + at + 1}, column '{name}' is "
                    f"{'missing or not a number' if said is None else said}: features must be finite numbers"
                )
        return found

    def dataset(self, *, named_time: bool, named_features: bool) -> Dataset:
        """All rows as a data set."""
        where, roles, notes = str(self.path), self.roles, []
        raw: Raw
        if roles.texts:
            raw = Texts(*(kept.column() for kept in self.texts))
        else:
            raw = Vectors(np.concatenate(self.features))
            if not named_features:
                notes.append(
                    f"no text column was found, so the input is the {len(roles.features)} numeric columns "
                    f"{listed(roles.features)}; a text column is named with --column text=NAME"
                )
        time = times(pa.chunked_array(self.time)) if roles.time is not None else None
        if roles.time is not None and time is None:
            said = f"column '{roles.time}' of {where} is not all numbers or all dates like 2024-01-31"
            if named_time:
                raise BadInput(f"{said}: mend them or leave out --column time={roles.time}")
            notes.append(f"{said}, so it is not used as the time")
        y, classes = np.full(self.rows, -1, dtype=np.int64), ()
        if roles.label is not None:
            y, classes = class_codes(self.label)
            if "label" in self.need and (told := measured(classes, self.rows, where=where)):
                notes.append(told)
        domain, domains = np.zeros(self.rows, dtype=np.int64), ("all",)
        if roles.domain is not None:
            domain, domains = domain_codes(self.domain, time)
        split = (
            None
            if roles.split is None
            else split_codes(self.split, where=where, column=roles.split, before=self.before)
        )
        return Dataset(
            name=self.path.stem,
            raw=raw,
            y=y,
            classes=classes,
            domain=domain,
            domains=domains,
            split=split,
            ids=None if roles.id is None else Strings(self.ids.column()),
            time=time,
            notes=tuple(notes),
            columns=None if roles.texts else roles.features,
        )


def _as_text(column: Any) -> Any:
    """An arrow array as large strings of valid UTF-8."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type != _TEXT:
        column = column.cast(_TEXT)
    column.validate(full=True)
    return column
