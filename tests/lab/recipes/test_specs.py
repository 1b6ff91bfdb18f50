"""Every row of a published table that can be run builds the spec of the golden file of its paper.

`make golden` writes the files; a difference shows which settings, steps or scored rows of a table have changed.
"""

import json
from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.data.dataset import Dataset
from holdfast.data.known.known_set import KnownSet
from holdfast.data.raw import Pixels
from holdfast.spec import Spec
from holdfast.train.plan import Episode
from holdfast.train.resolve import check_episode
from holdfast.train.workspace import Workspace
from lab.recipes import reproduce
from lab.recipes.catalog import RECIPES
from lab.recipes.measure import TableJob, jobs_for
from lab.recipes.recipe import Recipe, load_recipe
from lab.recipes.specs import SpecBuilder
from tests.graphs import rings_and_stars, write_layout, write_zip
from tests.published import write_digits, write_images, write_molecules, write_published
from tests.task_files import write_places, write_tasks

FOLDER = Path(__file__).parent / "specs"
ZIPS = (
    "NCI1", "NCI109", "PROTEINS", "DD", "IMDBBINARY", "IMDBMULTI", "REDDITBINARY", "REDDITMULTI5K", "REDDITMULTI12K",
)  # fmt: skip
VOLATILE = ("data", "fingerprint", "seed")


def write_pmb(folder: Path) -> None:
    write_published(folder, "multinli", size=180)
    write_published(folder, "dialogue", size=100)


def write_hma(folder: Path) -> None:
    for name in ZIPS:
        write_zip(folder / f"{name}.zip", rings_and_stars(60))
    dense = [(12, list(combinations(range(12), 2))[: 8 + i], i % 2) for i in range(40)]
    for name in ("Graph-SST5", "Graph-Twitter"):
        write_layout(folder / name, name, dense)
    write_molecules(folder / "molecules.csv", ("bace", "bbbp", "hiv"))
    write_digits(folder / "mnist.npz")
    write_images(folder)


def write_gmap(folder: Path) -> None:
    write_places(folder)
    write_tasks(folder)


WRITERS: dict[str, Callable[[Path], object]] = {
    "mil": write_published, "pmb": write_pmb, "hma": write_hma, "gmap": write_gmap,
}  # fmt: skip


def gmoe_domains() -> dict[str, tuple[str, ...]]:
    """Domains of the image data sets by name, from the columns of the GMoE tables."""
    domains = {column.data: column.targets for column in load_recipe("gmoe/table1").columns.values()}
    return domains | {"cub-dg": tuple(load_recipe("gmoe/table17").columns)}


def black_images(name: str, domains: tuple[str, ...]) -> Dataset:
    """Return ten black images per domain."""
    count = 10 * len(domains)
    return Dataset(
        name=name, raw=Pixels(np.zeros((count, 3, 4, 4), np.uint8)), y=np.arange(count) % 2, classes=("a", "b"),
        domain=np.repeat(np.arange(len(domains)), 10), domains=domains,
    ).checked()  # fmt: skip


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory) -> Callable[[str], Path]:
    """Return a function that writes the data sets of a paper, once."""

    @cache
    def written(paper: str) -> Path:
        WRITERS[paper](folder := tmp_path_factory.mktemp(paper))
        return folder

    return written


@pytest.fixture(scope="module")
def sets_of(folder_of):
    """Return a function that reads the available data sets of the jobs of a table."""

    def read(recipe: Recipe, jobs: list[TableJob]) -> tuple[dict[str, Dataset], dict[str, str]]:
        paper = recipe.name.partition("/")[0]
        if paper == "gmoe":
            return {name: black_images(name, domains) for name, domains in gmoe_domains().items()}, {}
        tasks = {name: recipe.task(name) for job in jobs for name in job.sets}
        return reproduce._read_all(tasks, data_dir=folder_of(paper))

    return read


