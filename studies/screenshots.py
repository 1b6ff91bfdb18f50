"""Images of the report for the README: python -m studies.screenshots writes them from the records of the demo.

Chromium and the package playwright must be installed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

from holdfast.record import load
from holdfast.report.page import write_report
from holdfast.stats.summary import summarise

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "demo.jsonl.gz"
IMAGES = ROOT / "docs" / "images"
SCHEMES = ("light", "dark")
WIDTH, HEIGHT = 1100, 760  # pixels of the window
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
COLOURS = 64  # per image, which keeps the files small


def chromium() -> str:
    """Return the path of the browser."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if (path := shutil.which(name)) is not None:
            return path
    sys.exit("Chromium is not installed: apt-get install chromium")


def report(folder: Path) -> Path:
    """Write the report of the recorded demo."""
    return write_report(
        summarise(load(RECORDS), "macro_f1"), folder / "report.html",
        title="Holdfast: sentiment of tweets, films, products and news",
    )  # fmt: skip


def main() -> None:
    """Take one image per colour scheme of the first screen of the report."""
    from playwright.sync_api import sync_playwright

    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        page_file = report(Path(name))
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        for scheme in SCHEMES:
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
            page.goto(page_file.as_uri())
            path = IMAGES / f"report-{scheme}.png"
            page.screenshot(path=path)
            with Image.open(path) as opened:
                opened.convert("RGB").quantize(COLOURS).save(path, optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
