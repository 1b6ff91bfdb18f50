"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.core.errors import BadInput


def write_whole(path: Path, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a draft beside `path`, then move it there in one step."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(draft)
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return path


def cannot_write(path: Path, error: OSError) -> BadInput:
    """What to tell where a file cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return BadInput(
            f"no space left to write {path}: free some space or choose another folder; "
            "what was finished before is kept, and the same command goes on from there"
        )
    return BadInput(f"cannot write {path} ({error.strerror or error}): choose another place")


def write_text(path: Path, text: str) -> Path:
    """A text file, whole or not at all."""

    def write(draft: Path) -> None:
        draft.write_text(text, encoding="utf-8")

    return write_whole(path, write)


def file_digest(path: Path) -> str:
    """The sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """Where downloads and frozen features are kept: $HOLDFAST_CACHE, or the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("HOLDFAST_CACHE") or f"{base}/holdfast")
