"""Likely label errors by confident learning (Northcutt et al., 2021) with predictions for left-out domains.

A linear classifier that was trained on all other domains predicts a domain, so that no label influences its own
prediction, and an error that a domain repeats systematically is not learned either. The
probabilities give the number of errors per pair of classes, and the rows with the largest differences are suspicious.

Where labels are ambiguous, correct ones contradict confident predictions too. Their number is expected by chance from
labels that are drawn from calibrated probabilities, and only rows in excess of it are reported.

Shapes: n rows, c classes, d width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.optimize import minimize
from scipy.sparse import issparse
from scipy.special import expit, softmax
from sklearn.linear_model import SGDClassifier

from holdfast.auditing.examples import Examples
from holdfast.auditing.headroom import labelled_rows
from holdfast.auditing.probe import stacked
from holdfast.auditing.shift import MIN_ROWS
from holdfast.core.errors import quiet_fit
from holdfast.core.seeds import derive
from holdfast.data.write import write_tables
from holdfast.report.sections import word_cell
from holdfast.report.terminal import Grid

MAX_ROWS = 20_000  # rows of all domains that are checked
MIN_SKILL = 0.3  # of the errors of the most frequent class that predictions must avoid to be trusted
PENALTY, EPOCHS = 5e-5, 5  # of the logistic regression
DENSE_PENALTY = 1e-3  # for features that are not sparse
SHOWN = 10  # rows of the table in the report
LONGEST = 1000  # characters of a text in the exported table
DRAWS = 10  # of labels, for the number of suspicious rows that is expected by chance
EXCESS = 2.0  # standard deviations above that number from which rows are reported
MAX_FLIPPED = 0.2  # share of wrong labels that a fit assumes at most


@dataclass(frozen=True)
class LabelError:
    """A suspicious label; rows are counted from 1."""

    row: int
    id: str
    domain: str
    label: str
    suggested: str
    p_label: float
    p_suggested: float

    @property
    def margin(self) -> float:
        """Difference of the probabilities, by which the rows are ranked."""
        return self.p_suggested - self.p_label


@dataclass(frozen=True)
class LabelErrors:
    """Suspicious labels, the most suspicious first, among `checked` rows; `skipped` is why none were searched.

    `suspicious` labels contradict a confident prediction, of which `expected` by chance; the excess is reported.
    """

    rows: list[LabelError]
    checked: int = 0
    accuracy: float | None = None  # of the predictions for left-out domains
    skipped: str = ""
    suspicious: int = 0
    expected: float = 0.0
    unsearched: tuple[str, ...] = ()  # domains that are predicted too badly


def confident_joint(probabilities: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return estimated numbers of rows (c, c) by label and true class.

    A row counts for the most probable (n, c) of the classes that reach their thresholds: the mean probability of the
    class among the rows that are labelled with it. The counts per label are scaled to the number of its rows.
    """
    classes = probabilities.shape[1]
    thresholds = np.full(classes, np.inf)
    for label in np.unique(y):
        thresholds[label] = probabilities[y == label, label].mean()
    confident = np.where(probabilities >= thresholds, probabilities, -1.0)
    counted = confident.max(axis=1) >= 0
    joint = np.zeros((classes, classes))
    np.add.at(joint, (y[counted], confident.argmax(axis=1)[counted]), 1.0)
    rows = np.bincount(y, minlength=classes)
    return joint * (rows / np.maximum(joint.sum(axis=1), 1.0))[:, None]


