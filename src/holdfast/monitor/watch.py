"""Watch a deployed model: check new batches for drift, estimate the accuracy, raise alerts, and keep a history."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.core.files import file_digest
from holdfast.data.dataset import Dataset
from holdfast.data.write import check_not_input
from holdfast.folders.format import SavedModel, load_model
from holdfast.folders.shared import WEIGHTS
from holdfast.folders.versions import current_folder
from holdfast.monitor.batches import Batch, read_batches, read_labels, with_labels
from holdfast.monitor.check import LEVEL, BatchCheck, Checker
from holdfast.monitor.drift import Finding
from holdfast.monitor.log import is_log, read_log
from holdfast.monitor.observe import Observed, build_reference, check_watchable, observe
from holdfast.monitor.page import batch_grid, example_grid, finding_grid, timeline
from holdfast.monitor.sequence import SUFFIX, past_batches
from holdfast.monitor.state import Entry, add_entries, entry_of, first_drifted, read_history
from holdfast.report.page import write_watch
from holdfast.report.terminal import Grid
from holdfast.stats.formatting import listed, shortened
from holdfast.train.workspace import choose_device

CONDITION = re.compile(r"accuracy\s*<\s*(0?\.\d+|0|1|1\.0+)")
COSTLY = 0.02  # accuracy
MAX_CHANGES = 3  # named in one sentence
SHARES = ("missing values of", "new categories of", "foreign rows", "new vocabulary")
SHOWN_TEXT = 120  # characters of an input in the report
NO_INTERVAL = (
    "the accuracy of a new domain is not estimated from left-out domains, because the model folder has none: choose "
    "the model with `holdfast compare`, or fit it with --left-out"
)


@dataclass(frozen=True)
class Watch:
    """Result of watching: one check per batch and domain, alerts, and whether a condition of `fail_on` holds."""

    model: str
    checks: list[BatchCheck]
    alerts: list[str]
    failed: bool
    history: list[Entry]
    grids: list[Grid]
    notes: tuple[str, ...]
    report: Path | None

    def json(self) -> dict[str, Any]:
        """Return everything except the tables and the history."""
        return {
            "model": self.model, "batches": [check.json() for check in self.checks], "alerts": self.alerts,
            "failed": self.failed, "notes": list(self.notes), "report": self.report and str(self.report),
        }  # fmt: skip


def watch(
    model: str | Path,
    data: str | Path | Dataset,
    *,
    by: str | None = None,
    rows: int | None = None,
    labels: str | Path | None = None,
    reference: str | Path | Dataset | None = None,
    fail_on: Sequence[str] = (),
    level: float = LEVEL,
    out: str | Path | None = None,
    state: str | Path | None = None,
    keep: bool = True,
    show_inputs: bool = False,
    columns: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    device: str = "auto",
    seed: int = 0,
) -> Watch:
    """Check batches of new examples against the held-out examples of a model.

    Args:
        model: a model folder.
        data: new examples with or without labels, a folder of tables (one batch each), or the log of a server.
        by: column whose values are the batches.
        rows: number of consecutive rows per batch.
        labels: table of ids and labels that arrived later.
        reference: examples to compare with, in place of those of the model folder.
        fail_on: conditions `drift` and `accuracy<NUMBER`, for `failed`.
        level: probability of a false alarm per batch.
        out: HTML report to write.
        state: folder of the history; by default the model folder.
        keep: add the results to the history.
        show_inputs: show the texts of drifted examples in the report.
        columns: role to column name.
        skip_bad: leave rows of a table with bad cells out.
        device: auto, cpu or cuda.
        seed: seed of permutations and samples.
    """
    folder, target = Path(model), choose_device(device)
    saved = load_model(folder)
    if out is not None:
        check_not_input("--out", Path(out), data)
    if not 0 < level < 1:
        raise BadInput(f"--level must be a probability between 0 and 1; got {level:g}")
    conditions, notes = parse_conditions(fail_on, predicts=saved.predicts), []
    if reference is not None and saved.predicts:
        own = saved.read(reference, columns=columns, need=(), skip_bad=skip_bad)
        saved = replace(saved, reference=build_reference(saved, own, device=target, seed=seed))
    known = check_watchable(saved)
    if saved.predicts == "classes" and saved.left_out is None:
        notes.append(NO_INTERVAL)
    checker = model_checker(saved, level=level, seed=seed)
    version = model_version(folder)
    place = folder if state is None else Path(state)
    history = read_history(place, version)
    if is_log(data):
        if labels is not None or by is not None:
            raise BadInput(f"{data} is the log of a server, which has no ids and no columns: remove --labels and --by")
        sources = [(name, "log", each) for name, each in read_log(Path(str(data)), known, rows=rows)]
    else:
        batches, read_notes = read_batches(saved, data, by=by, rows=rows, columns=columns, skip_bad=skip_bad)
        notes += read_notes
        if labels is not None:
            batches, label_notes = with_labels(batches, read_labels(Path(labels), columns=columns), saved)
            notes += label_notes
        sources = [(each.name, each.dataset.raw.digest(np.arange(len(each.ids)))[:16], each) for each in batches]
    present = {(digest, name) for name, digest, _ in sources}
    history = [entry for entry in history if (entry["data"], entry["batch"]) not in present]  # these are checked again
    checks, entries = [], []
    for name, digest, source in sources:
        if isinstance(source, Observed):
            results = [checker.check(name, None, source, past=past_batches(history, None))]
        else:
            observed = observe(saved, source.dataset.raw, known, device=target)
            results = _checks(checker, source, observed, history, show_inputs=show_inputs)
        for check in results:
            entry = entry_of(check.json(), check.summary, model=version, data=digest)
            history.append(entry)
            entry["since"] = first_drifted(history, check.domain)
            checks.append(replace(check, since=entry["since"]))
            entries.append(entry)
    if keep:
        add_entries(place, entries)
    place_of_data = data.name if isinstance(data, Dataset) else str(data)
    alerts = [text for check in checks if (text := alert(check, model=str(model), data=place_of_data))]
    failed = any(meets(check, condition) for condition in conditions for check in checks)
    grids = [batch_grid(checks)]
    grids += [finding_grid(check) for check in checks if check.drifted][-3:]
    latest = next((check for check in reversed(checks) if check.drifted and check.examples), None)
    grids += [] if latest is None else [example_grid(latest)]
    report = None if out is None else Path(out)
    if report is not None:
        title = f"Holdfast: watch of {folder.resolve().name}"
        write_watch(report, title=title, headline=headline(checks), alerts=alerts, grids=grids,
                    figures=timeline(history), notes=notes)  # fmt: skip
    return Watch(str(model), checks, alerts, failed, history, grids, tuple(notes), report)


def headline(checks: Sequence[BatchCheck]) -> str:
    """Summarise all checks in one sentence."""
    drifted = sum(bool(check.drifted) for check in checks)
    tested = sum(bool(check.findings) for check in checks)
    return f"Drift in {drifted} of {tested} tested batches." if tested else "No batch has enough examples to be tested."


def _checks(
    checker: Checker, batch: Batch, observed: Observed, history: Sequence[Entry], *, show_inputs: bool
) -> list[BatchCheck]:
    """Check a batch as a whole and each of its domains."""
    groups: list[tuple[str | None, np.ndarray]] = list(batch.domains.items())
    if len(groups) != 1:
        groups.insert(0, (None, np.arange(len(observed))))
    checks = []
    for domain, rows in groups:
        past = past_batches(history, domain)
        check = checker.check(batch.name, domain, observed.take(rows), batch.y[rows], groups=len(groups), past=past)
        examples = [_named(example, batch, rows, show_inputs) for example in check.examples]
        checks.append(replace(check, examples=examples))
    return checks


def _named(example: dict[str, Any], batch: Batch, rows: np.ndarray, show_inputs: bool) -> dict[str, Any]:
    """Replace the position of an example by its id, and add its text if requested."""
    position = int(rows[example.pop("row")])
    shown = {"input": _shown(batch.dataset, position)} if show_inputs else {}
    return {"id": batch.ids[position], **example, **shown}


def _shown(dataset: Dataset, row: int) -> str:
    files = dataset.raw.files()
    if files is not None:
        return str(files[row])
    value = dataset.raw.take(np.asarray([row]))
    first = value[0] if isinstance(value, list) else ""
    text = " / ".join(first) if isinstance(first, tuple) else first if isinstance(first, str) else ""
    return shortened(text, SHOWN_TEXT)


def model_version(folder: Path) -> str:
    """Return what distinguishes the weights of this version of a model from others."""
    return file_digest(current_folder(folder) / WEIGHTS)[:16]


def model_checker(saved: SavedModel, *, level: float = LEVEL, seed: int = 0, brief: bool = False) -> Checker:
    """Return the checker of a loaded model with its own reference."""
    return Checker(check_watchable(saved), saved.predicts, saved.classes, saved.left_out, level, seed, brief)


def parse_conditions(texts: Sequence[str], *, predicts: str) -> list[float | None]:
    """Return the threshold of each `accuracy<0.8`, and None for `drift`."""
    conditions = []
    for text in texts:
        match = CONDITION.fullmatch(text.strip())
        if text.strip() == "drift":
            conditions.append(None)
        elif match is None:
            raise BadInput(f"--fail-on takes drift, or accuracy<NUMBER with a number from 0 to 1; got '{text}'")
        elif predicts != "classes":
            raise BadInput("--fail-on accuracy needs a model that predicts one class per example: use --fail-on drift")
        else:
            conditions.append(float(match[1]))
    return conditions


def meets(check: BatchCheck, threshold: float | None) -> bool:
    """Whether a batch drifted or, with a threshold, its accuracy is lower: the true one, or else the estimate."""
    if threshold is None:
        return bool(check.drifted)
    return check.best_accuracy is not None and check.best_accuracy < threshold


def alert(check: BatchCheck, *, model: str, data: str) -> str:
    """Return the alert of a batch; empty if nothing drifted."""
    if not check.drifted:
        return ""
    changes = listed(list(map(_change, check.drifted)), most=MAX_CHANGES)
    since = f", since {check.since}" if check.since and check.since != check.batch else ""
    return f"{check.name}: drift in {changes}{since}; {_cost(check)}; {_advice(check, model, data)}"


def _change(finding: Finding) -> str:
    p = f"p {finding.corrected:.1g}"
    if finding.value is None or finding.expected is None:
        return f"{finding.name} ({p})"
    if finding.name.startswith(SHARES):
        return f"{finding.name} ({finding.value:.1%} instead of {finding.expected:.1%}, {p})"
    return f"{finding.name} (mean {finding.value:.3g} instead of {finding.expected:.3g}, {p})"


def _cost(check: BatchCheck) -> str:
    own = check.accuracy
    if own is None:
        return "its cost is not known without labels"
    if check.true is not None:
        return f"accuracy is {check.true:.3f} on {check.labelled} labelled examples, {own.validation:.3f} before"
    return f"accuracy is probably {own.text}, {own.validation:.3f} before"


def _advice(check: BatchCheck, model: str, data: str) -> str:
    names = [finding.name.removesuffix(f" {SUFFIX}") for finding in check.drifted]
    pipeline = [name for name in names if name.startswith("missing values of")]
    if pipeline:
        return f"check where the {pipeline[0]} come from"
    if set(names) <= {"predictions", "confidence"} and check.shift is not None and not check.shift.refused:
        return f"correct the class mix with `holdfast fit --unlabelled {data}`, or label some rows to confirm it"
    own, value = check.accuracy, check.best_accuracy
    if own is not None and value is not None and value > own.validation - COSTLY:
        return "no loss is expected: watch the next batches and label some rows to confirm it"
    return f"label rows (`holdfast label {model} {data}`), then run `holdfast adapt` with them or train again"
