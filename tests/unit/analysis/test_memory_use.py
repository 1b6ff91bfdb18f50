from __future__ import annotations

import json
import math

import numpy as np
import pytest

from holdfast.analysis.memory_use import effective, memory_use, moved, used, weight
from holdfast.analysis.views import View, Views


def view(name: str, usage: list[float], *, share: float = 0.3) -> View:
    chance = np.random.default_rng(len(name))
    z, m = chance.standard_normal((50, 4)), chance.standard_normal((50, 4))
    return View(name, z, (1 - share) * z + share * m, m, np.array(usage), np.array(usage))


def test_effective_slots_by_hand():
    assert effective(np.full(8, 1 / 8)) == pytest.approx(8)
    assert effective(np.array([1.0, 0.0, 0.0])) == pytest.approx(1)
    half = -(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25))
    assert effective(np.array([0.5, 0.25, 0.25])) == pytest.approx(math.exp(half))


def test_a_slot_is_used_where_some_row_gives_it_more_than_an_even_share():
    assert used(np.array([0.9, 0.3, 0.2, 0.0])) == 0.5
    assert used(np.full(4, 0.25)) == 0


def test_the_weight_of_the_memory_is_found_again():
    assert weight([view("a", [1.0]), view("bb", [1.0])]) == pytest.approx(0.3)
    assert weight([view("a", [1.0], share=0.0)]) == pytest.approx(0.0)
    assert weight([View("a", np.ones((2, 3)), np.ones((2, 3)))]) is None


def test_moved_by_hand():
    z = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
    step = np.array([[0.0, 5.0], [1.0, 1.0], [0.5, 0.0]])
    assert moved([View("a", z, z + step)]) == pytest.approx(0.75)  # (1 + .5) / 2; the second has no length
    assert moved([View("a", z, np.ones((3, 5)))]) is None


def test_by_domain_with_the_most_used_slots_first():
    found = memory_use(
        Views((view("a", [0.1, 0.2, 0.7]), view("bb", [0.1, 0.4, 0.5])), (view("ccc", [0.0, 1.0, 0.0]),)), seed=0
    )
    assert found is not None
    assert found["slots"] == 3
    assert found["shown"] == [1, 2, 0]  # means 1.6, 1.2, 0.2 of 3
    assert found["targets"]["ccc"] == {"effective": 1.0, "used": 0.3333, "usage": [1.0, 0.0, 0.0]}
    assert found["sources"]["a"]["usage"] == [0.2, 0.7, 0.1]
    json.dumps(found, allow_nan=False)


def test_many_slots_are_cut_and_counted_whole():
    found = memory_use(Views((view("a", [1 / 1024] * 1024),), ()), seed=0)
    assert found is not None
    assert (found["slots"], len(found["shown"]), len(found["sources"]["a"]["usage"])) == (1024, 128, 128)
    assert found["effective"] == pytest.approx(1024)


def test_a_network_without_memory_has_nothing_to_say():
    assert memory_use(Views((View("a", np.ones((2, 3)), np.ones((2, 3))),), ()), seed=0) is None
