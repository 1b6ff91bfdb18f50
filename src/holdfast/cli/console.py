"""What the command line shows: sentences and bars on stderr, results on stdout, JSON for machines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment, Segments
from rich.text import Text

from holdfast.core import processes
from holdfast.core.errors import escape_control, one_line

if TYPE_CHECKING:
    from holdfast.record import RunRecord
    from holdfast.run.progress import ProgressListener

SHOWN = 16  # runs with a bar, where more are under way at once
EVERY = 30.0  # seconds between two lines about runs that are done


def say(sentence: str, *, anyone: bool = False) -> None:
    """A sentence for a person, on stderr; of several processes the first alone says it, unless `anyone` may."""
    if not anyone and not processes.is_first():
        return
    text = escape_control(" ".join(sentence.split()))
    Console(stderr=True, highlight=False, soft_wrap=True).print(text, markup=False, emoji=False)


def show(thing: Any) -> None:
    """A result for a person, on stdout."""
    if not processes.is_first():
        return
    width = None if sys.stdout.isatty() else 200  # a file or a pipe has no edge to wrap at
    console = Console(highlight=False, width=width)
    if isinstance(thing, str):  # a domain called [red] is a name, not markup
        console.print(escape_control(thing), soft_wrap=True, markup=False, emoji=False)
    else:
        parts = [Segment(escape_control(part.text), part.style) for part in console.render(thing)]
        console.print(Segments(parts), crop=False)


def show_records(records: Sequence[RunRecord], metric: str) -> None:
    """The table of these records, and which methods differ from the baseline by more than chance."""
    from holdfast.report.significance import against_baseline, baseline_note, by_example, by_example_note
    from holdfast.report.table import rows
    from holdfast.report.terminal import rich_table

    show(rich_table(rows(records, metric), metric))
    tested = baseline_note(against_baseline(records, metric), metric) or by_example_note(by_example(records))
    if tested is not None:
        say(tested)


def give_json(document: Any, *, anyone: bool = False) -> None:
    """The one document a machine reads, on stdout."""
    if anyone or processes.is_first():
        ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        sys.stdout.write(json.dumps(document, allow_nan=False, ensure_ascii=ascii_only) + "\n")


def fail(sentence: str) -> NoReturn:
    """The sentence on stderr, or as JSON on stdout where --json was asked for; exit code 2."""
    sentence = one_line(sentence)
    if not may_report():
        sys.exit(2)
    if "--json" in sys.argv:
        give_json({"error": sentence}, anyone=True)
    else:
        say(f"error: {sentence}", anyone=True)
    sys.exit(2)


def may_report() -> bool:
    """Of several processes that end together, one says why."""
    if processes.world_size() == 1:
        return True
    from holdfast.core import parallel

    return parallel.may_report()


def _lines() -> ProgressListener:
    from holdfast.run.progress import ProgressListener

    class Lines(ProgressListener):
        def start(self, total: int, finished: int) -> None:
            say(f"{finished} of {total} runs are done already" if finished else f"runs: {total}")
            self.total, self.done, self.said = total, finished, time.monotonic()

        def end(self, record: RunRecord) -> None:
            self.done += 1
            if time.monotonic() - self.said > EVERY:
                self.said = time.monotonic()
                say(f"{self.done} of {self.total} runs are done")

    return Lines()


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "", style="cyan")


@contextmanager
def watching(quiet: bool) -> Iterator[ProgressListener]:
    """Bars for runs, steps and encoding, with rates and the time left; plain lines where stderr is no terminal."""
    from holdfast.run.progress import ProgressListener

    silent = quiet or not processes.is_first()
    if silent or not sys.stderr.isatty():
        yield ProgressListener() if silent else _lines()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        class Bars(ProgressListener):
            def __init__(self) -> None:
                self.runs = self.run = self.encode = None
                self.others: dict[str, TaskID] = {}

            def encoding(self, done: int, total: int) -> None:
                if self.encode is None:
                    self.encode = bars.add_task("encoding", total=total)
                bars.update(self.encode, completed=done, visible=done < total)

            def start(self, total: int, finished: int) -> None:
                if finished:
                    say(f"{finished} of {total} runs are done already")
                self.runs = bars.add_task("runs", total=total, completed=finished)

            def begin(self, name: str, steps: int) -> None:
                self.close()  # one that diverged has no end
                self.run = bars.add_task(escape_control(name), total=steps)

            def worker_steps(self, id: str, name: str, done: int, steps: int) -> None:
                if done >= steps:
                    if id in self.others:
                        bars.remove_task(self.others.pop(id))
                elif id in self.others:
                    bars.update(self.others[id], completed=done)
                elif len(self.others) < SHOWN:
                    self.others[id] = bars.add_task(escape_control(name), total=steps, completed=done)

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
