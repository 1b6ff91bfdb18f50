"""Figures of the user guide: python -m studies.guide runs the code of docs/guide.md and writes docs/images/guide/*.svg.

The blocks save their figures in the working directory, which is a temporary one here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guide.md"
IMAGES = ROOT / "docs" / "images" / "guide"
LARGEST = 40_000  # bytes per figure
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, which is smaller and can be read aloud
    "svg.hashsalt": "holdfast",  # equal ids in every run
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def sections() -> dict[str, str]:
    """Return the text of each section of the guide by its title."""
    pieces = re.split(r"^## (.+)\n", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def blocks() -> list[str]:
    """Return the Python blocks of the guide."""
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def figures() -> list[str]:
    """Return the names of the figures that the guide shows."""
    return re.findall(r"\(images/guide/([\w-]+\.svg)\)", PAGE.read_text(encoding="utf-8"))


def draw(folder: Path) -> list[Path]:
    """Run the blocks in a temporary folder and write their figures to another one."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    namespace: dict[str, Any] = {"__name__": "guide"}
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work), pyplot.rc_context(STYLE):
        for number, block in enumerate(blocks(), 1):
            exec(compile(block, f"guide.md, block {number}", "exec", dont_inherit=True), namespace)
        pyplot.close("all")
        folder.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(name, folder / name)) for name in figures()]


def main() -> None:
    """Draw all figures; a figure that is too large for the repository is an error."""
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # no date in the files
    for path in draw(IMAGES):
        size = path.stat().st_size
        sys.stdout.write(f"{size:6,} bytes  {path.relative_to(ROOT)}\n")
        if size > LARGEST:
            sys.exit(f"{path.name} has {size:,} bytes, the limit is {LARGEST:,}: draw fewer points")


if __name__ == "__main__":
    main()
