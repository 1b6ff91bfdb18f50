"""MemoryRNN: texts and pairs, words, and growth by slots, words, units and columns in any order."""

import copy
import itertools
import json

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.nn.backbones.memory_rnn import MemoryRNN
from holdfast.nn.backbones.words import PAD, UNKNOWN

TEXTS = ["The food was good, the wine 3.5!", "Bad film.", "don't go, the film was bad", "", "good good good"]
PAIRS = list(zip(TEXTS, ["no", "The film was bad , really bad", "", "good", "Bad"], strict=True))
SMALL = {"embedding": 6, "hidden": 4, "slots": 5, "slot_width": 3, "joint": 7}
ALL = torch.arange(5)


def net(examples=TEXTS, **options) -> MemoryRNN:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return MemoryRNN.build(lambda: examples, **{**SMALL, **options})


def exact(examples=TEXTS, **options) -> MemoryRNN:
    return net(examples, **options).double().eval()


def test_a_text_is_the_last_state_of_both_directions():
    network = net().eval()
    x = network.prepare(TEXTS).take(torch.tensor([1]))  # three words
    states = network.rnn(network.table(x.ids), torch.tensor([3])).padded()[0]
    assert_close(network(x)[0], torch.cat([states[2, :4], states[0, 4:]]))


def test_pair_features_equal_the_published_ones():
    pair, single = net(PAIRS).eval(), net([text for both in PAIRS for text in both]).eval()
    single.load_state_dict({k: v for k, v in pair.state_dict().items() if not k.startswith("joint")})
    u, v = (single(single.prepare([both[i] for both in PAIRS]).take(ALL)) for i in (0, 1))
    expected = pair.joint[0](torch.cat([u, v, u * v, (u - v).abs()], 1)).relu()
    assert_close(pair(pair.prepare(PAIRS).take(ALL)), expected)
    assert bool((expected >= 0).all())
    swapped = pair(pair.prepare([(b, a) for a, b in PAIRS]).take(ALL))
    assert not torch.allclose(swapped, expected)


def test_prepare_words_lengths_and_kinds():
    encoder = net(length=3)
    index = encoder.table.index
    assert set(index) >= {"3.5", "don't", ",", "!"}
    result = encoder.prepare(["the zebra", "good " * 9, ""]).take(torch.arange(3))
    the, good = index["the"], index["good"]
    assert result.ids.tolist() == [[the, UNKNOWN, PAD], [good] * 3, [UNKNOWN, PAD, PAD]]
    pairs = net(PAIRS, length=3).prepare([("good " * 9, "bad"), ("", "bad bad")]).take(torch.arange(2))
    assert pairs.mask.sum(1).tolist() == [4, 3]
    assert pairs.types.tolist() == [[0, 0, 0, 1], [0, 1, 1, 0]]
    with pytest.raises(BadInput, match="built for single texts"):
        encoder.prepare(PAIRS)
    with pytest.raises(BadInput, match="built for pairs"):
        net(PAIRS).prepare(TEXTS)
    assert len(encoder.prepare([])) == len(net(PAIRS).prepare([])) == 0


@pytest.mark.parametrize("kind", ["txt", "npz"])
def test_word_vectors(kind, tmp_path):
    path, vectors = tmp_path / f"vectors.{kind}", {"good": np.arange(6.0), "film": -np.arange(6.0)}
    if kind == "txt":
        path.write_text("".join(f"{word} {' '.join(map(str, v))}\n" for word, v in vectors.items()))
    else:
        np.savez(path, words=np.array([*vectors]), vectors=np.stack([*vectors.values()]))
    texts = [*TEXTS, " ".join(f"w{i}" for i in range(2000))]
    encoder = net(texts, vectors=str(path))
    rows, index = encoder.table.tables[0].detach(), encoder.table.index
    assert rows[index["good"]].tolist() == list(range(6))
    assert rows[index["film"]].tolist() == [-i for i in range(6)]
    assert float(rows[[index[f"w{i}"] for i in range(2000)]].std()) == pytest.approx(0.05, rel=0.05)
    assert "vectors" not in encoder.settings  # the model folder does not need the file
    (new,) = encoder.grow_words(["zebra", "good"], vectors=str(path))
    assert len(new) == 1
    assert float(new.detach().abs().max()) < 0.5
    assert rows[index["good"]].tolist() == list(range(6))
    with pytest.raises(BadInput, match=r"numbers per word|must be strings"):
        net(vectors=str(path), embedding=5)


