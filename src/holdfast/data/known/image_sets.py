"""Published sets of images: folders of domains and classes, CIFAR, and the tables of WILDS (Koh et al., 2021)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.core.errors import BadInput
from holdfast.data.dataset import SPLITS, Dataset, encode
from holdfast.data.known.known_set import KnownSet
from holdfast.data.raw import ImageFiles, Pixels
from holdfast.data.readers import formats
from holdfast.data.readers.codes import SPLIT_NAMES
from holdfast.data.readers.images import read_images

CIFAR_PIXELS = 3 * 32 * 32  # bytes per image of CIFAR: red, green, blue
SPLIT_FOLDERS = {**SPLIT_NAMES, "trainval": SPLITS.index("train")}


def read_domain_folders(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read DOMAIN/CLASS/FILE from the folder of the set, or from `data_dir` itself."""

    def complete(folder: Path) -> bool:
        present = {path.name.lower() for path in folder.iterdir() if path.is_dir()}
        return all({name.lower(), *others} & present for name, others in known.domains.items())

    folder = known.find_folder(data_dir, f"{known.files[0]}/DOMAIN/CLASS/FILE into FOLDER", complete)
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


NO_REGION = "Other"  # domain of countries without a region


def read_camelyon(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read tumours in lymph nodes; the domains are five hospitals (Bandi et al., 2018)."""
    folder = _find(known, "metadata.csv", data_dir)
    table = _read(folder / "metadata.csv", ("patient", "node", "x_coord", "y_coord", "tumor", "center"))
    paths = [
        folder / "patches" / f"patient_{patient}_node_{node}" / f"patch_patient_{patient}_node_{node}_x_{x}_y_{y}.png"
        for patient, node, x, y in zip(*(table[n] for n in ("patient", "node", "x_coord", "y_coord")), strict=True)
    ]
    labels = ["tumor" if value == "1" else "normal" for value in table["tumor"]]
    return _dataset(known, paths, labels, [f"hospital_{center}" for center in table["center"]])


def read_fmow(known: KnownSet, *, data_dir: Path | None = None) -> Dataset:
    """Read satellite images of buildings and land use; the domains are six regions (Christie et al., 2018)."""
    folder = _find(known, "rgb_metadata.csv", data_dir)
    table = _read(folder / "rgb_metadata.csv", ("split", "category", "country_code"))
    codes = _read(folder / "country_code_mapping.csv", ("alpha-3", "region"))
    region = dict(zip(codes["alpha-3"], codes["region"], strict=True))
    rows = [i for i, split in enumerate(table["split"]) if split != "seq"]  # the authors withhold those images
    paths = [folder / "images" / f"rgb_img_{i}.png" for i in rows]
    domains = [region.get(table["country_code"][i]) or NO_REGION for i in rows]
    withheld = len(table["split"]) - len(rows)
    notes = [f"fmow: {withheld:,} images that its authors withhold were dropped"] if withheld else []
    return _dataset(known, paths, [table["category"][i] for i in rows], domains, notes)


def _dataset(
    known: KnownSet, paths: Sequence[Path], labels: Sequence[str], domains: Sequence[str], notes: Sequence[str] = ()
) -> Dataset:
    if paths and not paths[0].is_file():
        raise BadInput(f"{paths[0]} is named in the metadata of {known.name} but is missing: unpack the set again")
    y, classes = encode(labels)
    domain, names = encode(domains)
    ids = [path.stem for path in paths]
    dataset = Dataset(known.name, ImageFiles(paths), y, classes, domain, names, ids=ids)
    return known.finish(dataset.checked(), "images", notes=notes)


def _find(known: KnownSet, file: str, data_dir: Path | None) -> Path:
    expected = f"its folder {known.files[0]} with {file} into FOLDER"
    return known.find_folder(data_dir, expected, lambda folder: (folder / file).is_file())


def _read(path: Path, columns: Sequence[str]) -> Mapping[str, list[str]]:
    """Read these columns as texts: the patient 004 is not the number 4."""
    present = formats.open_table(path).schema.names if path.is_file() else []
    if not set(columns) <= set(present):
        raise BadInput(f"{path} cannot be read: it needs the columns {', '.join(columns)}")
    rows = list(formats.iter_rows(path, columns))
    return {name: [row[name] for row in rows] for name in columns}
