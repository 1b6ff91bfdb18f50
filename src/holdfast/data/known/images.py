"""Published image sets: folders by domain or by split, and the binary files of CIFAR."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.data.dataset import SPLITS, Dataset
from holdfast.data.known.base import KnownSet
from holdfast.data.raw import Pixels
from holdfast.data.readers.codes import SPLIT_NAMES
from holdfast.data.readers.images import read_images

CIFAR_PIXELS = 3 * 32 * 32  # bytes per image of CIFAR: red, green, blue
SPLIT_FOLDERS = {**SPLIT_NAMES, "trainval": SPLITS.index("train")}


def read_domain_folders(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read DOMAIN/CLASS/FILE from the folder of the set, or from `data_dir` itself."""

    def complete(folder: Path) -> bool:
        present = {path.name.lower() for path in folder.iterdir() if path.is_dir()}
        return all({name.lower(), *others} & present for name, others in known.domains.items())

    root = Path(data_dir or "").expanduser()
    candidates = [] if data_dir is None else [*(root / name for name in known.files), root]
    folder = next((path for path in candidates if path.is_dir() and complete(path)), None)
    if folder is None:
        raise known.absent(data_dir, f"{known.files[0]}/DOMAIN/CLASS/FILE into FOLDER")
    dataset = read_images(folder)
    return known.finish(known.renamed(dataset, folder), "images").checked()


def read_split_folders(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read one domain with splits from NAME/SPLIT/CLASS/FILE, or from the binary files of CIFAR."""
    layout = f"{known.name}/SPLIT/CLASS/FILE, where SPLIT is train, valid or test"
    binary, root = known.options.get("binary"), Path(data_dir or "").expanduser()
    if data_dir is not None and binary and (root / binary["folder"]).is_dir():
        dataset = _read_cifar(known.name, binary, root / binary["folder"])
    elif data_dir is not None and (root / known.name).is_dir():
        dataset = read_images(root / known.name)  # splits take the place of domains
        codes = [SPLIT_FOLDERS.get(name.lower(), -1) for name in dataset.domains]
        if -1 in codes:
            folder = dataset.domains[codes.index(-1)]
            raise BadInput(f"{root / known.name}: '{folder}' is not a split: put images at {layout}")
        split = np.asarray(codes, dtype=np.int64)[dataset.domain]
        dataset = replace(dataset.as_one_domain(known.name), split=split)
    else:
        alternative = f"{binary['folder']} (the binary version, not the pickled one) or " if binary else ""
        raise known.absent(data_dir, f"{alternative}its images as {layout}, into FOLDER")
    return known.finish(dataset, "images").checked()


def _read_cifar(name: str, form: Mapping[str, Any], folder: Path) -> Dataset:
    """Read rows of label bytes, of which the last is the class, followed by the pixels."""
    labels, images, split = [], [], []
    offset: int = form["label_bytes"]
    for kind in ("train", "test"):
        for path in (folder / file for file in form[kind]):
            if not path.is_file():
                raise BadInput(f"{folder} lacks {path.name}: unpack the binary version of {name} again")
            data = np.fromfile(path, dtype=np.uint8)
            if not len(data) or len(data) % (offset + CIFAR_PIXELS):
                raise BadInput(f"{path} is damaged: its size is not a multiple of {offset + CIFAR_PIXELS:,} bytes")
            rows = data.reshape(-1, offset + CIFAR_PIXELS)
            labels.append(rows[:, offset - 1].astype(np.int64))
            images.append(rows[:, offset:].reshape(-1, 3, 32, 32))
            split.append(np.full(len(rows), SPLITS.index(kind), dtype=np.int64))
    y = np.concatenate(labels)
    if y.max() >= form["classes"]:
        raise BadInput(f"{folder} is not the binary version of {name}: it has the label {y.max()}")
    raw, domain = Pixels(np.concatenate(images)), np.zeros(len(y), dtype=np.int64)
    path = folder / form["names"]  # one name per line
    names = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    names = [name.strip() for name in names if name.strip()]
    classes = tuple(names) if len(set(names)) == form["classes"] else tuple(map(str, range(form["classes"])))
    return Dataset(name, raw, y, classes, domain, (name,), np.concatenate(split))
