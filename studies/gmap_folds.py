"""Domain models and secondary comparisons of G-MAP: masked words, and length of the domain pretraining.

    python -m studies.gmap_folds pretrain --data DIR --out DIR [--encoder minilm] [--workers 6]
    python -m studies.primary search|choose|final --only gmap-acl-arc,gmap-hyperpartisan ...
    python -m studies.gmap_folds dose --data DIR --out DIR [--workers 15]
    python -m studies.gmap_folds masked --data DIR --out DIR [--workers 15]

`pretrain` writes the domain models to the folder `models` of the data and their records to DIR/pretraining. The
comparisons `gmap-...` of `studies.primary` use these models. `dose` trains the rows of these comparisons from domain
models with fewer steps of pretraining, at the rates that `studies.primary choose` wrote. `masked` continues the
pretraining of the domain models with different memories; the score is the loss per masked word on held-out segments.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.core.files import write_text
from studies.comparisons import COMPARISONS, Comparison
from studies.gmap_data import TASKS, corpus
from studies.primary import Job, Runner, run_jobs, say

STAGES = ("pretrain", "dose", "masked")
LENGTHS = (150, 500, 1500)  # steps of domain pretraining; the last one is that of the primary comparison
ENCODERS = {"minilm": "minilm", "mpnet": "models/mpnet"}  # name -> general model, and start of the domain models
RATES = {"minilm": 2e-4, "mpnet": 5e-5}  # of pretraining, and of its continuation with a memory
SHORT = {"computer science": "cs", "news": "news"}
DOSE_SEEDS = 5  # the folds of one partition
MASKED_SEEDS = 3
MEMORIES: Mapping[str, Mapping[str, Any]] = {
    "general": {},
    "own-copy": {"encoder.memory": "own"},
    "random": {"encoder.memory": "random"},
    "none": {"encoder.strategy": "none"},
}


def domain_model(encoder: str, name: str, steps: int) -> str:
    """Return the folder of a domain model, relative to the data; the general model itself for 0 steps."""
    return f"models/{encoder}-{SHORT[name]}-{steps}" if steps else ENCODERS[encoder]


def pretrain_model(encoder: str, name: str, steps: int, data: Path, out: Path, tiny: bool) -> None:
    """Write one domain model and its record; a finished one is kept."""
    from holdfast import pretrain

    folder = data / domain_model(encoder, name, steps)
    record = out / "pretraining" / f"gmap-{encoder}" / "records" / f"{folder.name}.json"
    if record.exists() and (folder / "config.json").exists():
        return
    texts = corpus(name, data)
    texts = texts.subset(np.arange(40)) if tiny else texts  # rows of all splits
    start = encoder if encoder == "minilm" else str(data / ENCODERS[encoder])
    size: dict[str, Any] = (
        {"steps": 2, "batch": 2, "length": 16} if tiny else {"steps": steps, "batch": 128, "length": 128}
    )
    done = pretrain(texts, encoder=start, out=folder, lr=RATES[encoder], **size)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    write_text(record, done.record.text())
    say(f"{folder.name}: {done.before} -> {done.after}, {done.record.cost['seconds']:.0f} s")


def pretrain_all(encoder: str, data: Path, out: Path, *, workers: int, tiny: bool) -> int:
    """Train all domain models, the longest first; return the number of those that failed."""
    tasks = [(encoder, name, steps, data, out, tiny) for steps in sorted(LENGTHS, reverse=True) for name in TASKS]
    context = multiprocessing.get_context("spawn")
    with context.Pool(min(workers, len(tasks)), maxtasksperchild=1) as pool:
        outcomes = [pool.apply_async(pretrain_model, task) for task in tasks]
        errors = [repr(error) for error in map(_error_of, outcomes) if error is not None]
    for error in errors:
        say(error)
    return len(errors)


def _error_of(outcome: Any) -> Exception | None:
    try:
        outcome.get()
    except Exception as error:  # the other models continue
        return error
    return None


def dose_comparisons(encoder: str, comparisons: Mapping[str, Comparison]) -> dict[str, Comparison]:
    """Return the primary comparisons with shorter pretraining.

    Without pretraining the domain model is the general model, so the general memory and the own copy are the same row.
    """
    chosen = {}
    for name, task in TASKS.items():
        primary = comparisons[primary_name(encoder, task)]
        for steps in (0, *LENGTHS[:-1]):
            rows = {row: settings for row, settings in primary.rows.items() if steps or row != primary.null}
            settings = {**primary.settings, "encoder.domain": domain_model(encoder, name, steps)}
            few = {"settings": settings, "rows": rows, "seeds": min(DOSE_SEEDS, primary.seeds)}
            chosen[f"gmap-dose-{encoder}-{task}-{steps}"] = replace(primary, **few)
    return chosen


def primary_name(encoder: str, task: str) -> str:
    """Return the name of the primary comparison on a data set."""
    return f"gmap-{task}" if encoder == "minilm" else f"gmap-{task}-{encoder}"


def masked_comparisons(encoder: str) -> dict[str, Comparison]:
    """Return one comparison of memories per corpus; every row trains the complete domain model for the same steps."""
    return {
        f"gmap-masked-{encoder}-{SHORT[name]}": Comparison(
            system="G-MAP", title=f"masked words of {name}, {encoder}", rows=MEMORIES,
            datasets={"": partial(corpus, name)},
            settings={
                "task": "masked", "tune": "full", "plan": "all", "plan.valid": 0.05, "plan.test": 0.05,
                "encoder": "gmap", "encoder.general": ENCODERS[encoder], "encoder.length": 128,
                "encoder.domain": domain_model(encoder, name, LENGTHS[-1]), "metric": "nll", "schedule": "linear",
                "average": "none",
                "batch": 64, "steps": 300, "every": 100,
            },
            treated="general", null="own-copy", baseline="none", control="random", mechanism="general",
            rates=(RATES[encoder],), seeds=MASKED_SEEDS, seconds=dict.fromkeys(MEMORIES, 40),
        )
        for name in TASKS
    }  # fmt: skip


def jobs_of(stage: str, comparisons: Mapping[str, Comparison], rates: Mapping[str, Mapping[str, float]]) -> list[Job]:
    """Return one job per comparison, row and seed."""
    return [
        Job(stage, name, "", "", row, rates[name][row], seed)
        for name, comparison in comparisons.items()
        for row in comparison.rows
        for seed in range(comparison.seeds)
    ]


def dose_rates(encoder: str, names: Sequence[str], out: Path) -> dict[str, dict[str, float]]:
    """Return the rates of the primary comparisons for these comparisons, by row."""
    path = out / "chosen.json"
    chosen = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    rates = {}
    for name in names:
        task = next(task for task in TASKS.values() if f"-{encoder}-{task}-" in name)
        if primary_name(encoder, task) not in chosen:
            raise BadInput(f"{path} has no rates of {primary_name(encoder, task)}: run `studies.primary choose` first")
        rows = chosen[primary_name(encoder, task)]["rows"]
        rates[name] = {row: float(entry["rate"]) for row, entry in rows.items()}
    return rates


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one stage."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.gmap_folds", description="Domain models and studies of G-MAP."
    )
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with the data sets, the corpora and the folder models"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--encoder", choices=list(ENCODERS), default="minilm")
    parser.add_argument("--workers", type=int, default=1, help="processes that train at the same time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no job that would end later")
    parser.add_argument("--tiny", action="store_true", help="few steps and examples, to test the pipeline")
    options = parser.parse_args(arguments)
    data, out, encoder = options.data.resolve(), options.out.resolve(), options.encoder
    out.mkdir(parents=True, exist_ok=True)
    if options.stage == "pretrain":
        return pretrain_all(encoder, data, out, workers=options.workers, tiny=options.tiny)
    if options.stage == "masked":
        comparisons = masked_comparisons(encoder)
        rates = {name: dict.fromkeys(each.rows, each.rates[0]) for name, each in comparisons.items()}
    else:
        comparisons = dose_comparisons(encoder, COMPARISONS)
        rates = dose_rates(encoder, list(comparisons), out)
    if options.tiny:
        comparisons = {name: each.tiny() for name, each in comparisons.items()}
    runner = Runner(data, out, comparisons)
    jobs = jobs_of(options.stage, comparisons, rates)
    return int(run_jobs(jobs, runner, workers=options.workers, seconds=options.seconds) > 0)


if __name__ == "__main__":
    sys.exit(main())
