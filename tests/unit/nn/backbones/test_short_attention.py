"""Attention among few tokens: kernels against the operations of torch, on a GPU or in Triton's interpreter."""

import importlib
import math
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import BertConfig, BertModel, FalconConfig, FalconModel

from holdfast.accel import short_attention as module
from holdfast.accel.registry import fused_kernels
from holdfast.accel.short_attention import SHORT, short_attention, use_short_attention
from holdfast.nn.backbones.text import SHORT_ATTENTION, TextEncoder
from tests.devices import INTERPRETED
from tests.tiny import tiny_bert as tiny_bert_folder

B, H = 3, 2
LOW = (1 << 32) - 1  # the low 32 bits
Inputs = tuple[Tensor, Tensor, Tensor]
# Triton's interpreter multiplies matrices in fp16 only
DTYPES = [torch.float16, pytest.param(torch.bfloat16, marks=[pytest.mark.gpu] if INTERPRETED else [])]


def dropout_factors(seed: Tensor, shape: Sequence[int], dropout: float) -> Tensor:
    """Return what the kernels multiply the weights (b, h, t, u) by: 0, or 1 / (1 - dropout)."""
    position = torch.arange(math.prod(shape), device=seed.device).view(*shape)
    number = _scramble((position + _scramble(seed)) & LOW) >> 8  # of 24 bits
    return (number >= dropout * 2**24) / (1 - dropout)


