"""Small encoders for vectors and images."""

import pytest
import torch
from torch.testing import assert_close

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.small import CNN, IMAGENET, MLP, Features, Normalise, PixelMLP

VECTORS = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)) * 3 + 7
IMAGES = torch.randint(0, 256, (6, 3, 16, 16), generator=torch.Generator().manual_seed(1)).to(torch.uint8)


def test_mlp_standardises_by_the_training_examples() -> None:
    examples = VECTORS.clone()
    examples[:, 2] = 4.0
    mlp = MLP.build(lambda: examples, hidden=(3,))
    scaled = (examples - mlp.mean) / mlp.std
    assert_close(scaled.mean(0), torch.zeros(5), atol=1e-5, rtol=0)
    stats = [0, 1, 3, 4]
    assert_close(scaled.std(0, correction=0)[stats], torch.ones(4), atol=1e-5, rtol=0)
    assert float(mlp.std[2]) == 1.0
    assert {"mean", "std"} <= set(mlp.state_dict())


def test_bad_vectors() -> None:
    with pytest.raises(BadInput, match="NaN"):
        MLP.build(lambda: torch.tensor([[1.0, float("nan")]]))
    with pytest.raises(BadInput, match="layer sizes"):
        MLP.build(lambda: VECTORS, hidden=())
    with pytest.raises(BadInput, match="built for 5"):
        Features.build(lambda: VECTORS).prepare(torch.zeros(2, 4))
    with pytest.raises(BadInput, match=r"\(3,\)"):
        Features.build(lambda: torch.zeros(3))


def test_uint8_and_float_images_agree() -> None:
    normalise = Normalise(*IMAGENET)
    assert_close(normalise(IMAGES), normalise(IMAGES.float() / 255))
    white = normalise(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8))
    assert_close(white[0, :, 0, 0], torch.tensor([(1 - m) / s for m, s in zip(*IMAGENET, strict=True)]))
    assert not normalise.state_dict()


def test_bad_images() -> None:
    with pytest.raises(BadInput, match=r"\(n, 3, 8, 8\)"):
        CNN(size=8).prepare(IMAGES)
    with pytest.raises(BadInput, match=r"\[0, 1\]"):
        CNN(size=16).prepare(IMAGES.float())
    with pytest.raises(BadInput, match=r"\[0, 1\]"):
        CNN(size=16).prepare(torch.full((1, 3, 16, 16), float("nan")))
    with pytest.raises(BadInput, match="uint8"):
        CNN(size=16).prepare(IMAGES.long())
    assert len(CNN(size=16).prepare(IMAGES[:0])) == 0


def test_pixel_mlp_equation() -> None:
    network = PixelMLP(size=16, hidden=4)
    x = network.prepare(IMAGES).take(torch.arange(6))
    first, second = (layer[0] for layer in network.layers)
    expected = second(first(IMAGES.flatten(1).float() / 255).relu()).relu()
    assert_close(network(x), expected)
    assert not first.bias.any()
    limit = (6 / (3 * 256 + 4)) ** 0.5  # Glorot initialisation
    assert 0.9 * limit < float(first.weight.detach().abs().max()) <= limit
