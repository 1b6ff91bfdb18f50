"""Measurements of a trained run that its record has next to the scores: cost, machine, and engagement of mechanisms.

Engagement is the share of validation predictions that change when a mechanism of the network is replaced by its null.

Shapes: b examples per batch, k predictions per example.
"""

import math
import platform
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.core import inputs, parallel
from holdfast.core.environment import VERSION
from holdfast.core.ragged import NONE
from holdfast.core.stopping import stop_all_if_requested, stop_if_requested
from holdfast.core.tape import Tape, tape
from holdfast.data.batches import IMAGES_PER_BATCH, Examples
from holdfast.data.splits import Part
from holdfast.nn.engagement import Mechanism, mechanisms
from holdfast.nn.macs import try_count_macs
from holdfast.nn.model import Model
from holdfast.spec import Spec
from holdfast.tasks.base import Structured, Task
from holdfast.train.assemble import Assembly
from holdfast.train.plan import Episode
from holdfast.train.resume import Saver
from holdfast.train.workspace import Workspace

# fields of a spec that define its network: multiply-adds are counted once per network
NETWORK = ("method", "method_args", "encoder", "encoder_args", "neck", "neck_args", "head", "head_args", "task")


def cost_of(spec: Spec, episode: Episode, workspace: Workspace, assembly: Assembly, saver: Saver) -> dict[str, float]:
    """Return time, memory, parameters and multiply-adds of a trained run; values that cannot be measured are absent."""
    examples = saver.steps * spec.batch * spec.processes * len(episode.stages[0].train)
    network = assembly.deploy()
    cost: dict[str, float] = {
        "seconds": round(saver.elapsed(), 3),
        "examples_per_second": round(examples / max(saver.training, 1e-9), 1),
        "peak_memory_mb": round(_peak_memory(workspace.device), 1),
        "parameters": sum(p.numel() for p in network.parameters()),
        "learning_parameters": assembly.learning_parameters,
    }
    key = repr([getattr(spec, name) for name in NETWORK])
    if key not in workspace.macs:
        workspace.macs[key] = _macs(network, assembly, spec, workspace)
    macs = workspace.macs[key]
    return cost if macs is None else {**cost, "macs": macs}


def _macs(network: Model, assembly: Assembly, spec: Spec, workspace: Workspace) -> int | None:
    """Count the multiply-adds for the first example of the data set, from raw inputs to outputs."""
    first = torch.zeros(1, dtype=torch.long)
    if type(assembly.deployed.backbone) is type(assembly.encoder):
        # in copies, where another size of a batch takes seconds
        x = assembly.examples.inputs(first.repeat(IMAGES_PER_BATCH) if assembly.examples.fills_batches else first)
    elif isinstance(task := assembly.task, Structured):  # the examples are states of a frozen encoder, or its features
        x = workspace.structured_examples(spec, task, assembly.encoder)[0].inputs(first)
    else:
        raw = workspace.dataset.raw.take(first.numpy(), size=assembly.encoder.size)
        x = inputs.to(assembly.encoder.prepare(raw).take(first), workspace.device)
    return try_count_macs(network.to(workspace.device), x)


def _peak_memory(device: torch.device) -> float:
    """Return megabytes: of the GPU since the run began, otherwise of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return process_peak()


def process_peak() -> float:
    """Return the largest memory of this process so far, in megabytes; 0 on Windows."""
    try:
        import resource
    except ImportError:
        return 0.0
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


@cache
def code_version() -> tuple[tuple[str, str], ...]:
    """Return the version of the package and the commit of its repository."""
    folder = Path(__file__).resolve().parent
    git = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = "unknown"
    return (("version", VERSION), ("commit", commit))


def machine(device: torch.device) -> dict[str, Any]:
    """Return the software versions and the hardware of this process."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cpu": platform.machine(),
        "threads": torch.get_num_threads(),
    }


PREFIX = "stat/"  # of tape entries that are statistics of a mechanism: `stat/MECHANISM/NAME`
DIGITS = 6


def validation_parts(episode: Episode) -> tuple[Part, ...]:
    """Return the validation rows of the last stage in trained domains; in all domains if none of them was trained."""
    trained = {part.domain for stage in episode.stages for part in stage.train}
    valid = episode.stages[-1].valid
    return tuple(part for part in valid if part.domain in trained) or valid


