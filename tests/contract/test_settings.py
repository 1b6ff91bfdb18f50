"""Contract of settings: every part declares their limits, and a value out of range names the setting."""

import dataclasses

import pytest

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.settings import settings_class, type_error

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
            for field in dataclasses.fields(declared):
                if wrong_values(field):
                    yield pytest.param(part, getattr(entry, "fixed", {}), field, id=f"{section}-{name}-{field.name}")


@pytest.mark.parametrize(("part", "fixed", "field"), list(cases()))
def test_a_value_out_of_range_names_the_setting(part, fixed, field):
    declared = settings_class(part)
    assert declared is not None
    known = {each.name for each in dataclasses.fields(declared)}
    required = {name: value for name, value in fixed.items() if name in known}
    declared(**required)
    for wrong in wrong_values(field):
        assert field.name in type_error(part, {field.name: wrong})
        with pytest.raises(BadInput, match=f"`{field.name}` must be .*, got"):
            declared(**(required | {field.name: wrong}))
