"""The game of MIL: schedules of both players, the closed-form critic on shifted domains, and divergence."""

import logging
from functools import partial

import pytest
import torch

from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import generator, seeded
from holdfast.data.synthetic import world
from holdfast.methods.base import StageInfo
from holdfast.methods.discriminant import a_distance
from holdfast.methods.mil import MIL
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.small import Features
from holdfast.nn.heads import Linear
from holdfast.nn.memory.neck import key_value
from holdfast.nn.model import Model
from holdfast.tasks.classify import Classify
from holdfast.train.run import train as train_run
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace

WIDTH, STEPS = 12, 150


def draw(size: int, *names: str | int) -> DomainBatch:
    """Return three domains; the class shifts the first feature, the domain one of the next three."""
    rng = generator(0, "game", *names)
    y = torch.randint(0, 2, (3 * size,), generator=rng)
    x = torch.randn(3 * size, WIDTH, generator=rng)
    x[:, 0] += 3.0 * y - 1.5
    for domain in range(3):
        x[domain * size : (domain + 1) * size, 1 + domain] += 2.5
    return DomainBatch(x, y, (0, 1, 2), (size,) * 3)


def method_of(steps: int = STEPS, schedule: str = "linear", warmup: int = 15, **settings) -> MIL:
    options = OptimizerSettings(lr=1e-2, weight_decay=0.0, schedule=schedule, warmup=warmup, steps=steps)
    with seeded(0, "game"):
        neck = key_value(WIDTH, slots=64, heads=2, key_width=16, fusion="interpolate")
        model = Model(Features(inputs=WIDTH), neck, Linear(WIDTH, 2))
        method = MIL(model, task=Classify(), optimizer=partial(Optimizer, options), **settings)
        method.begin_stage(StageInfo(0, ("a", "b", "c")))
    return method


def train(method: MIL, steps: int = STEPS, phases: tuple[str, ...] = ()) -> list[int]:
    """Train some or all phases with a validation every 25 steps; return the steps at which phase meta ended itself."""
    ended = []
    with seeded(1, "game"):
        for phase in phases or method.phases:
            method.begin_phase(phase)
            method.train()
            for step in range(1, steps + 1):
                method.step(draw(16, phase, step))
                if step % 25 == 0:
                    method.on_valid(step, {}, {})
                    if method.phase_ended:
                        ended.append(step)
                        break
    return ended


def measured(method: MIL) -> tuple[float, float]:
    """Return (A-distance between the sources, accuracy) on new examples."""
    test = draw(200, "test")
    method.eval()
    with torch.no_grad():
        distance = a_distance(test.split(method.model.features(test.x)))
        return distance, float((method.predict(test.x).argmax(1) == test.y).float().mean())


def test_a_constant_rate_of_the_memory_and_a_rate_relative_to_the_run():
    constant = method_of(20, memory_schedule="constant").memory_optimizer.settings
    assert (constant.schedule, constant.warmup, constant.lr) == ("constant", 0, 1e-3)
    assert method_of(memory_lr=None).memory_optimizer.settings.lr == 1e-2


def test_the_default_critic_hides_the_domain_and_keeps_the_class():
    trained, untrained = method_of(memory_lr=5e-3), method_of(memory_lr=0.0)
    assert train(trained) == []
    train(untrained)
    (near, right), (far, plain) = measured(trained), measured(untrained)
    assert far > 1.2
    assert near < far - 0.5
    assert right > plain - 0.02


def test_metrics_of_the_closed_form_critic():
    method = method_of()
    method.begin_phase("meta")
    metrics = method.step(draw(16, 0))
    assert 0 < float(metrics["domain"]) <= 1
    assert float(metrics["critic"]) > 0.7  # the domains differ, and the memory is untrained
    assert method.critic_optimizer is None
    batches = draw(64, "measured").by_domain()
    assert method.end_phase("meta", batches)["distance"] > 1.0


@pytest.mark.parametrize("critic", ["fisher", "adversarial"])
def test_divergence_is_detected_at_an_absurd_rate_and_not_by_default(critic, caplog):
    meta = {"steps": 75, "phases": ("meta",)}
    assert train(method_of(critic=critic), **meta) == []
    assert not caplog.records
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert train(method_of(critic=critic, memory_lr=100.0), **meta) == [75]
    assert "lower method.memory_lr" in caplog.text
    assert train(method_of(critic=critic, memory_lr=100.0, divergence=0.0), **meta) == []


def test_a_run_that_diverges_is_completed_and_recorded():
    dataset = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)
    settings = {"method.memory_lr": 1000.0, "encoder.hidden": [16], "neck.slots": 16}
    spec = make_spec(dataset, method="mil", steps=100, every=25, batch=8, settings=settings)
    workspace = Workspace(dataset)
    record, _ = train_run(spec, workspace.episodes(spec)[0], workspace)
    history = record.stages[0]["history"]
    meta = [entry for entry in history if entry["phase"] == "meta"]
    assert [(entry["step"], entry.get("ended", False)) for entry in meta] == [(25, False), (50, False), (75, True)]
    assert len(history) == 3 + 4
    assert all(-2 <= entry["distance"] <= 2 for entry in (meta[-1], history[-1]))
