"""Product-key memory compared with an exhaustive search."""

import pytest
import torch

from holdfast.accel.table_reads import select_pairs
from holdfast.core.errors import BadInput
from holdfast.nn.memory.product_key import ProductKeyMemory
from tests.devices import GPU
from tests.gradients import assert_same

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
def test_read_equals_exhaustive_search(dtype, close, top, device):
    memory = small(top=top).to(device, dtype)
    z = torch.randn(B, WIDTH, dtype=dtype, device=device, requires_grad=True)
    result, (content, slots) = memory.read(z), by_search(memory, z, top)
    assert torch.equal(result.slots.sort().values, slots.sort().values)
    torch.testing.assert_close(result.weights.sum(-1), torch.ones(B, 3, dtype=result.weights.dtype, device=device))
    assert_same(result.content, content, (z, *memory.parameters()), tolerance=close, gradients=10)


SIZES = [(40, 32), (33, 7), (64, 1), (5, 5), (1, 1), (1000, 30)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_selected_pairs_are_best_and_unique(n, k, dtype):
    check_selection(torch.randn(2, 50, n).to(dtype), k)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_kernels_select_the_best_pairs(n, k, dtype, kernel_device):
    check_selection(torch.randn(2, 6, n, device=kernel_device).to(dtype), k)


@pytest.mark.parametrize("n", [9, 200])
def test_kernels_select_a_diverged_key(n, kernel_device):
    scores = torch.randn(2, 6, n, device=kernel_device)
    scores[0, :, 5] = torch.nan
    weights, slots = select_pairs(scores, 4, heads=2)
    assert bool((slots // n == 5).any(-1).all())
    assert bool(weights.isnan().any(-1).all())


def check_selection(scores, k):
    """Compare with all pairs; in bf16 many scores are equal."""
    weights, slots = (part.transpose(0, 1).flatten(0, 1) for part in select_pairs(scores, k, heads=2))  # (r, k) both
    every = (scores[0].float()[:, :, None] + scores[1].float()[:, None]).flatten(1)  # (r, n n)
    chosen = every.gather(1, slots)
    assert torch.equal(chosen.sort(descending=True).values, every.topk(k).values)
    assert all(len(set(row)) == k for row in slots.tolist())
    torch.testing.assert_close(weights, chosen.softmax(-1))


@pytest.mark.parametrize(("n", "k"), [(9, 9), (40, 7)])
def test_derivatives_of_selecting_kernels(n, k, kernel_device):
    scores = torch.randn(2, 6, n, device=kernel_device)
    probe = torch.randn(3, 2, k, device=kernel_device)
    results = []
    for leaf in (scores.clone().requires_grad_(), scores.double().requires_grad_()):
        weights, slots = select_pairs(leaf, k, heads=2)
        order = slots.argsort()
        total = (weights.gather(-1, order) * probe.to(leaf.dtype)).sum()
        results.append(torch.autograd.grad(total, leaf)[0])
    torch.testing.assert_close(results[0].double(), results[1], rtol=1e-4, atol=1e-5)


def test_bf16_is_close():
    memory, z = small(top=9, slots=81), torch.randn(B, WIDTH)
    wide = memory.read(z).content
    narrow = memory.to(torch.bfloat16).read(z.to(torch.bfloat16)).content
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), wide, rtol=0.05, atol=0.05)


def test_only_read_rows_get_gradients():
    memory = small()
    result = memory.read(torch.randn(B, WIDTH))
    result.content.square().sum().backward()
    assert torch.equal(memory.values.grad.any(dim=1).nonzero().flatten(), result.slots.unique())


def test_initialisation():
    memory = ProductKeyMemory(400, slots=10_000, key_width=128)
    assert memory.keys.shape == (2, 4, 100, 64)
    assert 0.12 < memory.keys.abs().max() <= 1 / 8
    assert memory.values.std().item() == pytest.approx(400**-0.5, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slots": 80}, "slots.*80.*81"),
        ({"top": 10}, "between 1 and 9"),
        ({"top": 0}, "between 1 and 9"),
        ({"key_width": 9}, "even"),
    ],
    ids=str,
)
def test_invalid_settings_raise(settings, message):
    with pytest.raises(BadInput, match=message):
        small(**settings)
