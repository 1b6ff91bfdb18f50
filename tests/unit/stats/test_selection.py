"""Model selection: three trials for target t with sources a and b, where every criterion selects another one.

trial   valid a, b   mean   oracle      without t and a, on a   without t and b, on b   mean
lr 1    .9, .7       .80    .50         .40                     .50                     .45
lr 2    .8, .7       .75    .60         .50                     .50                     .50
lr 3    .6, .6       .60    .55         .70                     .40                     .55
"""

import pytest

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.record import RunRecord
from holdfast.stats.selection import CRITERIA, choose, leave_one_domain_out, oracle, overall, train_validation, trial

VALID = {1: (0.9, 0.7), 2: (0.8, 0.7), 3: (0.6, 0.6)}
ORACLE = {1: 0.50, 2: 0.60, 3: 0.55}
FOLDS = {1: (0.40, 0.50), 2: (0.50, 0.50), 3: (0.70, 0.40)}
TEST = {1: 0.11, 2: 0.22, 3: 0.33}


def run(lr, *, valid, test, train=("a", "b"), history=(), seed=0, method="erm", metric="accuracy", **spec):
    defaults = {"data": "d", "fingerprint": "f", "plan": "leave-one-out", "plan_args": {}, "select": "train-validation"}
    stage = {
        "train": list(train),
        "step": 20,
        "valid": {d: {metric: v} for d, v in valid.items()},
        "test": {d: {metric: v} for d, v in test.items()},
        "history": list(history),
    }
    spec = defaults | {"method": method, "seed": seed, "lr": lr, "metric": metric} | spec
    return RunRecord(spec, "to-" + "+".join(test), [stage], {}, {}, {})


def plain(lr, **other):
    a, b = VALID[lr]
    return run(lr, valid={"a": a, "b": b}, test={"t": TEST[lr]}, **other)


def with_oracle(lr):
    """Return a run of the oracle; an earlier phase and other steps must not count."""
    checks = [("meta", 20, 0.99), ("final", 10, 0.98), ("final", 20, ORACLE[lr]), ("final", 30, 0.97)]
    history = [{"phase": phase, "step": step, "valid": {"t": v}} for phase, step, v in checks]
    return run(lr, valid={"a": 0.1 * lr, "b": 0.1 * lr}, test={"t": TEST[lr]}, history=history, select="oracle")


def folds(lr, **other):
    """Return runs that hold out two domains and are scored on both."""
    cross = {"plan": "cross-dataset", "valid": {}}
    on_a, on_b = FOLDS[lr]
    return [
        run(lr, train=["b"], test={"a": on_a, "t": 0.9}, plan_args={"targets": ["a", "t"]}, **cross, **other),
        run(lr, train=["a"], test={"b": on_b, "t": 0.9}, plan_args={"targets": ["b", "t"]}, **cross, **other),
        run(lr, train=["t"], test={"a": 0.9, "b": 0.9}, plan_args={"targets": ["a", "b"]}, **cross, **other),
    ]


LRS = (1, 2, 3)
ALL_FOLDS = [fold for lr in LRS for fold in folds(lr)]


def selected(runs, criterion, pairs=()):
    return [
        (c.run.spec["lr"], pytest.approx(c.score), c.run.stages[0]["test"]["t"]) for c in choose(runs, criterion, pairs)
    ]


def test_every_criterion_selects_another_trial():
    plains = [plain(lr) for lr in LRS]
    assert selected(plains, train_validation) == [(1, 0.80, {"accuracy": 0.11})]
    assert selected([with_oracle(lr) for lr in LRS], oracle) == [(2, 0.60, {"accuracy": 0.22})]
    assert selected(plains, leave_one_domain_out, ALL_FOLDS) == [(3, 0.55, {"accuracy": 0.33})]