def confident_errors(probabilities: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the suggested class (n,) of suspicious labels, and -1 for all others.

    Per label and other class, the estimated number of errors is taken from the rows with the largest differences of
    the two probabilities; of several suggestions, that with the largest difference.
    """
    joint, suggested, best = confident_joint(probabilities, y), np.full(len(y), -1), np.zeros(len(y))
    for label, other in zip(*np.nonzero(joint), strict=True):
        rows = np.flatnonzero(y == label)
        margin = probabilities[rows, other] - probabilities[rows, label]
        order = np.argsort(-margin, kind="stable")[: round(float(joint[label, other]))]
        order = order[margin[order] > best[rows[order]]]  # never the label itself, whose margin is 0
        suggested[rows[order]], best[rows[order]] = other, margin[order]
    return suggested


def fit_label_noise(probabilities: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return the exponent that calibrates probabilities (n, c), and the share of labels that are wrong at random.

    The likelihood of a label is (1 - e) q + e (1 - q) / (c - 1), with q the calibrated probability of its class. Wrong
    labels are then explained by e, and do not make all probabilities seem too confident.
    """
    logs, classes, rows = np.log(probabilities.clip(1e-9)), probabilities.shape[1], np.arange(len(y))

    def loss(values: np.ndarray) -> float:
        q = softmax(logs * np.exp(np.clip(values[0], -5, 5)), axis=1)[rows, y]
        wrong = MAX_FLIPPED * expit(values[1])
        return -float(np.log((1 - wrong) * q + wrong * (1 - q) / (classes - 1) + 1e-12).mean())

    fits = [minimize(loss, [0.0, start], method="Nelder-Mead") for start in (-6.0, -2.0)]
    best = min(fits, key=lambda fit: fit.fun).x
    return float(np.exp(np.clip(best[0], -5, 5))), float(MAX_FLIPPED * expit(best[1]))


def expected_errors(probabilities: np.ndarray, y: np.ndarray, *, seed: int) -> tuple[float, float]:
    """Return mean and standard deviation of the number of suspicious labels if all labels are correct.

    Labels are drawn from the calibrated probabilities (n, c): an ambiguous row then often contradicts its prediction.
    """
    exponent, _ = fit_label_noise(probabilities, y)
    cumulative = softmax(np.log(probabilities.clip(1e-9)) * exponent, axis=1).cumsum(axis=1)[:, :-1]
    rng, counts = np.random.default_rng(derive(seed, "chance")), []
    for _ in range(DRAWS):
        drawn = (rng.random(len(y))[:, None] > cumulative).sum(axis=1)
        counts.append(int((confident_errors(probabilities, drawn) >= 0).sum()))
    return float(np.mean(counts)), float(np.std(counts, ddof=1))


def excess_errors(probabilities: np.ndarray, y: np.ndarray, *, seed: int) -> tuple[np.ndarray, int, float]:
    """Return the class (n,) suggested for labels beyond the expected number, and the suspicious and expected ones."""
    suggested = confident_errors(probabilities, y)
    rows = np.flatnonzero(suggested >= 0)
    if not len(rows):
        return suggested, 0, 0.0
    expected, spread = expected_errors(probabilities, y, seed=seed)
    excess = round(len(rows) - expected) if len(rows) > expected + EXCESS * spread else 0
    margin = probabilities[rows, suggested[rows]] - probabilities[rows, y[rows]]
    suggested[rows[np.argsort(-margin, kind="stable")[excess:]]] = -1
    return suggested, len(rows), expected


def find_label_errors(examples: Examples, rows: Mapping[str, np.ndarray], *, seed: int = 0) -> LabelErrors:
    """Search these rows per domain; classes only, and at least two domains with labels."""
    dataset = examples.dataset
    if dataset.targets is not None or len(dataset.classes) < 2:
        return LabelErrors([], skipped="label errors are searched for classes only")
    labelled = labelled_rows(examples, rows)
    if len(labelled) < 2:
        return LabelErrors([], skipped=f"label errors need two domains with at least {MIN_ROWS} labelled rows")
    share = -(-MAX_ROWS // len(labelled))
    chosen = {
        name: np.sort(np.random.default_rng(derive(seed, "labels", name)).permutation(each)[:share])
        for name, each in labelled.items()
    }
    features = {name: examples.phrases(each) for name, each in chosen.items()}
    if not issparse(next(iter(features.values()))):
        every = np.concatenate(list(features.values()))
        mean, scale = every.mean(axis=0), every.std(axis=0) + 1e-6
        features = {name: (x - mean) / scale for name, x in features.items()}
    y = {name: dataset.y[each] for name, each in chosen.items()}
    probabilities = {name: _unseen(name, features, y, len(dataset.classes), seed) for name in chosen}
    skills = {name: _skill(probabilities[name], y[name]) for name in chosen}
    checked = sum(map(len, y.values()))
    accuracy, majority, trusted = _skill(np.concatenate([*probabilities.values()]), np.concatenate([*y.values()]))
    if not trusted:
        reason = (
            f"label errors were not searched: linear predictions for left-out domains are right in {accuracy:.0%} of "
            f"the rows, too few compared with the most frequent label ({majority:.0%})"
        )
        return LabelErrors([], checked, accuracy, reason)
    searched = [name for name, (_, _, trusted) in skills.items() if trusted]
    errors, suspicious, expected = [], 0, 0.0
    for name in searched:
        suggested, count, by_chance = excess_errors(probabilities[name], y[name], seed=derive(seed, name))
        errors += _errors(examples, name, chosen[name], probabilities[name], suggested)
        suspicious, expected = suspicious + count, expected + by_chance
    ranked, unsearched = sorted(errors, key=lambda each: -each.margin), tuple(n for n in chosen if n not in searched)
    return LabelErrors(
        ranked, checked, accuracy, suspicious=suspicious, expected=round(expected, 1), unsearched=unsearched
    )


def _skill(probabilities: np.ndarray, y: np.ndarray) -> tuple[float, float, bool]:
    """Return accuracy, share of the most frequent label, and whether predictions avoid enough of its errors."""
    accuracy, majority = float((probabilities.argmax(axis=1) == y).mean()), float(np.bincount(y).max() / len(y))
    return accuracy, majority, accuracy - majority >= MIN_SKILL * (1 - majority)


def _unseen(name: str, features: Mapping[str, Any], y: Mapping[str, np.ndarray], classes: int, seed: int) -> np.ndarray:
    """Return the probabilities (n, c) for one domain from a logistic regression on all others."""
    others = [other for other in features if other != name]
    x, labels = stacked([(features[other], y[other]) for other in others])
    result = np.zeros((features[name].shape[0], classes))
    if len(np.unique(labels)) < 2:
        result[:, labels[0]] = 1.0
        return result
    model: Any = SGDClassifier(
        loss="log_loss", alpha=PENALTY if issparse(x) else DENSE_PENALTY, average=True, max_iter=EPOCHS, tol=None,  # pyright: ignore[reportArgumentType]
        random_state=derive(seed, "labels") % (1 << 32),
    )  # fmt: skip
    with quiet_fit():
        model.fit(x, labels)
    result[:, model.classes_] = model.predict_proba(features[name])
    return result


def _errors(
    examples: Examples, name: str, rows: np.ndarray, probabilities: np.ndarray, suggested: np.ndarray
) -> list[LabelError]:
    dataset = examples.dataset
    y, errors = dataset.y[rows], []
    for at in np.flatnonzero(suggested >= 0):
        row = int(rows[at])
        number = row + 1 if dataset.file_rows is None else int(dataset.file_rows[row])
        identifier = str(number if dataset.ids is None else dataset.ids[row])
        p = probabilities[at, [y[at], suggested[at]]].round(4).tolist()
        label, other = dataset.classes[y[at]], dataset.classes[suggested[at]]
        errors.append(LabelError(number, identifier, name, label, other, *p))
    return errors


def write_label_errors(path: Path, errors: Sequence[LabelError], examples: Examples) -> Path:
    """Write the ranked table: rank, row, id, domain, label, suggested label, probabilities and the example."""
    names = ("row", "id", "domain", "label", "suggested", "p_label", "p_suggested")
    columns: dict[str, Any] = {"rank": pa.array(range(1, len(errors) + 1), pa.int64())}
    types = {"row": pa.int64(), "p_label": pa.float64(), "p_suggested": pa.float64()}
    columns |= {n: pa.array([getattr(e, n) for e in errors], types.get(n, pa.string())) for n in names}
    texts = [examples.show(row, LONGEST) for row in _positions(errors, examples)]
    if any(texts):
        columns["example"] = pa.array(texts, pa.string())
    return write_tables(path, iter([pa.table(columns)]), escape_formulas=True)


def _positions(errors: Sequence[LabelError], examples: Examples) -> list[int]:
    """Return the positions of the rows in the data set; their numbers count skipped rows of the file as well."""
    numbers = examples.dataset.file_rows
    if numbers is None:
        return [error.row - 1 for error in errors]
    index = {int(number): position for position, number in enumerate(numbers)}
    return [index[error.row] for error in errors]


def error_advice(errors: LabelErrors, path: Path | None) -> list[str]:
    """Return a sentence on suspicious labels; empty without any beyond the expected number."""
    if not errors.rows:
        return []
    where = "--label-errors FILE writes them" if path is None else f"they are in {path}"
    counts = f"{len(errors.rows):,} of {errors.checked:,} labels ({len(errors.rows) / errors.checked:.1%})"
    chance = f"{errors.suspicious:,} contradict a confident prediction, {errors.expected:,.0f} are expected by chance"
    return [f"{counts} are suspicious ({chance}): check the first of the ranking; {where}."]


def label_error_grid(errors: LabelErrors, examples: Examples) -> Grid:
    """Show the most suspicious labels."""
    shown, unsearched = errors.rows[:SHOWN], ""
    if errors.unsearched:
        unsearched = f"Not searched, because their predictions are poor: {', '.join(errors.unsearched)}. "
    lines = []
    for error, position in zip(shown, _positions(shown, examples), strict=True):
        percent = f"{100 * error.p_label:.0f}, {100 * error.p_suggested:.0f}"
        cells = [error.domain, error.label, error.suggested, percent, examples.show(position)]
        lines.append((str(error.row), list(map(word_cell, cells))))
    about = (
        f"The {len(shown)} most suspicious of {len(errors.rows):,} suspicious labels among {errors.checked:,} rows: a "
        "linear classifier that was trained on the other domains predicts another label with confidence. It is right "
        f"in {100 * (errors.accuracy or 0):.0f}% of the rows, so some of these labels are correct: of "
        f"{errors.suspicious:,} such rows, {errors.expected:,.0f} are expected by chance and left out. "
        f"{unsearched}Rows are counted from 1; probabilities in percent are those of the label and of the "
        "suggestion."
    )
    names = ("row", "domain", "label", "suggested", "probabilities", "example")
    return Grid("Likely label errors", about, names, lines, words=True)
