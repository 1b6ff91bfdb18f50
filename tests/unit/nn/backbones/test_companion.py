"""A second network: frozen it is apart from everything, and what is kept of its states is what it says."""

from __future__ import annotations

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
    """One that shares nothing with other tests."""
    from holdfast.nn.backbones.companion import FrozenModule
    from holdfast.nn.backbones.pretrained import load_module

    return GeneralEncoder(FrozenModule(load_module(folder, what="it")), **options)


def test_frozen_it_is_in_no_state_and_no_optimizer_and_copies_share_it(folder):
    second = GeneralEncoder.build(folder, frozen=True).train()
    assert not list(second.parameters())
    assert not list(second.buffers())
    assert not second.state_dict()
    assert not any(part.training for part in second.module.modules())
    assert not any(p.requires_grad for p in second.module.parameters())
    assert copy.deepcopy(second).module is second.module
    assert GeneralEncoder.build(folder, frozen=True).module is second.module  # and so do runs
    assert not any(each.requires_grad for each in second.states(X, [1, 3]))


def test_it_moves_with_the_network_it_belongs_to(folder):
    second = held(folder).to(torch.float64)
    assert second.states(X, [3])[0].dtype == torch.float64


def test_learning_it_is_a_part_like_any_other(folder):
    second = GeneralEncoder.build(folder, frozen=False).train()
    assert all(p.requires_grad for p in second.parameters())
    assert len(second.state_dict()) == len(second.module.state_dict())
    second.states(X, [1, 2])[1].sum().backward()
    assert any(p.grad is not None for p in second.parameters())
    assert second.module.training
    assert copy.deepcopy(second).module is not second.module


def test_states_are_those_after_each_layer(folder):
    second = held(folder)
    whole = second.module(input_ids=X.ids, attention_mask=X.mask.long(), output_hidden_states=True)
    for found, i in zip(second.states(X, [3, 1, 2]), [3, 1, 2], strict=True):
        assert torch.equal(found, whole.hidden_states[i])
    assert torch.equal(second.states(X, [3])[0], whole.last_hidden_state)
    assert (second.depth, second.width) == (3, 32)


def test_kept_states_are_computed_once_and_are_the_same(folder):
    plain, kept = held(folder), held(folder, cache=1)
    calls = []
    kept.module.register_forward_hook(lambda *_: calls.append(1))
    for layers in ([1, 2, 3], [3]):
        wanted = plain.states(X, layers)
        for _ in range(2):
            for a, b in zip(kept.states(X, layers), wanted, strict=True):
                assert_close(a[X.mask], b[X.mask], rtol=1e-5, atol=1e-6)
    assert len(calls) == 6  # three texts, two sets of layers


def test_kept_states_do_not_depend_on_the_batch_that_came_first(folder):
    one, other = held(folder, cache=1), held(folder, cache=1)
    first = one.states(X, [2])[0]
    other.states(Tokens(IDS[1:2, :3], X.mask[1:2, :3]), [2])
    assert torch.equal(other.states(X, [2])[0], first)


def test_kept_states_tell_types_apart(folder):
    second = held(folder, cache=1)
    zero, one = (Tokens(IDS[:1], X.mask[:1], torch.full((1, 5), i)) for i in (0, 1))
    assert not torch.equal(second.states(zero, [2])[0], second.states(one, [2])[0])
    assert_close(second.states(one, [2])[0], held(folder).states(one, [2])[0])


def test_kept_states_tell_precisions_apart(folder):
    second = held(folder, cache=1)
    found = {None: second.states(X, [2])[0]}
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            found[dtype] = second.states(X, [2])[0]
            assert torch.equal(second.states(X, [2])[0], found[dtype])
    assert [each.dtype for each in found.values()] == [torch.float32, torch.bfloat16, torch.float16]
    assert len(second.frozen.cached) == 3 * len(IDS)


def test_a_layer_that_learns_may_keep_its_states_for_a_gradient(folder):
    learned = torch.nn.Linear(32, 4)
    for cache in (0, 1):
        learned(held(folder, cache=cache).states(X, [2])[0]).sum().backward()  # states of inference mode would refuse
    assert learned.weight.grad is not None


def test_what_has_no_room_is_computed_each_time(folder):
    second = held(folder, cache=1)
    second.cache = 5 * 32 * 4  # the first text
    calls = []
    second.module.register_forward_hook(lambda *_: calls.append(1))
    first = second.states(X, [3])[0]
    assert torch.equal(second.states(X, [3])[0], first)
    assert len(calls) == 3 + 2
    assert len(second.frozen.cached) == 1


def test_a_folder_brings_it_back(folder, tmp_path):
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


def test_the_digest_is_of_the_weights(folder, tmp_path):
    assert held(folder).digest == held(folder).digest != ""
    assert held(str(tiny_roberta(tmp_path))).digest != held(folder).digest
    assert GeneralEncoder.build(folder, frozen=False).digest == ""


@pytest.mark.parametrize(("frozen", "cache"), [(True, -1), (False, 1)])
def test_a_cache_that_cannot_be_is_refused(folder, frozen, cache):
    with pytest.raises(BadInput, match=r"encoder\.cache"):
        GeneralEncoder.build(folder, frozen=frozen, cache=cache)
