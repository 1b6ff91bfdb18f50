"""Settings of the MIL tables, and the specs of all rows that can be run."""

import pytest

from holdfast.data.load import load_data
from holdfast.run.resolve import check_episode
from holdfast.run.workspace import Workspace
from lab.recipes.measure import jobs_for
from lab.recipes.reproduce import job_dataset, missing_data
from lab.recipes.specs import SpecBuilder
from tests.lab.recipes.tables import recipes_of
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
    recipe = RECIPES[name]
    jobs = jobs_for(recipe, recipe.cells)
    assert {job.row.name for job in jobs} == set(recipe.rows) - {"pada"}
    builder, count = SpecBuilder(recipe, jobs, encoder=None, steps=None, options={}), 0
    for job in jobs:
        if missing_data(job, sets):
            assert (job.row.name, job.data) == ("oracle", "imdb")
            continue
        workspace = Workspace(job_dataset(job, sets, None))
        spec = builder.spec(job, workspace)
        assert (spec.lr, spec.weight_decay, spec.schedule, spec.metric) == (1e-5, 0.01, "linear", "macro_f1")
        assert spec.encoder == ("hf:bert-base-cased" if name in ("mil/table5", "mil/table6") else "hf:roberta-base")
        assert spec.encoder_args == {"pooling": "cls", "length": 128 if job.data in ("mnli", "snli", "sick") else 256}
        plan = workspace.episodes(spec)
        for episode in plan:
            check_episode(spec, episode)
        assert {part.domain for episode in plan for part in episode.stages[0].test} >= set(job.targets)
        assert (job.only or {e.name for e in plan}) <= {e.name for e in plan}
        count += 1
    assert count >= 5


def test_scored_rows(sets):
    table = RECIPES["mil/table2"]
    jobs = {job.key: job for job in jobs_for(table, table.choose(["baseline"]))}
    assert list(jobs) == [("baseline", "mnli", "leave-one-out"), ("baseline", "mnli", "cross-dataset")]
    alone, across = jobs.values()
    builder = SpecBuilder(table, [alone, across], encoder=None, steps=None, options={})
    genre = Workspace(job_dataset(alone, sets, None))
    stage = genre.episodes(builder.spec(alone, genre))[0].stages[0]
    assert {len(part) for part in stage.test} == {6}  # the development rows of 24
    both = Workspace(job_dataset(across, sets, None))
    (episode,) = both.episodes(builder.spec(across, both))
    assert {p.domain: len(p) for p in episode.stages[0].test} == {"snli": 6, "sick": 9}  # test rows, and trial rows
    assert [len(p) for p in episode.stages[0].train] == [18] * 5
