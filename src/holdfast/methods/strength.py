"""Choice of the strength of a penalty on held-out domains, with a random split of all rows as its prior.

Shapes: n examples, f splits, s strengths, k problems (f s), c outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from holdfast.methods.solver import Binary, Loss, Multinomial, Space, Squared, solve

FOLDS = 5  # of domains, at most
MINORITY = 0.1  # of the rows of a fold that do not have its most frequent class, at least, relative to all rows
PRIOR = 0.25  # weight of the random split
RARE = 0.2  # of the mean size of a class, below which it counts less than other classes
TOLERANCE, ITERATIONS = 1e-3, 30
MARGIN = 0.003  # gain of the criterion for which a weaker penalty is chosen, at least
TEMPERATURES = 2.0 ** np.arange(-3, 2)
ELEMENTS = 20_000_000  # outputs (n k c) of the problems that are solved at once, at most


def stratified_sample(domain: np.ndarray, y: np.ndarray, most: int) -> np.ndarray:
    """Return the sorted indices of at most `most` rows with the shares of domains and classes of all rows."""
    if len(y) <= most:
        return np.arange(len(y))
    order = np.lexsort((y, domain))
    return np.sort(order[np.linspace(0, len(y) - 1, most).astype(int)])


def domain_folds(domain: np.ndarray, y: np.ndarray, most: int = FOLDS) -> np.ndarray:
    """Return the fold (n,) of each row: domains in balanced folds, each with at least two classes.

    There are at most `most` folds. If even two folds of domains lack a class, or if there is one
    domain, rows of every domain and class are spread over three folds.
    """
    names, codes = np.unique(domain, return_inverse=True)
    classes = np.unique(y, return_inverse=True)[1] if y.dtype.kind == "i" else np.zeros(len(y), dtype=int)
    counts = np.zeros((len(names), int(classes.max(initial=0)) + 1))
    np.add.at(counts, (codes, classes), 1)
    needed = MINORITY * _minority(counts.sum(0)) if counts.shape[1] > 1 else 0.0
    for folds in range(min(most, len(names)), 1, -1):
        fold = _balanced(counts, folds)
        if all(_minority(counts[fold == i].sum(0)) >= needed for i in range(folds)):
            return fold[codes]
    order, fold = np.lexsort((classes, codes)), np.empty(len(y), dtype=int)
    fold[order] = np.arange(len(y)) % 3
    return fold


def _minority(counts: np.ndarray) -> float:
    """Return the share of the rows that do not have the most frequent class."""
    return 1 - counts.max() / max(1, counts.sum())


def _balanced(counts: np.ndarray, folds: int) -> np.ndarray:
    """Return a fold per domain: the largest domains first, each to the fold that has fewest rows of its classes."""
    fold, total = np.zeros(len(counts), dtype=int), np.zeros((folds, counts.shape[1]))
    for i in np.argsort(-counts.sum(1), kind="stable"):
        fold[i] = int((total @ counts[i] + SMALL * total.sum(1)).argmin())
        total[fold[i]] += counts[i]
    return fold


SMALL = 1e-6  # breaks ties of folds without rows of the same classes


def splits_of(domain: np.ndarray, y: np.ndarray, folds: int = FOLDS) -> np.ndarray:
    """Return the held-out rows (n, f) of all splits: a fold of domains each, and as the last a third of all rows."""
    fold = domain_folds(domain, y, folds)
    third = np.empty(len(y), dtype=bool)
    third[np.lexsort((y, domain))] = np.arange(len(y)) % 3 == 1
    return np.column_stack([fold[:, None] == np.arange(fold.max() + 1), third])


def loss_of(y: np.ndarray, classes: int) -> Loss:
    """Return the loss of classes 0 to `classes` - 1, or of numbers if `classes` is 0."""
    targets = torch.from_numpy(y)
    if not classes:
        return Squared(targets.float()[:, None, None])
    if classes == 2:
        return Binary(targets.float()[:, None, None])
    return Multinomial(torch.nn.functional.one_hot(targets.long(), classes).float()[:, None])


def first_bias(y: np.ndarray, classes: int, rows: np.ndarray) -> np.ndarray:
    """Return the best biases (f, c) without features for the rows (n, f) that each split is trained on."""
    if not classes:
        return (rows * y[:, None]).sum(0)[:, None] / np.maximum(rows.sum(0), 1)[:, None]
    counts = np.stack([(rows[y == label]).sum(0) for label in range(classes)], axis=1) + 0.1
    logs = np.log(counts / counts.sum(1, keepdims=True))
    return logs[:, 1:] - logs[:, :1] if classes == 2 else logs


def scores(space: Space, y: np.ndarray, classes: int, held_out: np.ndarray, strengths: Sequence[float]) -> np.ndarray:
    """Return the criterion (s,) per strength, higher is better; `held_out` (n, f) are the rows of the splits."""
    train = ~held_out
    loss, bias = loss_of(y, classes), first_bias(y, classes, train)
    splits, columns = bias.shape
    at_once = max(1, ELEMENTS // (len(y) * splits * columns))
    outputs: list[np.ndarray] = []
    for start in range(0, len(strengths), at_once):
        some = torch.tensor(strengths[start : start + at_once], dtype=torch.float32)
        rows, begin = (torch.from_numpy(array).float() for array in (train, bias))
        solution = solve(
            space, loss, some.repeat_interleave(splits), begin.repeat(len(some), 1), rows=rows.repeat(1, len(some)),
            tolerance=TOLERANCE, iterations=ITERATIONS,
        )  # fmt: skip
        z = solution.outputs.view(len(y), len(some), splits, columns)
        outputs.extend(z.double().numpy().swapaxes(0, 1))
    return np.asarray([_score(z, y, classes, held_out) for z in outputs])


def _score(z: np.ndarray, y: np.ndarray, classes: int, held_out: np.ndarray) -> float:
    """Return the criterion of outputs (n, f, c): the mean over the domains, shrunk towards that of the random split.

    For classes it is the log-likelihood of all held-out rows with the best temperature, in which classes have equal
    weights; for numbers it is minus the squared error.
    """
    measure: Callable[..., float] = _likelihood if classes else _squared
    rows, split = np.nonzero(held_out[:, :-1])
    domains = measure(z[rows, split], y[rows])
    random = np.flatnonzero(held_out[:, -1])
    return (1 - PRIOR) * domains + PRIOR * measure(z[random, -1], y[random])


def _squared(z: np.ndarray, y: np.ndarray) -> float:
    return -float(((z[:, 0] - y) ** 2).mean())


def _likelihood(z: np.ndarray, y: np.ndarray) -> float:
    if z.shape[1] == 1:
        z = np.concatenate([-z / 2, z / 2], axis=1)
    counts = np.bincount(y, minlength=z.shape[1])
    floor = RARE * len(y) / max(1, np.count_nonzero(counts))
    weight = 1 / np.maximum(counts, floor)[y]
    z = z - z.max(axis=1, keepdims=True)
    right, best = z[np.arange(len(y)), y], -np.inf
    for temperature in TEMPERATURES:
        log_p = temperature * right - np.log(np.exp(temperature * z).sum(axis=1))
        best = max(best, float((weight * log_p).sum() / weight.sum()))
    return best


def best_strength(score: Callable[[Sequence[float]], np.ndarray], strengths: Sequence[float]) -> tuple[float, float]:
    """Return the smallest strength with almost the best criterion, and the criterion.

    Strengths on the far side of a worse one are not tried.
    """
    ordered = sorted(strengths)
    first, last = (1, len(ordered) - 1) if len(ordered) > 3 else (0, len(ordered))
    values = dict(zip(ordered[first:last], score(ordered[first:last]), strict=True))
    while True:
        best = min(strength for strength in values if values[strength] >= max(values.values()) - MARGIN)
        if first > 0 and best == ordered[first]:
            first -= 1
            values[ordered[first]] = float(score([ordered[first]])[0])
        elif last < len(ordered) and best == ordered[last - 1]:
            values[ordered[last]] = float(score([ordered[last]])[0])
            last += 1
        else:
            return best, float(values[best])
