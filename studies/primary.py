"""Run the analysis plan (docs/studies/plan.md): rates on source data, the engagement gate, final runs and their tables.

    python -m studies.primary search --data DIR --out DIR [--only mil-nli,hma-rated] [--workers 15] [--seconds 500]
    python -m studies.primary choose --out DIR
    python -m studies.primary final --data DIR --out DIR
    python -m studies.primary table --out DIR

`search` trains every row at every rate of its grid; its runs have no test rows. `choose` takes the rate
with the best source-validation score per row and checks the engagement gate. `final` trains every row at its rate with
all seeds and scores the targets. Each finished run is one record below DIR/STAGE/COMPARISON; repeat a command to run
what is missing. `python -m studies.pack_results DIR` packs the records for results/primary, which the tables of
docs/studies/primary.md read.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.core.errors import BadInput
from holdfast.core.files import locked, write_text
from holdfast.record import PACKED, RunRecord, load
from studies.comparisons import COMPARISONS, Comparison

STAGES = ("search", "choose", "final", "table")
MARGIN = 1.2  # a job is started if this multiple of its expected time is left


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    stage: str
    comparison: str
    dataset: str
    episode: str  # empty: the only one of the plan
    row: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        return "_".join(filter(None, (self.dataset, self.episode, self.row, f"{self.rate:g}", str(self.seed))))

    def path(self, out: Path) -> Path:
        return out / self.stage / self.comparison / "records" / f"{self.name}.json"


def search_jobs(names: Sequence[str], comparisons: Mapping[str, Comparison], rates: Sequence[float]) -> list[Job]:
    """Return one job per row, rate, search episode and search seed; `rates` replace those of the grid."""
    return [
        Job("search", name, dataset, episode, row, rate, seed)
        for name in names
        for rate in rates or comparisons[name].rates
        for row in comparisons[name].rows
        for dataset in comparisons[name].datasets
        for episode in comparisons[name].search_episodes or comparisons[name].episodes
        for seed in range(comparisons[name].search_seeds)
    ]


def final_jobs(names: Sequence[str], comparisons: Mapping[str, Comparison], chosen: Mapping[str, Any]) -> list[Job]:
    """Return one job per seed, row and episode at the chosen rates; the first seed of all comparisons comes first."""
    missing = [name for name in names if name not in chosen]
    if missing:
        raise BadInput(
            f"no rates are chosen for {', '.join(missing)}: run search and choose, or leave them out with --only"
        )
    jobs = [
        Job("final", name, dataset, episode, row, float(chosen[name]["rows"][row]["rate"]), seed)
        for name in names
        for seed in range(comparisons[name].seeds)
        for row in comparisons[name].final_rows
        for dataset in comparisons[name].datasets
        for episode in comparisons[name].episodes
    ]
    return sorted(jobs, key=lambda job: job.seed)


def records_of(out: Path, stage: str, name: str) -> list[RunRecord]:
    """Return the records of a comparison, packed or not; empty without any."""
    folder = out / stage / name
    packed = folder.with_name(name + PACKED)
    return list(load(packed if packed.is_file() else folder))


class Runner:
    """Trains jobs in one process and keeps the data sets that it loaded."""

    def __init__(self, data: Path, out: Path, comparisons: Mapping[str, Comparison]) -> None:
        self.data, self.out, self.comparisons = data, out, comparisons
        self.workspaces: dict[tuple[str, str], Any] = {}

    def workspace(self, job: Job) -> Any:
        """Return the workspace of a data set; comparisons with the same loader share it."""
        from holdfast.train.workspace import Workspace, choose_device

        comparison = self.comparisons[job.comparison]
        key = (repr(comparison.datasets[job.dataset]), comparison.device)
        if key not in self.workspaces:
            labels = comparison.settings.get("task") != "masked"
            dataset = comparison.datasets[job.dataset](self.data).checked(labels=labels)
            self.workspaces[key] = Workspace(dataset, device=choose_device(comparison.device))
        return replace(self.workspaces[key], out=self.out / job.stage / job.comparison)

    def spec(self, job: Job) -> Any:
        """Return the spec of a job."""
        from holdfast.train.settings import make_spec

        comparison, workspace = self.comparisons[job.comparison], self.workspace(job)
        settings = {**comparison.settings, **comparison.rows[job.row], "lr": job.rate, "seed": job.seed}
        return make_spec(workspace.dataset, settings=settings, device=workspace.device)

    def episodes(self, job: Job) -> list[str]:
        """Return the names of the episodes of a job's plan."""
        return [episode.name for episode in self.workspace(job).episodes(self.spec(job))]

    def prepare(self, job: Job) -> tuple[Any, Any, Any]:
        """Return spec, episode and workspace; episodes of the search have no test rows."""
        from holdfast.train.resolve import check_episode

        spec, workspace = self.spec(job), self.workspace(job)
        episodes = [each for each in workspace.episodes(spec) if job.episode in ("", each.name)]
        if len(episodes) != 1:
            raise BadInput(f"{job.comparison} has {len(episodes)} episodes '{job.episode}': name one that its plan has")
        episode = episodes[0]
        check_episode(spec, episode)
        if job.stage == "search":
            episode = replace(episode, stages=tuple(replace(stage, test=()) for stage in episode.stages))
        return spec, episode, workspace

    def run(self, job: Job) -> None:
        """Train a job and write its record."""
        from holdfast.train.run import train

        record, _ = train(*self.prepare(job))
        write_text(job.path(self.out), record.text())


