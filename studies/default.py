"""Compare the default settings with those of the first version, with a searched rate, and with simple baselines.

    python -m studies.default search --data DIR --out DIR [--only rated,pacs] [--workers 15] [--seconds 500]
    python -m studies.default choose --out DIR
    python -m studies.default run --data DIR --out DIR [--rows default,first]

`search` trains ERM with the settings of the first version at every rate of the grid of a data set, without test rows;
`choose` takes the rate with the best source-validation score. `run` trains every row with every seed on all targets:
one job is one row with one seed. Records are below DIR/run/DATASET/ROW; repeat a command to run what is missing.
`python -m studies.pack_results DIR/run` packs them for results/default.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import BadInput
from holdfast.core.files import write_text
from studies.comparisons import Comparison, Loader, Settings, known, sources_and_targets
from studies.primary import Job, Runner, make_parser, named, records_of, run_jobs, say
from studies.primary_tables import source_score

if TYPE_CHECKING:
    from holdfast.data.dataset import Dataset

STAGES = ("search", "choose", "run")
SEEDS = 5  # blocks of paired differences
MAIN = ("default", "first", "searched")  # rows with the seeds of a setting
ROWS_PER_DOMAIN = 1000
PRETRAINED_RATES, SCRATCH_RATES = (3e-6, 1e-5, 3e-5, 1e-4, 3e-4), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SCRATCH_RATE = 1e-3  # of the first version, for parts that are not pretrained
FIRST: Settings = {  # training settings of the first version, besides the learning rate
    "schedule": "constant", "warmup": 0.0, "average": "none", "decay": "all", "steps": 300, "every": 25, "patience": 0,
}  # fmt: skip
FIRST_LENGTH = 128  # of texts, in tokens
ROWS: Mapping[str, Settings] = {
    "default": {},
    "no-search": {},  # the rows below have the default rate too
    "first": FIRST,  # with the first version's rate
    "searched": FIRST,  # with the rate that source validation prefers
    "frozen": {**FIRST, "tune": "frozen"},  # the first version's tuning mode for pretrained encoders
    "no-average": {"average": "none"},
    "no-decay": {"schedule": "constant", "warmup": 0.0},
    "300-steps": {"steps": 300, "every": 25, "patience": 0},
    "128-tokens": {"encoder.length": FIRST_LENGTH},
    "memory": {"method": "memory+erm"},
    "knn": {"predict": "knn"},
}
COMPARED = ("default",)  # rows with simple baselines, a search of the rate, and combinations


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A data set with its protocol and encoder; `text` and `pretrained` describe the encoder."""

    title: str
    load: Loader
    settings: Settings
    text: bool = False
    pretrained: bool = False
    seconds: float = 60.0  # of one row with one seed, 15 at once on an H200
    seeds: int = SEEDS  # of the main rows; the others have SEEDS

    @property
    def rates(self) -> tuple[float, ...]:
        return PRETRAINED_RATES if self.pretrained else SCRATCH_RATES

    @property
    def first_rate(self) -> float:
        return 5e-5 if self.pretrained else SCRATCH_RATE

    def has(self, row: str) -> bool:
        """Whether a row differs from the others on this data set."""
        return {"frozen": self.pretrained, "128-tokens": self.text}.get(row, True)

    def row(self, name: str, rate: float | None = None) -> dict[str, Any]:
        """Return the settings of a row, and its rate if it has a fixed one."""
        settings = {**self.settings, **ROWS[name]}
        if name == "frozen":
            settings.pop("augment", None)  # has no effect on stored features
        if name in ("first", "searched", "frozen"):
            settings |= {"encoder.length": FIRST_LENGTH} if self.text else {}
            settings["lr"] = SCRATCH_RATE if name == "frozen" else self.first_rate if rate is None else rate
        return settings


def limited(name: str, data: Path) -> Dataset:
    """Return at most `ROWS_PER_DOMAIN` rows per domain of a published data set."""
    return known(name, data).limited(ROWS_PER_DOMAIN)


