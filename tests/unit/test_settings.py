"""Which neck each method of a comparison gets, whatever the order in which they are named."""

from __future__ import annotations

import pytest

from holdfast.comparison import compare
from holdfast.core.errors import BadInput
from holdfast.data.worlds import world
from holdfast.settings import choose_methods, make_spec

DATA = world("vector", "rotation", domains=3, size=40, classes=2, seed=0)
QUICK = {"encoder.hidden": [8], "plan.targets": ["domain-0"]}
SMALL = {"neck.slots": 16, "neck.key_width": 4}


def necks(folder, *methods, **settings):
    """method -> its neck, of a short comparison."""
    ran = compare(DATA, methods=methods, seeds=1, steps=2, batch=4, out=folder, settings={**QUICK, **settings})
    return {record.spec["method"]: record.spec["neck"] for record in ran.records}


@pytest.mark.parametrize("methods", [("mil", "erm"), ("erm", "mil"), ("memory+coral", "erm", "mil")])
def test_the_neck_of_one_method_is_not_that_of_the_others(methods, tmp_path):
    found = necks(tmp_path, *methods, **SMALL)
    assert found == {"erm": "none", "mil": "memory"} | ({"coral": "memory"} if "memory+coral" in methods else {})


def test_a_neck_that_was_set_goes_to_all_that_can_take_it(tmp_path):
    settings = {"neck": "product-memory", "neck.slots": 16, "neck.top": 2, "neck.key_width": 4}
    assert necks(tmp_path, "mil", "erm", **settings) == {"mil": "product-memory", "erm": "product-memory"}


def test_a_neck_that_a_method_cannot_take_is_told_and_not_replaced(tmp_path):
    with pytest.raises(BadInput, match=r"mil needs a neck such as memory or .*, not projection: .* as in memory\+mil"):
        necks(tmp_path, "mil", neck="projection")
    assert necks(tmp_path, "erm", "memory+mil", neck="projection") == {"erm": "projection", "mil": "memory"}
    chosen, left = choose_methods(["all"], make_spec(DATA, settings={**QUICK, "neck": "projection"}), 2)
    assert "mil" not in chosen
    assert "mil left out: it needs a neck such as memory, not projection" in left
