"""The faulty file layer: compile it, load it into a process, and choose which operations fail, in forked processes."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("faulty.c")
LIBRARY = "HOLDFAST_FAULTY_LIBRARY"  # names the compiled file in the process that has loaded it
OPERATIONS = ("open", "write", "fsync", "rename", "unlink", "mkdir", "close", "truncate", "read")
ACTIONS = ("fail", "short fail", "short once", "one byte", "kill before", "kill half", "kill after")
CHANGES = OPERATIONS[:-1]  # all but reading
ENDLESS = 1 << 30


class FaultyFiles:
    """Counts file operations below a folder, and lets some of them fail."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ[LIBRARY])
        self.library.faulty_count.restype = self.library.faulty_matched.restype = ctypes.c_long
        self.library.faulty_hits.restype = ctypes.c_long

    def watch(self, folder: Path) -> None:
        """Count the operations below this folder; relative paths are below it."""
        self.library.faulty_root(os.fsencode(folder))

    def arm(
        self, operations: tuple[str, ...], action: str = "fail", error: int = 0, *, first: int = 0, count: int = 1
    ) -> None:
        """Let the action happen at the operations `first` to `first + count - 1` of these kinds, counted from 1."""
        bits = sum(1 << OPERATIONS.index(name) for name in operations)
        self.library.faulty_arm(bits, ACTIONS.index(action), error, ctypes.c_long(first), ctypes.c_long(count))

    @property
    def matched(self) -> int:
        """Number of operations of the armed kinds so far."""
        return self.library.faulty_matched()

    @property
    def hits(self) -> int:
        """Number of operations at which the action happened."""
        return self.library.faulty_hits()


@dataclass(frozen=True)
class Ended:
    """How a forked process ended: its exit code, or the negative number of a signal; and what it printed."""

    code: int
    text: str


def run_forked(work: Callable[[], int], log: Path) -> int:
    """Start a forked process that runs `work`, prints to a file and exits with its result; return the process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(target, 1)
        os.dup2(target, 2)
        code = work()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, log: Path) -> Ended:
    """Wait for a forked process."""
    _, status = os.waitpid(pid, 0)
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return Ended(os.waitstatus_to_exitcode(status), text)


def with_faults(words: list[str], folder: Path) -> int:
    """Run `python -m tests.soak` with these words in a process that has loaded the layer; return its exit code."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.stderr.write("kills and faults need a C compiler: install gcc, or run `python -m tests.soak inputs`\n")
        return 2
    library = folder / "faulty.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library), LIBRARY: str(library)}
    return subprocess.run([sys.executable, "-m", "tests.soak", *words], env=environment, check=False).returncode
