"""Cost of a run and the software and hardware it ran on, as a record stores them."""

import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from holdfast.core import inputs
from holdfast.core.environment import VERSION
from holdfast.data.batches import IMAGES_PER_BATCH
from holdfast.nn.macs import try_count_macs
from holdfast.nn.model import Model
from holdfast.spec import Spec
from holdfast.tasks.base import Structured
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
