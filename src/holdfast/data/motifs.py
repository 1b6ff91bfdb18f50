"""Graphs whose class is a motif of six nodes and whose domain is the size of the tree it hangs on.

v nodes of one graph, e edges
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch

from holdfast.core.inputs import Graphs

_ALL = list(combinations(range(6), 2))
_STAR = [(0, i) for i in range(1, 6)]
# one a class, the lower node of an edge first; all of one size, so that the class says nothing about the size
MOTIFS: tuple[list[tuple[int, int]], ...] = (
    _STAR,
    [(a, b) for a, b in _ALL if a < 3 <= b],  # two sides of three
    _ALL,
    [(0, 5), *((i, i + 1) for i in range(5))],  # a ring
    [*_STAR, (1, 2), (2, 3), (3, 4), (4, 5), (1, 5)],  # a wheel
    [(a, b) for a, b in _ALL if a < 2 <= b],  # two sides, of two and of four
    [(a, b) for a, b in _ALL if b != a + 3],  # an octahedron
    [(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 4), (4, 5)],  # two triangles and a tail
)
DEGREES = 8  # a node's features say its degree, this one or more in the last place


def motif_graph(label: int, domain: int, random: np.random.Generator, *, noise: float) -> Graphs:
    """The class's motif on a random tree of 4 to 8 nodes, 12 more a domain; noise / 2 stray edges on average."""
    tree = int(random.integers(4, 9)) + 12 * domain
    v = tree + 6
    edges = {(int(random.integers(i)), i) for i in range(1, tree)}  # every node hangs on an earlier one
    edges |= {(tree + a, tree + b) for a, b in MOTIFS[label]}
    edges.add((int(random.integers(tree)), tree + int(random.integers(6))))
    for _ in range(int(random.poisson(noise / 2))):
        a, b = random.choice(v, 2, replace=False)
        edges.add((int(min(a, b)), int(max(a, b))))
    ends = torch.tensor(sorted(edges)).T  # (2, e)
    both = torch.cat([ends, ends.flip(0)], dim=1)
    degree = torch.bincount(both[0], minlength=v).clamp(max=DEGREES) - 1
    return Graphs(
        nodes=torch.nn.functional.one_hot(degree, DEGREES).float(),
        edges=both,
        owner=torch.zeros(v, dtype=torch.int64),
        count=1,
    )
