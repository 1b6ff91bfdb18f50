"""A text encoder that reads a general one: what trains, what stays, what is saved, and its controls."""

from __future__ import annotations

import copy
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from holdfast.core import inputs
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.methods.averaging import SWAD, MovingAverage
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.gmap import GMap
from holdfast.nn.backbones.pretrained import load_module
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.graft.attention import ATTENTIONS
from holdfast.nn.heads import Linear
from holdfast.nn.label_words import LabelWords
from holdfast.nn.memory.general import STRATEGIES, memory_hidden
from holdfast.nn.model import Model, tune
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify
from tests import tiny
from tests.unit.nn.graft.test_attention import tiny_gpt2
from tests.unit.nn.transformers import LABELS, TEXTS


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("two")
    return {
        "domain": str(tiny.tiny_masked(place / "domain")),
        "general": str(tiny.tiny_bert(place / "general")),
        "roberta": str(tiny.tiny_roberta(place / "roberta")),
        "bytes": str(tiny.tiny_bytes(place / "bytes")),
    }


def build(folders, **options) -> TextEncoder:
    torch.manual_seed(0)
    return GMap.build(list, **{"domain": folders["domain"], "general": folders["general"], "length": 16, **options})


def batch(encoder: TextEncoder, texts=TEXTS) -> inputs.Tokens:
    return encoder.prepare(texts).take(torch.arange(len(texts)))


def method(encoder: TextEncoder) -> ERM:
    torch.manual_seed(0)
    model = Model(encoder, NoNeck(encoder.width), Linear(encoder.width, 2))
    return ERM(model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings(lr=3e-3)))


