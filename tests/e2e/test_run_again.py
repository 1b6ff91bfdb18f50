"""The command in a report repeats its runs."""

import html
import re
import shlex
from pathlib import Path


def test_command_of_a_report_repeats_its_runs(holdfast, reviews, quick, tmp_path):
    first = holdfast(
        "compare", reviews, "--methods", "erm", "--seeds", "7,", "--steps", 2, *quick, "--no-model", "--json",
        "--no-baselines", "--set", "plan.targets=books", "--set", "neck=projection", "--examples", 12,
        "--out", tmp_path / "first",
    )  # fmt: skip
    assert first.code == 0, first.err
    page = Path(first.json["report"]).read_text(encoding="utf-8")
    (command,) = re.findall(r"<code>(.+?)</code>", page)
    words = shlex.split(html.unescape(command))
    assert words[:3] == ["holdfast", "compare", str(reviews)]
    again = holdfast(*words[1:], "--no-model", "--json", "--out", tmp_path / "again")
    assert again.code == 0, again.err
    assert [r["id"] for r in again.json["records"]] == [r["id"] for r in first.json["records"]]
    assert again.json["table"] == first.json["table"]