def test_new_words_with_vectors_from_a_file(tmp_path):
    (tmp_path / "vectors.txt").write_text("zebra 1 2 3 4 5 6\n")
    encoder = net()
    encoder.grow_words(["yak", "zebra"], vectors=str(tmp_path / "vectors.txt"))
    assert encoder.table(torch.tensor(encoder.table.ids(["zebra"])))[0].tolist() == [1, 2, 3, 4, 5, 6]


def test_new_words_leave_prepared_examples_valid():
    encoder = net().eval()
    columns = ["good zebra", "bad film"]
    old = encoder.prepare(columns).take(torch.arange(2))
    before, name = encoder(old), encoder.preparation_key()
    (new,) = encoder.grow_words(["zebra", "film", "yak"])
    assert new.shape == (2, 6)
    assert torch.equal(encoder(old), before)
    fresh = encoder.prepare(columns).take(torch.arange(2))
    assert fresh.ids[1].tolist() == old.ids[1].tolist()
    assert fresh.ids[0, 1] == encoder.table.index["zebra"] != UNKNOWN == old.ids[0, 1]
    assert not torch.equal(encoder(fresh)[0], before[0])
    assert encoder.preparation_key() != name
    encoder(fresh).sum().backward()
    assert bool(new.grad[0].any())
    assert not new.grad[1].any()


def test_without_slots_equals_the_plain_network():
    names = [name for name, _ in net(slots=0).named_parameters()]
    assert not any("bank" in name or "content" in name for name in names)
    with pytest.raises(BadInput, match="slots"):
        net(slots=0).grow(3, domain=1)


KINDS = pytest.mark.parametrize("examples", [TEXTS, PAIRS], ids=["texts", "pairs"])

GROWTHS = {
    "slots": lambda encoder: encoder.grow(3, domain=1),
    "words": lambda encoder: encoder.grow_words(["zebra"] if "zebra" not in encoder.table.index else ["yak"]),
    "units": lambda encoder: encoder.widen(2),
    "column": lambda encoder: encoder.add_column(3, slots=2),
}


def asked(examples) -> list:
    return [*examples[:4], "good zebra" if examples is TEXTS else ("good zebra", "yak zebra")]


def count(encoder: MemoryRNN) -> int:
    return sum(p.numel() for p in encoder.parameters())


def learning(encoder: MemoryRNN) -> set[str]:
    return {name for name, p in encoder.named_parameters() if p.requires_grad}


def train(encoder: MemoryRNN, x, steps: int = 3) -> None:
    encoder.train()
    torch.manual_seed(1)
    optimizer = torch.optim.SGD([p for p in encoder.parameters() if p.requires_grad], lr=0.1)
    for _ in range(steps):
        encoder.zero_grad()
        encoder(x).square().sum().backward()
        optimizer.step()
    encoder.eval()


@pytest.mark.parametrize(
    ("cell", "slots", "units"), [("lstm", 500, 45), ("lstm", 300, 46), ("gru", 500, 55), ("gru", 300, 57)]
)
def test_published_sizes(cell, slots, units):
    encoder = MemoryRNN(words=["a"], pairs=True, cell=cell, slots=slots)
    assert encoder.units_for(600_000) == units
    before = count(encoder)
    encoder.widen(units)
    assert abs(count(encoder) - before - 600_000) < 6_000


@KINDS
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("column", [False, True])
def test_units_match_the_budget_also_after_growth(examples, cell, column):
    encoder = exact(examples, cell=cell, hidden=30)
    for grow in GROWTHS.values():
        grow(encoder)
        asked_for = 100_000
        units, other = encoder.units_for(asked_for, column=column), copy.deepcopy(encoder)
        (other.add_column if column else other.widen)(units)
        assert abs(count(other) - count(encoder) - asked_for) < 0.01 * asked_for


