"""Null controls of a general memory: a copy of the encoder, a random network, another text."""

import pytest
import torch
from torch.testing import assert_close

from holdfast.core import inputs
from holdfast.core.errors import BadInput
from holdfast.core.seeds import seeded
from holdfast.data.raw import Texts
from holdfast.nn.backbones.gmap import GMap
from holdfast.nn.backbones.pretrained import load_module
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.memory.general import memory_hidden
from holdfast.tasks.masked import Masked
from tests import tiny
from tests.unit.nn.transformers import TEXTS

TRAINING = [f"the {word} film number {i}" for i in range(10) for word in ("good", "bad")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("two")
    return {"domain": str(tiny.tiny_masked(place / "domain")), "general": str(tiny.tiny_bert(place / "general"))}


def build(folders, seed: int = 0, **options) -> TextEncoder:
    with seeded(seed):
        return GMap.build(lambda: TRAINING, **{**folders, "length": 16, **options})


def batch(encoder: TextEncoder, texts=TEXTS) -> inputs.Tokens:
    return encoder.prepare(texts).take(torch.arange(len(texts)))


def test_memory_own_is_a_copy_of_the_domain_encoder(folders):
    encoder, asked = build(folders, memory="own"), build(folders, general=None)
    assert encoder.settings["companion"]["digest"] == asked.settings["companion"]["digest"]
    held = encoder.companion.second.module.state_dict()
    for name, value in load_module(folders["domain"], what="it").state_dict().items():
        assert torch.equal(held[name], value)


def test_memory_random_depends_on_the_seed_and_is_frozen(folders):
    one, again, other = (build(folders, seed, memory="random") for seed in (0, 0, 1))
    digests = [each.settings["companion"]["digest"] for each in (one, again, other, build(folders))]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    held = one.companion.second
    assert held.frozen is not None
    assert not any(p.requires_grad for p in held.module.parameters())
    general = load_module(folders["general"], what="it").state_dict()
    assert {name: value.shape for name, value in held.module.state_dict().items()} == {
        name: value.shape for name, value in general.items()
    }


def test_memory_other_reads_states_of_a_training_text(folders):
    encoder = build(folders, memory="other", strategy="single").eval()
    x = batch(encoder)
    recall = encoder.companion.memory_states(x)
    (memory,) = recall.memory.values()
    (states,) = encoder.companion.second.states(encoder.companion.others.replacements(x), [3])
    t = min(x.ids.shape[1], states.shape[1])
    assert_close(memory[:, :t], states[:, :t])
    words = {
        encoder.tokenizer.decode(ids[mask], skip_special_tokens=True)
        for ids, mask in zip(encoder.companion.others.pool.ids, encoder.companion.others.pool.mask, strict=True)
    }
    assert words == {" ".join(encoder.tokenizer.decode(encoder.tokenizer(text)["input_ids"][1:-1]).split())
                     for text in TRAINING}  # fmt: skip


def test_invalid_controls_raise(folders):
    with pytest.raises(BadInput, match="unknown memory 'mine'"):
        build(folders, memory="mine")
    with pytest.raises(BadInput, match=r"encoder.strategy"):
        build(folders, memory="other", strategy="beside")


def test_hidden_memory_equals_the_plain_encoder(folders):
    plain = TextEncoder.build(list, name=folders["domain"], length=16).eval()
    for memory in ("general", "other"):
        encoder = build(folders, memory=memory).eval()
        x = batch(encoder)
        with torch.no_grad(), memory_hidden():
            assert_close(encoder(x), plain(x), rtol=0, atol=1e-5)
        assert float((encoder(x) - plain(x)).detach().abs().max()) > 1e-3


def test_masked_words_are_masked_for_the_general_model(folders):
    """Otherwise its states would reveal the masked words."""
    encoder = build(folders).eval()
    network = Masked().prepare(encoder, Texts.of(TRAINING), ())
    x = network.store.take(torch.arange(len(TRAINING)))
    seen = []
    encoder.companion.second.module.register_forward_pre_hook(
        lambda _, __, named: seen.append(named["input_ids"]), with_kwargs=True
    )
    encoder(x)
    assert torch.equal(seen[0], x.ids)
    y = network.y.take(torch.arange(len(TRAINING)))
    there = x.at >= 0
    shown = seen[0].gather(1, x.at.clamp(min=0))[there]
    assert int((shown == encoder.tokenizer.mask_token_id).sum()) > 0.6 * len(shown)
    assert int((shown == y[there]).sum()) < 0.4 * len(shown)
