"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.core.errors import BadInput, Damaged

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    if error.errno in _FULL:
        return BadInput(
            f"no space left to write {path}: free some space or choose another folder; "
            "what was finished before is kept, and the same command goes on from there"
        )
    return BadInput(f"cannot write {path} ({error.strerror or error}): choose another place")


def refused(error: OSError) -> BadInput:
    """What to tell where the system refuses a path, whatever was to be done with it."""
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a file"
    if error.errno in _FULL:
        return cannot_write(Path(where), error)
    if error.errno in (errno.EACCES, errno.EPERM):
        return BadInput(
            f"{where} may not be used ({error.strerror}): change its permissions or those of the folders above it, or "
            "name another path"
        )
    if error.errno == errno.ENAMETOOLONG:
        return BadInput(f"{where} is longer than a name may be: name a shorter path")
    return BadInput(f"{where} cannot be used ({error.strerror or error}): check the path")


def write_text(path: Path, text: str) -> Path:
    """A text file, whole or not at all."""

    def write(draft: Path) -> None:
        draft.write_text(text, encoding="utf-8")

    return write_whole(path, write)


def read_json(path: Path, *, most: int = 1 << 26) -> Any:
    """The content of a JSON file of at most so many bytes; a file that is none is Damaged."""
    try:
        if (size := path.stat().st_size) > most:
            raise Damaged(f"{path} is {size / 2**20:.0f} MiB large, and such a file has at most {most / 2**20:.0f}")
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        if isinstance(error, BadInput):
            raise
        told = " ".join(str(error).split())[:200]
        raise Damaged(f"{path} is not a JSON file ({told})") from error


def file_digest(path: Path) -> str:
    """The sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """Where downloads and frozen features are kept: $HOLDFAST_CACHE, or the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("HOLDFAST_CACHE") or f"{base}/holdfast")
