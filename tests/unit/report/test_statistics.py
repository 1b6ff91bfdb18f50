from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from holdfast.core.errors import BadInput
from holdfast.report.statistics import bootstrap_signed_rank, holm, mcnemar, paired_t, signed_rank


def test_paired_t_by_hand():
    found = paired_t([3.0, 4.0, 8.0], [1.0, 1.0, 1.0])  # differences 2, 3, 7
    assert found.difference == 4.0
    assert found.stdev == pytest.approx(math.sqrt(7))
    assert found.stderr == pytest.approx(math.sqrt(7 / 3))
    assert found.t == pytest.approx(4 / math.sqrt(7 / 3))
    t = 4 / math.sqrt(7 / 3)
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t * t))  # two degrees have a closed form
    assert found.n == 3


def test_paired_t_is_scipys():
    chance = np.random.default_rng(0)
    for n in (2, 5, 30):
        a, b = chance.normal(size=(2, n))
        theirs = stats.ttest_rel(a, b)
        ours = paired_t(a.tolist(), b.tolist())
        assert (ours.t, ours.p) == (pytest.approx(theirs.statistic), pytest.approx(theirs.pvalue))


@pytest.mark.parametrize("b", [[0.5, 0.6, 0.7], [0.4, 0.5, 0.6]], ids=["no difference", "equal differences"])
def test_differences_without_spread_have_no_p(b):
    found = paired_t([0.5, 0.6, 0.7], b)
    assert (found.t, found.p) == (None, None)
    assert found.difference == pytest.approx(0.5 - b[0])


def test_one_pair_has_no_p_and_no_pair_is_said():
    assert paired_t([1.0], [0.0]).p is None
    with pytest.raises(BadInput, match="3 and 2"):
        paired_t([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(BadInput, match="at least one"):
        paired_t([], [])


def test_signed_rank_by_hand():
    # differences 1, 2, -3: W+ = 3; sums of subsets of {1, 2, 3} that reach 3: {3} {1,2} {1,3} {2,3} {1,2,3}
    assert signed_rank([1.0, 2.0, 0.0], [0.0, 0.0, 3.0]) == (3.0, 5 / 8)
    # ties: ranks 1.5, 1.5, 3 and W+ = 4.5; reached by {1.5,3} twice and by all three
    assert signed_rank([1.0, 0.0, 2.0], [0.0, 1.0, 0.0]) == (4.5, 3 / 8)
    assert signed_rank([0.5, 0.5], [0.5, 0.5]) == (0.0, 1.0)


def test_signed_rank_is_scipys_where_there_are_no_ties():
    chance = np.random.default_rng(1)
    for n in (4, 10, 25):
        a, b = chance.normal(size=(2, n))
        theirs = stats.wilcoxon(a, b, alternative="greater", method="exact")
        assert signed_rank(a.tolist(), b.tolist())[1] == pytest.approx(theirs.pvalue)


def test_differences_that_tie_but_for_rounding_do_tie():
    assert signed_rank([0.3, 0.1], [0.2, 0.2]) == signed_rank([3.0, 1.0], [2.0, 2.0])


def test_bootstrap_scores_both_on_the_same_draws():
    chance = np.random.default_rng(2)
    a = chance.random(500) < 0.7
    found = bootstrap_signed_rank(a.tolist(), a.tolist())
    assert found.a == found.b
    assert len(found.a) == 10
    assert found.p == 1.0
    assert all(value * 200 == pytest.approx(round(value * 200)) for value in found.a)
    better = bootstrap_signed_rank(np.ones(500).tolist(), a.tolist())
    assert better.p == 1 / 1024  # all ten draws are better: one of 2^10 signs
    assert bootstrap_signed_rank(a.tolist(), np.ones(500).tolist()).p == 1.0  # one-tailed
    assert bootstrap_signed_rank(a.tolist(), (~a).tolist(), seed=3) == bootstrap_signed_rank(
        a.tolist(), (~a).tolist(), seed=3
    )


def test_mcnemar_by_hand():
    # only a: 1; only b: 5; both: 2; none: 1
    a = [1] + [0] * 5 + [1, 1] + [0]
    b = [0] + [1] * 5 + [1, 1] + [0]
    found = mcnemar(a, b)
    assert (found.only_a, found.only_b) == (1, 5)
    assert found.p == pytest.approx(2 * (1 + 6) / 64)
    assert found.chi_square == pytest.approx(9 / 6)
    assert found.p_chi_square == pytest.approx(stats.chi2.sf(1.5, 1))
    assert found.p == pytest.approx(stats.binomtest(1, 6).pvalue)


def test_mcnemar_of_equals():
    assert mcnemar([1, 0, 1], [1, 0, 1]).p == 1.0
    even = mcnemar([1, 0], [0, 1])
    assert (even.p, even.chi_square) == (1.0, 0.0)


def test_correctness_is_true_or_false():
    with pytest.raises(BadInput, match="true or false"):
        mcnemar([0, 2], [0, 1])
    with pytest.raises(BadInput, match="2 and 1"):
        mcnemar([True, False], [True])


def test_holm_by_hand():
    # sorted .01 .02 .03 .04 times 4 3 2 1: .04 .06 .06 .06, never falling
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([0.01, None, 0.5]) == [0.02, None, 0.5]
    assert holm([]) == []
