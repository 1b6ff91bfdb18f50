"""Dialogue in the catalog: defaults, contracts of encoders and methods, and errors of those that do not support it."""

from __future__ import annotations

import copy
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.seeds import generator, seeded
from holdfast.data.batches import Batches, Examples, prepare
from holdfast.data.splits import Part
from holdfast.nn.engagement import mechanisms
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.train.analyses import choose_analyses
from holdfast.train.evaluate import outputs, score
from holdfast.train.resolve import choose_methods
from holdfast.train.settings import make_spec
from holdfast.train.training_data import training_data
from holdfast.train.workspace import Workspace
from lab.dialogue.head import NoHead
from lab.dialogue.respond import Respond
from tests.contract.scenario import build_method, check_method, started
from tests.contract.test_encoders import check_encoder
from tests.contract.test_engagement import check_coverage, check_nulls, stirred
from tests.talks import talks
from tests.unit.train.test_resolve import jobs_of

RESPOND = {"task": "respond"}


def test_task_has_its_own_defaults():
    data = talks(4)
    spec = make_spec(data, settings=RESPOND)
    assert (spec.encoder, spec.head, spec.metric, spec.tune) == ("dialogue-gru", "none", "nll", "full")
    assert make_spec(data, settings=RESPOND, metric="bleu2").metric == "bleu2"
    assert training_data(data, task="respond") is data
    with pytest.raises(BadInput, match=r"respnd.*respond"):
        make_spec(data, settings={"task": "respnd"})
    with pytest.raises(BadInput, match=r"dialogue-gru.*classify"):
        make_spec(data, encoder="dialogue-gru")
    with pytest.raises(BadInput, match=r"respond.*'stride'"):
        catalog.check_settings("tasks", "respond", {"stride": 5})


def test_unsuitable_methods_raise_and_are_left_out_of_all():
    workspace = Workspace(talks(4))
    names = choose_methods(["all"], make_spec(workspace.dataset, settings=RESPOND), workspace)
    assert "erm" in names
    assert any(note.startswith("coral left out") and "respond" in note for note in workspace.notes)
    with pytest.raises(BadInput, match=r"'lwf'.*respond"):
        jobs_of(workspace.dataset, methods=["erm", "lwf"], plan="stream", settings=RESPOND)


def test_all_analyses_support_dialogue():
    assert choose_analyses(["all"], ["respond"]) == catalog.buildable_names("analyses")


def test_a_new_process_finds_the_entries():
    code = (
        "from holdfast import catalog; import sys\n"
        "names = [('encoders', 'dialogue-gru'), ('tasks', 'respond'), ('heads', 'none'), ('analyses', 'slot-map')]\n"
        "print([catalog.lookup(*name).target.partition(':')[0] for name in names], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = ["lab.dialogue.encoder", "lab.dialogue.respond", "lab.dialogue.head", "lab.analysis.slots"]
    assert done.stdout.strip() == f"{modules} False"


ENCODERS = ("dialogue-gru", "dialogue-lstm")
OPTIONS = (
    {},
    {"slots": 0},
    {"directions": 2},
    {"attention": "general"},
    {"columns": [3]},
    {"columns": [2, 4], "directions": 2},
)


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_encoder(name, options, tmp_path):
    dataset, sizes = talks(4), {"embedding": 12, "hidden": 16, "slots": 8, **options}
    columns = sizes.pop("columns", [])

    def make():
        with seeded(0, "init"):
            encoder = catalog.build("encoders", name, partial(dataset.raw.take, np.arange(8)), options=sizes)
            for units in columns:
                encoder.add_column(units)
            return encoder.requires_grad_(True)

    check_encoder(dataset, make, name, tmp_path)


@pytest.mark.parametrize("name", ENCODERS)
def test_memory_has_a_null(name):
    dataset, sizes = talks(4), {"embedding": 8, "hidden": 12, "slots": 6}
    encoder = catalog.build("encoders", name, partial(dataset.raw.take, np.arange(12)), options=sizes)
    model = stirred(Model(encoder, NoNeck(2), NoHead(2)))
    x = encoder.prepare(dataset.raw.take(np.arange(12))).take(torch.arange(12))
    words = Respond().predictions(model, x, torch.zeros(12))
    assert words.shape[0] == 12
    assert int((words >= 0).sum()) == int(model(x)[:, 1].sum())  # one per word of the reference
    encoder.grow(3, domain=1)
    assert list(mechanisms(model)) == ["memory"]
    check_coverage(model)
    check_nulls(model, x)


SMALL = {"embedding": 8, "hidden": 12, "slots": 4, "longest": 6}


def serve(name: str) -> bool:
    return not any(layer.unsupported("respond") for _, layer in catalog.unwrap("methods", name))


NAMES = [name for name in catalog.buildable_names("methods") if serve(name)]
OTHERS = [name for name in catalog.buildable_names("methods") if not serve(name)]


@pytest.fixture(scope="module")
def dataset():
    return talks(12)


def encoder(dataset, name: str = "dialogue-gru"):
    return catalog.build("encoders", name, partial(dataset.raw.take, np.arange(len(dataset))), options=SMALL)


@pytest.fixture(scope="module")
def examples(dataset):
    store = prepare(dataset.raw, encoder(dataset).prepare)
    return Examples(store, torch.from_numpy(dataset.y), dataset.domains)


def make(dataset, name):
    return started(
        build_method(name, lambda: Model(encoder(dataset), NoNeck(2), NoHead(2)), task=Respond()), dataset.domains
    )


def test_supported_methods():
    assert {"erm", "vrex", "ewc", "online-ewc", "si", "replay", "agem", "swad(erm)", "progressive(erm)"} <= set(NAMES)
    assert {"irm", "coral", "cdann", "mixup", "fishr", "lwf", "mil", "pda", "m-scl"} <= set(OTHERS)


@pytest.mark.parametrize("name", OTHERS)
def test_unsupported_methods_raise(name, dataset):
    with pytest.raises(BadInput, match=r"respond.* erm"):
        make_spec(dataset, method=name, settings={"task": "respond"})


@pytest.mark.parametrize("name", NAMES)
def test_trains_predicts_per_example_and_resumes_from_its_state(name, dataset, examples):
    parts = [Part(domain, dataset.rows_of(domain)) for domain in dataset.domains]
    batches = Batches(examples, parts, 4, generator=generator(0, "batches"))
    _, predicted = check_method(partial(make, dataset, name), batches, steps=25, falls=0.1, atol=1e-4)
    assert predicted.shape == (12, 2)


def test_scores_are_complete_and_pure(dataset, examples):
    method = make(dataset, "erm")
    before, rng = copy.deepcopy(method.model.state_dict()), torch.get_rng_state()
    rows = np.arange(len(dataset))
    result = score(method, examples, [Part("all", rows)], Respond(), Respond.metrics)["all"]
    plain = Respond().scores(outputs(method, examples, rows), torch.from_numpy(dataset.y), ["nll"])
    assert result["nll"] == pytest.approx(plain["nll"], rel=1e-5)
    assert set(result) == set(Respond.metrics)
    assert method.training
    assert torch.equal(rng, torch.get_rng_state())
    for key, value in method.model.state_dict().items():
        assert torch.equal(value, before[key]), key
