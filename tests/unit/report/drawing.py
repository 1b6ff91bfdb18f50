"""Helpers for tests of figures."""

from __future__ import annotations

import json
import re
from typing import Any

from holdfast.report.labels import grouped
from holdfast.report.sections import RunResult, select_runs
from tests.unit.report.fake_records import analysed

SCRIPT = "<script>alert(1)</script>"  # a name that must be escaped


def figure(html: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the traces and the layout that plotly.js receives."""
    start = re.search(r'Plotly\.newPlot\(\s*"[^"]+",\s*', html)
    assert start is not None
    decoder = json.JSONDecoder()
    traces, end = decoder.raw_decode(html, start.end())
    layout, _ = decoder.raw_decode(html, html.index("{", end))
    return traces, layout


def only_run(name: str, result: dict[str, Any], method: str = "mil") -> RunResult:
    """Return the run that the report shows for a single record with this result."""
    (run,), left_out = select_runs(grouped([analysed(method, **{name: result})]), name)
    assert left_out == 0
    return run
