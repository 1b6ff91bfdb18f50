"""Product-key memory compared with an exhaustive search."""

import pytest
import torch

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.nn.memory.product_key import ProductKeyMemory, _ChosenSums, best_pairs

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
B, WIDTH = 11, 12


def small(**settings):
    torch.manual_seed(0)
    return ProductKeyMemory(WIDTH, **{"slots": 81, "heads": 3, "key_width": 10, "top": 4, **settings})


def by_search(memory, z, top):
    """Score every slot and read the best ones."""
    requested = memory.query(z).view(len(z), 2, memory.heads, memory.half_width)
    content, slots = torch.zeros_like(z), []
    for h in range(memory.heads):
        first, second = (requested[:, i, h] @ memory.keys[i, h].T for i in range(2))  # (b, n) both
        scores = (first[:, :, None] + second[:, None]).flatten(1)  # (b, m)
        best, chosen = scores.topk(top, dim=-1)
        content = content + (best.softmax(dim=-1)[..., None] * memory.values[chosen]).sum(dim=1)
        slots.append(chosen)
    return content, torch.stack(slots, dim=1)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str)
@pytest.mark.parametrize("top", [1, 4, 9])
@pytest.mark.parametrize("query", ["linear", "mlp"])
def test_read_equals_exhaustive_search(dtype, close, top, query, device):
    memory = small(top=top, query=query).to(device, dtype)
    z = torch.randn(B, WIDTH, dtype=dtype, device=device, requires_grad=True)
    result, (content, slots) = memory.read(z), by_search(memory, z, top)
    assert result.slots is not None
    assert torch.equal(result.slots.sort().values, slots.sort().values)
    torch.testing.assert_close(result.content, content, rtol=close, atol=close)
    torch.testing.assert_close(result.weights.sum(-1), torch.ones(B, 3, dtype=result.weights.dtype, device=device))
    probe = torch.randn_like(content)
    learned = (z, *memory.parameters())
    for actual, reference in zip(
        torch.autograd.grad(result.content, learned, probe), torch.autograd.grad(content, learned, probe), strict=True
    ):
        torch.testing.assert_close(actual, reference, rtol=10 * close, atol=10 * close)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n", "k"), [(40, 32), (33, 7), (64, 1), (5, 5), (1000, 30)])
def test_best_pairs_are_best_and_unique(n, k, dtype, device):
    scores = torch.randn(2, 50, n, device=device).to(dtype)  # in bf16 many are equal
    places = best_pairs(scores, k)
    every = (scores[0].float()[:, :, None] + scores[1].float()[:, None]).flatten(1)
    chosen = places[0] * n + places[1]
    assert torch.equal(every.gather(1, chosen).sort(descending=True).values, every.topk(k).values)
    assert all(len(set(row)) == k for row in chosen.tolist())


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_gradients_of_repeated_positions_are_added(device):
    scores = torch.randn(2, 6, 40, device=device, requires_grad=True)
    positions = torch.randint(0, 5, (2, 6, 9), device=device)
    weight = torch.randn(6, 9, device=device)
    expected = (scores.gather(-1, positions).sum(0) * weight).sum()
    actual = (_ChosenSums.apply(scores, positions) * weight).sum()
    torch.testing.assert_close(actual, expected)
    wanted, got = (torch.autograd.grad(value, scores)[0] for value in (expected, actual))
    torch.testing.assert_close(got, wanted)


def test_chosen_sums_have_second_derivatives():
    scores, positions = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True), torch.randint(0, 7, (2, 3, 4))
    assert torch.autograd.gradgradcheck(lambda s: _ChosenSums.apply(s, positions).pow(3), scores)


def test_bf16_is_close():
    memory, z = small(top=9, slots=81), torch.randn(B, WIDTH)
    wide = memory.read(z).content
    narrow = memory.to(torch.bfloat16).read(z.to(torch.bfloat16)).content
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), wide, rtol=0.05, atol=0.05)


def test_read_is_pure_and_independent_of_the_batch():
    memory, z = small(query_norm=True).eval(), torch.randn(B, WIDTH)
    before = {name: value.clone() for name, value in memory.state_dict().items()}
    together = memory.read(z).content
    torch.testing.assert_close(together[3:4], memory.read(z[3:4]).content)
    assert all(torch.equal(value, before[name]) for name, value in memory.state_dict().items())


def test_queries_are_normalised_in_training():
    memory = small(query_norm=True)
    memory.read(5 + 3 * torch.randn(64, WIDTH))
    assert memory.query[1].running_mean.abs().sum() > 0


def test_only_read_rows_get_gradients():
    z = torch.randn(B, WIDTH)
    grads = []
    for sparse in (False, True):
        memory = small(sparse=sparse)
        result = memory.read(z)
        result.content.square().sum().backward()
        assert result.slots is not None
        grads.append(memory.values.grad)
        assert torch.equal(grads[-1].to_dense().any(dim=1).nonzero().flatten(), result.slots.unique())
    assert grads[1].is_sparse
    torch.testing.assert_close(grads[1].to_dense(), grads[0])


def test_initialisation():
    memory = ProductKeyMemory(400, slots=10_000, key_width=128)
    assert memory.keys.shape == (2, 4, 100, 64)
    assert 0.12 < memory.keys.abs().max() <= 1 / 8
    assert memory.values.std().item() == pytest.approx(400**-0.5, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slots": 80}, "slots.*80.*81"),
        ({"slots": 0}, "square"),
        ({"top": 10}, "between 1 and 9"),
        ({"top": 0}, "between 1 and 9"),
        ({"key_width": 9}, "even"),
        ({"query": "cubic"}, "query net"),
    ],
    ids=str,
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(BadInput, match=message):
        small(**settings)


def test_neck_interpolates():
    z = torch.randn(B, WIDTH)
    given = {"slots": 81, "key_width": 8, "top": 4}
    neck = catalog.build("necks", "product-memory", WIDTH, options={**given, "share": 0.0})
    assert torch.equal(neck(z), z)
    torch.manual_seed(0)
    neck = catalog.build("necks", "product-memory", WIDTH, options={**given, "share": 0.25, "fusion": "interpolate"})
    content = neck.fused.memory.read(z).content
    torch.testing.assert_close(neck(z), 0.75 * z + 0.25 * content)
