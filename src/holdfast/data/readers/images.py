"""Image files: decoding one, and reading a folder `domain/class/file` as a data set."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.core.files import path_error
from holdfast.data.dataset import Dataset, encode
from holdfast.data.part_locations import FILE, is_annotation_folder
from holdfast.data.raw import ImageFiles

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_LAYOUT = "put images at DOMAIN/CLASS/FILE"


def read_images(folder: Path, *, need: Collection[str] = ("label", "domain")) -> Dataset:
    """A folder of images: `domain/class/file`, or any nesting when neither label nor domain is needed."""
    assert set(need) <= {"label", "domain"}, need
    folder = Path(folder)
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder")
    every = sorted(files_below(folder))
    found = [path for path in every if path.suffix.lower() in SUFFIXES]
    if lost := next((path for path in found if not path.exists()), None):
        raise BadInput(f"{lost} is a link to a file that is not there: mend it or take it out")
    if not found:
        raise BadInput(f"{folder} holds no images ({', '.join(SUFFIXES)}): {_LAYOUT}")
    parts = [path.relative_to(folder).parts for path in found]
    label_at, domain_at = _levels(folder, parts, need)
    if domain_at is not None:
        _refuse_empty(folder, {p[0] for p in parts})
    y, classes = np.full(len(found), -1, dtype=np.int64), ()
    if label_at is not None:
        y, classes = encode([p[label_at] for p in parts])
    domain, domains = np.zeros(len(found), dtype=np.int64), ("all",)
    if domain_at is not None:
        domain, domains = encode([p[domain_at] for p in parts])
    left = len(every) - len(found) - (folder / FILE).is_file()  # that one is read where parts are asked for
    return Dataset(
        name=folder.resolve().name,
        raw=ImageFiles(found),
        y=y,
        classes=classes,
        domain=domain,
        domains=domains,
        ids=["/".join(p) for p in parts],
        notes=(f"{left} files in {folder} are not images and were left out",) if left else (),
    )


def files_below(folder: Path) -> Iterator[Path]:
    """All files below, through links too, without hidden ones and without going in circles; none is passed over."""
    seen: set[str] = set()
    for here, folders, files in os.walk(folder, followlinks=True, onerror=_refuse):
        real = os.path.realpath(here)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(here) / name for name in files if not name.startswith("."))


def _refuse(error: OSError) -> NoReturn:
    raise path_error(error) from error


def _levels(folder: Path, parts: list[tuple[str, ...]], need: Collection[str]) -> tuple[int | None, int | None]:
    """Which part of the path is the class and which the domain."""
    if not need:
        return None, None
    flattest = list(min(parts, key=len))
    if "domain" not in need:  # class/file will do
        if len(flattest) < 2:
            raise BadInput(f"{folder}: '{flattest[0]}' is in no class folder: put images at CLASS/FILE")
        return (1, 0) if len(flattest) > 2 else (0, None)
    if len(flattest) < 2:
        raise BadInput(f"{folder}: '{flattest[0]}' is in no domain folder: {_LAYOUT}")
    if "label" not in need:
        return None, 0
    if len(flattest) < 3:
        raise BadInput(
            f"{folder}: the domain folder '{flattest[0]}' holds '{flattest[1]}' directly, in no class folder: {_LAYOUT}"
        )
    return 1, 0


def _refuse_empty(folder: Path, domains: set[str]) -> None:
    for here in sorted(folder.iterdir()):
        if (
            here.is_dir()
            and not here.name.startswith(".")
            and here.name not in domains
            and not is_annotation_folder(here)
        ):
            raise BadInput(f"the domain folder {here} holds no images: fill it or take it away")
