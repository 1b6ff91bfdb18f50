"""Check the links of all documents: python -m studies.links lists those that lead nowhere.

Files and anchors inside the repository must exist. Addresses of the web are not opened; their form is checked.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
TARGET = re.compile(r"\]\(\s*<?([^)\s>]*)>?(?:\s+\"[^\"]*\")?\s*\)|<(?:img|a)\b[^>]*?\b(?:src|href)=\"([^\"]*)\"")
HOST = re.compile(r"([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}", re.IGNORECASE)
COLOURS = {"gh-light-mode-only", "gh-dark-mode-only"}  # anchors that GitHub gives to images of one colour scheme


def documents() -> list[Path]:
    """Return the documents of the repository: those in its root and in docs."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document, one per heading, as GitHub and the site derive them."""
    text = FENCED.sub("", path.read_text(encoding="utf-8"))
    counts: Counter[str] = Counter()
    names = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        names.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return names


def links(path: Path) -> Iterator[tuple[int, str]]:
    """Return (line, target) of every link and image outside code."""
    text = path.read_text(encoding="utf-8")
    for code in (FENCED, CODE):
        text = code.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    for match in TARGET.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[1] if match[2] is None else match[2]


def fault(path: Path, target: str) -> str:
    """Return what is wrong with a link of a document, or an empty string."""
    if re.match(r"[a-z][a-z0-9+.-]*:", target, re.IGNORECASE):
        return _address_fault(target)
    name, _, anchor = target.partition("#")
    file = (path.parent / name).resolve() if name else path
    if not file.exists():
        return "the file does not exist"
    if not anchor or anchor in COLOURS:
        return "" if target else "the link is empty"
    if file.suffix != ".md":
        return "only documents have anchors"
    return "" if anchor in anchors(file) else f"{file.name} has no heading with this anchor"


def _address_fault(target: str) -> str:
    """Return what is wrong with the form of an address of the web."""
    address = urlsplit(target)
    if address.scheme == "mailto":
        return "" if re.fullmatch(r"[^@\s]+@[^@\s]+", address.path) else "the mail address is incomplete"
    if address.scheme != "https":
        return f"the address starts with {address.scheme}:, use https:"
    return "" if HOST.fullmatch(address.hostname or "") else "the address has no valid host name"


def faults(paths: list[Path]) -> list[str]:
    """Return one sentence per link that leads nowhere."""
    sentences = []
    for path in paths:
        for line, target in links(path):
            if wrong := fault(path, target):
                place = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
                sentences.append(f"{place}:{line}: link {target!r}: {wrong}")
    return sentences


def main() -> int:
    """Print the faults of all documents."""
    wrong = faults(documents())
    sys.stdout.writelines(f"{sentence}\n" for sentence in wrong)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
