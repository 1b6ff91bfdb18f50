"""Outputs for domains that were left out of training, which a comparison stores with the model it chose.

They are labelled examples of the situation after deployment: predictions of the chosen method for a domain that it has
not seen. Estimates of accuracy and prediction sets are calibrated on them. Shapes: n examples, c classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.core.checkpoint import load_tensors, load_tree, save_tree
from holdfast.core.errors import Damaged
from holdfast.core.seeds import derive
from holdfast.models.mixture import validation_temperature
from holdfast.record import RunRecord
from holdfast.report.labels import is_combined
from holdfast.run.train import outputs_path
from holdfast.run.workspace import Workspace
from holdfast.spec import Spec

FORMAT = 1
MAX_ROWS = 2000  # per domain
MAX_VALUES = 1 << 21  # outputs per domain; with many classes, fewer rows are stored


@dataclass(frozen=True, eq=False)
class LeftOutDomain:
    """Outputs of a model that was trained without this domain, for labelled examples of the domain."""

    name: str
    outputs: np.ndarray  # (n, c) calibrated log-probabilities, or (n, k) outputs of a regression in standardised units
    y: np.ndarray  # (n,) classes, or numbers

    def __post_init__(self) -> None:
        if self.outputs.ndim != 2 or len(self.outputs) != len(self.y) or not np.isfinite(self.outputs).all():
            raise TypeError(f"the outputs for the left-out domain '{self.name}' are not valid")

    @property
    def probabilities(self) -> np.ndarray:
        """Probability of each class, (n, c)."""
        return np.exp(self.outputs.astype(np.float64))


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Outputs for all left-out domains; `predicts` is `classes` or `numbers`, as for a task."""

    predicts: str
    domains: tuple[LeftOutDomain, ...]

    def save(self, path: Path) -> Path:
        """Write one file with the outputs of all domains."""
        entries = [
            {"name": each.name, "outputs": torch.from_numpy(each.outputs), "y": torch.from_numpy(each.y)}
            for each in self.domains
        ]
        return save_tree(path, {"format": FORMAT, "predicts": self.predicts, "domains": entries})

    @staticmethod
    def load(path: Path) -> LeftOut:
        """Read the file; raise TypeError if its content is not valid."""
        tree = load_tree(path)
        if tree["format"] != FORMAT:
            raise TypeError(f"{path.name} has format {tree['format']}, this version reads {FORMAT}")
        domains = (
            LeftOutDomain(str(entry["name"]), entry["outputs"].numpy(), entry["y"].numpy()) for entry in tree["domains"]
        )
        return LeftOut(str(tree["predicts"]), tuple(domains))


def collect_left_out(chosen: Sequence[RunRecord], records: Sequence[RunRecord], workspace: Workspace) -> LeftOut | None:
    """Return the stored outputs of the chosen configuration for the domains that its runs left out.

    Each domain comes from the first seed. None without stored outputs, or if the task does not predict classes.
    """
    by_id, domains = {record.id: record for record in records}, {}
    for record in chosen:
        if record.spec.get("task") != "classify" or len(record.stages) != 1:
            return None
        unseen = set(record.stages[-1]["test"]) - set(record.stages[-1]["train"])
        if unseen <= domains.keys():
            continue
        try:
            values = _log_probabilities(record, by_id, workspace)
        except Damaged:
            return None
        for name in sorted(unseen - domains.keys()):
            domains[name] = _limited(name, *values[name], seed=int(record.spec.get("seed") or 0))
    return LeftOut("classes", tuple(domains.values())) if domains else None


def _log_probabilities(record: RunRecord, by_id: dict[str, RunRecord], workspace: Workspace) -> dict[str, Any]:
    """Map each test domain of a run to its calibrated log-probabilities (n, c) and classes (n,)."""
    assert workspace.out is not None
    tensors, _ = load_tensors(outputs_path(workspace.out, record.id))
    run = by_id[record.stages[-1]["members"][0]["id"]] if is_combined(record) else record
    spec = Spec(**run.spec)
    stage = next(each for each in workspace.episodes(spec) if each.name == run.episode).stages[-1]
    temperature, y = 1.0, workspace.dataset.y
    if not is_combined(record):
        valid = {part.domain: tensors[f"valid/{part.domain}"].numpy() for part in stage.valid}
        temperature = validation_temperature(valid, {part.domain: y[part.rows] for part in stage.valid})
    values = {}
    for part in stage.test:
        logits = tensors[f"test/{part.domain}"].double() / temperature
        values[part.domain] = torch.log_softmax(logits, dim=-1).float().numpy(), y[part.rows]
    return values


def _limited(name: str, outputs: np.ndarray, y: np.ndarray, *, seed: int) -> LeftOutDomain:
    """Return a domain with at most the stored number of labelled rows, drawn with the seed."""
    rows = np.flatnonzero(y >= 0)
    limit = max(1, min(MAX_ROWS, MAX_VALUES // outputs.shape[1]))
    if len(rows) > limit:
        rows = np.sort(np.random.default_rng(derive(seed, "left-out", name)).choice(rows, limit, replace=False))
    return LeftOutDomain(name, np.ascontiguousarray(outputs[rows]), np.ascontiguousarray(y[rows]))