def _scramble(x: Tensor) -> Tensor:
    """Map integers below 2^32 to random ones, as the kernels do."""
    state = (x * 747796405 + 2891336453) & LOW
    word = (((state >> ((state >> 28) + 4)) ^ state) * 277803737) & LOW
    return (word >> 22) ^ word


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, seed: Tensor, *, dropout: float, scale: float
) -> Tensor:
    """Return what the kernels compute, in fp32 or higher precision until the result."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = scale * query.to(wide) @ key.to(wide).mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)  # of queries that see no key
    factors = dropout_factors(seed, scores.shape, dropout) if dropout else 1.0
    return ((weights * factors).to(wide) @ value.to(wide)).to(query.dtype)


def inputs(device: str, t: int, u: int, d: int, dtype: torch.dtype = torch.float16) -> Inputs:
    """Return query, key and value (b, h, t, d) in the layout of a transformer."""
    torch.manual_seed(0)
    rows = [torch.randn(B, side, H, d, device=device, dtype=dtype).transpose(1, 2) for side in (t, u, u)]
    query, key, value = (x.requires_grad_() for x in rows)
    return query, key, value


def widened(x: Inputs) -> Inputs:
    """Return copies in fp64."""
    query, key, value = (each.detach().double().requires_grad_() for each in x)
    return query, key, value


def padding(device: str, u: int) -> Tensor:
    """Return a mask (b, 1, 1, u) of texts of different lengths, the last of which is empty."""
    lengths = torch.tensor([u, max(1, u // 2), 0], device=device)
    return (torch.arange(u, device=device) < lengths[:, None])[:, None, None]


@pytest.fixture
def device(kernel_device: torch.device) -> Iterator[str]:
    with fused_kernels():
        yield str(kernel_device)


def close(actual: Tensor, expected: Tensor, *, tolerance: float = 0.02) -> None:
    """Compare relative to the largest value: bfloat16 has 8 bits."""
    assert actual.shape == expected.shape
    actual, expected = actual.detach().double(), expected.detach().double()
    assert float((actual - expected).abs().max()) <= tolerance * max(1e-3, float(expected.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("t", "u", "d"), [(52, 52, 32), (1, 1, 16), (7, 19, 64), (128, 128, 32), (16, 64, 64)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_values_and_gradients(
    device: str, t: int, u: int, d: int, masked: bool, dropout: float, dtype: torch.dtype
) -> None:
    x, mask = inputs(device, t, u, d, dtype), padding(device, u) if masked else None
    torch.manual_seed(1)
    out = short_attention(*x, mask, dropout=dropout, scale=None)
    assert out is not None
    torch.manual_seed(1)
    seed = torch.randint(2**31, (1,), device=device)
    wide = widened(x)
    full = None if mask is None else mask.expand(B, H, t, u)
    expected = plain_attention(*wide, full, seed, dropout=dropout, scale=d**-0.5)
    close(out, expected)
    if masked:
        assert not out[2].any()
    probe = torch.randn_like(out)
    gradients = torch.autograd.grad(expected, wide, probe.double())
    for actual, reference in zip(torch.autograd.grad(out, x, probe), gradients, strict=True):
        close(actual, reference)


def test_reference_equals_torch() -> None:
    query, key, value = (each[:2] for each in widened(inputs("cpu", 9, 9, 16)))
    mask = padding("cpu", 9)[:2]
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3)
    actual = plain_attention(query, key, value, mask.expand(2, H, 9, 9), torch.zeros(1), dropout=0.0, scale=0.3)
    torch.testing.assert_close(actual, expected)


def test_dropped_weights_are_random() -> None:
    shape = (8, 4, 64, 64)
    first, second = (dropout_factors(torch.tensor([seed]), shape, 0.1) for seed in (123, 124))
    for factors in (first, second):
        assert factors.unique().tolist() == pytest.approx([0.0, 1 / 0.9])
        assert abs(float((factors == 0).double().mean()) - 0.1) < 0.003  # 3 standard deviations are 0.0025
    dropped = [(factors == 0).double() - 0.1 for factors in (first, second)]
    neighbours = [dropped[0][..., 1:] * dropped[0][..., :-1], dropped[0][..., 1:, :] * dropped[0][..., :-1, :]]
    for products in (*neighbours, dropped[0] * dropped[1]):
        assert abs(float(products.mean()) / 0.09) < 0.01  # correlation; its standard deviation is 0.003


@pytest.mark.parametrize(
    ("tokens", "width", "dtype"), [(129, 16, torch.float16), (5, 24, torch.float16), (5, 16, torch.float32)], ids=str
)
def test_other_shapes_and_types_are_left_to_torch(device: str, tokens: int, width: int, dtype: torch.dtype) -> None:
    x = inputs(device, tokens, tokens, width, dtype)
    assert short_attention(*x, None, dropout=0.0, scale=None) is None


def test_masks_of_numbers_or_heads_are_left_to_torch(device: str) -> None:
    x = inputs(device, 5, 5, 16)
    assert short_attention(*x, torch.zeros(5, 5, device=device), dropout=0.0, scale=None) is None
    of_heads = torch.ones(B, H, 5, 5, dtype=torch.bool, device=device)
    assert short_attention(*x, of_heads, dropout=0.0, scale=None) is None
    assert short_attention(*x, of_heads[0, 0], dropout=0.0, scale=None) is not None


def tiny_bert(**settings: Any) -> BertModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    return BertModel(BertConfig(vocab_size=50, **sizes, **settings))


@pytest.mark.parametrize("training", [False, True])
def test_a_transformer_computes_the_same(monkeypatch: pytest.MonkeyPatch, device: str, training: bool) -> None:
    calls, kernel_module = [], importlib.import_module("holdfast.accel.attention_kernels")
    plain = kernel_module.attention
    monkeypatch.setattr(kernel_module, "attention", lambda *args, **options: calls.append(1) or plain(*args, **options))
    network = tiny_bert(attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0).half().train(training)
    network.to(torch.device(device))  # pyright: ignore[reportArgumentType]
    ids, lengths = torch.randint(50, (3, 9), device=device), torch.tensor([9, 4, 1], device=device)
    mask = (torch.arange(9, device=device) < lengths[:, None]).long()
    expected = network(ids, attention_mask=mask).last_hidden_state
    assert not calls
    use_short_attention(network, SHORT_ATTENTION)
    actual = network(ids, attention_mask=mask).last_hidden_state
    assert len(calls) == 2
    close(actual * mask[..., None], expected * mask[..., None], tolerance=0.01)


def test_a_decoder_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "short_attention", lambda *_, **__: pytest.fail("causal attention needs torch"))
    network = tiny_bert(is_decoder=True).eval()
    ids = torch.randint(50, (2, 6))
    expected = network(ids).last_hidden_state
    use_short_attention(network, SHORT_ATTENTION)
    assert network.config._attn_implementation == SHORT
    torch.testing.assert_close(network(ids).last_hidden_state, expected)


def test_networks_that_compare_the_name_are_left_alone() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50}
    network = FalconModel(FalconConfig(**sizes)).eval()
    use_short_attention(network, SHORT_ATTENTION)
    assert network.config._attn_implementation == "sdpa"


def test_networks_of_older_versions_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules[BertModel.__module__], "create_bidirectional_mask")
    network = tiny_bert()
    use_short_attention(network, SHORT_ATTENTION)
    assert network.config._attn_implementation == "sdpa"


@pytest.mark.gpu
def test_eager_steps_use_torch_unless_weights_are_dropped() -> None:
    x = inputs("cuda", 5, 5, 16)
    assert short_attention(*x, None, dropout=0.0, scale=None) is None
    results = []
    for mode in (nullcontext, fused_kernels):
        torch.manual_seed(1)
        with mode():
            results.append(short_attention(*x, None, dropout=0.5, scale=None))
    assert torch.equal(*results)
    with fused_kernels():
        assert short_attention(*x, None, dropout=0.0, scale=None) is not None


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_other_memory_layouts(device: str, dropout: float) -> None:
    x = inputs(device, 5, 9, 16)
    moved = [each.detach().contiguous().requires_grad_() for each in x]
    assert not moved[0].transpose(1, 2).is_contiguous()
    results = []
    for tensors in (x, moved):
        torch.manual_seed(1)
        out = short_attention(*tensors, None, dropout=dropout, scale=None)
        results.append((out, *torch.autograd.grad(out, tensors, torch.ones(out.shape, device=device, dtype=out.dtype))))
    for actual, expected in zip(*results, strict=True):
        assert torch.equal(actual, expected)


def test_an_unpickled_encoder_knows_its_attention(tmp_path: Path) -> None:
    encoder = TextEncoder.build(lambda: None, name=str(tiny_bert_folder(tmp_path))).eval()
    assert encoder.module.config._attn_implementation == SHORT
    (tmp_path / "encoder").write_bytes(pickle.dumps(encoder))
    code = (
        "import pickle, sys, torch\n"
        "encoder = pickle.load(open(sys.argv[1], 'rb'))\n"
        "tokens = encoder.prepare(['good film']).take(torch.tensor([0]))\n"
        "print(float(encoder(tokens).sum()))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "encoder")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = encoder(encoder.prepare(["good film"]).take(torch.tensor([0]))).detach().sum()
    assert float(result.stdout) == pytest.approx(float(expected), rel=1e-4)
