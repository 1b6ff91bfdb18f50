"""Prompts of a vision transformer: position, training, saving."""

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.nn.graft.insert import PromptedLayer, prompt_parameters
from holdfast.nn.tuning import tune
from tests.unit.nn.transformers import transformer

FAMILIES = ["vit", "deit", "dinov2"]


class Mean(nn.Module):
    """Adds the mean of all tokens to every token; optionally returns a tuple, as some families do."""

    def __init__(self, *, tuples: bool) -> None:
        super().__init__()
        self.tuples = tuples

    def forward(self, states: Tensor, extra: int) -> object:
        out = states + states.mean(1, keepdim=True)
        return (out, extra) if self.tuples else out


@pytest.mark.parametrize("tuples", [True, False])
@pytest.mark.parametrize("stay", [True, False])
def test_prompts_follow_the_first_token(tuples, stay):
    layer, states = PromptedLayer(Mean(tuples=tuples), 2, 3, stay=stay), torch.arange(24.0).view(2, 4, 3)
    out = layer(states, 7)
    if tuples:
        out, extra = out
        assert extra == 7
    prompts = layer.prompts.detach().expand(2, 2, 3)
    among = torch.cat([states[:, :1], prompts, states[:, 1:]], dim=1)
    among = among + among.mean(1, keepdim=True)
    assert_close(out, among if stay else among[:, [0, 3, 4, 5]])


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
def test_shallow_and_deep_prompts(family, pooling, tmp_path):
    plain, x = transformer(family, tmp_path, pooling=pooling)
    patches = plain.patches
    lengths: list[int] = []
    for prompt, count in (("shallow", 1), ("deep", 3)):
        net, _ = transformer(family, tmp_path, pooling=pooling, prompt=prompt, prompts=4)
        assert [isinstance(layer, PromptedLayer) for layer in net.stack()] == [i < count for i in range(3)]
        assert sum(p.numel() for p in prompt_parameters(net)) == count * 4 * 32
        assert sum(p.numel() for p in net.parameters()) == sum(p.numel() for p in plain.parameters()) + count * 4 * 32
        lengths.clear()
        for layer in net.stack():
            inner = layer.layer if isinstance(layer, PromptedLayer) else layer
            inner.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
        features = net(x)
        assert features.shape == plain(x).shape
        special = lengths[0] - patches - 4
        assert lengths == [patches + special + 4] * 3  # the number of tokens is the same in every layer
        features.square().sum().backward()
        assert all(bool(p.grad.any()) for p in prompt_parameters(net))
        assert float((features - plain(x)).detach().abs().max()) > 1e-5


def test_prompts_are_trained_with_the_class_token_or_everything(tmp_path):
    net, _ = transformer("vit", tmp_path, prompt="deep")
    tune(net, "head+cls")
    learning = [name for name, p in net.named_parameters() if p.requires_grad]
    assert len(learning) == 4
    assert all(name.endswith(("cls_token", "prompts")) for name in learning)
    tune(net, "full")
    assert all(p.requires_grad for p in net.parameters())
    for mode in ("frozen", "last:1"):
        with pytest.raises(BadInput, match=f"--tune {mode} freezes the prompts"):
            tune(net, mode)
