"""Two processes: equal state in both, and the parameters of one process with the complete batch where documented."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.train.resume import Saver
from holdfast.train.run import train_and_save
from holdfast.train.workspace import Workspace
from tests.contract import distributed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "parallel.md"
QUICK = [
    "erm", "group-dro", "mixup", "coral", "dann", "mldg", "fish", "fishr", "pda", "m-scl", "mil", "hma", "si", "replay",
    "agem", "ewc", "progressive(erm)", "swad(erm)",
]  # fmt: skip
NAMES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
    for name in catalog.buildable_names("methods", "classify")
]
RUNS = [("erm", "leave-one-out", 4), ("progressive(replay)", "stream", 14)]


def table() -> dict[str, str]:
    """Return `same` or `differs` per method, as documented."""
    return dict(re.findall(r"^\| `([\w()-]+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def names(request) -> list[str]:
    return catalog.buildable_names("methods", "classify") if request.config.getoption("--all") else QUICK


@pytest.fixture(scope="module")
def pair(names, tmp_path_factory):
    """Return the results of both processes, and their folder."""
    folder = tmp_path_factory.mktemp("pair")
    mp.start_processes(distributed.worker, args=(str(folder), names, RUNS), nprocs=2, start_method="spawn")
    return [torch.load(folder / f"results{rank}", weights_only=False) for rank in (0, 1)], folder


@pytest.fixture(scope="module")
def alone(names):
    return distributed.every_method(names)


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and bool(torch.equal(a, b))
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def test_the_documented_methods_exist():
    assert set(table()) <= set(catalog.METHODS)
    assert set(table().values()) == {"same", "differs"}


@pytest.mark.parametrize("name", NAMES)
def test_the_state_of_both_processes_is_bit_identical(pair, name):
    first, second = (results["methods"][name] for results in pair[0])
    assert same(first[1], second[1])


@pytest.mark.parametrize("name", NAMES)
def test_equal_to_one_process_with_the_complete_batch_where_documented(pair, alone, name):
    documented = table().get(name.replace("(erm)", "(METHOD)"))
    if documented is None:
        pytest.skip("docs/parallel.md does not list this method")
    parameters, expected = pair[0][0]["methods"][name][0], alone[name][0]
    assert list(parameters) == list(expected)
    difference = max(float((parameters[key] - value).detach().abs().max()) for key, value in expected.items())
    assert (documented == "same") == (difference < 1e-5), difference


@pytest.mark.parametrize(("method", "plan", "at"), RUNS)
def test_a_run_that_one_process_stopped_resumes_exactly(pair, method, plan, at):
    first, second = (results["runs"][method, plan] for results in pair[0])  # (straight, resumed)
    assert first[0]["record"] == first[1]["record"] == second[0]["record"] == second[1]["record"]
    assert (first[1]["steps"], second[1]["steps"]) == (at, at)
    assert first[0]["id"] == first[1]["id"]
    measured = [run["engagement"] for run in (*first, *second)]
    assert all(engagement == measured[0] for engagement in measured)
    assert bool(measured[0]) == method.startswith("progressive")  # which has a memory


def test_only_the_first_process_writes(pair):
    assert [path.name for path in sorted(pair[1].glob("*[a-z]?")) if path.is_dir()] == [
        "interrupted0", "resumed0", "straight0",
    ]  # fmt: skip
    assert len(list((pair[1] / "resumed0" / "records").glob("*.json"))) == len(RUNS)
    assert not list((pair[1] / "resumed0" / "checkpoints").iterdir())


def test_resuming_with_another_number_of_processes_is_an_error(pair):
    spec, workspace = distributed.spec_of("erm", "leave-one-out", 3), Workspace(distributed.DATA, cache=None)
    with pytest.raises(BadInput, match=r"written by 2 processes.*resume with 2 processes"):
        train_and_save(spec, workspace.episodes(spec)[0], replace(workspace, out=pair[1] / "interrupted0"))
    (checkpoint,) = (pair[1] / "interrupted0" / "checkpoints").glob("*.safetensors")
    assert Saver(None).load() is None
    assert checkpoint.exists()


def test_one_process_reports_errors_and_a_lost_process_is_reported(pair):
    assert sorted(results["reports"] for results in pair[0]) == [False, True]
    assert (pair[1] / "lost").read_text().startswith("another process of this run ended")