def trained(encoder: TextEncoder, steps: int = 3) -> ERM:
    made = method(encoder).train()
    for _ in range(steps):
        made.step(DomainBatch(batch(encoder), LABELS, (0, 1), (3, 3)))
    return made


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_padding_and_no_other_text_changes_a_feature(strategy, attention, folders):
    encoder = build(folders, strategy=strategy, attention=attention).eval()
    x = batch(encoder)
    assert len(set(x.mask.sum(1).tolist())) > 2
    with torch.no_grad():
        together = encoder(x)
        for i, text in enumerate(TEXTS):
            assert_close(encoder(batch(encoder, [text]))[0], together[i], rtol=1e-4, atol=1e-5)
        longer = inputs.Tokens(F.pad(x.ids, (0, 4), value=1), F.pad(x.mask, (0, 4)))
        assert_close(encoder(longer), together, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_with_the_released_mask_padding_changes_a_feature(attention, folders):
    encoder, right = (build(folders, attention=attention, mask=mask).eval() for mask in ("legacy", "keys"))
    x = batch(encoder)
    longest = x.mask.all(1)
    longer = inputs.Tokens(F.pad(x.ids, (0, 4), value=1), F.pad(x.mask, (0, 4)))
    with torch.no_grad():
        assert_close(
            encoder(x)[longest], right(x)[longest], rtol=1e-4, atol=1e-5
        )  # where nothing is padded, they agree
        assert float((encoder(x) - right(x))[~longest].abs().max()) > 1e-3
        assert float((encoder(longer) - encoder(x)).abs().amax(1).min()) > 1e-4
    assert "mask" not in right.settings["companion"]
    assert encoder.settings["companion"]["mask"] == "legacy"


def test_with_the_released_mask_a_memory_can_be_hidden_and_trained(folders):
    encoder = build(folders, mask="legacy", states="legacy", chunks=["1", "2-3"])
    assert encoder.companion.reads == {1: (0,), 2: (1, 2)}
    made = trained(encoder)
    assert all(bool(p.isfinite().all()) for p in made.parameters())
    encoder.eval()
    x = batch(encoder, TEXTS[:1])
    plain = TextEncoder.build(list, name=folders["domain"], length=16).eval()
    plain.module.load_state_dict(encoder.module.state_dict())
    with torch.no_grad(), memory_hidden():
        assert_close(encoder(x), plain(x), rtol=1e-4, atol=1e-5)


def test_dropout_is_that_of_the_networks_that_learn(folders):
    def shares(module):
        return {part.p for part in module.modules() if isinstance(part, nn.Dropout)}

    usual = build(folders)
    made = build(folders, dropout=0.3)
    assert shares(usual.module) == {0.1}
    assert shares(made.module) == {0.3}
    assert shares(made.companion.second.module) == {0.1}  # it is frozen, and drops nothing
    both = build(folders, dropout=0.3, frozen=False)
    assert shares(both.companion.second.module) == {0.3}
    torch.testing.assert_close(made.eval()(batch(made)), usual.eval()(batch(usual)))


def test_the_general_model_is_read(folders):
    plain = TextEncoder.build(list, name=folders["domain"], length=16).eval()
    x = batch(plain)
    found = [build(folders, general=folders[name]).eval()(x) for name in ("general", "roberta")]
    found += [plain(x), build(folders, general=None).eval()(x)]
    for i, a in enumerate(found):
        for b in found[:i]:
            assert float((a - b).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("rule", [ERM, MovingAverage, SWAD])
def test_training_leaves_the_general_model_bit_for_bit(rule, folders):
    encoder = build(folders)
    general = encoder.companion.second.module
    before = copy.deepcopy(general.state_dict())
    made = method(encoder).train()
    made = made if rule is ERM else rule(made)
    inside = {id(p) for p in general.parameters()}
    assert not inside & {id(p) for p in made.parameters()}
    assert not inside & {id(p) for p in made.model.trainable_parameters()}
    assert not [name for name in made.state_dict() if "companion.second" in name]
    start = copy.deepcopy(made.model.state_dict())
    for step in range(3):
        made.step(DomainBatch(batch(encoder), LABELS, (0, 1), (3, 3)))
        made.on_valid(step, {"a": 0.5}, {"a": 1.0})
        assert not any(part.training for part in general.modules())
    assert encoder.module.training
    for name, value in general.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None and not p.requires_grad for p in general.parameters())
    assert made.deployed.backbone.companion.second.module is general  # copies share it
    moved = {name for name, value in made.model.state_dict().items() if not torch.equal(value, start[name])}
    assert moved == set(start)  # and all the rest has learned, the gates too


def test_unfrozen_it_learns_too(folders):
    encoder = build(folders, frozen=False)
    before = copy.deepcopy(encoder.companion.second.module.state_dict())
    made = trained(encoder)
    assert encoder.companion.second.module.training
    after = made.model.backbone.companion.second.module.state_dict()
    moved = [name for name, value in after.items() if not torch.equal(value, before[name])]
    assert len(moved) == len(before)


def test_the_domains_weights_load_into_the_plain_network(folders):
    made = trained(build(folders, attention="gate"))
    plain = load_module(folders["domain"], what="it")
    plain.load_state_dict(made.model.backbone.module.state_dict())  # strict: no name more, none less
    extra = [name for name in made.model.backbone.state_dict() if not name.startswith("module.")]
    assert sorted(extra) == ["companion.gates.2.weight", "companion.shares.1", "companion.shares.2"]


def test_the_control_is_the_domains_own_frozen_copy(folders):
    encoder = build(folders, general=None)
    mine, copied = encoder.module.state_dict(), encoder.companion.second.module.state_dict()
    assert list(mine) == list(copied)
    assert all(torch.equal(mine[name], copied[name]) for name in mine)
    assert not {id(p) for p in encoder.module.parameters()} & {
        id(p) for p in encoder.companion.second.module.parameters()
    }


def test_a_memory_of_the_same_untrained_network_is_new_to_the_first_layer_alone(folders):
    """The states after layer i are what layer i + 1 takes in: with them as memory it gives what it gives without."""
    encoder = build(folders, general=None, strategy="single", layers=2, source=1).eval()
    plain = TextEncoder.build(list, name=folders["domain"], length=16).eval()
    assert_close(encoder(batch(plain)), plain(batch(plain)), rtol=1e-4, atol=1e-5)


def test_weights_are_interpolated(folders):
    one, other = (load_module(folders[name], what="it").state_dict() for name in ("domain", "general"))
    for share in (0.0, 0.3, 1.0):
        made = build(folders, mix=share, strategy="none")
        assert made.companion is None
        for name, value in made.module.state_dict().items():
            assert_close(value, (1 - share) * one[name] + share * other[name])
    with pytest.raises(BadInput, match=r"encoder\.mix .* got 2"):
        build(folders, mix=2)
    with pytest.raises(BadInput, match=r"encoder\.mix .*token_type_embeddings"):
        build(folders, mix=0.5, general=folders["roberta"])


def test_none_is_the_plain_encoder(folders):
    plain = TextEncoder.build(list, name=folders["domain"], length=16).eval()
    assert torch.equal(build(folders, strategy="none").eval()(batch(plain)), plain(batch(plain)))


def test_two_tokenizers_are_refused(folders):
    with pytest.raises(BadInput, match="different tokenizers"):
        build(folders, general=folders["bytes"])


def test_wrong_settings_are_told(folders):
    with pytest.raises(BadInput, match="unknown strategy 'chunk'"):
        build(folders, strategy="chunk")
    with pytest.raises(BadInput, match="from 1 to 3, got 12"):
        build(folders, layers=[12])
    with pytest.raises(BadInput, match="unknown attention"):
        build(folders, attention="self")
    with pytest.raises(BadInput, match="5 to 64"):
        build(folders, general=folders["roberta"], length=66)  # the general model has fewer positions


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"frozen": False},
        {"attention": "gate", "strategy": "gated"},
        {"strategy": "beside"},
        {"strategy": "none"},
        {"mask": "legacy", "states": "legacy", "chunks": [1, "1-3"], "dropout": 0.3},
    ],
    ids=str,
)
def test_a_folder_holds_both(options, folders, tmp_path):
    domain, general = (shutil.copytree(folders[name], tmp_path / name) for name in ("domain", "general"))
    encoder = GMap.build(list, domain=str(domain), general=str(general), length=16, **options)
    trained(encoder, steps=1)
    encoder.eval()
    wanted = encoder(batch(encoder))
    settings, state = encoder.save(tmp_path / "saved"), copy.deepcopy(encoder.state_dict())
    shutil.rmtree(domain)
    shutil.rmtree(general)
    again = GMap.load(tmp_path / "saved", settings)
    again.load_state_dict(state)
    assert torch.equal(again.eval()(batch(again)), wanted)
    assert again.settings == encoder.settings
    told = encoder.module.config.hidden_dropout_prob
    assert again.module.config.hidden_dropout_prob == told == options.get("dropout", 0.1)
    assert again.preparation_key() == encoder.preparation_key()


