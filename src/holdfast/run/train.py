"""launch: a spec to records, one an episode, resumed where it was left."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from holdfast import catalog
from holdfast.core import inputs, parallel
from holdfast.core.errors import BadInput
from holdfast.core.seeds import process_rng_streams, seeded
from holdfast.data.dataset import Dataset
from holdfast.data.part_locations import PartLocations, read_part_locations
from holdfast.data.splits import Part, rows_by_domain
from holdfast.methods.base import Metrics
from holdfast.nn.macs import try_count_macs
from holdfast.nn.model import Model
from holdfast.protocols.fit import Diverged
from holdfast.protocols.plan import Episode, PastStages
from holdfast.protocols.resume import Saver
from holdfast.protocols.run import check_labels, run
from holdfast.record import RunRecord, read_whole, run_id
from holdfast.run.assemble import Assembly, Workspace, assemble
from holdfast.spec import Spec

Tick = Callable[[Metrics], None]


def episodes(spec: Spec, workspace: Workspace) -> Iterator[Episode]:
    """What the spec's plan makes of the data."""
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in spec.plan_args.items()}
    plan = catalog.build("protocols", spec.plan, options=given)
    yield from plan.episodes(rows_by_domain(workspace.dataset), spec.seed, oracle=spec.select == "oracle")


def scored_episodes(spec: Spec, workspace: Workspace) -> list[Episode]:
    """The same for a comparison; one sentence where the plan scores nothing."""
    found = list(episodes(spec, workspace))
    if not any(stage.test for episode in found for stage in episode.stages):
        raise BadInput(
            f"the plan {spec.plan} scores nothing, so there is nothing to compare: use another, such as --plan "
            "leave-one-out, or train a model with `holdfast fit`"
        )
    return found


def check_job(spec: Spec, episode: Episode, workspace: Workspace, *, labels: bool = True) -> None:
    """One sentence, before anything is trained, where the data cannot serve the method."""
    if labels and "label" in needs_of(spec):
        check_labels(workspace.dataset.y, workspace.dataset.classes, episode)
    least = max(layer.load().min_domains for _, layer in catalog.unwrap("methods", spec.method))
    there = training_domains([episode], spec.select)
    if there < least:
        raise BadInput(
            f"method {spec.method} needs {least} training domains, here are {there} ({episode.name}): bring more "
            "domains, or use another method, protocol or selection"
        )


def needs_of(spec: Spec) -> tuple[str, ...]:
    """What examples must have for the spec's task: label, domain."""
    return catalog.build("tasks", spec.task, options={}).needs


def training_domains(found: Iterable[Episode], select: str) -> int:
    """The fewest domains that any training of these episodes sees, the folds of the selection included."""
    fewest = min(len(stage.train) for episode in found for stage in episode.stages)
    return fewest - (catalog.lookup("selections", select).load().scored_on == "folds")


def training_steps(spec: Spec) -> int:
    """All steps of a stage: each phase of the method takes as many."""
    return spec.steps * len(catalog.unwrap("methods", spec.method)[-1][1].load().phases)


def record_path(spec: Spec, episode: Episode, out: Path) -> Path:
    return out / "records" / f"{run_id(spec.json(), episode.name)}.json"


def checkpoint_path(spec: Spec, episode: Episode, out: Path) -> Path:
    """The same on any number of processes, so that another number than the one it was begun on is noticed."""
    return out / "checkpoints" / f"{run_id(replace(spec, processes=1).json(), episode.name)}.safetensors"


def launch(
    spec: Spec, workspace: Workspace, out: Path, *, tick: Tick | None = None, analyse: Sequence[str] = ()
) -> Iterator[RunRecord]:
    """One record an episode; what is done already is read, what was begun goes on."""
    for episode in episodes(spec, workspace):
        yield launch_episode(spec, episode, workspace, out, tick=tick, analyse=analyse)


def launch_episode(
    spec: Spec,
    episode: Episode,
    workspace: Workspace,
    out: Path,
    *,
    tick: Tick | None = None,
    analyse: Sequence[str] = (),
) -> RunRecord:
    """Run one episode to its record, unless the record is there, with or without what is to be analysed."""
    path = record_path(spec, episode, out)
    if (done := parallel.from_first(partial(read_whole, path))) is not None:
        return done
    saver = Saver(checkpoint_path(spec, episode, out))
    record, _ = train(spec, episode, workspace, saver=saver, tick=tick, analyse=analyse)
    if parallel.is_first():
        record.save(path.parent)
        saver.finish()
    return parallel.from_first(lambda: record)  # what it cost is told by the first


def train(
    spec: Spec,
    episode: Episode,
    workspace: Workspace,
    *,
    saver: Saver | None = None,
    tick: Tick | None = None,
    analyse: Sequence[str] = (),
    trained: Model | None = None,
    past: PastStages | None = None,
) -> tuple[RunRecord, Assembly]:
    """Assemble and run one episode; the record, and the trained parts. Analyses come last and change no number.

    A network that is trained already goes on from where it is, with what is there of its past.
    """
    check_job(spec, episode, workspace, labels=past is None)
    points = (
        read_part_locations(workspace.dataset.raw, workspace.dataset.ids) if analyse else {}
    )  # a wrong file is told now
    saver = saver or Saver(None)
    saved = saver.load()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    built = assemble(spec, episode, workspace, trained=trained)
    selection = catalog.lookup("selections", spec.select).load()
    with seeded(spec.seed, "method"), process_rng_streams(spec.seed), _kernels():
        seen = _Counter(tick, saver)
        try:
            method, stages = run(
                episode, built.make, built.examples, built.task, spec,
                selection=selection, transform=built.transform, following=built.following, past=past, saver=saver, saved=saved, tick=seen,
            )  # fmt: skip
        except Diverged as error:
            raise error.naming(workspace.dataset.ids) from None
    built = built.trained(method)
    spent = cost_of(spec, episode, workspace, built, saver)
    record = RunRecord(
        spec.json(), episode.name, stages, dict(_code()), _machine(workspace.device), spent,
        analysis=_analyses(analyse if parallel.is_first() else (), built, episode, spec, workspace.dataset, points),
    )  # fmt: skip
    return record, built


