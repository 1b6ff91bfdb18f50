import json
import math

import numpy as np
import pytest

from holdfast.analysis.memory_use import (
    draw_slots,
    fusion_weight,
    memory_use,
    relative_change,
    sections,
    used_share,
    used_slots,
)
from holdfast.analysis.views import View, Views
from holdfast.stats.labels import grouped
from tests.unit.report.drawing import drawn, only_run
from tests.unit.report.fake_records import analysed


def view(name: str, usage: list[float], *, share: float = 0.3) -> View:
    rng = np.random.default_rng(len(name))
    z, m = rng.standard_normal((50, 4)), rng.standard_normal((50, 4))
    return View(name, z, (1 - share) * z + share * m, m, np.array(usage), np.array(usage))


def test_used_slots():
    assert used_slots(np.full(8, 1 / 8)) == pytest.approx(8)
    assert used_slots(np.array([1.0, 0.0, 0.0])) == pytest.approx(1)
    half = -(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25))
    assert used_slots(np.array([0.5, 0.25, 0.25])) == pytest.approx(math.exp(half))


def test_slots_above_the_uniform_weight_count_as_used():
    assert used_share(np.array([0.9, 0.3, 0.2, 0.0])) == 0.5
    assert used_share(np.full(4, 0.25)) == 0


def test_fusion_weight_is_recovered():
    assert fusion_weight([view("a", [1.0]), view("bb", [1.0])]) == pytest.approx(0.3)
    assert fusion_weight([view("a", [1.0], share=0.0)]) == pytest.approx(0.0)
    assert fusion_weight([View("a", np.ones((2, 3)), np.ones((2, 3)))]) is None


def test_relative_change():
    z = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
    step = np.array([[0.0, 5.0], [1.0, 1.0], [0.5, 0.0]])
    assert relative_change([View("a", z, z + step)]) == pytest.approx(
        0.75
    )  # (1 + .5) / 2; the second row has length zero
    assert relative_change([View("a", z, np.ones((3, 5)))]) is None


def test_usage_per_domain_lists_the_most_used_slots_first():
    result = memory_use(
        Views((view("a", [0.1, 0.2, 0.7]), view("bb", [0.1, 0.4, 0.5])), (view("ccc", [0.0, 1.0, 0.0]),)), seed=0
    )
    assert result is not None
    assert result["slots"] == 3
    assert result["shown"] == [1, 2, 0]  # means 1.6, 1.2, 0.2 of 3
    assert result["targets"]["ccc"] == {"per_read": None, "effective": 1.0, "used": 0.3333, "usage": [1.0, 0.0, 0.0]}
    assert result["sources"]["a"]["usage"] == [0.2, 0.7, 0.1]
    json.dumps(result, allow_nan=False)


def test_usage_is_stored_for_at_most_128_slots():
    result = memory_use(Views((view("a", [1 / 1024] * 1024),), ()), seed=0)
    assert result is not None
    assert (result["slots"], len(result["shown"]), len(result["sources"]["a"]["usage"])) == (1024, 128, 128)
    assert result["effective"] == pytest.approx(1024)


def test_networks_without_memory_have_no_result():
    assert memory_use(Views((View("a", np.ones((2, 3)), np.ones((2, 3))),), ()), seed=0) is None


def stored(effective: float, **other) -> dict:
    domain = {"per_read": 1.5, "effective": effective, "used": 0.5, "usage": [0.6, 0.4]}
    second = {"effective": effective + 2, "used": 1.0, "usage": [0.2, 0.0]}
    result = {"slots": 4, "shown": [3, 1], "effective": effective, "weight": 0.5, "moved": None}
    return result | {"sources": {"a": domain, "b": second}, "targets": {"films": domain}} | other


def test_results_of_earlier_versions_have_no_slots_per_read():
    result = stored(2.0)
    for domain in (*result["sources"].values(), *result["targets"].values()):
        domain.pop("per_read", None)
    (section,) = sections(grouped([analysed("mil", memory_use=result)]), "accuracy")
    assert section.rows[0][1][:4] == [("4", 4), ("–", None), ("–", None), ("3.0", 3.0)]


def test_bars_are_means_over_domains():
    ((_, html),) = draw_slots(only_run("memory-use", stored(2.0)))
    sources, target = drawn(html).marks
    assert sources.y == pytest.approx([0.4, 0.2])
    assert target.y == [0.6, 0.4]
    assert sources.tips == ["sources, slot 3: 0.4000", "sources, slot 1: 0.2000"]


def test_table_has_means_over_seeds():
    runs = [analysed("mil", seed, memory_use=stored(e)) for seed, e in ((0, 2.0), (1, 4.0))]
    (section,) = sections(grouped([*runs, analysed("erm", memory_use=None)]), "accuracy")
    assert section.rows == [
        ("mil to films", [
            ("4", 4), ("1.5", 1.5), ("1.5", 1.5), ("4.0", 4.0), ("3.0", 3.0), ("75%", 0.75), ("50%", 0.5),
            ("0.50", 0.5), ("–", None),
        ])
    ]  # fmt: skip
    assert len(section.columns) == 10


def test_runs_without_targets_are_named_after_the_method():
    (section,) = sections(grouped([analysed("mil", memory_use=stored(2.0, targets={}))]), "accuracy")
    ((label, cells),) = section.rows
    assert (label, cells[1], cells[3], cells[4]) == ("mil", ("1.5", 1.5), ("3.0", 3.0), ("–", None))
    assert section.runs[0].title == "mil, seed 0"
    assert drawn(section.runs[0].figures[0][1]).marks[1].y == []
