"""Tables of docs/studies/monitoring.md, from results/monitoring; `python -m studies.monitoring FOLDER` measures again.

FOLDER has amazon_blitzer.parquet, mnli_pada.parquet, heart_disease_uci.csv and mnist.npz. Each domain in turn is new to
a model of the others: its accuracy is estimated without its labels, and compared with the truth. Undrifted batches are
rows of the training domains that the model has not seen; drifted ones contain a share of rows of the new domain.
Prediction sets are calibrated on the left-out domains of the model, and their coverage is measured on the new one.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from scipy.ndimage import rotate

from holdfast.data.dataset import Dataset, encode
from holdfast.data.raw import Vectors
from holdfast.data.readers.in_memory import read_frame
from holdfast.estimator import DomainClassifier
from holdfast.folders.format import SavedModel, load_model
from holdfast.monitor.check import Checker
from holdfast.monitor.observe import Observed, observe, targets_of
from holdfast.monitor.sequence import KEPT, SUFFIX, Past
from holdfast.monitor.watch import model_checker
from holdfast.prediction.outputs import calibrate, coordinates, predict_sets
from holdfast.uncertainty.conformal import METHODS
from studies.tables import RESULTS, header

ROWS, TEXTS = 1000, 600  # per domain
FUTURE = 0.4  # share of the rows of a training domain that the model never sees
BATCH, UNDRIFTED, REPEATS = 200, 25, 3  # rows, undrifted batches per target, and trials per size of drift
BEFORE = 5  # undrifted batches before a drift begins, or fewer if there are not enough rows
COVERAGE = 0.9
SHARES = (0.1, 0.25, 0.5)  # rows of the new domain in a drifted batch
COSTLY = 0.05  # accuracy
WAITED = 5  # batches until a trial ends without an alarm
ANGLES = (0, 15, 30, 45, 60)


def amazon(folder: Path) -> Dataset:
    """Reviews of four kinds of products."""
    frame = pd.read_parquet(folder / "amazon_blitzer.parquet", columns=["text", "label", "domain"])
    return read_frame(frame).limited(TEXTS)


def mnli(folder: Path) -> Dataset:
    """Pairs of sentences of five genres."""
    frame = pd.read_parquet(folder / "mnli_pada.parquet", columns=["premise", "hypothesis", "label", "domain"])
    return read_frame(frame).limited(TEXTS)


def heart(folder: Path) -> Dataset:
    """Patients of four hospitals; the label is whether they have a heart disease."""
    frame = pd.read_csv(folder / "heart_disease_uci.csv").drop(columns="id")
    frame["label"] = np.where(frame.pop("num") > 0, "ill", "well")
    return read_frame(frame.rename(columns={"hospital": "domain"}))


def digits(folder: Path) -> Dataset:
    """Digits, rotated by another angle per domain, 14 by 14 pixels."""
    with np.load(folder / "mnist.npz") as arrays:
        names = {name.lower(): name for name in arrays.files}
        x = arrays[next(names[n] for n in ("x_train", "train_images", "x") if n in names)]
        y = arrays[next(names[n] for n in ("y_train", "train_labels", "y") if n in names)]
    chosen = np.random.default_rng(0).permutation(len(x))[: ROWS * len(ANGLES)]
    images, angles = x[chosen].reshape(-1, 28, 28).astype(np.float32) / 255, np.repeat(ANGLES, ROWS)
    turned = np.stack(
        [rotate(image, angle, reshape=False, order=1) for image, angle in zip(images, angles, strict=True)]
    )
    small = turned.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(len(turned), -1)
    codes, classes = encode(y[chosen].tolist())
    domain, domains = encode([f"{angle} degrees" for angle in angles])
    return Dataset("rotated digits", Vectors(small), codes, classes, domain, domains)


SETS: dict[str, tuple[Callable[[Path], Dataset], dict[str, Any]]] = {
    "amazon": (amazon, {"method": "logistic", "encoder": "tfidf"}),
    "mnli": (mnli, {"method": "logistic", "encoder": "tfidf"}),
    "heart": (heart, {"method": "boosting", "encoder": "columns"}),
    "digits": (digits, {"method": "logistic", "encoder": "features"}),
}


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Hold out each domain of a data set in turn, and watch a model of the others."""
    read, options = SETS[name]
    dataset, start = read(folder), time.monotonic()
    targets = [_target(dataset, target, options, seed) for seed, target in enumerate(dataset.domains)]
    return {
        "data": name, "model": f"{options['encoder']} + {options['method']}", "rows": len(dataset), "batch": BATCH,
        "classes": len(dataset.classes),
        "command": f"python -m studies.monitoring FOLDER {name}", "seed": "index of the target", "targets": targets,
        "seconds": round(time.monotonic() - start), "machine": f"{platform.machine()}, CPU",
    }  # fmt: skip


