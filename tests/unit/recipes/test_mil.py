"""MIL's tables: every cell is there, printed means are checked, and every row that can be run makes a valid spec."""

import pytest

from holdfast.data.load import load_data
from holdfast.recipes.base import mismatches
from holdfast.recipes.measure import jobs_for
from holdfast.recipes.reproduce import dataset_of, lacks
from holdfast.recipes.specs import Maker
from holdfast.run.assemble import Workspace
from holdfast.run.train import check_job, episodes
from tests.published import write_published
from tests.unit.recipes.whole import check_cells, recipes_of

RECIPES = recipes_of("mil")
SIZES = {  # rows, columns, cells with a printed number
    "mil/table1": (11, 7, 66),
    "mil/table2": (10, 8, 70),
    "mil/table3": (6, 4, 20),
    "mil/table5": (9, 7, 56),
    "mil/table6": (9, 8, 64),
    "mil/figure5": (5, 2, 0),
    "mil/figure7": (6, 2, 0),
}


def test_every_cell_is_there():
    check_cells(RECIPES, SIZES)
    for name, recipe in RECIPES.items():
        assert bool(recipe.claim) == name.startswith("mil/figure")


def test_numbers_spot_checked_against_the_paper():
    for table, row, column, printed in [
        ("table1", "mil", "kitchen", 95.2), ("table1", "m-scl", "sst2", None), ("table1", "pada", "books", 86.8),
        ("table2", "baseline", "slate", 79.7), ("table2", "mil", "sick", 65.7),
        ("table3", "layer", "parameters", 115.0), ("table5", "irm", "books", 85.8), ("table6", "memory", "sick", 53.2),
    ]:  # fmt: skip
        assert RECIPES[f"mil/{table}"].at(row, column).published == printed


def test_two_printed_means_do_not_follow_from_their_cells():
    found = [
        (name, cell.row.name, cell.published, round(mean, 1))
        for name, r in RECIPES.items()
        for cell, mean in mismatches(r)
    ]
    assert found == [("mil/table2", "mil", 83.0, 82.6), ("mil/table6", "oracle", 80.6, 79.9)]


def test_only_pada_cannot_be_run():
    assert {row for r in RECIPES.values() for row, found in r.rows.items() if found.reason} == {"pada"}
    assert "T5" in RECIPES["mil/table1"].rows["pada"].reason


def test_the_rows_differ_as_the_paper_says():
    rows = RECIPES["mil/table1"].rows | RECIPES["mil/table3"].rows
    base, memory, untrained, mil = (rows[name].settings for name in ("baseline", "memory", "untrained-memory", "mil"))
    assert memory == base | {
        "neck": "memory",
        "neck.slots": 1024,
        "neck.heads": 4,
        "neck.key_width": 256,
        "neck.share": 0.5,
    }
    assert untrained == memory | {"neck.frozen": True}
    assert mil == memory | {"method": "mil", "method.memory_lr": 1e-3}
    assert rows["invariance"].settings == {"method": "dann", "method.weight": 0.1}
    slots = [row.settings["neck.slots"] for row in RECIPES["mil/figure5"].rows.values()]
    assert slots == [128, 256, 512, 1024, 2048]
    rates = [row.settings.get("method.memory_lr") for row in RECIPES["mil/figure7"].rows.values()]
    assert rates == [None, 0, 1e-6, 1e-5, 1e-4, 1e-3]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = write_published(tmp_path_factory.mktemp("sets"))
    return {name: load_data(name, data_dir=folder) for name in ("amazon", "mnli", "snli", "sick", "sst2", "imdb")}


@pytest.mark.parametrize("name", SIZES)
def test_every_row_that_can_be_run_makes_a_valid_spec(name, sets):
    recipe = RECIPES[name]
    jobs = jobs_for(recipe, recipe.cells)
    assert {job.row.name for job in jobs} == set(recipe.rows) - {"pada"}
    maker, made = Maker(recipe, jobs, encoder=None, steps=None, given={}), 0
    for job in jobs:
        if lacks(job, sets):
            assert (job.row.name, job.data) == ("oracle", "imdb")
            continue
        workspace = Workspace(dataset_of(job, sets, None))
        spec = maker.spec(job, workspace)
        assert (spec.lr, spec.weight_decay, spec.schedule, spec.metric) == (1e-5, 0.01, "linear", "macro_f1")
        assert spec.encoder == ("hf:bert-base-cased" if name in ("mil/table5", "mil/table6") else "hf:roberta-base")
        assert spec.encoder_args == {"pooling": "cls", "length": 128 if job.data in ("mnli", "snli", "sick") else 256}
        found = list(episodes(spec, workspace))
        for episode in found:
            check_job(spec, episode, workspace)
        assert {part.domain for episode in found for part in episode.stages[0].test} >= set(job.targets)
        assert (job.only or {e.name for e in found}) <= {e.name for e in found}
        made += 1
    assert made >= 5


def test_what_is_scored(sets):
    table = RECIPES["mil/table2"]
    jobs = {job.key: job for job in jobs_for(table, table.choose(["baseline"]))}
    assert list(jobs) == [("baseline", "mnli", "leave-one-out"), ("baseline", "mnli", "cross-dataset")]
    alone, across = jobs.values()
    maker = Maker(table, [alone, across], encoder=None, steps=None, given={})
    genre = Workspace(dataset_of(alone, sets, None))
    stage = next(episodes(maker.spec(alone, genre), genre)).stages[0]
    assert {len(part) for part in stage.test} == {6}  # the development rows of 24
    both = Workspace(dataset_of(across, sets, None))
    (episode,) = episodes(maker.spec(across, both), both)
    assert {p.domain: len(p) for p in episode.stages[0].test} == {"snli": 6, "sick": 9}  # test rows, and trial rows
    assert [len(p) for p in episode.stages[0].train] == [18] * 5
