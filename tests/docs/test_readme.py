"""The README is short, its generated parts equal the records, and its recording is one of real commands."""

import re
import xml.etree.ElementTree as ET

from studies import readme, recording
from studies.index import PUBLISHED
from tests.docs.test_blocks import ROOT, commands

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_readme_is_short():
    assert TEXT.count("\n") <= 150


def test_results_name_every_system_with_an_interval():
    lines = readme.TABLES["systems"]()[2:]
    assert [re.match(r"\| \[([\w-]+)\]", line)[1] for line in lines] == list(PUBLISHED)
    assert all(len(re.findall(r"\([+-]\d+\.\d+ to [+-]\d+\.\d+\)", line)) == 2 for line in lines)
    rows = [line for line in readme.TABLES["default"]()[2:] if "no records" not in line]
    assert all(len(re.findall(r"\([+-]\d+\.\d+ to [+-]\d+\.\d+\)", line)) == 2 for line in rows)


def test_systems_without_records_are_not_called_engaged():
    lines = readme.system_results({})[2:]
    assert len(lines) == len(PUBLISHED)
    assert all(line.endswith("| not tested | not tested | no |") for line in lines)


def test_session_of_the_readme_ends_in_the_choice():
    lines = recording.comparison_lines()
    assert 12 <= len(lines) <= 26
    assert any(line.startswith("choice: ") for line in lines)
    compared = next(line for line in commands("README.md") if line.startswith("holdfast compare"))
    assert lines[1].removeprefix("$ ") in compared, "the README shows the output of another command"


def test_image_of_the_terminal_is_drawn_from_the_recording():
    text = recording.IMAGE.read_text(encoding="utf-8")
    assert text == recording.svg(recording.stored()), "run `python -m studies.recording`"
    assert len(text) < 60_000
    tree = ET.fromstring(text)
    shown = " ".join("".join(each.itertext()) for each in tree.iter(f"{NAMESPACE}text"))
    for entry in recording.stored():
        assert entry["command"].split()[0] in shown
    assert "choice:" in shown
    assert "\x1b" not in text


def test_text_is_visible_without_motion_and_commands_are_typed():
    text = recording.svg([{"command": "echo <a>", "lines": ["\x1b[1mbold\x1b[0m and \x1b[2;3mdim\x1b[0m", "x" * 150]}])
    assert "prefers-reduced-motion:reduce" in text
    assert "opacity:0}" in text  # only as the first frame of the animation
    tree = ET.fromstring(text)
    lines = list(tree.iter(f"{NAMESPACE}text"))
    assert [line.get("class") for line in lines] == ["c", None, None, None]
    assert "".join(lines[0].itertext()) == "$ echo <a>"
    assert [(span.get("class"), span.text) for span in lines[1]] == [("b", "bold"), (None, "and"), ("d i", "dim")]
    (cells,) = ET.fromstring(recording.svg([{"command": "x", "lines": ["", " a  b c"]}]))[-1:]
    assert [cell.text for cell in cells] == ["a", "b c"]
    assert [int(cell.get("x", 0)) for cell in cells] == [round(16 + 7.83), round(16 + 4 * 7.83)]
    delays = [float(re.search(r"animation-delay:([\d.]+)s", line.get("style", ""))[1]) for line in lines]
    assert delays == sorted(delays)
