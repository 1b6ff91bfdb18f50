"""Contract of methods with numbers, sets of labels and ordered levels as targets."""

import copy
from functools import partial

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.catalog.entry import NO_CLASS
from holdfast.core.errors import BadInput
from holdfast.core.seeds import generator, seeded
from holdfast.data.batches import Batches, Examples
from holdfast.data.splits import Part
from holdfast.methods.base import StageInfo
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.model import Model
from tests.contract.sizes import LIGHT, small

TASKS = ("regress", "multilabel", "ordinal")


def pairs() -> list:
    """Return every method with one of its tasks, in turn, and with the others as slow tests."""
    served = [name for name in catalog.buildable_names("methods") if not catalog.incompatibility(name, "mlp")]
    tasks = {name: [task for task in TASKS if name in catalog.buildable_names("methods", task)] for name in served}
    return [
        pytest.param((task, name), id=f"{task}-{name}", marks=() if turn == i % len(tasks[name]) else pytest.mark.slow)
        for i, name in enumerate(served)
        for turn, task in enumerate(tasks[name])
    ]


OTHERS = [(task, name) for task in NO_CLASS for name, entry in catalog.METHODS.items() if entry.unsupported(task)]


def targets_of(task, dataset):
    """Targets that a linear map of the vectors predicts."""
    x = dataset.raw.take(np.arange(len(dataset))).numpy().astype(np.float64)
    weight = np.random.default_rng(0).normal(size=(x.shape[1], 3))
    scores = (x - x.mean(axis=0)) @ weight
    if task == "regress":
        return 100 + 7 * scores[:, 0]
    return (scores > 0).astype(float) if task == "multilabel" else None


@pytest.fixture
def problem(request, benches):
    name, method = request.param
    if method == "lightgbm":
        pytest.importorskip("lightgbm", reason="needs LightGBM: pip install 'holdfast[lightgbm]'")
    bench = benches["mlp"]
    targets = targets_of(name, bench.dataset)
    task = catalog.build("tasks", name, options={}).bound(targets)
    y = task.encode(bench.dataset.y, targets)
    examples = Examples(bench.examples.store, y, bench.dataset.domains)
    domains = [Part(d, bench.dataset.rows_of(d)) for d in bench.dataset.domains[:3]]
    necks = catalog.unwrap("methods", method)[-1][1].necks
    names = task.outputs(("low", "middle", "high"))

    def make():
        optimizer = partial(Optimizer, OptimizerSettings(lr=3e-3))
        with seeded(0, "init", "method"):
            backbone, neck = bench.backbone(), necks[0] if necks else "none"
            part = catalog.build_neck(neck, backbone.width, len(names), options=small(neck))
            head = catalog.unwrap("methods", method)[-1][1].head or "linear"
            model = Model(backbone, part, catalog.build("heads", head, part.width, names, backbone, options={}))
            options = {"options": LIGHT.get(method, {}), "task": task, "optimizer": optimizer}
            built = catalog.build("methods", method, model, **options)
        with seeded(0, "stage"):
            built.begin_stage(StageInfo(0, ("d0", "d1", "d2")))
        return built

    return task, make, examples, domains


@pytest.mark.parametrize("problem", pairs(), indirect=True)
def test_method_learns_predicts_and_resumes(problem):
    task, make, examples, domains = problem
    method = make()
    batches = Batches(examples, domains, 12, generator=generator(0, "batches"))
    rows = torch.cat([torch.from_numpy(part.rows) for part in domains])
    x, y = examples.inputs_and_targets(rows)
    start = float(task.loss(method.eval().predict(x), y).detach())
    method.train()
    torch.manual_seed(0)
    for phase in method.phases:
        method.begin_phase(phase)
        for _ in range(1 if method.full_batch else 25):
            metrics = method.solve(batches.one_pass()) if method.full_batch else method.step(next(batches))
            assert all(torch.isfinite(value) for value in metrics.values())
    method.end_stage([next(batches)])
    outputs = method.eval().predict(x).detach()
    assert float(task.loss(outputs, y)) < start
    alone = torch.cat([method.predict(x[i : i + 1]) for i in range(0, len(x), 40)])
    torch.testing.assert_close(outputs[::40], alone.detach(), rtol=1e-4, atol=1e-5)
    assert set(task.scores(outputs, y, task.metrics)) == set(task.metrics)
    other = make()
    for phase in other.phases:
        other.begin_phase(phase)
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    assert torch.equal(other.eval().predict(x), outputs)


@pytest.mark.parametrize(("task", "name"), OTHERS)
def test_other_methods_say_why(task, name):
    with pytest.raises(BadInput, match=rf"does not support the task {task}") as caught:
        catalog.check_task("methods", name.replace("METHOD", "erm"), task)
    entry = catalog.METHODS[name]
    if entry.needs_class:
        assert f"it needs one class label per example, because {entry.needs_class}" in str(caught.value)
    else:
        assert task not in entry.tasks
