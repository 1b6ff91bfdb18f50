"""The command that an audit recommends: it names the clean table if there is one, and is checked before it is shown."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.readers.in_memory import Source
from holdfast.train.resolve import Request, resolve
from holdfast.train.training_data import training_data
from holdfast.train.workspace import Workspace

Target = tuple[Dataset, list[str]]  # data, and the arguments that name it on the command line; none for data in memory


def original(
    data: Source, dataset: Dataset, *, columns: Mapping[str, str] | None, data_dir: Path | None, skip_bad: bool = False
) -> Target:
    """Return the data of the audit itself."""
    if not isinstance(data, str | Path):
        return dataset, []
    folder = [] if data_dir is None else ["--data-dir", str(data_dir)]
    return dataset, [str(data), *folder, *_words("--column", columns), *(["--skip-bad"] if skip_bad else [])]


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
            return table, [str(path), *_words("--column", names)]
    return None


def command(
    target: Target, task: str, settings: Mapping[str, Any] | None, methods: Sequence[str], metric: str | None
) -> str:
    """Return the command, or the call in Python for data in memory; raise `BadInput` if it would fail."""
    (dataset, arguments), chosen, names = target, {"task": task, **(settings or {})}, ",".join(methods)
    request = Request(methods=methods, metric=metric, settings=chosen, baselines=True, tested=True)
    resolve(request, Workspace(dataset, torch.device("cpu"), None))
    if not arguments:
        options = {"methods": names, "metric": metric, "settings": chosen if task != "classify" else None}
        words = [f"{key}={value!r}" for key, value in options.items() if value is not None]
        return f"holdfast.compare(data, {', '.join(words)})"
    options = [*(["--task", task] if task != "classify" else []), *(["--metric", metric] if metric else [])]
    options += _words("--set", settings)
    return shlex.join(["holdfast", "compare", *arguments, *options, "--methods", names])


def _words(option: str, values: Mapping[str, Any] | None) -> list[str]:
    """Return an option per name, with the value as the option parses it."""
    return [word for key, value in (values or {}).items() for word in (option, f"{key}={_text(value)}")]


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)
