"""Learning rates are chosen on source domains only, for every method alike, and recorded."""

from dataclasses import replace

import numpy as np
import pytest
from holdfast.run.budget import Budget
from holdfast.search.rates import is_searchable, rate_notes, rate_of_fit, search_rates

from holdfast import compare
from holdfast.data.synthetic import world
from holdfast.record import load
from holdfast.report.labels import grouped
from holdfast.run.resolve import Request, resolve
from holdfast.run.workspace import Workspace
from holdfast.search import rates

DATA = world("vector", "rotation", domains=4, size=30, classes=2, seed=0)
OPTIONS = {"batch": 4, "settings": {"encoder.hidden": [4]}}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(rates, "MIN_STEPS", 4)


def searched(data, out, *methods, budget=None, **options):
    workspace = Workspace(data, cache=None, out=out)
    request = Request(methods=methods or ("erm",), seeds=(0, 1), steps=8, every=4, **{**OPTIONS, **options})
    return search_rates(resolve(request, workspace), workspace, budget=budget)


def test_labels_of_a_target_do_not_change_its_rate(tmp_path):
    """With another meaning of the labels of one domain, only the rates of the other targets may change."""
    target, rows = DATA.domains[0], DATA.rows_of(DATA.domains[0])
    y = DATA.y.copy()
    y[rows] = 1 - y[rows]
    changed = replace(DATA, y=y)
    for plan in ("leave-one-out", "cross-dataset"):
        options = {} if plan == "leave-one-out" else {"settings": {**OPTIONS["settings"], "plan.targets": [target]}}
        own, other = (
            {choice.target: choice for choice in searched(data, tmp_path / f"{plan}{i}", plan=plan, **options)[1]}
            for i, data in enumerate((DATA, changed))
        )
        name = f"to-{target}" if plan == "leave-one-out" else next(iter(own))
        assert own[name].scores == other[name].scores
        assert own[name].rate == other[name].rate
        assert len(own[name].scores) in (3, 4)
    folds, others = (searched(data, tmp_path / f"again{i}")[1] for i, data in enumerate((DATA, changed)))
    by_target = [{choice.target: choice.scores for choice in choices} for choices in (folds, others)]
    assert by_target[0]["to-domain-1"] != by_target[1]["to-domain-1"]  # a source of the other targets


def test_every_method_tries_the_same_rates_and_jobs_have_the_best(tmp_path):
    jobs, choices = searched(DATA, tmp_path, "erm", "coral")
    default = resolve(Request(steps=8, every=4, **OPTIONS), Workspace(DATA, cache=None))[0].spec.lr
    for method in ("erm", "coral"):
        own = {choice.target: choice for choice in choices if choice.method == method}
        assert set(own) == {*(f"to-{domain}" for domain in DATA.domains), ""}
        for choice in own.values():
            assert {round(rate / default, 3) for rate in choice.scores} >= {0.333, 1, 3}
            assert choice.scores[choice.rate] == max(choice.scores.values())
        mine = [job for job in jobs if job.spec.method == method]
        assert all(job.spec.lr == own[job.episode].rate for job in mine)
        assert len(mine) == 8
    assert len({job.id for job in jobs}) == 16
    assert not (tmp_path / "records").exists()  # runs of the search are in their own folder
    assert "learning rates chosen on source domains: erm" in rate_notes(choices)[0]
    assert searched(DATA, tmp_path, "erm", "coral")[0] == jobs  # read from the records


def test_the_next_rate_is_tried_where_the_best_is_the_lowest_or_the_highest(tmp_path):
    jobs, choices = searched(DATA, tmp_path, "erm", "coral")
    default = resolve(Request(steps=8, every=4, **OPTIONS), Workspace(DATA, cache=None))[0].spec.lr
    edges = {0: None, 1: 1 / 9, 2: 9}
    expected = []
    for choice in choices:
        first = [choice.scores[default * factor] for factor in rates.FACTORS]
        beyond = edges[int(np.argmax(first))]
        further = [rate / default for rate in choice.scores if rate not in [default * f for f in rates.FACTORS]]
        assert np.allclose(further, [] if beyond is None else [beyond])
        expected.append(beyond)
    assert set(expected) - {None}  # the case occurs in this data
    tried = {round(rate / default, 3) for job in jobs if job.spec.method == "erm" for rate in job.spec.searched["lr"]}
    assert tried >= {0.333, 1, 3}
    assert len(tried) > 3


def test_rate_of_a_model_of_all_domains_leaves_out_each_domain(tmp_path):
    workspace = Workspace(DATA, cache=None, out=tmp_path)
    request = Request(plan="all", steps=8, every=4, **OPTIONS)
    choice = rate_of_fit(request, workspace)
    assert choice is not None
    assert choice.scores[choice.rate] == max(choice.scores.values())
    folds = list(load(tmp_path / "rates"))
    assert len(folds) == 4 * len(choice.scores)
    assert len(choice.scores) in (3, 4)
    assert {record.spec["steps"] for record in folds} == {4}
    frozen = Request(plan="all", tune="frozen", steps=8, every=4, **OPTIONS)
    assert rate_of_fit(frozen, Workspace(DATA, cache=None, out=tmp_path / "frozen")) is None


def test_only_rates_that_all_methods_tried_are_compared(tmp_path):
    now = iter([0.0] * 16 + [100.0] * 1000)  # the time ends during the search
    budget = Budget(90.0, 0.0, lambda: next(now))
    _, choices = searched(DATA, tmp_path, "erm", "coral", budget=budget)
    tried = {len(choice.scores) for choice in choices}
    assert len(tried) <= 1
    assert tried <= {1, 2}


def test_comparison_has_one_row_per_method_and_records_the_search(tmp_path):
    keywords = {"methods": ["erm", "vrex"], "seeds": 1, "baselines": False, "combinations": False, "device": "cpu"}
    keywords |= {"steps": 8, **OPTIONS}
    done = compare(DATA, out=tmp_path / "a", search_rate=True, **keywords)
    assert list(grouped(done.records)) == ["erm", "vrex"]
    assert len(done.records) == 8
    assert {choice.method for choice in done.rates} == {"erm", "vrex"}
    assert "learning rates chosen on source domains" in done.report.read_text()
    assert done.decision is not None
    final = {choice.method: choice.rate for choice in done.rates if not choice.target}
    assert done.decision.spec["lr"] == final[done.decision.spec["method"]]
    for options in ({"lr": 0.01}, {"search_rate": False}, {"tune": "frozen"}):
        plain = compare(DATA, out=tmp_path / str(options), **{**keywords, **options})
        assert not plain.rates
        assert "searched" not in plain.records[0].spec
    assert not is_searchable(replace(resolve(Request(plan="stream", **OPTIONS), Workspace(DATA))[0].spec))
