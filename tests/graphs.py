"""Write small files of graphs in the formats that are read."""

import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

Edges = Sequence[tuple[int, int]]


def ring(v: int) -> Edges:
    return [(i, (i + 1) % v) for i in range(v)]


def star(v: int) -> Edges:
    return [(0, i) for i in range(1, v)]


def text_form(graphs: Sequence[tuple[int, Edges, object]], *, tags=None, attributes=None) -> str:
    """Format graphs (nodes, edges, label) as text; tags and attributes are functions of (graph, node)."""
    lines = [str(len(graphs))]
    for g, (v, edges, label) in enumerate(graphs):
        lines.append(f"{v} {label}")
        for node in range(v):
            near = sorted({b for a, b in edges if a == node} | {a for a, b in edges if b == node})
            more = () if attributes is None else attributes(g, node)
            words = [tags(g, node) if tags else 0, len(near), *near, *more]
            lines.append(" ".join(map(str, words)))
    return "\n".join(lines) + "\n"


def rings_and_stars(count: int, *, first: int = 3) -> list[tuple[int, Edges, object]]:
    """Return alternating rings (label 0) and stars (label 1), one node larger per pair."""
    return [(first + i // 2, (star if i % 2 else ring)(first + i // 2), i % 2) for i in range(count)]


def write_zip(path: Path, graphs: Sequence[tuple[int, Edges, object]], *, folds: bool = False, **how) -> Path:
    """Write a zip as published: SET/SET.txt, macOS metadata, and ten test folds."""
    name = path.stem
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}/{name}.txt", text_form(graphs, **how))
        file.writestr(f"__MACOSX/{name}/._{name}.txt", b"\x00\xff")
        for k in range(1, 11) if folds else ():
            rows = range(k - 1, len(graphs), 10)
            file.writestr(f"{name}/10fold_idx/test_idx-{k}.txt", "\n".join(map(str, rows)) + "\n")
            rest = [i for i in range(len(graphs)) if i not in rows]
            file.writestr(f"{name}/10fold_idx/train_idx-{k}.txt", "\n".join(map(str, rest)) + "\n")
    return path


def write_layout(folder: Path, name: str, graphs: Sequence[tuple[int, Edges, object]], *, tags=None) -> Path:
    """Write the layout of TU, several files counted from 1."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs, owner, start = [], [], 1
    for g, (v, edges, _) in enumerate(graphs, start=1):
        pairs += [f"{start + a}, {start + b}" for a, b in edges] + [f"{start + b}, {start + a}" for a, b in edges]
        owner += [str(g)] * v
        start += v
    files = {"A": pairs, "graph_indicator": owner, "graph_labels": [str(label) for *_, label in graphs]}
    if tags is not None:
        files["node_labels"] = [str(tags(g, n)) for g, (v, *_) in enumerate(graphs) for n in range(v)]
    for kind, lines in files.items():
        (folder / f"{name}_{kind}.txt").write_text("\n".join(lines) + "\n")
    return folder


def geometric() -> Any:
    """Import torch-geometric, whose import uses deprecated parts of torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_geometric", reason="torch-geometric is not installed")
