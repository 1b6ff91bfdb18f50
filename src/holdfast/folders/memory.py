"""Stored examples of a model folder: add and delete them without training; the next prediction uses the change.

The file recall.safetensors holds their features, classes and content hashes, never the examples themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from holdfast.core.errors import BadInput
from holdfast.core.files import locked
from holdfast.data.align import with_classes
from holdfast.data.raw import Raw
from holdfast.data.readers.in_memory import Source
from holdfast.folders.format import RECALL, SavedModel, load_model
from holdfast.folders.shared import member_folders
from holdfast.nn.memory.recall import T3A, Recall, save_recall
from holdfast.train.workspace import choose_device
from holdfast.uncertainty.arrays import example_ids


@dataclass(frozen=True)
class MemoryChange:
    """Number of added, deleted and stored examples."""

    added: int
    deleted: int
    stored: int


def change_memory(
    model: str | Path, *, add: Source | None = None, delete: Source | None = None,
    columns: Mapping[str, str] | None = None, device: str = "auto",
) -> MemoryChange:  # fmt: skip
    """Add the examples of a data set to the memory of a model folder, and delete those of another one.

    Deleted examples are recognised by their content. Labels are needed to add examples to a `knn` memory; without
    labels, a `t3a` memory stores the class that the network predicts.
    """
    folder = Path(model)
    with locked(folder):
        saved = load_model(folder)
        recalls = memories(saved)
        is_t3a = all(isinstance(recall, T3A) for _, recall in recalls)
        added = deleted = 0
        if delete is not None:
            deleted = delete_examples(saved, saved.read(delete, columns=columns, need=()).raw)
        if add is not None:
            dataset = saved.read(add, columns=columns, need=() if is_t3a else ("label",))
            labelled = len(dataset) > 0 and (dataset.y >= 0).all()
            y = with_classes(dataset, saved.classes).y if labelled or not is_t3a else None
            added = add_examples(saved, dataset.raw, y, device=device)
        folders = member_folders(folder, len(saved.members))
        for path, member in zip(folders, (each for _, each in saved.all_members), strict=True):
            if member.model.recall is not None:
                save_recall(path / RECALL, member.model.recall)
        return MemoryChange(added, deleted, max(len(recall) for _, recall in recalls))


def memories(saved: SavedModel) -> list[tuple[SavedModel, Recall]]:
    """Return the members of a model that have a memory; raise if there is none."""
    members = [(member, member.model.recall) for _, member in saved.all_members]
    pairs = [(member, recall) for member, recall in members if recall is not None]
    if not pairs:
        raise BadInput("this model stores no examples for predictions: fit it with --set predict=knn")
    return pairs


def add_examples(saved: SavedModel, raw: Raw, y: np.ndarray | None, *, device: str = "auto") -> int:
    """Add examples to the memories of a loaded model; return their number. Without `y` they are unlabelled."""
    ids, target = example_ids(raw), choose_device(device)
    for member, recall in memories(saved):
        if not len(raw):
            continue
        z, outputs = member.features_and_outputs(raw, device=target)
        if y is not None:
            recall.add(z, torch.from_numpy(np.ascontiguousarray(y)), ids)
        elif isinstance(recall, T3A):
            recall.observe(z, outputs, ids)
        else:
            raise BadInput("examples for the memory of this model need labels: add a label column")
    return len(raw)


def delete_examples(saved: SavedModel, raw: Raw) -> int:
    """Delete the stored examples with the content of these; return their number."""
    ids = example_ids(raw)
    return max(recall.delete(ids) for _, recall in memories(saved))