def test_a_folder_with_another_general_model_is_refused(folders, tmp_path):
    settings = build(folders).save(tmp_path)
    shutil.copy(Path(folders["roberta"]) / "model.safetensors", tmp_path / "general" / "model.safetensors")
    with pytest.raises(BadInput):
        GMap.load(tmp_path, settings)
    settings["companion"]["digest"] = "0"
    build(folders).save(tmp_path)
    with pytest.raises(BadInput, match="is not the one that this model was trained with"):
        GMap.load(tmp_path, settings)


def test_the_settings_tell_general_models_apart(folders, tmp_path):
    """What is kept of a frozen encoder's features goes by its settings and its state, and the state has no general."""
    digests = {build(folders, general=folders[name]).settings["companion"]["digest"] for name in ("general", "roberta")}
    assert len(digests) == 2


def test_a_cache_changes_nothing_but_the_last_bits(folders):
    plain, kept = build(folders).eval(), build(folders, cache=1).eval()
    kept.load_state_dict(plain.state_dict())
    x = batch(plain)
    for _ in range(2):
        assert_close(kept(x), plain(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "distilbert", "electra"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_in_half_precision_it_is_nearly_the_same(family, attention, tmp_path):
    folder = str(getattr(tiny, f"tiny_{family}")(tmp_path))
    for cache in (0, 1):
        encoder = GMap.build(list, domain=folder, attention=attention, length=16, cache=cache).eval()
        x = batch(encoder)
        whole = encoder(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half = encoder(x)
        assert half.dtype == torch.float32
        assert_close(half, whole, rtol=0.1, atol=0.1)
        half.square().sum().backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in encoder.parameters())
    kept = encoder.companion.second.frozen.cached.values()
    assert {value.dtype for value in kept} == {torch.float32, torch.bfloat16}  # each precision has its own


def test_last_layers_learn_with_the_gates(folders):
    encoder = build(folders)
    tune(encoder, "last:1")
    learning = {name for name, p in encoder.named_parameters() if p.requires_grad}
    assert "companion.gates.2.weight" in learning
    assert not any(name.startswith("module.") and ".layer.2." not in name for name in learning)
    tune(encoder, "frozen")
    assert not any(p.requires_grad for p in encoder.parameters())
    tune(encoder, "full")
    assert all(p.requires_grad for p in encoder.parameters())
    assert not any(p.requires_grad for p in encoder.companion.second.module.parameters())


def test_prompts_and_label_words_work_as_ever(folders):
    soft = "{text} {soft:was it} {mask} ."
    encoder = build(folders, template=soft, length=24).eval()
    seen = []
    encoder.companion.second.module.register_forward_pre_hook(
        lambda _, __, named: seen.append(named["input_ids"]), with_kwargs=True
    )
    x = batch(encoder)
    assert int(x.ids.max()) >= len(tiny.VOCABULARY)  # learned tokens are numbered after the words
    head = LabelWords.build(32, ["bad", "good"], encoder, words={"bad": "bad", "good": "good"})
    assert head(encoder(x)).shape == (6, 2)
    assert int(seen[-1].max()) < len(tiny.VOCABULARY)
    words = [tiny.VOCABULARY[i] for i in seen[-1][0].tolist()]
    assert " ".join(words).startswith("[CLS] the good film was i ##t [MASK]")


def test_masked_words_are_masked_for_both(folders):
    encoder = build(folders, template="sentiment-0", length=24).eval()
    seen = []
    encoder.companion.second.module.register_forward_pre_hook(
        lambda _, __, named: seen.append(named["input_ids"]), with_kwargs=True
    )
    x = batch(encoder)
    encoder(x)
    places = encoder(inputs.Tokens(x.ids, x.mask, None, torch.tensor([[1, 2], [2, -1]] * 3)))
    assert places.shape == (6, 2, 32)  # as tasks that ask for places take it
    for ids in seen:
        assert torch.equal(ids, x.ids)
        assert bool((ids == encoder.tokenizer.mask_token_id).any(1).all())
    assert len(seen) == 2


def test_a_decoder_sees_nothing_that_comes_later(tmp_path):
    for seed, name in enumerate(("domain", "general")):
        tiny_gpt2(words=len(tiny.VOCABULARY), seed=seed).save_pretrained(tmp_path / name)
        tiny.tiny_tokenizer(tmp_path / name)
    encoder = GMap.build(list, domain=str(tmp_path / "domain"), general=str(tmp_path / "general"), length=12).eval()
    plain = TextEncoder.build(list, name=str(tmp_path / "domain"), length=12).eval()
    x = batch(encoder)
    with torch.no_grad():
        before = encoder.states(x)
        assert float((before - plain.states(x)).abs().max()) > 1e-3
        for t in range(1, x.ids.shape[1]):
            ids = x.ids.clone()
            ids[:, t:] = 7
            after = encoder.states(inputs.Tokens(ids, x.mask))
            assert_close(after[:, :t], before[:, :t], rtol=0, atol=1e-5)
