"""Settings of methods: declared once in a dataclass and read by the catalog."""

import inspect
from dataclasses import fields, is_dataclass

import pytest

from holdfast import catalog
from holdfast.core.settings import type_error
from holdfast.search.space import draw

BUILD_ARGUMENTS = {"model", "task", "optimizer", "method"}


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
