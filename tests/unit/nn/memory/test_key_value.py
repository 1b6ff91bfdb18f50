"""A key-value memory: its size, its start, its growth, and that growth changes nothing that was there."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.nn.memory.key_value import KeyValueMemory
from holdfast.nn.memory.read import read

SMALL = {"slots": 6, "heads": 2, "key_width": 3}
PUBLISHED = {"keys_per_head": False, "values_per_head": True, "project": True}


def memory(width: int = 5, **options) -> KeyValueMemory:
    torch.manual_seed(0)
    return KeyValueMemory(width, **{**SMALL, **options})


def features(rows: int = 4, width: int = 5) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1))


def count(width: int, *, keys: int, values: int, project: bool) -> int:
    """With the published 1024 slots, 4 heads and keys 256 wide: `keys` and `values` are how many sets of them."""
    queries = width * 4 * 256 + 4 * 256
    return queries + keys * 1024 * 256 + values * 1024 * width + (width * width + width if project else 0)


def test_parameters_at_the_published_sizes():
    sizes = {
        "keys by head": (KeyValueMemory(768), count(768, keys=4, values=1, project=False)),
        "4.8 million": (KeyValueMemory(768, **PUBLISHED), count(768, keys=1, values=4, project=True)),
    }
    for made, wanted in sizes.values():
        assert sum(p.numel() for p in made.parameters()) == wanted
    assert [wanted for _, wanted in sizes.values()] == [2_622_464, 4_785_920]


def test_the_start_is_the_cited_one():
    made = KeyValueMemory(64, slots=4000, heads=2, key_width=16)
    keys, values = made.keys[0].detach(), made.values[0].detach()
    assert float(keys.abs().max()) <= 16**-0.5
    assert float(keys.std()) == pytest.approx(16**-0.5 / math.sqrt(3), rel=0.02)
    assert float(values.std()) == pytest.approx(64**-0.5, rel=0.02)
    assert float(made.query.weight.detach().abs().max()) <= 64**-0.5


@pytest.mark.parametrize("options", [{}, PUBLISHED, {"top": 2, "mean": True, "similarity": "cosine"}, {"query": "mlp"}])
def test_a_read_by_hand(options):
    made, z = memory(temperature=0.5, **options), features()
    hidden = z
    if options.get("query") == "mlp":
        hidden = torch.relu(made.query[0](z))
    last = made.query[-1] if options.get("query") == "mlp" else made.query
    asked = (hidden @ last.weight.T + last.bias).view(4, 2, 3)
    plain = {name: options[name] for name in ("top", "mean", "similarity") if name in options}
    wanted = read(asked, made.keys[0], made.values[0], temperature=0.5, **plain).content
    if options.get("project"):
        wanted = wanted @ made.project.weight.T + made.project.bias
    found = made.read(z)
    assert_close(found.content, wanted)
    assert found.content.shape == z.shape
    assert_close(found.weights.sum(-1), torch.ones(4, 2))


def test_normalised_queries_keep_running_statistics_only_in_training():
    made, z = memory(query_norm=True), features(8)
    before = copy.deepcopy(made.state_dict())
    made.eval().read(z)
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    alone = torch.cat([made.read(z[i : i + 1]).content for i in range(8)])
    assert_close(alone, made.read(z).content)
    made.train().read(z)
    assert not torch.equal(made.query[1].running_mean, before["query.1.running_mean"])


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3), shared=st.booleans())
@settings(max_examples=15, deadline=None)
def test_growth_leaves_what_was_there(sizes, shared):
    made, z = memory(keys_per_head=not shared, values_per_head=shared), features()
    before = [made.read(z)]
    kept = [p.detach().clone() for p in made.parameters()]
    for domain, slots in enumerate(sizes, start=1):
        new = made.grow(slots, domain=domain)
        mine = {id(p) for p in made.parameters()}
        assert len(new) == 2
        assert all(id(p) in mine and p.requires_grad for p in new)
        before.append(made.read(z))
    assert made.slots == 6 + sum(sizes)
    assert made.owner.tolist() == [0] * 6 + [d for d, n in enumerate(sizes, start=1) for _ in range(n)]
    for segments, then in enumerate(before, start=1):
        now = made.read(z, segments=segments)
        assert torch.equal(now.content, then.content)
        assert torch.equal(now.weights, then.weights)
    assert not torch.equal(before[0].content, before[-1].content)
    ids = {id(p) for p in (*made.keys[1:], *made.values[1:])}
    for then, now in zip(kept, [p for p in made.parameters() if id(p) not in ids], strict=True):
        assert torch.equal(then, now)


def test_the_weights_of_a_grown_memory_load_into_a_fresh_one():
    made, z = memory(), features()
    made.grow(3, domain=4)
    made.grow(2, domain=7)
    fresh = KeyValueMemory(5, **SMALL)
    fresh.load_state_dict(made.state_dict())
    assert torch.equal(fresh.read(z).content, made.read(z).content)
    assert fresh.owner.tolist() == [0] * 6 + [4] * 3 + [7] * 2
    inside = torch.nn.ModuleDict({"a": torch.nn.ModuleList([KeyValueMemory(5, **SMALL)])})
    inside.load_state_dict({f"a.0.{name}": value for name, value in made.state_dict().items()})
    assert torch.equal(inside["a"][0].read(z).content, made.read(z).content)


def test_a_frozen_memory_stays_frozen_when_it_is_loaded_grown():
    made = memory()
    made.grow(3, domain=1)
    fresh = memory().requires_grad_(False)
    fresh.load_state_dict(made.state_dict())
    assert not any(p.requires_grad for p in fresh.parameters())


def test_a_copy_shares_nothing_and_still_makes_room():
    made, z = memory(), features()
    other = copy.deepcopy(made)
    grown = copy.deepcopy(made)
    grown.grow(2, domain=1)
    other.load_state_dict(grown.state_dict())
    assert (other.slots, made.slots) == (8, 6)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert bool(made.read(z).content.any())


def test_gradients_reach_everything():
    made = memory(**PUBLISHED, query="mlp")
    made.grow(2, domain=1)
    made.read(features()).content.square().sum().backward()
    for name, parameter in made.named_parameters():
        assert float(parameter.grad.abs().sum()) > 0, name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slots": 0}, "at least 1"),
        ({"top": 0}, "at least 1"),
        ({"temperature": 0.0}, "temperature.*0"),
        ({"similarity": "dots"}, "did you mean 'dot'"),
        ({"query": "linar"}, "did you mean 'linear'"),
    ],
)
def test_bad_input(options, said):
    with pytest.raises(BadInput, match=said):
        memory(**options)


def test_a_memory_grows_by_something():
    with pytest.raises(BadInput, match="at least one slot"):
        memory().grow(0, domain=1)
