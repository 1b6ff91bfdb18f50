"""PMB's tables: every cell is there, numbers that are printed twice agree or are told, and rows make valid specs."""

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

RECIPES = recipes_of("pmb")
SIZES = {  # rows, columns, cells with a printed number
    "pmb/table1": (2, 5, 10),
    "pmb/table2": (17, 2, 24),
    "pmb/table3": (10, 5, 25),
    "pmb/table4": (11, 5, 28),
    "pmb/table5": (13, 4, 48),
    "pmb/figure4": (8, 2, 0),
}
CANNOT = {"pmb/table1": ["yu"]}  # rows that cannot be run


def printed(table: str, row: str, column: str) -> float | None:
    return RECIPES[f"pmb/{table}"].at(row, column).published


def test_every_cell_is_there():
    check_cells(RECIPES, SIZES)
    for name, recipe in RECIPES.items():
        assert bool(recipe.claim) == name.startswith("pmb/figure")


def test_numbers_spot_checked_against_the_paper():
    for table, row, column, number in [
        ("table1", "rnn", "slate", 56.2), ("table1", "yu", "government", 69.2),
        ("table2", "joint", "government", 70.0), ("table2", "f+h+v", "fiction", 63.68),
        ("table2", "ewc", "government", 64.1), ("table2", "progressive", "fiction", 64.47),
        ("table3", "slate", "travel", 63.53), ("table3", "telephone", "telephone", 71.6),
        ("table4", "multi-task", "travel", 67.07), ("table4", "f+v", "slate", 62.41),
        ("table5", "memory-s", "bleu-s", 3.074), ("table5", "f+m", "w2v-s", 0.526),
        ("table5", "progressive", "w2v-t", 0.503),
    ]:  # fmt: skip
        assert printed(table, row, column) == number


def test_no_mean_is_printed_so_none_can_be_wrong():
    assert not any(column.mean_of for r in RECIPES.values() for column in r.columns.values())
    assert [found for r in RECIPES.values() for found in mismatches(r)] == []


def test_what_is_printed_twice_agrees_but_once():
    twice = [
        *((("table3", "travel", genre), ("table4", "f+v+m", genre)) for genre in RECIPES["pmb/table3"].columns),
        *((("table2", "f+m+v", genre), ("table3", "government", genre)) for genre in ("fiction", "government")),
        *((("table2", "memory-s", genre), ("table3", "fiction", genre)) for genre in ("fiction", "government")),
        (("table2", "memory-t", "government"), ("table4", "in-domain", "government")),
    ]
    differ = [(printed(*a), printed(*b)) for a, b in twice if printed(*a) != printed(*b)]
    assert differ == [(60.87, 58.87)]
    for name in ("pmb/table2", "pmb/table3"):
        assert any("60.87" in note and "58.87" in note for note in RECIPES[name].notes)
    for row, genre in (("rnn-s", "fiction"), ("rnn-t", "government")):  # with one decimal in Table 1
        assert printed("table2", row, genre) == pytest.approx(printed("table1", "rnn", genre), abs=0.05)


def test_cells_that_are_lost_are_open_and_told():
    table = RECIPES["pmb/table4"]
    missing = [(cell.row.name, cell.column.name) for cell in table.choose(["in-domain", "multi-task", "f+v", "ewc"])
               if cell.published is None]  # fmt: skip
    assert missing == [("in-domain", "fiction"), ("multi-task", "fiction")]
    assert any("left open" in note for note in table.notes)


def test_rows_that_cannot_be_run_say_why():
    for name, recipe in RECIPES.items():
        assert [row for row, found in recipe.rows.items() if found.reason] == CANNOT.get(name, [])
    assert "quoted" in RECIPES["pmb/table1"].rows["yu"].reason


