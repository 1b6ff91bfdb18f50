"""Augmentations of images and graphs."""

import colorsys

import pytest
import torch

from holdfast.accel.registry import without_kernels
from holdfast.core import inputs
from holdfast.core.inputs import Graphs
from holdfast.data import augment as a
from holdfast.data.augment import drop_edge, drop_node, subgraph


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(6, 3, 10, 14, generator=torch.Generator().manual_seed(0))


ONE, ZERO = torch.ones(6), torch.zeros(6)
NO, YES = torch.zeros(6, dtype=torch.bool), torch.ones(6, dtype=torch.bool)


def test_identity_parameters_change_nothing(images):
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(6, 4)
    assert torch.allclose(a.resized_crop(images, whole), images, atol=1e-5)
    assert torch.equal(a.flip(images, NO), images)
    assert torch.equal(a.grayscale(images, NO), images)
    same = a.jitter(images, brightness=ONE, contrast=ONE, saturation=ONE, hue=ZERO)
    assert torch.allclose(same, images, atol=1e-5)


def test_crop_is_the_box(images):
    box = torch.tensor([[0.5, 0.5, 0.5, 0.5]]).expand(6, 4)
    found = a.resized_crop(images, box)
    corner = images[:, :, 5:, 7:]
    reference = torch.nn.functional.interpolate(corner, (10, 14), mode="bilinear", align_corners=False)
    # the crop may look at the neighbours of the box, so only the inside is the same
    assert torch.allclose(found[:, :, 2:, 2:], reference[:, :, 2:, 2:], atol=1e-5)


def test_each_image_has_its_own_box(images):
    boxes = torch.tensor([[0, 0, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]]).repeat(3, 1)
    found = a.resized_crop(images, boxes)
    for i in range(6):
        assert torch.allclose(found[i : i + 1], a.resized_crop(images[i : i + 1], boxes[i : i + 1]), atol=1e-6)


@pytest.mark.parametrize("tall", [1.0, 0.5, 2.0])
def test_boxes_are_within_the_published_ranges(tall):
    top, left, high, wide = a.crop_boxes(5000, tall, torch.Generator().manual_seed(0)).unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + high <= 1 + 1e-6).all()
    assert (left + wide <= 1 + 1e-6).all()
    area, ratio = high * wide, wide / (high * tall)
    fits = (area < 1) & (ratio > 3 / 4 - 1e-5) & (ratio < 4 / 3 + 1e-5)
    whole = (high == 1) & (wide == 1)
    assert (fits | whole).all()
    assert area.min() >= 0.7 - 1e-6
    if tall == 1:
        assert area.std() > 0.05
        assert ratio.std() > 0.05
        assert whole.float().mean() < 0.01


def test_grayscale_is_luma(images):
    found = a.grayscale(images, YES)
    assert torch.equal(found[:, 0], found[:, 1])
    assert torch.equal(found[:, 0], found[:, 2])
    expected = 0.299 * images[:, 0] + 0.587 * images[:, 1] + 0.114 * images[:, 2]
    assert torch.allclose(found[:, 0], expected, atol=1e-6)


def test_brightness_contrast_saturation(images):
    none = {"brightness": ONE, "contrast": ONE, "saturation": ONE, "hue": ZERO}
    assert torch.allclose(a.jitter(images, **none | {"brightness": 0.5 * ONE}), images / 2, atol=1e-5)
    assert a.jitter(images, **none | {"brightness": 3 * ONE}).max() <= 1
    flat = a.jitter(images, **none | {"contrast": ZERO})
    assert flat.flatten(1).std(1).max() < 1e-5
    grey = a.jitter(images, **none | {"saturation": ZERO})
    assert torch.allclose(grey, a.grayscale(images, YES), atol=1e-5)


def test_colour_changes_follow_the_order(images):
    half = {"brightness": 0.5 * ONE, "contrast": 0.5 * ONE, "saturation": ONE, "hue": ZERO}
    first = a.jitter(images, (0, 1, 2, 3), **half)
    grey = a.grayscale(images, YES).mean((-3, -2, -1), keepdim=True)
    assert torch.allclose(first, images / 4 + grey / 4, atol=1e-5)
    much = half | {"brightness": 3 * ONE}  # clipping reveals the order
    assert torch.allclose(a.jitter(images, (1, 0, 2, 3), **much), (1.5 * (images + grey)).clamp(max=1), atol=1e-5)
    assert not torch.allclose(a.jitter(images, **much), a.jitter(images, (1, 0, 2, 3), **much), atol=1e-2)


