"""Key-value memory: size, initialisation, reads and growth."""

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
    """Count parameters with 1024 slots, 4 heads and key width 256; `keys` and `values` are numbers of sets."""
    queries = width * 4 * 256 + 4 * 256
    return queries + keys * 1024 * 256 + values * 1024 * width + (width * width + width if project else 0)


def test_published_sizes():
    sizes = {
        "keys by head": (KeyValueMemory(768), count(768, keys=4, values=1, project=False)),
        "4.8 million": (KeyValueMemory(768, **PUBLISHED), count(768, keys=1, values=4, project=True)),
    }
    for module, expected in sizes.values():
        assert sum(p.numel() for p in module.parameters()) == expected
    assert [expected for _, expected in sizes.values()] == [2_622_464, 4_785_920]


def test_initialisation():
    module = KeyValueMemory(64, slots=4000, heads=2, key_width=16)
    keys, values = module.keys[0].detach(), module.values[0].detach()
    assert float(keys.abs().max()) <= 16**-0.5
    assert float(keys.std()) == pytest.approx(16**-0.5 / math.sqrt(3), rel=0.02)
    assert float(values.std()) == pytest.approx(64**-0.5, rel=0.02)
    assert float(module.query.weight.detach().abs().max()) <= 64**-0.5


@pytest.mark.parametrize("options", [{}, PUBLISHED, {"top": 2, "similarity": "cosine"}])
def test_read_equals_the_equation(options):
    module, z = memory(temperature=0.5, **options), features()
    requested = (z @ module.query.weight.T + module.query.bias).view(4, 2, 3)
    plain = {name: options[name] for name in ("top", "similarity") if name in options}
    expected = read(requested, module.keys[0], module.values[0], temperature=0.5, **plain).content
    if options.get("project"):
        expected = expected @ module.project.weight.T + module.project.bias
    result = module.read(z)
    assert_close(result.content, expected)
    assert result.content.shape == z.shape
    assert_close(result.weights.sum(-1), torch.ones(4, 2))


def test_query_norm_updates_statistics_only_in_training():
    module, z = memory(query_norm=True), features(8)
    before = copy.deepcopy(module.state_dict())
    module.eval().read(z)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    alone = torch.cat([module.read(z[i : i + 1]).content for i in range(8)])
    assert_close(alone, module.read(z).content)
    module.train().read(z)
    assert not torch.equal(module.query[1].running_mean, before["query.1.running_mean"])


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3), shared=st.booleans())
@settings(max_examples=15, deadline=None)
def test_growth_does_not_change_old_segments(sizes, shared):
    module, z = memory(keys_per_head=not shared, values_per_head=shared), features()
    before = [module.read(z)]
    saved = [p.detach().clone() for p in module.parameters()]
    for domain, slots in enumerate(sizes, start=1):
        new = module.grow(slots, domain=domain)
        actual = {id(p) for p in module.parameters()}
        assert len(new) == 2
        assert all(id(p) in actual and p.requires_grad for p in new)
        before.append(module.read(z))
    assert module.slots == 6 + sum(sizes)
    assert module.owner.tolist() == [0] * 6 + [d for d, n in enumerate(sizes, start=1) for _ in range(n)]
    for segments, then in enumerate(before, start=1):
        now = module.read(z, segments=segments)
        assert torch.equal(now.content, then.content)
        assert torch.equal(now.weights, then.weights)
    assert not torch.equal(before[0].content, before[-1].content)
    ids = {id(p) for p in (*module.keys[1:], *module.values[1:])}
    for then, now in zip(saved, [p for p in module.parameters() if id(p) not in ids], strict=True):
        assert torch.equal(then, now)


def test_grown_weights_load_into_a_new_memory():
    module, z = memory(), features()
    module.grow(3, domain=4)
    module.grow(2, domain=7)
    fresh = KeyValueMemory(5, **SMALL).requires_grad_(False)
    fresh.load_state_dict(module.state_dict())
    assert torch.equal(fresh.read(z).content, module.read(z).content)
    assert not any(p.requires_grad for p in fresh.parameters())
    assert fresh.owner.tolist() == [0] * 6 + [4] * 3 + [7] * 2
    inside = torch.nn.ModuleDict({"a": torch.nn.ModuleList([KeyValueMemory(5, **SMALL)])})
    inside.load_state_dict({f"a.0.{name}": value for name, value in module.state_dict().items()})
    assert torch.equal(inside["a"][0].read(z).content, module.read(z).content)


def test_growth_needs_a_slot():
    with pytest.raises(BadInput, match="at least one slot"):
        memory().grow(0, domain=1)
