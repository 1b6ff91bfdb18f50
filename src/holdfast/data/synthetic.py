"""Synthetic worlds with a known shift between their domains, for tests, the demo and null controls.

n examples of a domain, c classes, d features
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.core.seeds import derive
from holdfast.data.dataset import Dataset
from holdfast.data.raw import GraphList, Pixels, Raw, Texts, Vectors

KINDS = ("vector", "image", "text", "graph")
SHIFTS = ("none", "rotation", "spurious", "vocabulary", "label", "size")
_ONLY = {"vocabulary": ("text",), "size": ("graph",), "rotation": ("vector", "image", "graph")}  # words have no angle
WORLDS = tuple((kind, shift) for kind in KINDS for shift in SHIFTS if kind in _ONLY.get(shift, KINDS))
_TURN = 40.0  # degrees from one domain to the next
_SIDE = 16  # pixels
_LETTERS = (list("bdfgklmnprstvz"), list("aeiou"))


@dataclass(frozen=True, slots=True)
class _Domain:
    """One domain before it is drawn: the true class and the class a spurious cue points to."""

    at: int
    y: np.ndarray  # (n,)
    cue: np.ndarray | None  # (n,) where the shift is spurious
    angle: float
    classes: int
    noise: float


def world(
    kind: str = "vector",
    shift: str = "rotation",
    *,
    domains: int = 4,
    size: int = 200,
    classes: int = 2,
    seed: int = 0,
    noise: float = 1.0,
) -> Dataset:
    """`size` examples in each domain; a spurious cue agrees with the label in all domains but the last.

    rotation turns the features by 40 degrees a domain, vocabulary says half of the words anew in each domain,
    label moves the class proportions from the first classes to the last ones, size lets graphs grow around the motif
    that is their class.
    """
    if (kind, shift) not in WORLDS:
        known = "; ".join(f"{k}: {', '.join(s for q, s in WORLDS if q == k)}" for k in KINDS)
        raise BadInput(f"there is no {kind} world with the shift '{shift}'; there are {known}")
    if domains < 1 or size < classes or not 2 <= classes <= 8 or noise < 0:
        raise BadInput(
            "a world needs a domain, 2 to 8 classes, as many examples a domain as classes, and noise of 0 "
            f"or more, not domains={domains}, classes={classes}, size={size}, noise={noise}"
        )
    random = np.random.default_rng(derive(seed, "world", kind, shift))
    plan = [_plan(i, shift, domains, size, classes, noise, random) for i in range(domains)]
    y = np.concatenate([d.y for d in plan])
    raw: Raw
    if kind == "text":
        raw = Texts.of(_texts(plan, random, fresh=shift == "vocabulary"))
    elif kind == "image":
        raw = Pixels(np.concatenate([_images(d, random) for d in plan]))
    elif shift == "size":
        raw = GraphList([motif_graph(int(label), d.at, random, noise=noise) for d in plan for label in d.y])
    elif kind == "graph":
        raw = GraphList(_graphs(np.concatenate([_vectors(d, random) for d in plan]), random, noise))
    else:
        raw = Vectors(np.concatenate([_vectors(d, random) for d in plan]))
    return Dataset(
        name=f"{kind}-{shift}",
        raw=raw,
        y=y,
        classes=tuple(str(k) for k in range(classes)),
        domain=np.repeat(np.arange(domains), size),
        domains=tuple(f"domain-{i}" for i in range(domains)),
    )


def _plan(
    at: int, shift: str, domains: int, size: int, classes: int, noise: float, random: np.random.Generator
) -> _Domain:
    share = np.full(classes, 1 / classes)
    if shift == "label":
        share = 4.0 ** -np.arange(classes)
        share /= share.sum()
        gone = at / max(1, domains - 1)
        share = (1 - gone) * share + gone * share[::-1]
    # every class is there, however small the domain
    y = np.concatenate([np.arange(classes), random.choice(classes, size - classes, p=share)])
    y = random.permutation(y).astype(np.int64)
    cue = None
    if shift == "spurious":
        agrees = 0.1 if at == domains - 1 else 0.97 - 0.07 * (at % 2)
        other = (y + random.integers(1, classes, size)) % classes
        cue = np.where(random.random(size) < agrees, y, other)
    return _Domain(at, y, cue, _TURN * at if shift == "rotation" else 0.0, classes, noise)


def _circle(which: np.ndarray, classes: int, radius: float, degrees: np.ndarray | float = 0.0) -> np.ndarray:
    angle = which * (2 * np.pi / classes) + np.deg2rad(degrees)
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)  # (n, 2)


def _vectors(d: _Domain, random: np.random.Generator) -> np.ndarray:
    """(n, 8): the class on a circle in the first two features, the cue on a wider one in the next two."""
    gap = np.sin(np.pi / d.classes)  # keeps neighbours on the circle equally far apart for any c
    x = d.noise * random.standard_normal((len(d.y), 8))
    x[:, :2] += _circle(d.y, d.classes, (1.8 if d.cue is not None else 3.0) / gap, d.angle)
    if d.cue is not None:
        x[:, 2:4] += _circle(d.cue, d.classes, 4.0 / gap)
    return x.astype(np.float32)


def _images(d: _Domain, random: np.random.Generator) -> np.ndarray:
    """(n, 3, 16, 16) uint8: a disc lit from the side of the class, turned with the domain; the cue tints it."""
    n = len(d.y)
    scatter = (100.0 if d.cue is not None else 60.0) / d.classes * d.noise  # degrees
    light = _circle(d.y, d.classes, 1.0, d.angle + scatter * random.standard_normal(n))  # (n, 2)
    places = (np.mgrid[:_SIDE, :_SIDE] - (_SIDE - 1) / 2) / (_SIDE / 2)  # (2, 16, 16)
    x = 128 + 50 * np.einsum("np,phw->nhw", light, places * (np.hypot(*places) < 1))[:, None]  # (n, 1, 16, 16)
    if d.cue is not None:
        angle = 2 * np.pi * (d.cue[:, None] / d.classes + np.arange(3) / 3)  # (n, 3)
        x = x + 40 * np.cos(angle)[:, :, None, None]
    x = x + 25 * d.noise * random.standard_normal((n, 3, _SIDE, _SIDE))
    return x.round().clip(0, 255).astype(np.uint8)


def _graphs(vectors: np.ndarray, random: np.random.Generator, noise: float) -> list[Graphs]:
    """A ring of 5 to 9 nodes with a few chords, whose features scatter about the example's vector."""
    found = []
    for vector in vectors:
        v = int(random.integers(5, 10))
        nodes = vector + noise * random.standard_normal((v, len(vector)))
        start = np.concatenate([np.arange(v), random.integers(0, v, 3)])
        end = np.concatenate([(np.arange(v) + 1) % v, random.integers(0, v, 3)])
        both = np.stack([np.concatenate([start, end]), np.concatenate([end, start])])
        found.append(
            Graphs(
                nodes=torch.from_numpy(nodes.astype(np.float32)),
                edges=torch.from_numpy(both.astype(np.int64)),
                owner=torch.zeros(v, dtype=torch.int64),
                count=1,
            )
        )
    return found


