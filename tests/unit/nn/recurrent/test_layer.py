"""Recurrent layers with a bank: equations, independence of rows, growth, columns, widening."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.core.tape import tape
from holdfast.nn.growth import expand_inputs, units_for_budget
from holdfast.nn.recurrent import layout
from holdfast.nn.recurrent.layer import (
    RecurrentLayer,
    column_positions,
    next_column,
    run_columns,
    total_width,
)
from holdfast.ops.recurrent_step import InitialState
from tests.gradients import assert_same

LENGTHS = torch.tensor([3, 6, 1, 6, 2])
CELLS = ["lstm", "gru"]


def net(cell: str = "lstm", *, slots: int = 4, dtype: torch.dtype = torch.float64, **options) -> RecurrentLayer:
    torch.manual_seed(0)
    module = RecurrentLayer(5, 3, cell=cell, slots=slots, slot_width=2, **options).to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter *= 2  # so that gates and slot weights are far from uniform
    return module


def texts(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(5, 6, 5, generator=torch.Generator().manual_seed(1), dtype=dtype)


def naive(module: RecurrentLayer, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Compute states (b, t, 2h) one row, direction, step and slot at a time."""
    keys, values = module.bank.segments() if module.bank is not None else (None, None)
    out = []
    for row, length in zip(x, lengths.tolist(), strict=True):
        sides = []
        for g in range(module.directions):
            order = range(length) if g == 0 else range(length - 1, -1, -1)
            h = c = x.new_zeros(module.hidden)
            result = {}
            for step, i in enumerate(order):
                entering = row[i] @ module.by_input[g]
                if keys is not None and step > 0:
                    raw = [torch.exp(h @ key) for key in keys[g]]
                    content = sum(a / sum(raw) * value for a, value in zip(raw, values[g], strict=True))
                    entering = entering + content @ module.by_content[g]
                state, bias = (h @ module.by_state[g]).chunk(4 if module.cell == "lstm" else 3), module.bias[g].chunk(4)
                if module.cell == "lstm":
                    new, i_, f, o = (a + b + s for a, b, s in zip(entering.chunk(4), bias, state, strict=True))
                    c = torch.sigmoid(f) * c + torch.sigmoid(i_) * torch.tanh(new)
                    h = torch.sigmoid(o) * torch.tanh(c)
                else:
                    by_r, by_z, by_n = entering.chunk(3)
                    r = torch.sigmoid(by_r + state[1] + bias[1])
                    z = torch.sigmoid(by_z + state[2] + bias[2])
                    n = torch.tanh(by_n + bias[3] + r * (state[0] + bias[0]))
                    h = (1 - z) * n + z * h
                result[i] = h
            sides.append(torch.stack([result.get(i, x.new_zeros(module.hidden)) for i in range(x.shape[1])]))
        out.append(torch.cat(sides, -1))
    return torch.stack(out)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("slots", "directions"), [(0, 2), (4, 2), (4, 1)])
def test_layer_equals_a_naive_loop(cell, slots, directions):
    module, x = net(cell, slots=slots, directions=directions), texts().requires_grad_()
    if slots:
        module.grow(3, domain=1)
    assert_same(module(x, LENGTHS).padded(), naive(module, x, LENGTHS), [x, *module.parameters()])


@pytest.mark.parametrize("cell", CELLS)
def test_dense_layout_equals_packed_layout(cell, monkeypatch):
    module, x = net(cell), texts().requires_grad_()
    sparse = module(x, LENGTHS)
    expected = [sparse.last(), sparse.padded()]
    monkeypatch.setattr("holdfast.nn.recurrent.layer.make_layout", lambda lengths, t, device: layout._dense(lengths, t))
    full = module(x, LENGTHS)
    assert set(full.layout.active) == {5}
    for actual, each in zip([full.last(), full.padded()], expected, strict=True):
        assert_same(actual, each, [x, *module.parameters()])
    with tape() as heard:
        module(x, LENGTHS)
    monkeypatch.undo()
    with tape() as again:
        module(x, LENGTHS)
    assert_close(heard["memory/weights"][0], again["memory/weights"][0])


