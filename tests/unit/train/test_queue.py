"""Order of the units of a comparison, simulated with invented outcomes."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.train.queue import (
    BASELINE,
    CHOSEN,
    CONSTANT,
    EDGE,
    FACTORS,
    SIMPLE,
    Candidate,
    Finished,
    Slate,
    Unit,
    best_factors,
    next_units,
)

CANDIDATES = (
    Candidate("majority", CONSTANT),
    Candidate("minilm + logistic", SIMPLE, encodes=True, seeds=(0, 1)),
    Candidate("tfidf + logistic", SIMPLE, seeds=(0, 1)),
    Candidate("erm", BASELINE, encodes=True, seeds=(0, 1), searched=True),
    Candidate("mil", seeds=(0, 1), searched=True),
    Candidate("coral", seeds=(0, 1), searched=True),
    Candidate("vrex", seeds=(0, 1), searched=True),
)
SMALL = Slate(CANDIDATES, (100,))
SIZES = (100, 200, 400, 800)
TARGETS = ("films", "books")


def outcome(unit, scores=None, seconds=1.0):
    """Return an outcome with the score of a name, or of a name and a factor, or 0.5."""
    scores = scores or {}
    score = scores.get((unit.name, unit.factor), scores.get(unit.name, 0.5))
    return Finished({} if score is None else dict.fromkeys(TARGETS, score), seconds)


def simulate(slate, scores=None, *, seconds=lambda unit: 1.0, finished=None, workers=1):
    """Finish units until none is left; return all in the order in which they began.

    With several workers, the next unit begins before the oldest one ends.
    """
    finished, began, running = dict(finished or {}), [], []
    while True:
        waiting = [unit for unit in next_units(finished, slate) if unit not in running]
        while waiting and len(running) < workers:
            running.append(waiting.pop(0))
            began.append(running[-1])
        if not running:
            return began
        unit = running.pop(0)
        finished[unit] = outcome(unit, scores, seconds(unit))


def short(units):
    return [(unit.name, unit.seed, round(unit.factor, 2)) for unit in units]


def test_the_first_units_are_a_constant_a_baseline_without_an_encoder_and_erm():
    units = next_units({}, SMALL)
    assert [unit.name for unit in units] == ["majority", "tfidf + logistic", "erm", "minilm + logistic"]


def test_other_methods_begin_when_plain_training_has_finished_in_the_order_of_the_slate():
    first = next_units({}, SMALL)
    finished = {unit: outcome(unit) for unit in first if unit.name != "minilm + logistic"}
    assert [unit.name for unit in next_units(finished, SMALL)][:4] == ["minilm + logistic", "mil", "coral", "vrex"]
    failed = {**finished, **{unit: Finished() for unit in first if unit.name == "erm"}}
    assert [unit.name for unit in next_units(failed, SMALL)][1:4] == ["mil", "coral", "vrex"]


def test_the_order_is_a_pure_function():
    finished = {unit: outcome(unit) for unit in next_units({}, SMALL)[:3]}
    before = dict(finished)
    assert next_units(finished, SMALL) == next_units(dict(reversed(finished.items())), SMALL)
    assert finished == before


def test_a_small_comparison_searches_rates_before_further_seeds():
    units = simulate(SMALL, {"coral": 0.8, "vrex": 0.7})
    low, high = round(FACTORS[1], 2), FACTORS[0]
    assert short(units[7:]) == [
        *(("erm", 0, factor) for factor in (high, low)),
        *(("coral", 0, factor) for factor in (high, low)),
        *(("vrex", 0, factor) for factor in (high, low)),
        *((name, 1, CHOSEN) for name in ("erm", "coral", "vrex")),
        *((name, 1, 1.0) for name in ("minilm + logistic", "tfidf + logistic", "mil")),
    ]


def test_leaders_have_the_best_validation_scores_and_the_first_of_equal_ones():
    searched = {unit.name for unit in simulate(SMALL) if unit.factor not in (1.0, CHOSEN)}
    assert searched == {"erm", "mil", "coral"}
    assert "vrex" in {unit.name for unit in simulate(SMALL, {"vrex": 0.6}) if unit.factor == CHOSEN}


def test_leaders_are_not_known_before_every_method_has_finished():
    finished = {unit: outcome(unit) for unit in next_units({}, SMALL)}
    finished |= {unit: outcome(unit) for unit in next_units(finished, SMALL)[:2]}
    assert {(unit.name, unit.factor) for unit in next_units(finished, SMALL)} == {
        ("vrex", 1.0), *(("erm", factor) for factor in FACTORS)
    }  # fmt: skip


@pytest.mark.parametrize(("best", "factor"), [(FACTORS[0], FACTORS[0] * EDGE), (FACTORS[1], FACTORS[1] / EDGE)])
def test_the_next_rate_is_tried_if_the_best_one_is_at_the_edge(best, factor):
    units = simulate(SMALL, {("erm", best): 0.9})
    assert [unit.factor for unit in units if unit.name == "erm"] == [1.0, *FACTORS, factor, CHOSEN]
    assert [unit.factor for unit in simulate(SMALL) if unit.name == "erm"] == [1.0, *FACTORS, CHOSEN]


def test_a_rate_is_chosen_per_target_and_the_default_one_wins_ties():
    unit = Unit("erm", rows=100)
    scores = {1.0: (0.5, 0.7), 3.0: (0.6, 0.7), FACTORS[1]: (0.4, 0.1)}
    finished = {
        replace(unit, factor=factor): Finished(dict(zip(TARGETS, pair, strict=True))) for factor, pair in scores.items()
    }
    assert best_factors(finished, unit) == {"films": 3.0, "books": 1.0}
    del finished[replace(unit, factor=FACTORS[1])]
    assert best_factors(finished, unit) == {}


def test_failed_rates_are_not_chosen():
    units = simulate(SMALL, {("erm", FACTORS[0]): None})
    assert short(unit for unit in units if unit.name == "erm")[-1] == ("erm", 1, CHOSEN)
    finished = {
        Unit("erm", 0, factor, 100): outcome(Unit("erm", 0, factor), {("erm", 3.0): None}) for factor in (1.0, *FACTORS)
    }
    assert set(best_factors(finished, Unit("erm", rows=100)).values()) == {1.0}


def test_a_failed_unit_gets_no_other_rates_or_seeds():
    units = simulate(SMALL, {"mil": None, "tfidf + logistic": None, "erm": None})
    for name in ("mil", "tfidf + logistic", "erm"):
        assert [unit for unit in units if unit.name == name] == [Unit(name, rows=100)]
    assert {unit.name for unit in units if unit.factor == CHOSEN} == {"coral", "vrex"}


def test_a_second_call_continues_with_what_is_left():
    everything = simulate(SMALL)
    for done in range(len(everything)):
        rest = simulate(SMALL, finished={unit: outcome(unit) for unit in everything[:done]})
        assert rest == everything[done:]


def by_rows(unit):
    """Take one second per 100 rows."""
    return unit.rows / 100


def test_methods_stay_on_the_first_sample_if_time_is_short():
    units = simulate(Slate(CANDIDATES, SIZES, limit=6.0), seconds=by_rows)
    first = next(unit for unit in units if unit.name == "mil")
    assert first.rows == SIZES[0]
    ahead = units[: units.index(first)]
    assert {unit.rows for unit in ahead} == {SIZES[0]}
    assert [unit.rows for unit in units] == sorted(unit.rows for unit in units)


def test_with_much_time_everything_goes_on_to_all_rows():
    units = simulate(Slate(CANDIDATES, SIZES, limit=math.inf), seconds=by_rows)
    assert {unit.rows for unit in units if unit.name in ("mil", "coral", "vrex")} == {SIZES[-1]}
    assert list(dict.fromkeys(unit.rows for unit in units if unit.name == "erm")) == [SIZES[0], SIZES[-1]]


def test_methods_run_on_the_largest_sample_that_erm_can_afford():
    units = simulate(Slate(CANDIDATES, SIZES, limit=12.0), seconds=by_rows)  # 2.4 s per unit at first
    assert next(unit.rows for unit in units if unit.name == "mil") == 200
    assert [unit.rows for unit in units if unit.name == "mil" and unit.seed == 0 and unit.factor == 1] == [
        200,
        400,
        800,
    ]


def test_only_rows_that_are_encoded_grow_step_by_step():
    units = simulate(Slate(CANDIDATES, SIZES, limit=1e3), seconds=by_rows)
    for name, expected in {"minilm + logistic": list(SIZES), "tfidf + logistic": [SIZES[0], SIZES[-1]]}.items():
        assert list(dict.fromkeys(unit.rows for unit in units if unit.name == name)) == expected


@pytest.mark.parametrize(("per_row", "expected"), [(0.0, 800), (0.05, 400), (0.1, 200), (0.3, 100)])
def test_the_time_for_the_features_of_more_rows_counts(per_row, expected):
    def finish(unit):
        new = unit.rows if unit.rows == SIZES[0] else unit.rows / 2
        return Finished(dict.fromkeys(TARGETS, 0.5), seconds=unit.rows / 100, encoding=new * per_row)

    slate, finished = Slate(CANDIDATES, SIZES, limit=100.0), {}
    while not (methods := [unit for unit in next_units(finished, slate) if unit.name == "mil"]):
        finished |= {unit: finish(unit) for unit in next_units(finished, slate)}
    assert methods[0].rows == expected


@pytest.mark.parametrize("encodes", [True, False])
def test_more_rows_wait_for_the_first_result_of_plain_training_if_its_inputs_are_encoded(encodes):
    candidates = tuple(replace(each, encodes=encodes) if each.name == "erm" else each for each in CANDIDATES)
    slate = Slate(candidates, SIZES, limit=1e3)
    others = {unit: outcome(unit) for unit in next_units({}, slate) if unit.name != "erm" and unit.rows == SIZES[0]}
    assert (SIZES[-1] in {unit.rows for unit in next_units(others, slate)}) != encodes
    erm = Unit("erm", rows=SIZES[0])
    for result in (outcome(erm), Finished()):
        assert SIZES[-1] in {unit.rows for unit in next_units({**others, erm: result}, slate)}


def test_the_sample_of_a_failed_baseline_does_not_grow():
    units = simulate(Slate(CANDIDATES, SIZES), {"erm": None}, seconds=by_rows)
    assert next(unit.rows for unit in units if unit.name == "mil") == SIZES[0]


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_concurrent_units_do_not_anticipate_the_choice_of_a_rate(workers):
    units = simulate(SMALL, {("erm", 3.0): 0.9, "coral": 0.8}, workers=workers)
    assert sorted(short(units)) == sorted(short(simulate(SMALL, {("erm", 3.0): 0.9, "coral": 0.8})))


ROLES = st.sampled_from([CONSTANT, SIMPLE, BASELINE, "method", "method", "method"])


@st.composite
def slates(draw):
    roles = draw(st.lists(ROLES, min_size=1, max_size=8).filter(lambda names: names.count(BASELINE) <= 1))
    seeds = tuple(range(draw(st.integers(1, 3))))
    candidates = tuple(
        Candidate(
            f"{role} {number}", role, draw(st.booleans()), seeds, role in (BASELINE, "method") and draw(st.booleans())
        )
        for number, role in enumerate(roles)
    )
    sizes = tuple(sorted(draw(st.sets(st.integers(10, 1000), min_size=1, max_size=4))))
    return Slate(candidates, sizes, draw(st.sampled_from([1.0, 30.0, 1000.0, math.inf])))


@settings(max_examples=100, deadline=None)
@given(slates(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_unit_begins_exactly_once(slate, workers, random):
    scores = {each.name: random.random() for each in slate.candidates}
    units = simulate(slate, scores, seconds=by_rows, workers=workers)
    assert len(units) == len(set(units))
    largest = [
        (unit.name, unit.seed) for unit in units if unit.rows == slate.sizes[-1] and unit.factor in (1.0, CHOSEN)
    ]
    wanted = [
        (each.name, seed)
        for each in slate.candidates
        for seed in (each.seeds[:1] if each.role == CONSTANT else each.seeds)
    ]
    assert sorted(largest) == sorted(wanted)
    finished = {unit: outcome(unit, scores, by_rows(unit)) for unit in units}
    assert next_units(finished, slate) == []