def _texts(plan: list[_Domain], random: np.random.Generator, *, fresh: bool) -> list[str]:
    """Sentences of filler, words of the class and of the cue; `fresh` renews half of the class words."""
    classes = plan[0].classes
    words = iter(_words(60 + 8 * classes * (2 + len(plan)), random))
    filler = np.array([next(words) for _ in range(60)])
    own = np.array([[next(words) for _ in range(8)] for _ in range(classes)])  # (c, 8)
    cues = np.array([[next(words) for _ in range(8)] for _ in range(classes)])
    found = []
    for d in plan:
        said = own.copy()
        if fresh and d.at:
            said[:, :4] = [[next(words) for _ in range(4)] for _ in range(classes)]
        for row, label in enumerate(d.y):
            spoken = list(random.choice(filler, int(random.integers(5, 10))))
            for _ in range(2 if d.cue is not None else 4):  # now and then a word of another class slips in
                slip = random.random() < 0.05 * d.noise
                spoken.append(random.choice(said[random.integers(classes) if slip else label]))
            if d.cue is not None:
                spoken += list(random.choice(cues[d.cue[row]], 4))
            found.append(" ".join(random.permutation(spoken)))
    return found


def _words(count: int, random: np.random.Generator) -> list[str]:
    """Distinct made-up words of two to four syllables."""
    found: dict[str, None] = {}
    while len(found) < count:
        syllables = int(random.integers(2, 5))
        found["".join(random.choice(part) for _ in range(syllables) for part in _LETTERS)] = None
    return list(found)


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
