"""Settings of configurable parts: frozen dataclasses that the catalog, the search and the command line read.

A part points to its dataclass with an attribute named `Settings`; without one, the keyword parameters of its signature
are its settings.
"""

import dataclasses
import inspect
import math
import operator
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, wraps
from itertools import chain
from numbers import Real
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from holdfast.core.errors import BadInput

KIND_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
COMPOUND_NAMES = ("a list", "settings")
LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "least": ("at least", operator.ge), "above": ("above", operator.gt), "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}  # fmt: skip
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
S = TypeVar("S", covariant=True)  # settings
P = ParamSpec("P")


def setting(
    default: Any, *, choices: Collection[Any] = (), search: Mapping[str, Any] | None = None, help: str = "",
    **limits: float,
) -> Any:  # fmt: skip
    """Declare a dataclass field with a default, its allowed values, an optional search space and a help text.

    `limits` are `least`, `above`, `most` and `below`; they apply to every number of a sequence. None is always allowed.
    """
    bounds = [(*LIMITS[name], limit) for name, limit in limits.items()]
    metadata = {"choices": choices, "bounds": bounds, "search": search, "help": help}
    return dataclasses.field(default=default, metadata=metadata)


def unlabelled_setting() -> Any:
    """Declare the setting `unlabelled`: the examples without labels that a part uses."""
    text = "unlabelled examples: target, none, or source, a null control that replaces them by labelled inputs"
    return setting("target", choices=("target", "source", "none"), help=text)


@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
def checked_settings(cls: type[T]) -> type[T]:
    """Turn a class into a frozen dataclass with keyword arguments, which raises BadInput for values out of range.

    `__post_init__` may check several settings together; it runs when each of them is valid.
    """
    checks_together = getattr(cls, "__post_init__", None)

    def check(self: Any) -> None:
        for field in dataclasses.fields(self):
            if problem := value_error(field.name, getattr(self, field.name), field.metadata):
                raise BadInput(problem)
        if checks_together is not None:
            checks_together(self)

    cls.__post_init__ = check  # pyright: ignore[reportAttributeAccessIssue]
    return dataclasses.dataclass(frozen=True, kw_only=True)(cls)


class KeywordDecorator(Protocol[P, S]):
    """Type of `keywords_of`: the last parameter is replaced by the keywords of the settings, which editors show."""

    @overload
    def __call__(self, function: Callable[[T, S], R], /) -> Callable[Concatenate[T, P], R]: ...
    @overload
    def __call__(self, function: Callable[[T, A, S], R], /) -> Callable[Concatenate[T, A, P], R]: ...
    @overload
    def __call__(self, function: Callable[[T, A, B, S], R], /) -> Callable[Concatenate[T, A, B, P], R]: ...


def keywords_of(settings: Callable[P, S]) -> KeywordDecorator[P, S]:
    """Let callers of a function, whose last parameter is such a dataclass, pass its fields as keywords."""
    fields, build = inspect.signature(settings).parameters, typing.cast(Any, settings)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(function)
        *first, last = own.parameters.values()

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            chosen: Any = {name: keywords.pop(name) for name in fields if name in keywords}
            return function(*args, **{last.name: build(**chosen)}, **keywords)

        vars(call)["__signature__"] = own.replace(parameters=[*first, *fields.values()])
        return call

    return typing.cast(Any, decorate)


def value_error(name: str, value: Any, allowed: Mapping[str, Any]) -> str:
    """Return "`top` must be at least 1, got 0" for a value that the metadata of its field excludes, else ""."""
    choices, bounds = list(map(str, allowed.get("choices", ()))), allowed.get("bounds", ())
    numbers = value if isinstance(value, list | tuple) else [value]
    inside = all(isinstance(n, Real) and holds(n, limit) for n in numbers for _, holds, limit in bounds)
    if value is None or (inside and (not choices or str(value) in choices)):
        return ""
    expected = _either(choices) if choices else " and ".join(f"{words} {limit:,}" for words, _, limit in bounds)
    return f"`{name}` must be {expected}, got {value!r}"


def _either(names: Sequence[str]) -> str:
    """`a string, a list or settings`"""
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def log(low: float, high: float) -> dict[str, Any]:
    """Search space: a number, uniform on a logarithmic scale."""
    return {"log": [low, high]}


