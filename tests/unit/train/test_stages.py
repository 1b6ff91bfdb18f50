"""The run of an episode: order of hooks, selection, schedules, outputs, and no leakage of test data."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.core.store import TensorStore
from holdfast.data.batches import Examples
from holdfast.data.splits import rows_by_domain
from holdfast.data.synthetic import world
from holdfast.methods.base import Method
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.small import Features
from holdfast.nn.heads import Linear
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.record import unpacked
from holdfast.spec import Spec
from holdfast.tasks.classify import Classify
from holdfast.train.evaluate import outputs
from holdfast.train.fit import last, leave_one_domain_out, oracle, train_validation
from holdfast.train.plans import LeaveOneOut, Stream
from holdfast.train.stages import train_stages

DATA = world("vector", "rotation", domains=3, size=40, classes=2, seed=0)
X = DATA.raw.take(np.arange(len(DATA)))
EXAMPLES = Examples(TensorStore(X), torch.from_numpy(DATA.y), DATA.domains)
TASK = Classify()


def model():
    torch.manual_seed(0)
    return Model(nn.Linear(X.shape[1], 6), NoNeck(6), nn.Linear(6, 2))


def erm():
    return ERM(model(), task=TASK, optimizer=partial(Optimizer, OptimizerSettings(lr=0.05)))


class Recorder(Method):
    """Record every hook call; count steps in a buffer."""

    saved_attributes = ("seen",)
    phases = ("first", "second")

    def __init__(self):
        nn.Module.__init__(self)
        self.model, self.seen = model(), []
        self.register_buffer("steps", torch.tensor(0.0))

    def step(self, batch):
        self.steps += 1
        self.seen = [*self.seen, f"step {batch.domains}"]
        return {"risk": torch.tensor(1.0)}

    def begin_stage(self, info):
        self.seen = [*self.seen, f"stage {info.index} {info.train_domains}"]

    def begin_phase(self, name):
        self.seen = [*self.seen, f"phase {name}"]

    def end_stage(self, batches):
        self.seen = [*self.seen, f"end {sum(len(b.y) for b in batches)}"]

    def on_valid(self, step, scores, losses):
        assert set(losses) == set(scores)
        self.seen = [*self.seen, f"valid {step} {sorted(scores)}"]


def options(selection=last, **more):
    base = {"data": "world", "fingerprint": "", "steps": 4, "every": 2, "batch": 4}
    return {"spec": Spec(**{**base, **more}), "selection": selection}


def test_order_of_hooks_in_a_stream():
    (episode,) = Stream().episodes(rows_by_domain(DATA), 0)
    method, done = train_stages(episode, Recorder, EXAMPLES, TASK, **options(steps=2))
    for stage in done:
        assert stage["right"].keys() == stage["test"].keys()
        for domain, scores in stage["test"].items():
            correct = unpacked(stage["right"][domain])
            assert len(correct) == stage["sizes"]["test"][domain]
            assert np.mean(correct) == pytest.approx(scores["accuracy"])
    a = DATA.domains[0]
    assert method.seen[:9] == [
        f"stage 0 ('{a}',)", "phase first", "step (0,)", "step (0,)", f"valid 2 ['{a}']",
        "phase second", "step (0,)", "step (0,)", f"valid 2 ['{a}']",
    ]  # fmt: skip
    assert method.seen[9].startswith("end ")
    assert method.seen[10] == f"stage 1 ('{DATA.domains[1]}',)"
    assert len(done) == 3
    assert [set(d["test"]) for d in done] == [set(DATA.domains)] * 3


def test_schedules_restart_with_every_stage():
    methods = []

    def scheduled():
        methods.append(
            ERM(model(), task=TASK, optimizer=partial(Optimizer, OptimizerSettings(lr=0.1, schedule="linear", steps=4)))
        )
        return methods[-1]

    (episode,) = Stream().episodes(rows_by_domain(DATA), 0)
    rates = []
    train_stages(
        episode, scheduled, EXAMPLES, TASK, **options(),
        tick=lambda metrics: rates.append(round(methods[-1].optimizer.optimizer.param_groups[0]["lr"], 6)),
    )  # fmt: skip
    assert rates == [0.1, 0.075, 0.05, 0.025] * 3


def test_target_labels_do_not_affect_training():
    """With flipped labels in the target domain, training is bit-identical."""
    episode = next(LeaveOneOut().episodes(rows_by_domain(DATA), 0))
    flipped = EXAMPLES.y.clone()
    target = torch.from_numpy(episode.stages[0].test[0].rows)
    flipped[target] = 1 - flipped[target]
    other = Examples(TensorStore(X), flipped, DATA.domains)
    results = []
    for data in (EXAMPLES, other):
        method, done = train_stages(episode, erm, data, TASK, **options(steps=20, selection=train_validation))
        results.append((method.state_dict(), done[0]))
    for name, value in results[0][0].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, results[1][0][name]), name
    assert results[0][1]["step"] == results[1][1]["step"]
    a, b = (next(iter(r[1]["test"].values()))["accuracy"] for r in results)
    assert a == pytest.approx(1 - b)


def test_the_oracle_selects_on_target_rows_that_are_not_scored():
    episode = next(LeaveOneOut().episodes(rows_by_domain(DATA), 0, oracle=True))
    (stage,) = episode.stages
    assert len(stage.oracle[0]) == 8
    assert len(stage.test[0]) == 32
    _, done = train_stages(episode, erm, EXAMPLES, TASK, **options(selection=oracle))
    assert set(done[0]["history"][0]["valid"]) == {stage.test[0].domain}


def test_the_in_split_has_the_rows_without_those_of_the_oracle():
    with_oracle = next(LeaveOneOut().episodes(rows_by_domain(DATA), 0, oracle=True)).stages[0]
    inside = next(LeaveOneOut(inside=True).episodes(rows_by_domain(DATA), 0)).stages[0]
    complete = next(LeaveOneOut().episodes(rows_by_domain(DATA), 0)).stages[0]
    np.testing.assert_array_equal(inside.test[0].rows, with_oracle.test[0].rows)
    assert len(complete.test[0]) == 40
    assert not inside.oracle


def test_leave_one_domain_out_selects_the_number_of_steps():
    episode = next(LeaveOneOut().episodes(rows_by_domain(DATA), 0))
    _, done = train_stages(episode, erm, EXAMPLES, TASK, **options(steps=12, selection=leave_one_domain_out))
    assert done[0]["step"] in (2, 4, 6, 8, 10, 12)
    assert done[0]["step"] == done[0]["history"][-1]["step"]


@pytest.mark.parametrize("kind", ["valid", "test"])
def test_held_out_rows_without_inputs_are_an_error_before_training(kind):
    """Texts that are split into windows may yield no input, for example if they are blank."""
    episode = next(LeaveOneOut().episodes(rows_by_domain(DATA), 0))
    part = getattr(episode.stages[0], kind)[0]
    sizes = torch.ones(len(DATA), dtype=torch.long)
    sizes[torch.from_numpy(part.rows)] = 0
    present = sizes.bool()
    starts = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    examples = Examples(TensorStore(X[present]), torch.from_numpy(DATA.y)[present], DATA.domains, starts=starts)
    recorder = Recorder()
    with pytest.raises(BadInput, match=f"domain '{part.domain}' has no held-out"):
        train_stages(episode, lambda: recorder, examples, TASK, **options())
    assert recorder.steps == 0


def method(**options) -> ERM:
    torch.manual_seed(0)
    neck = HeterogeneousMemory(6, 2, real=0, slots=2, label_width=2, heads=2, support=8, **options)
    model = Model(Features(inputs=6), neck, Linear(neck.width, 2))
    return ERM(model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings()))


def test_a_batch_context_predicts_shuffled_batches_of_the_support_size():
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
    examples, rows = Examples(TensorStore(x), torch.zeros(32, dtype=torch.long), ()), np.arange(32)
    sizes = []
    trained = method(context="batch")
    trained.model.neck.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    predictions = outputs(trained, examples, rows)
    assert sizes == [8, 8, 8, 8]
    assert torch.equal(predictions, outputs(trained, examples, rows))
    assert not torch.allclose(predictions, outputs(method(context="batch", shuffle=1), examples, rows), atol=1e-5)
    with torch.no_grad():
        in_order = torch.cat([trained.eval().predict(chunk) for chunk in x.split(8)])
    assert not torch.allclose(predictions, in_order, atol=1e-5)


def test_without_batch_context_batches_are_large():
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
    examples = Examples(TensorStore(x), torch.zeros(32, dtype=torch.long), ())
    sizes, trained = [], method()
    trained.model.neck.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    predictions = outputs(trained, examples, np.arange(32))
    assert sizes == [32]
    assert_close(predictions[5:9], outputs(trained, examples, np.arange(5, 9)))