def _target(dataset: Dataset, target: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    others = [name for name in dataset.domains if name != target]
    order = rng.permutation(np.concatenate([dataset.rows_of(name) for name in others]))
    cut = int(len(order) * FUTURE)
    codes = [dataset.domains.index(name) for name in others]
    train = dataset.subset(np.sort(order[cut:]))
    train = replace(train, domains=tuple(others), domain=np.searchsorted(codes, train.domain))
    with TemporaryDirectory() as draft:
        model = Path(draft) / "model"
        DomainClassifier(**options, left_out=True, cache=False, seed=seed).fit_dataset(train, folder=model)
        saved = load_model(model)
    assert saved.reference is not None
    checker = model_checker(saved, seed=seed)
    seen, y_seen = _observed(saved, dataset.subset(order[:cut]))
    new, y_new = _observed(saved, dataset.subset(dataset.rows_of(target)))
    check = checker.check(target, None, new, y_new)
    assert check.accuracy is not None
    right = [(o.answers.argmax(axis=1) == y).mean() for o, y in ((seen, y_seen), (new, y_new))]
    return {
        "target": target, "true": round(float(right[1]), 4), "known": round(float(right[0]), 4),
        "drifted": bool(check.drifted), **check.accuracy.json(), **_alarms(checker, seen, new, rng),
        "sets": _coverage(saved, dataset.subset(dataset.rows_of(target)), new, y_new),
    }  # fmt: skip


def _coverage(saved: SavedModel, dataset: Dataset, new: Observed, y: np.ndarray) -> dict[str, dict[str, float]]:
    """Return coverage and mean size of the prediction sets for the new domain, per method."""
    raw, results = saved.align(dataset).raw, {}
    features = coordinates(saved, raw)
    for method in METHODS:
        sets = calibrate(saved, COVERAGE, method, new=features)
        predicted = predict_sets(saved, sets, raw, new.answers.astype(np.float64))
        covered, size = float(predicted.covers(y).mean()), float(predicted.sizes.mean())
        results[method] = {"coverage": round(covered, 4), "size": round(size, 3)}
    return results


def _observed(saved: SavedModel, dataset: Dataset) -> tuple[Observed, np.ndarray]:
    assert saved.reference is not None
    return observe(saved, saved.align(dataset).raw, saved.reference), targets_of(saved, dataset)


def _alarms(checker: Checker, seen: Observed, new: Observed, rng: np.random.Generator) -> dict[str, Any]:
    """Count alarms of undrifted batches, and the batches until a drift is noticed."""
    size = min(BATCH, len(seen) // 2)
    length, false, single = len(seen) // size, 0, 0  # a sequence of undrifted batches has no row twice
    for start in range(0, UNDRIFTED, length):
        alarms = _sequence(checker, seen, new, [0] * min(length, UNDRIFTED - start), size, rng)
        false += sum(alarm for alarm, _ in alarms)
        single += sum(alone for _, alone in alarms)
    delays: dict[str, list[int | None]] = {}
    alone: dict[str, list[int | None]] = {}
    for share in SHARES:
        for _ in range(REPEATS):
            count, before = min(len(new), round(share * size)), min(BEFORE, length - 1)
            alarms = list(_sequence(checker, seen, new, [0] * before + [count] * WAITED, size, rng))[before:]
            for kind, values in ((delays, [a for a, _ in alarms]), (alone, [b for _, b in alarms])):
                kind.setdefault(str(share), []).append(values.index(True) + 1 if any(values) else None)
    return {
        "batch_rows": size, "undrifted": UNDRIFTED, "false_alarms": false, "false_alarms_single": single,
        "delays": delays, "delays_single": alone,
    }  # fmt: skip


def _sequence(
    checker: Checker, seen: Observed, new: Observed, counts: Sequence[int], size: int, rng: np.random.Generator
) -> Iterator[tuple[bool, bool]]:
    """Check consecutive batches with this number of new rows; yield whether there is an alarm, and without the others.

    Rows are drawn without replacement; when all were drawn, they are drawn again.
    """
    rows = [_shuffled(len(part), rng) for part in (seen, new)]
    past: list[Past] = []
    for count in counts:
        sizes = (size - count, count)
        drawn = [
            part.take(np.fromiter(islice(own, many), np.int64))
            for part, own, many in zip((seen, new), rows, sizes, strict=True)
            if many
        ]
        batch = Observed.cat(drawn)
        findings = checker.findings(batch, past=past)
        drifted = [finding.name for finding in findings if finding.drifted]
        past = [*past, {"summary": checker.sequence.summary(batch), "drifted": drifted}][-KEPT:]
        single = [f for f in findings if not f.name.endswith(SUFFIX)]
        split = 2 if len(single) < len(findings) else 1
        yield bool(drifted), any(finding.corrected / split < checker.level for finding in single)


def _shuffled(count: int, rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from rng.permutation(count)


def _results() -> list[dict[str, Any]]:
    paths = [RESULTS / "monitoring" / f"{name}.json" for name in SETS]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]


def accuracy() -> list[str]:
    """Mean absolute error of the estimates per data set, in points."""
    lines = header(
        "data", "model", "domains", "naive", "estimate", "confidence", "weighting", "difference", "ratio", "inside"
    )
    every: list[dict[str, Any]] = []
    for result in _results():
        own = result["targets"]
        every += own
        lines.append(f"| {result['data']} | {result['model']} | {len(own)} | {_errors(own)} |")
    return [*lines, f"| all | | {len(every)} | {_errors(every)} |"]


def _errors(targets: list[dict[str, Any]]) -> str:
    names = ("validation", "estimate", "confidence", "weighting", "difference")
    errors = {name: fmean(abs(each[name] - each["true"]) for each in targets) for name in names}
    inside = sum(each["low"] is not None and each["low"] <= each["true"] <= each["high"] for each in targets)
    ratio = errors["estimate"] / errors["validation"]
    return " | ".join([*(f"{100 * errors[name]:.1f}" for name in names), f"{ratio:.2f}", f"{inside} of {len(targets)}"])


def domains() -> list[str]:
    """Estimated and true accuracy per new domain."""
    lines = header("data", "new domain", "validation", "estimate", "interval", "true", "drift noticed")
    for result in _results():
        for each in result["targets"]:
            ends = "none" if each["low"] is None else f"{each['low']:.3f} to {each['high']:.3f}"
            values = f"{each['validation']:.3f} | {each['estimate']:.3f} | {ends} | {each['true']:.3f}"
            noticed = "yes" if each["drifted"] else "no"
            lines.append(f"| {result['data']} | {each['target']} | {values} | {noticed} |")
    return lines


def alarms() -> list[str]:
    """False alarms per 100 undrifted batches, and the delay until drift is noticed."""
    shares = [f"{float(share):.0%} of rows" for share in map(str, SHARES)]
    names = ("data", "rows per batch", "undrifted batches", "false alarms per 100", *shares, "costly, noticed")
    lines = header(*names, "costly, single batches")
    every: list[dict[str, Any]] = []
    for result in _results():
        own = result["targets"]
        every += own
        lines.append(f"| {result['data']} | {own[0]['batch_rows']} | {_alarm_cells(own)} |")
    return [*lines, f"| all | | {_alarm_cells(every)} |"]


def _alarm_cells(targets: list[dict[str, Any]]) -> str:
    batches, false = (sum(each[key] for each in targets) for key in ("undrifted", "false_alarms"))
    cells = [str(batches), f"{100 * false / batches:.1f}"]
    for share in map(str, SHARES):
        delays = [delay for each in targets for delay in each["delays"][share]]
        within = sum(delay is not None and delay <= 3 for delay in delays)
        median = float(np.median([WAITED + 1 if d is None else d for d in delays]))
        shown = f"{median:g}" if median <= WAITED else f"over {WAITED}"
        cells.append(f"{shown} ({within} of {len(delays)} within 3)")
    return " | ".join([*cells, _costly(targets, "delays"), _costly(targets, "delays_single")])


def _costly(targets: list[dict[str, Any]], kind: str) -> str:
    """Return how many trials with a drift that costs at least five points were noticed within three batches."""
    delays = [
        delay
        for each in targets
        for share in map(str, SHARES)
        if float(share) * (each["known"] - each["true"]) >= COSTLY
        for delay in each[kind][share]
    ]
    return f"{sum(delay is not None and delay <= 3 for delay in delays)} of {len(delays)}" if delays else "none"


def coverage() -> list[str]:
    """Coverage of prediction sets on new domains per data set, in percent, and the mean number of classes."""
    lines = header("data", "domains", "classes", *METHODS, "sizes", "lowest coverage of split")
    every: list[dict[str, Any]] = []
    for result in _results():
        own = result["targets"]
        every += own
        lowest = min(own, key=lambda each: each["sets"]["split"]["coverage"])
        cells = [_mean_coverage(own, method) for method in METHODS]
        sizes = ", ".join(f"{fmean(each['sets'][method]['size'] for each in own):.1f}" for method in METHODS)
        worst = f"{lowest['target']}, {100 * lowest['sets']['split']['coverage']:.0f}"
        lines.append(
            f"| {result['data']} | {len(own)} | {result['classes']} | {' | '.join(cells)} | {sizes} | {worst} |"
        )
    cells = [_mean_coverage(every, method) for method in METHODS]
    return [*lines, f"| all | {len(every)} | | {' | '.join(cells)} | | |"]


def _mean_coverage(targets: list[dict[str, Any]], method: str) -> str:
    """Return the mean coverage, and the mean distance of a domain from the nominal one."""
    values = [each["sets"][method]["coverage"] for each in targets]
    return f"{100 * fmean(values):.1f} (off by {100 * fmean(abs(v - COVERAGE) for v in values):.1f})"


def set_domains() -> list[str]:
    """Coverage and mean size of prediction sets per new domain."""
    lines = header("data", "new domain", *METHODS)
    for result in _results():
        for each in result["targets"]:
            cells = [f"{100 * s['coverage']:.1f} ({s['size']:.1f} classes)" for s in each["sets"].values()]
            lines.append(f"| {result['data']} | {each['target']} | {' | '.join(cells)} |")
    return lines


TABLES = {
    "accuracy": accuracy, "domains": domains, "alarms": alarms, "coverage": coverage, "set-domains": set_domains,
}  # fmt: skip


if __name__ == "__main__":
    (RESULTS / "monitoring").mkdir(exist_ok=True)
    for chosen in sys.argv[2:] or SETS:
        text = json.dumps(measure(chosen, Path(sys.argv[1])), indent=1) + "\n"
        (RESULTS / "monitoring" / f"{chosen}.json").write_text(text, encoding="utf-8")
