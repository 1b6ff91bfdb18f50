"""One table, for a terminal and for a page."""

import io

from rich.console import Console

from holdfast.report.page import write_audit
from holdfast.report.terminal import Grid, matrix, rich_grid


def test_a_grid_reads_the_same_in_a_terminal_and_on_a_page(tmp_path):
    plain = Grid("Sizes", "What <they> are.", ("domain", "rows"), [("[red]", [("1,000", 1000)]), ("b", [("7", 7)])])
    cells = {("[red]", "b"): ("0.30*", 0.3), ("b", "[red]"): ("0.30*", 0.3)}
    pairs = matrix("Apart", "", ["[red]", "b"], cells, corner="domain", top=1.0)
    assert pairs.lines[0] == ("[red]", [("", None), ("0.30*", 0.3)])
    shown = io.StringIO()
    Console(file=shown, width=80).print(rich_grid(plain), rich_grid(pairs))
    assert "[red]" in shown.getvalue()
    assert "1,000" in shown.getvalue()
    about = {"title": "t", "headline": "h & h", "advice": ["do"], "notes": []}
    page = write_audit(tmp_path / "audit.html", grids=[plain, pairs], **about)
    text = page.read_text()
    assert "What &lt;they&gt; are." in text
    assert 'data-value="1000"' in text
    assert "h &amp; h" in text
    assert 'id="map-1"' in text
    assert "Notes" not in text.split("</style>")[1].split("</script>", 1)[1]
