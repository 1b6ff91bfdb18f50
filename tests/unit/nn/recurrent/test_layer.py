"""A recurrent network with a bank is its equations, each row by itself; growth leaves the old network inside."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.core.tape import tape
from holdfast.nn.recurrent import layout
from holdfast.nn.recurrent.layer import RecurrentLayer
from holdfast.nn.recurrent.reference import InitialState

LENGTHS = torch.tensor([3, 6, 1, 6, 2])
CELLS = ["lstm", "gru"]


def net(cell: str = "lstm", *, slots: int = 4, dtype: torch.dtype = torch.float64, **options) -> RecurrentLayer:
    torch.manual_seed(0)
    made = RecurrentLayer(5, 3, cell=cell, slots=slots, slot_width=2, **options).to(dtype)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter *= 2  # so that gates and weights of slots are far from even
    return made


def texts(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(5, 6, 5, generator=torch.Generator().manual_seed(1), dtype=dtype)


def naive(made: RecurrentLayer, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """(b, t, 2h) one row, one direction, one step and one slot at a time."""
    keys, values = made.bank.segments() if made.bank is not None else (None, None)
    out = []
    for row, length in zip(x, lengths.tolist(), strict=True):
        sides = []
        for g in range(made.directions):
            order = range(length) if g == 0 else range(length - 1, -1, -1)
            h = c = x.new_zeros(made.hidden)
            found = {}
            for step, i in enumerate(order):
                entering = row[i] @ made.by_input[g]
                if keys is not None and (step > 0 or made.options.first_read == "uniform"):
                    raw = [torch.exp(h @ key) for key in keys[g]]
                    content = sum(a / sum(raw) * value for a, value in zip(raw, values[g], strict=True))
                    entering = entering + content @ made.by_content[g]
                state, bias = (h @ made.by_state[g]).chunk(4 if made.cell == "lstm" else 3), made.bias[g].chunk(4)
                if made.cell == "lstm":
                    new, i_, f, o = (a + b + s for a, b, s in zip(entering.chunk(4), bias, state, strict=True))
                    c = torch.sigmoid(f) * c + torch.sigmoid(i_) * torch.tanh(new)
                    h = torch.sigmoid(o) * torch.tanh(c)
                else:
                    by_r, by_z, by_n = entering.chunk(3)
                    r = torch.sigmoid(by_r + state[1] + bias[1])
                    z = torch.sigmoid(by_z + state[2] + bias[2])
                    n = torch.tanh(by_n + bias[3] + r * (state[0] + bias[0]))
                    h = (1 - z) * n + z * h
                found[i] = h
            sides.append(torch.stack([found.get(i, x.new_zeros(made.hidden)) for i in range(x.shape[1])]))
        out.append(torch.cat(sides, -1))
    return torch.stack(out)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("slots", [0, 4])
@pytest.mark.parametrize("first_read", ["zero", "uniform"])
def test_it_is_the_naive_loop_in_values_and_gradients(cell, slots, first_read):
    made, x = net(cell, slots=slots, first_read=first_read), texts().requires_grad_()
    if slots:
        made.grow(3, domain=1)
    learned = [x, *made.parameters()]
    wanted, found = naive(made, x, LENGTHS), made(x, LENGTHS).padded()
    assert_close(found, wanted)
    grad = torch.randn(found.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for a, b in zip(torch.autograd.grad(found, learned, grad), torch.autograd.grad(wanted, learned, grad), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("cell", CELLS)
def test_without_slots_it_is_torchs_own(cell):
    made, x = net(cell, slots=0), texts()
    theirs = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell](5, 3, batch_first=True, bidirectional=True).double()
    # torch has the blocks i f g o and r z n, with a bias for the input and one for the state
    with torch.no_grad():
        for g, side in enumerate(("", "_reverse")):
            by_input, by_state, b_input, b_state = (
                getattr(theirs, f"{name}_l0{side}").unflatten(0, (-1, 3))
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            if cell == "lstm":
                order, first = [2, 0, 1, 3], [2, 0, 1, 3]
                bias = (b_input + b_state)[order]
            else:
                order, first = [0, 1, 2], [2, 0, 1]
                bias = torch.stack([b_state[2], *(b_input + b_state)[:2], b_input[2]])
            made.by_input[g] = by_input[order].flatten(0, 1).T
            made.by_state[g] = by_state[first].flatten(0, 1).T
            made.bias[g] = bias.flatten()
    packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    states, last = theirs(packed)
    assert_close(made(x, LENGTHS).padded(), pad_packed_sequence(states, batch_first=True)[0])
    last = last[0] if cell == "lstm" else last
    assert_close(made(x, LENGTHS).last(), torch.cat([last[0], last[1]], -1))
    assert sum(p.numel() for p in made.parameters()) < sum(p.numel() for p in theirs.parameters())  # one bias, not two


@pytest.mark.parametrize("cell", CELLS)
def test_batch_and_padding_change_nothing(cell):
    made, x = net(cell, dtype=torch.float32), texts(torch.float32)
    whole = made(x, LENGTHS).last()
    for i, length in enumerate(LENGTHS.tolist()):
        assert_close(made(x[i : i + 1, :length], LENGTHS[i : i + 1]).last()[0], whole[i], atol=1e-6, rtol=1e-5)
    junk = torch.cat([x, torch.full((5, 4, 5), 1e4)], 1)
    assert_close(made(junk, LENGTHS).last(), whole, atol=1e-6, rtol=1e-5)
    turned = torch.tensor([4, 2, 0, 3, 1])
    assert_close(made(x[turned], LENGTHS[turned]).last(), whole[turned], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_all_rows_in_all_steps_give_the_same(cell, monkeypatch):
    made, x = net(cell), texts().requires_grad_()
    sparse = made(x, LENGTHS)
    wanted = [sparse.last(), sparse.padded()]
    monkeypatch.setattr("holdfast.nn.recurrent.layer.make_layout", lambda lengths, t, device: layout._dense(lengths, t))
    full = made(x, LENGTHS)
    assert set(full.layout.active) == {5}
    learned = [x, *made.parameters()]
    for a, b in zip([full.last(), full.padded()], wanted, strict=True):
        assert_close(a, b)
        for one, other in zip(
            torch.autograd.grad(a.sum(), learned, retain_graph=True),
            torch.autograd.grad(b.sum(), learned, retain_graph=True),
            strict=True,
        ):
            assert_close(one, other)
    with tape() as heard:
        made(x, LENGTHS)
    monkeypatch.undo()
    with tape() as again:
        made(x, LENGTHS)
    assert_close(heard["memory/weights"][0], again["memory/weights"][0])


def test_reversed_texts_and_exchanged_directions_exchange_the_halves():
    made, x = net(), texts()
    other = copy.deepcopy(made)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(parameter.flip(0))
    turned = x.clone()
    for i, length in enumerate(LENGTHS.tolist()):
        turned[i, :length] = x[i, :length].flip(0)
    forwards, backwards = made(x, LENGTHS).last().chunk(2, -1)
    assert_close(other(turned, LENGTHS).last(), torch.cat([backwards, forwards], -1))


@pytest.mark.parametrize("first_read", ["zero", "uniform"])
def test_the_first_segments_alone_are_the_network_before_it_grew(first_read):
    made, x = net(dtype=torch.float32, first_read=first_read), texts(torch.float32)
    before = [made(x, LENGTHS).last()]
    for domain in (1, 2):
        new = made.grow(3, domain=domain)
        assert [tuple(p.shape) for p in new] == [(2, 3, 3), (2, 3, 2)]
        assert {id(p) for p in new} <= {id(p) for p in made.parameters()}
        before.append(made(x, LENGTHS).last())
    assert made.bank.owner.tolist() == [0] * 4 + [1] * 3 + [2] * 3
    for segments, then in enumerate(before, start=1):
        assert torch.equal(made(x, LENGTHS, segments=segments).last(), then)
    assert not torch.equal(before[0][1], before[1][1])
    # with one step the first read is the only one
    assert torch.equal(before[0][2], before[1][2]) == (first_read == "zero")
    for segments in (0, 4):
        with pytest.raises(BadInput, match="segments.*between 1 and 3"):
            made(x, LENGTHS, segments=segments)


def test_old_and_new_slots_learn_and_a_frozen_segment_does_not():
    made, x = net(), texts()
    made.grow(3, domain=1)
    made.bank.keys[0].requires_grad_(False)
    made.bank.values[0].requires_grad_(False)
    made(x, LENGTHS).last().square().sum().backward()
    for name, parameter in made.named_parameters():
        if name in ("bank.keys.0", "bank.values.0"):
            assert parameter.grad is None
        else:
            assert all(bool(part.any()) for part in parameter.grad), name  # in both directions


def test_weights_and_masses_go_to_a_tape_alone_and_sum_to_one():
    made, x = net(), texts()
    made.grow(3, domain=1)
    with tape() as heard:
        made(x, LENGTHS)
    (weights,), (mass,) = heard["memory/weights"], heard["memory/mass"]
    assert weights.shape == (5, 2, 7)
    assert mass.shape == (5, 2, 2)
    reads = (LENGTHS > 1).double()[:, None].expand(5, 2)  # a row of one step never reads
    assert_close(mass.sum(-1), reads)
    assert_close(mass, torch.stack([weights[..., :4].sum(-1), weights[..., 4:].sum(-1)], -1))
    # by hand: the row of two steps reads once, with the state after its first word
    first = made(x[4:, :1], torch.tensor([1])).last()[0, :3]
    assert_close(weights[4, 0], (made.bank.segments()[0][0] @ first).softmax(-1))
    with tape() as heard:
        made(x, LENGTHS, segments=1)
    assert_close(heard["memory/mass"][0][..., 0], reads)


def test_the_state_of_a_grown_network_loads_into_a_fresh_one():
    made, x = net(), texts()
    made.grow(3, domain=4)
    fresh = net().requires_grad_(False)
    fresh.load_state_dict(made.state_dict())
    assert torch.equal(fresh(x, LENGTHS).last(), made(x, LENGTHS).last())
    assert fresh.bank.owner.tolist() == [0] * 4 + [4] * 3
    assert not any(p.requires_grad for p in fresh.parameters())


def test_slots_start_alike_however_many_come():
    made = RecurrentLayer(64, 36, slots=400, slot_width=64)
    made.grow(3000, domain=1)
    for keys, values in zip(made.bank.keys, made.bank.values, strict=True):
        keys, values = keys.detach(), values.detach()
        assert float(keys.abs().max()) <= 36**-0.5
        assert float(values.abs().max()) <= 64**-0.5
        assert float(keys.std()) == pytest.approx(36**-0.5 / 3**0.5, rel=0.02)
        assert float(values.std()) == pytest.approx(64**-0.5 / 3**0.5, rel=0.02)


def test_a_domain_of_the_published_size_adds_600_000_parameters():
    made = RecurrentLayer(300, 300, slots=1)
    assert sum(p.numel() for p in made.grow(500, domain=1)) == 600_000


def test_large_scores_do_not_overflow():
    made, x = net(dtype=torch.float32), texts(torch.float32).requires_grad_()
    with torch.no_grad():
        made.bank.keys[0].mul_(1e4)
    found = made(x, LENGTHS).last()
    assert torch.isfinite(found).all()
    assert torch.isfinite(torch.autograd.grad(found.sum(), x)[0]).all()


def test_bad_input():
    for options, said in [
        ({"cell": "lsmt"}, "did you mean 'lstm'"),
        ({"first_read": "none"}, "first read"),
        ({"slots": -1}, "at least 0"),
        ({"directions": 3}, "directions.*3"),
    ]:
        with pytest.raises(BadInput, match=said):
            net(**options)
    with pytest.raises(BadInput, match="slot"):
        net(slots=0).grow(3, domain=1)
    with pytest.raises(BadInput, match="slot"):
        net().grow(0, domain=1)
    for lengths in (torch.tensor([0, 1, 1, 1, 1]), torch.tensor([7, 1, 1, 1, 1])):
        with pytest.raises(BadInput, match="between 1 and 6"):
            net()(texts(), lengths)


def test_one_direction():
    made, x = net(directions=1), texts()
    assert_close(made(x, LENGTHS).padded(), naive(made, x, LENGTHS))
    assert made(x, LENGTHS).last().shape == (5, 3)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("directions", [1, 2])
def test_going_on_from_a_state_is_the_second_half_of_a_longer_run(cell, directions):
    """Forwards: the states after step 2 are those of a run over the rest that starts from the state at step 2."""
    made, x = net(cell, directions=directions), texts()
    made.grow(3, domain=1)
    whole = InitialState(x.new_zeros(directions, 5, 3), x.new_zeros(directions, 5, 3))
    lengths = torch.full((5,), 6)
    for i in range(2):
        whole = made.step(x[:, i], whole) if i else _first(made, x[:, 0])
    rest = made(x[:, 2:], lengths - 2, start=whole).padded()[..., :3]
    assert_close(rest, made(x, lengths).padded()[:, 2:, :3])
    # rows of other lengths, in whatever order they are laid out
    mixed = torch.tensor([1, 4, 2, 4, 3])
    some = made(x[:, 2:], mixed, start=whole).padded()[..., :3]
    for i, length in enumerate(mixed.tolist()):
        assert_close(some[i, :length], rest[i, :length])
    assert not torch.allclose(rest, made(x[:, 2:], lengths - 2).padded()[..., :3])


def _first(made: RecurrentLayer, x: torch.Tensor) -> InitialState:
    """The state after a first step that reads nothing."""
    bare = copy.deepcopy(made)
    bare.by_content.data.zero_()
    return bare.step(x, InitialState(x.new_zeros(made.directions, len(x), 3)))


@pytest.mark.parametrize("cell", CELLS)
def test_step_by_step_it_is_the_whole_run_from_a_start(cell):
    made, x = net(cell, directions=1), texts()
    start = InitialState(*(torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(i)).double() for i in (4, 5)))
    whole, state = made(x, torch.full((5,), 6), start=start).padded(), start
    for i in range(6):
        state = made.step(x[:, i], state)
        assert_close(whole[:, i], state.hidden[0])


def test_a_gradient_reaches_the_state_it_starts_from():
    made, x = net("gru", directions=1), texts()
    start = torch.zeros(1, 5, 3, dtype=torch.float64, requires_grad=True)
    made(x, LENGTHS, start=InitialState(start)).last().sum().backward()
    assert all(bool(row.any()) for row in start.grad[0])


@pytest.mark.gpu
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("slots", [0, 9])
def test_recorded_on_a_gpu_it_gives_what_the_plain_loop_on_the_cpu_gives(cell, slots):
    """Shapes that come again, that are new, and two passes of one shape or of two before either goes back."""
    torch.manual_seed(0)
    here = RecurrentLayer(6, 7, cell=cell, slots=slots, slot_width=6)
    there = copy.deepcopy(here).cuda()

    def both(b, t):
        x, lengths = torch.randn(b, t, 6), torch.randint(1, t + 1, (b,))
        lengths[0] = t
        pair = [each.detach().clone().requires_grad_() for each in (x, x.cuda())]
        return pair, [net(each, lengths).padded() for net, each in zip((here, there), pair, strict=True)]

    def check(pair, found):
        assert_close(found[1].cpu(), found[0], rtol=1e-5, atol=1e-5)
        grad = torch.randn_like(found[0])
        mine = torch.autograd.grad(found[1], (pair[1], *there.parameters()), grad.cuda())
        theirs = torch.autograd.grad(found[0], (pair[0], *here.parameters()), grad)
        for a, b in zip(mine, theirs, strict=True):
            assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)

    for b, t in ((4, 9), (4, 9), (3, 12), (4, 9)):
        check(*both(b, t))
    for shapes in (((4, 9), (4, 9)), ((3, 12), (4, 9)), ((4, 9), (3, 12))):
        for waiting in [both(*shape) for shape in shapes]:
            check(*waiting)