def test_test_scores_do_not_affect_the_choice():
    swapped = [run(lr, valid=dict(zip("ab", VALID[lr], strict=True)), test={"t": 1 - TEST[lr]}) for lr in LRS]
    assert [c.trial for c in choose(swapped, train_validation)] == [trial(plain(1).spec)]


def test_choices_are_made_per_seed_episode_and_method():
    better = run(3, valid={"a": 1.0, "b": 1.0}, test={"t": 0.5}, seed=1)
    other = run(2, valid={"a": 0.2, "b": 0.2}, test={"u": 0.5})
    coral = plain(3, method="coral")
    choices = choose([plain(1), plain(2), plain(1, seed=1), better, other, coral], train_validation)
    assert {(c.method, c.episode, c.seed): c.run.spec["lr"] for c in choices} == {
        ("erm", "to-t", 0): 1,
        ("erm", "to-t", 1): 3,
        ("erm", "to-u", 0): 2,
        ("coral", "to-t", 0): 3,
    }


def test_ties_go_to_the_first():
    assert selected([plain(2), plain(2, weight_decay=0.1)], train_validation)[0][0] == 2
    first, second = plain(2, weight_decay=0.1), plain(2)
    assert choose([first, second], train_validation)[0].run is first
    assert overall([first, second], train_validation)["erm"][0] == trial(first.spec)


def test_lower_losses_are_better():
    runs = [run(lr, valid={"a": v}, test={"t": v}, metric="nll") for lr, v in ((1, 0.9), (2, 0.3), (3, 0.5))]
    (choices,) = choose(runs, train_validation)
    assert (choices.run.spec["lr"], choices.score) == (2, -0.3)


def test_trials_ignore_seed_plan_and_selection():
    assert trial(plain(1, seed=5).spec) == trial(with_oracle(1).spec) == trial(folds(1)[0].spec)
    assert trial(plain(1).spec) != trial(plain(2).spec)


def test_only_folds_of_the_same_seed_and_trial_count():
    others = [fold for lr in LRS for fold in folds(lr, seed=1)]
    assert choose([plain(lr) for lr in LRS], leave_one_domain_out, others) == []
    choices = choose([plain(lr) for lr in LRS], leave_one_domain_out, [*ALL_FOLDS[:3], *ALL_FOLDS[4:6], *others])
    assert [c.run.spec["lr"] for c in choices] == [1]
    assert leave_one_domain_out(plain(1), ALL_FOLDS) == pytest.approx(0.45)


def test_oracle_needs_runs_with_select_oracle():
    with pytest.raises(BadInput, match="--select oracle"):
        oracle(plain(1))


def test_streams_are_scored_by_the_mean_over_stages():
    first = plain(1)
    second = {**first.stages[0], "valid": {"t": {"accuracy": 0.2}}}
    both = RunRecord(first.spec, first.episode, [first.stages[0], second], {}, {}, {})
    assert train_validation(both) == pytest.approx((0.8 + 0.2) / 2)


def test_undefined_metrics_are_left_out():
    assert train_validation(run(1, valid={"a": None, "b": 0.4}, test={"t": 0.1})) == 0.4
    assert choose([run(1, valid={"a": None}, test={"t": 0.1})], train_validation) == []
    assert choose([run(1, valid={"a": float("nan")}, test={"t": 0.1})], train_validation) == []


def test_overall_compares_means_of_complete_trials():
    def pair(lr, t, u):
        return [run(lr, valid={"a": t}, test={"t": 0.0}), run(lr, valid={"a": u}, test={"u": 0.0})]

    runs = [*pair(1, 0.9, 0.1), *pair(2, 0.6, 0.6), *pair(3, 1.0, 1.0)[:1]]  # the third lacks an episode
    key, score = overall(runs, train_validation)["erm"]
    assert key == trial(plain(2).spec)
    assert score == pytest.approx(0.6)


def test_every_selection_has_a_criterion():
    assert set(CRITERIA) == set(catalog.SELECTIONS)
