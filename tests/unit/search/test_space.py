from __future__ import annotations

import inspect
import sys

import pytest

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.settings import choice, even, log, whole
from holdfast.search.space import draw, make_sampler, space_of
from holdfast.spec import Spec

KINDS = {"a": log(1e-4, 1e-2), "b": even(-1, 1), "c": whole(1, 8), "d": choice("x", [1, 2])}


def spec(method="erm", **other):
    return Spec(data="d", fingerprint="f", method=method, **other)


def inside(values):
    return (
        1e-4 <= values["a"] <= 1e-2
        and -1 <= values["b"] <= 1
        and values["c"] in range(1, 9)
        and values["d"] in ("x", [1, 2])
    )


def test_draws_lie_inside_and_are_the_same_again():
    drawn = [draw(KINDS, trial) for trial in range(1, 200)]
    assert all(inside(values) for values in drawn)
    assert drawn == [draw(KINDS, trial) for trial in range(1, 200)]
    assert {values["c"] for values in drawn} == set(range(1, 9))
    assert sum(values["a"] < 1e-3 for values in drawn) == pytest.approx(100, abs=25)  # even in the exponent
    assert isinstance(drawn[0]["c"], int)


def test_a_setting_added_moves_no_other():
    assert draw({"a": KINDS["a"]}, 3)["a"] == draw(KINDS, 3)["a"]


def test_the_space_is_the_method_its_wrappers_and_the_common_ones():
    common = {"lr", "weight_decay", "batch"}
    assert set(space_of(spec())) == common
    assert space_of(spec(lr=1e-3))["lr"] == log(1e-4, 1e-2)
    assert set(space_of(spec("coral"))) == common | {"method.weight"}
    assert set(space_of(spec("swad(coral)"))) > common | {"method.weight"}
    assert set(space_of(spec("coral"), fixed=["lr", "method.weight"])) == {"weight_decay", "batch"}


@pytest.mark.parametrize("name", catalog.METHODS)
def test_spaces_of_the_catalog_name_real_settings_and_can_be_drawn(name):
    entry = catalog.METHODS[name]
    assert set(entry.space) <= set(entry.setting_names())
    drawn = draw({f"method.{key}": where for key, where in entry.space.items()}, 1)
    signature = inspect.signature(entry.load()).parameters
    for key, value in drawn.items():
        default = signature[key.removeprefix("method.")].default
        if isinstance(default, int) and not isinstance(default, bool):
            assert isinstance(value, int), key


def test_optuna_is_asked_for_kindly(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BadInput, match="pip install optuna"):
        make_sampler("optuna", {})
    with pytest.raises(BadInput, match="did you mean 'random'"):
        make_sampler("randm", {})


def test_optuna_learns_and_gives_the_same_again():
    pytest.importorskip("optuna")

    def search():
        sampler, asked = make_sampler("optuna", KINDS), []
        sampler.tell(0, 0.5)  # the defaults were never asked for
        for trial in range(1, 40):
            asked.append(sampler.ask(trial))
            sampler.tell(trial, None if trial == 3 else -abs(asked[-1]["b"] - 0.7))
        return asked

    first = search()
    assert all(inside(values) for values in first)
    assert first == search()
    late = [abs(values["b"] - 0.7) for values in first[-10:]]
    assert sum(late) / 10 < 0.3
