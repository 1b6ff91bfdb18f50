"""Contract of methods with numbers, sets of labels and ordered levels as targets."""

import copy

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.catalog.entry import NO_CLASS
from holdfast.core.errors import BadInput
from holdfast.data.batches import Examples
from holdfast.nn.model import Model
from tests.contract.scenario import (
    assert_pure_predictions,
    batches_of,
    build_method,
    check_method,
    full_batch,
    started,
)
from tests.contract.sizes import small

TASKS = ("regress", "multilabel", "ordinal")


def pairs() -> list:
    """Return every method with one of its tasks, in turn, and with the others as slow tests."""
    served = [name for name in catalog.buildable_names("methods") if not catalog.incompatibility(name, "mlp")]
    tasks = {name: [task for task in TASKS if name in catalog.buildable_names("methods", task)] for name in served}
    return [
        pytest.param(task, name, marks=() if turn == i % len(tasks[name]) else pytest.mark.slow)
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


@pytest.mark.parametrize(("task", "name"), pairs())
def test_method_learns_predicts_and_resumes(task, name, benches):
    if name == "lightgbm":
        pytest.importorskip("lightgbm", reason="needs LightGBM: pip install 'holdfast[lightgbm]'")
    bench, entry = benches["mlp"], catalog.unwrap("methods", name)[-1][1]
    targets = targets_of(task, bench.dataset)
    bound = catalog.build("tasks", task, options={}).bound(targets)
    examples = Examples(bench.examples.store, bound.encode(bench.dataset.y, targets), bench.dataset.domains)
    batches = batches_of(examples, bench.dataset, 12, bench.domains)
    names, neck = bound.outputs(("low", "middle", "high")), (*entry.necks, "none")[0]

    def model():
        backbone = bench.backbone()
        part = catalog.build_neck(neck, backbone.width, len(names), options=small(neck))
        return Model(
            backbone, part, catalog.build("heads", entry.head or "linear", part.width, names, backbone, options={})
        )

    def make():
        return started(build_method(name, model, task=bound))

    if not full_batch(name):
        check_method(make, batches, steps=25, rows=range(0, 36, 7))
        return
    method = make()
    x, y = examples.inputs_and_targets(torch.cat([torch.from_numpy(bench.dataset.rows_of(d)) for d in bench.domains]))
    start = float(bound.loss(method.eval().predict(x), y).detach())
    method.solve(batches.one_pass())
    outputs = assert_pure_predictions(method, x, range(0, len(x), 40))
    assert float(bound.loss(outputs, y)) < start
    assert set(bound.scores(outputs, y, bound.metrics)) == set(bound.metrics)
    other = make()
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
