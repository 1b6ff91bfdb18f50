"""Contract of methods and necks that support tasks at text positions, and errors of the others."""

import copy
from functools import partial
from itertools import repeat

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.catalog.entry import TOKEN_TASKS
from holdfast.core.errors import BadInput
from holdfast.data.batches import Examples
from holdfast.data.readers.corpus import read_corpus
from holdfast.data.readers.questions import read_questions
from holdfast.data.readers.tags import read_tags
from holdfast.data.splits import Part
from holdfast.nn.model import Model
from holdfast.train.evaluate import score, validation_outputs
from holdfast.train.settings import make_spec
from tests.annotated import DOMAINS, corpus, write_names, write_questions
from tests.contract.scenario import batches_of, build_method, check_method, started
from tests.contract.sizes import small
from tests.tiny import tiny_masked


def serves(section: str, name: str, task: str) -> bool:
    return all(task in layer.tasks for _, layer in catalog.unwrap(section, name))


SOME = ("erm", "group-dro", "mldg", "ewc", "replay", "swad(erm)")  # one per kind; all of them run on tags
CASES = [
    (task, name)
    for task in TOKEN_TASKS
    for name in catalog.buildable_names("methods")
    if serves("methods", name, task) and (task == "tag" or name in SOME)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    built = tmp_path_factory.mktemp("places")
    write_names(built / "names", 12)
    write_questions(built / "questions.jsonl", 12)
    (built / "texts").mkdir()
    for domain in DOMAINS:
        (built / "texts" / f"{domain}.txt").write_text("\n".join(corpus(12)))
    tiny_masked(built / "bert")
    return built


@pytest.fixture(scope="module")
def worlds(folder):
    """Return the prepared data and the bound task per task."""
    read = {
        "tag": partial(read_tags, folder / "names"),
        "span": partial(read_questions, folder / "questions.jsonl"),
        "masked": partial(read_corpus, folder / "texts"),
    }
    result = {}
    for name in TOKEN_TASKS:
        dataset, task = read[name](), catalog.build("tasks", name, options={})
        built = task.prepare(encoder(folder), dataset.raw, dataset.classes)
        result[name] = (dataset, Examples(built.store, built.y, dataset.domains, starts=built.starts), built.task)
    return result


def encoder(folder):
    return catalog.build("encoders", f"hf:{folder / 'bert'}", list, options={"length": 24})


def model_of(folder, dataset, task, *, head="linear", neck="none"):
    body = encoder(folder)
    middle = catalog.build_neck(neck, body.width, len(dataset.classes), options=small(neck))
    head = "vocabulary" if task == "masked" else head
    return Model(body, middle, catalog.build("heads", head, middle.width, dataset.classes, body, options={}))


def test_supported_methods():
    served = {name for task, name in CASES if task == "tag"}
    assert {"erm", "vrex", "mldg", "fish", "ewc", "si", "replay", "agem", "moving-average(erm)"} <= served
    assert not {"coral", "irm", "mixup", "cdann", "mil", "hma", "pda", "lwf"} & served


@pytest.mark.parametrize(("task", "name"), CASES)
def test_trains_predicts_per_example_and_resumes_from_its_state(task, name, worlds, folder):
    dataset, examples, bound = worlds[task]
    neck = "memory" if name.startswith("progressive") else (*catalog.unwrap("methods", name)[-1][1].necks, "none")[0]
    batch = next(batches_of(examples, dataset, 4, augment=bound.augment if task == "masked" else None))

    def make():
        return started(
            build_method(name, partial(model_of, folder, dataset, task, neck=neck), task=bound), dataset.domains
        )

    check_method(make, repeat(batch), steps=14, falls=0.02, rows=range(0, 12, 5), atol=1e-4)


@pytest.mark.parametrize("task", TOKEN_TASKS)
def test_scores_are_complete_pure_and_independent_of_batches(worlds, folder, task):
    dataset, examples, bound = worlds[task]
    method = build_method("erm", partial(model_of, folder, dataset, task, head="dense"), task=bound).train()
    before, rng = copy.deepcopy(method.model.state_dict()), torch.get_rng_state()
    part = Part("all", np.arange(len(dataset)))
    result = score(method, examples, [part], bound, bound.metrics)["all"]
    assert list(result) == list(bound.metrics)
    ((stats, y),) = validation_outputs(method, examples, [part], bound)
    assert len(stats) == len(y) == len(examples)
    assert float(bound.loss_from_stats(stats, y)) == pytest.approx(result["nll"], rel=1e-5)
    single = [
        validation_outputs(method, examples, [Part("one", np.array([i]))], bound)[0][0]
        for i in range(0, len(dataset), 7)
    ]
    rows = torch.cat([examples.rows_of(Part("one", np.array([i]))) for i in range(0, len(dataset), 7)])
    torch.testing.assert_close(torch.cat(single)[:, 0], stats[rows, 0], rtol=1e-3, atol=1e-3)
    assert method.training
    assert torch.equal(rng, torch.get_rng_state())
    for name, value in method.model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("neck", [name for name in catalog.NECKS if "tag" in catalog.NECKS[name].tasks])
def test_supported_necks_work_at_every_position(worlds, folder, neck):
    dataset, examples, bound = worlds["tag"]
    model = model_of(folder, dataset, "tag", neck=neck).eval()
    x, y = examples.inputs_and_targets(torch.arange(6))
    output = model(x)
    assert output.shape == (6, x.at.shape[1], len(dataset.classes))
    bound.loss(output, y).backward()
    assert all(p.grad is not None for p in model.neck.parameters())


@pytest.mark.parametrize("task", TOKEN_TASKS)
def test_unsupported_parts_raise(worlds, folder, task):
    dataset = worlds[task][0]
    hf = f"hf:{folder / 'bert'}"
    cases = {
        "method 'coral' .* task": {"method": "coral"},
        "encoder 'bilstm' .* task": {"encoder": "bilstm"},
        "neck 'heterogeneous' .* task": {"settings": {"neck": "heterogeneous"}},
        "head 'words' .* task": {"settings": {"head": "words"}},
    }
    for columns, given in cases.items():
        settings = {"task": task, **given.pop("settings", {})}
        with pytest.raises(BadInput, match=columns):
            make_spec(dataset, **{"encoder": hf, **given}, settings=settings)
    spec = make_spec(dataset, encoder=hf, settings={"task": task}, device=torch.device("cuda"))
    assert spec.tune == "full"
    on_cpu = make_spec(dataset, encoder=hf, settings={"task": task}, device=torch.device("cpu"))
    assert on_cpu.tune == ("full" if task == "masked" else "frozen")
    assert (spec.lr, spec.schedule, spec.average) == (1e-4, "linear", "moving")
