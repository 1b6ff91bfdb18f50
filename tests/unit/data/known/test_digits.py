"""Coloured MNIST: fractions of flipped labels and wrong colours, domains, settings and errors."""

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.known.digits import colorize
from holdfast.data.load import load_data

N = 6000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Digits whose first pixel encodes the digit, so that it can be recovered."""
    rng, arrays = np.random.default_rng(0), {}
    for part, n in (("train", N), ("test", 1000)):
        digits = rng.integers(0, 10, n).astype(np.uint8)
        images = rng.integers(0, 200, (n, 28, 28)).astype(np.uint8)
        images[:, 0, 0] = 200 + 2 * digits
        arrays |= {f"x_{part}": images, f"y_{part}": digits}
    folder = tmp_path_factory.mktemp("digits")
    np.savez(folder / "mnist.npz", **arrays)
    return folder


def recover(found, name):
    """Return (label, colour, digit) of a domain's images; the colour is the channel in use, -1 for both."""
    rows = found.rows_of(name)
    images = found.raw.data[rows].astype(int)
    red, green = images[:, 0, 0, 0], images[:, 1, 0, 0]
    grey = (red > 0) & (green > 0)
    digit = (np.where(grey, 2 * red, np.maximum(red, green)) - 200) // 2
    return found.y[rows], np.where(grey, -1, (green > red).astype(int)), digit


def test_domains_and_splits(folder):
    found = load_data("colored-mnist", data_dir=folder)
    assert found.domains == ("first", "second", "reversed", "grey")
    split = found.split
    count = [np.bincount(split[found.rows_of(name)], minlength=3).tolist() for name in found.domains]
    assert count == [[2500, 500, 0], [2500, 500, 0], [0, 0, 1000], [0, 0, 1000]]
    assert found.raw.data.shape == (8000, 3, 14, 14)
    assert not found.raw.data[:, 2].any()
    digits = np.concatenate([recover(found, name)[2] for name in ("first", "second")])
    assert np.bincount(digits).sum() == N


def test_labels_and_colours_are_wrong_as_often_as_configured(folder):
    found = load_data("colored-mnist@first=0.3,second=0.05,noise=0.2", data_dir=folder)
    for name, share in (("first", 0.3), ("second", 0.05), ("reversed", 0.9)):
        label, colour, digit = recover(found, name)
        assert np.mean(label != (digit < 5)) == pytest.approx(0.2, abs=0.04), name
        assert np.mean(colour != label) == pytest.approx(share, abs=0.04), name
    label, colour, digit = recover(found, "grey")
    assert (colour == -1).all()
    assert np.mean(label != (digit < 5)) == pytest.approx(0.2, abs=0.05)


def test_larger_images_and_other_seeds(folder):
    large = load_data("colored-mnist@size=28", data_dir=folder)
    small = load_data("colored-mnist@size=14", data_dir=folder)
    assert np.array_equal(large.raw.data[:, :, ::2, ::2], small.raw.data)  # every second pixel
    assert np.array_equal(large.y, small.y)
    assert load_data("colored-mnist@seed=1", data_dir=folder).fingerprint != small.fingerprint


def test_colorize():
    colored = colorize(np.full((2, 1, 1), 9, dtype=np.uint8), np.array([0, 1]))
    assert colored[:, :, 0, 0].tolist() == [[9, 0, 0], [0, 9, 0]]
    assert colorize(np.full((1, 1, 1), 9, dtype=np.uint8), None)[:, :, 0, 0].tolist() == [[4, 4, 0]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [("first=1.5", "first of colored-mnist.*1.5"), ("size=20", "size.*14 or 28.*20"), ("p=1", "setting")],
)
def test_invalid_settings_are_rejected(folder, settings, message):
    with pytest.raises(BadInput, match=message):
        load_data(f"colored-mnist@{settings}", data_dir=folder)


def test_invalid_files_are_rejected(tmp_path):
    for place in (None, tmp_path):
        with pytest.raises(BadInput, match=r"mnist.npz"):
            load_data("colored-mnist", data_dir=place)
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros(3))
    with pytest.raises(BadInput, match=r"mnist\.npz lacks the array y_train: it needs x_train"):
        load_data("colored-mnist", data_dir=tmp_path)
    wrong = {"x_train": np.zeros((2, 8, 8), dtype=np.uint8), "y_train": np.zeros(2)}
    np.savez(tmp_path / "mnist.npz", **wrong, x_test=wrong["x_train"], y_test=wrong["y_train"])
    with pytest.raises(BadInput, match=r"uint8 images \(n, 28, 28\)"):
        load_data("colored-mnist", data_dir=tmp_path)
