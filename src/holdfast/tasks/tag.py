"""Sequence tagging: one BIO tag per word, scored by the entities that the tags form.

Shapes: b sentences, w words in the longest sentence, c tags.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs, Sentence
from holdfast.core.ragged import NONE, Ragged
from holdfast.core.store import join
from holdfast.data.raw import Raw
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.positions import first_tokens, token_encoder
from holdfast.nn.model import Model
from holdfast.record import Scores
from holdfast.tasks.base import Prepared, Task, chunks, select

# columns of `Tag.stats`
LOSS, VISIBLE, WORDS, CORRECT_TAGS, CORRECT_ENTITIES, PREDICTED_ENTITIES, TRUE_ENTITIES = range(7)
OUTSIDE = "O"
CHUNK = 4096


class Tag(Task):
    """Cross-entropy at the first token of each word; entity-level precision, recall and F1.

    Targets are tags 0 to c - 1. Words cut off by the encoder's maximum length have targets c to 2c - 1: they count as
    predicted outside of any entity, so truncation lowers the recall. An I- tag without a preceding tag of its type
    starts an entity, as in the CoNLL evaluation script.
    """

    metrics = ("entity_f1", "entity_precision", "entity_recall", "accuracy", "nll")
    needs = ("tags",)
    data_form = "tags"
    unit = "sentences"

    def __init__(self, classes: Sequence[str] = ()) -> None:
        self.classes = tuple(classes)
        kinds = sorted({name.partition("-")[2] for name in classes if name != OUTSIDE})
        index = {kind: i for i, kind in enumerate(kinds)}
        kind = [NONE if name == OUTSIDE else index[name.partition("-")[2]] for name in classes]
        self.kind = torch.tensor(kind, dtype=torch.long)  # (c,) entity type, -1 for O
        self.begins = torch.tensor([name.startswith("B-") for name in classes], dtype=torch.bool)  # (c,)

    def prepare(self, encoder: Backbone, raw: Raw, classes: Sequence[str]) -> Prepared:
        """Build sentences with the position of each word's first token, and the tags as targets."""
        tokens, stores, targets = token_encoder(encoder, "tag"), [], []
        for _, examples in chunks(raw, CHUNK):
            if not isinstance(examples[0], Sentence):
                raise BadInput("the task tag needs sentences with one tag per word: see docs/tasks.md for the files")
            store, visible = first_tokens(tokens, [sentence.words for sentence in examples])
            stores.append(store)
            for sentence, seen in zip(examples, visible, strict=True):
                tags = sentence.tags if sentence.tags is not None else [0] * len(sentence.words)
                targets.append([t if s else t + len(classes) for t, s in zip(tags, seen, strict=True)])
        return Prepared(join(stores), Ragged.build(targets), Tag(classes))

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        losses, visible = self._losses(output, y)
        return losses.sum() / visible.sum().clamp(min=1)

    def _losses(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(b, w) loss per visible word, and which words are visible."""
        visible = (y != NONE) & (y < output.shape[-1])
        target = y.masked_fill(~visible, NONE)
        losses = F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=NONE, reduction="none")
        return losses.view_as(y), visible

    def stats(self, output: Tensor, y: Tensor) -> Tensor:
        """(b, 7) summed loss, visible words, words, correct tags, and correct, predicted and true entities."""
        losses, visible = self._losses(output, y)
        real = y != NONE
        outside = self.classes.index(OUTSIDE)
        predicted = torch.where(visible, output.argmax(-1), outside)
        true = torch.where(real, y % output.shape[-1], outside)
        begin, end, kind = self._entities(predicted.masked_fill(~real, outside))
        true_begin, true_end, true_kind = self._entities(true.masked_fill(~real, outside))
        correct = begin & true_begin & (end == true_end) & (kind == true_kind)
        columns = (losses, visible, real, (predicted == true) & real, correct, begin, true_begin)
        return torch.stack([column.sum(1).to(losses) for column in columns], dim=1)

    def predictions(self, model: Model, x: Inputs, y: Tensor) -> Tensor:
        """(b, w) predicted tag per visible word."""
        output = model(x)
        return output.argmax(-1).masked_fill((y == NONE) | (y >= output.shape[-1]), NONE)

    def _entities(self, tags: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(b, w) each: whether an entity begins at a word, the last word of the entity there, its type."""
        kind = self.kind.to(tags.device)[tags]
        inside = kind != NONE
        before = F.pad(kind[:, :-1], (1, 0), value=NONE)
        begin = inside & (self.begins.to(tags.device)[tags] | (before != kind))
        last = inside & (F.pad(begin[:, 1:] | ~inside[:, 1:], (0, 1), value=True))
        width = tags.shape[1]
        end = torch.where(last, torch.arange(width, device=tags.device), width)
        return begin, end.flip(1).cummin(1).values.flip(1), kind

    def loss_from_stats(self, stats: Tensor, y: Tensor) -> Tensor:
        return stats[:, LOSS].sum() / stats[:, VISIBLE].sum().clamp(min=1)

    def scores(self, stats: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        loss, visible, words, tags, correct, predicted, true = stats.double().sum(0).tolist()
        values = {
            "entity_f1": 2 * correct / max(1.0, predicted + true),
            "entity_precision": correct / max(1.0, predicted),
            "entity_recall": correct / max(1.0, true),
            "accuracy": tags / max(1.0, words),
            "nll": loss / max(1.0, visible),
        }
        return select(values, names)

    def sample_targets(self, output: Tensor, y: Tensor) -> Tensor:
        """(b, w) one sampled tag per visible word."""
        _, visible = self._losses(output, y)
        sampled = torch.multinomial(output.flatten(0, 1).softmax(-1), 1).view_as(y)
        return torch.where(visible, sampled, y)

    def prediction_columns(self, raw: Raw, outputs: Sequence[Tensor], y: Tensor | Ragged) -> dict[str, list[Any]]:
        """Return the words and one tag per word; words that were cut off get the tag O."""
        assert isinstance(y, Ragged)
        words, tags = [], []
        for start, examples in chunks(raw, CHUNK):
            for row, sentence in enumerate(examples, start):
                visible = (y.take(torch.tensor([row]))[0] < len(self.classes)).tolist()
                best = outputs[row][: len(sentence.words)].argmax(-1).tolist()
                words.append(sentence.words)
                tags.append([self.classes[b] if v else OUTSIDE for b, v in zip(best, visible, strict=True)])
        return {"tokens": words, "tags": tags}
