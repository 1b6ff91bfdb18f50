"""Rows of a table with columns of several kinds, as an encoder receives them.

Shapes: n rows, p number columns, q category columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

NUMERIC = ("number", "boolean", "date")  # kinds that are stored as numbers: false and true are 0 and 1, dates are days
KINDS = (*NUMERIC, "category")


@dataclass(frozen=True, slots=True)
class Column:
    """Name and kind of an input column; `categories` are the known values of a category column."""

    name: str
    kind: str  # one of KINDS
    categories: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"column '{self.name}' has the kind {self.kind!r}, expected one of {', '.join(KINDS)}")

    def to_json(self) -> dict[str, Any]:
        column = {"name": self.name, "kind": self.kind}
        return column | {"categories": list(self.categories)} if self.kind == "category" else column

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Column:
        return Column(str(value["name"]), str(value["kind"]), tuple(map(str, value.get("categories", ()))))


Schema = tuple[Column, ...]


def numeric_columns(schema: Sequence[Column]) -> list[Column]:
    """Return the columns of `numbers`, in order."""
    return [column for column in schema if column.kind in NUMERIC]


def category_columns(schema: Sequence[Column]) -> list[Column]:
    """Return the columns of `codes`, in order."""
    return [column for column in schema if column.kind == "category"]


@dataclass(frozen=True, slots=True)
class TableRows:
    """Numbers, codes of categories and, for mixed inputs, one text or image per row."""

    schema: Schema
    numbers: Tensor  # (n, p) float32, NaN where a value is missing
    codes: Tensor  # (n, q) int32 into the categories of the column, -1 where a value is missing
    companion: Any = None  # n texts, pairs of texts or images (n, 3, s, s)

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Sequence[int] | Tensor) -> TableRows:
        index = torch.as_tensor(rows, dtype=torch.long)
        companion = self.companion
        if companion is not None:
            companion = companion[index] if isinstance(companion, Tensor) else [companion[i] for i in index.tolist()]
        return replace(self, numbers=self.numbers[index], codes=self.codes[index], companion=companion)

    def numpy(self) -> np.ndarray:
        """(n, 2p + q) numbers with 0 for missing ones, indicators of missing numbers, and codes; to compare rows."""
        return torch.cat([self.numbers.nan_to_num(nan=0.0), self.numbers.isnan().float(), self.codes], dim=1).numpy()

    def recoded(self, schema: Schema) -> TableRows:
        """Return the rows with the columns of another schema, matched by name; an unknown category gets the code -2.

        Raises KeyError if a column is missing or has another kind.
        """
        if schema == self.schema:
            return self
        numeric = {column.name: i for i, column in enumerate(numeric_columns(self.schema))}
        coded = {column.name: i for i, column in enumerate(category_columns(self.schema))}
        numbers = self.numbers[:, [numeric[column.name] for column in numeric_columns(schema)]]
        codes = torch.full((len(self), len(category_columns(schema))), -1, dtype=torch.int32)
        own = category_columns(self.schema)
        for i, column in enumerate(category_columns(schema)):
            at = coded[column.name]
            codes[:, i] = recode(self.codes[:, at], own[at].categories, column.categories)
        return TableRows(schema, numbers, codes, self.companion)

    @staticmethod
    def cat(tables: Sequence[TableRows]) -> TableRows:
        """Concatenate rows with the same columns; categories of a column are united."""
        schema = united([table.schema for table in tables])
        aligned = [table.recoded(schema) for table in tables]
        numbers, codes = (torch.cat([getattr(t, name) for t in aligned]) for name in ("numbers", "codes"))
        companions: list[Any] = [table.companion for table in tables if table.companion is not None]
        companion = None
        if companions:
            tensors = isinstance(companions[0], Tensor)
            companion = torch.cat(companions) if tensors else [text for part in companions for text in part]
        return TableRows(schema, numbers, codes, companion)


def recode(codes: Tensor, categories: Sequence[str], known: Sequence[str]) -> Tensor:
    """Map codes (n,) from one list of categories to another: -1 stays, and a category that is not known becomes -2."""
    index = {name: i for i, name in enumerate(known)}
    table = torch.tensor([*(index.get(name, -2) for name in categories), -1], dtype=torch.int32)
    return table[codes.long()]  # -1 takes the last entry


def united(schemas: Sequence[Schema]) -> Schema:
    """Return the columns of the first schema with the categories of all; raise KeyError if the columns differ."""
    first = schemas[0]
    by_name = [{column.name: column for column in schema} for schema in schemas]
    columns = []
    for column in first:
        same = [names[column.name] for names in by_name]
        if any(other.kind != column.kind for other in same):
            raise KeyError(column.name)
        columns.append(replace(column, categories=tuple(dict.fromkeys(c for other in same for c in other.categories))))
    return tuple(columns)


def row_schema(schema: Schema, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the JSON schema of one row; every value may be null, and columns in `names` that are not listed are texts.

    An unknown category is accepted: the model reads it as one that it has not seen.
    """
    types = {"number": "number", "boolean": "boolean", "date": "string", "category": "string"}
    properties: dict[str, Any] = {}
    for column in schema:
        properties[column.name] = {"type": [types[column.kind], "null"]}
        if column.kind == "date":
            properties[column.name]["format"] = "date"
        if column.kind == "category":
            properties[column.name]["examples"] = list(column.categories[:20])
    for name in names or ():
        properties.setdefault(name, {"type": "string"})
    return {"type": "object", "properties": properties}
