"""Examples of the gallery: every script runs and draws, and its page and notebook have the cells of the script."""

import re

import pytest

from studies import gallery
from studies.gallery import Cell, Example, Figure
from tests.graphs import geometric

jupytext = pytest.importorskip("jupytext", reason="the extra dev is not installed")
nbformat = pytest.importorskip("nbformat", reason="the extra dev is not installed")
PATHS = {path.stem: path for path in gallery.scripts()}
SLOW = ("text", "images", "graphs", "tables", "regression", "graft", "plugin")  # several seconds each
MARKS = {name: [pytest.mark.slow] for name in SLOW}
MARKS["graphs"] = [*MARKS["graphs"], pytest.mark.graph]


def test_the_index_lists_every_script():
    assert sorted(PATHS) == sorted(path.stem for path in gallery.SCRIPTS.glob("*.py"))
    assert len(PATHS) >= 8


@pytest.mark.usefixtures("clean_catalog")
@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in PATHS])
def test_script_runs_and_draws(name):
    pytest.importorskip("matplotlib", reason="the extra dev is not installed")
    if name == "graphs":
        geometric()  # the first import warns
    example = gallery.execute(PATHS[name])
    assert example.figures
    assert all(figure.png.startswith(b"\x89PNG") and len(figure.png) > 5_000 for figure in example.figures)
    assert any(cell.printed.strip() for cell in example.cells)
    document = gallery.with_outputs(PATHS[name], example)
    nbformat.validate(document)
    images = [output for cell in document.cells for output in cell.get("outputs", []) if "data" in output]
    assert len(images) == len(example.figures)


@pytest.mark.parametrize("name", PATHS)
def test_notebook_is_valid_and_equals_the_script(name):
    document, text = gallery.notebook(PATHS[name]), PATHS[name].read_text(encoding="utf-8")
    nbformat.validate(document)
    pieces = re.split(r"^# %%(.*)\n", text, flags=re.MULTILINE)[1:]
    assert len(document.cells) == len(pieces) // 2
    for cell, kind, source in zip(document.cells, pieces[::2], pieces[1::2], strict=True):
        assert cell.cell_type == ("markdown" if kind.strip() == "[markdown]" else "code")
        if cell.cell_type == "markdown":
            source = re.sub(r"^# ?", "", source, flags=re.MULTILINE)
        assert cell.source.strip() == source.strip()
    assert len({cell["id"] for cell in document.cells}) == len(document.cells)
    example = gallery.parse(PATHS[name])  # it opens with a question and closes with an answer
    assert "?" in example.cells[0].source
    assert min(len(example.title), len(example.summary) - 60, len(example.cells[-1].source) - 150) > 0
    assert example.cells[-1].kind == "markdown"


def test_page_has_code_output_figures_and_downloads():
    cells = [
        Cell("markdown", "# Title\n\nFirst paragraph."),
        Cell("code", "print(1)", printed="1\n", figures=[Figure(b"x", "A plot"), Figure(b"y", "Another")]),
    ]
    example = Example("name", cells, seconds=2.4)
    page = gallery.page(example)
    assert "```python\nprint(1)\n```\n\n```text\n1\n```" in page
    assert "![A plot](figures/name-0.png)" in page
    assert "![Another](figures/name-1.png)" in page
    assert "{download}`script <name.py>`" in page
    assert "{download}`notebook <name.ipynb>`" in page
    assert (example.title, example.summary) == ("Title", "First paragraph.")


def test_index_has_one_card_per_example(monkeypatch):
    cells = [Cell("markdown", "# Title\n\nFirst paragraph."), Cell("code", "", figures=[Figure(b"x", "A plot")])]
    monkeypatch.setattr(gallery, "GROUPS", {"One": ("a",), "Two": ("b", "c")})
    text = gallery.index([Example(name, cells) for name in "abc"])
    assert text.count("{grid-item-card} Title") == text.count(":img-alt: A plot") == 3
    assert all(f":img-top: figures/{name}-0.png" in text for name in "abc")
    assert text.endswith("a\nb\nc\n```\n")


def test_figures_without_a_title_are_refused(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra dev is not installed")
    path = tmp_path / "untitled.py"
    path.write_text("# %%\nimport matplotlib.pyplot as plt\n\nplt.plot([1, 2])\nplt.show()\n")
    with pytest.raises(ValueError, match="needs a title"):
        gallery.execute(path)
    path.write_text(path.read_text().replace("plt.show()", 'plt.title("Two points")\nplt.show()'))
    assert [figure.title for figure in gallery.execute(path).figures] == ["Two points"]