def test_augment_draws_a_random_order_of_colour_changes(images, monkeypatch):
    orders, jitter = [], a.jitter
    monkeypatch.setattr(a, "jitter", lambda x, order, **drawn: orders.append(tuple(order)) or jitter(x, order, **drawn))
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        a.augment(images[:1], generator)
    assert len(set(orders)) == 24


def test_augment_draws_colours_from_the_published_ranges(monkeypatch):
    found = {}
    monkeypatch.setattr(a, "jitter", lambda x, order, **drawn: found.update(drawn) or x)
    a.augment(torch.zeros(4000, 3, 2, 2), torch.Generator().manual_seed(0))
    for name, (low, high) in {
        **dict.fromkeys(("brightness", "contrast", "saturation"), (0.7, 1.3)),
        "hue": (-0.3, 0.3),
    }.items():
        assert low <= float(found[name].min()) < low + 0.01
        assert high - 0.01 < float(found[name].max()) <= high


def test_colours_against_colorsys(images):
    plain = images[0].flatten(1).T[:40].tolist()
    plain += [[0, 0, 0], [1, 1, 1], [0.5, 0.5, 0.5], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1]]
    x = torch.tensor(plain).T[None, :, None]  # (1, 3, 1, w)
    expected = torch.tensor([colorsys.rgb_to_hsv(*p) for p in plain])
    assert torch.allclose(a.to_hsv(x)[0, :, 0].T, expected, atol=1e-5)
    assert torch.allclose(a.to_rgb(a.to_hsv(x)), x, atol=1e-5)
    turned = [colorsys.hsv_to_rgb((h + 0.3) % 1, s, v) for h, s, v in expected.tolist()]
    found = a.adjust_hue(x, torch.tensor([0.3]))
    assert torch.allclose(found[0, :, 0].T, torch.tensor(turned), atol=1e-5)
    assert torch.allclose(a.adjust_hue(found, torch.tensor([-0.3])), x, atol=1e-5)


def test_augment_takes_bytes_or_floats(images):
    whole = (images * 255).round().to(torch.uint8)
    found = a.augment(whole, torch.Generator().manual_seed(3))
    assert (found.dtype, found.shape) == (torch.float32, images.shape)
    assert found.min() >= 0
    assert found.max() <= 1
    floats = a.augment(whole.double() / 255, torch.Generator().manual_seed(3))
    assert torch.allclose(found, floats, atol=1e-5)


def test_augment_greys_a_tenth_and_flips_half():
    generator = torch.Generator().manual_seed(0)
    left = torch.zeros(1, 3, 8, 8)
    left[:, 0, :, :4], left[:, 1, :, :4] = 0.6, 0.2
    found = a.augment(left.expand(2000, 3, 8, 8), generator)
    grey = (found - found.mean(1, keepdim=True)).abs().amax((1, 2, 3)) < 1e-5
    assert 0.07 < grey.float().mean() < 0.13
    flipped = found[..., 4:].sum((1, 2, 3)) > found[..., :4].sum((1, 2, 3))
    assert 0.45 < flipped.float().mean() < 0.55


def test_shifts_are_integer_pixels_with_black_padding():
    square = torch.rand(64, 3, 16, 16, generator=torch.Generator().manual_seed(1)) + 0.1
    found = a.shift_flip(square, torch.Generator().manual_seed(0))
    seen = set()
    for before, after in zip(square, found, strict=True):
        wide = torch.nn.functional.pad(before, (2, 2, 2, 2))
        candidates = {
            (down, right, turned): piece.flip(-1) if turned else piece
            for down in range(5)
            for right in range(5)
            for turned in (False, True)
            for piece in [wide[:, down : down + 16, right : right + 16]]
        }
        (at,) = [key for key, piece in candidates.items() if torch.equal(piece, after)]
        seen.add(at)
    assert {turned for *_, turned in seen} == {False, True}
    assert {down for down, *_ in seen} == {right for _, right, _ in seen} == set(range(5))


