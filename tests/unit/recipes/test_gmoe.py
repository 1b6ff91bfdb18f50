"""GMoE's tables: every cell is there, printed means and gains are checked, rows on small files make valid specs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from holdfast.data.known.image_sets import CUB_DG, DOMAIN_NET, OFFICE_HOME, PACS, SVIRO, TERRA_INCOGNITA, VLCS
from holdfast.methods.optim import OptimizerSettings as Descending
from holdfast.recipes.base import Cell, Column, Row, mismatches
from holdfast.recipes.gmoe_parts import DOMAINS
from holdfast.recipes.measure import jobs_for, measure, remarks
from holdfast.recipes.specs import Maker
from holdfast.record import RunRecord
from holdfast.run.train import check_job, episodes
from tests.unit.recipes.whole import check_cells, recipes_of

RECIPES = recipes_of("gmoe")
SIZES = {  # rows, columns, cells with a printed number
    "gmoe/table1": (15, 8, 64),
    "gmoe/table2": (10, 1, 5),
    "gmoe/table3": (8, 6, 24),
    "gmoe/table9": (18, 2, 24),
    "gmoe/table10": (12, 5, 40),
    "gmoe/table11": (20, 6, 48),
    "gmoe/table12": (48, 6, 144),
    "gmoe/table13": (11, 5, 25),
    "gmoe/table15": (8, 5, 20),
    "gmoe/table16": (12, 4, 32),
    "gmoe/table17": (10, 4, 20),
    "gmoe/experts": (7, 5, 0),
}


def test_every_cell_is_there():
    check_cells(RECIPES, SIZES)
    for recipe in RECIPES.values():
        assert not recipe.reasons  # every row can be run where the data and the weights are
        brought = [row for row in recipe.rows.values() if row.asks]
        assert all(row.label.count("ResNet") for row in brought)
        assert len(brought) == sum("ResNet" in row.label for row in recipe.rows.values())
        assert any("encoder.weights=FOLDER/{start}.safetensors" in note for note in recipe.notes) == bool(brought)


def test_errors_spot_checked_against_the_paper():
    for table, row, column, printed in [
        ("table1", "irm", "domain-net", "33.9 ± 2.8"), ("table1", "vit", "vlcs", "79.7 ± 0.0"),
        ("table1", "erm", "camelyon", "93.1 ± 0.2"), ("table1", "irm", "sviro", "–"),
        ("table1", "gmoe", "fmow", "46.6 ± 0.4"), ("table10", "mmd", "domain-net", "23.4 ± 9.5"),
        ("table10", "gmoe", "pacs", "87.1 ± 0.3"),
        ("table9", "mmd-5k", "leave-one-domain-out", "23.4 ± 9.4"), ("table9", "fish-5k", "leave-one-domain-out", "–"),
        ("table13", "every-two-linear", "terra-incognita", "32.5 ± 0.7"), ("table11", "swad+vit", "pacs", "88.3"),
    ]:  # fmt: skip
        assert RECIPES[f"gmoe/{table}"].at(row, column).printed() == printed
    for name in ("table1", "table9", "table10", "table13"):
        assert all((cell.published is None) == (cell.error is None) for cell in RECIPES[f"gmoe/{name}"].cells)


def test_numbers_spot_checked_against_the_paper():
    for table, row, column, number in [
        ("table1", "mmd", "terra-incognita", 42.2), ("table1", "gmoe", "fmow", 46.6), ("table1", "miro", "vlcs", 79.0),
        ("table2", "gmoe+swad", "domain-net", 49.6), ("table3", "gmoe", "painting", 69.3),
        ("table9", "mmd-5k", "leave-one-domain-out", 23.4), ("table9", "vit-15k", "train-validation", 47.1),
        ("table10", "coral", "office-home", 68.5), ("table11", "fishr+gmoe", "vlcs", 78.8),
        ("table12", "sketch+gmoe", "painting", 36.6), ("table12", "quickdraw+resnet101", "sketch", 8.5),
        ("table13", "every-two-linear", "terra-incognita", 32.5), ("table13", "base", "domain-net", 51.3),
        ("table15", "fishr-v2", "terra-incognita", 51.7), ("table16", "fish", "memory", 3.41),
        ("table16", "vit", "predict-memory", 0.76), ("table17", "dann", "mosaic", 14.9),
    ]:  # fmt: skip
        assert RECIPES[f"gmoe/{table}"].at(row, column).published == number


@pytest.mark.parametrize("name", SIZES)
def test_differences_of_augmentation_are_told(name):
    (told,) = [note for note in RECIPES[name].notes if "crops" in note]
    assert "already resized to the square" in told
    assert "a batch shares the order in which colours are jittered" in told


def test_one_printed_mean_does_not_follow_from_its_cells():
    found = [
        (name, cell.row.name, cell.published, round(mean, 2))
        for name, recipe in RECIPES.items()
        for cell, mean in mismatches(recipe)
    ]
    assert found == [("gmoe/table11", "fish+gmoe", 67.1, 67.26)]
    table = RECIPES["gmoe/table11"]
    told = remarks(table, measure(table, table.choose(["fish+gmoe"]), {}, {}))
    assert told[-1] == "Fish, GMoE-S/16, Avg.: 67.1 is printed, but the printed cells average 67.3"


def test_gains_over_resnet_50_are_those_of_the_note():
    recipe = RECIPES["gmoe/table3"]
    gains = {}
    for row in ("resnet101", "vit", "gmoe"):
        each = {
            column: 100 * (recipe.at(row, column).published / recipe.at("resnet50", column).published - 1)
            for column in recipe.columns
        }
        inside = each.pop("painting")
        gains[row] = round(inside, 1), round(math.fsum(each.values()) / 5, 1)
    assert gains == {"resnet101": (1.1, 12.4), "vit": (10.0, 38.2), "gmoe": (10.5, 42.3)}
    assert any("ViT-S/16 38.2 % out of it" in note for note in recipe.notes)


def test_what_is_printed_twice_agrees_but_where_it_is_told():
    one, twelve, three = RECIPES["gmoe/table1"], RECIPES["gmoe/table12"], RECIPES["gmoe/table3"]
    for row in ("resnet50", "resnet101", "vit", "gmoe"):
        for column in three.columns:
            assert three.at(row, column).published == twelve.at(f"painting+{row}", column).published
    differs = []
    twice = [("table15", "vit", "vit"), ("table15", "gmoe", "gmoe"), ("table13", "last-two-cosine", "gmoe")]
    twice += [("table11", "fish+resnet50", "fish"), ("table11", "fishr+resnet50", "fishr")]
    for name, row, again in twice:
        other = RECIPES[f"gmoe/{name}"]
        for column in ("pacs", "vlcs", "office-home", "terra-incognita", "domain-net"):
            if other.at(row, column).published != one.at(again, column).published:
                differs.append((name, row, column))
    assert differs == [
        ("table15", "vit", "domain-net"), ("table15", "gmoe", "vlcs"), ("table11", "fish+resnet50", "domain-net"),
    ]  # fmt: skip
    assert any("47.1 in Tables 9 and 15" in note for note in RECIPES["gmoe/table15"].notes)
    assert any("80.1 here" in note for note in RECIPES["gmoe/table15"].notes)
    assert any("43.1 here" in note for note in RECIPES["gmoe/table11"].notes)


@pytest.mark.parametrize("name", [name for name in SIZES if name != "gmoe/experts"])
def test_every_table_has_its_controls(name):
    rows = RECIPES[name].rows
    found = {row: rows[row].settings for row in rows if row.endswith(("random-routing", "same-work", "same-size"))}
    assert len(found) % 3 == 0
    assert found
    for row, settings in found.items():
        if row.endswith("random-routing"):
            assert (settings["neck.router"], settings["neck.count"], settings["neck.balance"]) == ("random", 6, 0.0)
        else:
            assert (settings["neck"], settings["neck.times"]) == ("wide", 2 if row.endswith("same-work") else 6)
    released = next(rows[row].settings for row in rows if row.endswith("gmoe-released"))
    assert (released["neck.top"], released["neck.eval_capacity"], released["encoder.drop_path"]) == (1, 1.5, 0.1)


def test_domains_are_those_of_the_readers():
    sets = (PACS, VLCS, OFFICE_HOME, TERRA_INCOGNITA, DOMAIN_NET, SVIRO, CUB_DG)
    assert {each.name: tuple(each.domains) for each in sets} == {each.name: DOMAINS[each.name] for each in sets}


@pytest.mark.parametrize("name", SIZES)
def test_every_row_makes_a_valid_spec(name, workspaces):
    recipe = RECIPES[name]
    jobs = jobs_for(recipe, recipe.cells)
    assert {job.row.name for job in jobs} == {row for row, found in recipe.rows.items() if not found.reason}
    maker = Maker(recipe, jobs, encoder=None, steps=None, given={})
    for job in jobs:
        spec = maker.spec(job, workspaces[job.data])
        made = list(episodes(spec, workspaces[job.data]))
        check_job(spec, made[0], workspaces[job.data])
        assert (spec.batch, spec.optimizer, spec.augment, spec.clip) == (32, "adam", "domainbed", 0.0)
        scored = {part.domain for episode in made for stage in episode.stages for part in (*stage.test, *stage.valid)}
        assert scored >= set(job.targets)
        if spec.plan == "single-source":  # the published way: a fifth of every domain, as of the one that trains
            assert {len(part) for stage in made[0].stages for part in (*stage.test, *stage.valid)} == {2}
        assert len(made) == (1 if spec.plan == "single-source" else len(DOMAINS[job.data]))


def test_rates_steps_and_selections_are_the_published_ones(workspaces):
    def specs(name: str, *rows: str):
        recipe = RECIPES[f"gmoe/{name}"]
        jobs = jobs_for(recipe, recipe.choose(rows))
        maker = Maker(recipe, jobs, encoder=None, steps=None, given={})
        return {(job.row.name, job.data, job.select): maker.spec(job, workspaces[job.data]) for job in jobs}

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


def test_rows_with_a_resnet_take_the_weights_of_their_own_start(workspaces):
    three = RECIPES["gmoe/table3"]
    jobs = jobs_for(three, three.choose(["resnet50", "resnet101", "vit"]))
    maker = Maker(three, jobs, encoder=None, steps=None, given={"encoder.weights": "w/{start}.safetensors"})
    specs = {job.row.name: maker.spec(job, workspaces["domain-net"]) for job in jobs}
    assert {name: (s.encoder, s.encoder_args) for name, s in specs.items()} == {
        "resnet50": ("resnet50", {"weights": "w/resnet50.safetensors"}),
        "resnet101": ("resnet101", {"weights": "w/resnet101.safetensors"}),
        "vit": ("vit:facebook/deit-small-patch16-224", {}),
    }
    assert (specs["resnet50"].lr, specs["resnet50"].weight_decay, specs["resnet50"].head_args) == (5e-5, 0.0, {})
    assert specs["vit"].head_args == {"std": 0.02}
    assert RECIPES["gmoe/table15"].rows["fishr-v2"].start == "resnet50-v2"


def test_fishr_is_annealed_for_1500_steps_wherever_it_trains(workspaces):
    found = set()
    for name, recipe in RECIPES.items():
        if name == "gmoe/table16":  # a few steps for the cost alone
            continue
        jobs = [job for job in jobs_for(recipe, recipe.cells) if "fishr" in job.row.name]
        maker = Maker(recipe, jobs, encoder=None, steps=None, given={})
        for job in jobs:
            spec = maker.spec(job, workspaces[job.data])
            assert spec.method == "fishr"
            assert Descending(steps=spec.steps).step_at(spec.method_args.get("anneal", 0.3)) == 1500
            found.add((name.removeprefix("gmoe/"), job.data == "domain-net", spec.steps))
    assert found == {
        ("table1", False, 5001), ("table1", True, 5001), ("table9", True, 5001), ("table11", False, 5001),
        ("table11", True, 5001), ("table11", True, 15_001), ("table15", False, 5001), ("table15", True, 15_001),
        ("table17", False, 5001),
    }  # fmt: skip


def test_every_transformer_begins_with_a_head_of_its_own_kind():
    for recipe in RECIPES.values():
        for row in recipe.rows.values():
            assert row.settings.get("head.std") == (None if row.asks else 0.02), row.name


def test_a_single_source_is_scored_on_its_own_validation_rows():
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
    found = measure(recipe, cells, {cells[0].key: [record]}, {})
    assert [one.values for one in found] == [(90.0,), (25.0,)]
    for metric, value in (("step_seconds", 0.5), ("memory", 2.0)):
        cell = replace(cells[1], column=replace(columns[1], metric=metric))
        (one,) = measure(replace(recipe, cells=(cell,)), [cell], {cell.key: [record]}, {})
        assert one.values == (value,)


def test_columns_that_are_measured_elsewhere_say_so():
    recipe = RECIPES["gmoe/table16"]
    found = measure(recipe, recipe.choose(["vit"]), {}, {})
    assert ["bench experts" in one.reason for one in found] == [False, False, True, True]
    jobs = jobs_for(recipe, recipe.choose(["vit"], ["predict"]))
    assert not jobs