@torch.no_grad()
def measure_engagement(model: Model, examples: Examples, domains: Sequence[Part], task: Task) -> dict[str, Any]:
    """Return per mechanism the share of predictions that its null changes, as a record stores it; empty without one.

    One pass with the unchanged network, which also averages its statistics, and one pass per mechanism. All processes
    of a run must call it; each one computes some of the batches.
    """
    named = mechanisms(model)
    rows = [examples.rows_of(part) for part in domains]
    if not named or not sum(map(len, rows)):
        return {}
    training = model.training
    model.eval()
    try:
        passes = _Passes(model, examples, torch.cat(rows).numpy(), task)
        with_content = passes.run()
        changed = {name: _changes(with_content, passes.run(modules)) for name, modules in named.items()}
    finally:
        model.train(training)
    total = sum(int((batch != NONE).sum()) for batch in with_content)
    counts = parallel.all_gather((total, changed, passes.sums))
    predictions = sum(count for count, _, _ in counts)
    statistics = _means([sums for _, _, sums in counts])
    return {
        name: {
            "share": round(sum(of[name] for _, of, _ in counts) / max(1, predictions), DIGITS),
            "predictions": predictions,
            "null": modules[0].null_name,
            "statistics": _statistics_of(name, statistics, named),
        }
        for name, modules in named.items()
    }


def engagement_of(assembly: Assembly, episode: Episode, spec: Spec, workspace: Workspace) -> dict[str, Any]:
    """Measure the mechanisms of a trained run; those inside a frozen encoder need the raw inputs again."""
    model, examples = assembly.deployed, assembly.examples
    if model is not (complete := assembly.deploy()) and mechanisms(assembly.encoder):
        model = complete.to(workspace.device)
        if isinstance(task := assembly.task, Structured):
            examples, _ = workspace.structured_examples(spec, task, assembly.encoder)
        else:
            examples = workspace.examples(workspace.store(assembly.encoder), task)
    return measure_engagement(model, examples, validation_parts(episode), assembly.task)


class _Passes:
    """Passes of one network over the same batches."""

    def __init__(self, model: Model, examples: Examples, rows: np.ndarray, task: Task) -> None:
        self.model, self.examples, self.rows, self.task = model, examples, rows, task
        self.sums: dict[str, tuple[float, int]] = {}  # statistic -> weighted sum of its means per batch, and the weight

    def run(self, replaced: Sequence[Mechanism] = ()) -> list[Tensor]:
        """Return the predictions (b, k) of each batch; without replaced mechanisms, also collect statistics."""
        stop_all_if_requested()
        predictions = []
        with ExitStack() as nulls:
            for module in replaced:
                nulls.enter_context(module.null())
            batches = self.examples.iter_batches(self.rows, prediction_batch=self.model.prediction_batch, shared=True)
            for _, x, y in batches:
                stop_if_requested()
                if replaced:
                    predictions.append(self.task.predictions(self.model, x, y).cpu())
                    continue
                with tape(labels=y) as side:
                    predictions.append(self.task.predictions(self.model, x, y).cpu())
                self._collect(side, len(y))
        return predictions

    def _collect(self, side: Tape, weight: int) -> None:
        for name in (name for name in side if name.startswith(PREFIX)):
            value = sum(float(value.float().mean()) for value in side[name]) / len(side[name])
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = (total + weight * value, count + weight)


def _changes(before: Sequence[Tensor], after: Sequence[Tensor]) -> int:
    """Return the number of predictions that differ."""
    pairs = zip(before, after, strict=True)
    return sum(int(((a != b) & (a != NONE)).sum()) for a, b in pairs)


def _means(processes: Sequence[Mapping[str, tuple[float, int]]]) -> dict[str, float | None]:
    """Return the mean of each statistic over all processes; None if it is not finite."""
    sums: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for process in processes:
        for name, pair in process.items():
            sums[name].append(pair)
    means = {name: sum(s for s, _ in pairs) / sum(n for _, n in pairs) for name, pairs in sorted(sums.items())}
    return {name: round(mean, DIGITS) if math.isfinite(mean) else None for name, mean in means.items()}


def _statistics_of(
    mechanism: str, statistics: Mapping[str, float | None], named: Mapping[str, Any]
) -> dict[str, float | None]:
    """Return the statistics of one mechanism; a name that belongs to no mechanism is stored with each of them."""
    of: dict[str, float | None] = {}
    for name, value in statistics.items():
        owner, _, rest = name.removeprefix(PREFIX).partition("/")
        if owner == mechanism and rest:
            of[rest] = value
        elif owner not in named or not rest:
            of[name.removeprefix(PREFIX)] = value
    return of
