"""Settings of the MIL tables, and the specs of all rows that can be run."""

import pytest

from holdfast.data.load import load_data
from lab.recipes.measure import jobs_for
from tests.lab.recipes.tables import build, recipes_of
from tests.published import write_published

RECIPES = recipes_of("mil")


def test_settings_of_rows():
    rows = RECIPES["mil/table1"].rows | RECIPES["mil/table3"].rows
    base, memory, untrained, mil = (rows[name].settings for name in ("baseline", "memory", "untrained-memory", "mil"))
    assert memory == base | {
        "neck": "memory",
        "neck.slots": 1024,
        "neck.heads": 4,
        "neck.key_width": 256,
        "neck.share": 0.5,
        "neck.init": "published",
        "neck.fusion": "interpolate",
        "neck.query_norm": False,
    }
    assert untrained == memory | {"neck.frozen": True}
    published = {"method.critic": "adversarial", "method.memory_schedule": "same", "method.divergence": 0.0}
    assert mil == memory | {"method": "mil", "method.memory_lr": 1e-3, **published}
    assert rows["invariance"].settings == {"method": "dann", "method.weight": 0.1}
    slots = [row.settings["neck.slots"] for row in RECIPES["mil/figure5"].rows.values()]
    assert slots == [128, 256, 512, 1024, 2048]
    rates = [row.settings.get("method.memory_lr") for row in RECIPES["mil/figure7"].rows.values()]
    assert rates == [None, 0, 1e-6, 1e-5, 1e-4, 1e-3]


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = write_published(tmp_path_factory.mktemp("sets"))
    return {name: load_data(name, data_dir=folder) for name in ("amazon", "mnli", "snli", "sick", "sst2", "imdb")}


@pytest.mark.parametrize("name", RECIPES)
def test_rows_build_valid_specs(name, sets):
    jobs, every = build(name, sets), jobs_for(RECIPES[name], RECIPES[name].cells)
    assert len(jobs) >= 5
    assert {job.row.name for job in every} == set(RECIPES[name].rows) - {"pada"}
    left_out = {(job.row.name, job.data) for job in every if job.key not in {each.job.key for each in jobs}}
    assert left_out <= {("oracle", "imdb")}  # its file has no training rows
    for job, spec, _ in jobs:
        assert (spec.lr, spec.weight_decay, spec.schedule, spec.metric) == (1e-5, 0.01, "linear", "macro_f1")
        assert spec.encoder == ("hf:bert-base-cased" if name in ("mil/table5", "mil/table6") else "hf:roberta-base")
        assert spec.encoder_args == {"pooling": "cls", "length": 128 if job.data in ("mnli", "snli", "sick") else 256}


def test_scored_rows(sets):
    alone, across = build("mil/table2", sets, ["baseline"])
    assert [job.key for job, *_ in (alone, across)] == [
        ("baseline", "mnli", "leave-one-out"), ("baseline", "mnli", "cross-dataset"),
    ]  # fmt: skip
    assert {len(part) for part in alone.episodes[0].stages[0].test} == {6}  # the development rows of 24
    (stage,) = across.episodes[0].stages
    assert {p.domain: len(p) for p in stage.test} == {"snli": 6, "sick": 9}  # test rows, and trial rows
    assert [len(p) for p in stage.train] == [18] * 5