def expected_seconds(job: Job, comparisons: Mapping[str, Comparison], measured: Mapping[str, float]) -> float:
    """Return the duration of finished runs of the same row, else the estimate of the comparison."""
    return measured.get(f"{job.comparison}/{job.row}", comparisons[job.comparison].seconds.get(job.row, 0.0))


def measured_seconds(out: Path) -> dict[str, float]:
    """Return the mean duration per comparison and row, from the log."""
    durations: dict[str, list[float]] = {}
    log = out / "log.jsonl"
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else ():
        entry = json.loads(line)
        if "error" not in entry:
            durations.setdefault(entry["row"], []).append(entry["seconds"])
    return {row: sum(values) / len(values) for row, values in durations.items()}


def work(
    number: int, jobs: Sequence[Job], counter: Any, runner: Runner, end: float, measured: dict[str, float]
) -> None:
    """Take jobs until none is left; a job that would not end in time is left for the next call."""
    import torch

    torch.set_num_threads(1)
    os.chdir(runner.data)  # paths of encoders and word vectors are relative to the data
    while True:
        with counter.get_lock():
            index = counter.value
            counter.value += 1
        if index >= len(jobs):
            return
        job, start = jobs[index], time.time()
        row = f"{job.comparison}/{job.row}"
        if start + MARGIN * expected_seconds(job, runner.comparisons, measured) > end:
            continue
        entry: dict[str, Any] = {"row": row, "job": f"{job.stage} {job.name}", "worker": number}
        try:
            runner.run(job)
        except Exception as error:  # the other jobs continue
            entry["error"] = f"{type(error).__name__}: {error}"
        seconds = round(time.time() - start, 1)
        if "error" not in entry and start + seconds < end:
            measured[row] = max(seconds, measured.get(row, 0.0))
        with (runner.out / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps({**entry, "seconds": seconds}) + "\n")
        say(f"{seconds:7.1f} s  {job.comparison} {job.name}  {entry.get('error', '')}")


def run_jobs(jobs: Sequence[Job], runner: Runner, *, workers: int, seconds: float) -> int:
    """Run the jobs that have no record in worker processes; return the number of jobs that are left."""
    start, measured = time.time(), measured_seconds(runner.out)
    missing = [job for job in jobs if not job.path(runner.out).exists()]
    total = sum(expected_seconds(job, runner.comparisons, measured) for job in missing)
    say(f"{len(missing)} of {len(jobs)} jobs to run, {total:.0f} s, {total / workers:.0f} s with {workers} workers")
    if not missing:
        return 0
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    decode_images(missing, runner)
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    counter = context.Value("i", 0)
    workers = min(workers, len(missing))
    names = {job.comparison: None for job in missing}
    runner = type(runner)(runner.data, runner.out, {name: runner.comparisons[name] for name in names})
    processes = [
        context.Process(target=work, args=(number, missing, counter, runner, start + seconds, measured))
        for number in range(workers)
    ]
    with locked(runner.out):
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    dead = [process.exitcode for process in processes if process.exitcode]
    left = sum(not job.path(runner.out).exists() for job in missing)
    say(f"{len(missing) - left} jobs done, {left} left, {time.time() - start:.0f} s")
    if dead:
        say(f"{len(dead)} workers ended with exit codes {dead}: repeat the command with fewer --workers")
    return left


