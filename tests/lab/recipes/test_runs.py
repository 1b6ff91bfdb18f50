"""Rows of published tables on small files: every strategy, baseline and control of G-MAP, and GMoE with a ResNet."""

import numpy as np
import pytest
from PIL import Image

from holdfast.core.errors import BadInput
from holdfast.train.training_data import training_data
from holdfast.train.workspace import Workspace
from lab.recipes.measure import jobs_for
from lab.recipes.recipe import load_recipe
from lab.recipes.reproduce import reproduce
from lab.recipes.specs import SpecBuilder
from tests import tiny
from tests.task_files import write_places, write_tasks

CONTROLS = ["random-routing", "random-matched", "hash-routing"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    write_places(folder)
    return write_tasks(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    for start in ("dapt", "tapt", "dapt+tapt"):
        tiny.tiny_masked(place / f"{start}-acl-arc")
    tiny.tiny_masked(place / "domain")
    tiny.tiny_bert(place / "general")
    return place


def run(name: str, data, models, out, *, domain: str = "domain", **options):
    settings = {"encoder.domain": str(models / domain), "encoder.general": str(models / "general")}
    settings |= {"encoder.length": 16, "batch": 4}
    return reproduce(name, data_dir=data, seeds=1, steps=1, out=out, settings=settings, **options)


def check_reads(record) -> None:
    """Check that a target is scored with and without the general memory, and that every head reads some of it."""
    (usage,), (scores,) = record.analysis["general-memory"]["targets"].values(), record.stages[-1]["test"].values()
    assert all(0 < mass < 1 for layer in usage["mass"] for mass in layer)
    assert usage["scores"]["read"] == pytest.approx(scores[record.spec["metric"]])
    assert 0 <= usage["scores"]["hidden"] <= 1


@pytest.mark.slow
def test_every_baseline_strategy_and_control_runs(data, models, tmp_path):
    rows = [row for row in load_recipe("gmap/table1").rows if row not in ("mix-0.1", "mix-0.3", "mix-0.9")]
    done = run("gmap/table1", data, models, tmp_path, rows=rows, columns=["acl-arc"], analyse=["general-memory"])
    assert all(cell.values for cell in done.cells)
    assert len(done.records) == len(rows) == 13  # every row has its own run
    read = [record for record in done.records if record.analysis["general-memory"] is not None]
    assert len(read) == 7  # four strategies and three controls
    for record in read:
        check_reads(record)
    assert "Reads from the general model" in done.report.read_text()


@pytest.mark.slow
def test_the_column_without_leaks_and_checkpoints_by_start_and_data(data, models, tmp_path):
    options = {"columns": ["acl-arc", "acl-arc-clean"], "rows": ["tapt", "gmap"], "domain": "{start}-{data}"}
    done = run("gmap/table2", data, models, tmp_path, **options)
    sizes = {r.spec["data"]: r.stages[0]["sizes"]["test"]["acl-arc"] for r in done.records}
    assert sizes == {"acl-arc": 6, "acl-arc@leaks=drop": 5}
    domains = {r.spec["encoder_args"]["domain"] for r in done.records}
    assert domains == {str(models / f"{start}-acl-arc") for start in ("tapt", "dapt+tapt")}
    assert any("acl-arc@leaks=drop" in note for note in done.notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "columns", "rows"),
    [
        ("figure4", ["acl-arc"], ["1-7", "6-12"]),
        ("figure6", ["acl-arc"], ["single-9", "gated-12"]),
        ("table5", ["acl-arc"], ["cross", "gate"]),
        ("table4", ["acl-arc"], ["unfrozen"]),
        ("table3", ["medication-em", "medication-f1", "ncbi-disease"], ["dapt", "gmap", "other-text"]),
    ],
)
def test_rows_of_other_tables_run(table, columns, rows, data, models, tmp_path):
    options = {"analyse": ["general-memory"]} if table == "table3" else {}
    done = run(f"gmap/{table}", data, models, tmp_path, columns=columns, rows=rows, **options)
    assert all(cell.values for cell in done.cells)
    assert len(done.records) == len(rows) * (2 if table == "table3" else 1)  # both columns of questions share a run
    assert any("scaled" in note for note in done.notes) == (table == "figure4")
    for record in done.records if options else ():
        if record.spec["encoder_args"].get("strategy") == "none":
            assert record.analysis["general-memory"] is None
        else:
            check_reads(record)


@pytest.mark.slow
def test_masked_words_run_and_analyses_of_features_do_not(data, models, tmp_path):
    words = run("gmap/figure5", data, models, tmp_path / "w", rows=["gmap-bm"])
    assert [bool(cell.values) for cell in words.cells] == [True, True, False]
    assert "bookcorpus" in words.cells[-1].reason
    with pytest.raises(BadInput, match=r"a-distance.*feature"):
        run("gmap/table3", data, models, tmp_path / "a", rows=["gmap"], analyse=["a-distance"])


def test_rows_whose_checkpoints_were_not_published_need_a_setting(data, tmp_path):
    with pytest.raises(BadInput, match=r"checkpoints were not published.*encoder.domain"):
        reproduce("gmap/table3", data_dir=data, rows=["tapt"], seeds=1, steps=1, out=tmp_path)


def test_task_settings_apply_to_tasks_that_have_them(data):
    recipe = load_recipe("gmap/table3")
    jobs = jobs_for(recipe, recipe.choose(["gmap"]))
    builder = SpecBuilder(recipe, jobs, encoder=None, steps=None, options={"task.stride": 100})
    for job in jobs:
        workspace = Workspace(training_data(job.data, task=recipe.task(job.data), data_dir=data))
        spec = builder.spec(job, workspace)
        assert spec.task_args == ({"stride": 100} if spec.task == "span" else {})
    with pytest.raises(BadInput, match="task setting of gmap/table3 'strid'"):
        SpecBuilder(recipe, jobs, encoder=None, steps=None, options={"task.strid": 100})


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for domain in ("candy", "mosaic", "natural", "udnie"):
        for kind in ("a", "b"):
            images = folder / "cub-dg" / domain / kind
            images.mkdir(parents=True)
            for i in range(5):
                Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(images / f"{i}.png")
    return folder


def run_birds(birds, out, *, settings=None, **more):
    settings = {"encoder.size": 32, **(settings or {})}
    options = {"columns": ["candy"], "seeds": 1, "steps": 1, "batch": 2, "device": "cpu", "cache": False}
    return reproduce("gmoe/table17", data_dir=birds, out=out, settings=settings, **options, **more)


@pytest.mark.slow
def test_without_weights_a_row_is_skipped_and_others_use_another_encoder(birds, tmp_path):
    done = run_birds(birds, tmp_path, rows=["erm", "vit", "gmoe", "gmoe-released", *CONTROLS], encoder="vit-tiny")
    results = {one.cell.row.name: (bool(one.values), one.reason) for one in done.cells}
    assert {results[row] for row in ("vit", "gmoe", "gmoe-released", *CONTROLS)} == {(True, "")}
    assert not results["erm"][0]
    assert "weights of resnet50 are user-supplied" in results["erm"][1]
    with pytest.raises(BadInput, match=r"--set encoder\.weights=FILE"):
        run_birds(birds, tmp_path / "none", rows=["erm"])
    with pytest.raises(BadInput, match="--encoder"):
        run_birds(
            birds, tmp_path / "both", rows=["erm"], encoder="vit-tiny", settings={"encoder.weights": "w.safetensors"}
        )
