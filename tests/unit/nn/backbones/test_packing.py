"""Packed texts: states equal to those of a padded batch, fewer tokens, and no packing where it does not apply."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from holdfast.nn.backbones import text
from holdfast.nn.backbones.packing import pack, packable, worth_packing
from holdfast.nn.backbones.text import TextEncoder
from tests import tiny

MAKERS = {"bert": tiny.tiny_bert, "roberta": tiny.tiny_roberta, "electra": tiny.tiny_electra}
TEXTS = ["good", "a very good phone that was not bad at all, and the food was very good too!", *["bad film"] * 12]


@pytest.fixture(params=MAKERS)
def encoder(request, tmp_path: Path) -> TextEncoder:
    folder = MAKERS[request.param](tmp_path / "tiny")
    return TextEncoder.build(lambda: None, name=str(folder), length=32).eval()


@pytest.fixture
def packs(monkeypatch) -> list[int]:
    """Number of tokens in the rows of every packed batch."""
    seen: list[int] = []

    def count(*args):
        packed = pack(*args)
        seen.append(packed.ids.numel())
        return packed

    monkeypatch.setattr(text, "pack", count)
    return seen


def inputs(encoder: TextEncoder, examples: list):
    store = encoder.prepare(examples)
    return store.take(torch.arange(len(examples)))


@pytest.mark.parametrize("pairs", [False, True])
def test_states_equal_those_of_single_texts(encoder, packs, pairs: bool) -> None:
    examples = [(each, "not good") for each in TEXTS] if pairs else TEXTS
    x = inputs(encoder, examples)
    with torch.no_grad():
        first, second = encoder.states(x), encoder.states(x)  # the first batch is compared with a padded one
        alone = [encoder.states(inputs(encoder, [each]))[0] for each in examples]
    assert encoder.packing
    assert torch.equal(first, second)
    assert len(packs) == 2
    assert packs[0] < 0.6 * x.ids.numel()
    for states in (first, second):
        for row, expected in zip(states, alone, strict=True):
            assert_close(row[: len(expected)], expected, rtol=1e-4, atol=1e-5)


def test_a_transformer_that_rejects_packed_texts_is_padded(encoder, packs, monkeypatch) -> None:
    x, module = inputs(encoder, TEXTS), encoder.module
    with torch.no_grad():
        expected = encoder.states(x)
    encoder.packing, encoder.packing_verified = True, False
    forward = module.forward

    def strict(*args, attention_mask, **options):
        if attention_mask.dim() == 4:
            raise ValueError("wrong shape")
        return forward(*args, attention_mask=attention_mask, **options)

    monkeypatch.setattr(module, "forward", strict)
    packs.clear()
    with torch.no_grad():
        for _ in range(2):
            assert_close(encoder.states(x)[x.mask], expected[x.mask], rtol=1e-4, atol=1e-5)
    assert not encoder.packing
    assert len(packs) == 1


def test_training_and_equal_lengths_are_not_packed(encoder, packs) -> None:
    encoder.states(inputs(encoder, TEXTS))  # with gradient
    with torch.no_grad():
        encoder.states(inputs(encoder, ["bad film"] * 14))
        encoder.train()
        encoder.states(inputs(encoder, TEXTS))
    assert not packs


def test_few_texts_are_not_worth_packing(encoder) -> None:
    assert worth_packing(inputs(encoder, TEXTS))
    assert not worth_packing(inputs(encoder, TEXTS[:3]))


def test_networks_with_relative_positions_are_not_packed(tmp_path: Path) -> None:
    encoder = TextEncoder.build(lambda: None, name=str(tiny.tiny_mpnet(tmp_path / "mpnet")), length=32)
    assert not packable(encoder.module)


@pytest.mark.parametrize("change", ["module", "hook", "hook before"])
def test_changed_networks_are_not_packed(encoder, packs, change: str) -> None:
    class Watched(torch.nn.Dropout):
        """A module that is not of torch or transformers."""

    x = inputs(encoder, TEXTS)
    with torch.no_grad():
        encoder.states(x)
        packs.clear()
        if change == "module":
            encoder.module.embeddings.dropout = Watched().eval()
        elif change == "hook":
            encoder.module.embeddings.register_forward_hook(lambda *_: None)
        else:
            encoder.module.embeddings.register_forward_pre_hook(lambda *_: None)
        encoder.states(x)
    assert not packs