def decode_images(jobs: Sequence[Job], runner: Runner) -> None:
    """Decode images once into the cache, before several processes would."""
    here = Path.cwd()
    for job in {job.comparison: job for job in jobs}.values():
        if "encoder.size" in runner.comparisons[job.comparison].settings:
            from holdfast.train.assemble import assemble

            os.chdir(runner.data)
            on_cpu = {job.comparison: replace(runner.comparisons[job.comparison], device="cpu")}
            decoder = Runner(runner.data, runner.out, on_cpu)
            assemble(*decoder.prepare(replace(job, episode=job.episode or decoder.episodes(job)[0])))
            os.chdir(here)


def choose(names: Sequence[str], comparisons: Mapping[str, Comparison], out: Path) -> dict[str, Any]:
    """Write chosen.json: rate per row, and whether the mechanism of the system is engaged at its rate."""
    from studies.primary_tables import choice_of  # imports the report, which training does not need

    path = out / "chosen.json"
    chosen: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for name in names:
        records = records_of(out, "search", name)
        if not records:
            say(f"{name}: no records of the search")
            continue
        choice = choice_of(comparisons[name], records)
        chosen[name] = {key: value for key, value in choice.items() if key != "notes"}
        for row, entry in choice["rows"].items():
            scores = ", ".join(f"{rate} {score:.2f}" for rate, score in entry["scores"].items())
            say(f"{name} {row}: rate {entry['rate']:g} (source validation: {scores})")
        for note in choice["notes"]:
            say(f"{name}: {note}")
        state = "engaged" if choice["engaged"] else "NOT engaged"
        say(f"{name}: {comparisons[name].mechanism} {state}, {100 * choice['engagement']:.1f}% of predictions")
    write_text(path, json.dumps(chosen, indent=1, sort_keys=True) + "\n")
    return chosen


def say(line: str) -> None:
    """Write one line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def make_parser(module: str, about: str, stages: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser with the options of all studies that run jobs."""
    parser = argparse.ArgumentParser(prog=f"python -m studies.{module}", description=about)
    parser.add_argument("stage", choices=stages)
    parser.add_argument("--data", type=Path, help="folder with the data sets, and encoders in its folder models")
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--workers", type=int, default=1, help="processes that train at the same time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no job that would end later")
    return parser


def named(text: str, known: Mapping[str, Any], kind: str, parser: argparse.ArgumentParser) -> list[str]:
    """Return the names in a text, separated by commas, or all known ones if it is empty."""
    names = [name for name in text.split(",") if name] or list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"unknown {kind} {unknown[0]}: use {', '.join(known)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one stage."""
    parser = make_parser("primary", "Run the analysis plan.", STAGES)
    parser.add_argument("--only", default="", help="names of comparisons, separated by commas")
    parser.add_argument("--rates", default="", help="search these learning rates instead of the grid, to extend it")
    parser.add_argument("--tiny", action="store_true", help="few steps and examples, to test the pipeline")
    options = parser.parse_args(arguments)
    names = named(options.only, COMPARISONS, "comparison", parser)
    comparisons = {name: COMPARISONS[name].tiny() if options.tiny else COMPARISONS[name] for name in names}
    out = options.out.resolve()
    if options.stage == "choose":
        choose(names, comparisons, out)
        return 0
    path = out / "chosen.json"
    chosen = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if options.stage == "table":
        from studies.primary_tables import comparison_table, primary_table

        records = {name: records_of(out, "final", name) for name in names}
        for lines in (comparison_table(comparisons, records, chosen), primary_table(comparisons, records, chosen)):
            say("\n".join([*lines, ""]))
        return 0
    if options.data is None or not options.data.is_dir():
        parser.error(f"{options.stage} needs --data, a folder with the data sets")
    rates = [float(rate) for rate in options.rates.split(",") if rate]
    jobs = (
        search_jobs(names, comparisons, rates) if options.stage == "search" else final_jobs(names, comparisons, chosen)
    )
    out.mkdir(parents=True, exist_ok=True)
    runner = Runner(options.data.resolve(), out, comparisons)
    return int(run_jobs(jobs, runner, workers=options.workers, seconds=options.seconds) > 0)


if __name__ == "__main__":
    sys.exit(main())