def test_widening_returns_positions_of_old_features():
    encoder = exact()
    x = encoder.prepare(TEXTS).take(ALL)
    before = encoder(x)
    at = encoder.widen(2)
    assert (encoder.width, at.tolist()) == (12, [0, 1, 2, 3, 6, 7, 8, 9])
    cut_off(encoder)
    after = encoder(x)
    assert after.shape == (5, 12)
    assert_close(after[:, at], before, rtol=0, atol=1e-14)
    assert bool((after[:, [4, 5, 10, 11]] != 0).all())


def test_widening_preserves_the_pair_layer():
    encoder = exact(PAIRS)
    x = encoder.prepare(PAIRS).take(ALL)
    before, old = encoder(x), encoder.joint[0]
    at = encoder.widen(2)
    assert (encoder.width, at.tolist()) == (7, list(range(7)))
    assert not torch.allclose(encoder(x), before)
    layer = encoder.joint[0]
    places = [part * 12 + side * 6 + unit for part in range(4) for side in range(2) for unit in range(4)]
    assert torch.equal(layer.weight[:, places], old.weight)
    assert torch.equal(layer.bias, old.bias)
    new = sorted(set(range(48)) - set(places))
    assert 0 < float(layer.weight[:, new].detach().abs().max()) <= 48**-0.5
    cut_off(encoder)
    with torch.no_grad():
        layer.weight[:, new] = 0
    assert_close(encoder(x), before, rtol=0, atol=1e-14)


def cut_off(encoder: MemoryRNN) -> None:
    """Remove the weights from the two newest units to the others."""
    rnn = encoder.rnn
    with torch.no_grad():
        for block in rnn.by_state.unflatten(-1, (-1, rnn.hidden)).unbind(-2):
            block[:, -2:, :-2] = 0
        for keys in rnn.bank.keys:
            keys[..., -2:] = 0


@KINDS
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("slots", [0, 2])
def test_old_columns_stay_fixed_while_a_new_one_trains(examples, cell, slots):
    encoder = exact(examples, cell=cell)
    for units in (3, 2):
        old = list(encoder.parameters())
        at = encoder.add_column(units, slots=slots)
        encoder.grow_words([f"word{units}"])  # new words are trained
        assert at.tolist() == list(range(7 if examples is PAIRS else encoder.width - 2 * units))
        assert not any(p.requires_grad for p in old)
        names = learning(encoder)
        newest = f"later.{len(encoder.later) - 1}."
        joint = {"joint"} if examples is PAIRS else set()
        assert {name.split(".")[0] for name in names} == {"later", "table"} | joint
        assert all(name.startswith((newest, "joint", f"table.tables.{len(encoder.later)}")) for name in names)
        x = encoder.prepare(examples).take(ALL)
        before, states = copy.deepcopy(encoder.state_dict()), old_states(encoder, x)
        train(encoder, x)
        assert all(torch.equal(a, b) for a, b in zip(old_states(encoder, x), states, strict=True))
        for name, parameter in encoder.named_parameters():
            assert torch.equal(parameter, before[name]) != (name in names and "table" not in name), name
            assert (parameter.grad is not None) == (name in names), name


def old_states(encoder: MemoryRNN, x: Tokens) -> list[torch.Tensor]:
    """Return the states of all columns but the newest for the first texts."""
    words = encoder.table(x.ids)
    lengths = (x.mask & (x.types == 0)).sum(1) if x.types is not None else x.mask.sum(1)
    seen: list[torch.Tensor] = []
    for column in encoder.columns[:-1]:
        seen.append(column(torch.cat([words, *seen], -1), lengths).padded().detach())
    return seen


def test_column_features_follow_the_old_features():
    encoder = exact()
    x = encoder.prepare(TEXTS).take(ALL)
    before = encoder(x)
    at = encoder.add_column(3)
    assert encoder.width == 14
    assert torch.equal(encoder(x)[:, at], before)
    assert not encoder.later[0].training
    assert encoder.later[0].bank is None  # by default
    assert encoder.slots == 5
    with pytest.raises(BadInput, match="newest column has no slots"):
        encoder.grow(3, domain=1)
    with pytest.raises(BadInput, match="segments"):
        encoder(x, segments=1)


