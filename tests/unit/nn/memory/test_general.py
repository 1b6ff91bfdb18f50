"""General memory: planned reads, gates over layers, memory states."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertModel

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.core.tape import tape
from holdfast.nn.backbones.companion import FrozenModule, GeneralEncoder
from holdfast.nn.graft.attention import ATTENTIONS, MemoryAttention
from holdfast.nn.memory.general import STRATEGIES, Gate, GeneralMemory, plan_reads
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


def test_custom_chunks():
    plan = partial(plan_reads, "chunk-gated", depth=12, general=12)
    low, high = (1, 2, 3, 4), tuple(range(5, 13))
    for requested in (["1-4", "5-12"], [list(low), list(high)], [["1-3", 4], ["5-8", "9-12"]], [low, "5/12-12/12"]):
        assert plan(chunks=requested) == {5: low, 11: high}
    assert plan(chunks=["1-6", "7-12"]) == plan()
    assert plan(chunks=[[12, 1], 12]) == {5: (1, 12), 11: (12,)}  # chunks may overlap and leave layers out
    assert plan(chunks="1-3", layers=9) == {8: (1, 2, 3)}
    assert plan(chunks=[1, "2", 3], layers=[2, 4, 6]) == {1: (1,), 3: (2,), 5: (3,)}
    halves = plan_reads("chunk-gated", depth=6, general=6, chunks=["1/12-6/12", "7/12-12/12"])
    assert halves == {2: (1, 2, 3), 5: (4, 5, 6)}


@pytest.mark.parametrize(
    "chunk", [0, 13, [], [2.5], 2.5, "six", "6-1", "1-13", "0-3", "-3", "1-2-3", True, None, [[1]]]
)
def test_invalid_chunk_raises(chunk):
    with pytest.raises(BadInput, match=r"encoder\.chunks.* from 1 to 12"):
        plan_reads("chunk-gated", depth=12, general=12, chunks=["1-6", chunk])


def test_legacy_states_are_layer_inputs():
    plans = {strategy: plan_reads(strategy, depth=12, general=12, states="legacy") for strategy in STRATEGIES}
    assert plans == {
        "single": {8: (11,)},
        "multi": {i: (i,) for i in range(12)},
        "gated": {8: tuple(range(12))},
        "chunk-gated": {5: tuple(range(6)), 11: tuple(range(6, 12))},
    }
    assert plan_reads("single", depth=12, general=12, source=9, states="legacy") == {8: (8,)}
    with pytest.raises(BadInput, match="unknown states of a general memory 'all'"):
        plan_reads("single", depth=12, general=12, states="all")
    general = bert()
    second = GeneralEncoder(FrozenModule(general))
    with torch.no_grad():
        (result,) = second.states(X, [0])
        assert_close(result, general.embeddings(input_ids=X.ids))


def test_cached_states_of_both_kinds_are_separate():
    saved = GeneralEncoder(FrozenModule(bert()), cache=1)
    reads = [plan_reads("multi", depth=4, general=4, states=states) for states in ("layers", "legacy")]
    memories = [GeneralMemory(bert(seed=1), saved, each) for each in reads]
    for _ in range(2):  # the second time from the cache
        ours, released = (memory.memory_states(X).memory for memory in memories)
        for place in range(1, 4):
            assert_close(released[place], ours[place - 1])
        assert float((released[0] - ours[0]).abs().max()) > 1e-3
    assert {key[0] for key in saved.frozen.cached} == {(1, 2, 3, 4), (0, 1, 2, 3)}


def test_invalid_settings_raise():
    with pytest.raises(BadInput, match=r"encoder\.chunks.*chunk-gated"):
        plan_reads("gated", depth=12, general=12, chunks=["1-6", "7-12"])
    with pytest.raises(BadInput, match=r"encoder\.chunks has 3 chunks for 2"):
        plan_reads("chunk-gated", depth=12, general=12, chunks=["1-4", "5-8", "9-12"])
    with pytest.raises(BadInput, match="unknown mask of a general memory 'key'"):
        GeneralMemory(bert(), GeneralEncoder(FrozenModule(bert())), {0: (1,)}, mask="key")
    with pytest.raises(BadInput, match=r"encoder\.mask=legacy.*causal"):
        GeneralMemory(tiny_gpt2(), GeneralEncoder(FrozenModule(tiny_gpt2())), {0: (1,)}, mask="legacy")
    with pytest.raises(BadInput, match=r"encoder\.layers.*duplicates"):
        plan_reads("single", depth=12, general=12, layers=[])
    with pytest.raises(BadInput, match=r"encoder\.layers.*duplicates"):
        plan_reads("single", depth=12, general=12, layers=[3, 3])
    with pytest.raises(BadInput, match="from 1 to 12; got 13"):
        plan_reads("single", depth=12, general=12, source=13)
    with pytest.raises(BadInput, match=r"encoder\.source.*single"):
        plan_reads("gated", depth=12, general=12, source=3)
    with pytest.raises(BadInput, match=r"3 .* 2 layers"):
        plan_reads("chunk-gated", depth=12, general=2, layers=[1, 2, 3])
    with pytest.raises(BadInput, match="unknown strategy of a general memory 'chunked'"):
        plan_reads("chunked", depth=12, general=12)
    with pytest.raises(BadInput, match="unknown start of a gate"):
        Gate(4, init="ones")


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
    assert_close(result, naive, rtol=1e-6, atol=1e-6)
    assert_close(naive, with_bias)  # a bias has no effect
    assert [name for name, _ in gate.named_parameters()] == ["weight"]
    weights = torch.randn_like(result)
    learned = [gate.weight, *states]
    for a, b in zip(
        torch.autograd.grad((result * weights).sum(), learned),
        torch.autograd.grad((naive * weights).sum(), learned),
        strict=True,
    ):
        assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_zero_gate_is_the_mean():
    states = [torch.randn(2, 5, 8) for _ in range(3)]
    assert_close(Gate(8, init="zero")(states), torch.stack(states).mean(0))


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_with_every_attention(strategy, attention):
    net, general = bert(seed=1), bert()
    reads = plan_reads(strategy, depth=4, general=4)
    memory = GeneralMemory(net, GeneralEncoder(FrozenModule(general)), reads, attention=attention, gate="zero")
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
