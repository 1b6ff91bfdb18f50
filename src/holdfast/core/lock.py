"""One process at a time on an output folder: a small file that says which, and that a dead process does not keep."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.core.errors import BadInput
from holdfast.core.files import cannot_write

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
        raise cannot_write(path, error) from error


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
