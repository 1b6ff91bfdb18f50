"""Helpers for tests of figures."""

from typing import Any

from holdfast.report.plots import Chart, Plot
from holdfast.report.sections import RunResult, select_runs
from holdfast.stats.labels import grouped
from tests.unit.report.fake_records import analysed

SCRIPT = "<script>alert(1)</script>"  # a name that must be escaped


def drawn(chart: Chart) -> Plot:
    """Return the plot that a chart was drawn from."""
    assert '<div class="chart' in chart
    return chart.plot


def only_run(name: str, result: dict[str, Any], method: str = "mil") -> RunResult:
    """Return the run that the report shows for a single record with this result."""
    (run,), left_out = select_runs(grouped([analysed(method, **{name: result})]), name)
    assert left_out == 0
    return run
