"""The reservoir: uniform, bounded, for all kinds of input; experience replay; and gradients projected by A-GEM."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from holdfast.core import inputs
from holdfast.core.batch import DomainBatch
from holdfast.core.checkpoint import load_tree, save_tree
from holdfast.core.inputs import Graphs, Tokens
from holdfast.methods.replay import AGEM, Replay, Reservoir, project
from tests.unit.methods.streams import batch_of, begin, build


def numbered(start, size, domain=0):
    """Return examples whose input is their index."""
    rows = torch.arange(start, start + size)
    return DomainBatch(rows[:, None].float(), rows, (domain,), (size,))


def texts(lengths, domain=0, pad=7):
    """Return texts that repeat their length, padded with a marker."""
    size = torch.tensor(lengths)
    mask = torch.arange(max(lengths)) < size[:, None]
    ids = torch.where(mask, size[:, None], pad)
    return DomainBatch(Tokens(ids, mask, mask.long()), size, (domain,), (len(lengths),))


def graphs(sizes, domain=0):
    """Return rings whose node features are their size."""
    found = []
    for v in sizes:
        ring = torch.stack([torch.arange(v), (torch.arange(v) + 1) % v])
        found.append(Graphs(torch.full((v, 2), float(v)), ring, torch.zeros(v, dtype=torch.long), 1, torch.ones(v, 1)))
    return DomainBatch(inputs.cat(found), torch.tensor(sizes), (domain,), (len(sizes),))


def contents(x):
    """Return the tensors of the inputs."""
    if isinstance(x, torch.Tensor):
        return [x]
    return [x.ids, x.mask, x.types] if isinstance(x, Tokens) else [x.nodes, x.edges, x.owner, x.weights]


@pytest.mark.slow
def test_every_example_is_stored_with_equal_probability():
    counts = np.zeros(40)
    for seed in range(800):
        torch.manual_seed(seed)
        memory = Reservoir(8)
        memory.fill([numbered(0, 15), numbered(15, 1), numbered(16, 24)])
        counts[memory.draw(8, "cpu").y.numpy()] += 1
    assert counts.sum() == 800 * 8
    assert chisquare(counts).pvalue > 1e-3


def test_every_stored_example_is_drawn_with_equal_probability():
    memory = Reservoir(10)
    memory.fill([numbered(0, 10)])
    torch.manual_seed(0)
    counts = np.bincount(torch.cat([memory.draw(3, "cpu").y for _ in range(3000)]).numpy(), minlength=10)
    assert chisquare(counts).pvalue > 1e-3


@given(
    capacity=st.integers(1, 30),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    k=st.integers(1, 40),
    seed=st.integers(0, 999),
)
@settings(max_examples=80, deadline=None)
def test_capacity_and_distinct_rows(capacity, sizes, k, seed):
    torch.manual_seed(seed)
    memory, owner, start = Reservoir(capacity), {}, 0
    for at, size in enumerate(sizes):
        domain = at % 3
        memory.fill([numbered(start, size, domain)])
        owner |= dict.fromkeys(range(start, start + size), domain)
        start += size
        assert len(memory) == min(capacity, start)
        assert memory.seen == start
    drawn = memory.draw(k, "cpu")
    rows = drawn.y.tolist()
    assert len(rows) == len(set(rows)) == min(k, len(memory))
    assert drawn.domains == tuple(sorted(set(drawn.domains)))
    for part in drawn.by_domain():
        assert all(owner[row] == part.domains[0] for row in part.y.tolist())
        assert torch.equal(part.x[:, 0].long(), part.y)


def test_the_sample_does_not_depend_on_the_batch_size():
    found = []
    for cuts in ([50], [1] * 50, [20, 30]):
        torch.manual_seed(1)
        memory, start = Reservoir(6), 0
        for size in cuts:
            memory.fill([numbered(start, size)])
            start += size
        found.append([int(y) for _, y, _ in memory.examples])
    assert found[0] == found[1] == found[2]


def test_texts_are_stored_without_padding():
    memory = Reservoir(6)
    memory.fill([texts([3, 1, 5]), texts([2]), texts([9, 4], domain=1)])
    assert [x.ids.shape[1] for x, _, _ in memory.examples] == [3, 1, 5, 2, 9, 4]
    drawn = memory.draw(6, "cpu")
    assert drawn.domains == (0, 1)
    assert drawn.sizes == (4, 2)
    assert torch.equal(drawn.x.mask.sum(1), drawn.y)
    assert bool((drawn.x.ids == drawn.y[:, None])[drawn.x.mask].all())
    assert torch.equal(drawn.x.types, drawn.x.mask.long())


def test_graphs_are_stored():
    memory = Reservoir(3)
    memory.fill([graphs([3, 5, 4]), graphs([6, 7], domain=1)])
    drawn = memory.draw(3, "cpu")
    assert torch.equal(torch.bincount(drawn.x.owner), drawn.y)
    assert torch.equal(drawn.x.nodes[:, 0].long(), drawn.y[drawn.x.owner])
    assert drawn.x.weights.shape == (drawn.x.edges.shape[1], 1)


@pytest.mark.parametrize("batch", [numbered(0, 30), texts([3, 1, 5, 2, 9, 4]), graphs([3, 5, 4, 8])])
def test_state_round_trip_through_a_file(tmp_path, batch):
    memory, other = Reservoir(5), Reservoir(5)
    memory.fill([batch])
    save_tree(tmp_path / "state", memory.state_dict())
    other.load_state_dict(load_tree(tmp_path / "state"))
    for each in (memory, other):
        torch.manual_seed(2)
        each.fill([batch])
    assert other.seen == memory.seen
    torch.manual_seed(4)
    a = memory.draw(4, "cpu")
    torch.manual_seed(4)
    b = other.draw(4, "cpu")
    assert (a.domains, a.sizes) == (b.domains, b.sizes)
    assert torch.equal(a.y, b.y)
    for left, right in zip(contents(a.x), contents(b.x), strict=True):
        assert torch.equal(left, right)


def test_state_round_trip_of_an_empty_reservoir():
    other = Reservoir(5)
    other.fill([numbered(0, 3)])
    other.load_state_dict(Reservoir(5).state_dict())
    assert len(other) == other.seen == 0


def spied(method):
    """Return the sizes of all batches that the model is trained on."""
    seen = []
    inner = method.task.loss
    method.task.loss = lambda output, y: seen.append(len(y)) or inner(output, y)
    return seen


def test_number_of_replayed_examples():
    for batch, wanted in ((None, [16, 32]), (4, [16, 20]), (500, [16, 16 + 40])):
        method = build(Replay, capacity=40, batch=batch)
        seen = spied(method)
        begin(method, 0)
        assert float(method.step(batch_of(0))["buffer"]) == 0.0
        method.end_stage([batch_of(0, slice(0, 50))])
        begin(method, 1)
        assert float(method.step(batch_of(1))["buffer"]) == 40.0
        assert seen == wanted


def dot(a, b):
    return sum(float((x * y).double().sum()) for x, y in zip(a, b, strict=True) if x is not None and y is not None)


@given(seed=st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_the_projection(seed):
    torch.manual_seed(seed)
    g, r = ([torch.randn(3, 2), torch.randn(5)] for _ in range(2))
    projected, is_projected = project(g, r)
    assert float(is_projected) == (dot(g, r) < 0)
    if dot(g, r) >= 0:
        assert all(torch.equal(a, b) for a, b in zip(projected, g, strict=True))
        return
    assert dot(projected, r) == pytest.approx(0.0, abs=1e-5)
    expected = [a - dot(g, r) / dot(r, r) * b for a, b in zip(g, r, strict=True)]
    for a, b in zip(projected, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_parameters_without_a_gradient():
    g, r = [torch.tensor([1.0]), None, torch.tensor([2.0])], [torch.tensor([-1.0]), torch.tensor([1.0]), None]
    projected, is_projected = project(g, r)
    assert float(is_projected) == 1.0
    assert [f.item() for f in projected] == [0.5, 0.5, 2.0]
    assert project([None, torch.ones(1)], [None, torch.ones(1)])[0][0] is None


def test_a_reference_of_zero_changes_nothing():
    g = [torch.tensor([1.0, -2.0])]
    projected, is_projected = project(g, [torch.zeros(2)])
    assert torch.equal(projected[0], g[0])
    assert float(is_projected) == 0.0


def test_applied_gradients_do_not_oppose_the_buffer():
    method = build(AGEM, capacity=16)
    begin(method, 0)
    for _ in range(30):
        assert float(method.step(batch_of(0))["projected"]) == 0.0
    method.end_stage([batch_of(0)])
    begin(method, 1)
    applied, inner = [], method.optimizer.apply_gradients
    method.optimizer.apply_gradients = lambda grads: applied.append(grads) or inner(grads)
    turned = []
    for _ in range(20):
        # the complete buffer is drawn, so the reference is known
        _, reference = method._gradient(method.memory.draw(16, "cpu"))
        metrics = method.step(batch_of(3))
        turned.append(float(metrics["projected"]))
        assert float(metrics["buffer"]) == 16.0
        assert dot(applied[-1], reference) >= -1e-4 * dot(reference, reference) ** 0.5
    assert sum(turned) > 0