def _analyses(
    names: Sequence[str], built: Assembly, episode: Episode, spec: Spec, dataset: Dataset, points: PartLocations
) -> dict[str, Any]:
    """What each analysis says of the last stage: test rows of unseen domains against the rows trained and chosen by."""
    if not names:
        return {}
    from holdfast.analysis.views import (
        collect_views,  # brings transformers, which takes seconds that most runs can save
    )

    stage = episode.stages[-1]
    trained = {part.domain for part in stage.train}
    sources = [part for part in (*stage.train, *stage.valid) if part.domain in trained]
    unseen = [part for part in stage.test if part.domain not in trained]
    assert built.method is not None
    model, targets = built.method.deployed, unseen or stage.test
    views = collect_views(
        model, built.examples, sources, targets, seed=spec.seed, classes=dataset.classes,
        names=dataset.ids, points=points,
        scored=partial(_score, built, model, spec.metric) if "general-memory" in names else None,
    )  # fmt: skip
    return {name: catalog.lookup("analyses", name).build(views, seed=spec.seed) for name in names}


def _score(built: Assembly, model: Model, metric: str, part: Part) -> float | None:
    """One metric of a part; by this process alone, since analyses are the first one's."""
    rows = built.examples.rows_of(part)
    kept = built.examples.map(
        partial(built.task.evaluate, model), rows.numpy(), prediction_batch=model.prediction_batch, targets=True
    )
    return built.task.scores(kept, built.examples.targets(rows).cpu(), [metric])[metric]


class _Counter:
    """Adds steps and the seconds between them to the saver, which keeps them over attempts, and passes metrics on."""

    def __init__(self, tick: Tick | None, saver: Saver) -> None:
        self.tick, self.saver, self.last = tick, saver, 0.0

    def __call__(self, metrics: Metrics) -> None:
        now = time.perf_counter()
        if self.last:  # the first step of an attempt has no beginning
            self.saver.steps += 1
            self.saver.training += now - self.last
        self.last = now
        if self.tick is not None:
            self.tick(metrics)


def _kernels() -> Any:
    """HOLDFAST_MKLDNN=0 turns oneDNN's kernels off, which is faster on some ARM machines."""
    off = os.environ.get("HOLDFAST_MKLDNN", "1") == "0"
    return torch.backends.mkldnn.flags(enabled=False) if off else nullcontext()


@cache
def _code() -> tuple[tuple[str, str], ...]:
    folder = Path(__file__).resolve().parent
    git = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = "unknown"
    try:
        release = version("holdfast")
    except PackageNotFoundError:
        release = "unknown"  # run from the source tree without an install
    return (("version", release), ("commit", commit))


def _machine(device: torch.device) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cpu": platform.machine(),
        "threads": torch.get_num_threads(),
    }


# what a network is made of: runs that share it are counted once
NETWORK = ("method", "method_args", "encoder", "encoder_args", "neck", "neck_args", "head", "head_args", "task")


def cost_of(spec: Spec, episode: Episode, workspace: Workspace, built: Assembly, saver: Saver) -> dict[str, float]:
    """As a record holds it; what cannot be counted is not there."""
    assert built.method is not None
    count = saver.steps * spec.batch * spec.processes * len(episode.stages[0].train)
    network = built.deploy()
    found: dict[str, float] = {
        "seconds": round(saver.elapsed(), 3),
        "examples_per_second": round(count / max(saver.training, 1e-9), 1),
        "peak_memory_mb": round(_peak_memory(workspace.device), 1),
        "parameters": sum(p.numel() for p in network.parameters()),
        "learning_parameters": sum(p.numel() for p in built.method.parameters() if p.requires_grad),
    }
    kind = repr([getattr(spec, name) for name in NETWORK])
    if kind not in workspace.macs:
        workspace.macs[kind] = _macs(network, built, workspace)
    counted = workspace.macs[kind]
    return found if counted is None else {**found, "macs": counted}


def _macs(network: Model, built: Assembly, workspace: Workspace) -> int | None:
    """Of the first example, whichever domain it is of, from raw inputs to outputs."""
    assert built.method is not None
    first = torch.zeros(1, dtype=torch.long)
    if type(built.method.deployed.backbone) is type(built.encoder):
        x = built.examples.inputs(first)
    else:  # examples are the features of a frozen encoder
        raw = workspace.dataset.raw.take(first.numpy(), size=built.encoder.size)
        x = inputs.to(built.encoder.prepare(raw).take(first), workspace.device)
    return try_count_macs(network.to(workspace.device), x)


def _peak_memory(device: torch.device) -> float:
    """In megabytes: of the GPU since the run began, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
