"""One run on several processes: joining them, and what they tell each other; alone, all of it does nothing.

The processes hold the same parameters and the same state of the rule, bit for bit; each has its own share of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from holdfast.core import processes
from holdfast.core.errors import BadInput

T = TypeVar("T")
MEETING = timedelta(minutes=10)  # within which all must have started
PATIENCE = timedelta(days=1)  # later a process that ends is noticed at once, and one that is slow is waited for
FAILED = "holdfast/failed"
_met: dict[str, dist.Store] = {}


class Lost(BadInput):
    """Another process of the run is gone."""


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Train together with the processes that a launcher started, each on its own GPU where there are any."""
    if processes.world_size() == 1 or dist.is_initialized():
        yield
        return
    on_gpus = device != "cpu" and torch.cuda.is_available()
    if on_gpus:
        if processes.local_world_size() > torch.cuda.device_count():
            raise BadInput(
                f"{processes.local_world_size()} processes were started for {torch.cuda.device_count()} GPUs: start one a "
                "GPU, or use --device cpu"
            )
        torch.cuda.set_device(processes.local_rank())
    # what decides, such as whether to stop, goes over the CPU, so that nothing waits for a GPU
    with _gone():
        store, number, count = next(dist.rendezvous("env://", timeout=MEETING))
        init_process_group(store, number, count, backend="cpu:gloo,cuda:nccl" if on_gpus else "gloo")
    yield  # where something failed, the others learn it from this process's end, and not from a goodbye
    dist.destroy_process_group()


def init_process_group(store: dist.Store, number: int, count: int, *, backend: str = "gloo") -> None:
    """Become the process of this number among so many that meet at a store."""
    dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=PATIENCE)
    _met["store"] = store


def active() -> bool:
    """Whether this process is one of several that train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    return dist.get_rank() if active() else 0


def world_size() -> int:
    return dist.get_world_size() if active() else 1


def is_first() -> bool:
    """Whether this is the process that writes files."""
    return rank() == 0


def may_report() -> bool:
    """Of the processes that fail together, one tells why: the first that asks."""
    if not active():
        return processes.is_first()
    try:
        return _met["store"].add(FAILED, 1) == 1
    except RuntimeError:
        return False  # whoever kept the count is gone


@contextmanager
def _gone() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise Lost(
            "another process of this run has ended, so this one ends too; the same command goes on from the last "
            "checkpoint"
        ) from error


def all_max(*flags: int) -> list[int]:
    """The largest of each of these numbers over the processes."""
    if not active():
        return list(flags)
    told = torch.tensor(flags)
    with _gone():
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return told.tolist()


def from_first(make: Callable[[], T]) -> T:
    """What the first process makes, for all; the others make nothing."""
    if not active():
        return make()
    box: list[Any] = [make() if is_first() else None]
    with _gone():
        dist.broadcast_object_list(box, device=torch.device("cpu"))
    return box[0]


def all_gather(thing: T) -> list[T]:
    """What each process has, in their order, for all."""
    if not active():
        return [thing]
    found: list[Any] = [None] * world_size()
    with _gone():
        dist.all_gather_object(found, thing)
    return found


@contextmanager
def local_first() -> Iterator[None]:
    """The first process of each machine goes ahead, so that the others find the file that it wrote."""
    ahead = processes.local_rank() == 0
    if active() and not ahead:
        all_max(0)
    yield
    if active() and ahead:
        all_max(0)


def mean(value: Tensor) -> Tensor:
    """The mean of a tensor over the processes, without gradient; itself when alone."""
    if not active():
        return value
    return _reduced([value.detach()])[0]


def total(value: Tensor) -> Tensor:
    """The sum of a tensor over the processes."""
    return value if not active() else mean(value) * world_size()


def gather_rows(value: Tensor, sizes: Sequence[int]) -> Tensor:
    """The rows of all processes as one batch lies, domain after domain; of each domain they have `sizes` rows."""
    if not active():
        return value
    found = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(world_size())]
    with _gone():
        dist.all_gather(found, value.detach().contiguous())
    each = [one.split(list(sizes)) for one in found]
    return torch.cat([piece for domain in zip(*each, strict=True) for piece in domain])


def mean_gradients(grads: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of these parameters as their means over the processes; None where no process has one.

    Where a gradient has a graph, only its value is the mean: it is differentiated as this process made it.
    """
    if not active():
        return list(grads)
    there = all_max(*(int(g is not None) for g in grads))
    trio = zip(grads, parameters, there, strict=True)
    mine = [(torch.zeros_like(p) if g is None else g) if wanted else None for g, p, wanted in trio]
    means = iter(_reduced([g.detach() for g in mine if g is not None]))
    return [None if g is None else _with_value(g, next(means)) for g in mine]


def _with_value(grad: Tensor, value: Tensor) -> Tensor:
    return grad + (value - grad).detach() if grad.requires_grad else value


def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Replace each gradient by its mean over the processes; what no process has a gradient for stays without."""
    if not active():
        return
    there = all_max(*(int(p.grad is not None) for p in parameters))
    grads = []
    for p, wanted in zip(parameters, there, strict=True):
        if wanted and p.grad is None:
            p.grad = torch.zeros_like(p)
        if p.grad is not None:
            grads.append(p.grad)
    for grad, found in zip(grads, _reduced(grads), strict=True):
        grad.copy_(found)


@torch.no_grad()
def average_batch_statistics(network: nn.Module) -> None:
    """Running statistics of batches as their means over the processes, so that all predict alike."""
    if not active():
        return
    layers = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    kept = [t for m in layers for t in (m.running_mean, m.running_var) if t is not None]
    for mine, found in zip(kept, _reduced(kept), strict=True):
        mine.copy_(found)


def _reduced(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Means over the processes, in one flat sum for each type of number."""
    found: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(t.dtype for t in tensors):  # in order, which a set has not
        mine = [i for i, t in enumerate(tensors) if t.dtype == dtype]
        flat = torch.cat([tensors[i].flatten() for i in mine])
        with _gone():
            dist.all_reduce(flat)
        flat /= world_size()
        parts = flat.split([tensors[i].numel() for i in mine])
        found |= {i: part.view(tensors[i].shape) for i, part in zip(mine, parts, strict=True)}
    return [found[i] for i in range(len(tensors))]
