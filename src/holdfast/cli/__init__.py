"""The command line: one file a verb, each calls one function of the library."""

from __future__ import annotations

import io
import os
import signal
import sys
from functools import partial
from types import FrameType
from typing import NoReturn

import typer

from holdfast.cli import (
    adapt,
    audit,
    bench,
    compare,
    demo,
    export,
    fit,
    listing,
    predict,
    pretrain,
    report,
    reproduce,
    rollback,
    serve,
    sweep,
)
from holdfast.cli.console import fail, may_report, say
from holdfast.cli.options import Once
from holdfast.core import processes

app = typer.Typer(
    name="holdfast",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Models that hold when the domain shifts.\n\n"
    "Start with `holdfast demo`, then `holdfast compare YOUR.csv` on a table with columns text, label and domain.",
)
verb = partial(app.command, cls=Once)
verb("demo")(demo.demo)
verb("audit")(audit.audit)
verb("compare")(compare.compare)
verb("sweep")(sweep.sweep)
verb("fit")(fit.fit)
verb("adapt")(adapt.adapt)
verb("rollback")(rollback.rollback)
verb("predict")(predict.predict)
verb("serve")(serve.serve)
verb("export")(export.export)
verb("pretrain")(pretrain.pretrain)
verb("reproduce")(reproduce.reproduce)
verb("report")(report.report)
verb("list")(listing.listing)
verb("bench")(bench.bench)


ClickException: type[Exception] = typer.BadParameter.__mro__[2]  # typer brings its own click from 0.26 on


KEEPS = ("demo", "compare", "sweep", "fit", "adapt", "pretrain", "reproduce")  # verbs that write checkpoints
TOGETHER = ("fit", "compare")  # verbs whose runs several processes can share


class _Terminated(BaseException):
    """A scheduler asked the process to end while nothing was trained that would be saved first."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated


def main() -> None:
    """Run a verb; what the user can mend is one sentence and exit code 2, never a traceback.

    A run that was stopped ends with 128 plus the number of the signal: 130 for Ctrl-C, 143 for a scheduler's SIGTERM.
    """
    from holdfast.core.errors import BadInput
    from holdfast.core.files import path_error

    before = signal.signal(signal.SIGTERM, _terminate)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that has no emoji gets their numbers
    try:
        _check_verb()
        code = app(standalone_mode=False)
    except BadInput as error:
        fail(str(error))
    except typer.Exit as error:
        code = error.exit_code
        if code == 130:  # how typer tells of a keyboard interrupt
            _at_once()
    except ClickException as error:
        fail(f"{error.format_message()} (see `holdfast --help`)")  # pyright: ignore[reportAttributeAccessIssue]
    except (KeyboardInterrupt, typer.Abort):
        _at_once()
        code = 130
    except _Terminated:
        _at_once()
        code = 143
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        if error.errno is None:  # not of the system, but of a library that says so
            raise
        fail(str(path_error(error)))
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            fail("the device has too little memory: use a smaller --batch, a smaller encoder or --device cpu")
        if type(error).__name__ != "Interrupted":
            if not may_report():
                sys.exit(1)
            raise
        say("stopped; everything so far is saved, and the same command goes on from there")
        code = 128 + (error.args[0] if error.args else signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)
    sys.exit(code if isinstance(code, int) else 0)


def _at_once() -> None:
    if may_report():
        more = "; the same command goes on from the last checkpoint" if _verb() in KEEPS else ""
        say(f"stopped at once{more}", anyone=True)


def _verb() -> str:
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _check_verb() -> None:
    """One sentence where several processes were started for what one of them does."""
    from holdfast.core.errors import BadInput

    asked = _verb()
    if processes.world_size() > 1 and asked and asked not in TOGETHER:
        raise BadInput(
            f"{processes.world_size()} processes were started, and holdfast {asked} runs in one: start it without "
            f"torchrun, which is for {' and '.join(TOGETHER)}"
        )
