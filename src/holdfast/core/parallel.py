"""Distributed training: the process group and its collectives. In a single process every function is a no-op.

All processes of a run have bit-identical parameters and method state; each one takes its share of every batch.
"""

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
JOIN_TIMEOUT = timedelta(minutes=10)  # for all processes to start
COLLECTIVE_TIMEOUT = timedelta(days=1)  # for a slow process; one that ends is noticed at once
_ERROR_COUNT = "holdfast/failed"  # key in the store
_stores: list[dist.Store] = []  # of the process group, at most one


class Lost(BadInput):
    """Another process of the run ended."""


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Join the processes that a launcher started, with one GPU per process where GPUs are used."""
    if processes.world_size() == 1 or dist.is_initialized():
        yield
        return
    on_gpus = device != "cpu" and torch.cuda.is_available()
    if on_gpus:
        if processes.local_world_size() > torch.cuda.device_count():
            raise BadInput(
                f"{processes.local_world_size()} processes were started on a machine with {torch.cuda.device_count()} "
                "GPUs: start one process per GPU, or use --device cpu"
            )
        torch.cuda.set_device(processes.local_rank())
    # decisions, such as whether to stop, are exchanged over the CPU so that they do not synchronise the GPU
    with _raise_lost():
        store, rank, world_size = next(dist.rendezvous("env://", timeout=JOIN_TIMEOUT))
        init_process_group(store, rank, world_size, backend="cpu:gloo,cuda:nccl" if on_gpus else "gloo")
    yield  # after an error the group is not destroyed: the other processes notice that this one ended
    dist.destroy_process_group()


def init_process_group(store: dist.Store, rank: int, world_size: int, *, backend: str = "gloo") -> None:
    """Initialise torch.distributed with a store that all processes share."""
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=COLLECTIVE_TIMEOUT)
    _stores[:] = [store]


def active() -> bool:
    """Whether this run uses several processes."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank() -> int:
    return dist.get_rank() if active() else 0


def world_size() -> int:
    return dist.get_world_size() if active() else 1


def is_first() -> bool:
    """Whether this process writes files."""
    return rank() == 0


def may_report() -> bool:
    """Whether this process prints the error when several fail: the first one that asks."""
    if not active():
        return processes.is_first()
    try:
        return _stores[0].add(_ERROR_COUNT, 1) == 1
    except RuntimeError:
        return False  # the process that hosts the store ended


@contextmanager
def _raise_lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise Lost(
            "another process of this run ended, so this one ends too: repeat the command to resume from the last "
            "checkpoint"
        ) from error


def all_max(*values: int) -> list[int]:
    """Return the maximum of each value over the processes."""
    if not active():
        return list(values)
    largest = torch.tensor(values)
    with _raise_lost():
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest.tolist()


def from_first(make: Callable[[], T]) -> T:
    """Call `make` in the first process and return its result in all."""
    if not active():
        return make()
    box: list[Any] = [make() if is_first() else None]
    with _raise_lost():
        dist.broadcast_object_list(box, device=torch.device("cpu"))
    return box[0]


def all_gather(value: T) -> list[T]:
    """Return the value of every process, ordered by rank."""
    if not active():
        return [value]
    values: list[Any] = [None] * world_size()
    with _raise_lost():
        dist.all_gather_object(values, value)
    return values


@contextmanager
def local_first() -> Iterator[None]:
    """Run the block in the first process of each machine, then in the others, which can use the files it wrote."""
    ahead = processes.local_rank() == 0
    if active() and not ahead:
        all_max(0)
    yield
    if active() and ahead:
        all_max(0)


def mean(value: Tensor) -> Tensor:
    """Average a tensor over the processes, without gradient."""
    return _means([value.detach()])[0] if active() else value


def total(value: Tensor) -> Tensor:
    """Sum a tensor over the processes, without gradient."""
    return mean(value) * world_size() if active() else value


def gather_rows(value: Tensor, sizes: Sequence[int]) -> Tensor:
    """Concatenate the rows (b, ...) of all processes, one domain after another, `sizes` rows per domain and process."""
    if not active():
        return value
    gathered = [torch.empty_like(value, memory_format=torch.contiguous_format) for _ in range(world_size())]
    with _raise_lost():
        dist.all_gather(gathered, value.detach().contiguous())
    by_process = [rows.split(list(sizes)) for rows in gathered]
    return torch.cat([rows for domain in zip(*by_process, strict=True) for rows in domain])


def mean_gradients(grads: Sequence[Tensor | None], parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Average gradients over the processes; None where no process has a gradient.

    A gradient with a graph gets the mean as its value and keeps the graph of this process.
    """
    if not active():
        return list(grads)
    needed = all_max(*(int(g is not None) for g in grads))
    triples = zip(grads, parameters, needed, strict=True)
    local = [(torch.zeros_like(p) if g is None else g) if is_needed else None for g, p, is_needed in triples]
    means = iter(_means([g.detach() for g in local if g is not None]))
    averages = [None if g is None else next(means) for g in local]
    pairs: Any = zip(local, averages, strict=True)
    return [g + (value - g).detach() if g is not None and g.requires_grad else value for g, value in pairs]


def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Replace `.grad` by its mean over the processes; it stays None where no process has a gradient."""
    if not active():
        return
    for p, average in zip(parameters, mean_gradients([p.grad for p in parameters], parameters), strict=True):
        if p.grad is None:
            p.grad = average
        elif average is not None:
            p.grad.copy_(average)


@torch.no_grad()
def average_batch_statistics(network: nn.Module) -> None:
    """Average the running statistics of batch normalisation, so that all processes predict the same."""
    if not active():
        return
    layers = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    statistics = [t for m in layers for t in (m.running_mean, m.running_var) if t is not None]
    for local, average in zip(statistics, _means(statistics), strict=True):
        local.copy_(average)


def _means(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Average tensors over the processes with one all-reduce per dtype."""
    means: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(t.dtype for t in tensors):  # a dict keeps the order, a set does not
        members = [i for i, t in enumerate(tensors) if t.dtype == dtype]
        flat = torch.cat([tensors[i].flatten() for i in members])
        with _raise_lost():
            dist.all_reduce(flat)
        flat /= world_size()
        pieces = flat.split([tensors[i].numel() for i in members])
        means |= {i: piece.view(tensors[i].shape) for i, piece in zip(members, pieces, strict=True)}
    return [means[i] for i in range(len(tensors))]
