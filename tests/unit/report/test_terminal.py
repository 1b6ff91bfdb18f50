import re
from dataclasses import replace

import pytest
from rich.console import Console

from holdfast.report.page import write_audit
from holdfast.report.terminal import Grid, matrix, rich_grid, rich_table
from holdfast.stats.table import tabulate
from tests.unit.report.fake_records import alone, leave_one_out, record


def printed(records, metric="accuracy", *, styled=False, width=120) -> str:
    console = Console(width=width, force_terminal=styled, color_system="standard" if styled else None)
    with console.capture() as capture:
        console.print(rich_table(tabulate(records, metric).rows, metric))
    return capture.get()


def test_table_has_means_errors_average_and_worst_domain():
    text = printed(leave_one_out())
    lines = {line.split()[0]: line for line in text.splitlines() if "±" in line and "seeds" not in line}
    assert re.split(r"\s\s+", lines["erm"].strip()) == [
        "erm", "85.0 ± 5.0", "65.0 ± 5.0", "75.0 ± 5.0", "65.0 films",
    ]  # fmt: skip
    assert "82.5 ± 2.5" in lines["mil"]
    assert "accuracy (%)" in text
    assert "2 seeds; ± is the standard error" in text


def test_only_the_best_is_bold():
    text = printed(leave_one_out(), styled=True)
    assert "\x1b[1m82.5 ± 2.5\x1b[0m" in text
    assert "\x1b[1m75.0 ± 5.0\x1b[0m" not in text.split("mil")[0]


def test_one_seed_has_no_error_and_nll_three_decimals():
    text = printed([record("erm", 0, {"t": 0.12345}, metric="nll")], "nll")
    assert "0.123 " in text
    assert "1 seed, so no standard error" in text
    assert "±" not in text


def test_missing_cells_and_names_that_look_like_markup():
    records = [*leave_one_out(), record("mldg", 0, {"[red]x[/red]": 0.5})]
    text = printed(records)
    assert "[red]x[/red]" in text
    assert "–" in text


DOMAINS = ("art_painting", "cartoon", "photo", "sketch")


def crossed():
    """Return single-source runs of four domains with distinct scores, three seeds and two methods."""
    runs = []
    for i, source in enumerate(DOMAINS):
        for seed in range(3):
            others = {
                other: 0.3 + (10 * i + j) / 100 + seed / 1000 for j, other in enumerate(DOMAINS) if other != source
            }
            runs += [alone(method, seed, source, 0.9, others) for method in ("erm", "coral")]
    return runs


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_narrow_terminals_show_all_numbers_and_columns(width):
    text = printed(crossed(), width=width)
    flat = " ".join(text.split())
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    for i, j in ((i, j) for i in range(4) for j in range(4) if i != j):
        assert len(re.findall(rf"\b{30 + 10 * i + j}\.1\b", text)) >= 2, (i, j)  # both methods
    assert flat.count("90.0") == 8  # one per source
    assert "average" in text
    assert "worst" in text
    if width >= 80:
        assert flat.count("46.6 ± 0.1") == 2  # the average
        assert flat.count("31.1 art_painting>cartoon") == 2
        assert all(f"{a}>{b}" in text for a in DOMAINS for b in DOMAINS)
        assert text.count("accuracy (%)") == 1
    assert flat.count("method ") == flat.count(" erm ") == {20: 18, 40: 15, 80: 6, 200: 2}[width]  # labels are repeated


def test_long_labels_are_wrapped():
    records = [record("erm", seed, {"books": 0.85, "films": 0.65}, lr=lr) for seed in (0, 1) for lr in (0.1, 0.2)]
    wide = [replace(each, label=each.label + " " + "x" * 90) for each in tabulate(records, "accuracy").rows]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(rich_table(wide, "accuracy"))
    text = capture.get()
    assert "…" not in text
    assert text.count("85.0 ± 0.0") == text.count("75.0 ± 0.0") == 2
    assert text.count("x" * 30) >= 4  # continued on the next line


def test_grids_of_many_domains_are_split():
    names = [f"domain-{i}" for i in range(12)]
    cells = {(a, b): (f"{i}.{j:02}*", 1.0) for i, a in enumerate(names) for j, b in enumerate(names) if a != b}
    console = Console(width=80)
    with console.capture() as capture:
        console.print(rich_grid(matrix("Apart", "", names, cells, top=1.0)))
    text = capture.get()
    assert "…" not in text
    assert all(text_of in text for text_of, _ in cells.values())
    assert max(map(len, text.splitlines())) <= 80


def test_grids_in_the_terminal_and_in_html(tmp_path):
    plain = Grid("Sizes", "What <they> are.", ("domain", "rows"), [("[red]", [("1,000", 1000)]), ("b", [("7", 7)])])
    cells = {("[red]", "b"): ("0.30*", 0.3), ("b", "[red]"): ("0.30*", 0.3)}
    pairs = matrix("Apart", "", ["[red]", "b"], cells, top=1.0)
    assert pairs.lines[0] == ("[red]", [("", None), ("0.30*", 0.3)])
    console = Console(width=80)
    with console.capture() as capture:
        console.print(rich_grid(plain), rich_grid(pairs))
    assert "[red]" in capture.get()
    assert "1,000" in capture.get()
    about = {"title": "t", "headline": "h & h", "advice": ["do"], "notes": []}
    text = write_audit(tmp_path / "audit.html", grids=[plain, pairs], **about).read_text()
    assert "What &lt;they&gt; are." in text
    assert 'data-value="1000"' in text
    assert "h &amp; h" in text
    assert 'id="map-1"' in text
    assert "Notes" not in text.split("</style>")[1].split("</script>", 1)[1]
