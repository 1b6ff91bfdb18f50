"""Locations of object parts in images, from a file parts.csv or from the annotation files of CUB-200-2011."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.decode import open_image
from holdfast.data.readers import formats
from holdfast.data.readers.images import CUB_IMAGES, PARTS

COLUMNS = ("image", "part", "x", "y")
CUB_FOLDER = "CUB_200_2011"
CUB_PARTS, CUB_LOCATIONS = "parts/parts.txt", "parts/part_locs.txt"
ROUNDING = 1.5  # pixels that a location may lie outside the image: coordinates start at 1 and are rounded

PartLocations = dict[str, list[tuple[str, float, float]]]  # CLASS/NAME -> (part, x, y) in fractions


def shared_name(name: str) -> str:
    """Return the name that versions of an image share across domains: CLASS/NAME for DOMAIN/CLASS/NAME.png."""
    _, _, inside = name.partition("/")
    return inside.rpartition(".")[0] or inside


def read_part_locations(dataset: Dataset) -> PartLocations:
    """Read parts.csv next to the domain folders, else the files of CUB; empty if there are neither."""
    files, ids = dataset.raw.files(), dataset.ids
    if not files or ids is None:
        return {}
    folder = files[0]
    for _ in ids[0].split("/"):
        folder = folder.parent
    path = folder / PARTS
    if not path.is_file():
        candidates = (folder, folder.parent / CUB_FOLDER)  # next to the domain folders, or next to the data set
        cub = next((candidate for candidate in candidates if (candidate / CUB_LOCATIONS).is_file()), None)
        versions: dict[str, list[Path]] = defaultdict(list)  # files of all domains by CLASS/NAME
        for file, name in zip(files, ids, strict=True):
            versions[shared_name(name)].append(file)
        return {} if cub is None else _read_cub(cub, versions)
    columns = formats.open_table(path).schema.names
    if missing := [name for name in COLUMNS if name not in columns]:
        raise BadInput(f"{path} has no column {' and '.join(missing)}: it needs {', '.join(COLUMNS)}")
    locations: PartLocations = {}
    for number, row in enumerate(formats.iter_rows(path, COLUMNS), start=1):
        try:
            point = float(row["x"]), float(row["y"])
        except (TypeError, ValueError):
            point = (math.nan, math.nan)
        if not all(0 <= value <= 1 for value in point):
            point = f"x {row['x']}, y {row['y']}"
            raise BadInput(f"{path}: row {number}: {point} is not between 0 and 1: write fractions of the sides")
        locations.setdefault(str(row["image"]), []).append((str(row["part"]), *point))
    return locations


def check_locations(dataset: Dataset) -> str:
    """Raise if part locations are invalid; return no note."""
    read_part_locations(dataset)
    return ""


def unmatched_note(dataset: Dataset) -> str:
    """Return a note if part locations exist but name none of these images, else an empty string."""
    locations, names = read_part_locations(dataset), {shared_name(name) for name in dataset.ids or ()}
    if not locations or names & locations.keys():
        return ""
    fix = f"its column image must hold CLASS/NAME without a suffix, such as '{min(names)}'"
    return f"{PARTS} names none of these images (its first is '{next(iter(locations))}'): {fix}"


def _read_cub(root: Path, files: Mapping[str, Sequence[Path]]) -> PartLocations:
    """Read the visible parts of these images; sizes come from CUB's original images where present."""
    images = {key: Path(name) for _, (key, name) in _lines(root / CUB_IMAGES, 2)}
    names = {key: name for _, (key, name) in _lines(root / CUB_PARTS, 2)}
    sizes: dict[str, tuple[int, int]] = {}
    locations: PartLocations = {}
    for number, (image, part, x, y, visible) in _lines(root / CUB_LOCATIONS, 5):
        where = f"{root / CUB_LOCATIONS}: line {number}"
        if image not in images or part not in names:
            raise BadInput(f"{where} names image {image} and part {part}, missing in {CUB_IMAGES} or {CUB_PARTS}")
        name = str(images[image].with_suffix(""))
        if visible == "0" or name not in files:
            continue
        if name not in sizes:
            original = root / "images" / images[image]
            sizes[name] = _largest_size([original] if original.is_file() else files[name])
        point = _fractions(x, y, sizes[name], where=where, name=name)
        locations.setdefault(name, []).append((names[part], *point))
    return locations


def _lines(path: Path, columns: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the words of each line; the last word may contain spaces, such as `left eye`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read ({error}): unpack CUB-200-2011 again") from error
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split(maxsplit=columns - 1)
        if words and len(words) != columns:
            raise BadInput(f"{path}: line {number} has {len(words)} columns, expected {columns}")
        if words:
            yield number, [word.strip() for word in words]


def _fractions(x: str, y: str, size: tuple[int, int], *, where: str, name: str) -> tuple[float, float]:
    try:
        point = float(x), float(y)
    except ValueError as error:
        raise BadInput(f"{where}: x and y are not numbers") from error
    if not all(-ROUNDING <= value <= side + ROUNDING for value, side in zip(point, size, strict=True)):
        fix = f"if images were resized, put CUB's original images next to the data set as {CUB_FOLDER}/images"
        raise BadInput(f"{where}: {x}, {y} lies outside {name}, which has {size[0]} x {size[1]} pixels: {fix}")
    return min(max(point[0] / size[0], 0.0), 1.0), min(max(point[1] / size[1], 0.0), 1.0)


def _largest_size(paths: Sequence[Path]) -> tuple[int, int]:
    """Return (width, height) of the largest version of an image: stylised versions may be cropped."""
    sizes = []
    for path in paths:
        try:
            with open_image(path) as image:
                sizes.append(image.size)
        except Exception as error:  # a corrupt file can make the decoders raise any exception
            raise BadInput(f"{path} cannot be read as an image: replace or remove it") from error
    return max(sizes, key=lambda size: size[0] * size[1])
