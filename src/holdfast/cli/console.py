"""Terminal output: messages and progress bars on stderr, results on stdout, JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Task as BarTask
from rich.segment import Segment, Segments
from rich.text import Text

from holdfast.core import processes
from holdfast.core.errors import escape_control, one_line

if TYPE_CHECKING:
    from holdfast.record import RunRecord
    from holdfast.run.progress import ProgressListener

MAX_BARS = 16  # progress bars of concurrent runs
STARTED = time.monotonic()  # of the command, nearly
INTERVAL = 10.0  # seconds between progress lines without a terminal


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


def show_records(records: Sequence[RunRecord], metric: str) -> None:
    """Print the table of scores, inactive mechanisms, and which methods differ from the baseline significantly."""
    from holdfast.report.engagement import inactive_notes
    from holdfast.report.significance import against_baseline, baseline_note, by_example, by_example_note
    from holdfast.report.table import rows
    from holdfast.report.terminal import rich_table

    show(rich_table(rows(records, metric), metric))
    say(*inactive_notes(records))
    note = baseline_note(against_baseline(records, metric), metric) or by_example_note(by_example(records))
    if note is not None:
        say(note)


def print_json(document: Any, *, all_processes: bool = False) -> None:
    """Print one JSON document to stdout."""
    if all_processes or processes.is_first():
        ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        sys.stdout.write(json.dumps(document, allow_nan=False, ensure_ascii=ascii_only) + "\n")


def fail(sentence: str) -> NoReturn:
    """Print an error to stderr, or as JSON to stdout with --json, and exit with code 2."""
    sentence = one_line(sentence)
    if not may_report():
        sys.exit(2)
    if "--json" in sys.argv:
        print_json({"error": sentence}, all_processes=True)
    else:
        say(f"error: {sentence}", all_processes=True)
    sys.exit(2)


def may_report() -> bool:
    """Return whether this process reports the error when several processes end together."""
    if processes.world_size() == 1:
        return True
    from holdfast.core import parallel

    return parallel.may_report()


def _progress_lines() -> ProgressListener:
    """Return a listener that prints lines; `report` prints one line with the state of the runs."""
    from holdfast.run.progress import ProgressListener
    from holdfast.run.timing import format_seconds

    class Lines(ProgressListener):
        def __init__(self) -> None:
            self.total = self.done = 0
            self.current, self.steps, self.length, self.encoded = "", 0, 0, ""
            self.preparing = "preparing"
            self.left: Any = lambda: None
            self.say_once = cache(say)  # several comparisons of one command may note the same

        def note(self, sentence: str) -> None:
            self.say_once(sentence)

        def estimating(self) -> None:
            self.total, self.current, self.encoded, self.left = 0, "", "", lambda: None
            self.preparing = "estimating the time of the runs"

        def expect(self, left: Any) -> None:
            self.left = left

        def searching(self, name: str) -> None:
            self.preparing = f"searching the learning rate: {name}"

        def encoding(self, done: int, total: int) -> None:
            self.encoded = f"encoding {done} of {total} examples" if done < total else ""

        def start(self, total: int, finished: int) -> None:
            say(f"{finished} of {total} runs are already finished" if finished else f"runs: {total}")
            self.total, self.done = total, finished

        def begin(self, name: str, steps: int) -> None:
            self.current, self.steps, self.length, self.encoded = name, 0, steps, ""

        def worker_steps(self, id: str, name: str, done: int, steps: int) -> None:
            self.current, self.steps, self.length, self.encoded = name, done, steps, ""

        def step(self, metrics: Any) -> None:
            self.steps += 1

        def end(self, record: RunRecord) -> None:
            self.done += 1

        def report(self) -> None:
            """Print runs, method, target, step and time left."""
            run = f"{self.current}, step {self.steps} of {self.length}" if self.current else self.preparing
            left = self.left()
            runs = [f"{self.done} of {self.total} runs are finished"] if self.total else []
            time_left = [] if left is None else [f"about {format_seconds(left)} left"]
            say("; ".join([*runs, self.encoded or run, *time_left]))

    return Lines()


@contextmanager
def _reported(lines: Any) -> Iterator[ProgressListener]:
    """Print a line every `INTERVAL` seconds, also during a long step, until the block ends."""
    ended = Event()

    def print_lines() -> None:
        while not ended.wait(INTERVAL):
            lines.report()

    thread = Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        ended.set()
        thread.join()


class _Rate(ProgressColumn):
    def render(self, task: BarTask) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "", style="cyan")


class _TimeLeft(TimeRemainingColumn):
    """The estimated time of all runs for the bar that counts them, and the remaining time of the other bars."""

    def render(self, task: BarTask) -> Text:
        if "left" not in task.fields:
            return super().render(task)
        from holdfast.run.timing import format_seconds

        left = task.fields["left"]()
        return Text("" if left is None else f"about {format_seconds(left)}", style="cyan")


@contextmanager
def progress(quiet: bool) -> Iterator[ProgressListener]:
    """Show progress bars for runs, steps and encoding, or plain lines if stderr is not a terminal."""
    from holdfast.run.progress import ProgressListener

    silent = quiet or not processes.is_first()
    if silent:
        yield ProgressListener()
        return
    if not sys.stderr.isatty():
        with _reported(_progress_lines()) as lines:
            yield lines
        return
    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), _Rate(), _TimeLeft())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        class Bars(ProgressListener):
            def __init__(self) -> None:
                self.runs = self.run = self.encode = None
                self.workers: dict[str, Any] = {}
                self.say_once = cache(say)

            def note(self, sentence: str) -> None:
                self.say_once(sentence)

            def searching(self, name: str) -> None:
                if self.run is None:
                    self.run = bars.add_task("searching the learning rate", total=None)

            def estimating(self) -> None:
                self.close()
                if self.runs is not None:
                    bars.remove_task(self.runs)
                    self.runs = None

            def expect(self, left: Any) -> None:
                if self.runs is not None:
                    bars.update(self.runs, left=left)

            def encoding(self, done: int, total: int) -> None:
                if self.encode is None:
                    self.encode = bars.add_task("encoding", total=total)
                bars.update(self.encode, completed=done, visible=done < total)

            def start(self, total: int, finished: int) -> None:
                if finished:
                    say(f"{finished} of {total} runs are already finished")
                self.runs = bars.add_task("runs", total=total, completed=finished)

            def begin(self, name: str, steps: int) -> None:
                self.close()  # a diverged run does not call end
                self.run = bars.add_task(escape_control(name), total=steps)

            def worker_steps(self, id: str, name: str, done: int, steps: int) -> None:
                if done >= steps:
                    if id in self.workers:
                        bars.remove_task(self.workers.pop(id))
                elif id in self.workers:
                    bars.update(self.workers[id], completed=done)
                elif len(self.workers) < MAX_BARS:
                    self.workers[id] = bars.add_task(escape_control(name), total=steps, completed=done)

            def step(self, metrics: Any) -> None:
                if self.run is not None:
                    bars.advance(self.run)

            def end(self, record: RunRecord) -> None:
                self.close()
                if self.runs is not None:
                    bars.advance(self.runs)

            def close(self) -> None:
                if self.run is not None:
                    bars.remove_task(self.run)
                    self.run = None

        yield Bars()