def test_new_words_train_through_all_columns():
    encoder = exact()
    encoder.add_column(3)
    (new,) = encoder.grow_words(["zebra"])
    x = encoder.prepare(["good zebra"]).take(torch.arange(1))
    for part in encoder(x).split([8, 6], -1):
        (grad,) = torch.autograd.grad(part.sum(), new, retain_graph=True)
        assert bool(grad.any())


@KINDS
def test_features_do_not_depend_on_batch_and_padding(examples):
    encoder = exact(examples)
    encoder.add_column(3)
    encoder.widen(1)
    encoder.add_column(2, slots=3)
    store = encoder.prepare(examples)
    whole = encoder(store.take(ALL))
    for i in range(5):
        x = store.take(torch.tensor([i]))
        ids, mask = (torch.nn.functional.pad(part, (0, 9)) for part in (x.ids, x.mask))
        types = None if x.types is None else torch.nn.functional.pad(x.types, (0, 9), value=1)
        for given in (x, Tokens(ids.masked_fill(~mask, 7), mask, types)):
            assert_close(encoder(given)[0], whole[i])


@KINDS
@pytest.mark.parametrize("order", list(itertools.permutations(GROWTHS)), ids="-".join)
def test_growth_in_any_order_loads(examples, order, tmp_path):
    encoder = exact(examples)
    for name in (*order, *order):
        GROWTHS[name](encoder)
    settings = json.loads(json.dumps(encoder.save(tmp_path)))
    expected = encoder(encoder.prepare(asked(examples)).take(ALL))
    again = MemoryRNN.load(tmp_path, settings).double().eval()
    replayed = exact(examples)
    for name in (*order, *order):
        GROWTHS[name](replayed)
    for other in (again, replayed, copy.deepcopy(encoder)):
        other.load_state_dict(encoder.state_dict())
        assert torch.equal(other(other.prepare(asked(examples)).take(ALL)), expected)
        assert other.preparation_key() == encoder.preparation_key()
        assert learning(other) == learning(encoder)
        assert other.save(tmp_path) == settings
        assert other.width == encoder.width == expected.shape[1]
        for one, mine in zip(other.columns, encoder.columns, strict=True):
            assert one.bank.owner.tolist() == mine.bank.owner.tolist()
    told = again.save(tmp_path)
    again.widen(1)  # growth can continue
    again.grow(1, domain=5)
    again.add_column(1)
    assert told == settings  # saved settings are not modified


def test_first_segments_reproduce_an_earlier_network():
    encoder = exact()
    x = encoder.prepare(TEXTS).take(ALL)
    stats = []
    for domain in range(3):
        if domain:
            encoder.grow(2, domain=domain)
        train(encoder, x)
        stats.append((copy.deepcopy(encoder.state_dict()), encoder(x)))
    for stage, (weights, expected) in enumerate(stats, start=1):
        assert torch.equal(encoder(x, segments=stage), expected) == (stage == 3)  # shared weights were trained since
        earlier = exact()
        earlier.load_state_dict(weights)
        assert earlier.rnn.bank.sizes == [5, 2, 2][:stage]
        assert earlier.rnn.bank.slots == sum(earlier.rnn.bank.sizes)
        assert torch.equal(earlier(x), expected)
        current = encoder.state_dict()  # the first segments with the current weights
        for name in ("keys", "values"):
            for later in range(stage, 3):
                del current[f"rnn.bank.{name}.{later}"]
        current["rnn.bank.owner"] = current["rnn.bank.owner"][: earlier.rnn.bank.slots]
        earlier.load_state_dict(current)
        assert torch.equal(earlier(x), encoder(x, segments=stage))
    with pytest.raises(BadInput, match=r"segments.*3.*4"):
        encoder(x, segments=4)


def test_total_slots_and_words_in_order():
    encoder = exact(length=3)
    for name in ("slots", "column"):
        GROWTHS[name](encoder)
    assert encoder.slots == 5 + 3 + 2
    assert exact(slots=0).slots == 0
    assert encoder.words_in(["The zebra bad film", "yak the"]) == ["the", "zebra", "bad", "yak"]  # three words per text
    assert exact(PAIRS).words_in([("zebra yak", "bad zebra")]) == ["zebra", "yak", "bad"]


def test_units_must_be_positive():
    for grow in (exact().widen, exact().add_column):
        with pytest.raises(BadInput, match=r"units.*0"):
            grow(0)
