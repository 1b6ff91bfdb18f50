from __future__ import annotations

import re

from rich.console import Console

from holdfast.report.console import rich_table
from holdfast.report.table import rows
from tests.unit.report.made import alone, leave_one_out, record


def printed(made, metric="accuracy", *, styled=False) -> str:
    console = Console(width=120, force_terminal=styled, color_system="standard" if styled else None)
    with console.capture() as capture:
        console.print(rich_table(rows(made, metric), metric))
    return capture.get()


def test_means_errors_average_and_worst():
    text = printed(leave_one_out())
    lines = {line.split()[0]: line for line in text.splitlines() if "±" in line and "seeds" not in line}
    assert re.split(r"\s\s+", lines["erm"].strip()) == [
        "erm", "85.0 ± 5.0", "65.0 ± 5.0", "75.0 ± 5.0", "65.0 films",
    ]  # fmt: skip
    assert "82.5 ± 2.5" in lines["mil"]
    assert "accuracy (%)" in text
    assert "2 seeds; ± is the standard error" in text


def test_a_lone_source_has_columns_of_its_own_after_the_worst():
    text = printed([alone("erm", 0, "a", 0.9, {"b": 0.5}), alone("erm", 0, "b", 0.6, {"a": 0.2})])
    head = next(line for line in text.splitlines() if "method" in line)
    assert re.split(r"\s\s+", head.strip())[-3:] == ["worst", "a>a (valid)", "b>b (valid)"]
    line = next(line for line in text.splitlines() if line.strip().startswith("erm "))
    assert re.split(r"\s\s+", line.strip())[-2:] == ["90.0", "60.0"]
    assert "validation rows of the domain that trained, which no average counts" in " ".join(text.split())
    assert "(valid)" not in printed(leave_one_out())


def test_only_the_best_is_bold():
    text = printed(leave_one_out(), styled=True)
    assert "\x1b[1m82.5 ± 2.5\x1b[0m" in text
    assert "\x1b[1m75.0 ± 5.0\x1b[0m" not in text.split("mil")[0]


def test_one_seed_claims_no_error_and_three_decimals_for_nll():
    text = printed([record("erm", 0, {"t": 0.12345}, metric="nll")], "nll")
    assert "0.123 " in text
    assert "1 seed, so no standard error" in text
    assert "±" not in text


def test_missing_cells_and_names_that_look_like_markup():
    made = [*leave_one_out(), record("mldg", 0, {"[red]x[/red]": 0.5})]
    text = printed(made)
    assert "[red]x[/red]" in text
    assert "–" in text
