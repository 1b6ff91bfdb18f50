"""The published claim on toy data: a memory trained by MIL reduces the domain distance, an untrained one does not.

Two Gaussian domains differ along one direction that is independent of the class, and the encoder is pretrained, as in
the publication. Two conditions matter: critics that are updated often enough (one step at the learning rate of the
network hardly changes the distance), and an encoder that changes little (with a randomly initialised one half of the
effect is lost, because phase final ends at other features).
"""

from functools import partial

import numpy as np
import pytest
import torch

from holdfast.analysis.domain_distance import a_distance
from holdfast.core.batch import DomainBatch
from holdfast.core.seeds import generator, seeded
from holdfast.methods.base import Method, StageInfo
from holdfast.methods.erm import ERM
from holdfast.methods.mil import MIL
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.small import MLP
from holdfast.nn.heads import Linear
from holdfast.nn.memory.neck import key_value
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify

SEEDS, WIDTH, TASK = range(6), 16, Classify()
GAME = {"memory_lr": 3e-3, "critic_lr": 1e-2, "critic_steps": 5, "iterations": 8}


def draw(size: int, *names: str | int) -> DomainBatch:
    """The class shifts the first coordinate, the domain the second."""
    chance = generator(0, "toy", *names)
    y = torch.randint(0, 2, (2 * size,), generator=chance)
    x = torch.randn(2 * size, 6, generator=chance)
    x[:, 0] += 3.0 * y - 1.5
    x[:size, 1] -= 0.75
    x[size:, 1] += 0.75
    return DomainBatch(x, y, (0, 1), (size, size))


def train(method: Method, seed: int, **steps: int) -> Method:
    """Train the given number of steps per phase."""
    method.begin_stage(StageInfo(0, ("a", "b")))
    for phase in method.phases:
        method.begin_phase(phase)
        method.train()
        for i in range(steps[phase]):
            method.step(draw(32, seed, phase, i))
    return method.eval()


def pretrained(seed: int) -> MLP:
    body = MLP(inputs=6, hidden=(WIDTH,))
    make = partial(Optimizer, OptimizerSettings(lr=1e-3, weight_decay=0.0))
    train(ERM(Model(body, NoNeck(WIDTH), Linear(WIDTH, 2)), task=TASK, optimizer=make), seed, train=300)
    return body


def tuned(name: str, seed: int) -> Method:
    """Fine-tune the pretrained encoder with a random memory, or with a memory trained by MIL."""
    with seeded(seed, "toy"):
        body = pretrained(seed)
        make = partial(Optimizer, OptimizerSettings(lr=1e-3, weight_decay=0.0))
        model = Model(body, key_value(WIDTH, slots=32, heads=2, key_width=8), Linear(WIDTH, 2))
        method = MIL(model, task=TASK, optimizer=make, **(GAME if name == "mil" else {"memory_lr": 0.0}))
        return train(method, seed, meta=600 if name == "mil" else 1, final=300)


def measured(method: Method, seed: int) -> tuple[float, float]:
    """Return (A-distance of the two domains' features, accuracy) on new examples."""
    test = draw(400, seed, "test")
    with torch.no_grad():
        features = [part.numpy() for part in test.split(method.model.features(test.x))]
        right = float((method.predict(test.x).argmax(1) == test.y).float().mean())
    return float(np.mean(a_distance(*features, seed=0, repeats=2).values)), right


@pytest.mark.slow
def test_the_memory_hides_the_domain_and_keeps_the_class():
    found = {name: np.array([measured(tuned(name, seed), seed) for seed in SEEDS]) for name in ("untrained", "mil")}
    assert found["untrained"][:, 0].mean() > 0.8  # the domains differ
    gaps, right = (found["untrained"] - found["mil"]).T
    assert gaps.mean() > 2 * gaps.std(ddof=1) / np.sqrt(len(SEEDS)), gaps.round(2)
    assert abs(right.mean()) < 0.03
