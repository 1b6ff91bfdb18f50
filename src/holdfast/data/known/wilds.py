"""Camelyon17 and FMoW as WILDS publishes them: a table of metadata beside a folder of images (Koh et al., 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset, encode
from holdfast.data.known.image_sets import absent, differences
from holdfast.data.raw import ImageFiles

HOME = "https://wilds.stanford.edu"
OTHER = "Other"  # a country without a region
LISTED, WITHHELD = 523_846, 53_760  # rows of FMoW's table, and those of them that it marks seq


def camelyon(*, data_dir: Path | None = None) -> Dataset:
    """Tumours in lymph nodes from five hospitals, which are the domains (Bandi et al., 2018)."""
    folder = _find("camelyon", "camelyon17_v1.0", "metadata.csv", data_dir)
    table = _read(folder / "metadata.csv", ("patient", "node", "x_coord", "y_coord", "tumor", "center"))
    paths = [
        folder / "patches" / f"patient_{patient}_node_{node}" / f"patch_patient_{patient}_node_{node}_x_{x}_y_{y}.png"
        for patient, node, x, y in zip(*(table[n] for n in ("patient", "node", "x_coord", "y_coord")), strict=True)
    ]
    labels = ["tumor" if value == "1" else "normal" for value in table["tumor"]]
    domains = [f"hospital_{center}" for center in table["center"]]
    return _made("camelyon", paths, labels, domains, size=455_954, classes=2)


def fmow(*, data_dir: Path | None = None) -> Dataset:
    """What stands at a place seen from above, 62 kinds; the domains are six regions (Christie et al., 2018).

    The number that is printed for it, 523,846, counts what is withheld; 470,086 images remain, whether the table lists
    the others or not.
    """
    folder = _find("fmow", "fmow_v1.1", "rgb_metadata.csv", data_dir)
    table = _read(folder / "rgb_metadata.csv", ("split", "category", "country_code"))
    codes = _read(folder / "country_code_mapping.csv", ("alpha-3", "region"))
    region = dict(zip(codes["alpha-3"], codes["region"], strict=True))
    rows = [i for i, split in enumerate(table["split"]) if split != "seq"]  # those are withheld and have no image
    paths = [folder / "images" / f"rgb_img_{i}.png" for i in rows]
    labels = [table["category"][i] for i in rows]
    domains = [region.get(table["country_code"][i]) or OTHER for i in rows]
    left = len(table["split"]) - len(rows)
    notes = (f"fmow: {left:,} images that its authors withhold are left out",) if left else ()
    return _made("fmow", paths, labels, domains, size=LISTED - WITHHELD, classes=62, notes=notes)


def _made(
    name: str,
    paths: Sequence[Path],
    labels: Sequence[str],
    domains: Sequence[str],
    *,
    size: int,
    classes: int,
    notes: tuple[str, ...] = (),
) -> Dataset:
    if paths and not paths[0].is_file():
        raise BadInput(f"{paths[0]} is named in the metadata of {name} but is not there: unpack the set again")
    y, kinds = encode(labels)
    domain, named = encode(domains)
    made = Dataset(
        name=name, raw=ImageFiles(paths), y=y, classes=kinds, domain=domain, domains=named,
        ids=[path.stem for path in paths], notes=notes,
    ).checked()  # fmt: skip
    return replace(made, notes=(*notes, *differences(made, size, classes)))


def _find(name: str, official: str, file: str, data_dir: Path | None) -> Path:
    if data_dir is not None:
        folder = Path(data_dir).expanduser()
        for path in (folder / official, folder / name, folder):
            if (path / file).is_file():
                return path
    raise absent(name, HOME, f"its folder {official} with {file}", data_dir)


def _read(path: Path, columns: Sequence[str]) -> Mapping[str, list[str]]:
    """These columns as texts: a patient is called 004."""
    options = csv.ConvertOptions(include_columns=list(columns), column_types=dict.fromkeys(columns, pa.string()))
    try:
        table = csv.read_csv(path, convert_options=options)
    except (OSError, KeyError, pa.ArrowException) as error:
        said = " ".join(str(error).split())[:200]
        raise BadInput(f"{path} cannot be read ({said}): it needs the columns {', '.join(columns)}") from error
    return {name: table[name].to_pylist() for name in columns}
