"""A model folder on one device that answers parsed requests."""

import io
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from holdfast.core.errors import BadInput
from holdfast.core.table import row_schema
from holdfast.folders.format import RECALL, SavedModel, load_model
from holdfast.folders.shared import member_folders
from holdfast.folders.versions import current_folder
from holdfast.prediction.outputs import answers as answers_of
from holdfast.prediction.outputs import calibrate, coverage_table
from holdfast.serve.drift import WINDOW, DriftMonitor
from holdfast.serve.requests import Limits, ParsedRequest, RequestParser, merge
from holdfast.train.measure import code_version
from holdfast.train.workspace import choose_device

MAX_CARD = 1 << 18  # bytes of a model card that are shown
TASK_INPUTS = {"tag": "sentence", "span": "question"}  # other tasks use the input of the encoder


class Service:
    """A model folder on one device that answers requests."""

    def __init__(
        self, folder: str | Path, *, limits: Limits | None = None, device: str = "auto",
        columns: Mapping[str, str] | None = None, coverage: float | None = None, sets: str = "split",
        watch: bool = False, log: Path | None = None, window: int = WINDOW,
    ) -> None:  # fmt: skip
        self.folder, self.limits, self.device = Path(folder), limits or Limits(), choose_device(device)
        self.saved: SavedModel = load_model(self.folder)
        self.stored = self._stored()
        if self.saved.task == "masked":
            raise BadInput("a model of the task masked cannot be served: fit a model of another task with its encoder")
        self.sets = None if coverage is None else calibrate(self.saved, coverage, sets)
        self.drift = None
        if watch or log is not None:
            self.drift = DriftMonitor(self.saved, self.folder, log=log, window=window)
        encoder = self.saved.encoder
        kind = TASK_INPUTS.get(self.saved.task, encoder.takes)
        self.parser = RequestParser(
            kind,
            self.limits,
            size=encoder.size,
            columns=columns,
            features=self.saved.columns,
            schema=self.saved.encoder.schema,
        )

    @property
    def alone(self) -> bool:
        """Whether predictions of different requests would influence each other."""
        return self.saved.depends_on_batch

    def answer(self, requests: Sequence[ParsedRequest]) -> list[dict[str, Any]]:
        """Return one answer per example of these requests, equal to offline predictions."""
        raw = merge(requests)
        if (stored := self._stored()) != self.stored:  # examples were added or deleted
            self.saved, self.stored = load_model(self.folder), stored
        observe = None if self.drift is None else self.drift.observe
        answers = answers_of(self.saved, raw, device=self.device, sets=self.sets, observe=observe)
        ids = [id for request in requests for id in (request.ids or [None] * len(request))]
        return [answer if id is None else {"id": id, **answer} for id, answer in zip(ids, answers, strict=True)]

    def _stored(self) -> list[int]:
        """Return when the stored examples of the model changed last; empty without any."""
        paths = [folder / RECALL for folder in member_folders(self.folder, len(self.saved.members))]
        return [path.stat().st_mtime_ns for path in paths if path.is_file()]

    def model(self) -> dict[str, Any]:
        """Return names, versions and the card; the local path of an encoder is not disclosed."""
        record, card = self.saved.record, current_folder(self.folder) / "README.md"
        spec, release = record.spec, dict(code_version())["version"]
        kind, colon, path = spec["encoder"].partition(":")
        shown = f"{kind}:{Path(path).name}" if colon else spec["encoder"]
        with card.open("rb") if card.is_file() else io.BytesIO() as file:
            text = file.read(MAX_CARD).decode(errors="replace")
        known, schema = dict[str, Any](), self.saved.encoder.schema
        if schema:  # the JSON schema of a row
            known["schema"] = row_schema(schema, self.saved.columns)
        if self.sets is not None:
            about = {"coverage": self.sets.coverage, "method": self.sets.method}
            known["sets"] = {**about, "measured": coverage_table(self.saved, *about.values())}
        return {
            "name": self.folder.resolve().name, "task": self.saved.task, "takes": self.saved.encoder.takes,
            "labels": list(self.saved.classes), **known, "method": spec["method"],
            "encoder": shown, **self.saved.components,
            "trained": {"version": record.code["version"], "torch": record.machine["torch"]},
            "versions": {"holdfast": release, "torch": torch.__version__, "python": platform.python_version()},
            "card": text.replace(spec["encoder"], shown),
        }  # fmt: skip
