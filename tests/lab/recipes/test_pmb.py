"""Settings of the PMB tables, and the specs of all rows that can be run."""

import pytest

from holdfast.data.load import load_data
from tests.lab.recipes.tables import build, recipes_of
from tests.published import write_published

RECIPES = recipes_of("pmb")


def test_cells_missing_in_the_paper_have_a_note():
    table = RECIPES["pmb/table4"]
    missing = [(cell.row.name, cell.column.name) for cell in table.choose(["in-domain", "multi-task", "f+v", "ewc"])
               if cell.published is None]  # fmt: skip
    assert missing == [("in-domain", "fiction"), ("multi-task", "fiction")]
    assert any("missing" in note for note in table.notes)


def test_settings_of_rows():
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
def test_rows_build_valid_specs(name, sets):
    jobs = build(name, sets, **{"encoder.hidden": 8})
    assert [job.row.name for job, *_ in jobs] == [row for row in RECIPES[name].rows if row != "yu"]
    domains = 5 if name in ("pmb/table3", "pmb/table4") else 2
    for job, spec, plan in jobs:
        optimization = (spec.optimizer, spec.lr, spec.weight_decay, spec.clip, spec.select, spec.metric)
        assert optimization == ("adam", 3e-4, 0.0, 5.0, "current-domain", "accuracy")
        assert spec.encoder == "memory-lstm"
        slots = 500 * (5 if name == "pmb/table4" else 2) if job.row.name == "all-slots-first" else 500
        slots = 0 if job.row.name.startswith("rnn") else slots
        sizes = {"embedding": 300, "hidden": 8, "dropout": 0.1, "length": 50, "slots": slots}
        assert spec.encoder_args == {"init": "published", **sizes}
        if job.plan == "stream":
            (episode,) = plan
            assert len(episode.stages) == domains
            assert [len(part) for part in episode.stages[0].train] == [114]  # 120 of 180, less a twentieth
            assert {part.domain: len(part) for part in episode.stages[0].test} == dict.fromkeys(job.targets, 60)
            assert (spec.steps, spec.batch) == (36, 32)  # 10 epochs of 114 in batches of 32
        if job.plan == "joint":
            assert (spec.steps, spec.batch) == {2: (72, 16), 5: (179, 6)}[domains]


def test_rows_of_the_dialogue_build_specs_of_the_respond_task(tmp_path):
    recipe, folder = RECIPES["pmb/table5"], write_published(tmp_path, "dialogue", size=100)
    jobs = build("pmb/table5", {"dialogue": load_data("dialogue", data_dir=folder)}, **{"encoder.hidden": 8})
    assert [job.row.name for job, *_ in jobs] == list(recipe.rows)
    for job, spec, plan in jobs:
        assert job.targets == {"films": "test", "ubuntu": "test"}
        assert (spec.task, spec.encoder, spec.head, spec.metric) == ("respond", "dialogue-gru", "none", "bleu2")
        assert (spec.optimizer, spec.lr, spec.clip, spec.select) == ("adam", 3e-4, 5.0, "current-domain")
        slots = 0 if job.row.name.startswith("rnn") else 1024
        assert spec.encoder_args == {
            "init": "published", "embedding": 300, "hidden": 8, "slots": slots, "slot_width": 1024, "length": 30,
            "max_words": 27_000,
        }  # fmt: skip
        (episode,) = plan
        sizes = {part.domain: len(part) for part in episode.stages[0].test}
        assert sizes == {"films": 5, "ubuntu": 33}  # a twentieth where the file names no split
    percent = {name: column.percent for name, column in recipe.columns.items()}
    assert percent == {"bleu-s": True, "bleu-t": True, "w2v-s": False, "w2v-t": False}
    grown = {name: row.settings.get("method.slots") for name, row in recipe.rows.items() if "+" in name}
    assert grown == dict.fromkeys(("f+m", "f+m+v", "f+h", "f+h+v"), 1024)