@pytest.mark.parametrize("change", [a.augment, a.crop_flip, a.shift_flip])
def test_changes_use_only_the_generator_and_keep_grey(change, images):
    before, bytes_ = torch.get_rng_state(), (255 * images).to(torch.uint8)
    one, same, other = (change(bytes_, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.shape == images.shape
    assert one.dtype == torch.float32
    grey = images[:, :1].expand(-1, 3, -1, -1)
    made = change(grey, torch.Generator().manual_seed(0))
    assert torch.allclose(made[:, 0], made[:, 1], atol=1e-5)  # no channel is changed by itself


def test_crops_may_be_a_twelfth_of_an_image():
    ramp = torch.linspace(0, 1, 40)[None, None, None, :].expand(200, 3, 40, 40)
    span = a.crop_flip(ramp, torch.Generator().manual_seed(0))[:, 0, 20]
    widths = (span[:, -1] - span[:, 0]).abs()
    assert widths.min() < 0.4
    assert widths.max() > 0.9


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("change", [a.augment, a.crop_flip, a.shift_flip])
def test_no_synchronisation_with_the_gpu(change):
    images, generator = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8).cuda(), torch.Generator()
    change(images, generator)
    try:
        torch.cuda.set_sync_debug_mode("error")
        change(images, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", ["bytes", "numbers"])
def test_the_kernel_equals_the_operations_of_torch(kernel_device, kind):
    pixels = torch.randint(0, 256, (6, 3, 33, 47), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    x = pixels if kind == "bytes" else pixels.float() / 255
    for seed in range(8):  # of different orders of the colour changes
        with without_kernels("augment"):
            expected = a.augment(x, torch.Generator().manual_seed(seed))
        found = a.augment(x.to(kernel_device), torch.Generator().manual_seed(seed)).cpu()
        assert torch.allclose(found, expected, atol=1e-3)


CHANGES = [drop_edge, drop_node, subgraph]


def ring(v: int, name: int) -> Graphs:
    """A ring whose nodes carry the graph and node index and whose edges carry both ends."""
    a = torch.arange(v)
    ends = torch.stack([a, (a + 1) % v])
    edges = torch.cat([ends, ends.flip(0)], dim=1)
    nodes = torch.stack([torch.full((v,), name), a], dim=1).float()
    return Graphs(nodes, edges, torch.zeros(v, dtype=torch.long), 1, nodes[edges[0]] * 100 + nodes[edges[1]])


@pytest.fixture
def x():
    return inputs.cat([ring(40, 1), ring(1, 2), ring(3, 3), ring(60, 4)])


def changed(change, x, seed=0, **how):
    return change(x, torch.Generator().manual_seed(seed), **how)


@pytest.mark.parametrize("change", CHANGES)
def test_result_is_a_subgraph_of_each_graph(change, x):
    found = changed(change, x)
    assert found.count == 4
    assert len(found.nodes) + found.edges.shape[1] < len(x.nodes) + x.edges.shape[1]
    assert torch.bincount(found.owner, minlength=4).min() >= 1
    assert torch.equal(found.nodes[:, 0], found.owner + 1.0)
    assert found.weights is not None
    ends = found.nodes[found.edges[0]] * 100 + found.nodes[found.edges[1]]
    assert torch.equal(found.weights, ends)  # every edge is still between its own nodes
    forth = {tuple(pair) for pair in found.edges.T.tolist()}
    assert forth == {(b, a) for a, b in forth}  # both ways or none


@pytest.mark.parametrize("change", CHANGES)
def test_result_is_random_and_determined_by_the_seed(change, x):
    first, again, other = (changed(change, x, seed) for seed in (0, 0, 1))
    assert torch.equal(first.edges, again.edges)
    assert first.edges.shape != other.edges.shape or not torch.equal(first.nodes[first.edges], other.nodes[other.edges])


@pytest.mark.parametrize("change", CHANGES)
def test_share_of_zero_changes_nothing(change, x):
    found = changed(change, x, share=0.0)
    assert torch.equal(found.nodes, x.nodes)
    assert torch.equal(found.edges, x.edges)


@pytest.mark.parametrize(("change", "left"), [(drop_edge, 0.7), (drop_node, 0.7)])
def test_dropped_fraction_is_close_to_the_share(change, left):
    large = inputs.cat([ring(500, 1)] * 8)
    found = changed(change, large, share=0.3)
    size = found.edges.shape[1] / large.edges.shape[1] if change is drop_edge else len(found.nodes) / len(large.nodes)
    assert size == pytest.approx(left, abs=0.03)


def test_subgraph_is_connected_and_has_the_requested_size():
    x = inputs.cat([ring(40, 1), ring(60, 2)])
    found = changed(subgraph, x, share=0.25)
    assert torch.bincount(found.owner).tolist() == [30, 45]
    # a connected part of a ring is a path with one edge less than nodes, counted in both directions
    assert torch.bincount(found.owner[found.edges[0]]).tolist() == [2 * 29, 2 * 44]


def test_subgraph_of_a_disconnected_graph_stays_in_one_component():
    lonely = Graphs(torch.zeros(5, 1), torch.zeros(2, 0, dtype=torch.long), torch.zeros(5, dtype=torch.long), 1)
    assert len(changed(subgraph, lonely).nodes) == 1
