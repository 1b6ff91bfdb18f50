"""The gallery: execute docs/gallery/*.py and write their pages, notebooks and figures for the documentation site.

An example is a script in the percent format with markdown cells and code cells. `python -m studies.gallery FOLDER`
writes the gallery to a folder without the rest of the site; `make docs` includes it.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "docs" / "gallery"
RESOLUTION = 110  # dots per inch
STYLE: dict[Any, Any] = {"figure.constrained_layout.use": True, "axes.spines.top": False, "axes.spines.right": False}
GROUPS = {  # names of the scripts in docs/gallery, by section of the index
    "Kinds of data": ("text", "images", "graphs", "tables", "regression"),
    "Models in use": ("prediction_sets", "foreign", "monitoring", "streams"),
    "Your own code": ("graft", "plugin"),
}
FILES = {"script": "py", "notebook": "ipynb"}
INTRODUCTION = """# Gallery

Each example asks one question and answers it with a figure. It runs in seconds on one core, with data that it makes
itself or that scikit-learn contains. Every page has the script and the notebook to download; the figures need
`pip install matplotlib`.
"""


@dataclass(frozen=True)
class Figure:
    """A figure of an example: the image, and its title as the text alternative."""

    png: bytes
    title: str


@dataclass
class Cell:
    """One cell of an example, with the text that its code printed and the figures that it drew."""

    kind: str  # markdown or code
    source: str
    printed: str = ""
    figures: list[Figure] = field(default_factory=list)


@dataclass
class Example:
    """An executed or parsed example."""

    name: str
    cells: list[Cell]
    seconds: float = 0.0

    @property
    def title(self) -> str:
        """Title in the first line."""
        return self.cells[0].source.splitlines()[0].removeprefix("# ")

    @property
    def summary(self) -> str:
        """Paragraph after the title."""
        return " ".join(self.cells[0].source.split("\n\n")[1].split())

    @property
    def figures(self) -> list[Figure]:
        return [figure for cell in self.cells for figure in cell.figures]


def scripts() -> list[Path]:
    """Return the scripts in the order of the index."""
    return [SCRIPTS / f"{name}.py" for names in GROUPS.values() for name in names]


def notebook(path: Path) -> Any:
    """Return the script as a notebook without outputs."""
    import jupytext

    document = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    document.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    for number, cell in enumerate(document.cells):
        cell["id"] = f"{path.stem}-{number}"  # jupytext draws random ones
    return document


def parse(path: Path) -> Example:
    """Read the cells of a script."""
    return Example(path.stem, [Cell(cell.cell_type, cell.source) for cell in notebook(path).cells])


def execute(path: Path) -> Example:
    """Run the cells of a script in a temporary working directory; keep what they print and draw."""
    example, start = parse(path), time.monotonic()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with _matplotlib() as pyplot, tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, cell in enumerate(example.cells):
            if cell.kind != "code":
                continue
            code = compile(cell.source, f"{path.name}, cell {number + 1}", "exec", dont_inherit=True)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
            cell.printed = printed.getvalue()
            cell.figures = [_figure(pyplot.figure(index)) for index in pyplot.get_fignums()]
            pyplot.close("all")
    example.seconds = time.monotonic() - start
    return example


@contextlib.contextmanager
def _matplotlib() -> Iterator[Any]:
    """Return pyplot with the style of the gallery; figures are stored, not shown on a screen."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    show, pyplot.show = pyplot.show, lambda: None  # the backend would warn that it has no screen
    try:
        with pyplot.rc_context(STYLE):
            yield pyplot
    finally:
        pyplot.show = show
        pyplot.close("all")


def _figure(figure: Any) -> Figure:
    titles = [figure.get_suptitle(), *(axes.get_title() for axes in figure.axes)]
    title = next((title for title in titles if title), "")
    if not title:
        raise ValueError("a figure of the gallery needs a title, which is also its text alternative")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=RESOLUTION)
    return Figure(buffer.getvalue(), " ".join(title.split()))


def with_outputs(path: Path, example: Example) -> Any:
    """Return the notebook of an executed example."""
    from nbformat import v4

    document = notebook(path)
    for cell, result in zip(document.cells, example.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs = [v4.new_output("stream", name="stdout", text=result.printed)] if result.printed else []
            for figure in result.figures:
                image = {"image/png": base64.b64encode(figure.png).decode(), "text/plain": figure.title}
                cell.outputs.append(v4.new_output("display_data", data=image))
    return document


def page(example: Example) -> str:
    """Return the page of an example: cells, printed text and figures, and links to the script and the notebook."""
    lines, number = [], 0
    for cell in example.cells:
        if cell.kind == "markdown":
            lines += [cell.source, ""]
            continue
        lines += ["```python", cell.source, "```", ""]
        if cell.printed.strip():
            lines += ["```text", cell.printed.rstrip(), "```", ""]
        for figure in cell.figures:
            lines += [f"![{figure.title}](figures/{example.name}-{number}.png)", ""]
            number += 1
    files = " or ".join(f"{{download}}`{kind} <{example.name}.{suffix}>`" for kind, suffix in FILES.items())
    lines += [f"It ran in {example.seconds:.1f} seconds when this page was built. Download it as a {files}.", ""]
    return "\n".join(lines)


def index(examples: list[Example]) -> str:
    """Return the index of the gallery: one card per example, with its last figure, which has the answer."""
    lines, by_name = [INTRODUCTION], {example.name: example for example in examples}
    for group, names in GROUPS.items():
        lines += [f"## {group}", "", "````{grid} 1 2 3 3", ":gutter: 3", ""]
        for example in (by_name[name] for name in names):
            figure = f"figures/{example.name}-{len(example.figures) - 1}.png"
            lines += [f"```{{grid-item-card}} {example.title}", f":link: {example.name}", ":link-type: doc"]
            lines += [f":img-top: {figure}", f":img-alt: {example.figures[-1].title}", "", example.summary, "```", ""]
        lines += ["````", ""]
    lines += ["```{toctree}", ":hidden:", "", *by_name, "```", ""]
    return "\n".join(lines)


def write(folder: Path) -> list[Example]:
    """Execute all examples and write the gallery to a folder."""
    import nbformat

    (folder / "figures").mkdir(parents=True, exist_ok=True)
    examples = []
    for path in scripts():
        example = execute(path)
        for number, figure in enumerate(example.figures):
            (folder / "figures" / f"{path.stem}-{number}.png").write_bytes(figure.png)
        (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        (folder / f"{path.stem}.md").write_text(page(example), encoding="utf-8")
        nbformat.write(with_outputs(path, example), folder / f"{path.stem}.ipynb")
        examples.append(example)
    (folder / "index.md").write_text(index(examples), encoding="utf-8")
    return examples


def main() -> None:
    """Write the gallery and print the time of each example."""
    if len(sys.argv) != 2 or re.match("-", sys.argv[1]):
        sys.exit("usage: python -m studies.gallery FOLDER")
    for example in write(Path(sys.argv[1])):
        sys.stdout.write(f"{example.seconds:5.1f} s  {example.name}\n")


if __name__ == "__main__":
    main()
