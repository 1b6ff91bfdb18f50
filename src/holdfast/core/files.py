"""Atomic writes, file errors in one sentence, and the lock on a folder."""

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, SoftFileLock, Timeout

from holdfast.core.errors import BadInput, Damaged

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
LOCK_NAME = ".lock"
MAX_JSON = 1 << 26  # bytes
_locked: set[Path] = set()  # locks of this process
_guard = threading.Lock()


def write_atomic(path: Path, write: Callable[[Path], object], *, durable: bool = True) -> Path:
    """Let `write` fill a temporary file in the folder of `path`, then rename it to `path`.

    A file that is not `durable` may be incomplete after a crash of the machine: its reader compares a checksum.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(draft)
        if durable:
            with draft.open("rb+") as file:
                os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write a text file atomically; half of a surrogate pair, as JSON may contain, is written as its escape."""
    return write_atomic(path, lambda draft: draft.write_text(text, encoding="utf-8", errors="backslashreplace"))


def write_folder(folder: Path, write: Callable[[Path], object], *, names: Sequence[str]) -> Path:
    """Let `write` fill a draft folder, then replace the entries `names` of `folder` by its entries.

    The first name marks a complete folder: it is removed first and written last. After an error the folder has its
    earlier entries, unless the file system fails while they are moved and does not recover.
    """
    draft, earlier = (folder / f".{os.getpid()}.{name}.draft" for name in ("new", "earlier"))
    moves: list[tuple[Path, Path]] = []
    try:
        for stale in folder.glob(".*.draft"):  # left by a killed process
            if stale.is_dir():
                shutil.rmtree(stale)
        draft.mkdir(parents=True)
        earlier.mkdir()
        with system_errors():
            write(draft)
        written = sorted((path.name for path in draft.iterdir()), key=lambda name: name == names[0])
        present = [name for name in dict.fromkeys((*names, *written)) if (folder / name).exists()]
        for name, source, target in [(n, folder, earlier) for n in present] + [(n, draft, folder) for n in written]:
            os.replace(source / name, target / name)
            moves.append((source / name, target / name))
    except OSError as error:
        try:
            for source, target in reversed(moves):
                os.replace(target, source)
        except OSError:
            earlier = draft  # the only copy of the earlier entries stays
        raise write_error(folder, error) from error
    finally:
        for path in (draft, earlier):
            shutil.rmtree(path, ignore_errors=True)
    return folder


@contextmanager
def system_errors() -> Iterator[None]:
    """Convert exceptions of libraries in Rust to the OSError that they name."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None or isinstance(error, BadInput):
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def write_error(path: Path, error: OSError) -> BadInput:
    """Return the error to raise when a file cannot be written; drafts are not named."""
    path = Path(*(part for part in path.parts if not part.endswith(".draft")))
    if error.errno in _DISK_FULL:
        return BadInput(
            f"no space left to write {path}: free some space or choose another folder, then repeat the command; "
            "it continues after the results that were finished"
        )
    if limited := open_limit(error):
        return limited
    return BadInput(f"cannot write {path} ({error.strerror or error}): choose another path")


def path_error(error: OSError) -> BadInput:
    """Return the error to raise when the operating system refuses a path."""
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a file"
    if error.errno in _DISK_FULL:
        return write_error(Path(where), error)
    if limited := open_limit(error):
        return limited
    if error.errno in (errno.EACCES, errno.EPERM):
        return BadInput(
            f"no permission to use {where} ({error.strerror}): change the permissions of the file and its folders, or "
            "choose another path"
        )
    if error.errno == errno.ENAMETOOLONG:
        return BadInput(f"{where} is longer than the file system allows: choose a shorter path")
    return BadInput(f"{where} cannot be used ({error.strerror or error}): check the path")


def open_limit(error: BaseException) -> BadInput | None:
    """Return the error to raise if a file was not opened because the process has too many open files, else None."""
    code = error.errno if isinstance(error, OSError) else None
    if code not in (errno.EMFILE, errno.ENFILE) and os.strerror(errno.EMFILE) not in str(error):
        return None
    return BadInput("the limit of open files is reached: raise it with `ulimit -n 1024`, or close other programs")


def check_regular(path: Path, *, max_bytes: int | None = None) -> None:
    """Raise `Damaged` if a path is a pipe, a device or another special file, or larger than `max_bytes`."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise Damaged(f"{path} is not a regular file")
    if max_bytes is not None and status.st_size > max_bytes:
        sizes = f"{status.st_size / 2**20:.0f} MiB, but may have at most {max_bytes / 2**20:.0f} MiB"
        raise Damaged(f"{path} has {sizes}")


def read_json(path: Path, *, max_bytes: int = MAX_JSON) -> Any:
    """Return the content of a JSON file; raise `Damaged` if it is not JSON, not a regular file, or too large."""
    try:
        check_regular(path, max_bytes=max_bytes)
        return json.loads(path.read_text(encoding="utf-8"))
    except BadInput:
        raise
    except (ValueError, RecursionError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise Damaged(f"{path} is not a JSON file ({reason})") from error


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """Return the folder of downloads and frozen features: $HOLDFAST_CACHE, or the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("HOLDFAST_CACHE") or f"{base}/holdfast")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes; the process that has the lock may take it again.

    The operating system releases the lock when a process ends. An error names the process that has it.
    """
    path = folder.resolve() / LOCK_NAME
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file, expected a folder: choose another one with --out")
    with _guard:
        lock, is_new = None, not path.parent.exists()
        if path not in _locked:
            lock = _acquire(path, folder)
            _locked.add(path)
    try:
        yield
    finally:
        if lock is not None:
            with _guard:
                _locked.discard(path)
                with suppress(OSError):  # Windows cannot delete an open file; `release` does
                    path.unlink(missing_ok=True)
                lock.release()
                if is_new:
                    with suppress(OSError):
                        path.parent.rmdir()  # only if nothing was written


def _acquire(path: Path, folder: Path) -> FileLock:
    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        if not isinstance(lock, SoftFileLock):  # a soft lock writes its owner itself, in this format
            path.write_text(f"{os.getpid()}\n{socket.gethostname()}\n", encoding="utf-8")
    except Timeout:
        raise BadInput(
            f"{folder} is in use by {_owner(path)}: wait until it ends, or choose another folder with --out"
        ) from None
    except OSError as error:
        raise write_error(path, error) from error
    return lock


def _owner(path: Path) -> str:
    """Describe the process that wrote a lock file."""
    try:
        pid, host, *_ = path.read_text(encoding="utf-8", errors="replace")[:1000].splitlines()
    except (OSError, ValueError):
        return "another process"
    return f"process {pid} on {host}" if pid.isdecimal() else "another process"
