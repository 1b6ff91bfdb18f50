"""Progressive growth: what grows, what is trained, which data is read, and exact resume."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Texts
from holdfast.methods.averaging import MovingAverage
from holdfast.methods.base import StageInfo
from holdfast.methods.consolidation import EWC
from holdfast.methods.distil import Distillation
from holdfast.methods.erm import ERM
from holdfast.methods.progressive import Progressive
from holdfast.methods.replay import Replay
from holdfast.nn.heads import Linear
from holdfast.nn.memory.neck import key_value
from holdfast.nn.model import Model
from holdfast.train.resume import Saver
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.interrupted import Killed, killer
from tests.unit.methods.streams import batch_of, build, linear, make_optimizer, perceptron, stream

DOMAINS = ("films", "shops", "news")


def words_of(domain, label):
    own = {"films": "film", "shops": "shop", "news": "paper"}[domain]
    return f"the {own} was {'good' if label else 'bad'} and {own}like"


def texts(domains=DOMAINS, size=24):
    y = np.tile([0, 1], size // 2 * len(domains)).astype(np.int64)
    domain = np.repeat(np.arange(len(domains)), size)
    raw = Texts.of([words_of(domains[d], label) for d, label in zip(domain, y, strict=True)])
    return Dataset("texts", raw, y, ("bad", "good"), domain, tuple(domains))


SMALL = {
    "encoder.embedding": 6, "encoder.hidden": 5, "encoder.slots": 4, "encoder.slot_width": 6, "encoder.dropout": 0.2,
    "method.slots": 3, "plan": "stream", "select": "current-domain", "steps": 4, "every": 2, "batch": 6,
}  # fmt: skip


def spec_for(dataset, method="progressive(erm)", **settings):
    return make_spec(dataset, encoder="memory-lstm", settings={**SMALL, "method": method, **settings})


def trained(dataset, **settings):
    spec, workspace = spec_for(dataset, **settings), Workspace(dataset)
    (episode,) = workspace.episodes(spec)
    return train(spec, episode, workspace)


def tensors(method):
    return {name: t for name, t in method.state_dict().items() if isinstance(t, torch.Tensor)}


def test_every_domain_except_the_first_adds_slots_and_words():
    record, built = trained(texts(), **{"method.expand": "MV"})
    body = built.method.model.backbone
    assert body.rnn.bank.owner.tolist() == [0] * 4 + [1] * 3 + [2] * 3
    assert body.table.groups[1:] == [["shop", "shoplike"], ["paper", "paperlike"]]
    assert len(record.stages) == 3
    assert built.encoder is body  # the saved encoder has the later words
    store = built.examples.store
    assert int(store.ids.values.max()) == body.table.index["paperlike"]


@pytest.mark.parametrize(
    ("expand", "grown"), [("F", "none"), ("M", "slots"), ("V", "words"), ("H", "units"), ("C", "column")]
)
def test_only_the_named_parts_grow(expand, grown):
    _, built = trained(texts(DOMAINS[:2]), **{"method.expand": expand})
    body = built.method.model.backbone
    found = {
        "slots": body.rnn.bank.slots > 4,
        "words": len(body.table.groups) > 1,
        "units": body.rnn.hidden > 5,
        "column": len(body.columns) > 1,
    }
    assert found == {name: name == grown for name in found}


def grown_neck(method, **settings):
    """Return a network with a memory neck after one stage, at the start of the next."""
    model = perceptron()
    torch.manual_seed(0)
    model = Model(model.backbone, key_value(32, slots=6, heads=2, key_width=8), Linear(32, 2))
    wrapped = Progressive(build(method, model), slots=4, **settings)
    wrapped.begin_stage(StageInfo(0, ("d0",)))
    wrapped.train().step(batch_of(0))
    wrapped.end_stage([batch_of(0)])
    wrapped.begin_stage(StageInfo(1, ("d1",)))
    return wrapped


@pytest.mark.parametrize("method", [ERM, EWC, Replay])
def test_a_memory_neck_grows_and_all_slots_are_trained(method):
    wrapped = grown_neck(method, expand="M")
    memory = wrapped.model.neck.fused.memory
    assert memory.owner.tolist() == [0] * 6 + [1] * 4
    before = [value.detach().clone() for value in memory.values]
    for _ in range(2):
        wrapped.step(batch_of(1))
    assert all(not torch.equal(a, b) for a, b in zip(before, memory.values, strict=True))
    assert wrapped.predict(batch_of(1).x).shape == (16, 2)


def test_freeze_old_or_new_parameters():
    for freeze, moved in (("old", {1}), ("new", {0})):
        wrapped = grown_neck(ERM, expand="M", freeze=freeze)
        memory = wrapped.model.neck.fused.memory
        before = {name: p.detach().clone() for name, p in wrapped.model.named_parameters()}
        wrapped.train()
        for _ in range(2):
            wrapped.step(batch_of(1))
        changed = {name for name, p in wrapped.model.named_parameters() if not torch.equal(before[name], p)}
        segments = {int(name.split(".")[-1]) for name in changed if ".values." in name}
        assert segments == moved
        if freeze == "old":
            assert changed == {"neck.fused.memory.keys.1", "neck.fused.memory.values.1"}
        else:
            assert changed == before.keys() - {"neck.fused.memory.keys.1", "neck.fused.memory.values.1"}
        assert memory.slots == 10


def test_every_stage_starts_without_optimizer_state():
    def counts(**settings):
        optimizer = grown_neck(ERM, expand="M", **settings).method.optimizer
        return [len(optimizer.optimizer.state[p]) for p in optimizer.parameters]

    assert set(counts()) == {0}
    assert set(counts(freeze="old")) == {0}
    assert len(counts(freeze="old")) == 2


def test_without_growth_it_is_fine_tuning_with_a_new_optimizer():
    assert np.array_equal(
        stream(lambda: Progressive(build(ERM), expand="F"), steps=10, stages=1)[1],
        stream(lambda: build(ERM), steps=10, stages=1)[1],
    )
    wrapped = Progressive(build(ERM, perceptron()), expand="")
    wrapped.begin_stage(StageInfo(0, ("a",)))
    wrapped.step(batch_of(0))
    before = wrapped.method.optimizer
    wrapped.begin_stage(StageInfo(1, ("b",)))
    assert wrapped.method.optimizer is not before
    assert not wrapped.method.optimizer.optimizer.state


@pytest.mark.parametrize("expand", ["M", "MV", "HV", "CV"])
def test_a_stage_does_not_depend_on_later_domains(expand):
    """Stages of a run with other words and labels in the last domain are equal up to that domain."""
    plain = texts()
    lines, later = list(plain.raw.take(np.arange(len(plain)))), plain.domain == 2
    raw = Texts.of(
        [f"other {i} {text}" if is_later else text for i, (text, is_later) in enumerate(zip(lines, later, strict=True))]
    )
    changed = replace(plain, raw=raw, y=np.where(later, 1 - plain.y, plain.y))
    (one, _), (other, _) = (trained(data, **{"method.expand": expand}) for data in (plain, changed))
    assert len(one.stages) == 3
    for a, b in zip(one.stages[:2], other.stages[:2], strict=True):
        assert a["history"] == b["history"]
        assert all(a["test"][domain] == b["test"][domain] for domain in DOMAINS[:2])
    assert one.stages[2]["history"] != other.stages[2]["history"]


@pytest.mark.parametrize(
    ("expand", "kill"), [("M", 3), ("M", 11), ("MV", 6), ("H", 6), ("H", 11), ("CV", 3), ("CV", 11)]
)
def test_resume_in_any_stage_is_exact(tmp_path, expand, kill):
    dataset = texts()
    spec, path = spec_for(dataset, **{"method.expand": expand}), tmp_path / "run.safetensors"
    whole, built = trained(dataset, **{"method.expand": expand})
    workspace = Workspace(dataset)
    (episode,) = workspace.episodes(spec)
    with pytest.raises(Killed):
        train(spec, episode, workspace, saver=Saver(path, seconds=0.0), tick=killer(kill))
    again, other = train(spec, episode, Workspace(dataset), saver=Saver(path, seconds=0.0))
    assert again.stages == whole.stages
    assert tensors(other.method).keys() == tensors(built.method).keys()
    for name, value in tensors(built.method).items():
        assert torch.equal(value, tensors(other.method)[name]), name


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (ERM, {"expand": "MX"}, "letters F, M, V, H and C"),
        (ERM, {"expand": "H", "freeze": "new"}, "do not use them with freeze"),
        (EWC, {"expand": "H"}, "EWC.*freeze=old"),
        (EWC, {"expand": "M", "freeze": "old"}, "EWC.*freeze=old"),
        (Distillation, {"expand": "M"}, "Distillation.*use erm"),
    ],
)
def test_incompatible_settings_are_errors(method, settings, message):
    with pytest.raises(BadInput, match=message):
        Progressive(build(method, linear()), **settings)


def test_weight_averages_do_not_support_growth():
    with pytest.raises(BadInput, match="cannot grow"):
        Progressive(MovingAverage(ERM(linear(), task=None, optimizer=make_optimizer())), expand="M")


def test_the_default_neck_depends_on_the_encoder():
    dataset = texts()
    assert make_spec(dataset, encoder="bilstm", settings={"method": "progressive(erm)"}).neck == "memory"
    fixed = {"method": "progressive(erm)", "method.expand": "F"}
    assert make_spec(dataset, encoder="bilstm", settings=fixed).neck == "none"
    assert spec_for(dataset).neck == "none"
