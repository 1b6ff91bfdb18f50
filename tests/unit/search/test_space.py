import sys

import pytest

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


def test_draws_are_inside_the_space_and_reproducible():
    drawn = [draw(KINDS, trial) for trial in range(1, 200)]
    assert all(inside(values) for values in drawn)
    assert drawn == [draw(KINDS, trial) for trial in range(1, 200)]
    assert {values["c"] for values in drawn} == set(range(1, 9))
    assert sum(values["a"] < 1e-3 for values in drawn) == pytest.approx(100, abs=25)  # uniform in the exponent
    assert isinstance(drawn[0]["c"], int)


def test_added_settings_do_not_change_the_others():
    assert draw({"a": KINDS["a"]}, 3)["a"] == draw(KINDS, 3)["a"]


def test_space_includes_method_wrappers_and_common_settings():
    common = {"lr", "weight_decay", "batch"}
    assert set(space_of(spec())) == common
    assert space_of(spec(lr=1e-3))["lr"] == log(1e-4, 1e-2)
    assert set(space_of(spec("coral"))) == common | {"method.weight"}
    assert set(space_of(spec("swad(coral)"))) > common | {"method.weight"}
    assert set(space_of(spec("coral"), fixed=["lr", "method.weight"])) == {"weight_decay", "batch"}


def test_unknown_sampler_or_missing_optuna_raises(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(BadInput, match="pip install optuna"):
        make_sampler("optuna", {})
    with pytest.raises(BadInput, match="random"):
        make_sampler("randm", {})


def test_optuna_improves_and_is_reproducible():
    pytest.importorskip("optuna")

    def search():
        sampler, proposals = make_sampler("optuna", KINDS), []
        sampler.tell(0, 0.5)  # the defaults are not proposed
        for trial in range(1, 40):
            proposals.append(sampler.ask(trial))
            sampler.tell(trial, None if trial == 3 else -abs(proposals[-1]["b"] - 0.7))
        return proposals

    first = search()
    assert all(inside(values) for values in first)
    assert first == search()
    late = [abs(values["b"] - 0.7) for values in first[-10:]]
    assert sum(late) / 10 < 0.3
