"""Read a folder of image files, DOMAIN/CLASS/FILE, as a data set."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.core.files import path_error
from holdfast.data.dataset import Dataset, encode
from holdfast.data.raw import ImageFiles
from holdfast.data.readers.columns import DEFAULT, ReadOptions
from holdfast.data.readers.features import SUFFIXES

_LAYOUT = "put images at DOMAIN/CLASS/FILE"
PARTS = "parts.csv"  # locations of object parts, which analyses read
CUB_IMAGES = "images.txt"  # list of the images of CUB-200-2011
CUB_ANNOTATIONS = ("parts", "attributes")  # folders of annotations next to its folder of images


def read_images(folder: Path, options: ReadOptions = DEFAULT) -> Dataset:
    """Read DOMAIN/CLASS/FILE, or any nesting if neither label nor domain is needed."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder")
    files = sorted(files_below(folder))
    images = [path for path in files if path.suffix.lower() in SUFFIXES]
    if broken := next((path for path in images if not path.exists()), None):
        raise BadInput(f"{broken} is a link to a missing file: fix or remove it")
    if not images:
        raise BadInput(f"{folder} holds no images ({', '.join(SUFFIXES)}): {_LAYOUT}")
    names = [path.relative_to(folder).parts for path in images]
    label_level, domain_level = _levels(folder, names, options.need)
    y, classes = np.full(len(images), -1, dtype=np.int64), ()
    if label_level is not None:
        y, classes = encode([name[label_level] for name in names])
    domain, domains = np.zeros(len(images), dtype=np.int64), ("all",)
    if domain_level is not None:
        used = {name[0] for name in names}
        for path in sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in used):
            annotations = path.name in CUB_ANNOTATIONS and (folder / CUB_IMAGES).is_file()
            if not path.name.startswith(".") and not annotations:
                raise BadInput(f"the domain folder {path} holds no images: add images or remove it")
        domain, domains = encode([name[domain_level] for name in names])
    ignored = len(files) - len(images) - (folder / PARTS).is_file()
    notes = (f"{ignored} files in {folder} are not images and were ignored",) if ignored else ()
    ids = ["/".join(name) for name in names]
    return Dataset(folder.resolve().name, ImageFiles(images), y, classes, domain, domains, ids=ids, notes=notes)


def files_below(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder except hidden ones, following links but not in circles.

    Raises for pipes, devices and other special files, which may block a reader for ever.
    """
    seen: set[str] = set()
    for here, folders, files in os.walk(folder, followlinks=True, onerror=_raise):
        real = os.path.realpath(here)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            path = Path(here) / name
            if not name.startswith("."):
                if path.exists() and not path.is_file():
                    raise BadInput(f"{path} is not a regular file but a pipe or a device: remove it")
                yield path


def _raise(error: OSError) -> NoReturn:
    raise path_error(error) from error


def _levels(folder: Path, names: list[tuple[str, ...]], need: Collection[str]) -> tuple[int | None, int | None]:
    """Return the positions of class and domain in the path."""
    if not need:
        return None, None
    shortest = min(names, key=len)
    if len(shortest) < 2:
        level, layout = ("domain", "DOMAIN/CLASS/FILE") if "domain" in need else ("class", "CLASS/FILE")
        raise BadInput(f"{folder}: '{'/'.join(shortest)}' is not in a {level} folder: put images at {layout}")
    if "domain" not in need:  # CLASS/FILE is sufficient
        return (1, 0) if len(shortest) > 2 else (0, None)
    if "label" not in need:
        return None, 0
    if len(shortest) < 3:
        raise BadInput(f"{folder}: '{shortest[1]}' in the domain '{shortest[0]}' is not in a class folder: {_LAYOUT}")
    return 1, 0
