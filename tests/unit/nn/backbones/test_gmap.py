"""G-MAP encoder: what is trained, what stays fixed, saving and loading, and null controls of the memory."""

import copy
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast.core import inputs
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.seeds import seeded
from holdfast.data.raw import Texts
from holdfast.methods.averaging import SWAD, MovingAverage
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.gmap import GMap
from holdfast.nn.backbones.pretrained import load_module
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.graft.attention import ATTENTIONS
from holdfast.nn.heads import Linear
from holdfast.nn.label_words import LabelWords
from holdfast.nn.memory.general import memory_hidden
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.nn.tuning import tune
from holdfast.tasks.classify import Classify
from holdfast.tasks.masked import Masked
from tests import tiny
from tests.unit.nn.transformers import LABELS, TEXTS

OTHERS = ("roberta", "mpnet", "distilbert", "electra")


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
    network = method(encoder).train()
    for _ in range(steps):
        network.step(DomainBatch(batch(encoder), LABELS, (0, 1), (3, 3)))
    return network


def test_dropout_applies_to_trained_networks(folders):
    def shares(module):
        return {part.p for part in module.modules() if isinstance(part, nn.Dropout)}

    usual = build(folders)
    network = build(folders, dropout=0.3)
    assert shares(usual.module) == {0.1}
    assert shares(network.module) == {0.3}
    assert shares(network.companion.second.module) == {0.1}  # frozen, in evaluation mode
    both = build(folders, dropout=0.3, frozen=False)
    assert shares(both.companion.second.module) == {0.3}
    torch.testing.assert_close(network.eval()(batch(network)), usual.eval()(batch(usual)))


def test_general_model_changes_features(folders):
    plain = TextEncoder.build(list, name=folders["domain"], length=16).eval()
    x = batch(plain)
    result = [build(folders, general=folders[name]).eval()(x) for name in ("general", "roberta")]
    result += [plain(x), build(folders, general=None).eval()(x)]
    for i, a in enumerate(result):
        for b in result[:i]:
            assert float((a - b).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("rule", [ERM, MovingAverage, SWAD])
def test_training_does_not_change_the_general_model(rule, folders):
    encoder = build(folders)
    general = encoder.companion.second.module
    before = copy.deepcopy(general.state_dict())
    network = method(encoder).train()
    network = network if rule is ERM else rule(network)
    inside = {id(p) for p in general.parameters()}
    assert not inside & {id(p) for p in network.parameters()}
    assert not inside & {id(p) for p in network.model.trainable_parameters()}
    assert not [name for name in network.state_dict() if "companion.second" in name]
    start = copy.deepcopy(network.model.state_dict())
    for step in range(3):
        network.step(DomainBatch(batch(encoder), LABELS, (0, 1), (3, 3)))
        network.on_valid(step, {"a": 0.5}, {"a": 1.0})
        assert not any(part.training for part in general.modules())
    assert encoder.module.training
    for name, value in general.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None and not p.requires_grad for p in general.parameters())
    assert network.deployed.backbone.companion.second.module is general  # copies share it
    moved = {name for name, value in network.model.state_dict().items() if not torch.equal(value, start[name])}
    assert moved == set(start)  # all other parameters have changed, also the gates


def test_unfrozen_general_model_is_trained(folders):
    encoder = build(folders, frozen=False)
    before = copy.deepcopy(encoder.companion.second.module.state_dict())
    network = trained(encoder)
    assert encoder.companion.second.module.training
    after = network.model.backbone.companion.second.module.state_dict()
    moved = [name for name, value in after.items() if not torch.equal(value, before[name])]
    assert len(moved) == len(before)


def test_mix_interpolates_weights(folders):
    one, other = (load_module(folders[name], what="it").state_dict() for name in ("domain", "general"))
    for share in (0.0, 0.3, 1.0):
        network = build(folders, mix=share, strategy="none")
        assert network.companion is None
        for name, value in network.module.state_dict().items():
            assert_close(value, (1 - share) * one[name] + share * other[name])
    with pytest.raises(BadInput, match=r"encoder\.mix .* got 2"):
        build(folders, mix=2)
    with pytest.raises(BadInput, match=r"encoder\.mix .*token_type_embeddings"):
        build(folders, mix=0.5, general=folders["roberta"])


def test_different_tokenizers_raise(folders):
    with pytest.raises(BadInput, match="different tokenizers"):
        build(folders, general=folders["bytes"])


