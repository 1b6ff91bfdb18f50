"""Terminal output: messages and progress bars on stderr, results on stdout, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NoReturn

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.segment import Segment, Segments
from rich.text import Text

from holdfast.core import processes
from holdfast.core.errors import escape_control, one_line
from holdfast.train.progress import ProgressListener

if TYPE_CHECKING:
    from holdfast.record import RunRecord
    from holdfast.stats.summary import Summary

_starts = [time.monotonic()]  # of the commands of this process
INTERVAL = 10.0  # seconds between progress lines without a terminal
LOADING = 60.0  # seconds after which the first command of a process did not begin with it


def started() -> float:
    """Return the time at which the command began: nearly that of the process, or of a later call of `main`."""
    return _starts[-1]


def begin_command() -> None:
    """Note that a command begins; the first one began with the process, unless that is long ago."""
    now = time.monotonic()
    _starts.append(now if len(_starts) > 1 or now - _starts[0] > LOADING else _starts[0])


def say(*sentences: str, all_processes: bool = False) -> None:
    """Print messages to stderr, one per line; with several processes only the first prints, unless `all_processes`."""
    if all_processes or processes.is_first():
        for sentence in sentences:
            text = escape_control(" ".join(sentence.split()))
            Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False, emoji=False)


def show(result: Any) -> None:
    """Print a result to stdout."""
    if not processes.is_first():
        return
    width = None if sys.stdout.isatty() else 200  # files and pipes do not wrap
    console = Console(highlight=False, width=width)
    if isinstance(result, str):  # a domain called [red] is a name, not markup
        console.print(escape_control(result), soft_wrap=True, markup=False, emoji=False)
    else:
        segments = [Segment(escape_control(segment.text), segment.style) for segment in console.render(result)]
        console.print(Segments(segments), crop=False)


def show_summary(summary: Summary) -> None:
    """Print the table of scores, inactive mechanisms, and which methods differ from the baseline significantly."""
    from holdfast.report.terminal import rich_table
    from holdfast.report.words import baseline_note, by_example_note, inactive_notes

    show(rich_table(summary.shown.rows, summary.metric))
    say(*inactive_notes(summary.engagements))
    note = baseline_note(summary.tests, summary.metric) or by_example_note(summary.by_example)
    if note is not None:
        say(note)


def print_json(document: Any, *, all_processes: bool = False) -> None:
    """Print one JSON document to stdout; paths are texts."""
    if all_processes or processes.is_first():
        ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        sys.stdout.write(json.dumps(document, allow_nan=False, ensure_ascii=ascii_only, default=os.fspath) + "\n")


def fail(sentence: str, *, code: int = 2) -> NoReturn:
    """Print an error to stderr, or as JSON to stdout with --json, and exit."""
    sentence = one_line(sentence)
    if not may_report():
        sys.exit(code)
    if "--json" in sys.argv:
        print_json({"error": sentence}, all_processes=True)
    else:
        say(f"error: {sentence}", all_processes=True)
    sys.exit(code)


def may_report() -> bool:
    """Return whether this process reports the error when several processes end together."""
    if processes.world_size() == 1:
        return True
    from holdfast.core import parallel

    return parallel.may_report()


def _row_of(unit: Any, records: Sequence[RunRecord], failures: Sequence[Any]) -> tuple[str, str, str]:
    """Return name, mean score over targets and details of a finished unit."""
    from holdfast.stats.formatting import format_number

    details = [f"seed {unit.seed}"]
    details += [f"rate x{unit.factor:.2g}"] if unit.factor not in (0.0, 1.0) else []
    if failures:
        return unit.name, "failed", "; ".join([*details, failures[0].cause])
    metric = str(records[0].spec["metric"]) if records else ""
    if records and records[0].spec.get("rows"):
        details.append(f"{records[0].spec['rows']:,} rows")
    scores = [s[metric] for r in records for s in r.stages[-1]["test"].values() if s.get(metric) is not None]
    details.append(f"{sum(r.cost.get('seconds') or 0.0 for r in records):.1f} s for {len(records)} runs")
    score = format_number(sum(scores) / len(scores), metric) if scores else "–"
    return unit.name, score, ", ".join(details)


class Progress(ProgressListener):
    """State of a command: finished units, runs in progress with their steps, and the time left.

    Notes and rows of finished units are passed on when they arrive.
    """

    def __init__(self, show_note: Callable[[str], None], show_unit: Callable[[tuple[str, str, str]], None]) -> None:
        self.show_unit, self.show_note = show_unit, show_note
        self.note = cache(show_note)  # several comparisons of one command may note the same
        self.total = self.done = 0  # of a list of runs
        self.running: dict[str, tuple[str, int, int]] = {}  # id -> name, steps done, steps in all
        self.encoded = ""
        self.left: Callable[[], float | None] = lambda: None

    def describe(self) -> str:
        """Describe the state in one line."""
        from holdfast.core.stopping import format_seconds

        runs = [f"{self.done} of {self.total} runs are finished"] if self.total else []
        now = [f"{name}, step {done} of {steps}" for name, done, steps in list(self.running.values())[:2]]
        left = self.left()
        times = [f"{format_seconds(time.monotonic() - started())} used"]
        times += [] if left is None else [f"at most {format_seconds(left)} left"]
        return "; ".join([*runs, self.encoded or ", ".join(now) or "preparing", ", ".join(times)])

    def limit(self, left: Callable[[], float | None]) -> None:
        self.left = left

    def unit(self, unit: Any, records: Sequence[RunRecord], failures: Sequence[Any]) -> None:
        self.show_unit(_row_of(unit, records, failures))

    def encoding(self, done: int, total: int) -> None:
        self.encoded = f"encoding {done:,} of {total:,} examples" if done < total else ""

    def start(self, total: int, finished: int) -> None:
        if total > 1 or finished:
            self.show_note(f"{finished} of {total} runs are already finished" if finished else f"runs: {total}")
        self.total, self.done = total, finished

    def begin(self, name: str, steps: int) -> None:
        self.running["here"] = (name, 0, steps)

    def step(self, metrics: Any) -> None:
        if "here" in self.running:
            name, done, steps = self.running["here"]
            self.running["here"] = (name, done + 1, steps)

    def worker_steps(self, id: str, name: str, done: int, steps: int) -> None:
        self.encoded = ""
        self.running[id] = (name, done, steps)
        if done >= steps:
            del self.running[id]

    def end(self, record: RunRecord) -> None:
        self.running.pop("here", None)
        self.done += 1


@contextmanager
def progress(quiet: bool) -> Iterator[ProgressListener]:
    """Show a live table of finished units and the present state, or plain lines if stderr is not a terminal."""
    if quiet or not processes.is_first():
        yield ProgressListener()
        return
    with _live_table() if sys.stderr.isatty() else _lines() as listener:
        yield listener


@contextmanager
def _lines() -> Iterator[Progress]:
    """Print one line per finished unit, and the state every `INTERVAL` seconds if it has changed."""
    listener, ended = Progress(say, lambda row: say(f"{row[0]}: {row[1]} ({row[2]})")), Event()

    def report() -> None:
        printed = ""
        while not ended.wait(INTERVAL):
            state, _, times = listener.describe().rpartition(";")
            if state != printed:
                printed = state
                say(f"{state};{times}")

    thread = Thread(target=report, daemon=True)
    thread.start()
    try:
        yield listener
    finally:
        ended.set()
        thread.join()


@contextmanager
def _live_table() -> Iterator[Progress]:
    """Show the finished units as a table that grows, and the present state below it."""
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

    console = Console(stderr=True, highlight=False)
    table = Table("method", "mean score", "details", box=SIMPLE_HEAD, pad_edge=False)

    def view() -> Group:
        state = Text(escape_control(listener.describe()), style="cyan", no_wrap=True, overflow="ellipsis")
        return Group(*([table] if table.rows else []), state)

    listener = Progress(
        lambda note: console.print(Text(escape_control(note)), soft_wrap=True),
        lambda row: table.add_row(*(Text(escape_control(cell)) for cell in row)),
    )
    with Live(console=console, get_renderable=view, refresh_per_second=4, transient=True, redirect_stdout=False):
        yield listener
