"""Dropout rates of pretrained networks of several families, and dropout of small networks."""

import copy

import pytest
import torch
from torch import nn
from transformers import BertConfig, DistilBertConfig, GPT2Config, ModernBertConfig, MPNetConfig, RobertaConfig

from holdfast.nn.backbones.pretrained import module_from_config, with_dropout
from holdfast.nn.backbones.small import Dropout
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
def test_rate_is_set_everywhere_and_weights_are_unchanged(family):
    torch.manual_seed(0)
    plain = module_from_config(CONFIGS[family]).eval()
    expected = plain(input_ids=IDS).last_hidden_state
    for share in (0.4, 0.0):
        before = torch.random.get_rng_state()
        network = with_dropout(copy.deepcopy(plain), share)
        assert torch.equal(torch.random.get_rng_state(), before)
        assert {part.p for part in network.modules() if isinstance(part, nn.Dropout)} == {share}
        attends = [vars(part)["attention_dropout"] for part in network.modules() if "attention_dropout" in vars(part)]
        assert set(attends) <= {share}
        torch.testing.assert_close(network.eval()(input_ids=IDS).last_hidden_state, expected)
        moved = float((network.train()(input_ids=IDS).last_hidden_state - expected).detach().abs().max())
        assert (moved > 0.01) == (share > 0)


def test_encoder_saves_the_rate(tmp_path):
    folder = tiny_bert(tmp_path / "bert")
    usual = TextEncoder.build(list, name=str(folder), length=16)
    network = TextEncoder.build(list, name=str(folder), length=16, dropout=0.0)
    assert usual.module.config.hidden_dropout_prob == 0.1  # as in its config.json
    x = network.prepare(TEXTS).take(torch.arange(len(TEXTS)))
    assert torch.equal(network.train()(x), network.eval()(x))
    assert not torch.equal(usual.train()(x), usual.eval()(x))
    again = TextEncoder.load(tmp_path / "kept", network.save(tmp_path / "kept"))
    again.load_state_dict(network.state_dict())
    assert torch.equal(again.train()(x), network(x))


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_dropout_of_small_networks_keeps_the_mean_and_drops_each_element_with_its_rate(share):
    torch.manual_seed(0)
    x, layer = torch.ones(1001, 333, requires_grad=True), Dropout(share)
    y = layer(x)
    y.sum().backward()
    dropped = (y == 0).float()
    assert float(dropped.mean()) == pytest.approx(share, abs=5 * (share * (1 - share) / x.numel()) ** 0.5)
    for place in range(4):  # each of the four numbers that one random word gives
        assert float(dropped.flatten()[place::4].mean()) == pytest.approx(share, abs=0.01)
    assert (
        float(torch.corrcoef(torch.stack([dropped[:, 0::2][:, :166].flatten(), dropped[:, 1::2].flatten()]))[0, 1])
        < 0.01
    )
    assert y[y > 0].unique().tolist() == pytest.approx([1 / (1 - share)], rel=1e-4)
    torch.testing.assert_close(x.grad, y.detach())


def test_dropout_of_small_networks_repeats_with_the_seed_and_ends_in_evaluation():
    x, layer = torch.randn(7, 5), Dropout(0.4)
    first, second = (layer(x) for _ in range(2) if torch.manual_seed(3))
    assert torch.equal(first, second)
    assert not torch.equal(layer(x), second)
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert not Dropout(1.0)(x).any()
