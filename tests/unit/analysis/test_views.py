"""Views: features and slot weights equal those of the network, rows are sampled by seed."""

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.analysis.views import collect_views
from holdfast.core.store import TensorStore
from holdfast.data.batches import Examples
from holdfast.data.splits import Part
from holdfast.nn.memory.neck import key_value
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck

N, D = 2500, 6  # more rows than one batch
X = torch.randn(N, D, generator=torch.Generator().manual_seed(0))
EXAMPLES = Examples(TensorStore(X), torch.zeros(N, dtype=torch.long), ("a", "b", "t"))
A, B, T = Part("a", np.arange(0, 900)), Part("b", np.arange(900, 1000)), Part("t", np.arange(1000, N))


def model(*, top: int | None = None, memory: bool = True) -> Model:
    torch.manual_seed(0)
    blend = {"share": 0.25, "fusion": "interpolate"}
    neck = key_value(D, slots=20, heads=3, key_width=4, top=top, **blend) if memory else NoNeck(D)
    return Model(nn.Sequential(nn.Linear(D, D), nn.Dropout(0.5)), neck, nn.Linear(D, 2))


def test_features_before_inside_and_after_the_neck():
    net = model().eval()
    source, target = collect_views(net, EXAMPLES, [B], [T], seed=0)
    assert (source.domain, target.domain) == ("b", "t")
    with torch.no_grad():
        z = net.backbone(X[B.rows])
        read = net.neck.fused.memory.read(z)
    np.testing.assert_allclose(source.backbone, z.numpy(), atol=1e-6)
    np.testing.assert_allclose(source.content, read.content.numpy(), atol=1e-6)
    np.testing.assert_allclose(source.features, 0.75 * source.backbone + 0.25 * source.content, atol=1e-5)
    np.testing.assert_allclose(source.usage, read.weights.mean(dim=(0, 1)).numpy(), atol=1e-6)
    np.testing.assert_allclose(source.peaks, read.weights.amax(dim=(0, 1)).numpy(), atol=1e-6)
    assert source.usage.sum() == pytest.approx(1, abs=1e-5)


def test_weights_of_chosen_slots_are_added_to_these_slots():
    net = model(top=2).eval()
    (view,) = collect_views(net, EXAMPLES, [B], [], seed=0).sources
    with torch.no_grad():
        read = net.neck.fused.memory.read(net.backbone(X[B.rows]))
    whole = torch.zeros(100, 3, 20).scatter_(2, read.slots, read.weights)
    np.testing.assert_allclose(view.usage, whole.mean(dim=(0, 1)).numpy(), atol=1e-6)
    np.testing.assert_allclose(view.peaks, whole.amax(dim=(0, 1)).numpy(), atol=1e-6)
    assert len(view.usage) == 20


def test_plain_networks_have_no_memory_fields():
    (view,) = collect_views(model(memory=False), EXAMPLES, [B], [], seed=0).sources
    assert view.content is view.usage is view.peaks is None
    np.testing.assert_array_equal(view.backbone, view.features)


def test_rows_are_limited_per_side_and_sampled_by_seed():
    halves = [Part("a", A.rows[:450]), Part("a", A.rows[450:]), B]
    views = [collect_views(model(), EXAMPLES, halves, [T], seed=seed, max_rows=300) for seed in (0, 0, 1)]
    assert [len(v.features) for v in views[0]] == [150, 100, 300]  # two domains share 300; b has only 100
    np.testing.assert_array_equal(views[0].targets[0].backbone, views[1].targets[0].backbone)
    assert not np.array_equal(views[0].targets[0].backbone, views[2].targets[0].backbone)


def test_network_is_unchanged():
    net = model().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    collect_views(net, EXAMPLES, [A], [T], seed=0)
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
