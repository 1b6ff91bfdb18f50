"""The figures of the soak test in the documentation are those of its records."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = {"kills": "kills", "faults": "cases", "inputs": "inputs"}  # section -> count in its record


@pytest.mark.parametrize("section", SECTIONS)
def test_figures_are_those_of_the_record(section):
    record = json.loads((ROOT / "results" / "soak" / f"{section}.json").read_text(encoding="utf-8"))
    text = " ".join((ROOT / "docs" / "security.md").read_text(encoding="utf-8").split())
    count, failures = record[SECTIONS[section]], len(record["failures"])
    assert f"{count:,} {section} in {record['seconds']:,.0f} seconds, {failures} failures" in text


def test_kills_reach_every_command_that_writes():
    record = json.loads((ROOT / "results" / "soak" / "kills.json").read_text(encoding="utf-8"))
    assert {"fit", "compare", "adapt", "rollback", "export", "watch"} <= record["commands"].keys()
    assert all(each["kills"] >= 20 for each in record["commands"].values())
