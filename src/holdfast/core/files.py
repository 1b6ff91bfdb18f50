"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from holdfast.core.errors import BadInput, Damaged

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_atomic(path: Path, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a draft beside `path`, then move it there in one step."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(draft)
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return path


def write_error(path: Path, error: OSError) -> BadInput:
    """What to tell where a file cannot be written."""
    if error.errno in _FULL:
        return BadInput(
            f"no space left to write {path}: free some space or choose another folder; "
            "what was finished before is kept, and the same command goes on from there"
        )
    return BadInput(f"cannot write {path} ({error.strerror or error}): choose another place")


def path_error(error: OSError) -> BadInput:
    """What to tell where the system refuses a path, whatever was to be done with it."""
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a file"
    if error.errno in _FULL:
        return write_error(Path(where), error)
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

    return write_atomic(path, write)


def read_json(path: Path, *, max_bytes: int = 1 << 26) -> Any:
    """The content of a JSON file of at most so many bytes; a file that is none is Damaged."""
    try:
        if (size := path.stat().st_size) > max_bytes:
            raise Damaged(
                f"{path} is {size / 2**20:.0f} MiB large, and such a file has at most {max_bytes / 2**20:.0f}"
            )
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


NAME = ".lock"
_MOST = 10_000  # bytes of a lock; what is longer is none
_held: set[Path] = set()
_guard = threading.Lock()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes off a folder; the process that has it may ask again. Where one is there, say which."""
    path = folder.resolve() / NAME
    with _guard:
        mine, new = path not in _held, not path.parent.exists()
        if mine:
            _take(path, folder)
            _held.add(path)
    try:
        yield
    finally:
        if mine:
            with _guard, suppress(OSError):
                _held.discard(path)
                path.unlink()
                if new:
                    path.parent.rmdir()  # where the run was refused it is empty


def _take(path: Path, folder: Path) -> None:
    told = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "began": _began(os.getpid())})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.parent):
            if path.exists():
                if not _stale(path):
                    raise _taken(path, folder)
                path.unlink()
            with path.open("x", encoding="utf-8") as file:
                file.write(told)
    except FileExistsError:
        raise _taken(path, folder) from None
    except OSError as error:
        raise write_error(path, error) from error


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other process of this machine is in here meanwhile, so that two do not take one stale lock."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system has it
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _read(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_bytes()[:_MOST])
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _stale(path: Path) -> bool:
    """Whether the process that took it is gone; of another machine's processes nothing is known."""
    found = _read(path)
    pid, host = found.get("pid"), found.get("host")
    if not isinstance(pid, int) or not isinstance(host, str) or pid <= 0:
        return True  # locks are written whole, so this was none
    if host != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return pid == os.getpid() or _began(pid) != found.get("began")


def _began(pid: int) -> str:
    """What tells a process from a later one with its number, where the system says it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    return f"{boot}/{fields[19]}"


def _taken(path: Path, folder: Path) -> BadInput:
    found = _read(path)
    return BadInput(
        f"{folder} is in use by process {found.get('pid')} on {found.get('host')}: wait for it, or name another folder "
        f"with --out; if no such process runs any more, delete {path}"
    )
