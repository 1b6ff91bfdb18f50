"""Coloured MNIST: in training the colour predicts the label better than the digit, in the tests it does not."""

from pathlib import Path

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.core.seeds import derive
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.known.known_set import KnownSet
from holdfast.data.raw import Pixels
from holdfast.data.readers.npz import open_arrays

KEYS = ("x_train", "y_train", "x_test", "y_test")
SIZES = (14, 28)
_TRAIN = 5 / 6  # fraction of the training images that train; the rest validates: 50,000 and 10,000


def read_colored_mnist(
    known: KnownSet, *, data_dir: Path | None = None, first: float = 0.2, second: float = 0.1,
    size: int = 14, noise: float = 0.25, lies: float = 0.9, seed: int = 0,
) -> Dataset:  # fmt: skip
    """Build coloured digits with the label "digit below five", flipped for a fraction `noise` (Arjovsky et al., 2019).

    The colour, red or green, equals the label except for a fraction `first` and `second` of the images in the two
    training environments and `lies` in the test domain `reversed`. In the test domain `grey`, both channels are at half
    intensity, so the colour carries no information.
    """
    for name, value in {"first": first, "second": second, "noise": noise, "lies": lies}.items():
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise BadInput(f"{name} of colored-mnist must be a fraction between 0 and 1, got {value!r}")
    if size not in SIZES:
        raise BadInput(f"size of colored-mnist must be 14 or 28 pixels, got {size!r}")
    x_train, y_train, x_test, y_test = _load(known, data_dir)
    rng = np.random.default_rng(derive(seed, "colored-mnist"))
    order = rng.permutation(len(x_train))
    cut = int(len(order) * _TRAIN)
    groups = [  # domain, images, digits, fraction of wrong colours, split
        ("first", x_train[order[:cut:2]], y_train[order[:cut:2]], first, "train"),
        ("first", x_train[order[cut::2]], y_train[order[cut::2]], first, "valid"),
        ("second", x_train[order[1:cut:2]], y_train[order[1:cut:2]], second, "train"),
        ("second", x_train[order[cut + 1 :: 2]], y_train[order[cut + 1 :: 2]], second, "valid"),
        ("reversed", x_test, y_test, lies, "test"),
        ("grey", x_test, y_test, None, "test"),
    ]
    step, images, labels, domain, split = 28 // size, [], [], [], []
    names = tuple(dict.fromkeys(name for name, *_ in groups))
    for name, pixels, digits, wrong, kind in groups:
        label = (digits < 5) ^ (rng.random(len(digits)) < noise)
        colour = None if wrong is None else label ^ (rng.random(len(digits)) < wrong)
        images.append(colorize(pixels[:, ::step, ::step], colour))
        labels.append(label.astype(np.int64))
        domain.append(np.full(len(digits), names.index(name), dtype=np.int64))
        split.append(np.full(len(digits), SPLITS.index(kind), dtype=np.int64))
    raw, classes = Pixels(np.concatenate(images)), ("from five", "below five")
    y, domains, splits = (np.concatenate(codes) for codes in (labels, domain, split))
    return Dataset(known.name, raw, y, classes, domains, names, splits)


def colorize(images: np.ndarray, colour: np.ndarray | None) -> np.ndarray:
    """Colour grey images (n, s, s): red where `colour` (n,) is 0, green where 1, half of both if None; (n, 3, s, s)."""
    colored = np.zeros((len(images), 3, *images.shape[1:]), dtype=np.uint8)
    if colour is None:
        colored[:, :2] = (images // 2)[:, None]
    else:
        colored[np.arange(len(images)), colour.astype(np.int64)] = images
    return colored


def _load(known: KnownSet, data_dir: Path | None) -> list[np.ndarray]:
    path = known.find(data_dir, f"mnist.npz, with the arrays {', '.join(KEYS)}, into FOLDER", (".npz",))
    with open_arrays(path) as file:
        if missing := [key for key in KEYS if key not in file]:
            raise BadInput(f"{path} lacks the array {missing[0]}: it needs {', '.join(KEYS)}")
        arrays = [file[key] for key in KEYS]
    for images, digits in (arrays[:2], arrays[2:]):
        if images.dtype != np.uint8 or images.shape[1:] != (28, 28) or digits.shape != (len(images),):
            raise BadInput(f"{path} must hold uint8 images (n, 28, 28) with one digit per image, got {images.shape}")
    return arrays
