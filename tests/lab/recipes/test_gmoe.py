"""Settings of the GMoE tables, specs of their rows, and a run of rows with a ResNet."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from holdfast.core.errors import BadInput
from holdfast.data.known.known_set import KnownSet
from holdfast.methods.optim import OptimizerSettings as Descending
from holdfast.nn.backbones.resnet import ResNet
from holdfast.record import RunRecord
from lab.recipes.measure import jobs_for, measure
from lab.recipes.recipe import Cell, Column, Row
from lab.recipes.reproduce import reproduce
from tests.lab.recipes.tables import build, build_jobs, gmoe_domains, recipes_of

RECIPES = recipes_of("gmoe")
DOMAINS = gmoe_domains()
EXPERTS = {
    "count": 6,
    "top": 2,
    "at": "last-two",
    "router": "cosine",
    "balance": 0.01,
    "noise": 1.0,
    "temperature": 0.5,
}
CONTROLS = ["random-routing", "random-matched", "hash-routing"]
RELEASED = {**EXPERTS, "top": 1, "capacity": 1.5, "eval_capacity": 1.5, "dropout": 0.1, "form": "tutel"}


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "gmoe/experts"])
def test_every_table_has_controls(name):
    rows = RECIPES[name].rows
    controls = {row: rows[row].settings for row in rows if row.endswith(("random-routing", "same-work", "same-size"))}
    assert len(controls) % 3 == 0
    assert controls
    for row, settings in controls.items():
        if row.endswith("random-routing"):
            assert (settings["neck.router"], settings["neck.count"], settings["neck.balance"]) == ("random", 6, 0.0)
        else:
            assert (settings["neck"], settings["neck.times"]) == ("wide", 2 if row.endswith("same-work") else 6)
    released = next(rows[row].settings for row in rows if row.endswith("gmoe-released"))
    assert (released["neck.top"], released["neck.eval_capacity"], released["encoder.drop_path"]) == (1, 1.5, 0.1)


def test_domains_are_those_of_the_readers():
    names = ("pacs", "vlcs", "office-home", "terra-incognita", "domain-net", "sviro", "cub-dg")
    sets = [KnownSet.of(name) for name in names]
    assert {each.name: tuple(each.domains) for each in sets} == {each.name: DOMAINS[each.name] for each in sets}


@pytest.mark.parametrize("name", RECIPES)
def test_rows_build_valid_specs(name, images):
    jobs = build(name, images)
    assert {job.row.name for job, *_ in jobs} == {row for row, entry in RECIPES[name].rows.items() if not entry.reason}
    for job, spec, plan in jobs:
        assert (spec.batch, spec.optimizer, spec.augment, spec.clip) == (32, "adam", "domainbed", 0.0)
        if spec.plan == "single-source":  # as published, 20% of every domain is scored
            assert {len(part) for stage in plan[0].stages for part in (*stage.test, *stage.valid)} == {2}
        assert len(plan) == (1 if spec.plan == "single-source" else len(DOMAINS[job.data]))


def test_published_rates_steps_and_selections(images):
    def specs(name: str, *rows: str):
        return {(job.row.name, job.data, job.select): spec for job, spec, _ in build(f"gmoe/{name}", images, rows)}

    one = specs("table1", "gmoe")
    assert {data: (s.lr, s.weight_decay, s.steps, s.every) for (_, data, _), s in one.items()} == {
        "pacs": (3e-5, 0.0, 5001, 300), "vlcs": (3e-5, 1e-6, 5001, 300), "office-home": (1e-5, 1e-6, 5001, 300),
        "terra-incognita": (5e-5, 1e-4, 5001, 300), "domain-net": (5e-5, 0.0, 15_001, 500),
        "sviro": (3e-5, 0.0, 5001, 300), "camelyon": (3e-5, 0.0, 5001, 100), "fmow": (3e-5, 0.0, 5001, 100),
    }  # fmt: skip
    assert one["gmoe", "pacs", ""].plan_args == {"inside": True}
    assert one["gmoe", "pacs", ""].encoder == "vit:facebook/deit-small-patch16-224"
    nine = specs("table9", "vit-5k", "vit-15k")
    assert {(row, select): (s.steps, s.select) for (row, _, select), s in nine.items()} == {
        (row, select): (steps, select)
        for row, steps in (("vit-5k", 5001), ("vit-15k", 15_001))
        for select in ("train-validation", "leave-one-domain-out")
    }
    assert {s.select for s in specs("table10", "gmoe").values()} == {"leave-one-domain-out"}
    (single,) = specs("table12", "real+gmoe").values()
    assert (single.plan, single.plan_args) == ("single-source", {"sources": ["real"], "outside": True})
    (large,) = {s.encoder for s in specs("table13", "base").values()}
    assert large == "vit:facebook/deit-base-patch16-224"
    assert {s.method for s in specs("table11", "swad+same-size").values()} == {"swad(erm)"}


def test_rows_with_a_resnet_load_the_weights_of_their_start(images):
    weights = {"encoder.weights": "w/{start}.safetensors"}
    built = build("gmoe/table3", images, ["resnet50", "resnet101", "vit"], **weights)
    specs = {job.row.name: spec for job, spec, _ in built}
    assert {name: (s.encoder, s.encoder_args) for name, s in specs.items()} == {
        "resnet50": ("resnet50", {"weights": "w/resnet50.safetensors"}),
        "resnet101": ("resnet101", {"weights": "w/resnet101.safetensors"}),
        "vit": ("vit:facebook/deit-small-patch16-224", {}),
    }
    assert (specs["resnet50"].lr, specs["resnet50"].weight_decay, specs["resnet50"].head_args) == (5e-5, 0.0, {})
    assert specs["vit"].head_args == {"std": 0.02}
    assert RECIPES["gmoe/table15"].rows["fishr-v2"].start == "resnet50-v2"


def test_fishr_anneals_for_1500_steps_in_every_table(images):
    lengths = set()
    for name, recipe in RECIPES.items():
        if name == "gmoe/table16":  # a few steps that measure the cost
            continue
        for job, spec, _ in build_jobs(
            recipe, images, [j for j in jobs_for(recipe, recipe.cells) if "fishr" in j.row.name]
        ):
            assert spec.method == "fishr"
            assert Descending(steps=spec.steps).step_at(spec.method_args.get("anneal", 0.3)) == 1500
            lengths.add((name.removeprefix("gmoe/"), job.data == "domain-net", spec.steps))
    assert lengths == {
        ("table1", False, 5001), ("table1", True, 5001), ("table9", True, 5001), ("table11", False, 5001),
        ("table11", True, 5001), ("table11", True, 15_001), ("table15", False, 5001), ("table15", True, 15_001),
        ("table17", False, 5001),
    }  # fmt: skip


def test_rows_with_a_transformer_set_the_standard_deviation_of_the_head():
    for recipe in RECIPES.values():
        for row in recipe.rows.values():
            assert row.settings.get("head.std") == (None if row.required else 0.02), row.name


def test_a_single_source_is_scored_on_its_validation_rows():
    row = Row(name="r", label="r", settings={"method": "erm"})
    columns = [
        Column(name=name, label=name, data="d", targets=(name,), plan="single-source", metric="accuracy")
        for name in ("a", "b")
    ]
    cells = [Cell(recipe="x", row=row, column=column, published=None) for column in columns]
    stage = {"train": ["a"], "valid": {"a": {"accuracy": 0.9}}, "test": {"b": {"accuracy": 0.25}}}
    cost = {"examples_per_second": 64.0, "peak_memory_mb": 2048.0}
    record = RunRecord({"seed": 0, "batch": 32}, "from-a", [stage], {}, {}, cost)
    recipe = replace(RECIPES["gmoe/table3"], cells=tuple(cells))
    measurements = measure(recipe, cells, {cells[0].key: [record]}, {})
    assert [one.values for one in measurements] == [(90.0,), (25.0,)]
    for metric, value in (("step_seconds", 0.5), ("memory", 2.0)):
        cell = replace(cells[1], column=replace(columns[1], metric=metric))
        (one,) = measure(replace(recipe, cells=(cell,)), [cell], {cell.key: [record]}, {})
        assert one.values == (value,)


def test_columns_that_a_benchmark_measures_are_not_run():
    recipe = RECIPES["gmoe/table16"]
    measurements = measure(recipe, recipe.choose(["vit"]), {}, {})
    assert ["bench experts" in one.reason for one in measurements] == [False, False, True, True]
    jobs = jobs_for(recipe, recipe.choose(["vit"], ["predict"]))
    assert not jobs


def specs(images, name, *rows):
    """Return specs by row and data set."""
    return {(job.row.name, job.data): spec for job, spec, _ in build(f"gmoe/{name}", images, rows)}


def test_published_settings(images):
    first = specs(images, "table1", "gmoe", "gmoe-released", "vit", *CONTROLS)
    assert first["random-matched", "pacs"].neck_args == {**EXPERTS, "router": "random-matched"}
    assert first["hash-routing", "pacs"].neck_args == {**first["random-routing", "pacs"].neck_args, "router": "hash"}
    spec = first["gmoe", "pacs"]
    assert (spec.neck, spec.neck_args, spec.encoder_args) == ("experts", EXPERTS, {})
    assert (spec.tune, spec.schedule, spec.precision, spec.metric) == ("full", "constant", "fp32", "accuracy")
    assert (first["vit", "pacs"].neck, first["vit", "pacs"].neck_args) == ("none", {})
    for data in ("pacs", "vlcs", "domain-net"):
        released, plain = first["gmoe-released", data], first["gmoe", data]
        assert (released.neck_args, released.encoder_args) == (RELEASED, {"drop_path": 0.1})
        assert released.weight_decay == (1e-6 if data == "pacs" else plain.weight_decay)
        assert released.lr == plain.lr


def test_settings_of_single_rows(images):
    (fish,) = specs(images, "table2", "gmoe+fish").values()
    assert (fish.method, fish.method_args) == ("fish", {"meta_lr": 0.5})
    (birds,) = {(s.lr, s.weight_decay) for s in specs(images, "table17", "gmoe").values()}
    assert birds == (5e-5, 0.0)
    thirteen = specs(images, "table13")
    for row in ("every-two-linear", "every-two-cosine", "last-two-linear", "last-two-cosine"):
        at, _, router = row.rpartition("-")
        assert thirteen[row, "pacs"].neck_args == {**EXPERTS, "at": at, "router": router}
    released = specs(images, "table11", "fishr+gmoe-released")
    assert released["fishr+gmoe-released", "domain-net"].method_args == {"anneal": 0.1}
    assert released["fishr+gmoe-released", "pacs"].weight_decay == 1e-6


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for domain in ("candy", "mosaic", "natural", "udnie"):
        for kind in ("a", "b"):
            images = folder / "cub-dg" / domain / kind
            images.mkdir(parents=True)
            for i in range(5):
                Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(images / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    save_file(ResNet(depth=50, stem="large").state_dict(), folder / "resnet50.safetensors")
    return folder


def run(data, out, **more):
    settings = {"encoder.size": 32, **more.pop("settings", {})}
    options = {"columns": ["candy"], "seeds": 1, "steps": 1, "batch": 2, "device": "cpu", "cache": False}
    return reproduce("gmoe/table17", data_dir=data, out=out, settings=settings, **options, **more)


@pytest.mark.slow
def test_a_row_with_a_resnet_runs_with_named_weights(data, weights, tmp_path):
    options = {"encoder.weights": str(weights / "{start}.safetensors")}
    done = run(data, tmp_path, rows=["erm"], settings=options)
    (cell,) = done.cells
    assert cell.values
    assert cell.text().startswith("64.3 / ")
    (record,) = done.records
    assert record.spec["encoder_args"]["weights"] == str(weights / "resnet50.safetensors")
    assert record.cost["macs"] > 80_000_000
    page = done.report.read_text()
    assert "64.3 / " in page
    assert "multiply-adds (M)" in page


@pytest.mark.slow
def test_without_weights_a_row_is_skipped_and_others_use_another_encoder(data, tmp_path):
    done = run(data, tmp_path, rows=["erm", "vit", "gmoe", "gmoe-released", *CONTROLS], encoder="vit-tiny")
    results = {one.cell.row.name: (bool(one.values), one.reason) for one in done.cells}
    assert {results[row] for row in ("vit", "gmoe", "gmoe-released", *CONTROLS)} == {(True, "")}
    assert not results["erm"][0]
    assert "weights of resnet50 are user-supplied" in results["erm"][1]
    with pytest.raises(BadInput, match=r"--set encoder\.weights=FILE"):
        run(data, tmp_path / "none", rows=["erm"])
    with pytest.raises(BadInput, match="--encoder"):
        run(data, tmp_path / "both", rows=["erm"], encoder="vit-tiny", settings={"encoder.weights": "w.safetensors"})
