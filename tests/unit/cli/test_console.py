"""What the command line writes: names as they are, whatever a stream can say, and never a steered terminal."""

import io
import json
import sys

import pytest
from rich.table import Table
from rich.text import Text

from holdfast.cli import main
from holdfast.cli.console import fail, print_json, say, show

NAME = "[red]x[/red] :smile: \x1b[31mred"
SHOWN = "[red]x[/red] :smile: \\x1b[31mred"


def test_a_name_is_no_markup_and_no_steering(capsys):
    say(f"domain {NAME}\nis new")
    show(f"{NAME}: 0.5")
    assert capsys.readouterr() == (f"{SHOWN}: 0.5\n", f"domain {SHOWN} is new\n")


def test_a_table_keeps_its_lines_and_steers_nothing(capsys):
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
def test_json_can_be_read_whatever_a_stream_can_say(monkeypatch, encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    print_json({"domain": "🙂 مرحبا é"})
    stream.flush()
    told = stream.buffer.getvalue().decode(encoding)
    assert json.loads(told) == {"domain": "🙂 مرحبا é"}
    assert ("🙂" in told) == (encoding == "utf-8")


def test_a_terminal_without_emoji_gets_their_numbers(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "argv", ["holdfast", "list", "methods"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    show("domain 🙂")
    stream.flush()
    assert stream.buffer.getvalue().endswith(b"domain \\U0001f642\n")


@pytest.mark.parametrize("machine", [False, True])
def test_a_failure_is_one_short_line_and_code_2(monkeypatch, capsys, machine):
    monkeypatch.setattr(sys, "argv", ["holdfast", *(["--json"] if machine else [])])
    with pytest.raises(SystemExit) as ended:
        fail(f"row 3 has '{'a' * 10_000}'\nwhere {NAME} belongs")
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    told = json.loads(out)["error"] if machine else err.removeprefix("error: ").rstrip("\n")
    assert (out == "") != machine
    assert (err == "") == machine
    assert told.startswith("row 3 has 'aaa")
    assert told.endswith(f" where {SHOWN} belongs")
    assert len(told) < 1000
