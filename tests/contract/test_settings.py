"""Contract of settings: parts declare them once with limits, and something sets every setting that is no number."""

import gzip
import inspect
import re
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import pytest

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.settings import settings_class, type_error
from holdfast.search.space import draw

ROOT = Path(__file__).parents[2]
SOURCES = ("lab/**/*.toml", "lab/**/*.py", "studies/*.py", "docs/**/*.md", "README.md", "src/holdfast/catalog/*.py")
GENERATED = re.compile(r"<!-- table: .*?<!-- end -->", re.DOTALL)
NUMBERS = {"int", "float", "int | None", "float | None", "Sequence"}
BUILD_ARGUMENTS = {"model", "task", "optimizer", "method"}
SECTIONS = ("encoders", "necks", "heads", "methods", "tasks", "predictions")


def wrong_values(field):
    """Return values that the declaration of a field excludes."""
    if field.metadata.get("choices"):
        return ["nonsense" if isinstance(field.default, str | None) else -1]
    edges = [value for _, _, limit in field.metadata.get("bounds", ()) for value in (limit - 1, limit, limit + 1)]
    return [edge for edge in edges if not all(holds(edge, limit) for _, holds, limit in field.metadata["bounds"])]


def cases():
    """Yield the part, its required settings, and a field that has limits; once per settings dataclass."""
    seen = set()
    for section in SECTIONS:
        for name, entry in catalog.SECTIONS[section].items():
            part = entry.load()
            declared = settings_class(part)
            if declared is None or declared in seen:
                continue
            seen.add(declared)
            for field in fields(declared):
                if wrong_values(field):
                    yield pytest.param(part, getattr(entry, "fixed", {}), field, id=f"{section}-{name}-{field.name}")


@pytest.mark.parametrize(("part", "fixed", "field"), list(cases()))
def test_a_value_out_of_range_names_the_setting(part, fixed, field):
    declared = settings_class(part)
    assert declared is not None
    known = {each.name for each in fields(declared)}
    required = {name: value for name, value in fixed.items() if name in known}
    declared(**required)
    for wrong in wrong_values(field):
        assert field.name in type_error(part, {field.name: wrong})
        with pytest.raises(BadInput, match=f"`{field.name}` must be .*, got"):
            declared(**(required | {field.name: wrong}))


@pytest.mark.parametrize("name", catalog.METHODS)
def test_the_catalog_accepts_exactly_the_declared_settings(name):
    entry = catalog.METHODS[name]
    cls = entry.load()
    assert is_dataclass(cls.Settings)
    assert cls.Settings.__dataclass_params__.frozen
    declared = [field.name for field in fields(cls.Settings)]
    assert entry.setting_names() == [key for key in declared if key not in entry.fixed]
    assert {*entry.fixed, *entry.preset, *entry.space} <= set(declared)
    keywords = {p.name for p in inspect.signature(cls).parameters.values() if p.kind is not p.VAR_KEYWORD}
    assert keywords <= BUILD_ARGUMENTS, "settings are fields of the dataclass, not parameters"


@pytest.mark.parametrize("name", catalog.METHODS)
def test_defaults_and_drawn_values_have_the_declared_types(name):
    entry = catalog.METHODS[name]
    defaults = {field.name: field.default for field in fields(entry.load().Settings) if field.name not in entry.fixed}
    assert set(entry.search_space()) <= set(defaults)
    for values in ({**defaults, **entry.preset}, draw(entry.search_space(), 1)):
        assert type_error(entry.load(), values) == ""


def test_settings_with_a_search_space_or_a_help_text():
    settings = {field.name: field.metadata for field in fields(catalog.METHODS["dann"].load().Settings)}
    assert settings["weight"]["search"] == {"log": [1e-2, 1e2]}
    assert settings["weight"]["help"]
    assert catalog.METHODS["dann"].search_space().keys() == {"weight", "hidden", "critic_steps"}
    assert catalog.METHODS["ciga-v1"].search_space().keys() == {"contrast"}  # hinge is fixed
    assert catalog.METHODS["coral"].search_space() == {"weight": {"log": [0.1, 10]}}  # of the entry


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
