"""Columns of raw examples, which stay in Arrow buffers, arrays or files until rows are requested."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from holdfast.core.files import file_digest
from holdfast.core.inputs import Graphs
from holdfast.core.store import PackedGraphs
from holdfast.core.table import Schema, TableRows, category_columns
from holdfast.data.decode import decode_image

SIDE = 32  # pixels of images next to a table, where no size is requested


class Raw(ABC):
    """A column of n raw examples of one kind."""

    kind: str  # text, image, vector, graph, table or mixed

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, rows: np.ndarray, *, size: int | None = None) -> Any:
        """Return the examples in these rows as a backbone expects them; `size` is the side of decoded images."""

    @abstractmethod
    def digest(self, rows: np.ndarray) -> str:
        """Return a hash of the content of these rows."""

    def files(self) -> list[Path] | None:
        """Return the image file of each example, or None if the examples are not image files."""
        return None


class Texts(Raw):
    """Texts, or pairs of texts if `second` is passed, as Arrow string columns."""

    kind = "text"

    def __init__(self, first: pa.ChunkedArray, second: pa.ChunkedArray | None = None) -> None:
        self.first, self.second = first, second

    @staticmethod
    def of(examples: Sequence[str] | Sequence[tuple[str, str]]) -> Texts:
        """Build the column from a list of strings or of pairs of strings."""
        pairs = len(examples) and not isinstance(examples[0], str)
        columns = ([pair[i] for pair in examples] for i in (0, 1)) if pairs else (examples,)
        return Texts(*(pa.chunked_array([pa.array(texts, type=pa.large_string())]) for texts in columns))

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: np.ndarray, *, size: int | None = None) -> list[str] | list[tuple[str, str]]:
        at = pa.array(rows)
        first = self.first.take(at).to_pylist()
        if self.second is None:
            return first
        return list(zip(first, self.second.take(at).to_pylist(), strict=True))

    def digest(self, rows: np.ndarray) -> str:
        sha = hashlib.sha256()
        for column in [self.first] if self.second is None else [self.first, self.second]:
            for start in range(0, len(rows), 65536):
                for text in column.take(pa.array(rows[start : start + 65536])).to_pylist():
                    data = text.encode()
                    sha.update(len(data).to_bytes(8, "little") + data)
            sha.update(b"|")
        return sha.hexdigest()


class Records(Raw):
    """Texts with annotations in memory, such as tagged sentences or questions, as named tuples."""

    kind = "text"

    def __init__(self, records: Sequence[tuple[Any, ...]]) -> None:
        self.records = list(records)

    def __len__(self) -> int:
        return len(self.records)

    def take(self, rows: np.ndarray, *, size: int | None = None) -> list[Any]:
        return [self.records[i] for i in rows]

    def digest(self, rows: np.ndarray) -> str:
        sha = hashlib.sha256()
        for record in self.take(rows):
            sha.update(repr(tuple(record)).encode())
        return sha.hexdigest()


class _Array(Raw):
    """Rows of an array in memory."""

    dtype: type[np.generic]

    def __init__(self, data: np.ndarray) -> None:
        self.data = np.ascontiguousarray(data, dtype=self.dtype)

    def __len__(self) -> int:
        return len(self.data)

    def digest(self, rows: np.ndarray) -> str:
        return hashlib.sha256(str(self.data.shape[1:]).encode() + self.data[rows].tobytes()).hexdigest()


class Vectors(_Array):
    """Rows of a float array (n, d)."""

    kind, dtype = "vector", np.float32

    def take(self, rows: np.ndarray, *, size: int | None = None) -> torch.Tensor:
        return torch.from_numpy(self.data[rows])


class Table(Raw):
    """Rows of numbers and categories; with a text or image per row, the kind is `mixed`."""

    def __init__(self, schema: Schema, numbers: np.ndarray, codes: np.ndarray, companion: Raw | None = None) -> None:
        self.schema, self.companion = schema, companion
        self.numbers = np.ascontiguousarray(numbers, dtype=np.float32)  # (n, p), NaN where missing
        self.codes = np.ascontiguousarray(codes, dtype=np.int32)  # (n, q), -1 where missing
        self.kind = "table" if companion is None else "mixed"

    @staticmethod
    def of(rows: TableRows) -> Table:
        """Build the column from rows in memory."""
        companion: Raw | None = None
        if rows.companion is not None:
            images = isinstance(rows.companion, torch.Tensor)
            companion = Pixels(rows.companion.numpy()) if images else Texts.of(rows.companion)
        return Table(rows.schema, rows.numbers.numpy(), rows.codes.numpy(), companion)

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: np.ndarray, *, size: int | None = None) -> TableRows:
        companion = self.companion
        if companion is not None:
            size = SIDE if size is None and companion.kind == "image" else size
            companion = companion.take(rows, size=size)
        numbers, codes = torch.from_numpy(self.numbers[rows]), torch.from_numpy(self.codes[rows])
        return TableRows(self.schema, numbers, codes, companion)

    @cached_property
    def _header(self) -> bytes:
        return repr([f"{column.name}:{column.kind}" for column in self.schema]).encode()

    @cached_property
    def _category_hashes(self) -> list[np.ndarray]:
        """One array per category column: a number per category, the last one for a missing value."""
        tables = []
        for column in category_columns(self.schema):
            hashes = [hashlib.sha256(name.encode()).digest()[:8] for name in column.categories]
            tables.append(np.frombuffer(b"".join([*hashes, bytes(8)]), dtype=np.uint64))
        return tables

    def digest(self, rows: np.ndarray) -> str:
        """Depend on the names of categories, not on their codes, which may differ between files."""
        numbers = self.numbers[rows]
        sha = hashlib.sha256(self._header + np.where(numbers == 0, 0, numbers).tobytes())
        for i, hashes in enumerate(self._category_hashes):
            sha.update(hashes[self.codes[rows, i]].tobytes())
        if self.companion is not None:
            sha.update(self.companion.digest(rows).encode())
        return sha.hexdigest()


class Pixels(_Array):
    """Images in memory: uint8 (n, 3, h, w)."""

    kind, dtype = "image", np.uint8

    def take(self, rows: np.ndarray, *, size: int | None = None) -> torch.Tensor:
        images = torch.from_numpy(self.data[rows])
        if size is None or images.shape[-2:] == (size, size):
            return images
        resized = torch.nn.functional.interpolate(images.float(), (size, size), mode="bilinear", antialias=True)
        return resized.round().clamp(0, 255).to(torch.uint8)


class ImageFiles(Raw):
    """Image files, decoded on demand at the size that a backbone requests."""

    kind = "image"

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self._digests: dict[Path, str] = {}  # hashing a file is slow, and digests are requested repeatedly

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: np.ndarray, *, size: int | None = None) -> torch.Tensor:
        return torch.stack([decode_image(self.paths[i], size or 224) for i in rows])

    def digest(self, rows: np.ndarray) -> str:
        for path in (self.paths[i] for i in rows):
            if path not in self._digests:
                self._digests[path] = file_digest(path)
        return hashlib.sha256("".join(self._digests[self.paths[i]] for i in rows).encode()).hexdigest()

    def files(self) -> list[Path]:
        return self.paths


class GraphList(Raw):
    """Graphs in memory: a list with one `Graphs` of a single graph per example, or packed graphs."""

    kind = "graph"

    def __init__(self, graphs: Sequence[Graphs]) -> None:
        self.graphs = graphs if isinstance(graphs, PackedGraphs) else list(graphs)

    def __len__(self) -> int:
        return len(self.graphs)

    def take(self, rows: np.ndarray, *, size: int | None = None) -> Sequence[Graphs]:
        return self.graphs.take(rows) if isinstance(self.graphs, PackedGraphs) else [self.graphs[i] for i in rows]

    def digest(self, rows: np.ndarray) -> str:
        """Return the same hash for packed graphs and for a list of them."""
        if isinstance(self.graphs, PackedGraphs):
            return self.graphs.digest(rows)
        sha = hashlib.sha256()
        for graph in self.take(rows):
            for tensor in (graph.nodes, graph.edges, graph.weights):
                if tensor is not None:
                    sha.update(str(tuple(tensor.shape)).encode() + tensor.contiguous().numpy().tobytes())
        return sha.hexdigest()


class Subset(Raw):
    """Selected rows of another column, without a copy."""

    def __init__(self, base: Raw, rows: np.ndarray) -> None:
        self.base, self.rows, self.kind = base, rows, base.kind

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: np.ndarray, *, size: int | None = None) -> Any:
        return self.base.take(self.rows[rows], size=size)

    def digest(self, rows: np.ndarray) -> str:
        return self.base.digest(self.rows[rows])

    def files(self) -> list[Path] | None:
        paths = self.base.files()
        return None if paths is None else [paths[i] for i in self.rows]


class Concat(Raw):
    """Columns of one kind, concatenated without a copy."""

    def __init__(self, columns: Sequence[Raw]) -> None:
        assert len({column.kind for column in columns}) == 1, columns
        self.columns, self.kind = list(columns), columns[0].kind
        self.starts = np.cumsum([0, *map(len, columns)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, rows: np.ndarray, *, size: int | None = None) -> Any:
        owner = self._owner(rows)
        used = np.unique(owner) if len(rows) else [0]
        pieces = [self.columns[i].take(rows[owner == i] - self.starts[i], size=size) for i in used]
        order = np.argsort(np.argsort(owner, kind="stable"))  # positions of the rows in the joined pieces
        if self.kind in ("table", "mixed"):
            return TableRows.cat(pieces).take(torch.from_numpy(order))
        if isinstance(pieces[0], torch.Tensor):
            return torch.cat(pieces)[order]
        examples = [example for piece in pieces for example in piece]
        return [examples[i] for i in order]

    def digest(self, rows: np.ndarray) -> str:
        """Equal the digest of one column if all rows lie in it, so that its cached features are reused."""
        owner = self._owner(rows)
        changes = np.flatnonzero(np.diff(owner)) + 1
        runs = [(owner[at[0]], rows[at]) for at in np.split(np.arange(len(rows)), changes) if len(at)]
        digests = [self.columns[i].digest(run - self.starts[i]) for i, run in runs]
        return digests[0] if len(digests) == 1 else hashlib.sha256("|".join(digests).encode()).hexdigest()

    def files(self) -> list[Path] | None:
        paths = [column.files() for column in self.columns]
        return None if None in paths else [path for files in paths if files is not None for path in files]

    def _owner(self, rows: np.ndarray) -> np.ndarray:
        """Return (n,) the index of the column that holds each row."""
        return np.searchsorted(self.starts, rows, side="right") - 1
