"""Fisher's discriminant compared with scikit-learn, with leaving examples out, and with finite differences."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from holdfast.methods.discriminant import a_distance, fisher


def groups(b: int, d: int, shift: float = 1.0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features (b, d) in float64 whose columns have different scales, and the first group, a third of them."""
    rng = torch.Generator().manual_seed(seed)
    first = torch.arange(b) < b // 3
    x = torch.randn(b, d, generator=rng).double()
    x[first, 0] += shift
    return x * torch.linspace(1.0, 0.2, d).double(), first


def reference(x: torch.Tensor, first: torch.Tensor, priors: list[float]) -> LinearDiscriminantAnalysis:
    return LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3, priors=priors).fit(x.numpy(), first.numpy())


@pytest.mark.parametrize(("b", "d"), [(40, 6), (18, 50)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_direction_of_scikit_learn(b, d, dtype):
    x, first = groups(b, d)
    expected = torch.from_numpy(reference(x, first, [0.5, 0.5]).coef_[0])
    direction = fisher(x.to(dtype), first, shrinkage=0.3).direction.double()
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    assert float(torch.cosine_similarity(direction, expected, dim=0)) == pytest.approx(1.0, abs=tolerance)


def test_margins_leave_the_example_out():
    x, first = groups(30, 10)
    margins = []
    for i in range(30):
        others = torch.arange(30) != i
        score = reference(x[others], first[others], [0.5, 0.5]).decision_function(x[i : i + 1].numpy())[0]
        margins.append(score if first[i] else -score)
    found = fisher(x, first, shrinkage=0.3).margins.numpy()
    assert np.corrcoef(margins, found)[0, 1] > 0.999
    assert ((np.array(margins) > 0) == (found > 0)).mean() >= 29 / 30


@pytest.mark.parametrize(("b", "d"), [(12, 4), (10, 16)])
def test_the_ratio_is_differentiable(b, d):
    x, first = groups(b, d)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: fisher(x, first, shrinkage=0.3).ratio, (x,), fast_mode=True)


@pytest.mark.parametrize("d", [8, 384])
def test_groups_with_equal_means_do_not_seem_separable(d):
    results = [fisher(*groups(48, d, shift=0.0, seed=seed)) for seed in range(20)]
    ratios = np.array([float(r.ratio) for r in results])
    assert abs(ratios.mean()) < 3 * ratios.std(ddof=1) / np.sqrt(20)
    right = torch.stack([r.margins > 0 for r in results]).double().mean(dim=0)  # (b,)
    assert float(right[:16].mean() + right[16:].mean()) / 2 == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("rows", [2, 5, 48])
def test_finite_in_float32_for_any_scale_and_few_examples(scale, rows):
    x = (groups(48, 64)[0][:rows] * scale).float().requires_grad_()
    result = fisher(x, torch.arange(rows) < max(1, rows // 3))
    (grad,) = torch.autograd.grad(result.ratio, x)
    assert all(bool(t.isfinite().all()) for t in (*result, grad))
    assert bool(fisher(torch.ones(6, 4), torch.arange(6) < 2).ratio.isfinite())


def test_a_distance_of_equal_and_of_distant_groups():
    near = [groups(200, 16, shift=0.0, seed=seed)[0] for seed in range(3)]
    assert abs(a_distance(near)) < 0.3
    assert a_distance([near[0], near[1] + 5.0]) == pytest.approx(2.0, abs=0.05)