def test_invalid_settings_raise(folders):
    with pytest.raises(BadInput, match="unknown strategy 'chunk'"):
        build(folders, strategy="chunk")
    with pytest.raises(BadInput, match="from 1 to 3, got 12"):
        build(folders, layers=[12])
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
        {"dropout": 0.3},
    ],
    ids=str,
)
def test_folder_contains_both_networks(options, folders, tmp_path):
    domain, general = (shutil.copytree(folders[name], tmp_path / name) for name in ("domain", "general"))
    encoder = GMap.build(list, domain=str(domain), general=str(general), length=16, **options)
    trained(encoder, steps=1)
    encoder.eval()
    expected = encoder(batch(encoder))
    settings, state = encoder.save(tmp_path / "saved"), copy.deepcopy(encoder.state_dict())
    shutil.rmtree(domain)
    shutil.rmtree(general)
    again = GMap.load(tmp_path / "saved", settings)
    again.load_state_dict(state)
    assert torch.equal(again.eval()(batch(again)), expected)
    assert again.settings == encoder.settings
    columns = encoder.module.config.hidden_dropout_prob
    assert again.module.config.hidden_dropout_prob == columns == options.get("dropout", 0.1)
    assert again.preparation_key() == encoder.preparation_key()


def test_folder_with_another_general_model_raises(folders, tmp_path):
    settings = build(folders).save(tmp_path)
    shutil.copy(Path(folders["roberta"]) / "model.safetensors", tmp_path / "general" / "model.safetensors")
    with pytest.raises(BadInput):
        GMap.load(tmp_path, settings)
    settings["companion"]["digest"] = "0"
    build(folders).save(tmp_path)
    with pytest.raises(BadInput, match="is not the one that this model was trained with"):
        GMap.load(tmp_path, settings)


@pytest.mark.parametrize("family", ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_half_precision_is_close(family, attention, tmp_path):
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
    stats = encoder.companion.second.frozen.cached.values()
    assert {value.dtype for value in stats} == {torch.float32, torch.bfloat16}  # one entry per precision


def test_last_layers_are_trained_with_the_gates(folders):
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


def test_prompts_and_label_words_work(folders):
    soft = "{text} {soft:was it} {mask} ."
    encoder = build(folders, template=soft, length=24).eval()
    seen = []
    encoder.companion.second.module.register_forward_pre_hook(
        lambda _, __, named: seen.append(named["input_ids"]), with_kwargs=True
    )
    x = batch(encoder)
    assert int(x.ids.max()) >= len(tiny.VOCABULARY)  # ids of trained tokens follow the words
    head = LabelWords.build(32, ["bad", "good"], encoder, words={"bad": "bad", "good": "good"})
    assert head(encoder(x)).shape == (6, 2)
    assert int(seen[-1].max()) < len(tiny.VOCABULARY)
    words = [tiny.VOCABULARY[i] for i in seen[-1][0].tolist()]
    assert " ".join(words).startswith("[CLS] the good film was i ##t [MASK]")


TRAINING = [f"the {word} film number {i}" for i in range(10) for word in ("good", "bad")]


def control(folders, seed: int = 0, **options) -> TextEncoder:
    """Build an encoder from training texts, which the memory `other` reads."""
    given = {"domain": folders["domain"], "general": folders["general"], "length": 16, **options}
    with seeded(seed):
        return GMap.build(lambda: TRAINING, **given)


def test_memory_own_is_a_copy_of_the_domain_encoder(folders):
    encoder, asked = control(folders, memory="own"), control(folders, general=None)
    assert encoder.settings["companion"]["digest"] == asked.settings["companion"]["digest"]
    held = encoder.companion.second.module.state_dict()
    for name, value in load_module(folders["domain"], what="it").state_dict().items():
        assert torch.equal(held[name], value)


def test_memory_random_depends_on_the_seed_and_is_frozen(folders):
    one, again, other = (control(folders, seed, memory="random") for seed in (0, 0, 1))
    digests = [each.settings["companion"]["digest"] for each in (one, again, other, control(folders))]
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
    encoder = control(folders, memory="other", strategy="single").eval()
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
        control(folders, memory="mine")
    with pytest.raises(BadInput, match=r"encoder.strategy"):
        control(folders, memory="other", strategy="beside")


def test_hidden_memory_equals_the_plain_encoder(folders):
    plain = TextEncoder.build(list, name=folders["domain"], length=16).eval()
    for memory in ("general", "other"):
        encoder = control(folders, memory=memory).eval()
        x = batch(encoder)
        with torch.no_grad(), memory_hidden():
            assert_close(encoder(x), plain(x), rtol=0, atol=1e-5)
        assert float((encoder(x) - plain(x)).detach().abs().max()) > 1e-3


def test_masked_words_are_masked_for_the_general_model(folders):
    """Otherwise its states would reveal the masked words."""
    encoder = control(folders).eval()
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
