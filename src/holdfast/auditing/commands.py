"""The command that an audit recommends: it names the clean table if there is one, and is checked before it is shown."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.readers.in_memory import Source
from holdfast.train.resolve import Request, resolve
from holdfast.train.training_data import training_data
from holdfast.train.workspace import Workspace


@dataclass(frozen=True, eq=False)
class Target:
    """Data that a command can name: arguments of the command line, or none for data in memory."""

    dataset: Dataset
    arguments: tuple[str, ...]
    clean: bool = False


def original(
    data: Source, dataset: Dataset, *, columns: Mapping[str, str] | None, data_dir: Path | None, skip_bad: bool = False
) -> Target:
    """Return the data of the audit itself."""
    if not isinstance(data, str | Path):
        return Target(dataset, ())
    words = [str(data), *([] if data_dir is None else ["--data-dir", str(data_dir)])]
    return Target(dataset, (*words, *_column_words(columns), *(["--skip-bad"] if skip_bad else [])))


def cleaned(
    path: Path, dataset: Dataset, rows: int, *, task: str, columns: Mapping[str, str] | None,
    settings: Mapping[str, Any] | None = None,
) -> Target | None:  # fmt: skip
    """Return the clean table if it can be read as the same kind of data, else None (images and graphs are lists)."""
    for names in (columns, None):  # a table that was built has columns of its own
        try:
            table = training_data(path, task=task, columns=names, settings=settings)
        except BadInput:
            continue
        if table.raw.kind == dataset.raw.kind and len(table) == rows:
            return Target(table, (str(path), *_column_words(names)), clean=True)
    return None


def command(
    target: Target, task: str, settings: Mapping[str, Any] | None, methods: Sequence[str], metric: str | None
) -> str:
    """Return the command, or the call in Python for data in memory; raise `BadInput` if it would fail."""
    chosen = {"task": task, **(settings or {})}
    request = Request(methods=methods, metric=metric, settings=chosen, baselines=True, tested=True)
    resolve(request, Workspace(target.dataset, torch.device("cpu"), None))
    names = ",".join(methods)
    if not target.arguments:
        options = {"methods": names, "metric": metric, "settings": chosen if task != "classify" else None}
        words = [f"{key}={value!r}" for key, value in options.items() if value is not None]
        return f"holdfast.compare(data, {', '.join(words)})"
    options = [*(["--task", task] if task != "classify" else []), *(["--metric", metric] if metric else [])]
    options += [word for key, value in (settings or {}).items() for word in ("--set", f"{key}={_setting(value)}")]
    return shlex.join(["holdfast", "compare", *target.arguments, *options, "--methods", names])


def _setting(value: Any) -> str:
    """Return a value as --set parses it."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


def _column_words(columns: Mapping[str, str] | None) -> list[str]:
    return [word for key, name in (columns or {}).items() for word in ("--column", f"{key}={name}")]
