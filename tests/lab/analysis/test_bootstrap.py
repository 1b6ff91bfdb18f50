"""The signed-rank test against enumeration and scipy, and bootstrap samples that both systems share."""

import numpy as np
import pytest
from scipy import stats

from lab.analysis.bootstrap import bootstrap_signed_rank, signed_rank


def test_signed_rank():
    # differences 1, 2, -3: W+ = 3; sums of subsets of {1, 2, 3} that reach 3: {3} {1,2} {1,3} {2,3} {1,2,3}
    assert signed_rank([1.0, 2.0, 0.0], [0.0, 0.0, 3.0]) == (3.0, 5 / 8)
    # ties: ranks 1.5, 1.5, 3 and W+ = 4.5; reached by {1.5,3} twice and by all three
    assert signed_rank([1.0, 0.0, 2.0], [0.0, 1.0, 0.0]) == (4.5, 3 / 8)
    assert signed_rank([0.5, 0.5], [0.5, 0.5]) == (0.0, 1.0)


def test_signed_rank_equals_scipy_without_ties():
    rng = np.random.default_rng(1)
    for n in (4, 10, 25):
        a, b = rng.normal(size=(2, n))
        expected = stats.wilcoxon(a, b, alternative="greater", method="exact")
        assert signed_rank(a.tolist(), b.tolist())[1] == pytest.approx(expected.pvalue)


def test_signed_rank_ignores_rounding_errors():
    assert signed_rank([0.3, 0.1], [0.2, 0.2]) == signed_rank([3.0, 1.0], [2.0, 2.0])


def test_bootstrap_uses_the_same_samples_for_both():
    rng = np.random.default_rng(2)
    a = rng.random(500) < 0.7
    result = bootstrap_signed_rank(a.tolist(), a.tolist())
    assert result.a == result.b
    assert len(result.a) == 10
    assert result.p == 1.0
    assert all(value * 200 == pytest.approx(round(value * 200)) for value in result.a)
    better = bootstrap_signed_rank(np.ones(500).tolist(), a.tolist())
    assert better.p == 1 / 1024  # all ten draws are better: one of 2^10 signs
    assert bootstrap_signed_rank(a.tolist(), np.ones(500).tolist()).p == 1.0  # one-tailed
    assert bootstrap_signed_rank(a.tolist(), (~a).tolist(), seed=3) == bootstrap_signed_rank(
        a.tolist(), (~a).tolist(), seed=3
    )