def described(job: TableJob, spec: Spec, plan: list[Episode]) -> dict[str, Any]:
    """Return the settings of a spec that are not defaults, and the numbers of its training and test rows."""
    check = [check_episode(spec, episode) for episode in plan]
    scored = {part.domain for episode in plan for stage in episode.stages for part in (*stage.test, *stage.valid)}
    assert scored >= set(job.targets)
    assert (job.only or set()) <= {episode.name for episode in plan}
    defaults = Spec(data="", fingerprint="", method="", encoder="", tune="").json()
    fields = {key: value for key, value in spec.json().items() if key not in VOLATILE and defaults.get(key) != value}
    stage = plan[0].stages[-1]
    sizes = {name: {p.domain: len(p) for p in getattr(stage, name)} for name in ("train", "valid", "test")}
    return json.loads(json.dumps({**fields, "episodes": len(check), "targets": job.targets, "sizes": sizes}))


def specs_of(recipe: Recipe, sets_of) -> dict[str, dict[str, Any]]:
    """Return the specs of a table by row and data set."""
    jobs = jobs_for(recipe, recipe.cells)
    sets, absent = sets_of(recipe, jobs)
    options: dict[str, Any] = {"encoder.hidden": 8} if recipe.name.startswith("pmb/") else {}  # for speed
    options |= dict.fromkeys((name for job in jobs for name in job.row.required), "w/{start}.safetensors")
    builder = SpecBuilder(recipe, jobs, encoder=None, steps=None, options=options)
    workspaces: dict[tuple[str, ...], Workspace] = {}
    specs: dict[str, dict[str, Any]] = {}
    for job in jobs:
        if reproduce.missing_data(job, sets, absent):
            continue
        if job.sets not in workspaces:
            workspaces[job.sets] = Workspace(reproduce.job_dataset(job, sets, None))
        spec = builder.spec(job, workspaces[job.sets])
        plan = workspaces[job.sets].episodes(spec)
        specs.setdefault(job.row.name, {})[" ".join(filter(None, job.key[1:]))] = described(job, spec, plan)
    return specs


def common(values: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the entries that all dicts share."""
    return {key: value for key, value in values[0].items() if all(each.get(key, ...) == value for each in values)}


def without(values: dict[str, Any], shared: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in shared}


def packed(specs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """State what the specs of a table, of a data set, and of a row share once."""
    everywhere = common([spec for by_data in specs.values() for spec in by_data.values()])
    names = dict.fromkeys(data for by_data in specs.values() for data in by_data)
    shared = {name: common([by_data[name] for by_data in specs.values() if name in by_data]) for name in names}
    rows: dict[str, Any] = {}
    for row, by_data in specs.items():
        own = {name: without(spec, shared[name]) for name, spec in by_data.items()}
        rows[row] = common(list(own.values()))
        rows[row] |= {f"on {name}": without(spec, rows[row]) for name, spec in own.items()}
    data = {name: without(settings, everywhere) for name, settings in shared.items()}
    return {"table": {"settings": everywhere}, "data": data, "rows": rows}


def lines_of(table: str, sections: dict[str, Any]) -> list[str]:
    """Format the specs of a table with one line per data set and row."""
    return [
        f"{table} {section} {name}: {json.dumps(values, sort_keys=True)}"
        for section, entries in sections.items() for name, values in entries.items()
    ]  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_rows_build_the_specs_of_the_golden_file(name, sets_of, request):
    paper, _, table = name.partition("/")
    if paper == "hma":
        pytest.importorskip("rdkit", reason="molecules need RDKit")
    lines = lines_of(table, packed(specs_of(load_recipe(name), sets_of)))
    path = FOLDER / f"{paper}.txt"
    golden = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if request.config.getoption("--golden-write"):
        path.parent.mkdir(exist_ok=True)
        golden = sorted({*(line for line in golden if not line.startswith(f"{table} ")), *lines})
        path.write_text("\n".join(golden) + "\n", encoding="utf-8")
    assert sorted(lines) == [line for line in golden if line.startswith(f"{table} ")]


def test_domains_of_images_are_those_of_the_readers():
    names = ("pacs", "vlcs", "office-home", "terra-incognita", "domain-net", "sviro", "cub-dg")
    sets = [KnownSet.of(name) for name in names]
    assert {each.name: tuple(each.domains) for each in sets} == {each.name: gmoe_domains()[each.name] for each in sets}
