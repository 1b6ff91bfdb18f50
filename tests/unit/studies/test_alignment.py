"""Two features and two networks at a small size: each network learns the feature it can compute; experts for cases."""

import pytest
import torch

from holdfast.core.errors import BadInput
from studies.alignment import NOISY, SETS, World, cases_error, network


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shifted", SETS)
def test_examples_have_the_features_of_their_set(shifted):
    world = World()
    vectors = world.vectors()
    torch.testing.assert_close(vectors @ vectors.T, torch.eye(4))
    x, y = world.draw(200, rng=rng(), shifted=shifted)
    pixel, patch = (y + (shifted == f"{kind}-shift") for kind in ("pixel", "patch"))
    assert torch.equal(x[torch.arange(200), 0, pixel % 4], torch.ones(200))
    matches = torch.isclose(x[:, 1:], vectors[patch % 4][:, None], atol=1e-6).all(-1)
    assert torch.equal(matches.sum(1), torch.ones(200, dtype=torch.long))


def test_features_point_to_the_class_with_the_given_probability():
    x, y = World(pixel=0.7, patch=1.0).draw(4000, rng=rng())
    right = x[torch.arange(4000), 0, y] == 1
    assert float(right.float().mean()) == pytest.approx(0.7, abs=0.03)
    assert [pair for pair in NOISY if pair[0] == 0.9] == [(0.9, 0.9), (0.9, 0.95), (0.9, 1.0)]
    with pytest.raises(BadInput, match=r"1\.2"):
        World(pixel=1.2)
    with pytest.raises(BadInput, match="cnn"):
        network("cnn")


def test_only_the_convolution_ignores_the_order_of_patches():
    x, _ = World().draw(5, rng=rng())
    torch.manual_seed(0)
    for kind, invariant in (("fcn", True), ("mlp", False)):
        net = network(kind)
        assert torch.allclose(net(x), net(x.flip(1)), atol=1e-5) == invariant
    assert sum(p.numel() for p in network("mlp").parameters()) == 41 * 100 + 101 * 100 + 101 * 4


@pytest.mark.slow
def test_several_experts_learn_cases_better_than_one():
    errors = {count: cases_error(count, cases=3, width=8, hidden=8, examples=600, steps=120) for count in (1, 3)}
    assert errors[3] < 0.9 * errors[1] < 0.9
