"""What a run took: time, memory, parameters, and the multiply-adds of one prediction."""

from __future__ import annotations

import resource
import sys

import torch

from holdfast.assembly import Assembled, Workshop
from holdfast.core import inputs
from holdfast.nn.macs import macs_if_counted
from holdfast.nn.model import Model
from holdfast.protocols.plan import Episode
from holdfast.protocols.resume import Saver
from holdfast.spec import Spec

# what a network is made of: runs that share it are counted once
NETWORK = ("method", "method_args", "encoder", "encoder_args", "neck", "neck_args", "head", "head_args", "task")


def cost_of(spec: Spec, episode: Episode, workshop: Workshop, built: Assembled, saver: Saver) -> dict[str, float]:
    """As a record holds it; what cannot be counted is not there."""
    assert built.method is not None
    count = saver.steps * spec.batch * spec.processes * len(episode.stages[0].train)
    network = built.deploy()
    found: dict[str, float] = {
        "seconds": round(saver.elapsed(), 3),
        "examples_per_second": round(count / max(saver.training, 1e-9), 1),
        "peak_memory_mb": round(_peak_memory(workshop.device), 1),
        "parameters": sum(p.numel() for p in network.parameters()),
        "learning_parameters": sum(p.numel() for p in built.method.parameters() if p.requires_grad),
    }
    kind = repr([getattr(spec, name) for name in NETWORK])
    if kind not in workshop.macs:
        workshop.macs[kind] = _macs(network, built, workshop)
    counted = workshop.macs[kind]
    return found if counted is None else {**found, "macs": counted}


def _macs(network: Model, built: Assembled, workshop: Workshop) -> int | None:
    """Of the first example, whichever domain it is of, from raw inputs to outputs."""
    assert built.method is not None
    first = torch.zeros(1, dtype=torch.long)
    if type(built.method.deployed.backbone) is type(built.encoder):
        x = built.examples.inputs(first)
    else:  # examples are the features of a frozen encoder
        raw = workshop.dataset.raw.take(first.numpy(), size=built.encoder.size)
        x = inputs.to(built.encoder.prepare(raw).take(first), workshop.device)
    return macs_if_counted(network.to(workshop.device), x)


def _peak_memory(device: torch.device) -> float:
    """In megabytes: of the GPU since the run began, else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