def test_first_segments_equal_the_layer_before_growth():
    module, x = net(dtype=torch.float32), texts(torch.float32)
    before = [module(x, LENGTHS).last()]
    for domain in (1, 2):
        new = module.grow(3, domain=domain)
        assert [tuple(p.shape) for p in new] == [(2, 3, 3), (2, 3, 2)]
        assert {id(p) for p in new} <= {id(p) for p in module.parameters()}
        before.append(module(x, LENGTHS).last())
    assert module.bank.owner.tolist() == [0] * 4 + [1] * 3 + [2] * 3
    for segments, then in enumerate(before, start=1):
        assert torch.equal(module(x, LENGTHS, segments=segments).last(), then)
    assert not torch.equal(before[0][1], before[1][1])
    assert torch.equal(before[0][2], before[1][2])  # with one step there is no read
    for segments in (0, 4):
        with pytest.raises(BadInput, match=r"segments.*between 1 and 3"):
            module(x, LENGTHS, segments=segments)


def test_frozen_segment_is_not_trained():
    module, x = net(), texts()
    module.grow(3, domain=1)
    module.bank.keys[0].requires_grad_(False)
    module.bank.values[0].requires_grad_(False)
    module(x, LENGTHS).last().square().sum().backward()
    for name, parameter in module.named_parameters():
        if name in ("bank.keys.0", "bank.values.0"):
            assert parameter.grad is None
        else:
            assert all(bool(part.any()) for part in parameter.grad), name  # in both directions


def test_weights_and_masses_are_recorded():
    module, x = net(), texts()
    module.grow(3, domain=1)
    with tape() as heard:
        module(x, LENGTHS)
    (weights,), (mass,) = heard["memory/weights"], heard["memory/mass"]
    assert weights.shape == (5, 2, 7)
    assert mass.shape == (5, 2, 2)
    reads = (LENGTHS > 1).double()[:, None].expand(5, 2)  # a row with one step never reads
    assert_close(mass.sum(-1), reads)
    assert_close(mass, torch.stack([weights[..., :4].sum(-1), weights[..., 4:].sum(-1)], -1))
    # the row with two steps reads once, with the state after its first step
    first = module(x[4:, :1], torch.tensor([1])).last()[0, :3]
    assert_close(weights[4, 0], (module.bank.segments()[0][0] @ first).softmax(-1))
    with tape() as heard:
        module(x, LENGTHS, segments=1)
    assert_close(heard["memory/mass"][0][..., 0], reads)


def test_initial_scale_is_independent_of_the_number_of_slots():
    module = RecurrentLayer(64, 36, slots=400, slot_width=64)
    module.grow(3000, domain=1)
    for keys, values in zip(module.bank.keys, module.bank.values, strict=True):
        keys, values = keys.detach(), values.detach()
        assert float(keys.abs().max()) <= 36**-0.5
        assert float(values.abs().max()) <= 64**-0.5
        assert float(keys.std()) == pytest.approx(36**-0.5 / 3**0.5, rel=0.02)
        assert float(values.std()) == pytest.approx(64**-0.5 / 3**0.5, rel=0.02)


def test_bad_input():
    for options, message in [
        ({"cell": "lsmt"}, "`cell` must be lstm or gru, got 'lsmt'"),
        ({"slots": -1}, "at least 0"),
        ({"directions": 3}, "directions.*3"),
    ]:
        with pytest.raises(BadInput, match=message):
            net(**options)
    with pytest.raises(BadInput, match="slot"):
        net(slots=0).grow(3, domain=1)
    with pytest.raises(BadInput, match="slot"):
        net().grow(0, domain=1)
    for lengths in (torch.tensor([0, 1, 1, 1, 1]), torch.tensor([7, 1, 1, 1, 1])):
        with pytest.raises(BadInput, match="between 1 and 6"):
            net()(texts(), lengths)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("directions", [1, 2])
def test_initial_state_continues_a_sequence(cell, directions):
    """States after step 2 equal those of a second call that starts from the state at step 2."""
    module, x = net(cell, directions=directions), texts()
    module.grow(3, domain=1)
    whole = InitialState(x.new_zeros(directions, 5, 3), x.new_zeros(directions, 5, 3))
    lengths = torch.full((5,), 6)
    for i in range(2):
        whole = module.step(x[:, i], whole) if i else _first(module, x[:, 0])
    rest = module(x[:, 2:], lengths - 2, start=whole).padded()[..., :3]
    assert_close(rest, module(x, lengths).padded()[:, 2:, :3])
    # rows of different lengths, in any order
    mixed = torch.tensor([1, 4, 2, 4, 3])
    some = module(x[:, 2:], mixed, start=whole).padded()[..., :3]
    for i, length in enumerate(mixed.tolist()):
        assert_close(some[i, :length], rest[i, :length])
    assert not torch.allclose(rest, module(x[:, 2:], lengths - 2).padded()[..., :3])


