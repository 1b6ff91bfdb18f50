"""Two processes train as one: the same state in both, the parameters of one with the whole batch where that can be."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.protocols.resume import Saver
from holdfast.run.train import run_episode
from holdfast.run.workspace import Workspace
from tests.contract import together

PAGE = Path(__file__).resolve().parents[2] / "docs" / "parallel.md"
QUICK = [
    "erm", "group-dro", "mixup", "coral", "dann", "mldg", "fish", "fishr", "pda", "m-scl", "mil", "hma", "si", "replay",
    "agem", "ewc", "progressive(erm)", "swad(erm)",
]  # fmt: skip
NAMES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in catalog.buildable_names("methods")
]
RUNS = [("erm", "leave-one-out", 4), ("progressive(replay)", "stream", 14)]


def table() -> dict[str, str]:
    """What the page says of each method: same or differs."""
    return dict(re.findall(r"^\| `([\w()-]+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def names(request) -> list[str]:
    return catalog.buildable_names("methods") if request.config.getoption("--all") else QUICK


@pytest.fixture(scope="module")
def pair(names, tmp_path_factory):
    """What two processes found, one after the other, and the folder that they worked in."""
    folder = tmp_path_factory.mktemp("pair")
    mp.start_processes(together.begin, args=(str(folder), names, RUNS), nprocs=2, start_method="spawn")
    return [torch.load(folder / f"found{rank}", weights_only=False) for rank in (0, 1)], folder


@pytest.fixture(scope="module")
def alone(names):
    return together.every_method(names)


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and bool(torch.equal(a, b))
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def test_the_page_names_every_method():
    assert list(table()) == list(catalog.METHODS)
    assert set(table().values()) == {"same", "differs"}


@pytest.mark.parametrize("name", NAMES)
def test_both_processes_hold_the_same_bit_for_bit(pair, name):
    first, second = (found["methods"][name] for found in pair[0])
    assert same(first[1], second[1])


@pytest.mark.parametrize("name", NAMES)
def test_they_train_as_one_process_with_the_whole_batch_where_the_page_says_so(pair, alone, name):
    found, expected = pair[0][0]["methods"][name][0], alone[name][0]
    assert list(found) == list(expected)
    apart = max(float((found[key] - value).detach().abs().max()) for key, value in expected.items())
    said = table()[name.replace("(erm)", "(METHOD)")]
    assert (said == "same") == (apart < 1e-5), apart


@pytest.mark.parametrize(("method", "plan", "at"), RUNS)
def test_a_run_that_one_process_was_asked_to_stop_goes_on_exactly(pair, method, plan, at):
    (straight, pieces), (others, other) = (found["runs"][method, plan] for found in pair[0])
    assert straight["record"] == pieces["record"] == others["record"] == other["record"]
    assert (pieces["steps"], other["steps"]) == (at, at)
    assert straight["id"] == pieces["id"]


def test_only_the_first_writes(pair):
    assert [each.name for each in sorted(pair[1].glob("*[a-z]?")) if each.is_dir()] == ["left0", "pieces0", "straight0"]
    assert len(list((pair[1] / "pieces0" / "records").glob("*.json"))) == len(RUNS)
    assert not list((pair[1] / "pieces0" / "checkpoints").iterdir())


def test_another_number_of_processes_is_refused_in_one_sentence(pair):
    spec, workspace = together.spec_of("erm", "leave-one-out", 3), Workspace(together.DATA, cache=None)
    with pytest.raises(BadInput, match="written by 2 processes.*resume with 2 processes"):
        run_episode(spec, workspace.episodes(spec)[0], replace(workspace, out=pair[1] / "left0"))
    (left,) = (pair[1] / "left0" / "checkpoints").glob("*.safetensors")
    assert Saver(None).load() is None
    assert left.exists()


def test_one_of_them_speaks_and_one_that_is_left_says_so(pair):
    assert sorted(found["spoke"] for found in pair[0]) == [False, True]
    assert (pair[1] / "lost").read_text().startswith("another process of this run ended")
