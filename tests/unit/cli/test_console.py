"""Terminal output: names are printed literally, every encoding works, control characters are escaped."""

import io
import json
import sys
import time

import pytest
from rich.table import Table
from rich.text import Text

from holdfast.cli import console, main
from holdfast.cli.console import fail, print_json, say, show
from holdfast.train.board import Failure
from holdfast.train.queue import Unit
from tests.unit.report.fake_records import record

NAME = "[red]x[/red] :smile: \x1b[31mred"
SHOWN = "[red]x[/red] :smile: \\x1b[31mred"


def test_names_are_not_markup_and_control_characters_are_escaped(capsys):
    say(f"domain {NAME}\nis new")
    show(f"{NAME}: 0.5")
    assert capsys.readouterr() == (f"{SHOWN}: 0.5\n", f"domain {SHOWN} is new\n")


def test_tables_keep_their_lines_and_escape_control_characters(capsys):
    table = Table("name", box=None)
    table.add_column(Text(NAME))
    for row in range(3):
        table.add_row(f"row {row}", Text("y" * 150))
    show(table)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert SHOWN in lines[0]
    assert all(f"row {row}" in line and "y" * 150 in line for row, line in enumerate(lines[1:]))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
def test_json_is_readable_in_every_encoding(monkeypatch, encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    print_json({"domain": "🙂 مرحبا é"})
    stream.flush()
    text = stream.buffer.getvalue().decode(encoding)
    assert json.loads(text) == {"domain": "🙂 مرحبا é"}
    assert ("🙂" in text) == (encoding == "utf-8")


def test_emoji_are_escaped_for_an_ascii_terminal(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "argv", ["holdfast", "list", "methods"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    show("domain 🙂")
    stream.flush()
    assert stream.buffer.getvalue().endswith(b"domain \\U0001f642\n")


@pytest.mark.parametrize("as_json", [False, True])
def test_failure_is_one_short_line_and_exit_code_2(monkeypatch, capsys, as_json):
    monkeypatch.setattr(sys, "argv", ["holdfast", *(["--json"] if as_json else [])])
    with pytest.raises(SystemExit) as ended:
        fail(f"row 3 has '{'a' * 10_000}'\nwhere {NAME} belongs")
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    message = json.loads(out)["error"] if as_json else err.removeprefix("error: ").rstrip("\n")
    assert (out == "") != as_json
    assert (err == "") == as_json
    assert message.startswith("row 3 has 'aaa")
    assert message.endswith(f" where {SHOWN} belongs")
    assert len(message) < 1000


def test_a_note_is_printed_once_per_command(capsys):
    with console.progress(quiet=False) as listener:
        for sentence in ("2 rows repeat", "2 rows repeat", "3 rows repeat"):
            listener.note(sentence)
    assert capsys.readouterr().err.splitlines() == ["2 rows repeat", "3 rows repeat"]


def finished_unit(listener):
    """Report one finished and one failed unit."""
    runs = [record("mil", 0, {"films": 0.75}), record("mil", 0, {"books": 0.5})]
    listener.unit(Unit("mil", 0, 3.0), runs, [])
    listener.unit(Unit("dann", 1), [], [Failure(Unit("dann", 1), "to-films", f"no {NAME} is known", "error")])


def test_each_finished_unit_is_one_line(capsys):
    with console.progress(quiet=False) as listener:
        finished_unit(listener)
    assert capsys.readouterr().err.splitlines() == [
        "mil: 62.5 (seed 0, rate x3, 20.0 s for 2 runs)", f"dann: failed (seed 1; no {SHOWN} is known)"
    ]  # fmt: skip


def test_quiet_commands_report_no_unit(capsys):
    with console.progress(quiet=True) as listener:
        finished_unit(listener)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_a_table_of_finished_units(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    with console.progress(quiet=False) as listener:
        listener.start(4, 1)
        listener.limit(lambda: 30.0)
        finished_unit(listener)
        listener.worker_steps("a", "coral to-films", 5, 20)
        time.sleep(0.5)
    shown = capsys.readouterr().err
    for text in (
        "1 of 4 runs are already finished",
        "62.5",
        SHOWN,
        "coral to-films, step 5 of 20",
        "at most 30 s left",
    ):
        assert text in shown


def test_the_first_command_begins_with_the_process_unless_that_is_long_ago(monkeypatch):
    now = time.monotonic()
    for age, expected in ((5.0, now - 5), (1000.0, now)):
        monkeypatch.setattr(console, "_starts", [now - age])
        console.begin_command()
        assert console.started() == pytest.approx(expected, abs=2)
    console.begin_command()
    assert console.started() == pytest.approx(now, abs=5)