def digits(data: Path) -> Dataset:
    """Return digits of MNIST, MNIST turned by 45 degrees, MNIST with noise, and USPS as vectors of 256 pixels."""
    import numpy as np
    import torch
    from torch.nn import functional

    from holdfast.core.seeds import generator
    from holdfast.data.dataset import Dataset
    from holdfast.data.raw import Vectors

    mnist, usps = (np.load(data / f"{name}.npz") for name in ("mnist", "usps"))
    sides = ((mnist, 28), (usps, 16))
    images = [torch.from_numpy(file["x_train"]).float().reshape(-1, 1, side, side) for file, side in sides]
    labels = [torch.from_numpy(file["y_train"]).long() for file in (mnist, usps)]
    order = torch.randperm(len(images[0]), generator=generator(0, "digits"))
    styles, y = [], []
    for number in range(3):  # three disjoint thousands of MNIST
        rows = order[1000 * number : 1000 * (number + 1)]
        styles.append(functional.interpolate(images[0][rows] / 255, size=(16, 16), mode="area"))
        y.append(labels[0][rows])
    angle = torch.full((len(styles[1]),), torch.pi / 4)
    turn = torch.stack([angle.cos(), -angle.sin(), 0 * angle, angle.sin(), angle.cos(), 0 * angle], dim=1)
    grid = functional.affine_grid(turn.reshape(-1, 2, 3), list(styles[1].shape), align_corners=False)
    styles[1] = functional.grid_sample(styles[1], grid, align_corners=False)
    noise = torch.rand(styles[2].shape, generator=generator(0, "noise"))
    styles[2] = torch.maximum(styles[2], 0.6 * noise)
    chosen = torch.randperm(len(images[1]), generator=generator(0, "usps"))[:1000]
    top = images[1].max()
    styles.append(images[1][chosen] / top)
    y.append(labels[1][chosen])
    names = ("mnist", "turned", "noisy", "usps")
    domain = np.repeat(np.arange(len(names)), 1000)
    vectors = torch.cat(styles).flatten(1).numpy().astype(np.float32)
    classes = tuple(map(str, range(10)))
    return Dataset("digits", Vectors(vectors), torch.cat(y).numpy(), classes, domain, names)


_LEFT_OUT: Settings = {"plan": "leave-one-out", "metric": "accuracy"}
_TEXT: dict[str, Any] = {"text": True, "pretrained": True}
_CROSS: Settings = {"plan": "cross-dataset", "metric": "macro_f1", "encoder": "minilm", "tune": "full"}
DATASETS: dict[str, Setting] = {
    "rated": Setting(
        title="rated sentences, one of 4 domains left out", load=partial(limited, "vader"), **_TEXT, seconds=150,
        settings={**_LEFT_OUT, "metric": "macro_f1", "encoder": "minilm", "tune": "full"},
    ),
    "sentiment": Setting(
        title="Amazon reviews to SST-2 and IMDB", load=partial(sources_and_targets, "amazon", ("sst2", "imdb")),
        **_TEXT, settings={**_CROSS, "plan.targets": ["sst2", "imdb"]}, seconds=120,
    ),
    "inference": Setting(
        title="MNLI to SNLI and SICK", load=partial(sources_and_targets, "mnli", ("snli", "sick")), **_TEXT,
        settings={**_CROSS, "plan.targets": ["snli", "sick"]}, seconds=150,
    ),
    "pacs": Setting(
        title="PACS at 96 pixels, one of 4 styles left out", load=partial(limited, "pacs"), pretrained=True,
        seconds=250,
        settings={
            **_LEFT_OUT, "plan.inside": True, "encoder": "vit:models/dino", "encoder.size": 112, "tune": "full",
            "augment": "domainbed",
        },
    ),
    "digits": Setting(title="digits as vectors, one of 4 styles left out", load=digits, settings=_LEFT_OUT),
    "nci1": Setting(
        title="NCI1, small to large graphs", load=partial(known, "nci1@shift=size"),
        settings={"plan": "given", "metric": "mcc"},
    ),
    "proteins": Setting(
        title="PROTEINS, small to large graphs", load=partial(known, "proteins@shift=size"),
        settings={"plan": "given", "metric": "mcc"}, seeds=4 * SEEDS,
    ),
}  # fmt: skip


class RowJob(Job):
    """One row of a data set with one seed on all targets; a file marks it as finished."""

    def path(self, out: Path) -> Path:
        return out / self.stage / self.comparison / self.row / "done" / str(self.seed)


