"""Images that are one in several domains, and where the parts of things lie in them: parts.csv, or files of CUB."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.core.errors import BadInput
from holdfast.data import formats
from holdfast.data.cub import Points, find_cub, read_cub
from holdfast.data.raw import Raw
from holdfast.data.rows import each_row

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
