"""Images that are one in several domains, and where the parts of things lie in them: parts.csv, or files of CUB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from PIL import Image

from holdfast.core.errors import BadInput
from holdfast.data.raw import Raw
from holdfast.data.readers import formats
from holdfast.data.readers.table import each_row

FILE = "parts.csv"
COLUMNS = ("image", "part", "x", "y")

__all__ = ["Points", "read_parts", "shared_name", "unmatched"]


def shared_name(name: str) -> str:
    """What an image is called in every domain: DOMAIN/CLASS/NAME.png is CLASS/NAME; nothing where folders name none."""
    _, _, inside = name.partition("/")
    return inside.rpartition(".")[0] or inside


def read_parts(raw: Raw, ids: Sequence[str] | None) -> Points:
    """What parts.csv beside the domains says, else CUB's own files; nothing where neither or no folder is there."""
    files = raw.files()
    if not files or ids is None:
        return {}
    folder = files[0]
    for _ in ids[0].split("/"):
        folder = folder.parent
    path = folder / FILE
    if not path.is_file():
        cub = find_cub(folder)
        return {} if cub is None else read_cub(cub, _by_name(files, ids))
    there = formats.peek(path, formats.BLOCK).names
    if missing := [name for name in COLUMNS if name not in there]:
        raise BadInput(f"{path} has no column {' and '.join(missing)}: its columns are {', '.join(COLUMNS)}")
    found: Points = {}
    for number, row in enumerate(each_row(path, COLUMNS), start=1):
        try:
            at = float(row["x"]), float(row["y"])
        except (TypeError, ValueError) as error:
            raise BadInput(
                f"{path}: x and y of row {number} are no numbers: give shares of the image's sides"
            ) from error
        if not all(0 <= value <= 1 for value in at):
            raise BadInput(f"{path}: x and y of row {number} do not lie between 0 and 1: give shares of the sides")
        found.setdefault(str(row["image"]), []).append((str(row["part"]), *at))
    return found


def unmatched(raw: Raw, ids: Sequence[str] | None) -> str:
    """One sentence where places of parts are told, but of other images than these."""
    found, names = read_parts(raw, ids), {shared_name(each) for each in ids or ()}
    if not found or names & found.keys():
        return ""
    return (
        f"{FILE} names none of these images (its first is '{next(iter(found))}'): its column image holds CLASS/NAME "
        f"without an ending, such as '{min(names)}'"
    )


def _by_name(files: Sequence[Path], ids: Sequence[str]) -> dict[str, list[Path]]:
    """CLASS/NAME -> the file of each domain."""
    found: dict[str, list[Path]] = {}
    for path, name in zip(files, ids, strict=True):
        found.setdefault(shared_name(name), []).append(path)
    return found


FOLDER = "CUB_200_2011"
NAMES, PARTS, PLACES = "images.txt", "parts/parts.txt", "parts/part_locs.txt"
ASIDE = ("parts", "attributes")  # folders of annotations beside that of the images
ROUNDING = 1.5  # pixels by which a place may lie outside: they are counted from 1 and have decimals

Points = dict[str, list[tuple[str, float, float]]]  # CLASS/NAME -> parts with x and y, as shares of the image's sides


def find_cub(folder: Path) -> Path | None:
    """Where its files are: beside the folders of the domains, or in CUB_200_2011 beside the data set."""
    found = (path for path in (folder, folder.parent / FOLDER) if (path / PLACES).is_file())
    return next(found, None)


def annotates(folder: Path) -> bool:
    """Whether a folder beside those of the images holds annotations and is no domain."""
    return folder.name in ASIDE and (folder.parent / NAMES).is_file()


def read_cub(root: Path, files: Mapping[str, Sequence[Path]]) -> Points:
    """Visible parts of these images, CLASS/NAME -> their files; sides are those of CUB's own where they are there."""
    named = {key: Path(name) for _, (key, name) in _lines(root / NAMES, 2)}
    parts = {key: name for _, (key, name) in _lines(root / PARTS, 2)}
    sides: dict[str, tuple[int, int]] = {}
    found: Points = {}
    for number, (image, part, x, y, visible) in _lines(root / PLACES, 5):
        where = f"{root / PLACES}: line {number}"
        if image not in named or part not in parts:
            raise BadInput(f"{where} names image {image} and part {part}, but {NAMES} or {PARTS} has no such number")
        name = str(named[image].with_suffix(""))
        if visible == "0" or name not in files:
            continue
        if name not in sides:
            original = root / "images" / named[image]
            sides[name] = _largest([original] if original.is_file() else files[name])
        at = _shares(x, y, sides[name], where=where, name=name)
        found.setdefault(name, []).append((parts[part], *at))
    return found


def _lines(path: Path, columns: int) -> Iterator[tuple[int, list[str]]]:
    """Number and words of each line; the last of two may hold spaces, as `left eye` does."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read ({error}): unpack CUB-200-2011 again") from error
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split(maxsplit=columns - 1)
        if words and len(words) != columns:
            raise BadInput(f"{path}: line {number} has {len(words)} columns instead of {columns}")
        if words:
            yield number, [word.strip() for word in words]


def _shares(x: str, y: str, sides: tuple[int, int], *, where: str, name: str) -> tuple[float, float]:
    try:
        at = float(x), float(y)
    except ValueError as error:
        raise BadInput(f"{where}: x and y are no numbers") from error
    if not all(-ROUNDING <= value <= side + ROUNDING for value, side in zip(at, sides, strict=True)):
        raise BadInput(
            f"{where}: {x}, {y} lies outside of {name}, which has {sides[0]} x {sides[1]} pixels: where images were "
            f"resized, put CUB's own beside the data set as {FOLDER}/images"
        )
    across, down = (min(max(value / side, 0.0), 1.0) for value, side in zip(at, sides, strict=True))
    return across, down


def _largest(paths: Sequence[Path]) -> tuple[int, int]:
    """Width and height of the largest of some versions of an image: what makes styles may cut a few pixels off."""
    found = []
    for path in paths:
        try:
            with Image.open(path) as image:
                found.append(image.size)
        except Exception as error:  # a corrupt file makes the decoders raise almost anything
            raise BadInput(f"{path} cannot be read as an image: mend it or take it out") from error
    return max(found, key=lambda size: size[0] * size[1])
