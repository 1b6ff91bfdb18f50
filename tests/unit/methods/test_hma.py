"""HMA: order of a step, the momentum encoder, the queue, the support set and saved models."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast import DomainClassifier
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.methods.averaging import SWAD, MovingAverage
from holdfast.methods.hma import HMA
from holdfast.nn.backbones.resnet import ResNet
from holdfast.nn.backbones.small import MLP, Features
from holdfast.nn.backbones.vision import VisionTransformer
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck, ParameterControl
from holdfast.nn.tuning import tune
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace
from tests.unit.methods.streams import build

CLASSES = 3
SMALL = {"real": 10, "slots": 2, "label_width": 4, "heads": 2, "support": 6}
CHANCE = torch.Generator().manual_seed(0)
X, Y = torch.randn(8, 5, generator=CHANCE), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
IMAGES = torch.randint(0, 256, (6, 3, 16, 16), generator=CHANCE).to(torch.uint8)


def batch(x=X, y=Y) -> DomainBatch:
    half = len(y) // 2
    return DomainBatch(x, y, (0, 1), (half, len(y) - half))


def hma(backbone=None, *, neck=None, optim=None, **options) -> HMA:
    torch.manual_seed(0)
    body = backbone or MLP(inputs=5, hidden=(8,), dropout=0.3)
    made = HeterogeneousMemory(body.width, CLASSES, **{**SMALL, **(neck or {})})
    model = Model(body, made, nn.Linear(made.width, CLASSES))
    return build(HMA, model, optim, **options).train()


def parameters(module):
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def logits_of_a_step(method, this):
    """Return the logits of one step."""
    given = []
    hook = method.model.head.register_forward_hook(lambda *args: given.append(args[2].detach()))
    torch.manual_seed(4)
    method.step(this)
    hook.remove()
    (logits,) = given
    return logits


def test_labels_of_a_batch_do_not_affect_its_outputs():
    first, second = hma(), hma()
    for method in (first, second):
        torch.manual_seed(1)
        method.step(batch())
    a = logits_of_a_step(first, batch())
    b = logits_of_a_step(second, batch(y=Y[torch.randperm(8, generator=torch.Generator().manual_seed(5))]))
    assert torch.equal(a, b)
    assert not torch.equal(logits_of_a_step(first, batch()), logits_of_a_step(second, batch()))


def test_order_of_a_step():
    constant = {"momentum": 0.5, "momentum_warmup": False}
    method = hma(**constant, optim={"optimizer": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0})
    before = copy.deepcopy(method)
    torch.manual_seed(1)
    risk = method.step(batch())["risk"]

    torch.manual_seed(1)
    plain = before.task.loss(before.model(X), Y)  # the queue is empty
    assert_close(risk, plain.detach())
    plain.backward()
    for (name, p), old in zip(method.model.named_parameters(), before.model.parameters(), strict=True):
        moved = old.detach() if old.grad is None else old.detach() - 0.1 * old.grad
        assert_close(p.detach(), moved, msg=name)
    for mine, old, new in zip(
        method.follower.parameters(), before.follower.parameters(), method.model.backbone.parameters(), strict=True
    ):
        assert_close(mine, 0.5 * old + 0.5 * new.detach())
    queue = method.model.neck.queue
    assert torch.equal(queue.features[:8], method.follower(X))  # by the updated momentum encoder, without dropout
    assert torch.equal(queue.labels[:8], Y)
    assert queue.seen.tolist() == [True] * 8 + [False] * 2


@pytest.mark.parametrize("warmup", [True, False])
def test_the_momentum_encoder_over_several_steps(warmup):
    method = hma(momentum=0.2, momentum_warmup=warmup)
    expected = parameters(method.follower)
    for t in range(4):
        method.step(batch())
        now, momentum = parameters(method.model.backbone), min(0.2, (1 + t) / (10 + t)) if warmup else 0.2
        expected = {name: momentum * e + (1 - momentum) * now[name] for name, e in expected.items()}
        for name, p in method.follower.named_parameters():
            assert_close(p, expected[name], msg=name)


def test_the_momentum_encoder_moves_only_after_updates():
    method = hma(optim={"accumulate": 2}, momentum=0.5)
    before = parameters(method.follower)
    method.step(batch())
    assert all(torch.equal(p, before[name]) for name, p in method.follower.named_parameters())
    method.step(batch())
    assert not any(torch.equal(p, before[name]) for name, p in method.follower.named_parameters())
    assert int(method.model.neck.queue.at) == 16 % 10  # every batch is written


def test_batch_statistics_of_the_momentum_encoder_are_those_of_the_encoder():
    torch.manual_seed(0)
    method = hma(ResNet(size=16), momentum=0.75, momentum_warmup=False)
    method.step(batch(IMAGES, Y[:6]))
    buffers = dict(method.model.backbone.named_buffers())
    assert len(buffers) > 10
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in method.follower.named_buffers())
    assert method.training
    assert not method.follower.training


def frozen_mlp():
    body = MLP(inputs=5, hidden=(8,), dropout=0.3)
    tune(body, "frozen")
    return body


@pytest.mark.parametrize("body", [frozen_mlp, lambda: Features(inputs=5)], ids=["frozen", "features"])
def test_a_frozen_encoder_has_no_momentum_encoder(body):
    method = hma(body(), neck={"heads": 1})
    assert method.follower is None
    method.model.train()
    method.step(batch())
    assert torch.equal(method.model.neck.queue.features[:8], method.model.encode(X))
    assert hma(momentum=0.0).follower is None


@pytest.mark.parametrize("prompt", ["none", "deep"])
def test_no_momentum_encoder_if_only_tokens_are_trained(prompt):
    options = {"name": "vit-tiny", "size": 16, "prompt": prompt}
    for mode, copied in (("head+cls", False), ("full", True)):
        body = VisionTransformer.build(list, **options)
        tune(body, mode)
        method = hma(body)
        assert (method.follower is not None) == copied
        del method


@pytest.mark.parametrize(
    "neck", [{"real": 0}, {"written": False}, {"real": 0, "slots": 0}], ids=["no queue", "noise", "batch alone"]
)
def test_without_a_writable_queue_there_is_no_momentum_encoder(neck):
    method = hma(neck=neck)
    assert method.follower is None
    before = copy.deepcopy(dict(method.model.neck.named_buffers()))
    metrics = method.step(batch())
    for name, value in method.model.neck.named_buffers():
        assert torch.equal(value, before[name]) or name.startswith("support"), name
    assert set(metrics) == {"risk"}


def test_metrics_have_the_filled_share_of_the_queue():
    method = hma()
    assert [round(float(method.step(batch())["held"]), 2) for _ in range(3)] == [0.8, 1.0, 1.0]


def test_the_support_set_is_class_balanced():
    method = hma(optim={"lr": 1e-9})
    method.step(batch())
    support = method.model.neck.support
    assert int(support.seen.sum()) == 4  # every second row of the batch until the stage ends
    method.end_stage([batch(), batch(X + 1)])
    assert bool(support.seen.all())
    method.eval()
    with torch.no_grad():
        rows = method.model.neck.read_queue(method.model.encode(torch.cat([X, X + 1])))
    apart = torch.cdist(support.rows, rows)
    assert float(apart.min(1).values.max()) < 1e-4
    assert torch.cat([Y, Y])[apart.argmin(1)].bincount().tolist() == [2, 2, 2]
    assert method.train().training


def test_the_parameter_control_is_trained_like_erm():
    torch.manual_seed(0)
    model = Model(MLP(inputs=5, hidden=(8,)), ParameterControl(8, heads=2), nn.Linear(8, CLASSES))
    method = build(HMA, model).train()
    assert method.follower is None
    assert set(method.step(batch())) == {"risk"}
    method.end_stage([batch()])


@pytest.mark.parametrize("wrapper", [MovingAverage, SWAD])
def test_weight_averages_have_queue_and_support_set(wrapper):
    method = wrapper(hma())
    for step in range(3):
        method.step(batch())
        method.on_valid(step, {"a": 0.5}, {"a": 1.0})
    method.end_stage([batch()])
    for name, value in method.model.neck.named_buffers():
        assert torch.equal(value, dict(method.deployed.neck.named_buffers())[name]), name
    assert bool(method.deployed.neck.support.seen.all())


@pytest.mark.parametrize("context", ["support", "batch"])
def test_model_folders_have_queue_and_support_set(context, tmp_path):
    data = world("vector", "none", domains=2, size=30, classes=3, seed=0)
    x = data.raw.take(np.arange(len(data))).numpy()
    settings = {"encoder.hidden": [8], "neck.context": context, **{f"neck.{k}": v for k, v in SMALL.items()}}
    made = DomainClassifier("hma", steps=6, batch=6, settings=settings).fit(x, data.y, domains=data.domain)
    again = DomainClassifier.from_pretrained(made.save_pretrained(tmp_path / "model"))
    neck = again._saved.model.neck
    assert bool(neck.queue.seen.all())
    assert bool(neck.support.seen.all())
    assert not [name for name in again._saved.model.state_dict() if "follower" in name]
    np.testing.assert_array_equal(again.predict_proba(x), made.predict_proba(x))
    order = np.random.default_rng(0).permutation(len(x))
    shuffled = again.predict_proba(x[order])
    if context == "support":
        np.testing.assert_allclose(shuffled, made.predict_proba(x)[order], atol=1e-6)
    else:
        assert np.abs(shuffled - made.predict_proba(x)[order]).max() > 1e-6  # other examples in the batch


def test_another_neck_is_an_error():
    with pytest.raises(BadInput, match="neck=heterogeneous"):
        build(HMA, Model(MLP(inputs=5), NoNeck(256), nn.Linear(256, CLASSES)))


def test_published_reads_of_the_queue_give_the_same_numbers():
    data = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)
    settings = {"encoder.hidden": [16], "neck.init": "published", "neck.include_self": True}
    settings |= {"lr": 1e-3, "schedule": "constant", "warmup": 0, "average": "none"}
    spec, workspace = make_spec(data, method="hma", steps=10, every=5, batch=8, settings=settings), Workspace(data)
    record, _ = train(spec, workspace.episodes(spec)[0], workspace)
    risks = [check["risk"] for check in record.stages[0]["history"]]
    assert risks == pytest.approx([0.595176, 0.355562], abs=2e-4)  # before there was another initialisation
