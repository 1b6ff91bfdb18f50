"""General memory: planned reads, gates over layers, memory states."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import BertConfig, BertModel

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.core.tape import tape
from holdfast.nn.backbones.companion import FrozenModule, GeneralEncoder
from holdfast.nn.graft.attention import ATTENTIONS, MemoryAttention
from holdfast.nn.memory.general import STRATEGIES, Gate, GeneralMemory, check_padding, plan_reads
from tests.gradients import assert_same
from tests.unit.nn.graft.test_attention import tiny_gpt2

X = Tokens(torch.tensor([[0, 5, 6, 7], [0, 8, 2, 1]]), torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool())


def bert(layers: int = 4, width: int = 32, seed: int = 0) -> BertModel:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=20, hidden_size=width, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, initializer_range=0.2,
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False).eval()


def test_published_layers():
    low, high = tuple(range(1, 7)), tuple(range(7, 13))
    plans = {strategy: plan_reads(strategy, depth=12, general=12) for strategy in STRATEGIES}
    assert plans == {
        "single": {8: (12,)},
        "multi": {i: (i + 1,) for i in range(12)},
        "gated": {8: low + high},
        "chunk-gated": {5: low, 11: high},
    }
    for i in range(1, 7):  # the published pairs
        assert plan_reads("chunk-gated", depth=12, general=12, layers=[i + 6, i]) == {i - 1: low, i + 5: high}


def test_other_depths_are_proportional():
    assert plan_reads("single", depth=6, general=6) == {4: (6,)}
    assert plan_reads("gated", depth=24, general=12) == {17: tuple(range(1, 13))}
    assert plan_reads("chunk-gated", depth=6, general=6) == {2: (1, 2, 3), 5: (4, 5, 6)}
    assert plan_reads("chunk-gated", depth=3, general=4) == {1: (1, 2), 2: (3, 4)}
    assert plan_reads("chunk-gated", depth=1, general=1) == {0: (1,)}
    assert plan_reads("multi", depth=4, general=12) == {0: (3,), 1: (6,), 2: (9,), 3: (12,)}
    assert plan_reads("multi", depth=12, general=4)[0] == (1,)
    assert plan_reads("single", depth=12, general=12, layers=["6", "12"]) == {
        5: (12,),
        11: (12,),
    }  # from the command line
    assert plan_reads("chunk-gated", depth=6, general=6, layers=["6/12", "12/12"]) == {2: (1, 2, 3), 5: (4, 5, 6)}
    assert plan_reads("single", depth=6, general=6, layers="9/12") == {4: (6,)}
    assert plan_reads("chunk-gated", depth=12, general=12, layers=[2, 4, 6]) == {
        1: (1, 2, 3, 4), 3: (5, 6, 7, 8), 5: (9, 10, 11, 12),
    }  # fmt: skip


@pytest.mark.parametrize("layers", [0, 13, [12, 13], [-1], [2.5], ["six"], [True], ["0/12"], "13/12", "6/0"])
def test_missing_layer_raises(layers):
    for strategy in STRATEGIES:
        with pytest.raises(BadInput, match=r"encoder\.layers.* from 1 to 12"):
            plan_reads(strategy, depth=12, general=12, layers=layers)


def test_invalid_settings_raise():
    with pytest.raises(BadInput, match="mask=legacy"):
        check_padding({"mask": "legacy"})
    with pytest.raises(BadInput, match=r"encoder\.layers.*duplicates"):
        plan_reads("single", depth=12, general=12, layers=[])
    with pytest.raises(BadInput, match=r"encoder\.layers.*duplicates"):
        plan_reads("single", depth=12, general=12, layers=[3, 3])
    with pytest.raises(BadInput, match=r"3 .* 2 layers"):
        plan_reads("chunk-gated", depth=12, general=2, layers=[1, 2, 3])


def test_gate_is_a_weighted_mean_per_token():
    torch.manual_seed(0)
    states = [torch.randn(2, 5, 8, dtype=torch.double, requires_grad=True) for _ in range(6)]
    gate = Gate(8).double()
    assert 0.005 < float(Gate(4096).weight.detach().std()) < 0.04
    with tape() as side:
        gate.eval()(states)
    (shares,) = side["general/gate"]
    assert shares.shape == (2, 5, 6)
    assert_close(shares.sum(-1), torch.ones(2, 5), check_dtype=False)
    stacked = torch.stack(states, -2)  # (b, t, l, d)
    scores = stacked @ gate.weight
    naive = (scores.softmax(-1)[..., None] * stacked).sum(-2)
    with_bias = ((scores + 3.0).softmax(-1)[..., None] * stacked).sum(-2)
    result = gate(states)
    assert_same(result, naive, [gate.weight, *states], tolerance=1e-6, gradients=10)
    assert_close(naive, with_bias)  # a bias has no effect
    assert [name for name, _ in gate.named_parameters()] == ["weight"]


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_with_every_attention(strategy, attention):
    net, general = bert(seed=1), bert()
    reads = plan_reads(strategy, depth=4, general=4)
    memory = GeneralMemory(net, GeneralEncoder(FrozenModule(general)), reads, attention=attention)
    for gate in memory.gates.values():
        nn.init.zeros_(gate.weight)  # equal weights
    assert sum(isinstance(part, MemoryAttention) for part in net.modules()) == len(reads)
    shapes = {name: tuple(p.shape) for name, p in memory.named_parameters()}
    gates = {f"gates.{i}.weight": (32,) for i, sources in reads.items() if len(sources) > 1}
    shares = {f"shares.{i}": (2,) for i in reads} if attention == "gate" else {}
    assert shapes == gates | shares
    with torch.no_grad():
        held = general(input_ids=X.ids, attention_mask=X.mask.long(), output_hidden_states=True).hidden_states
        recall = memory.memory_states(X)
    assert set(recall.memory) == set(reads)
    for place, sources in reads.items():
        expected = torch.stack([held[i] for i in sources]).mean(0)  # layers 1 to 4: 0 is the input of the first
        assert_close(recall.memory[place], expected)
        if attention == "gate":
            assert_close(recall.share[place].detach(), torch.zeros(2))
    out = memory(lambda: net(input_ids=X.ids, attention_mask=X.mask.long()).last_hidden_state, X)
    out.square().sum().backward()
    assert all(p.grad is not None for p in memory.parameters())
    assert all(p.grad is None for p in general.parameters())


def test_gates_and_masses_are_recorded_only_in_evaluation():
    net = bert(seed=1)
    memory = GeneralMemory(net, GeneralEncoder(FrozenModule(bert())), plan_reads("chunk-gated", depth=4, general=4))

    def message(mode: bool):
        net.train(mode)
        memory.train(mode)
        with tape() as side:
            memory(lambda: net(input_ids=X.ids, attention_mask=X.mask.long()).last_hidden_state, X)
        return {name: [tuple(value.shape) for value in values] for name, values in side.items()}

    shapes = {"general/gate": [(2, 4, 2)] * 2, "general/mass": [(2, 2, 4)] * 2, "stat/general/attention": [()] * 2}
    assert message(False) == shapes
    assert message(True) == {}


def test_incompatible_networks_raise():
    with pytest.raises(BadInput, match=r"width 16.* 32"):
        GeneralMemory(bert(), GeneralEncoder(FrozenModule(bert(width=16))), {0: (1,)})
    with pytest.raises(BadInput, match="causal"):
        GeneralMemory(tiny_gpt2(), GeneralEncoder(FrozenModule(bert())), {0: (1,)})
    both = GeneralMemory(tiny_gpt2(), GeneralEncoder(FrozenModule(tiny_gpt2())), {0: (1,)})
    assert set(both.memory_states(X).memory) == {0}
