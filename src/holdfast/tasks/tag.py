"""Tagging: a label for each word of a sentence, B-, I- and O, scored by the entities that they make.

b sentences, w words of the longest, c tags
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Inputs, Sentence
from holdfast.core.ragged import NONE, Ragged
from holdfast.core.store import join
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.positions import first_tokens, giving_states
from holdfast.nn.model import Model
from holdfast.record import Scores
from holdfast.tasks.base import Prepared, Rows, turned

LOST, SEEN, WORDS, SAME, RIGHT, FOUND, TRUE = range(7)  # what is kept of a sentence
OUTSIDE = "O"
CHUNK = 4096


class Tag:
    """Cross-entropy at the first token of each word; precision, recall and F1 of whole entities.

    Targets are tags 0 to c; those of words past the encoder's length, which it never sees, are c to 2c: they count as
    found outside of any entity, so that a cut costs recall and is not hidden. An I- that continues nothing begins an
    entity, as the script of CoNLL has it.
    """

    metrics = ("entity_f1", "entity_precision", "entity_recall", "accuracy", "nll")
    needs = ("tags",)
    data_form = "tags"

    def __init__(self, classes: Sequence[str] = ()) -> None:
        self.classes = tuple(classes)
        kinds = sorted({name.partition("-")[2] for name in classes if name != OUTSIDE})
        index = {kind: i for i, kind in enumerate(kinds)}
        owner = [NONE if name == OUTSIDE else index[name.partition("-")[2]] for name in classes]
        self.kind = torch.tensor(owner, dtype=torch.long)  # (c,) which kind of entity; -1 outside of any
        self.begins = torch.tensor([name.startswith("B-") for name in classes], dtype=torch.bool)  # (c,)

    def prepare(self, encoder: Backbone, raw: Rows, classes: Sequence[str]) -> Prepared:
        giving, stores, targets = giving_states(encoder, "tag"), [], []
        for start in range(0, len(raw), CHUNK):
            examples = raw.take(np.arange(start, min(start + CHUNK, len(raw))))
            if not isinstance(examples[0], Sentence):
                raise BadInput("the task tag needs sentences with a tag for each word: see docs/tasks.md for the files")
            store, there = first_tokens(giving, [each.words for each in examples])
            stores.append(store)
            for each, seen in zip(examples, there, strict=True):
                tags = each.tags if each.tags is not None else [0] * len(each.words)
                targets.append([t if s else t + len(classes) for t, s in zip(tags, seen, strict=True)])
        return Prepared(join(stores), Ragged.build(targets), Tag(classes))

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        lost, seen = self._lost(output, y)
        return lost.sum() / seen.sum().clamp(min=1)

    def loss_count(self, y: Tensor) -> int | Tensor | None:
        return None

    def _lost(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(b, w) the risk of each word that is seen, and which are."""
        seen = (y != NONE) & (y < output.shape[-1])
        target = y.masked_fill(~seen, NONE)
        lost = F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=NONE, reduction="none")
        return lost.view_as(y), seen

    def stats(self, output: Tensor, y: Tensor) -> Tensor:
        """(b, 7) sum of risks, words seen, all words, tags right, entities right, found, true."""
        count, (lost, seen) = output.shape[-1], self._lost(output, y)
        real = y != NONE
        outside = self.classes.index(OUTSIDE)
        said = torch.where(seen, output.argmax(-1), outside)
        true = torch.where(real, y % count, outside)
        ends = [self._entities(tags.masked_fill(~real, outside)) for tags in (said, true)]
        (begin, end, kind), (true_begin, true_end, true_kind) = ends
        right = begin & true_begin & (end == true_end) & (kind == true_kind)
        same = (said == true) & real
        columns = (lost, seen, real, same, right, begin, true_begin)
        return torch.stack([column.sum(1).to(lost) for column in columns], dim=1)

    def _entities(self, tags: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(b, w) each: where an entity begins; there, its last word; its kind."""
        kind = self.kind.to(tags.device)[tags]
        inside = kind != NONE
        before = F.pad(kind[:, :-1], (1, 0), value=NONE)
        begin = inside & (self.begins.to(tags.device)[tags] | (before != kind))
        last = inside & (F.pad(begin[:, 1:] | ~inside[:, 1:], (0, 1), value=True))
        width = tags.shape[1]
        at = torch.where(last, torch.arange(width, device=tags.device), width)
        return begin, at.flip(1).cummin(1).values.flip(1), kind

    def loss_from_stats(self, kept: Tensor, y: Tensor) -> Tensor:
        return kept[:, LOST].sum() / kept[:, SEEN].sum().clamp(min=1)

    def evaluate(self, model: Model, x: Inputs, y: Tensor) -> Tensor:
        return self.stats(model(x), y)

    def scores(self, kept: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        total = kept.double().sum(0).tolist()
        return {name: _score(name, total) for name in names}

    def correct(self, seen: Tensor, y: Tensor) -> Tensor | None:
        return None

    def validation_metric(self, metric: str) -> str:
        return metric

    def selection_value(self, metric: str, value: float) -> float:
        return turned(metric, value, self.metrics)

    def sample_targets(self, output: Tensor, y: Tensor) -> Tensor:
        """(b, w) a tag for each word that is seen, drawn with the probabilities that the outputs mean."""
        _, seen = self._lost(output, y)
        drawn = torch.multinomial(output.flatten(0, 1).softmax(-1), 1).view_as(y)
        return torch.where(seen, drawn, y)

    def prediction_columns(self, raw: Rows, found: Sequence[Tensor], y: Tensor | Ragged) -> dict[str, list[Any]]:
        """Words and the tag of each; a word that was never seen is outside of any entity."""
        words, tags = [], []
        for start in range(0, len(raw), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(raw)))
            for row, each in zip(rows.tolist(), raw.take(rows), strict=True):
                assert isinstance(y, Ragged)
                seen = (y.take(torch.tensor([row]))[0] < len(self.classes)).tolist()
                best = found[row][: len(each.words)].argmax(-1).tolist()
                words.append(each.words)
                tags.append([self.classes[b] if s else OUTSIDE for b, s in zip(best, seen, strict=True)])
        return {"tokens": words, "tags": tags}


def _score(name: str, total: Sequence[float]) -> float:
    match name:
        case "entity_f1":
            return 2 * total[RIGHT] / max(1.0, total[FOUND] + total[TRUE])
        case "entity_precision":
            return total[RIGHT] / max(1.0, total[FOUND])
        case "entity_recall":
            return total[RIGHT] / max(1.0, total[TRUE])
        case "accuracy":
            return total[SAME] / max(1.0, total[WORDS])
        case "nll":
            return total[LOST] / max(1.0, total[SEEN])
    raise unknown("metric", name, Tag.metrics)
