"""Train one episode of a spec: assemble its parts, run the protocol, analyse the result and write the record."""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast import catalog
from holdfast.catalog.entry import CLASS_TASKS, EXAMPLE_TASKS
from holdfast.core import parallel
from holdfast.core.checkpoint import save_tensors
from holdfast.core.seeds import process_rng_streams, seeded
from holdfast.methods.base import Metrics
from holdfast.nn.backbones.base import LearnedPreparation
from holdfast.nn.memory.recall import Recall
from holdfast.nn.model import Model
from holdfast.record import RunRecord, read_finished, run_id
from holdfast.spec import Spec
from holdfast.stats.labels import BASELINE
from holdfast.tasks.regress import Regress
from holdfast.train.analyses import analyse_run, data_notes
from holdfast.train.assemble import Assembly, assemble
from holdfast.train.cost import code_version, cost_of, machine
from holdfast.train.engagement import engagement_of
from holdfast.train.fit import Diverged
from holdfast.train.plan import Episode, PastStages
from holdfast.train.resume import Saver
from holdfast.train.stages import train_stages
from holdfast.train.workspace import Workspace

Tick = Callable[[Metrics], None]  # called after every training step
STATE_BYTES = 64 << 20  # of a trained state that a run stores, at most
BASELINE_FACTOR = 8  # by which the limit is larger for plain training
MILDER = 3.0  # by which the rate of a run that diverged is divided
LIGHT = ("table", "vector", "graph")  # kinds of examples whose encoders are small
SHORT = ("table", "vector")  # kinds of examples whose training steps take milliseconds
SCALE = "scale"  # mean and scale of the targets of a regression, stored with its outputs


def training_steps(spec: Spec) -> int:
    """Return the number of steps per stage; every phase of the method takes `spec.steps`."""
    *wrappers, (_, inner) = catalog.unwrap("methods", spec.method)
    repeats = math.prod(entry.load().trainings(spec.method_args) for _, entry in wrappers)
    return spec.steps * len(inner.load().phases) * repeats


def record_path(spec: Spec, episode: Episode, out: Path) -> Path:
    """Return the file of the record."""
    return out / "records" / f"{run_id(spec.json(), episode.name)}.json"


def checkpoint_path(spec: Spec, episode: Episode, out: Path) -> Path:
    """Return the file of the checkpoint, equal for any number of processes so that resuming with another is noticed."""
    return out / "checkpoints" / f"{run_id(replace(spec, processes=1).json(), episode.name)}.safetensors"


def outputs_path(out: Path, id: str) -> Path:
    """Return the file with the outputs of a run for its validation and test rows."""
    return out / "outputs" / f"{id}.safetensors"


def weights_path(out: Path, id: str) -> Path:
    """Return the file with the weights of a run, which soups average."""
    return out / "weights" / f"{id}.safetensors"


def state_path(out: Path, id: str) -> Path:
    """Return the file with the trained state of a run, from which a model can be saved without another training."""
    return out / "states" / f"{id}.safetensors"


def train_and_save(spec: Spec, episode: Episode, workspace: Workspace, *, tick: Tick | None = None) -> RunRecord:
    """Train one episode and save its record in `workspace.out`; return the saved record if there is one."""
    workspace = workspace.sampled(spec.rows)
    assert workspace.out is not None
    path = record_path(spec, episode, workspace.out)
    if (finished := parallel.from_first(partial(read_finished, path))) is not None:
        return finished
    saver = Saver(checkpoint_path(spec, episode, workspace.out))
    outputs: dict[str, Tensor] | None = {} if workspace.keep_outputs and spec.task in EXAMPLE_TASKS else None
    options = {"tick": tick, "analyse": workspace.analyse, "outputs": outputs}
    record, assembly = _train_repeatedly(spec, episode, workspace, saver, options)
    if parallel.is_first():
        if outputs is not None:  # before the record, which marks the run as finished
            outputs |= {SCALE: torch.tensor(task.scale)} if isinstance(task := assembly.task, Regress) else {}
            save_tensors(outputs_path(workspace.out, record.id), outputs)
        if weights := _weights_for_soups(spec, assembly, workspace):
            save_tensors(weights_path(workspace.out, record.id), weights)
        if workspace.keep_states and not weights and (state := _state(spec, assembly)):
            save_tensors(state_path(workspace.out, record.id), state)
        record.save(path.parent)
        saver.finish()
    return parallel.from_first(lambda: record)  # the cost is that of the first process


def _train_repeatedly(
    spec: Spec, episode: Episode, workspace: Workspace, saver: Saver, options: dict[str, Any]
) -> tuple[RunRecord, Assembly]:
    """Train; a run that diverges is repeated once at a lower rate with clipped gradients, which the record states."""
    milder = saver.fold("milder")
    if not milder.exists():
        try:
            return train(spec, episode, workspace, saver=saver, **options)
        except Diverged as error:
            if parallel.active() or catalog.inner_method(spec.method).full_batch:
                raise
            milder.follow(saver, str(error).partition(";")[0])
    changed = replace(spec, lr=spec.lr / MILDER, clip=spec.clip / MILDER if spec.clip else 1.0)
    try:
        record, assembly = train(changed, episode, workspace, saver=milder, **options)
    except Diverged as error:
        message = f"{error}; this was the second attempt, with lr {changed.lr:g} and clip {changed.clip:g}"
        raise Diverged.at(message, error.step, error.rows) from None
    remark = {"lr": changed.lr, "clip": changed.clip, "because": milder.reason or "training diverged"}
    stages = [*record.stages[:-1], {**record.stages[-1], "repeated": remark}]
    return replace(record, spec=spec.json(), stages=stages), assembly


