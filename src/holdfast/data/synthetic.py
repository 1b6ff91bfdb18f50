"""Synthetic data sets with a known shift between domains, for tests, the demo and null controls."""

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
_ONLY = {"vocabulary": ("text",), "size": ("graph",), "rotation": ("vector", "image", "graph")}
WORLDS = tuple((kind, shift) for kind in KINDS for shift in SHIFTS if kind in _ONLY.get(shift, KINDS))
_ROTATION = 40.0  # degrees between successive domains
_SIDE = 16  # pixels
_LETTERS = (list("bdfgklmnprstvz"), list("aeiou"))
_ALL = list(combinations(range(6), 2))
_STAR = [(0, i) for i in range(1, 6)]
# one motif per class, edges with the lower node first; all have six nodes, so the class does not determine the size
MOTIFS: tuple[list[tuple[int, int]], ...] = (
    _STAR,
    [(a, b) for a, b in _ALL if a < 3 <= b],  # complete bipartite, 3 + 3
    _ALL,
    [(0, 5), *((i, i + 1) for i in range(5))],  # ring
    [*_STAR, (1, 2), (2, 3), (3, 4), (4, 5), (1, 5)],  # wheel
    [(a, b) for a, b in _ALL if a < 2 <= b],  # complete bipartite, 2 + 4
    [(a, b) for a, b in _ALL if b != a + 3],  # octahedron
    [(0, 1), (0, 2), (1, 2), (2, 3), (2, 4), (3, 4), (4, 5)],  # two triangles and a tail
)
DEGREES = 8  # width of the one-hot degree features of nodes; the last one is for this degree and above


@dataclass(frozen=True, slots=True)
class _Domain:
    """The drawn labels of one domain, before its inputs are generated."""

    at: int
    y: np.ndarray  # (n,)
    cue: np.ndarray | None  # (n,) class that the spurious cue indicates
    angle: float
    classes: int
    noise: float


def world(
    kind: str = "vector", shift: str = "rotation", *,
    domains: int = 4, size: int = 200, classes: int = 2, seed: int = 0, noise: float = 1.0,
) -> Dataset:  # fmt: skip
    """Generate `size` examples per domain of one kind, with one shift between the domains.

    Shifts: `rotation` rotates the features by 40 degrees per domain; `spurious` adds a cue that agrees with the label
    except in the last domain; `vocabulary` replaces half of the class words in every domain; `label` moves the class
    proportions from the first to the last class; `size` grows graphs around the motif that is their class; `none`.
    """
    if (kind, shift) not in WORLDS:
        known = "; ".join(f"{k}: {', '.join(s for q, s in WORLDS if q == k)}" for k in KINDS)
        raise BadInput(f"there is no {kind} world with the shift '{shift}'; choose one of {known}")
    if domains < 1 or size < classes or not 2 <= classes <= 8 or noise < 0:
        values = f"domains={domains}, classes={classes}, size={size}, noise={noise}"
        raise BadInput(f"a world needs domains >= 1, 2 <= classes <= 8, size >= classes and noise >= 0, got {values}")
    rng = np.random.default_rng(derive(seed, "world", kind, shift))
    drawn = [_draw_domain(i, shift, domains, size, classes, noise, rng) for i in range(domains)]
    y = np.concatenate([d.y for d in drawn])
    raw: Raw
    if kind == "text":
        raw = Texts.of(_texts(drawn, rng, renew=shift == "vocabulary"))
    elif kind == "image":
        raw = Pixels(np.concatenate([_images(d, rng) for d in drawn]))
    elif shift == "size":
        raw = GraphList([motif_graph(int(label), d.at, rng, noise=noise) for d in drawn for label in d.y])
    elif kind == "graph":
        raw = GraphList(_graphs(np.concatenate([_vectors(d, rng) for d in drawn]), rng, noise))
    else:
        raw = Vectors(np.concatenate([_vectors(d, rng) for d in drawn]))
    names, domain = tuple(f"domain-{i}" for i in range(domains)), np.repeat(np.arange(domains), size)
    return Dataset(f"{kind}-{shift}", raw, y, tuple(map(str, range(classes))), domain, names)


def _draw_domain(
    at: int, shift: str, domains: int, size: int, classes: int, noise: float, rng: np.random.Generator
) -> _Domain:
    share = np.full(classes, 1 / classes)
    if shift == "label":
        share = 4.0 ** -np.arange(classes)
        share /= share.sum()
        progress = at / max(1, domains - 1)
        share = (1 - progress) * share + progress * share[::-1]
    # every class occurs at least once
    y = np.concatenate([np.arange(classes), rng.choice(classes, size - classes, p=share)])
    y = rng.permutation(y).astype(np.int64)
    cue = None
    if shift == "spurious":
        agreement = 0.1 if at == domains - 1 else 0.97 - 0.07 * (at % 2)
        other = (y + rng.integers(1, classes, size)) % classes
        cue = np.where(rng.random(size) < agreement, y, other)
    return _Domain(at, y, cue, _ROTATION * at if shift == "rotation" else 0.0, classes, noise)


def _circle(which: np.ndarray, classes: int, radius: float, degrees: np.ndarray | float = 0.0) -> np.ndarray:
    angle = which * (2 * np.pi / classes) + np.deg2rad(degrees)
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)  # (n, 2)


