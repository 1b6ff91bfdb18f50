"""Updates of the rows that a batch read, compared with dense updates."""

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from holdfast import catalog
from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.methods.base import StageInfo
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.methods.row_updates import adam_rows, coalesced
from holdfast.nn.heads import Linear
from holdfast.nn.memory.read import weighted_rows
from holdfast.nn.model import Model
from holdfast.tasks.classify import Classify
from tests.devices import KERNEL_DEVICES

ROWS, WIDTH = 12, 3


def _train(reads: list[list[int]], *, sparse: bool, settings: OptimizerSettings) -> tuple[Tensor, Optimizer]:
    """Read the given rows of a table, one step per list, together with a dense parameter."""
    rng = torch.Generator().manual_seed(0)
    table = nn.Parameter(torch.randn(ROWS, WIDTH, generator=rng))
    other = nn.Parameter(torch.randn(WIDTH, generator=rng))
    optimizer = Optimizer(settings, [table, other])
    for rows in reads:
        at = torch.tensor([rows])
        content = weighted_rows(table, at, torch.linspace(0.5, 1.5, len(rows))[None], sparse=sparse)
        optimizer.minimize(((content * other) ** 2).sum() + content.sum())
    return torch.cat([table.detach(), other.detach()[None]]), optimizer


SETTINGS = {
    "adamw": OptimizerSettings(lr=0.05, weight_decay=0.1, schedule="cosine", warmup=2, steps=6),
    "adam": OptimizerSettings(optimizer="adam", lr=0.05, weight_decay=0.1),
    "sgd": OptimizerSettings(optimizer="sgd", lr=0.05, momentum=0.9, weight_decay=0.1),
    "clip": OptimizerSettings(lr=0.05, clip=0.3),
    "accumulate": OptimizerSettings(lr=0.05, accumulate=2),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_rows_that_every_step_reads_equal_those_of_dense_updates(name: str) -> None:
    reads = [[1, 4, 4, 7]] * 6
    values, optimizer = _train(reads, sparse=True, settings=SETTINGS[name])
    expected, _ = _train(reads, sparse=False, settings=SETTINGS[name])
    rows = [1, 4, 7, ROWS]  # the last is the dense parameter
    torch.testing.assert_close(values[rows], expected[rows], rtol=1e-5, atol=1e-6)
    initial, _ = _train([], sparse=True, settings=SETTINGS[name])
    unread = [i for i in range(ROWS) if i not in rows]
    assert torch.equal(values[unread], initial[unread])  # no weight decay without a read
    assert not torch.equal(values[rows], initial[rows])
    assert all(p.grad is None for p in optimizer.parameters)


def test_sgd_without_momentum_and_decay_equals_the_dense_update() -> None:
    reads = [[0, 3], [3, 5, 5], [11], [0, 11]]
    settings = OptimizerSettings(optimizer="sgd", lr=0.05, momentum=0.0, weight_decay=0.0)
    values, _ = _train(reads, sparse=True, settings=settings)
    expected, _ = _train(reads, sparse=False, settings=settings)
    torch.testing.assert_close(values, expected)


def test_a_row_counts_its_own_steps() -> None:
    """A row that is read late moves as at the first step of Adam, whose size is the rate."""
    settings = OptimizerSettings(lr=0.05, weight_decay=0.0)
    before, _ = _train([[0]] * 9, sparse=True, settings=settings)
    after, optimizer = _train([[0]] * 9 + [[5]], sparse=True, settings=settings)
    torch.testing.assert_close((after - before)[5].abs(), torch.full((WIDTH,), 0.05), rtol=1e-4, atol=1e-6)
    steps = optimizer.optimizer.state[optimizer.parameters[0]]["step"]
    assert steps.tolist() == [9.0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_a_checkpoint_continues_exactly() -> None:
    settings, reads = OptimizerSettings(lr=0.05), [[1, 2], [2, 9], [1]]
    table = nn.Parameter(torch.ones(ROWS, WIDTH))
    optimizer = Optimizer(settings, [table])

    def step(table: nn.Parameter, optimizer: Optimizer, rows: list[int]) -> None:
        at = torch.tensor([rows])
        optimizer.minimize(weighted_rows(table, at, torch.ones(1, len(rows)), sparse=True).square().sum())

    for rows in reads:
        step(table, optimizer, rows)
    other = nn.Parameter(table.detach().clone())
    resumed = Optimizer(settings, [other])
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for rows in reads:
        step(table, optimizer, rows)
        step(other, resumed, rows)
    assert torch.equal(table, other)


def test_dense_gradients_update_all_rows_after_sparse_ones() -> None:
    table = nn.Parameter(torch.ones(ROWS, WIDTH))
    optimizer = Optimizer(OptimizerSettings(lr=0.1, weight_decay=0.0), [table])
    optimizer.minimize(weighted_rows(table, torch.tensor([[2]]), torch.ones(1, 1), sparse=True).sum())
    optimizer.apply_gradients([torch.ones(ROWS, WIDTH)])
    assert (table[0] < 1).all()
    assert (table[2] < table[0]).all()
    sparse = torch.ones(ROWS, WIDTH).to_sparse(1)
    optimizer.apply_gradients([sparse])
    assert (table[0] < 0.85).all()


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("device", KERNEL_DEVICES)
def test_the_kernel_equals_the_reference(device: str, decoupled: bool) -> None:
    from holdfast.nn.kernels import memory

    rng = torch.Generator().manual_seed(0)
    shape, rows = (ROWS, 5), torch.tensor([7, 0, 3], device=device)
    table, mean, grad = (torch.randn(*size, generator=rng).to(device) for size in (shape, shape, (3, 5)))
    square, steps = torch.rand(*shape, generator=rng).to(device), torch.arange(ROWS, device=device).float() * 100
    group = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.3}
    state = {"exp_avg": mean.clone(), "exp_avg_sq": square.clone(), "step": steps.clone()}
    expected = table.clone()
    adam_rows(expected, rows, grad, state, group, decoupled=decoupled)
    memory.adam_rows(
        table, (mean, square), steps, rows, grad, lr=torch.tensor(0.1, device=device), betas=(0.9, 0.999), eps=1e-8,
        decay=0.3, decoupled=decoupled,
    )  # fmt: skip
    torch.testing.assert_close(table, expected, rtol=1e-5, atol=1e-6)
    for actual, name in ((mean, "exp_avg"), (square, "exp_avg_sq"), (steps, "step")):
        torch.testing.assert_close(actual, state[name], rtol=1e-5, atol=1e-6)


def test_gradients_with_rows_in_order_are_not_copied() -> None:
    values = torch.arange(6.0).view(2, 3)
    ordered = torch.sparse_coo_tensor(torch.tensor([[1, 4]]), values, (5, 3))
    assert not ordered.is_coalesced()
    assert coalesced(ordered).is_coalesced()
    assert coalesced(ordered).values().data_ptr() == values.data_ptr()
    repeated = torch.sparse_coo_tensor(torch.tensor([[4, 4]]), values, (5, 3))
    assert coalesced(repeated).values().tolist() == [[3.0, 5.0, 7.0]]


def _model(**options) -> Model:
    torch.manual_seed(0)
    settings = {"slots": 64, "heads": 2, "key_width": 8, "top": 2, "init": "published", **options}
    neck = catalog.build("necks", "product-memory", 8, options=settings)
    return Model(nn.Linear(4, 8), neck, Linear(8, 3))


def _batch() -> DomainBatch:
    rng = torch.Generator().manual_seed(3)
    return DomainBatch(torch.randn(4, 4, generator=rng), torch.tensor([0, 1, 2, 0]), (0, 1), (2, 2))


def test_a_memory_updates_the_values_that_a_batch_read() -> None:
    make = partial(Optimizer, OptimizerSettings(lr=0.01, clip=1.0))
    method = ERM(_model(updates="read"), task=Classify(), optimizer=make).train()
    name = next(name for name, _ in method.named_parameters() if name.endswith("values"))
    before = method.get_parameter(name).detach().clone()
    method.step(_batch())
    changed = (method.get_parameter(name) != before).any(1)
    assert 0 < int(changed.sum()) <= 4 * 2 * 2  # examples, heads, slots per head
    everything = ERM(_model(), task=Classify(), optimizer=make).train()
    everything.step(_batch())
    assert (everything.get_parameter(name) != before).any(1).all()  # by weight decay


def test_other_methods_and_several_processes_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    make = partial(Optimizer, OptimizerSettings())
    with pytest.raises(BadInput, match=r"updates=read.*methods such as erm.*MLDG.*use updates=all"):
        catalog.build("methods", "mldg", _model(updates="read"), options={}, task=Classify(), optimizer=make)
    with pytest.raises(BadInput, match=r"updates.*'some'"):
        _model(updates="some")
    monkeypatch.setattr(parallel, "world_size", lambda: 2)
    with pytest.raises(BadInput, match=r"one process.*use updates=all"):
        ERM(_model(updates="read"), task=Classify(), optimizer=make).begin_stage(StageInfo(0, ("a",)))


@pytest.mark.gpu
def test_row_updates_on_a_gpu_equal_those_on_a_cpu() -> None:
    results = []
    for device in ("cpu", "cuda"):
        make = partial(Optimizer, OptimizerSettings(lr=0.01, clip=1.0))
        method = ERM(_model(updates="read").to(device), task=Classify(), optimizer=make).train()
        batch = _batch()
        assert isinstance(batch.x, Tensor)
        moved = DomainBatch(batch.x.to(device), batch.y.to(device), batch.domains, batch.sizes)
        for _ in range(5):
            method.step(moved)
        results.append([p.detach().cpu() for p in method.parameters()])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