def _weights_for_soups(spec: Spec, assembly: Assembly, workspace: Workspace) -> dict[str, Tensor]:
    """Return the weights to store: of networks whose seeds share a start, and that are small enough; else none."""
    entry, limit = catalog.lookup("encoders", spec.encoder), workspace.weight_limits.get(spec.method, 0)
    shared = (entry.pretrained or not entry.learns) and not isinstance(assembly.encoder, LearnedPreparation)
    if not limit or not shared or spec.task not in CLASS_TASKS or spec.predict != Spec.predict or assembly.following:
        return {}
    return _copied_state(assembly, limit)


def _state(spec: Spec, assembly: Assembly) -> dict[str, Tensor]:
    """Return the state of a trained network if it is small enough; empty for networks that grow."""
    limit = STATE_BYTES * (BASELINE_FACTOR if spec.method == BASELINE else 1)
    return {} if assembly.following is not None else _copied_state(assembly, limit)


def _copied_state(assembly: Assembly, limit: int) -> dict[str, Tensor]:
    """Return a copy of the state of a trained network on the CPU; empty if it has more bytes than the limit."""
    state = assembly.deployed.state_dict()
    if sum(value.numel() * value.element_size() for value in state.values()) > limit:
        return {}
    return {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}


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
    outputs: dict[str, Tensor] | None = None,
) -> tuple[RunRecord, Assembly]:
    """Train one episode; return the record and the trained parts. Analyses come last and change no number.

    A `trained` network continues from its weights; `past` describes the stages it was trained on. `outputs` receives
    the outputs for the validation and test rows.
    """
    data_notes(analyse, workspace.dataset)  # raises before the training
    saver = saver or Saver(None)
    saved = saver.load()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    assembly = assemble(spec, episode, workspace, trained=trained)
    threads = 1 if _has_short_steps(spec, workspace) else torch.get_num_threads()
    with seeded(spec.seed, "method"), process_rng_streams(spec.seed), _kernels(), torch_threads(threads):
        try:
            method, stages = train_stages(
                episode, assembly.make, assembly.examples, assembly.task, spec,
                selection=catalog.lookup("selections", spec.select).load(), transform=assembly.transform,
                following=assembly.following, past=past, saver=saver, saved=saved, tick=_StepTimer(tick, saver),
                kept_outputs=outputs, recall=_recall(spec),
            )  # fmt: skip
        except Diverged as error:
            raise error.with_ids(workspace.dataset.ids) from None
    assembly = assembly.trained(method)
    cost = cost_of(spec, episode, workspace, assembly, saver)
    with _kernels():
        engagement = engagement_of(assembly, episode, spec, workspace)
    names = analyse if parallel.is_first() else ()
    analysis = analyse_run(names, assembly, episode, spec, workspace.dataset)
    where = (dict(code_version()), machine(workspace.device))
    results: dict[str, Any] = {"analysis": analysis, "engagement": engagement}
    return RunRecord(spec.json(), episode.name, stages, *where, cost, **results), assembly


def is_small(spec: Spec, workspace: Workspace) -> bool:
    """Whether a run computes with tables, counts of words or cached features, so that one core suffices for it."""
    frozen = spec.tune == "frozen" and workspace.cache is not None
    return frozen or catalog.lookup("encoders", spec.encoder).sparse or _is_light(spec, workspace, LIGHT)


def _is_light(spec: Spec, workspace: Workspace, kinds: Sequence[str]) -> bool:
    """Whether the examples are of these kinds, or tables with texts whose words are counted."""
    raw = workspace.dataset.raw
    if raw.kind != "mixed":
        return raw.kind in kinds
    counted = spec.encoder_args.get("base", "auto") in ("auto", "tfidf")
    return counted and not isinstance(raw.take(np.arange(1)).companion, Tensor)


def _has_short_steps(spec: Spec, workspace: Workspace) -> bool:
    """Whether the steps of a run are so short that threads would mostly wait for one another."""
    if workspace.device.type != "cpu":
        return False
    cached = workspace.cache is not None and spec.task == "classify" and spec.neck in ("none", "projection")
    return (cached and spec.tune == "frozen") or (spec.steps > 1 and _is_light(spec, workspace, SHORT))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Compute with this number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _recall(spec: Spec) -> Recall | None:
    """Return an empty memory for predictions, or None."""
    if spec.predict == Spec.predict:
        return None
    return catalog.build("predictions", spec.predict, options=spec.predict_args)


class _StepTimer:
    """Adds steps and the seconds between them to the saver, which keeps them across attempts."""

    def __init__(self, tick: Tick | None, saver: Saver) -> None:
        self.tick, self.saver, self.last = tick, saver, 0.0

    def __call__(self, metrics: Metrics) -> None:
        now = time.perf_counter()
        if self.last:  # the start of the first step of an attempt is unknown
            self.saver.steps += 1
            self.saver.training += now - self.last
        self.last = now
        if self.tick is not None:
            self.tick(metrics)


def _kernels() -> Any:
    """Return a context without oneDNN kernels if HOLDFAST_MKLDNN=0, which is faster on some ARM machines."""
    off = os.environ.get("HOLDFAST_MKLDNN", "1") == "0"
    return torch.backends.mkldnn.flags(enabled=False) if off else nullcontext()
