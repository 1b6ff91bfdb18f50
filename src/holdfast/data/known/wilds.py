"""Camelyon17 and FMoW as WILDS publishes them: a metadata table and a folder of images (Koh et al., 2021)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset, encode
from holdfast.data.known.base import KnownSet
from holdfast.data.raw import ImageFiles

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
    if data_dir is not None:
        root = Path(data_dir).expanduser()
        for path in (*(root / name for name in known.files), root):
            if (path / file).is_file():
                return path
    raise known.absent(data_dir, f"its folder {known.files[0]} with {file} into FOLDER")


def _read(path: Path, columns: Sequence[str]) -> Mapping[str, list[str]]:
    """Read these columns as texts: the patient 004 is not the number 4."""
    options = csv.ConvertOptions(include_columns=list(columns), column_types=dict.fromkeys(columns, pa.string()))
    try:
        table = csv.read_csv(path, convert_options=options)
    except (OSError, KeyError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"{path} cannot be read ({reason}): it needs the columns {', '.join(columns)}") from error
    return {name: table[name].to_pylist() for name in columns}