def _first(module: RecurrentLayer, x: torch.Tensor) -> InitialState:
    """Return the state after a first step without a read."""
    bare = copy.deepcopy(module)
    bare.by_content.data.zero_()
    return bare.step(x, InitialState(x.new_zeros(module.directions, len(x), 3)))


@pytest.mark.parametrize("cell", CELLS)
def test_single_steps_equal_the_loop(cell):
    module, x = net(cell, directions=1), texts()
    start = InitialState(*(torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(i)).double() for i in (4, 5)))
    whole, state = module(x, torch.full((5,), 6), start=start).padded(), start
    for i in range(6):
        state = module.step(x[:, i], state)
        assert_close(whole[:, i], state.hidden[0])


@pytest.mark.gpu
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("slots", [0, 9])
def test_cuda_graphs_equal_the_cpu_loop(cell, slots):
    """Repeated shapes, new shapes, and two forward passes before either backward pass."""
    torch.manual_seed(0)
    here = RecurrentLayer(6, 7, cell=cell, slots=slots, slot_width=6)
    visible = copy.deepcopy(here).cuda()

    def both(b, t):
        x, lengths = torch.randn(b, t, 6), torch.randint(1, t + 1, (b,))
        lengths[0] = t
        pair = [each.detach().clone().requires_grad_() for each in (x, x.cuda())]
        return pair, [net(each, lengths).padded() for net, each in zip((here, visible), pair, strict=True)]

    def check(pair, result):
        assert_close(result[1].cpu(), result[0], rtol=1e-5, atol=1e-5)
        grad = torch.randn_like(result[0])
        actual = torch.autograd.grad(result[1], (pair[1], *visible.parameters()), grad.cuda())
        theirs = torch.autograd.grad(result[0], (pair[0], *here.parameters()), grad)
        for a, b in zip(actual, theirs, strict=True):
            assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)

    for b, t in [(4, 9)] * 4 + [(3, 12)] * 4 + [(4, 9)]:
        check(*both(b, t))
    for shapes in (((4, 9), (4, 9)), ((3, 12), (4, 9)), ((4, 9), (3, 12))):
        for waiting in [both(*shape) for shape in shapes]:
            check(*waiting)


def test_temperature_divides_the_scores_and_scales_multiply_new_slots():
    plain, cool, x = net(), net(temperature=0.5), texts()
    with torch.no_grad():
        plain.bank.keys[0] *= 2
    assert_close(cool(x, LENGTHS).last(), plain(x, LENGTHS).last())
    state = InitialState(torch.ones(2, 5, 3, dtype=torch.float64))
    assert_close(cool.step(x[:, 0], state).hidden, plain.step(x[:, 0], state).hidden)
    assert_close(cool.bank.read(state.hidden), plain.bank.read(state.hidden))
    scaled, base = net(key_scale=3.0, value_scale=0.5), net()
    assert_close(scaled.bank.keys[0], 3 * base.bank.keys[0])
    assert_close(scaled.bank.values[0], 0.5 * base.bank.values[0])
    with pytest.raises(BadInput, match="temperature"):
        net(temperature=0.0)


def columns(cell: str = "lstm", **options) -> list[RecurrentLayer]:
    torch.manual_seed(0)
    module = [RecurrentLayer(5, 3, cell=cell, slots=4, slot_width=2).double()]
    for units in (2, 4):
        module.append(next_column(module, units, **options).double())
    return module


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_columns_read_words_and_earlier_states(cell):
    module, x = columns(cell), texts()
    assert [c.by_input.shape[1] for c in module] == [5, 5 + 6, 5 + 6 + 4]
    assert [c.bank is None for c in module] == [False, True, True]
    result = run_columns(module, x, LENGTHS, dropout=nn.Identity())
    first = module[0](x, LENGTHS).padded()
    second = module[1](torch.cat([x, first], -1), LENGTHS).padded()
    third = module[2](torch.cat([x, first, second], -1), LENGTHS).padded()
    for states, expected in zip(result, (first, second, third), strict=True):
        assert_close(states.padded(), expected)


