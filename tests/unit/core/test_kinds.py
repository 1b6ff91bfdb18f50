"""Settings of the wrong kind are told before anything is built, in one sentence."""

from __future__ import annotations

import pytest

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.kinds import wrong_kind


def part(
    count: int,
    share: float,
    on: bool,
    at: str | list[int],
    width: int | None = None,
    free=None,
    experts: int | dict | None = None,
) -> None:
    """With settings of every kind."""


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("count", 2.5, "count is a whole number, not 2.5"),
        ("count", "six", "count is a whole number, not 'six'"),
        ("count", True, "count is a whole number, not True"),
        ("share", "hot", "share is a number, not 'hot'"),
        ("share", float("nan"), "share is a number, not nan"),
        ("share", float("inf"), "share is a number, not inf"),
        ("share", [0.5], "share is a number, not [0.5]"),
        ("on", "maybe", "on is true or false, not 'maybe'"),
        ("width", 8.0, "width is a whole number, not 8.0"),
        ("experts", "six", "experts is a whole number, a list or settings, not 'six'"),
        ("count", 2, ""), ("share", 1, ""), ("on", False, ""), ("at", [1], ""), ("at", "last", ""), ("width", None, ""),
        ("free", 8.5, ""), ("unknown", 8.5, ""), ("experts", {"count": 2}, ""),
    ],
)  # fmt: skip
def test_what_annotations_say(key, value, told):
    assert wrong_kind(part, {key: value}) == told


@pytest.mark.parametrize(
    ("section", "name", "given", "told"),
    [
        ("necks", "experts", {"count": 2.5}, "neck 'experts': count is a whole number, not 2.5"),
        ("necks", "experts", {"temperature": "hot"}, "neck 'experts': temperature is a number, not 'hot'"),
        ("necks", "experts", {"at": 8.5}, "neck 'experts': at is a text, a list or settings, not 8.5"),
        ("necks", "experts", {"capacity": float("nan")}, "neck 'experts': capacity is a number, not nan"),
        ("necks", "wide", {"times": 1.5}, "neck 'wide': times is a whole number, not 1.5"),
        ("encoders", "vit-tiny", {"patch": 8.0}, "encoder 'vit-tiny': patch is a whole number, not 8.0"),
    ],
)  # fmt: skip
def test_parts_of_the_catalog(section, name, given, told):
    with pytest.raises(BadInput) as said:
        catalog.check(section, name, given)
    assert str(said.value) == told