class DefaultRunner(Runner):
    """Trains searches as `Runner` does, and rows with the baselines and combinations of `compare`."""

    def run(self, job: Job) -> None:
        if job.stage == "search":
            super().run(job)
            return
        from holdfast.engines.work import Local, run_all
        from holdfast.engines.work import work as work_off
        from holdfast.prediction.combine import combine
        from holdfast.train.board import Board
        from holdfast.train.progress import ProgressListener
        from holdfast.train.resolve import Request, resolve

        compared = job.row in COMPARED
        work = self.out / "work" / job.comparison / job.row / str(job.seed)  # one per process, because runs lock it
        workspace = replace(self.workspace(job), out=work)
        workspace.keep_outputs = compared
        settings = DATASETS[job.comparison].row(job.row, job.rate or None)
        method, plan, metric = settings.pop("method", "erm"), settings.pop("plan"), settings.pop("metric")
        request = Request(
            methods=(method,), seeds=(job.seed,), plan=plan, metric=metric, settings=settings, baselines=compared
        )
        jobs = resolve(request, workspace)
        if compared:
            board = Board(
                [each.spec for each in jobs], (job.seed,), workspace, limit=math.inf, search=True,
                engine=Local(), watch=ProgressListener(),
            )  # fmt: skip
            for _ in work_off(board, workspace):
                pass
            records = board.results()
        else:
            records = run_all(jobs, workspace)
        for record in [*records, *(combine(records, workspace) if compared else ())]:
            record.save(job.path(self.out).parents[1] / "records")
        shutil.rmtree(work)
        write_text(job.path(self.out), "")


def comparison_of(name: str) -> Comparison:
    """Return a data set as a comparison of `studies.primary`, whose only row is ERM of the first version."""
    setting = DATASETS[name]
    return Comparison(
        system="", title=setting.title, datasets={"": setting.load}, settings=setting.row("first"),
        rows={row: {"method": "erm"} for row in ("erm", *ROWS)}, treated="erm", null="erm", mechanism="",
        rates=setting.rates, seconds=dict.fromkeys(("erm", *ROWS), setting.seconds),
    )  # fmt: skip


def search_jobs(names: Sequence[str], runner: Runner) -> list[Job]:
    """Return one job per rate and episode."""
    jobs = []
    for name in names:
        first = Job("search", name, "", "", "erm", DATASETS[name].rates[0], 0)
        for episode in runner.episodes(first):
            jobs += [Job("search", name, "", episode, "erm", rate, 0) for rate in DATASETS[name].rates]
    return jobs


def choose(names: Sequence[str], out: Path) -> None:
    """Write rates.json: per data set, the rate with the best mean source-validation score, and all scores."""
    path = out / "rates.json"
    rates: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    for name in names:
        scores: dict[float, list[float]] = defaultdict(list)
        for record in records_of(out, "search", name):
            scores[float(record.spec["lr"])].append(source_score(record, DATASETS[name].settings["metric"]))
        if not scores:
            continue
        means = {rate: fmean(values) for rate, values in sorted(scores.items())}
        best = max(means, key=lambda rate: means[rate])
        rates[name] = {"rate": best, "scores": {f"{rate:g}": round(score, 3) for rate, score in means.items()}}
        edge = best in (min(means), max(means))
        say(f"{name}: {rates[name]}{', at the edge of the grid' if edge else ''}")
    write_text(path, json.dumps(rates, indent=1, sort_keys=True) + "\n")


def row_jobs(names: Sequence[str], rows: Sequence[str], out: Path) -> list[Job]:
    """Return one job per seed, data set and row; those of the first seed come first."""
    path = out / "rates.json"
    rates = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    missing = [name for name in names if "searched" in rows and name not in rates]
    if missing:
        raise BadInput(f"no rate is chosen for {', '.join(missing)}: run search and choose, or leave out the row")
    return [
        RowJob("run", name, "", "", row, rates[name]["rate"] if row == "searched" else 0.0, seed)
        for seed in range(max(DATASETS[name].seeds for name in names))
        for name in names
        for row in rows
        if DATASETS[name].has(row) and seed < (DATASETS[name].seeds if row in MAIN else SEEDS)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one stage."""
    parser = make_parser("default", "Study the default settings.", STAGES)
    parser.add_argument("--only", default="", help="names of data sets, separated by commas")
    parser.add_argument("--rows", default="", help="names of rows, separated by commas")
    options = parser.parse_args(arguments)
    names = named(options.only, DATASETS, "data set", parser)
    rows = named(options.rows, ROWS, "row", parser)
    out = options.out.resolve()
    if options.stage == "choose":
        choose(names, out)
        return 0
    if options.data is None or not options.data.is_dir():
        parser.error(f"{options.stage} needs --data, a folder with the data sets")
    out.mkdir(parents=True, exist_ok=True)
    runner = DefaultRunner(options.data.resolve(), out, {name: comparison_of(name) for name in names})
    jobs = search_jobs(names, runner) if options.stage == "search" else row_jobs(names, rows, out)
    return int(run_jobs(jobs, runner, workers=options.workers, seconds=options.seconds) > 0)


if __name__ == "__main__":
    sys.exit(main())
