"""Methods with known answers: quadratic losses, closed forms, and a spurious feature that flips."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import holdfast
from holdfast.core.batch import DomainBatch
from holdfast.data.synthetic import world
from holdfast.methods.adversarial import DANN
from holdfast.methods.base import StageInfo
from holdfast.methods.contrastive import MemoryContrastive, supervised_contrast
from holdfast.methods.distil import MIRO
from holdfast.methods.erm import GroupDRO
from holdfast.methods.meta import MLDG, Fish
from holdfast.methods.mixup import Mixup
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.methods.penalties import Fishr
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify

SGD = partial(Optimizer, OptimizerSettings(optimizer="sgd", lr=0.1, weight_decay=0.0, momentum=0.0))
INFO = StageInfo(0, ("a", "b", "c"))


class Quadratic(Classify):
    """Loss (w - target)^2 / 2 of a single weight, with gradients that are easy to compute by hand."""

    def loss(self, output, y):
        return ((output[:, 0] - y) ** 2).mean() / 2


class Weight(nn.Module):
    """Return the single weight for every example."""

    width = 1

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.w.expand(len(x), 1)


def quadratic():
    return Model(Weight(), NoNeck(1), nn.Identity())


def targets(*values):
    y = torch.tensor(values).repeat_interleave(2)
    n = len(values)
    return DomainBatch(torch.zeros(2 * n, 1), y, tuple(range(n)), (2,) * n)


def test_mldg_first_order_by_hand():
    # targets 1 and 3; the held-out domain is random: others s, held out h; dF = w - s, w' = w - a dF, dG = w' - h
    for seed in range(4):
        torch.manual_seed(seed)
        held = int(torch.randint(2, ()))
        s, h = (3.0, 1.0) if held == 0 else (1.0, 3.0)
        model = quadratic()
        torch.manual_seed(seed)
        MLDG(model, task=Quadratic(), optimizer=SGD, beta=0.5, inner_lr=0.2).step(targets(1.0, 3.0))
        ahead = 0.0 - 0.2 * (0.0 - s)
        gradient = (0.0 - s) + 0.5 * (ahead - h)
        assert model.backbone.w.item() == pytest.approx(-0.1 * gradient)


class Autocast(nn.Module):
    """Backbone with one linear layer, which records the type of its output."""

    width = 4

    def __init__(self):
        super().__init__()
        self.layer, self.types = nn.Linear(4, 4), []

    def forward(self, x):
        z = self.layer(x)
        self.types.append(z.dtype)
        return z


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_miro_penalty_and_rate(precision):
    torch.manual_seed(0)
    batch, body = domains(), Autocast()
    model = Model(body, NoNeck(4), Linear(4, 3), precision=precision)
    method = MIRO(model, task=Classify(), optimizer=SGD, weight=0.5)
    rates = dict(zip(method.optimizer.rates, method.optimizer.optimizer.param_groups, strict=True))
    assert [id(p) for p in rates[10.0]["params"]] == [id(method.spread)]
    with torch.no_grad():
        body.layer.weight += 0.1
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
            z, anchor = body(batch.x).float(), method.oracle(batch.x).float()
    body.types.clear()
    variance = 0.1 + 1e-5
    expected = ((z - anchor).pow(2) / variance + np.log(variance)).mean() / 2
    assert float(method.step(batch)["penalty"]) == pytest.approx(float(expected), rel=1e-4)
    assert body.types == [torch.bfloat16 if precision == "bf16" else torch.float32]


def test_fish_takes_half_of_the_walk():
    model = quadratic()
    torch.manual_seed(0)
    order = torch.randperm(3).tolist()
    torch.manual_seed(0)
    Fish(model, task=Quadratic(), optimizer=SGD, meta_lr=0.5).step(targets(1.0, 3.0, 5.0))
    w = 0.0
    for i in order:
        w -= 0.1 * (w - (1.0, 3.0, 5.0)[i])
    assert model.backbone.w.item() == pytest.approx(0.5 * w)


def test_group_dro_weights_grow_with_the_risk():
    method = GroupDRO(quadratic(), task=Quadratic(), optimizer=SGD, eta=0.1)
    method.begin_stage(INFO)
    method.step(targets(1.0, 2.0, 3.0))
    risks = np.asarray([0.5, 2.0, 4.5])
    q = np.exp(0.1 * risks) / np.exp(0.1 * risks).sum()
    np.testing.assert_allclose(method.q.numpy(), q, rtol=1e-5)
    assert method.model.backbone.w.item() == pytest.approx(0.1 * (q * [1.0, 2.0, 3.0]).sum(), rel=1e-5)


def linear(width=4, classes=3):
    torch.manual_seed(0)
    return Model(nn.Identity(), NoNeck(width), Linear(width, classes))


def domains(n=3, size=5, width=4, classes=3):
    torch.manual_seed(1)
    return DomainBatch(
        torch.randn(n * size, width), torch.randint(0, classes, (n * size,)), tuple(range(n)), (size,) * n
    )


def test_fishr_variance_of_a_linear_head():
    model, batch = linear(), domains()
    method = Fishr(model, task=Classify(), optimizer=SGD, weight=2.0, anneal=0, ema=0.5)
    method.begin_stage(INFO)
    p = model.head(batch.x).detach().softmax(1).numpy() - np.eye(3)[batch.y]
    grads = np.concatenate([(p[:, :, None] * batch.x.numpy()[:, None, :]).reshape(15, -1), p], axis=1)
    variance = np.stack([g.var(axis=0) for g in np.split(grads, 3)])
    np.testing.assert_allclose(method.variance(batch.x, batch).detach().numpy(), variance, atol=1e-6)
    seen = method.step(batch)
    by_hand = ((variance - variance.mean(0)) ** 2).mean(axis=1).mean()
    assert float(seen["penalty"]) == pytest.approx(by_hand, rel=1e-4)  # the first average is 0.5 v, scaled by 1 / 0.5
    np.testing.assert_allclose(method.average.numpy(), 0.5 * variance, atol=1e-6)


def test_anneal_is_a_fraction_of_the_run_or_a_step():
    settings = OptimizerSettings(steps=40)
    assert (settings.step_at(0.25), settings.step_at(7), settings.step_at(0.0)) == (10, 7, 0)
    method = Fishr(linear(), task=Classify(), optimizer=partial(Optimizer, settings), anneal=0.25)
    assert method.anneal == 10


def test_supervised_contrast_equals_a_loop():
    torch.manual_seed(2)
    z, keys = F.normalize(torch.randn(5, 4), dim=1), F.normalize(torch.randn(6, 4), dim=1)
    y, labels = torch.tensor([0, 1, 0, 2, 1]), torch.tensor([0, 1, 2, 2, -1, -1])
    total, counted = 0.0, 0
    for i in range(5):
        others = [(z[j], int(y[j])) for j in range(5) if j != i]
        others += [(keys[k], int(labels[k])) for k in range(6) if labels[k] >= 0]
        scores = np.asarray([float(z[i] @ o) / 0.2 for o, _ in others])
        same = np.asarray([c == int(y[i]) for _, c in others])
        if same.any():
            total += -(scores - np.log(np.exp(scores).sum()))[same].mean()
            counted += 1
    got = supervised_contrast(z, y, keys, labels, 0.2)
    assert float(got) == pytest.approx(total / counted, rel=1e-5)


def test_the_contrastive_queue_has_the_newest_features():
    method = MemoryContrastive(linear(), task=Classify(), optimizer=SGD, slots=8)
    batch = domains()
    method.step(batch)
    assert sorted(method.queue.labels.tolist()) == sorted(batch.y[-8:].tolist())
    assert method.queue.seen.all()


def test_the_contrastive_queue_of_an_earlier_version_is_continued():
    one, other = (MemoryContrastive(linear(), task=Classify(), optimizer=SGD, slots=200) for _ in range(2))
    one.step(domains())
    state, queue = one.state_dict(), one.queue
    earlier = {name: value for name, value in state.items() if not name.startswith("queue.")}
    earlier |= {"keys": queue.features, "labels": torch.where(queue.seen, queue.labels, -1)}
    earlier["_extra_state"] = {**state["_extra_state"], "cursor": int(queue.at)}
    other.load_state_dict(earlier)
    assert 0 < int(queue.seen.sum()) < 200
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in state.items() if "extra" not in name)


def test_dann_discriminator_learns_while_features_confuse_it():
    torch.manual_seed(0)
    model = Model(nn.Linear(4, 4), NoNeck(4), nn.Linear(4, 2))
    model.backbone.width = 4
    method = DANN(model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings(lr=0.01)), weight=1.0)
    method.begin_stage(INFO)
    n = 40
    x = torch.randn(3 * n, 4)
    x[:, 3] = torch.arange(3).repeat_interleave(n).float() * 3  # a feature that reveals the domain
    y = (x[:, 0] > 0).long()
    batch = DomainBatch(x, y, (0, 1, 2), (n,) * 3)
    seen = [method.step(batch) for _ in range(200)]
    assert float(seen[-1]["risk"]) < 0.2
    plain = DANN(
        Model(nn.Linear(4, 4), NoNeck(4), nn.Linear(4, 2)),
        task=Classify(), optimizer=partial(Optimizer, OptimizerSettings(lr=0.01)), weight=0.0,
    )  # fmt: skip
    plain.begin_stage(INFO)
    unconfused = [plain.step(batch) for _ in range(200)]
    assert np.mean([float(m["confusion"]) for m in seen[-50:]]) > 2 * float(unconfused[-1]["confusion"])


def test_mixup_of_inputs():
    torch.manual_seed(3)
    seen = []

    class Spy(nn.Identity):
        def forward(self, x):
            seen.append(x)
            return x

    model = Model(Spy(), NoNeck(4), nn.Linear(4, 3))
    batch = domains()
    Mixup(model, task=Classify(), optimizer=SGD, alpha=0.2).step(batch)
    groups = batch.split(batch.x)
    for i, mixed in enumerate(seen[0].split(5)):
        shares = []
        for j in range(3):
            if j != i:  # mixed = l a + (1 - l) b with one l per domain
                gap = groups[i] - groups[j]
                shares.append(((mixed - groups[j]) / gap).std().item())
        assert min(shares) < 1e-3


def test_irm_and_vrex_beat_erm_on_a_spurious_feature(tmp_path):
    """The methods can help if tuned: noise and weights were chosen on this target.

    With the default noise of 1 V-REx helps and IRM does not, at any weight from 3 to 1000: where the sources are nearly
    separable, the scale of IRM has no common optimum.
    """
    data = world("vector", "spurious", domains=4, size=600, classes=2, seed=0, noise=2.0)
    target = data.domains[-1]
    settings = {"plan.targets": [target], "encoder.hidden": [32], "every": 400, "select": "last"}
    settings |= {"lr": 1e-3, "schedule": "constant", "average": "none"}
    options = {"seeds": 2, "steps": 400, "batch": 256, "out": tmp_path, "baselines": False}
    means, inside = {}, {}
    for method, weight in (("erm", 0.0), ("irm", 1000.0), ("vrex", 100.0)):
        own = {"method.weight": weight, "method.anneal": 200} if weight else {}
        done = holdfast.compare(data, methods=[method], settings=settings | own, **options)
        means[method] = next(c["mean"] for c in done.table() if c["target"] == target)
        inside[method] = np.mean([s["accuracy"] for r in done.records for s in r.stages[0]["valid"].values()])
    assert inside["erm"] > 0.85, inside
    assert means["irm"] > means["erm"] + 0.04, means
    assert means["vrex"] > means["erm"] + 0.04, means