def test_dropout_only_on_the_newest_column():
    module, x = columns(), texts()
    calls = []

    class Once(nn.Module):
        def forward(self, words):
            calls.append(words)
            return torch.zeros_like(words)

    *earlier, newest = run_columns(module, x, LENGTHS, dropout=Once())
    assert len(calls) == 1
    for states, plain in zip(earlier, run_columns(module, x, LENGTHS, dropout=nn.Identity())[:2], strict=True):
        assert torch.equal(states.packed, plain.packed)
    expected = module[2](torch.cat([torch.zeros_like(x), *(s.padded() for s in earlier)], -1), LENGTHS)
    assert_close(newest.packed, expected.packed)


def test_segments_refer_to_the_newest_bank():
    module, x = columns(slots=3), texts()
    assert module[2].bank.width == 2
    before = run_columns(module, x, LENGTHS, dropout=nn.Identity())
    module[2].grow(5, domain=1)
    now = run_columns(module, x, LENGTHS, dropout=nn.Identity(), segments=1)
    assert all(torch.equal(a.packed, b.packed) for a, b in zip(before, now, strict=True))


def test_column_positions():
    module = columns()
    assert total_width(module) == 6 + 4 + 8
    assert column_positions(module, 2).tolist() == [*range(10), 10, 11, 12, 13, 16, 17, 18, 19]
    assert column_positions(module[:1], 1).tolist() == [0, 1, 2, 4, 5, 6]


H, E = 3, 2


def widened(cell: str, *, slots: int = 4, dtype: torch.dtype = torch.float64, **options) -> RecurrentLayer:
    torch.manual_seed(0)
    module = RecurrentLayer(5, H, cell=cell, slots=slots, slot_width=2, **options).to(dtype)
    if slots:
        module.grow(3, domain=1)
    return module


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("slots", [0, 4])
def test_zero_connections_leave_the_old_network(cell, slots):
    module, x = widened(cell, slots=slots), texts()
    before = module(x, LENGTHS).packed
    module.widen(E)
    assert not torch.allclose(module(x, LENGTHS).packed[..., :H], before)  # connected in both directions
    with torch.no_grad():
        for block in module.by_state.unflatten(-1, (-1, H + E)).unbind(-2):
            block[:, H:, :H] = 0
        for keys in module.bank.keys if slots else ():
            keys[..., H:] = 0
    after = module(x, LENGTHS).packed
    assert_close(after[..., :H], before, rtol=0, atol=1e-15)
    assert bool((after[..., H:] != 0).all())


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_new_units_are_connected_and_trained(cell):
    module, x = widened(cell), texts()
    module.widen(E)
    for side in (slice(H), slice(H, None)):
        grads = torch.autograd.grad(
            module(x, LENGTHS).last().unflatten(-1, (2, -1))[..., side].sum(), module.parameters()
        )
        for (name, _), grad in zip(module.named_parameters(), grads, strict=True):
            units = grad if "values" in name else grad.unflatten(-1, (-1, H + E))
            assert all(bool(unit.any()) for unit in units.unbind(-1)), name


def test_initialisation_of_new_entries():
    module = RecurrentLayer(40, 30, slots=50)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    module.widen(70)
    for name, parameter in module.named_parameters():
        new = parameter.detach()[parameter != 0]
        if "values" not in name:
            assert 0.095 < float(new.abs().max()) <= 0.1, name
            assert float(new.std()) == pytest.approx(0.1 / 3**0.5, rel=0.08), name


def test_expand_inputs():
    torch.manual_seed(0)
    old = nn.Linear(3, 4).double().requires_grad_(False)
    at = torch.tensor([0, 4, 5])
    module = expand_inputs(old, at, 60)
    assert torch.equal(module.weight[:, at], old.weight)
    assert torch.equal(module.bias, old.bias)
    others = module.weight[:, [1, 2, 3, *range(6, 60)]]
    assert 0.12 < float(others.abs().max()) <= 60**-0.5
    assert not module.weight.requires_grad


@pytest.mark.parametrize(("parameters", "units"), [(1, 1), (100, 10), (109, 10), (111, 11), (10**12, 10**6)])
def test_units_for_budget(parameters, units):
    assert units_for_budget(parameters, lambda e: e**2) == units


def test_invalid_units_raise():
    with pytest.raises(BadInput, match=r"parameters.*0"):
        units_for_budget(0, lambda e: e)
    with pytest.raises(BadInput, match=r"units.*0"):
        widened("lstm").widen(0)
