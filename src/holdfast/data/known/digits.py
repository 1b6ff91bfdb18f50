"""Coloured digits: two training environments whose colour tells more than the digit, tests where it lies or is gone.

n images, s pixels a side
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from holdfast.core.errors import Absent, BadInput
from holdfast.core.seeds import derive
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.raw import Pixels

HOME = "http://yann.lecun.com/exdb/mnist/"
FILE = "mnist.npz"
KEYS = ("x_train", "y_train", "x_test", "y_test")
SIZES = (14, 28)
_TRAIN = 5 / 6  # of the training images train, the rest are validation rows: 50,000 and 10,000


def colored_mnist(
    *,
    data_dir: Path | None = None,
    first: float = 0.2,
    second: float = 0.1,
    size: int = 14,
    noise: float = 0.25,
    lies: float = 0.9,
    seed: int = 0,
) -> Dataset:
    """Is the digit below five, with a share `noise` of labels turned (Arjovsky et al., 2019).

    The colour, red or green, is the label but for a share `first` or `second` of each environment's images, `lies` of
    the first test. In the second test a digit is grey: half its light in either channel, so that no colour tells.
    """
    shares = {"first": first, "second": second, "noise": noise, "lies": lies}
    for name, share in shares.items():
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise BadInput(f"{name} of colored-mnist is a share between 0 and 1, not {share!r}")
    if size not in SIZES:
        raise BadInput(f"size of colored-mnist is 14 or 28 pixels, not {size!r}")
    x_train, y_train, x_test, y_test = _load(data_dir)
    random = np.random.default_rng(derive(seed, "colored-mnist"))
    order = random.permutation(len(x_train))
    cut = int(len(order) * _TRAIN)
    test = np.arange(len(x_test))
    parts = [  # name, images, digits, share of colours that lie, split
        ("first", x_train[order[:cut:2]], y_train[order[:cut:2]], first, "train"),
        ("first", x_train[order[cut::2]], y_train[order[cut::2]], first, "valid"),
        ("second", x_train[order[1:cut:2]], y_train[order[1:cut:2]], second, "train"),
        ("second", x_train[order[cut + 1 :: 2]], y_train[order[cut + 1 :: 2]], second, "valid"),
        ("reversed", x_test[test], y_test[test], lies, "test"),
        ("grey", x_test[test], y_test[test], None, "test"),
    ]
    step, images, labels, domain, split = 28 // size, [], [], [], []
    names = tuple(dict.fromkeys(name for name, *_ in parts))
    for name, pictures, digits, share, kind in parts:
        label = (digits < 5) ^ (random.random(len(digits)) < noise)
        colour = None if share is None else label ^ (random.random(len(digits)) < share)
        images.append(coloured(pictures[:, ::step, ::step], colour))
        labels.append(label.astype(np.int64))
        domain.append(np.full(len(digits), names.index(name)))
        split.append(np.full(len(digits), SPLITS.index(kind)))
    return Dataset(
        name="colored-mnist",
        raw=Pixels(np.concatenate(images)),
        y=np.concatenate(labels),
        classes=("from five", "below five"),
        domain=np.concatenate(domain).astype(np.int64),
        domains=names,
        split=np.concatenate(split).astype(np.int64),
    )


def coloured(images: np.ndarray, colour: np.ndarray | None) -> np.ndarray:
    """(n, s, s) of light to (n, 3, s, s): red where `colour` (n,) is 0, green where it is 1; half in both without."""
    made = np.zeros((len(images), 3, *images.shape[1:]), dtype=np.uint8)
    if colour is None:
        made[:, :2] = (images // 2)[:, None]
    else:
        made[np.arange(len(images)), colour.astype(np.int64)] = images
    return made


def _load(folder: Path | None) -> list[np.ndarray]:
    path = Path(folder or "").expanduser() / FILE
    if folder is None or not path.is_file():
        place = "a folder that you name with --data-dir" if folder is None else str(folder)
        raise Absent(
            f"the data set colored-mnist is not downloaded by itself: get MNIST from {HOME} and put {FILE}, with the "
            f"arrays {', '.join(KEYS)}, into {place}"
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            found = [file[key] for key in KEYS]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} is broken or lacks one of the arrays {', '.join(KEYS)}: make it again") from error
    for images, digits in (found[:2], found[2:]):
        if images.dtype != np.uint8 or images.shape[1:] != (28, 28) or digits.shape != (len(images),):
            raise BadInput(f"{path} must hold uint8 images (n, 28, 28) with a digit each, not {images.shape}")
    return found
