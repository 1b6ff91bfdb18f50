"""Types of settings are checked from annotations before anything is built."""

import pytest

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.settings import type_error, without_retired


def part(
    count: int,
    share: float,
    on: bool,
    at: str | list[int],
    width: int | None = None,
    free=None,
    experts: int | dict | None = None,
) -> None:
    """Have parameters of every type."""


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("count", 2.5, "count must be an integer, got 2.5"),
        ("count", "six", "count must be an integer, got 'six'"),
        ("count", True, "count must be an integer, got True"),
        ("share", "hot", "share must be a number, got 'hot'"),
        ("share", float("nan"), "share must be a number, got nan"),
        ("share", float("inf"), "share must be a number, got inf"),
        ("share", [0.5], "share must be a number, got [0.5]"),
        ("on", "maybe", "on must be true or false, got 'maybe'"),
        ("width", 8.0, "width must be an integer, got 8.0"),
        ("experts", "six", "experts must be an integer, a list or settings, got 'six'"),
        ("count", 2, ""), ("share", 1, ""), ("on", False, ""), ("at", [1], ""), ("at", "last", ""), ("width", None, ""),
        ("free", 8.5, ""), ("unknown", 8.5, ""), ("experts", {"count": 2}, ""),
    ],
)  # fmt: skip
def test_type_errors_from_annotations(key, value, message):
    assert type_error(part, {key: value}) == message


def test_settings_of_earlier_versions_are_accepted_at_the_value_that_is_left():
    options = {"inner": "persistent", "critic": "adversarial"}
    assert without_retired(catalog.lookup("methods", "mil").load(), options) == {"critic": "adversarial"}
    assert catalog.check_settings("methods", "mil", options) == [{"critic": "adversarial"}]
    with pytest.raises(BadInput, match="unknown setting of method 'mil' 'inner'"):
        catalog.check_settings("methods", "mil", {"inner": "virtual"})
