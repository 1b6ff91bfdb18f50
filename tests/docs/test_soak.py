"""The figures of the soak test in the documentation are those of its records."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_kills_are_those_of_the_record():
    record = json.loads((ROOT / "results" / "soak" / "kills.json").read_text(encoding="utf-8"))
    text = " ".join((ROOT / "docs" / "security.md").read_text(encoding="utf-8").split())
    assert f"{record['kills']:,} kills in {record['seconds']:,.0f} seconds" in text
    assert {failure["command"] for failure in record["failures"]} == {"adapt"}
    assert f"`adapt` had {len(record['failures'])} failures" in text