def test_the_rows_differ_as_the_paper_says():
    rows = RECIPES["pmb/table2"].rows
    bank, order = rows["f"].settings, ["fiction", "government"]
    assert rows["memory-s"].settings == bank  # one run serves both: after its first stage, and after its last
    assert (rows["memory-s"].stage, rows["f"].stage) == (0, -1)
    assert rows["rnn-t"].settings == rows["rnn-s"].settings | {"plan.order": order[::-1]}
    assert rows["ewc"].settings == bank | {"method": "progressive(ewc)"}
    grown = {
        name: rows[name].settings["method.expand"] for name in ("f", "f+m", "f+m+v", "f+h", "f+h+v", "progressive")
    }
    assert grown == {"f": "F", "f+m": "M", "f+m+v": "MV", "f+h": "H", "f+h+v": "HV", "progressive": "C"}
    assert rows["random-slots"].settings == rows["f+m"].settings | {"method.freeze": "new"}
    assert rows["rnn-s"].settings == bank | {"encoder.slots": 0}
    assert rows["all-slots-first"].settings == bank | {"encoder.slots": 1000}
    slots = [(row.settings["method.expand"], row.settings.get("method.slots", 0))
             for row in RECIPES["pmb/figure4"].rows.values()]  # fmt: skip
    assert slots == [("V", 0), ("MV", 1), ("MV", 10), ("MV", 50), ("MV", 100), ("MV", 200), ("MV", 500), ("MV", 1000)]
    assert [row.stage for row in RECIPES["pmb/table3"].rows.values()] == [0, 1, 2, 3, 4] * 2


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = write_published(tmp_path_factory.mktemp("sets"), "multinli", size=180)
    return {"multinli": load_data("multinli", data_dir=folder)}


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "pmb/table5"])
def test_every_row_that_can_be_run_makes_a_valid_spec(name, sets):
    recipe = RECIPES[name]
    jobs = jobs_for(recipe, recipe.cells)
    assert [job.row.name for job in jobs] == [row for row in recipe.rows if row not in CANNOT.get(name, [])]
    maker = Maker(recipe, jobs, encoder=None, steps=None, given={"encoder.hidden": 8})
    workspace = Workspace(dataset_of(jobs[0], sets, None))
    for job in jobs:
        assert not lacks(job, sets)
        spec = maker.spec(job, workspace)
        told = (spec.optimizer, spec.lr, spec.weight_decay, spec.clip, spec.select, spec.metric)
        assert told == ("adam", 3e-4, 0.0, 5.0, "current-domain", "accuracy")
        assert spec.encoder == "memory-lstm"
        slots = 500 * (5 if name == "pmb/table4" else 2) if job.row.name == "all-slots-first" else 500
        slots = 0 if job.row.name.startswith("rnn") else slots
        assert spec.encoder_args == {"embedding": 300, "hidden": 8, "dropout": 0.1, "length": 50, "slots": slots}
        found = list(episodes(spec, workspace))
        for episode in found:
            check_job(spec, episode, workspace)
        domains = 5 if name in ("pmb/table3", "pmb/table4") else 2
        if job.plan == "stream":
            (episode,) = found
            assert len(episode.stages) == domains
            assert [len(part) for part in episode.stages[0].train] == [114]  # 120 of 180, less a twentieth
            assert {part.domain: len(part) for part in episode.stages[0].test} == dict.fromkeys(job.targets, 60)
            assert (spec.steps, spec.batch) == (36, 32)  # 10 epochs of 114 in batches of 32
        if job.plan == "joint":
            assert (spec.steps, spec.batch) == {2: (72, 16), 5: (179, 6)}[domains]


def test_rows_of_the_dialogue_make_valid_specs_of_another_task(tmp_path):
    recipe = RECIPES["pmb/table5"]
    folder = write_published(tmp_path, "dialogue", size=100)
    jobs = jobs_for(recipe, recipe.cells)
    assert [job.row.name for job in jobs] == list(recipe.rows)
    sets = {"dialogue": load_data("dialogue", data_dir=folder)}
    maker = Maker(recipe, jobs, encoder=None, steps=None, given={"encoder.hidden": 8})
    workspace = Workspace(dataset_of(jobs[0], sets, None))
    for job in jobs:
        assert not lacks(job, sets)
        assert job.targets == {"films": "test", "ubuntu": "test"}
        spec = maker.spec(job, workspace)
        assert (spec.task, spec.encoder, spec.head, spec.metric) == ("respond", "dialogue-gru", "none", "bleu2")
        assert (spec.optimizer, spec.lr, spec.clip, spec.select) == ("adam", 3e-4, 5.0, "current-domain")
        slots = 0 if job.row.name.startswith("rnn") else 1024
        assert spec.encoder_args == {
            "embedding": 300, "hidden": 8, "slots": slots, "slot_width": 1024, "length": 30, "max_words": 27_000,
        }  # fmt: skip
        (episode,) = episodes(spec, workspace)
        check_job(spec, episode, workspace)
        sizes = {part.domain: len(part) for part in episode.stages[0].test}
        assert sizes == {"films": 5, "ubuntu": 33}  # a twentieth where the file names no split
    percent = {name: column.percent for name, column in recipe.columns.items()}
    assert percent == {"bleu-s": True, "bleu-t": True, "w2v-s": False, "w2v-t": False}
    grown = {name: row.settings.get("method.slots") for name, row in recipe.rows.items() if "+" in name}
    assert grown == dict.fromkeys(("f+m", "f+m+v", "f+h", "f+h+v"), 1024)
