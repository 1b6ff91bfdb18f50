"""The figures of docs/scaling.md and of the engines' bench are those of their records, or follow from them."""

import json
from pathlib import Path

import pytest

from holdfast.run.ray import TELL, WINDOW

ROOT = Path(__file__).resolve().parents[2]


def figures(name: str) -> dict[str, float]:
    told = json.loads((ROOT / f"results/bench/{name}-cpu.json").read_text())
    assert all(result["ok"] for result in told["results"])
    return {result["case"]: result["ratio"] for result in told["results"]}


def test_what_was_measured_stands_in_the_page():
    text, seen = (ROOT / "docs/scaling.md").read_text(), figures("cluster")
    rows = {
        "beginning, once": f"{seen['beginning, ms']:.0f} ms",
        "a run in its worker": f"{seen['a run in its worker, ms']:.0f} ms",
        "beside a run, of the slot it has": f"{seen['beside a run, ms of a slot']:.0f} ms",
        "the driver's CPU, a run": f"{driver(seen):.1f} ms",
        "a record": f"{seen['record, bytes']:,.0f} bytes",
    }
    for what, value in rows.items():
        assert f"| {what} | {value} |" in text, what
    said = " ".join(text.split())
    assert f"foretold to take {seen['foretold, s']:.1f} s and took {seen['200 runs, s']:.1f} s" in said
    away = abs(seen["200 runs, s"] / seen["predicted, s"] - 1)
    assert away == pytest.approx(seen["200 runs, relative error of the prediction"], abs=1e-3)
    assert f"{away:.0%} away (bar: 25%)" in said


def driver(seen: dict[str, float]) -> float:
    return seen["CPU time of the driver per run, ms"]


def test_what_is_foretold_follows_from_it():
    text, seen = (ROOT / "docs/scaling.md").read_text(), figures("cluster")
    runs, slots, each = 10_000, 800, 60.0
    beside = seen["overhead per run, ms of a slot"] / 1000
    total = seen["start-up, ms"] / 1000 + runs * (each + beside) / slots
    own = driver(seen) / 1000
    rows = {
        "time": f"{total:.0f} s, of which {beside / each:.1%} is beside the runs",
        "runs that end each second": f"{slots / each:.1f}",
        "the driver's CPU": f"{runs * own:.0f} s in all, {own * slots / each:.1%} of a core",
        "runs so short that the driver is the limit": f"below {slots * own:.1f} s",
        "records": f"{runs * seen['record, bytes'] / 1e6:.1f} MB in 10,000 files",
        "words about steps": f"at most {slots / TELL:.0f} a second, to one actor beside the driver",
        "tasks that the cluster knows of": f"at most {WINDOW:,}, each below 2 kB",
    }
    for what, value in rows.items():
        assert f"| {what} | {value} |" in text, (what, value)


def test_the_bench_of_the_engines_stands_in_its_page():
    text, seen = (ROOT / "docs/benchmarks.md").read_text(), figures("engines")
    ratio, added = seen["ray/local, 200 runs, 2 at once"], seen["overhead of the local engine, ms per run"]
    assert f"| Ray / local processes, 200 runs, two at once | {ratio:.2f} | 1.3 |" in text
    assert f"| the local engine beside bare training | {added:.0f} ms a run | 60 ms |" in text