def _vectors(d: _Domain, rng: np.random.Generator) -> np.ndarray:
    """Return (n, 8): the class on a circle in the first two features, the cue on a larger one in the next two."""
    gap = np.sin(np.pi / d.classes)  # keeps neighbouring classes equally far apart for any number of classes
    x = d.noise * rng.standard_normal((len(d.y), 8))
    x[:, :2] += _circle(d.y, d.classes, (1.8 if d.cue is not None else 3.0) / gap, d.angle)
    if d.cue is not None:
        x[:, 2:4] += _circle(d.cue, d.classes, 4.0 / gap)
    return x.astype(np.float32)


def _images(d: _Domain, rng: np.random.Generator) -> np.ndarray:
    """Return uint8 (n, 3, 16, 16): a disc lit from the direction of the class plus rotation; the cue is its tint."""
    n = len(d.y)
    scatter = (100.0 if d.cue is not None else 60.0) / d.classes * d.noise  # degrees
    light = _circle(d.y, d.classes, 1.0, d.angle + scatter * rng.standard_normal(n))  # (n, 2)
    grid = (np.mgrid[:_SIDE, :_SIDE] - (_SIDE - 1) / 2) / (_SIDE / 2)  # (2, 16, 16)
    x = 128 + 50 * np.einsum("np,phw->nhw", light, grid * (np.hypot(*grid) < 1))[:, None]  # (n, 1, 16, 16)
    if d.cue is not None:
        angle = 2 * np.pi * (d.cue[:, None] / d.classes + np.arange(3) / 3)  # (n, 3)
        x = x + 40 * np.cos(angle)[:, :, None, None]
    x = x + 25 * d.noise * rng.standard_normal((n, 3, _SIDE, _SIDE))
    return x.round().clip(0, 255).astype(np.uint8)


def _graphs(vectors: np.ndarray, rng: np.random.Generator, noise: float) -> list[Graphs]:
    """Return rings of 5 to 9 nodes with three random chords; node features scatter around the example's vector."""
    graphs = []
    for vector in vectors:
        v = int(rng.integers(5, 10))
        nodes = vector + noise * rng.standard_normal((v, len(vector)))
        start = np.concatenate([np.arange(v), rng.integers(0, v, 3)])
        end = np.concatenate([(np.arange(v) + 1) % v, rng.integers(0, v, 3)])
        both = np.stack([np.concatenate([start, end]), np.concatenate([end, start])])
        graphs.append(Graphs.single(torch.from_numpy(nodes.astype(np.float32)), torch.from_numpy(both)))
    return graphs


def _texts(drawn: list[_Domain], rng: np.random.Generator, *, renew: bool) -> list[str]:
    """Return sentences of filler words, class words and cue words; `renew` replaces half of the class words."""
    classes = drawn[0].classes
    words = iter(_words(60 + 8 * classes * (2 + len(drawn)), rng))
    filler = np.array([next(words) for _ in range(60)])
    class_words, cues = (np.array([[next(words) for _ in range(8)] for _ in range(classes)]) for _ in range(2))
    sentences = []
    for d in drawn:
        vocabulary = class_words.copy()
        if renew and d.at:
            vocabulary[:, :4] = [[next(words) for _ in range(4)] for _ in range(classes)]
        for row, label in enumerate(d.y):
            sentence = list(rng.choice(filler, int(rng.integers(5, 10))))
            for _ in range(2 if d.cue is not None else 4):  # with some probability a word of another class
                slip = rng.random() < 0.05 * d.noise
                sentence.append(rng.choice(vocabulary[rng.integers(classes) if slip else label]))
            if d.cue is not None:
                sentence += list(rng.choice(cues[d.cue[row]], 4))
            sentences.append(" ".join(rng.permutation(sentence)))
    return sentences


def _words(count: int, rng: np.random.Generator) -> list[str]:
    """Return distinct random words of two to four syllables."""
    words: dict[str, None] = {}
    while len(words) < count:
        syllables = int(rng.integers(2, 5))
        words["".join(rng.choice(letters) for _ in range(syllables) for letters in _LETTERS)] = None
    return list(words)


def motif_graph(label: int, domain: int, rng: np.random.Generator, *, noise: float) -> Graphs:
    """Attach a class's motif to a random tree of 4 to 8 nodes, plus 12 per domain; add noise / 2 edges on average."""
    tree = int(rng.integers(4, 9)) + 12 * domain
    v = tree + 6
    edges = {(int(rng.integers(i)), i) for i in range(1, tree)}  # every node is attached to an earlier one
    edges |= {(tree + a, tree + b) for a, b in MOTIFS[label]}
    edges.add((int(rng.integers(tree)), tree + int(rng.integers(6))))
    for _ in range(int(rng.poisson(noise / 2))):
        a, b = rng.choice(v, 2, replace=False)
        edges.add((int(min(a, b)), int(max(a, b))))
    ends = torch.tensor(sorted(edges)).T  # (2, e)
    both = torch.cat([ends, ends.flip(0)], dim=1)
    degree = torch.bincount(both[0], minlength=v).clamp(max=DEGREES) - 1
    return Graphs.single(torch.nn.functional.one_hot(degree, DEGREES).float(), both)
