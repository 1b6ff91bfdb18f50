"""Terminal recording of the README: python -m studies.recording sentences.csv runs real commands and stores the output.

`holdfast audit vader --clean sentences.csv` writes the table. The recording in results/recording.json keeps every line
with its colours, except lines of progress; docs/images/terminal.svg and the lines in the README are drawn from it by
python -m studies.recording, without running anything.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from holdfast.core.environment import VERSION
from studies.tables import RESULTS

RECORDING = RESULTS / "recording.json"
IMAGE = Path(__file__).parents[1] / "docs" / "images" / "terminal.svg"
PER_DOMAIN = 200  # rows of the table
COMMANDS = (
    "head -3 sentences.csv",
    "holdfast compare sentences.csv --methods 'erm,mixup,swad(erm)'",
    "holdfast predict runs/compare/model new.csv --out predictions.csv",
    "cut -d, -f2,4- predictions.csv",
)
NEW = "text\nThe battery died after two days.\nA warm and funny film.\nDer Akku war nach zwei Tagen leer.\n"
PROGRESS = re.compile(r"preparing|encoding|time limit|\d+ of \d+ runs|.+ used, at most|training .* on all|.+ \(seed \d")

COLUMNS = 104  # characters per line
CHARACTER, LINE, MARGIN, SIZE = 7.83, 18, 16, 13  # pixels
STYLE = re.compile(r"\x1b\[([\d;]*)m")
CLASSES = {"1": "b", "2": "d", "3": "i", "31": "red", "32": "green", "33": "yellow", "36": "cyan"}
SHEET = """
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d5dce5;animation:show .2s backwards}
.c{fill:#7cc1ee;animation:type .8s steps(40) backwards}
.b{font-weight:700;fill:#fff}.d{fill:#97a3b1}.i{font-style:italic}
.red{fill:#ff8f87}.green{fill:#8ed081}.yellow{fill:#e8c468}.cyan{fill:#7fd6d6}
@keyframes show{from{opacity:0}}
@keyframes type{from{clip-path:inset(0 100% 0 0)}to{clip-path:inset(0 0 0 0)}}
@media (prefers-reduced-motion:reduce){text,.c{animation:none}}
"""


def record(table: Path) -> dict[str, Any]:
    """Run the commands in a new folder with a sample per domain of a table, and return their output."""
    import pandas

    rows = pandas.read_csv(table).groupby("domain").sample(PER_DOMAIN, random_state=0)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        rows.to_csv(Path(folder, "sentences.csv"), index=False, columns=["text", "label", "domain"])
        Path(folder, "new.csv").write_text(NEW, encoding="utf-8")
        for command in COMMANDS:
            start = time.perf_counter()
            done = subprocess.run(
                command, shell=True, cwd=folder, env=environment, check=True, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            lines = [line for line in done.stdout.splitlines() if not PROGRESS.match(line)]
            entries.append({"command": command, "lines": lines, "seconds": round(time.perf_counter() - start, 1)})
    return {"version": VERSION, "commands": entries}


def spans(line: str) -> list[tuple[str, str]]:
    """Return (text, classes) of a line with escape sequences of colours."""
    active: list[str] = []
    pieces, position = [], 0
    for match in STYLE.finditer(line):
        pieces.append((line[position : match.start()], " ".join(active)))
        position = match.end()
        for code in match[1].split(";"):
            active = [] if code in ("", "0") else [*active, *([CLASSES[code]] if code in CLASSES else [])]
    pieces.append((line[position:], " ".join(active)))
    return [(text, classes) for text, classes in pieces if text]


def plain(line: str) -> str:
    """Return a line without escape sequences."""
    return STYLE.sub("", line).rstrip()


def screen(entries: Sequence[dict[str, Any]]) -> Iterator[tuple[bool, str]]:
    """Return (whether it is a command, line) for every line of the screen; long sentences are wrapped."""
    for entry in entries:
        yield True, f"$ {entry['command']}"
        for line in entry["lines"]:
            if len(plain(line)) <= COLUMNS:
                yield False, line
            else:
                yield from ((False, part) for part in textwrap.wrap(plain(line), COLUMNS))
        yield False, ""


def svg(entries: Sequence[dict[str, Any]]) -> str:
    """Draw the recording: lines appear one after another, and all at once where motion is reduced."""
    lines = list(screen(entries))[:-1]
    width, height = round(2 * MARGIN + COLUMNS * CHARACTER), 2 * MARGIN + LINE * len(lines)
    body, clock = [], 0.3
    for number, (is_command, line) in enumerate(lines):
        clock += 1.2 if is_command and number else 0.12
        y = MARGIN + LINE * number + SIZE
        if plain(line):
            kind = ' class="c"' if is_command else ""
            body.append(f'<text{kind} y="{y}" style="animation-delay:{clock:.2f}s">{_tspans(line)}</text>')
        clock += 1.0 if is_command else 0.0
    label = "Terminal: " + ", then ".join(entry["command"] for entry in entries)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(label, {chr(34): "&quot;"})}"><style>{SHEET}</style>'
        f'<rect width="100%" height="100%" rx="8" fill="#14181d"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _tspans(line: str) -> str:
    """Return the cells of a line, which two spaces separate, at their columns, so that tables align in every font."""
    column, pieces = 0, []
    for text, classes in spans(line):
        kind = f' class="{classes}"' if classes else ""
        for cell in re.finditer(r"\S+(?: \S+)*", text):
            x = MARGIN + (column + cell.start()) * CHARACTER
            pieces.append(f'<tspan x="{x:.0f}"{kind}>{escape(cell[0])}</tspan>')
        column += len(text)
    return "".join(pieces)


def stored() -> list[dict[str, Any]]:
    """Return the commands of the recording in the repository."""
    return json.loads(RECORDING.read_text(encoding="utf-8"))["commands"]


def comparison_lines() -> list[str]:
    """Return the command and output of the comparison up to the choice, as a block for the README."""
    (entry,) = (each for each in stored() if " compare " in each["command"])
    lines = [plain(line) for _, line in screen([entry])]
    last = max(number for number, line in enumerate(lines) if line.startswith("choice: "))
    following = next(number for number in range(last, len(lines)) if lines[number].startswith("On data from"))
    return ["```text", *lines[:following], "```"]


def main(arguments: list[str]) -> None:
    """Record the commands on a table, if one is named, and draw the recording."""
    if arguments:
        RECORDING.write_text(json.dumps(record(Path(arguments[0])), indent=1) + "\n", encoding="utf-8")
    IMAGE.write_text(svg(stored()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
