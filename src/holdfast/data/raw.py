"""Raw examples as columns: they stay where they are (arrow buffers, files) until rows are asked for.

n examples
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from holdfast.core.files import file_digest
from holdfast.core.inputs import Graphs


class Raw(ABC):
    """A column of n raw examples of one kind."""

    kind: str  # text, image, vector or graph

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, rows: np.ndarray, *, size: int | None = None) -> Any:
        """The plain examples a backbone prepares; `size` is the side of decoded images."""

    @abstractmethod
    def digest(self, rows: np.ndarray) -> str:
        """A hash of the content of these rows."""

    def files(self) -> list[Path] | None:
        """The image file of each example, where that is what they are."""
        return None


class Texts(Raw):
    """Texts, or pairs of texts when `second` is given, as arrow string columns."""

    kind = "text"

    def __init__(self, first: pa.ChunkedArray, second: pa.ChunkedArray | None = None) -> None:
        self.first, self.second = first, second

    @staticmethod
    def of(examples: Sequence[str] | Sequence[tuple[str, str]]) -> Texts:
        """From a list of str or of pairs."""
        if len(examples) and not isinstance(examples[0], str):
            first, second = ([pair[i] for pair in examples] for i in (0, 1))
            return Texts(_column(first), _column(second))
        return Texts(_column(examples))

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: np.ndarray, *, size: int | None = None) -> list[str] | list[tuple[str, str]]:
        at = pa.array(rows)
        first = self.first.take(at).to_pylist()
        if self.second is None:
            return first
        return list(zip(first, self.second.take(at).to_pylist(), strict=True))

    def digest(self, rows: np.ndarray) -> str:
        found = hashlib.sha256()
        for column in (self.first, self.second):
            if column is None:
                continue
            for start in range(0, len(rows), 65536):
                for text in column.take(pa.array(rows[start : start + 65536])).to_pylist():
                    data = text.encode()
                    found.update(len(data).to_bytes(8, "little") + data)
            found.update(b"|")
        return found.hexdigest()


def _column(texts: Sequence[Any]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(texts, type=pa.large_string())])


class Vectors(Raw):
    """Rows of a float array (n, d)."""

    kind = "vector"

    def __init__(self, data: np.ndarray) -> None:
        self.data = np.ascontiguousarray(data, dtype=np.float32)

    def __len__(self) -> int:
        return len(self.data)

    def take(self, rows: np.ndarray, *, size: int | None = None) -> torch.Tensor:
        return torch.from_numpy(self.data[rows])

    def digest(self, rows: np.ndarray) -> str:
        return hashlib.sha256(str(self.data.shape[1:]).encode() + self.data[rows].tobytes()).hexdigest()


class Pixels(Raw):
    """Images already in memory: uint8 (n, 3, h, w)."""

    kind = "image"

    def __init__(self, data: np.ndarray) -> None:
        self.data = np.ascontiguousarray(data, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.data)

    def take(self, rows: np.ndarray, *, size: int | None = None) -> torch.Tensor:
        images = torch.from_numpy(self.data[rows])
        if size is None or images.shape[-2:] == (size, size):
            return images
        wide = torch.nn.functional.interpolate(images.float(), (size, size), mode="bilinear", antialias=True)
        return wide.round().clamp(0, 255).to(torch.uint8)

    def digest(self, rows: np.ndarray) -> str:
        return hashlib.sha256(str(self.data.shape[1:]).encode() + self.data[rows].tobytes()).hexdigest()


class Pictures(Raw):
    """Image files, decoded at the size a backbone asks for."""

    kind = "image"

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self._digests: dict[Path, str] = {}  # a data set is asked for them more than once

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: np.ndarray, *, size: int | None = None) -> torch.Tensor:
        from holdfast.data.readers.images import decode

        return torch.stack([decode(self.paths[i], size or 224) for i in rows])

    def digest(self, rows: np.ndarray) -> str:
        for path in (self.paths[i] for i in rows):
            if path not in self._digests:
                self._digests[path] = file_digest(path)
        return hashlib.sha256("".join(self._digests[self.paths[i]] for i in rows).encode()).hexdigest()

    def files(self) -> list[Path]:
        return self.paths


class Rows(Raw):
    """Some rows of another column, without a copy."""

    def __init__(self, base: Raw, rows: np.ndarray) -> None:
        self.base, self.rows, self.kind = base, rows, base.kind

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: np.ndarray, *, size: int | None = None) -> Any:
        return self.base.take(self.rows[rows], size=size)

    def digest(self, rows: np.ndarray) -> str:
        return self.base.digest(self.rows[rows])

    def files(self) -> list[Path] | None:
        found = self.base.files()
        return None if found is None else [found[i] for i in self.rows]


class GraphList(Raw):
    """Graphs in memory, one Graphs of a single graph per example."""

    kind = "graph"

    def __init__(self, graphs: Sequence[Graphs]) -> None:
        self.graphs = list(graphs)

    def __len__(self) -> int:
        return len(self.graphs)

    def take(self, rows: np.ndarray, *, size: int | None = None) -> list[Graphs]:
        return [self.graphs[i] for i in rows]

    def digest(self, rows: np.ndarray) -> str:
        found = hashlib.sha256()
        for graph in self.take(rows):
            for part in (graph.nodes, graph.edges, graph.weights):
                if part is not None:
                    found.update(str(tuple(part.shape)).encode() + part.contiguous().numpy().tobytes())
        return found.hexdigest()