def even(low: float, high: float) -> dict[str, Any]:
    """Search space: a number, uniform."""
    return {"even": [low, high]}


def choice(*values: Any) -> dict[str, Any]:
    """Search space: one of these values."""
    return {"choice": list(values)}


def whole(low: int, high: int) -> dict[str, Any]:
    """Search space: an integer, uniform on a logarithmic scale."""
    return {"whole": [low, high]}


def settings_class(part: Callable[..., Any]) -> type | None:
    """Return the settings dataclass of a class, of the class of a bound builder, or of a function."""
    owner = getattr(part, "__self__", part)
    declared = getattr(part, "Settings", None) or getattr(owner, "Settings", None)
    return declared if isinstance(declared, type) and dataclasses.is_dataclass(declared) else None


def setting_fields(part: Callable[..., Any]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a part's settings."""
    declared = settings_class(part)
    return () if declared is None else dataclasses.fields(declared)


@cache
def setting_names(part: Callable[..., Any]) -> list[str]:
    """Return every name a part can be configured with: parameters of its signature, then fields of its settings."""
    parameters = inspect.signature(part).parameters.values()
    names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return list(dict.fromkeys([*names, *(field.name for field in setting_fields(part))]))


def setting_defaults(part: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of the fields of a part's settings."""
    return {f.name: f.default for f in setting_fields(part) if f.default is not dataclasses.MISSING}


def retired_settings(**values: Any) -> Mapping[str, Any]:
    """Declare, as the attribute `retired` of a part, settings of earlier versions with the only value that is left."""
    return values


def without_retired(part: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out settings of earlier versions whose value is the only one left, which a part lists as `retired`."""
    retired = getattr(settings_class(part) or getattr(part, "__self__", part), "retired", {})
    return {name: value for name, value in options.items() if name not in retired or value != retired[name]}


def search_space(part: Callable[..., Any]) -> dict[str, Mapping[str, Any]]:
    """Return the search spaces that the fields of a part's settings declare."""
    return {f.name: f.metadata["search"] for f in setting_fields(part) if f.metadata.get("search")}


def type_error(part: Callable[..., Any], options: Mapping[str, Any]) -> str:
    """Return `count must be an integer, got 2.5` for the first option of the wrong type, else an empty string.

    Values out of range are errors too.
    """
    hints, allowed = _hints(part), {field.name: field.metadata for field in setting_fields(part)}
    for key, value in options.items():
        kinds = _kinds(hints.get(key, Any))
        if kinds and value is not None and not _matches(value, kinds):
            return f"{key} must be {_alternatives(kinds)}, got {value!r}"
        if problem := value_error(key, value, allowed.get(key, {})):
            return problem
    return ""


def _alternatives(kinds: tuple[type, ...]) -> str:
    distinct = [kind for kind in kinds if not (kind is int and float in kinds)]
    known = ([KIND_NAMES[kind]] if kind in KIND_NAMES else COMPOUND_NAMES for kind in distinct)
    return _either(list(dict.fromkeys(chain.from_iterable(known))))


def _matches(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds or str in kinds
    if isinstance(value, int):
        return bool({int, float, str} & set(kinds))  # a name may consist of digits
    if isinstance(value, float):
        return kinds == (str,) or (math.isfinite(value) and float in kinds)
    simple = all(kind in KIND_NAMES for kind in kinds)
    return str in kinds if isinstance(value, str) else not simple


@cache
def _hints(part: Callable[..., Any]) -> dict[str, Any]:
    declared = settings_class(part)
    hints = {}
    for annotated in (part.__init__ if isinstance(part, type) else part, declared):
        try:
            hints |= {} if annotated is None else typing.get_type_hints(annotated)
        except (NameError, TypeError):  # names that only exist while type checking
            continue
    return hints


def _kinds(hint: Any) -> tuple[type, ...]:
    """Return the types of a union without None, or nothing if any value is allowed."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        members = [_kinds(member) for member in typing.get_args(hint) if member is not type(None)]
        return tuple(kind for member in members for kind in member) if all(members) else ()
    if typing.get_origin(hint) is typing.Literal:
        return tuple({type(value) for value in typing.get_args(hint)})
    kind = typing.get_origin(hint) or hint
    if kind is Path:
        return (str,)
    return (kind,) if isinstance(kind, type) and kind not in (object, Any) else ()
