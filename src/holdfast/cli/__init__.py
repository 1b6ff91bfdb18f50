"""The command line: one file a verb, each calls one function of the library."""

from __future__ import annotations

import os
import sys

import typer

from holdfast.cli import bench, compare, demo, fit, listing, predict, pretrain, report, reproduce, sweep
from holdfast.cli.console import fail, say

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
app.command("demo")(demo.demo)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)
app.command("fit")(fit.fit)
app.command("predict")(predict.predict)
app.command("pretrain")(pretrain.pretrain)
app.command("reproduce")(reproduce.reproduce)
app.command("report")(report.report)
app.command("list")(listing.listing)
app.command("bench")(bench.bench)


ClickException: type[Exception] = typer.BadParameter.__mro__[2]  # typer brings its own click from 0.26 on


AT_ONCE = "stopped at once; the same command goes on from the last checkpoint"


def main() -> None:
    """Run a verb; what the user can mend is one sentence and exit code 2, never a traceback."""
    from holdfast.core.errors import BadInput

    try:
        code = app(standalone_mode=False)
    except BadInput as error:
        fail(str(error))
    except typer.Exit as error:
        code = error.exit_code
        if code == 130:  # how typer tells of a keyboard interrupt
            say(AT_ONCE)
    except ClickException as error:
        fail(f"{error.format_message()} (see `holdfast --help`)")  # pyright: ignore[reportAttributeAccessIssue]
    except (KeyboardInterrupt, typer.Abort):
        say(AT_ONCE)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        if type(error).__name__ != "Interrupted":
            raise
        say("stopped; everything so far is saved, and the same command goes on from there")
        code = 130
    sys.exit(code if isinstance(code, int) else 0)
