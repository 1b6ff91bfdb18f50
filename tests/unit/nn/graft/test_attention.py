"""Memory attention: equations, masks, insertion and removal, error messages."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import (
    CamembertConfig,
    Data2VecTextConfig,
    ErnieConfig,
    GPT2Config,
    GPT2Model,
    XLMRobertaConfig,
)
from transformers.models.bert.modeling_bert import BertSelfAttention

from holdfast.core.errors import BadInput
from holdfast.core.tape import tape
from holdfast.nn.backbones.pretrained import layer_stack, load_module, module_from_config
from holdfast.nn.graft.attention import (
    ATTENTIONS,
    MemoryAttention,
    MemoryStates,
    attend_to,
    insert_attention,
    remove_attention,
)
from tests import tiny
from tests.gradients import assert_same

KIN = {
    "xlm-roberta": XLMRobertaConfig, "camembert": CamembertConfig, "ernie": ErnieConfig, "data2vec": Data2VecTextConfig,
}  # fmt: skip
FAMILIES = ["bert", "roberta", "mpnet", "distilbert", "electra", "gpt2", *KIN]
PLACE = 1
REAL = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
IDS = torch.tensor([[0, 5, 6, 7, 2], [0, 8, 2, 1, 1]])


def tiny_gpt2(words: int = 99, seed: int = 0) -> GPT2Model:
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=words, n_positions=16, n_embd=32, n_layer=3, n_head=2, initializer_range=0.2)
    return GPT2Model(config)


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    result = {"gpt2": tiny_gpt2()}
    for family, config in KIN.items():
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
        result[family] = module_from_config(config(vocab_size=99, pad_token_id=1, initializer_range=0.2, **sizes))
    for family in FAMILIES[:5]:
        result[family] = load_module(str(getattr(tiny, f"tiny_{family}")(tmp_path_factory.mktemp(family))), what="it")
    return result


@pytest.fixture(params=FAMILIES)
def net(request, networks):
    return copy.deepcopy(networks[request.param]).eval()


def states(net, ids=IDS, mask=REAL):
    return net(input_ids=ids, attention_mask=mask).last_hidden_state


def below(net, ids=IDS, mask=REAL):
    """Return the input of the layer at PLACE."""
    seen = []
    hook = layer_stack(net)[PLACE].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    states(net, ids, mask)
    hook.remove()
    return seen[0].detach()


def test_hidden_memory_equals_the_plain_network(net):
    net = net.double()  # in single precision the order of sums shows in the sixth digit
    hidden = MemoryStates({PLACE: torch.randn(2, 5, 32).double()}, visible=torch.zeros(2, 5, dtype=torch.bool))
    for mask in (REAL, torch.ones_like(REAL)):
        before = states(net, mask=mask)
        insert_attention(layer_stack(net), [PLACE])
        with attend_to(hidden):
            assert_close(states(net, mask=mask), before, rtol=0, atol=1e-6)
        remove_attention(layer_stack(net))


def test_own_states_as_memory_get_half_of_the_attention(net):
    for mask in (REAL, torch.ones_like(REAL)):
        before, own = states(net, mask=mask), below(net, mask=mask)
        insert_attention(layer_stack(net), [PLACE])
        with attend_to(MemoryStates({PLACE: own})), tape() as side:
            after = states(net, mask=mask)
        remove_attention(layer_stack(net))
        assert_close(after, before, rtol=0, atol=2e-6)
        (mass,) = side["general/mass"]
        assert_close(mass, torch.full((2, 2, 5), 0.5), rtol=0, atol=1e-6)


def test_memory_changes_the_output_and_trains_the_layer(net):
    before = states(net)
    insert_attention(layer_stack(net), [PLACE])
    memory = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    with attend_to(MemoryStates({PLACE: memory})):
        after = states(net)
    assert float((after - before).detach().abs()[REAL.bool()].max()) > 1e-3
    after.square().sum().backward()
    inside = next(part for part in net.modules() if isinstance(part, MemoryAttention))
    assert all(bool(p.grad.any()) for p in inside.parameters())


def test_insert_and_remove_are_inverse(net):
    before, names = states(net), list(net.state_dict())
    parts = dict(net.named_modules())
    for attention in ATTENTIONS:
        insert_attention(layer_stack(net), [0, 2], attention=attention)
        assert list(net.state_dict()) == names  # state_dict keys do not change
        assert sum(isinstance(part, MemoryAttention) for part in net.modules()) == 2
        remove_attention(layer_stack(net))
        now = dict(net.named_modules())
        assert list(now) == list(parts)
        assert all(now[name] is parts[name] for name in parts)
        assert torch.equal(states(net), before)


def test_weights_and_modes_carry_over_to_the_plain_network(net):
    other = copy.deepcopy(net)
    insert_attention(layer_stack(net), [PLACE])
    net.train()
    with torch.no_grad():
        for p in net.parameters():
            p += 0.01
    other.load_state_dict(net.state_dict())  # strict
    remove_attention(layer_stack(net))
    assert all(part.training for part in net.modules())
    assert torch.equal(states(net.eval()), states(other.eval()))


def naive(plain: BertSelfAttention, h, m, real, attention, share):
    """Compute head by head and token by token."""
    result = torch.zeros_like(h)
    w = 16
    for i in range(len(h)):
        present = real[i].bool()
        q, k, v = plain.query(h[i]), plain.key(h[i][present]), plain.value(h[i][present])
        mk, mv = plain.key(m[i][present]), plain.value(m[i][present])
        rows = []
        for head in range(2):
            a = slice(head * w, head * w + w)

            def look(query, keys, values):
                return (query @ keys.T / w**0.5).softmax(-1) @ values

            own = look(q[:, a], k[:, a], v[:, a])
            if attention == "memory":
                rows.append(look(q[:, a], torch.cat([k, mk])[:, a], torch.cat([v, mv])[:, a]))
            elif attention == "cross":
                rows.append(look(own, mk[:, a], mv[:, a]))
            else:
                s = torch.sigmoid(share[head])
                rows.append((1 - s) * own + s * look(q[:, a], mk[:, a], mv[:, a]))
        result[i] = torch.cat(rows, -1)
    return result


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_equals_the_equation(attention, networks):
    net = copy.deepcopy(networks["bert"]).double().eval()
    plain = layer_stack(net)[PLACE].attention.self
    insert_attention(layer_stack(net), [PLACE], attention=attention)
    module = layer_stack(net)[PLACE].attention.self
    torch.manual_seed(0)
    h, m = (torch.randn(2, 5, 32, dtype=torch.double, requires_grad=True) for _ in range(2))
    share = torch.tensor([0.3, -1.0], dtype=torch.double, requires_grad=True)
    mask = REAL.bool()[:, None, None]
    learned = [h, m, *plain.parameters(), *([share] if attention == "gate" else [])]
    with attend_to(MemoryStates({PLACE: m}, share={PLACE: share})):
        fast, _ = module(h, attention_mask=mask)
    assert_same(fast, naive(plain, h, m, REAL, attention, share), learned)


def test_padding_and_batch_have_no_effect(net):
    insert_attention(layer_stack(net), range(3))
    memory = torch.randn(2, 5, 32)
    with attend_to(MemoryStates(dict.fromkeys(range(3), memory))):
        together = states(net)
    with attend_to(MemoryStates(dict.fromkeys(range(3), memory[1:, :3]))):
        alone = states(net, IDS[1:, :3], REAL[1:, :3])
    assert_close(together[1:, :3], alone, rtol=1e-4, atol=1e-5)
    with attend_to(MemoryStates(dict.fromkeys(range(3), torch.where(REAL[..., None].bool(), memory, 1e3)))):
        assert_close(states(net)[1, :3], together[1, :3], rtol=1e-4, atol=1e-5)  # memory at padding is masked


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_causal_network_sees_no_later_memory(attention):
    net = tiny_gpt2().eval()
    insert_attention(layer_stack(net), range(3), attention=attention)
    memory, share = torch.randn(1, 5, 32), dict.fromkeys(range(3), torch.zeros(2))
    for mask in (torch.ones(1, 5, dtype=torch.long), torch.tensor([[1, 1, 1, 1, 0]])):
        with attend_to(MemoryStates(dict.fromkeys(range(3), memory), share=share)):
            before = states(net, IDS[:1], mask)
        for t in range(1, 5):
            ids, other = IDS[:1].clone(), memory.clone()
            ids[:, t:], other[:, t:] = 9, torch.randn(1, 5 - t, 32)
            with attend_to(MemoryStates(dict.fromkeys(range(3), other), share=share)):
                after = states(net, ids, mask)
            assert_close(after[:, :t], before[:, :t], rtol=0, atol=1e-6)
            if int(mask[0, t]):
                assert float((after - before)[:, t].detach().abs().max()) > 1e-3


def test_past_key_values_raise():
    net = tiny_gpt2().eval()
    saved = net(input_ids=IDS[:1], use_cache=True).past_key_values
    insert_attention(layer_stack(net), [PLACE])
    with attend_to(MemoryStates({PLACE: torch.randn(1, 1, 32)})), pytest.raises(BadInput, match="past_key_values"):
        net(input_ids=IDS[:1, :1], past_key_values=saved)


def test_missing_memory_raises(net):
    insert_attention(layer_stack(net), [PLACE])
    with pytest.raises(BadInput, match="without a memory"):
        states(net)
    with attend_to(MemoryStates({PLACE: torch.randn(2, 5, 32)})):
        states(net)
    with pytest.raises(BadInput, match="without a memory"):
        states(net)  # no state remains


def test_unsupported_attention_raises():
    with pytest.raises(BadInput, match=r"TransformerEncoderLayer.*Bert"):
        insert_attention(nn.ModuleList([nn.TransformerEncoderLayer(8, 2)]), [0])


def test_known_class_name_with_other_function_raises(networks):
    class Sharper(BertSelfAttention):
        def forward(self, hidden_states, *args, **named):
            out, weights = super().forward(hidden_states * 2, *args, **named)
            return out, weights

    net = copy.deepcopy(networks["bert"])
    layer_stack(net)[0].attention.self.__class__ = Sharper
    with pytest.raises(BadInput, match="Sharper"):
        insert_attention(layer_stack(net), [0])
    assert layer_stack(net)[0].attention.self.training == net.training


def test_second_insertion_raises(networks):
    net = copy.deepcopy(networks["bert"])
    insert_attention(layer_stack(net), [0])
    with pytest.raises(BadInput, match="reads a memory already"):
        insert_attention(layer_stack(net), [0])
