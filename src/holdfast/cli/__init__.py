"""The command line: one function per command, each calls one function of the library."""

import io
import os
import signal
import sys
from functools import cache, partial
from importlib.metadata import entry_points
from types import FrameType
from typing import Annotated, NoReturn

import typer

from holdfast.cli import (
    compare,
    demo,
    doctor,
    fit,
    predict,
    report,
    watch,
)
from holdfast.cli.console import begin_command, fail, may_report, say, show
from holdfast.cli.options import SingleUseCommand
from holdfast.core import environment, processes
from holdfast.core.errors import laboratory_error
from holdfast.core.forking import WAITING

app = typer.Typer(
    name="holdfast",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Models that keep working when the data shifts between domains.\n\n"
    "Start with `holdfast demo`, then `holdfast compare YOUR.csv` on a table with columns text, label and domain.",
)
command = partial(app.command, cls=SingleUseCommand)
for run in (
    demo.demo, watch.audit, compare.compare, compare.sweep, fit.fit, fit.adapt, fit.rollback, predict.predict,
    predict.serve, watch.watch, watch.label, predict.export, predict.memory, fit.pretrain, report.report,
):  # fmt: skip
    command(run.__name__)(run)
command("list")(report.list_section)
command("doctor")(doctor.doctor)

ClickException: type[Exception] = typer.BadParameter.__mro__[2]  # typer ships its own click since 0.26
RESUMABLE = ("demo", "compare", "sweep", "fit", "adapt", "pretrain", "reproduce")  # commands that write checkpoints
BUILT_IN = frozenset(each.name for each in app.registered_commands)
DISTRIBUTED = ("fit", "compare")  # commands that torchrun can start


def _show_versions(wanted: bool) -> None:
    if wanted:
        for name, number in environment.versions().items():
            show(f"{name} {number}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_versions,
            help="Print the versions of Holdfast, Python, torch and the installed extras.",
        ),
    ] = False,
) -> None:  # fmt: skip
    pass


@cache
def add_commands() -> frozenset[str]:
    """Add the commands of installed packages, and return their names."""
    points = [point for point in entry_points(group="holdfast.commands") if point.name not in BUILT_IN]
    for point in points:
        command(point.name)(point.load())
    return frozenset(point.name for point in points)


class _Terminated(BaseException):
    """SIGTERM arrived while nothing was training that would be saved first."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise _Terminated


def main() -> None:
    """Run a command; errors a user can fix are one sentence and exit code 2, never a traceback.

    A stopped run exits with 128 plus the number of the signal: 130 for Ctrl-C, 143 for SIGTERM.
    """
    from holdfast.core.errors import BadInput
    from holdfast.core.files import path_error

    begin_command()
    os.environ.update({name: value for name, value in WAITING.items() if name not in os.environ})  # before torch starts
    previous = signal.signal(signal.SIGTERM, _terminate)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # terminals without emoji print their escapes
    try:
        _check_single_process()
        if _name() not in BUILT_IN:
            add_commands()
        code = app(standalone_mode=False)
    except BadInput as error:
        fail(str(error))
    except typer.Exit as error:
        code = error.exit_code
        if code == 130:  # how typer reports a keyboard interrupt
            _say_stopped()
    except ClickException as error:
        if _name() not in add_commands() and (absent := laboratory_error("command", _name())):
            fail(str(absent))
        fail(f"{error.format_message()} (see `holdfast --help`)")  # pyright: ignore[reportAttributeAccessIssue]
    except (KeyboardInterrupt, typer.Abort):
        _say_stopped()
        code = 130
    except _Terminated:
        _say_stopped()
        code = 143
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as error:
        if error.errno is None:  # raised by a library, not by the operating system
            raise
        fail(str(path_error(error)))
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            fail("out of device memory: use a smaller --batch, a smaller encoder or --device cpu")
        if isinstance(error, MemoryError):
            fail("out of memory: use fewer examples, smaller files or a machine with more memory")
        if type(error).__name__ == "NothingFinished":
            fail(str(error), code=1)
        if type(error).__name__ != "Interrupted":
            if not may_report():
                sys.exit(1)
            raise
        say("stopped; all progress is saved, run the same command to continue")
        code = 128 + (error.args[0] if error.args else signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, previous)
    sys.exit(code if isinstance(code, int) else 0)


def _say_stopped() -> None:
    if may_report():
        hint = "; run the same command to continue from the last checkpoint" if _name() in RESUMABLE else ""
        say(f"stopped immediately{hint}", all_processes=True)


def _name() -> str:
    return next((word for word in sys.argv[1:] if not word.startswith("-")), "")


def _check_single_process() -> None:
    """Raise if torchrun started several processes for a command that runs in one."""
    from holdfast.core.errors import BadInput

    name = _name()
    if processes.world_size() > 1 and name and name not in DISTRIBUTED:
        raise BadInput(
            f"torchrun started {processes.world_size()} processes, but `holdfast {name}` runs in one: start it "
            f"without torchrun, which works with {' and '.join(DISTRIBUTED)}"
        )
