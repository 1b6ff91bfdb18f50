"""Process groups: ranks, collectives, averaged gradients and random streams."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from holdfast.core import parallel, processes
from holdfast.core.seeds import process_rng_streams, seeded, use_process_rng, use_shared_rng


def worker(rank: int, store: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="here", MASTER_PORT="1")
    parallel.init_process_group(dist.FileStore(store, 2), rank, 2)
    assert (parallel.rank(), parallel.world_size(), parallel.is_first()) == (rank, 2, rank == 0)
    assert processes.is_first() == parallel.is_first()
    gradients(rank)
    statistics(rank)
    assert parallel.all_max(rank, 1 - rank, 0) == [1, 1, 0]
    assert parallel.from_first(lambda: f"of {rank}") == "of 0"
    assert parallel.all_gather(rank) == [0, 1]
    rows = torch.tensor([[0], [1], [2]]) + 10 * rank  # two of one domain, one of another
    assert parallel.gather_rows(rows, (2, 1)).flatten().tolist() == [0, 1, 10, 11, 2, 12]
    assert parallel.mean(torch.tensor([float(rank)])).tolist() == [0.5]
    assert parallel.total(torch.tensor([float(rank)])).tolist() == [1.0]
    with parallel.local_first():
        assert os.path.exists(f"{store}.made") == (rank == 1)
        open(f"{store}.made", "w").close()
    streams(rank)
    dist.destroy_process_group()


def gradients(rank: int) -> None:
    a, b, c = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(1))
    a.grad = torch.full((2, 2), float(rank))
    if rank == 0:
        b.grad = torch.tensor([2.0, 4.0, 6.0])  # unused on the other rank
    parallel.average_gradients([a, b, c])
    assert torch.equal(a.grad, torch.full((2, 2), 0.5))
    assert torch.equal(b.grad, torch.tensor([1.0, 2.0, 3.0]))
    assert c.grad is None  # unused parameters are not decayed
    w = nn.Parameter(torch.tensor([1.0 + rank]))
    (slope,) = torch.autograd.grad(w**2, [w], create_graph=True)  # 2w: 2 here, 4 there
    average, none = parallel.mean_gradients([slope, None], [w, c])
    assert average.tolist() == [3.0]
    assert none is None
    assert torch.autograd.grad(average, [w])[0].tolist() == [2.0]


def statistics(rank: int) -> None:
    layers = nn.ModuleList([nn.BatchNorm1d(1), nn.BatchNorm1d(1)])
    layers[1].eval()
    for layer in layers:
        layer.running_mean.fill_(float(rank))
    parallel.average_batch_statistics(layers)
    assert [float(layer.running_mean) for layer in layers] == [
        0.5,
        float(rank),
    ]  # not in evaluation mode


def streams(rank: int) -> None:
    with seeded(0), process_rng_streams(0):
        before = torch.rand(1)
        with use_process_rng():
            private = torch.rand(1)
            with use_shared_rng():
                shared = torch.rand(1)
            again = torch.rand(1)
        after = torch.rand(1)
    first, second = parallel.all_gather([before, private, shared, again, after])
    assert [torch.equal(a, b) for a, b in zip(first, second, strict=True)] == [True, False, True, False, True]
    with seeded(0):
        assert torch.equal(torch.cat([before, shared, after]), torch.rand(3))  # equal to the stream of a single process


def test_collectives_of_two_processes(tmp_path):
    mp.start_processes(worker, args=(str(tmp_path / "store"),), nprocs=2, start_method="spawn")


def test_a_single_process_needs_no_group():
    p = nn.Parameter(torch.zeros(2))
    parallel.average_gradients([p])
    assert p.grad is None
    assert (parallel.rank(), parallel.world_size()) == (0, 1)
    assert parallel.all_max(1, 0) == [1, 0]
    assert parallel.mean_gradients([None, p], [p, p]) == [None, p]
    with parallel.process_group("auto"):
        assert not parallel.active()


@pytest.mark.gpu
def test_collectives_on_gpus_use_nccl(tmp_path, monkeypatch):
    """NCCL needs one GPU per process, so a group of one process is treated as active."""
    parallel.init_process_group(dist.FileStore(str(tmp_path / "store"), 1), 0, 1, backend="cpu:gloo,cuda:nccl")
    try:
        monkeypatch.setattr(parallel, "active", lambda: True)
        weight = nn.Parameter(torch.zeros(3, device="cuda"))
        weight.grad = torch.tensor([1.0, 2.0, 3.0], device="cuda")
        parallel.average_gradients([weight])
        assert weight.grad.tolist() == [1.0, 2.0, 3.0]
        assert parallel.mean(weight.grad).device.type == "cuda"
        assert parallel.gather_rows(torch.arange(3, device="cuda"), (2, 1)).tolist() == [0, 1, 2]
        assert parallel.all_max(0, 1) == [0, 1]
        assert parallel.all_gather("here") == ["here"]
        assert dist.get_backend_config() == "cpu:gloo,cuda:nccl"
    finally:
        dist.destroy_process_group()


FOUR = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
FOUR |= {"MASTER_ADDR": "a", "MASTER_PORT": "1"}


def values():
    names = (processes.world_size, processes.rank, processes.local_world_size, processes.local_rank, processes.is_first)
    return tuple(function() for function in names)


def test_the_environment_of_a_launcher_decides(monkeypatch):
    for name in FOUR:
        monkeypatch.delenv(name, raising=False)
    assert values() == (1, 0, 1, 0, True)
    for name, value in FOUR.items():
        monkeypatch.setenv(name, value)
    assert values() == (4, 3, 2, 1, False)
    monkeypatch.delenv("MASTER_ADDR")  # RANK without an address was set by another program
    assert values() == (1, 0, 1, 0, True)
