"""The figures in docs/audit.md are those of the record beside it."""

import json
import re
from pathlib import Path

from holdfast.auditing.audit import SAMPLE
from holdfast.auditing.near import BANDS, BITS, CORRELATION, LONGEST, ROWS, WIDTH
from holdfast.auditing.shift import MOST

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/audit.md").read_text()
FOUND = json.loads((ROOT / "results/audit/amazon.json").read_text())


def table(first: str) -> dict[str, list[str]]:
    (rows,) = re.findall(rf"^\| {re.escape(first)} \|.*\n\|[-|]+\|\n((?:\|.+\|\n)+)", TEXT, re.MULTILINE)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]
    return {name: values for name, *values in cells}


def test_copies_are_those_of_the_record():
    told = {
        each["domain"]: [f"{each['examples']:,}", str(each["again"]), str(each["near"]), f"{each['kept']:,}"]
        for each in FOUND["domains"]
    }
    assert table("domain") == told
    (leak,) = FOUND["splits"]
    assert f"{FOUND['duplicates']} reviews are there before" in TEXT
    assert f"{leak['equal']} of {leak['examples']:,} validation reviews" in TEXT
    assert f"a clean table has {FOUND['examples'] - len(FOUND['dropped']):,} rows" in TEXT


def test_distances_and_costs_are_those_of_the_record():
    apart = table("A-distance")
    names = list(apart)
    for each in FOUND["distances"]:
        for one, other in ((each["one"], each["other"]), (each["other"], each["one"])):
            assert apart[one][names.index(other)] == f"{each['mean']:.2f}"
    costs = table("accuracy, %")
    assert set(costs) == {each["domain"] for each in FOUND["baseline"]}
    for each in FOUND["baseline"]:
        inside, outside, everything = (f"{100 * each[key]:.1f}" for key in ("inside", "outside", "everything"))
        cost = f"{100 * (each['inside'] - each['outside']):.1f} ± {100 * each['error']:.1f}"
        assert costs[each["domain"]] == [inside, outside, cost, everything]
    for sentence in (FOUND["headline"], *FOUND["advice"]):
        assert sentence in TEXT


def test_what_the_page_says_of_the_search_is_so():
    assert f"at least 0.8 of all stretches of {WIDTH} characters" in TEXT
    assert f"{BANDS} bands of {ROWS}" in TEXT
    missed = [(1 - s**ROWS) ** BANDS for s in (0.8, 0.7)]
    assert f"misses {round(10000 * missed[0])} in 10,000, by 0.7 {round(1000 * missed[1])} in" in TEXT
    assert f"first {LONGEST:,} characters" in TEXT
    assert f"at most {BITS} of 64 bits" in TEXT
    assert f"correlate by {CORRELATION}" in TEXT
    assert f"at most {SAMPLE:,} rows of a domain ({10 * SAMPLE:,} of all)" in TEXT
    assert f"distances at most {MOST:,}" in TEXT
    speed = json.loads((ROOT / "results/audit/speed.json").read_text())
    assert f"{speed['examples']:,} texts of {speed['characters_each']} characters" in TEXT
    assert f"took {speed['seconds']:.0f} seconds and {speed['peak_memory_mb']} MB" in TEXT
