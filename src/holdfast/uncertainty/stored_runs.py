"""Finished runs of a comparison: their rows, and the outputs, weights and states that they stored."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from holdfast.core.checkpoint import load_tensors
from holdfast.core.errors import Damaged
from holdfast.record import RunRecord
from holdfast.spec import Spec
from holdfast.train.plan import Episode
from holdfast.train.run import SCALE, outputs_path
from holdfast.train.workspace import Workspace

SPLITS = ("valid", "test")
ByDomain = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class StoredRun:
    """Rows and outputs of a run per split and domain, and mean and scale of its outputs if they are numbers."""

    episode: Episode
    rows: dict[str, dict[str, np.ndarray]]
    outputs: dict[str, dict[str, np.ndarray]]
    y: dict[str, dict[str, np.ndarray]]  # classes, or the targets of other tasks
    scale: list[float] | None


def read_run(record: RunRecord, workspace: Workspace, *, like: RunRecord | None = None) -> StoredRun | None:
    """Read the outputs of a run; None if they were not stored. A combination has the rows of its member `like`.

    Averages over seeds have no validation rows, because each seed holds out other ones.
    """
    assert workspace.out is not None
    tensors = stored_tensors(outputs_path(workspace.out, record.id))
    if tensors is None:
        return None
    episode = episode_of(like or record, workspace)
    rows = {
        split: {part.domain: part.rows for part in domains if f"{split}/{part.domain}" in tensors}
        for split, domains in zip(SPLITS, (episode.stages[-1].valid, episode.stages[-1].test), strict=True)
    }
    outputs = {split: {name: tensors[f"{split}/{name}"].numpy() for name in own} for split, own in rows.items()}
    targets = workspace.dataset.y if workspace.dataset.targets is None else workspace.dataset.targets
    y = {split: {name: targets[at] for name, at in own.items()} for split, own in rows.items()}
    return StoredRun(episode, rows, outputs, y, tensors[SCALE].tolist() if SCALE in tensors else None)


def stored_tensors(path: Path) -> dict[str, Tensor] | None:
    """Return the tensors of a file; None if it was not stored."""
    try:
        return load_tensors(path)[0]
    except Damaged:
        return None


def episode_of(record: RunRecord, workspace: Workspace) -> Episode:
    """Return the episode that a run trained on."""
    episodes = workspace.episodes(Spec(**record.spec))
    return next(episode for episode in episodes if episode.name == record.episode)
