"""Dropout inside a loaded network: set wherever its family keeps it, with the same weights."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import BertConfig, DistilBertConfig, GPT2Config, ModernBertConfig, MPNetConfig, RobertaConfig

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.pretrained import module_from_config, with_dropout
from holdfast.nn.backbones.text import TextEncoder
from tests.tiny import tiny_bert
from tests.unit.nn.transformers import TEXTS

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
CONFIGS = {
    "bert": BertConfig(vocab_size=20, **SIZES),
    "roberta": RobertaConfig(vocab_size=20, **SIZES),
    "mpnet": MPNetConfig(vocab_size=20, **SIZES),
    "distilbert": DistilBertConfig(vocab_size=20, dim=32, n_layers=2, n_heads=2, hidden_dim=16),
    "gpt2": GPT2Config(vocab_size=20, n_embd=32, n_layer=2, n_head=2),
    "modernbert": ModernBertConfig(vocab_size=20, pad_token_id=1, bos_token_id=0, eos_token_id=2, **SIZES),
}
IDS = torch.tensor([[0, 5, 6, 7, 2, 3, 8, 9]])


@pytest.mark.parametrize("family", CONFIGS)
def test_every_place_drops_out_this_share_and_the_weights_are_the_same(family):
    torch.manual_seed(0)
    plain = module_from_config(CONFIGS[family]).eval()
    wanted = plain(input_ids=IDS).last_hidden_state
    for share in (0.4, 0.0):
        before = torch.random.get_rng_state()
        made = with_dropout(copy.deepcopy(plain), share)
        assert torch.equal(torch.random.get_rng_state(), before)
        assert {part.p for part in made.modules() if isinstance(part, nn.Dropout)} == {share}
        attends = [vars(part)["attention_dropout"] for part in made.modules() if "attention_dropout" in vars(part)]
        assert set(attends) <= {share}
        torch.testing.assert_close(made.eval()(input_ids=IDS).last_hidden_state, wanted)
        moved = float((made.train()(input_ids=IDS).last_hidden_state - wanted).detach().abs().max())
        assert (moved > 0.01) == (share > 0)


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, "half", True, [0.1]])
def test_what_is_no_share_is_refused(share):
    with pytest.raises(BadInput, match=r"encoder\.dropout"):
        with_dropout(module_from_config(CONFIGS["bert"]), share)


def test_an_encoder_keeps_it(tmp_path):
    folder = tiny_bert(tmp_path / "bert")
    usual = TextEncoder.build(list, name=str(folder), length=16)
    made = TextEncoder.build(list, name=str(folder), length=16, dropout=0.0)
    assert usual.module.config.hidden_dropout_prob == 0.1  # as its file says
    x = made.prepare(TEXTS).take(torch.arange(len(TEXTS)))
    assert torch.equal(made.train()(x), made.eval()(x))
    assert not torch.equal(usual.train()(x), usual.eval()(x))
    again = TextEncoder.load(tmp_path / "kept", made.save(tmp_path / "kept"))
    again.load_state_dict(made.state_dict())
    assert torch.equal(again.train()(x), made(x))
