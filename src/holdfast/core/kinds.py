"""Whether a setting is of the kind that a part takes: its annotations say it, before anything is built."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
OTHERS = ("a list", "settings")


def wrong_kind(part: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """`count is a whole number, not 2.5` for the first that is wrong, else nothing. What is not annotated is right."""
    hints = _hints(part)
    for key, value in given.items():
        kinds = _kinds(hints.get(key, Any))
        if kinds and value is not None and not _fits(value, kinds):
            return f"{key} is {_either(kinds)}, not {value!r}"
    return ""


def _either(kinds: tuple[type, ...]) -> str:
    """`a text, a list or settings`"""
    told = [[WORDS[kind]] if kind in WORDS else OTHERS for kind in kinds if not (kind is int and float in kinds)]
    words = list(dict.fromkeys(word for some in told for word in some))
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _fits(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds or str in kinds
    if isinstance(value, int):
        return bool({int, float, str} & set(kinds))  # a name may be a number
    if isinstance(value, float):
        return kinds == (str,) or (math.isfinite(value) and float in kinds)
    simple = all(kind in WORDS for kind in kinds)
    return str in kinds if isinstance(value, str) else not simple


@cache
def _hints(part: Callable[..., Any]) -> dict[str, Any]:
    function = part.__init__ if isinstance(part, type) else part
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError):  # names that only a checker of types knows
        return {}


def _kinds(hint: Any) -> tuple[type, ...]:
    """The kinds of a union, None left out; nothing where anything goes."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        parts = [_kinds(each) for each in typing.get_args(hint) if each is not type(None)]
        return tuple(kind for part in parts for kind in part) if all(parts) else ()
    if typing.get_origin(hint) is typing.Literal:
        return tuple({type(value) for value in typing.get_args(hint)})
    found = typing.get_origin(hint) or hint
    if found is Path:
        return (str,)
    return (found,) if isinstance(found, type) and found not in (object, Any) else ()
