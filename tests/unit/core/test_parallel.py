import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from holdfast.core import parallel


def worker(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    a, b = nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(3))
    a.grad = torch.full((2, 2), float(rank))
    if rank == 0:
        b.grad = torch.tensor([2.0, 4.0, 6.0])  # unused on the other rank
    parallel.average_gradients([a, b])
    assert parallel.rank() == rank
    assert parallel.world_size() == 2
    assert torch.equal(a.grad, torch.full((2, 2), 0.5))
    assert torch.equal(b.grad, torch.tensor([1.0, 2.0, 3.0]))
    dist.destroy_process_group()


def test_gradients_are_averaged_over_two_processes(tmp_path):
    mp.start_processes(worker, args=(str(tmp_path / "store"),), nprocs=2, start_method="spawn")


def test_alone_nothing_happens():
    p = nn.Parameter(torch.zeros(2))
    parallel.average_gradients([p])
    assert p.grad is None
    assert (parallel.rank(), parallel.world_size()) == (0, 1)
