"""A model folder ready to answer: what it reads, what it says of each example, and what it says of itself.

n examples, c classes
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from holdfast.core.errors import BadInput
from holdfast.data.raw import Raw
from holdfast.saved import SavedModel, load_model
from holdfast.serve.limits import Limits
from holdfast.serve.reading import Asked, Reader, as_one
from holdfast.settings import choose_device
from holdfast.versions import current_folder

READ = {"tag": "sentence", "span": "question"}  # others read what their encoder takes


class Service:
    """Answers requests from one model folder, on one device."""

    def __init__(
        self,
        folder: str | Path,
        *,
        limits: Limits | None = None,
        device: str = "auto",
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.limits, self.device = Path(folder), limits or Limits(), choose_device(device)
        self.saved: SavedModel = load_model(self.folder)
        if self.saved.task == "masked":
            raise BadInput("a model of the task masked cannot be served: fit one of another task with its encoder")
        encoder = self.saved.encoder
        kind = READ.get(self.saved.task, encoder.takes)
        self.reader = Reader(kind, self.limits, size=encoder.size, columns=columns, features=self.saved.columns)

    @property
    def alone(self) -> bool:
        """Whether examples of one request would change the predictions of another."""
        return self.saved.model.together is not None

    def answer(self, lot: Sequence[Asked]) -> list[dict[str, Any]]:
        """What the model says of every example of these requests, as it would offline."""
        raw = as_one(lot)
        if self.saved.answers:
            found = [{"response": text} for text in self.saved.responses(raw, device=self.device)]
        elif self.saved.task in READ:
            told = self.saved.told(raw, device=self.device)
            found = [dict(zip(told, each, strict=True)) for each in zip(*told.values(), strict=True)]
        else:
            found = self._judged(raw)
        ids = [each for asked in lot for each in (asked.ids or [None] * len(asked))]
        return [said if one is None else {"id": one, **said} for one, said in zip(ids, found, strict=True)]

    def _judged(self, raw: Raw) -> list[dict[str, Any]]:
        """Label and probabilities, and how foreign an example is and how undecided the memory, where that is known."""
        judged, names = self.saved.judge(raw, device=self.device), self.saved.classes
        found = [
            {"label": names[row.argmax()], "probabilities": dict(zip(names, row.tolist(), strict=True))}
            for row in judged.probabilities
        ]
        for name, values in (("foreign", judged.foreign), ("undecided", judged.undecided)):
            for said, value in zip(found, [] if values is None else values.tolist(), strict=values is not None):
                said[name] = value
        return found

    def model(self) -> dict[str, Any]:
        """What is served: names and versions, and the card; a folder that an encoder came from is not told."""
        record, card = self.saved.record, current_folder(self.folder) / "README.md"
        spec = record.spec
        shown = spec["encoder"]
        kind, colon, place = shown.partition(":")
        if colon:
            shown = f"{kind}:{Path(place).name}"
        text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
        return {
            "name": self.folder.resolve().name,
            "task": self.saved.task,
            "takes": self.saved.encoder.takes,
            "labels": list(self.saved.classes),
            "method": spec["method"],
            "encoder": shown,
            **self.saved.parts,
            "trained": {"version": record.code["version"], "torch": record.machine["torch"]},
            "versions": {"holdfast": _release(), "torch": torch.__version__, "python": platform.python_version()},
            "card": text.replace(spec["encoder"], shown),
        }


def _release() -> str:
    try:
        return version("holdfast")
    except PackageNotFoundError:
        return "unknown"
