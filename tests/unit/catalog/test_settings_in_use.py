"""Every setting that is no number is set in a recipe, a record, a document, a study or the library itself."""

from __future__ import annotations

import gzip
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from holdfast import catalog
from holdfast.core.settings import settings_class

ROOT = Path(__file__).parents[3]
SOURCES = ("lab/**/*.toml", "lab/**/*.py", "studies/*.py", "docs/**/*.md", "README.md", "src/holdfast/catalog/*.py")
GENERATED = re.compile(r"<!-- table: .*?<!-- end -->", re.DOTALL)
NUMBERS = {"int", "float", "int | None", "float | None", "Sequence"}


@cache
def texts() -> str:
    """Return everything in which a setting can be set, without the tables that list all settings."""
    paths = [path for pattern in SOURCES for path in ROOT.glob(pattern)]
    written = [GENERATED.sub("", path.read_text(encoding="utf-8")) for path in paths]
    records = [gzip.decompress(path.read_bytes()).decode() for path in (ROOT / "results").rglob("*.gz")]
    options = {match for text in records for match in re.findall(r'"\w+_args": ?\{[^{}]*\}', text)}
    return "\n".join([*written, *sorted(options)])


def entries():
    for section in ("methods", "necks", "encoders", "heads", "predictions"):
        for name, entry in catalog.SECTIONS[section].items():
            yield section, name, entry


@pytest.mark.parametrize(("section", "name", "entry"), [pytest.param(*each, id=each[1]) for each in entries()])
def test_settings_are_in_use(section, name, entry):
    declared = settings_class(entry.load())
    for field in () if declared is None else fields(declared):
        kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        if str(kind) in NUMBERS or (field.metadata.get("search") and len(field.metadata["search"])):
            continue
        used = re.search(rf'\.{field.name}\b|"{field.name}"|\b{field.name}=|`{field.name}`', texts())
        assert used, f"{section} {name}: nothing sets {field.name}"
