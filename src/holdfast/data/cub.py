"""Where the parts of birds lie, as CUB-200-2011 is published: images.txt, parts/parts.txt and parts/part_locs.txt.

Wah et al. (2011); coordinates are pixels of its own images, so they are told as shares of the sides of these
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from PIL import Image

from holdfast.core.errors import BadInput

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
