"""GMoE's tables: no printed number and no setting of a row changes unnoticed."""

from __future__ import annotations

import math

import pytest

from holdfast.recipes.measure import jobs_for
from holdfast.recipes.specs import Maker
from tests.unit.recipes.whole import recipes_of

RECIPES = recipes_of("gmoe")

SUMS = {  # numbers and their sum, errors and theirs, added up from the paper
    "table1": (64, 4225.6, 64, 29.4),
    "table2": (5, 236.3, 0, 0.0),
    "table3": (24, 858.8, 0, 0.0),
    "table9": (24, 999.4, 24, 19.8),
    "table10": (40, 2492.2, 40, 42.8),
    "table11": (48, 3175.5, 0, 0.0),
    "table12": (144, 4620.5, 0, 0.0),
    "table13": (25, 1628.9, 25, 5.9),
    "table15": (20, 1330.6, 0, 0.0),
    "table16": (32, 122.06, 0, 0.0),
    "table17": (20, 1231.7, 0, 0.0),
}
EXPERTS = {"count": 6, "top": 2, "at": "last-two", "router": "cosine", "balance": 0.01}
CODE = {**EXPERTS, "top": 1, "capacity": 1.5, "eval_capacity": 1.5, "dropout": 0.1, "form": "tutel"}


@pytest.mark.parametrize("name", SUMS)
def test_printed_numbers_add_up(name):
    cells = RECIPES[f"gmoe/{name}"].cells
    numbers = [cell.published for cell in cells if cell.published is not None]
    errors = [cell.error for cell in cells if cell.error is not None]
    found = len(numbers), round(math.fsum(numbers), 2), len(errors), round(math.fsum(errors), 2)
    assert found == SUMS[name]


def specs(workspaces, name, *rows):
    recipe = RECIPES[f"gmoe/{name}"]
    jobs = jobs_for(recipe, recipe.choose(rows))
    maker = Maker(recipe, jobs, encoder=None, steps=None, given={})
    return {(job.row.name, job.data): maker.spec(job, workspaces[job.data]) for job in jobs}


def test_settings_are_the_published_ones(workspaces):
    one = specs(workspaces, "table1", "gmoe", "gmoe-released", "vit")
    spec = one["gmoe", "pacs"]
    assert (spec.neck, spec.neck_args, spec.encoder_args) == ("experts", EXPERTS, {})
    assert (spec.tune, spec.schedule, spec.precision, spec.metric) == ("full", "constant", "fp32", "accuracy")
    assert (one["vit", "pacs"].neck, one["vit", "pacs"].neck_args) == ("none", {})
    for data in ("pacs", "vlcs", "domain-net"):
        released, plain = one["gmoe-released", data], one["gmoe", data]
        assert (released.neck_args, released.encoder_args) == (CODE, {"drop_path": 0.1})
        assert released.weight_decay == (1e-6 if data == "pacs" else plain.weight_decay)
        assert released.lr == plain.lr


def test_settings_of_single_rows(workspaces):
    (fish,) = specs(workspaces, "table2", "gmoe+fish").values()
    assert (fish.method, fish.method_args) == ("fish", {"meta_lr": 0.5})
    (birds,) = {(s.lr, s.weight_decay) for s in specs(workspaces, "table17", "gmoe").values()}
    assert birds == (5e-5, 0.0)
    thirteen = specs(workspaces, "table13")
    for row in ("every-two-linear", "every-two-cosine", "last-two-linear", "last-two-cosine"):
        at, _, router = row.rpartition("-")
        assert thirteen[row, "pacs"].neck_args == {**EXPERTS, "at": at, "router": router}
    released = specs(workspaces, "table11", "fishr+gmoe-released")
    assert released["fishr+gmoe-released", "domain-net"].method_args == {"anneal": 0.1}
    assert released["fishr+gmoe-released", "pacs"].weight_decay == 1e-6
