"""GeneralEncoder: frozen networks outside of the state, layer states and their cache."""

import copy

import pytest
import torch
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.nn.backbones.companion import GeneralEncoder
from tests.tiny import tiny_bert, tiny_roberta

IDS = torch.tensor([[0, 5, 6, 7, 2], [0, 8, 2, 1, 1], [0, 9, 9, 2, 1]])
X = Tokens(IDS, IDS != 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny_bert(tmp_path_factory.mktemp("bert")))


def held(folder: str, **options) -> GeneralEncoder:
    """Build a frozen encoder that shares nothing with other tests."""
    from holdfast.nn.backbones.companion import FrozenModule
    from holdfast.nn.backbones.pretrained import load_module

    return GeneralEncoder(FrozenModule(load_module(folder, what="it")), **options)


def test_frozen_encoder_is_outside_state_and_optimizer_and_shared_by_copies(folder):
    second = GeneralEncoder.build(folder, frozen=True).train()
    assert not list(second.parameters())
    assert not list(second.buffers())
    assert not second.state_dict()
    assert not any(part.training for part in second.module.modules())
    assert not any(p.requires_grad for p in second.module.parameters())
    assert copy.deepcopy(second).module is second.module
    assert GeneralEncoder.build(folder, frozen=True).module is second.module  # shared by runs
    assert not any(each.requires_grad for each in second.states(X, [1, 3]))


def test_trained_encoder_is_a_normal_submodule(folder):
    second = GeneralEncoder.build(folder, frozen=False).train()
    assert all(p.requires_grad for p in second.parameters())
    assert len(second.state_dict()) == len(second.module.state_dict())
    second.states(X, [1, 2])[1].sum().backward()
    assert any(p.grad is not None for p in second.parameters())
    assert second.module.training
    assert copy.deepcopy(second).module is not second.module


def test_states_follow_each_layer(folder):
    second = held(folder)
    whole = second.module(input_ids=X.ids, attention_mask=X.mask.long(), output_hidden_states=True)
    for result, i in zip(second.states(X, [3, 1, 2]), [3, 1, 2], strict=True):
        assert torch.equal(result, whole.hidden_states[i])
    assert torch.equal(second.states(X, [3])[0], whole.last_hidden_state)
    assert (second.depth, second.width) == (3, 32)


def test_cached_states_are_computed_once_and_equal(folder):
    plain, stats = held(folder), held(folder, cache=1)
    calls = []
    stats.module.register_forward_hook(lambda *_: calls.append(1))
    for layers in ([1, 2, 3], [3]):
        expected = plain.states(X, layers)
        for _ in range(2):
            for a, b in zip(stats.states(X, layers), expected, strict=True):
                assert_close(a[X.mask], b[X.mask], rtol=1e-5, atol=1e-6)
    assert len(calls) == 6  # three texts, two sets of layers


def test_cached_states_do_not_depend_on_batch_order(folder):
    one, other = held(folder, cache=1), held(folder, cache=1)
    first = one.states(X, [2])[0]
    other.states(Tokens(IDS[1:2, :3], X.mask[1:2, :3]), [2])
    assert torch.equal(other.states(X, [2])[0], first)


def test_cache_distinguishes_token_types(folder):
    second = held(folder, cache=1)
    zero, one = (Tokens(IDS[:1], X.mask[:1], torch.full((1, 5), i)) for i in (0, 1))
    assert not torch.equal(second.states(zero, [2])[0], second.states(one, [2])[0])
    assert_close(second.states(one, [2])[0], held(folder).states(one, [2])[0])


def test_states_beyond_the_cache_size_are_recomputed(folder):
    second = held(folder, cache=1)
    second.cache = 5 * 32 * 4  # the first text
    calls = []
    second.module.register_forward_hook(lambda *_: calls.append(1))
    first = second.states(X, [3])[0]
    assert torch.equal(second.states(X, [3])[0], first)
    assert len(calls) == 3 + 2
    assert len(second.frozen.cached) == 1


def test_save_and_load(folder, tmp_path):
    second = held(folder)
    second.save(tmp_path)
    again = GeneralEncoder.load(tmp_path, frozen=True)
    assert again.digest == second.digest
    assert torch.equal(again.states(X, [2])[0], second.states(X, [2])[0])
    learning = GeneralEncoder.build(folder, frozen=False)
    learning.save(tmp_path / "other")
    assert not list((tmp_path / "other").rglob("*.safetensors"))
    bare = GeneralEncoder.load(tmp_path / "other", frozen=False)
    bare.load_state_dict(learning.state_dict())
    assert torch.equal(bare.eval().states(X, [2])[0], learning.eval().states(X, [2])[0])


def test_digest_depends_on_weights(folder, tmp_path):
    assert held(folder).digest == held(folder).digest != ""
    assert held(str(tiny_roberta(tmp_path))).digest != held(folder).digest
    assert GeneralEncoder.build(folder, frozen=False).digest == ""


@pytest.mark.parametrize(("frozen", "cache"), [(True, -1), (False, 1)])
def test_invalid_cache_size_raises(folder, frozen, cache):
    with pytest.raises(BadInput, match=r"encoder\.cache"):
        GeneralEncoder.build(folder, frozen=frozen, cache=cache)
