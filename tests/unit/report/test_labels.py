from __future__ import annotations

from holdfast.report.labels import grouped, label
from tests.unit.report.fake_records import record


def made(method: str, neck: str | None = "none", *, neck_args: dict | None = None, **other):
    return record(method, 0, {"t": 0.5}, neck=neck, neck_args=neck_args or {}, **other)


def test_necks_beside_the_plain_backbone_are_told_and_the_plain_one_comes_first():
    frozen = made("erm", "memory", neck_args={"frozen": True})
    runs = [made("mil", "memory"), frozen, made("erm", "memory"), made("dann"), made("erm")]
    assert list(grouped(runs)) == ["erm", "erm + memory", "erm + memory frozen", "dann", "mil + memory"]


def test_a_neck_is_told_where_all_have_it_too():
    runs = [made("erm", "projection"), made("coral", "projection")]
    assert list(grouped(runs)) == ["erm + projection", "coral + projection"]
    assert list(grouped([made("erm", "experts")])) == ["erm + experts"]
    assert label(made("mil", "memory", neck_args={"slots": 64})) == "mil + memory"


def test_the_plain_backbone_goes_unsaid_beside_any_necks():
    runs = [made("erm", "projection"), made("coral", "projection"), made("mil", "memory"), made("dann")]
    assert list(grouped(runs)) == ["erm + projection", "coral + projection", "dann", "mil + memory"]
    two = [made("erm", "projection"), made("erm", "memory"), made("mil", "memory")]
    assert list(grouped(two)) == ["erm + memory", "erm + projection", "mil + memory"]
    assert list(grouped([made("coral"), made("mil", "memory")])) == ["coral", "mil + memory"]


def test_settings_of_a_neck_are_told_where_runs_with_it_differ_and_no_others():
    small, large = ({"slots": n, "heads": 2} for n in (8, 16))
    runs = [made("erm"), made("erm", "memory", neck_args=large), made("erm", "memory", neck_args=small)]
    assert list(grouped(runs)) == ["erm", "erm + memory slots=8", "erm + memory slots=16"]
    alone = [made("erm", "memory", neck_args=small), made("mil", "memory", neck_args=large)]
    assert list(grouped(alone)) == ["erm + memory slots=8", "mil + memory slots=16"]


def test_other_settings_still_tell_runs_of_one_neck_apart():
    runs = [made("mil", "memory", method_args={"gamma": g}) for g in (1, 10)] + [made("mil")]
    assert list(grouped(runs)) == ["mil (gamma=default)", "mil + memory (gamma=1)", "mil + memory (gamma=10)"]
    assert len(grouped([made("erm", None), made("erm", "none")])) == 2


def test_a_setting_that_one_run_has_and_another_has_not_is_told_in_short():
    runs = [made("erm", plan_args={"order": ["a", "b"]}), made("erm", plan_args={})]
    assert sorted(grouped(runs)) == ['erm (plan.order=["a", "b"])', "erm (plan.order=default)"]


def test_steps_are_told_and_not_what_follows_from_them():
    runs = [made("erm", steps=100, every=10), made("erm", steps=300, every=30)]
    assert list(grouped(runs)) == ["erm (steps=100)", "erm (steps=300)"]
