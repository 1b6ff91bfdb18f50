"""Every method that says it serves tasks at places keeps its promises on them, and no other part is let in."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.catalog.entry import TOKEN_TASKS
from holdfast.core import inputs
from holdfast.core.errors import BadInput
from holdfast.core.seeds import generator, seeded
from holdfast.data.batches import Batches, Examples
from holdfast.data.readers.corpus import read_corpus
from holdfast.data.readers.questions import read_questions
from holdfast.data.readers.tags import read_tags
from holdfast.data.splits import Part
from holdfast.methods.base import StageInfo
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.model import Model
from holdfast.protocols.evaluate import score, validation_outputs
from holdfast.run.settings import make_spec
from tests.annotated import DOMAINS, said, write_names, write_questions
from tests.contract.conftest import small
from tests.tiny import tiny_masked


def serves(section: str, name: str, task: str) -> bool:
    return all(task in layer.tasks for _, layer in catalog.unwrap(section, name))


SOME = ("erm", "group-dro", "mldg", "ewc", "replay", "swad(erm)")  # of the others' kinds; all of them run on tags
CASES = [
    (task, name)
    for task in TOKEN_TASKS
    for name in catalog.buildable_names("methods")
    if serves("methods", name, task) and (task == "tag" or name in SOME)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("places")
    write_names(made / "names", 12)
    write_questions(made / "questions.jsonl", 12)
    (made / "texts").mkdir()
    for domain in DOMAINS:
        (made / "texts" / f"{domain}.txt").write_text("\n".join(said(12)))
    tiny_masked(made / "bert")
    return made


@pytest.fixture(scope="module")
def worlds(folder):
    """For each task its data, prepared, and the task that knows them."""
    read = {
        "tag": partial(read_tags, folder / "names"),
        "span": partial(read_questions, folder / "questions.jsonl"),
        "masked": partial(read_corpus, folder / "texts"),
    }
    found = {}
    for name in TOKEN_TASKS:
        dataset, task = read[name](), catalog.build("tasks", name, options={})
        made = task.prepare(encoder(folder), dataset.raw, dataset.classes)
        found[name] = (dataset, Examples(made.store, made.y, dataset.domains, starts=made.starts), made.task)
    return found


def encoder(folder):
    return catalog.build("encoders", f"hf:{folder / 'bert'}", list, options={"length": 24})


@pytest.fixture(params=CASES, ids=lambda case: "-".join(case))
def case(request, worlds, folder):
    task, name = request.param
    dataset, examples, bound = worlds[task]

    def make():
        with seeded(0, "init"):
            body = encoder(folder)
            needed = catalog.unwrap("methods", name)[-1][1].necks or ("none",)
            neck = "memory" if name.startswith("progressive") else needed[0]
            neck = catalog.build_neck(neck, body.width, len(dataset.classes), options=small(neck))
            head = "vocabulary" if task == "masked" else "linear"
            made = catalog.build("heads", head, neck.width, dataset.classes, body, options={})
            optimizer = partial(Optimizer, OptimizerSettings(lr=3e-3))
            method = catalog.build(
                "methods", name, Model(body, neck, made), options={}, task=bound, optimizer=optimizer
            )
            method.begin_stage(StageInfo(0, dataset.domains))
            method.begin_phase(method.phases[0])
        return method

    return make, dataset, examples, bound


def batches(dataset, examples, task):
    parts = [Part(domain, dataset.rows_of(domain)) for domain in dataset.domains]
    redraw = task.augment if type(task).__name__ == "Masked" else None
    return Batches(examples, parts, 4, generator=generator(0, "batches"), augment=redraw)


def test_which_methods_serve():
    served = {name for task, name in CASES if task == "tag"}
    assert {"erm", "vrex", "mldg", "fish", "ewc", "si", "replay", "agem", "moving-average(erm)"} <= served
    assert not {"coral", "irm", "mixup", "cdann", "mil", "hma", "pda", "lwf"} & served


def test_learns_predicts_example_by_example_and_goes_on_from_its_state(case):
    make, dataset, examples, task = case
    method, batch = make().train(), next(batches(dataset, examples, task))
    torch.manual_seed(0)
    risks = [float(method.step(batch)["risk"]) for _ in range(14)]
    assert np.mean(risks[-4:]) < np.mean(risks[:3]) - 0.02
    method.end_stage([batch])
    method.eval()
    with torch.no_grad():
        together = method.predict(batch.x)
        assert together.shape[:2] == batch.x.at.shape
        for i in range(0, len(batch.y), 5):
            alone = method.predict(inputs.take(batch.x, [i]))
            torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-4, atol=1e-4)

    other = make().train()
    other.load_state_dict(copy.deepcopy(method.state_dict()))
    for each in (method, other):
        torch.manual_seed(1)
        each.train().step(batch)
    for (name, a), b in zip(method.model.state_dict().items(), other.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("task", TOKEN_TASKS)
def test_scores_are_all_there_change_nothing_and_do_not_depend_on_batches(worlds, folder, task):
    dataset, examples, bound = worlds[task]
    body = encoder(folder)
    neck = catalog.build_neck("none", body.width, 2, options={})
    head = catalog.build("heads", "vocabulary" if task == "masked" else "dense", 32, dataset.classes, body, options={})
    optimizer = partial(Optimizer, OptimizerSettings(lr=3e-3))
    method = catalog.build(
        "methods", "erm", Model(body, neck, head), options={}, task=bound, optimizer=optimizer
    ).train()
    before, chance = copy.deepcopy(method.model.state_dict()), torch.get_rng_state()
    part = Part("all", np.arange(len(dataset)))
    found = score(method, examples, [part], bound, bound.metrics)["all"]
    assert list(found) == list(bound.metrics)
    kept, y = validation_outputs(method, examples, part, bound)
    assert len(kept) == len(y) == len(examples)
    assert float(bound.loss_from_stats(kept, y)) == pytest.approx(found["nll"], rel=1e-5)
    single = [
        validation_outputs(method, examples, Part("one", np.array([i])), bound)[0] for i in range(0, len(dataset), 7)
    ]
    rows = torch.cat([examples.rows_of(Part("one", np.array([i]))) for i in range(0, len(dataset), 7)])
    torch.testing.assert_close(torch.cat(single)[:, 0], kept[rows, 0], rtol=1e-3, atol=1e-3)
    assert method.training
    assert torch.equal(chance, torch.get_rng_state())
    for name, value in method.model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("neck", [name for name in catalog.NECKS if "tag" in catalog.NECKS[name].tasks])
def test_necks_that_serve_work_on_every_place(worlds, folder, neck):
    dataset, examples, bound = worlds["tag"]
    body = encoder(folder)
    made = catalog.build_neck(neck, body.width, len(dataset.classes), options=small(neck))
    model = Model(body, made, catalog.build("heads", "linear", made.width, dataset.classes, body, options={})).eval()
    x, y = examples.inputs_and_targets(torch.arange(6))
    output = model(x)
    assert output.shape == (6, x.at.shape[1], len(dataset.classes))
    bound.loss(output, y).backward()
    assert all(p.grad is not None for p in made.parameters())


@pytest.mark.parametrize("task", TOKEN_TASKS)
def test_other_parts_are_refused_in_one_sentence(worlds, folder, task):
    dataset = worlds[task][0]
    hf = f"hf:{folder / 'bert'}"
    cases = {
        "method 'coral' .* task": {"method": "coral"},
        "encoder 'bilstm' .* task": {"encoder": "bilstm"},
        "neck 'heterogeneous' .* task": {"settings": {"neck": "heterogeneous"}},
        "head 'words' .* task": {"settings": {"head": "words"}},
    }
    for told, given in cases.items():
        settings = {"task": task, **given.pop("settings", {})}
        with pytest.raises(BadInput, match=told):
            make_spec(dataset, **{"encoder": hf, **given}, settings=settings)
    spec = make_spec(dataset, encoder=hf, settings={"task": task})
    assert spec.tune == "full"
    assert spec.lr == 5e-5
