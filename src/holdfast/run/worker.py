"""A worker process of the local engine: it is given a kit and then jobs, and tells steps and outcomes.

It ends when it is told to or when whoever began it is gone, and saves the run that it is in.
"""

from __future__ import annotations

import queue
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from holdfast.protocols.resume import Interrupted, request_stop
from holdfast.run.jobs import Counted, Job, do

PROGRESS_INTERVAL = 0.5  # seconds between two words about the steps of a run


def main(line: Connection) -> None:
    """Answer until the line ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kit = line.recv()
    given: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(line, given), daemon=True).start()
    workspace = kit.workspace()
    while (job := given.get()) is not None:
        tick = Counted(lambda steps: _tell(line, "steps", steps), time.monotonic, PROGRESS_INTERVAL)
        try:
            _tell(line, "done", do(job, workspace, kit.out, tick=tick, analyse=kit.analyse))
        except Interrupted:
            return
        except Exception:
            _tell(line, "broken", traceback.format_exc())


def _listen(line: Connection, given: queue.SimpleQueue[Job | None]) -> None:
    """Hand jobs on while one may be running, so that a word to stop is heard at once."""
    job = None
    while True:
        with suppress(EOFError, OSError):
            job = line.recv()
        given.put(job)
        if job is None:
            request_stop()
            return
        job = None


def _tell(line: Connection, kind: str, thing: Any) -> None:
    with suppress(OSError):  # nobody listens any more: the run is saved by the word to stop, which came too
        line.send((kind, thing))


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
