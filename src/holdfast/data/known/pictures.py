"""Published sets of pictures that have to be fetched by hand: folders by split and class, and CIFAR's binary files.

n images
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from holdfast.core.errors import Absent, BadInput
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.raw import Pixels
from holdfast.data.readers.images import read_images
from holdfast.data.readers.names import SPLIT_NAMES

CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"
PIXELS = 3 * 32 * 32  # bytes of one of CIFAR's images, red, then green, then blue
NAMES = {**SPLIT_NAMES, "trainval": SPLITS.index("train")}


@dataclass(frozen=True, kw_only=True)
class Binary:
    """CIFAR's binary version: one byte a label, then the pixels; of several labels the last is the finest."""

    folder: str
    files: Mapping[str, tuple[str, ...]]  # split -> its files
    labels: int  # bytes before the pixels
    names: str  # the file of the names of the classes
    classes: int


@dataclass(frozen=True, kw_only=True)
class PictureSet:
    """One set: its home, and how many pictures each split has."""

    name: str
    home: str
    sizes: Mapping[str, int]
    binary: Binary | None = None

    def read(self, *, data_dir: Path | None = None) -> Dataset:
        """One domain with its split, from a folder NAME/SPLIT/CLASS/FILE or from CIFAR's binary files."""
        folder = Path(data_dir or "").expanduser()
        if data_dir is not None and self.binary is not None and (folder / self.binary.folder).is_dir():
            found = _binary(self.name, self.binary, folder / self.binary.folder)
        elif data_dir is not None and (folder / self.name).is_dir():
            found = self._folders(folder / self.name)
        else:
            raise self._absent(data_dir)
        assert found.split is not None
        here = {kind: int((found.split == SPLITS.index(kind)).sum()) for kind in self.sizes}
        told = [f"{kind} {here[kind]:,} instead of {n:,}" for kind, n in self.sizes.items() if here[kind] != n]
        notes = [f"{self.name} has not the published number of images: {', '.join(told)}"] if told else []
        return replace(found, notes=(*found.notes, *notes)).checked()

    def _folders(self, folder: Path) -> Dataset:
        found = read_images(folder)  # the splits are where domains would be
        codes = [NAMES.get(name.lower(), -1) for name in found.domains]
        if -1 in codes:
            odd = found.domains[codes.index(-1)]
            raise BadInput(f"{folder}: '{odd}' is no split: put images at {self.name}/SPLIT/CLASS/FILE, {_splits()}")
        split = np.asarray(codes, dtype=np.int64)[found.domain]
        return replace(found, name=self.name, domain=np.zeros_like(split), domains=(self.name,), split=split)

    def _absent(self, folder: Path | None) -> Absent:
        place = "a folder that you name with --data-dir" if folder is None else str(folder)
        binary = "" if self.binary is None else f"{self.binary.folder} (the binary version, not the pickled one) or "
        return Absent(
            f"the data set {self.name} is not downloaded by itself: get it from {self.home} and put {binary}its images "
            f"as {self.name}/SPLIT/CLASS/FILE, {_splits()}, into {place}"
        )


def _splits() -> str:
    return "SPLIT being train, valid or test"


def _binary(name: str, form: Binary, folder: Path) -> Dataset:
    labels, images, split = [], [], []
    for kind, files in form.files.items():
        for file in files:
            path = folder / file
            if not path.is_file():
                raise BadInput(f"{folder} lacks {file}: take the binary version of {name} apart again")
            data = np.fromfile(path, dtype=np.uint8)
            if not len(data) or len(data) % (form.labels + PIXELS):
                raise BadInput(f"{path} is broken: it is not made of rows of {form.labels + PIXELS:,} bytes")
            rows = data.reshape(-1, form.labels + PIXELS)
            labels.append(rows[:, form.labels - 1].astype(np.int64))
            images.append(rows[:, form.labels :].reshape(-1, 3, 32, 32))
            split.append(np.full(len(rows), SPLITS.index(kind)))
    y = np.concatenate(labels)
    if y.max() >= form.classes:
        raise BadInput(f"{folder} is not the binary version of {name}: it has a label of {y.max()}")
    return Dataset(
        name=name,
        raw=Pixels(np.concatenate(images)),
        y=y,
        classes=_named(folder / form.names, form.classes),
        domain=np.zeros(len(y), dtype=np.int64),
        domains=(name,),
        split=np.concatenate(split).astype(np.int64),
    )


def _named(path: Path, classes: int) -> tuple[str, ...]:
    """The names in a file, one a line, where it has as many; else numbers."""
    names = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    names = [name.strip() for name in names if name.strip()]
    return tuple(names) if len(set(names)) == classes else tuple(map(str, range(classes)))


DTD = PictureSet(
    name="dtd",
    home="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
    sizes={"train": 1880, "valid": 1880, "test": 1880},
)
PETS = PictureSet(name="pets", home="https://www.robots.ox.ac.uk/~vgg/data/pets/", sizes={"train": 3680, "test": 3669})
FLOWERS = PictureSet(
    name="flowers",
    home="https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
    sizes={"train": 1020, "valid": 1020, "test": 6149},
)
CIFAR10 = PictureSet(
    name="cifar10",
    home=CIFAR,
    sizes={"train": 50_000, "test": 10_000},
    binary=Binary(
        folder="cifar-10-batches-bin",
        files={"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
        labels=1,
        names="batches.meta.txt",
        classes=10,
    ),
)
CIFAR100 = PictureSet(
    name="cifar100",
    home=CIFAR,
    sizes={"train": 50_000, "test": 10_000},
    binary=Binary(
        folder="cifar-100-binary",
        files={"train": ("train.bin",), "test": ("test.bin",)},
        labels=2,
        names="fine_label_names.txt",
        classes=100,
    ),
)
