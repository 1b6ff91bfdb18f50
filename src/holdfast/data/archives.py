"""Zip files from elsewhere: what they would unpack to is looked at before anything is unpacked."""

from __future__ import annotations

import zipfile
from pathlib import Path

from holdfast.core.errors import BadInput

SMALL = 1 << 30  # bytes that any archive may unpack to
TIMES = 200  # beyond that, so many times its own size: real arrays and texts shrink less
MEMBERS = 1_000_000


def check_zip(path: Path) -> None:
    """One sentence where a zip would fill the memory; no member can be read beyond the size that it tells here."""
    try:
        with zipfile.ZipFile(path) as opened:
            members = opened.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise BadInput(f"{path} is broken or not a zip ({error}): pack it again") from error
    unpacked, own = sum(each.file_size for each in members), path.stat().st_size
    if unpacked > max(SMALL, TIMES * own) or len(members) > MEMBERS:
        raise BadInput(
            f"{path} would unpack from {own / 2**20:.1f} MiB to {unpacked / 2**30:.1f} GiB in {len(members)} files, as "
            "archives do that are made to fill a disk: unpack it yourself if you trust it, and give smaller files"
        )
