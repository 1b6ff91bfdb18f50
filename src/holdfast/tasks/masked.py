"""Masked language modelling: predict words at masked positions, as in pretraining (Devlin et al., 2019).

Shapes: b texts, t tokens, k masked positions in the text with most of them, v words in the vocabulary.
"""

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs, Question, Sentence, Tokens
from holdfast.core.ragged import NONE, Ragged
from holdfast.core.store import TokenStore, join
from holdfast.data.raw import Raw
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.positions import token_encoder, windows
from holdfast.nn.model import Model
from holdfast.record import Scores
from holdfast.tasks.base import Prepared, Task, chunks, select

LOSS, WORDS = 0, 1  # columns of `Masked.stats`
SHARE = 0.15  # share of words to predict
MASKED, REPLACED = 0.8, 0.9  # of these, 80% become the mask token, 10% another word, 10% stay as they are
CHUNK = 512
ANY_MASK = "[MASK]"  # accepted in user texts for every tokenizer


class Masked(Task):
    """Cross-entropy at the masked positions, whose states are gathered before the vocabulary projection.

    Validation and test mask the same positions every time, sampled from the text itself. Training batches mask other
    positions each time, sampled from the generator of the batches, so that a resumed run continues identically.
    """

    metrics = ("nll", "perplexity", "accuracy")
    needs = ()
    data_form = "corpus"
    unit = "texts"

    def __init__(self) -> None:
        self.tokenizer: Any = None
        self.mask = 0
        self.ordinary = torch.ones(0, dtype=torch.bool)  # (v,) words that are not special tokens
        self.words = torch.ones(0, dtype=torch.long)  # their ids

    def prepare(self, encoder: Backbone, raw: Raw, classes: Sequence[str]) -> Prepared:
        """Build windows with masked positions; a text without ordinary words makes none."""
        tokens = token_encoder(encoder, "masked")
        task, pad = _bound(tokens.tokenizer), tokens.tokenizer.pad_token_id
        stores, targets, counts = [], [], []
        for _, examples in chunks(raw, CHUNK):
            ids, sizes = windows(tokens, [_text(example) for example in examples])
            usable = [bool(task.ordinary[row].any()) for row in ids]
            store, y = task._fixed([row for row, use in zip(ids, usable, strict=True) if use], pad)
            ends = np.cumsum([0, *usable])[np.cumsum([0, *sizes])]
            counts += np.diff(ends).tolist()
            stores.append(store)
            targets.append(y)
        starts = torch.tensor([0, *counts]).cumsum(0)
        return Prepared(join(stores), Ragged.join(targets), task, starts)

    def prepare_inference(self, encoder: Backbone, raw: Raw) -> Prepared:
        """Build windows that contain masks written by the user; the targets are the rows of their texts."""
        tokens = token_encoder(encoder, "masked")
        task, mask = _bound(tokens.tokenizer), tokens.tokenizer.mask_token
        rows, positions, owners = [], [], []
        for start, examples in chunks(raw, CHUNK):
            ids, sizes = windows(tokens, [_text(example).replace(ANY_MASK, mask) for example in examples])
            for row, owner in zip(ids, np.repeat(np.arange(len(sizes)), sizes).tolist(), strict=True):
                masked = [position for position, word in enumerate(row) if word == task.mask]
                if masked:
                    rows.append(row)
                    positions.append(masked)
                    owners.append([start + owner] * len(masked))
        if not rows:
            raise BadInput(f"no text contains a masked word: write {mask} at the positions to predict")
        store = TokenStore.build(rows, pad=tokens.tokenizer.pad_token_id, at=positions)
        return Prepared(store, Ragged.build(owners), task)

    def compress(self, output: Tensor) -> Tensor:
        """(b, k, 2) the most probable ordinary word per position, and its probability in the complete vocabulary."""
        probability = output.float().softmax(-1)[..., : len(self.ordinary)]
        best, word = probability.masked_fill(~self.ordinary.to(probability.device), -1.0).max(-1)
        return torch.stack([word.to(best), best], dim=-1)

    def prediction_columns(self, raw: Raw, outputs: Sequence[Tensor], y: Tensor | Ragged) -> dict[str, list[Any]]:
        """Return the predicted words and their probabilities; empty lists for texts without a mask."""
        assert isinstance(y, Ragged)
        words: list[list[str]] = [[] for _ in range(len(raw))]
        scores: list[list[float]] = [[] for _ in range(len(raw))]
        for i, output in enumerate(outputs):
            owners = y.take(torch.tensor([i]))[0].tolist()
            for owner, (word, probability) in zip(owners, output[: len(owners)].tolist(), strict=True):
                words[owner].append(self.tokenizer.decode([int(word)]).strip())
                scores[owner].append(probability)
        return {"words": words, "scores": scores}

    def _fixed(self, rows: Sequence[list[int]], pad: int) -> tuple[TokenStore, Ragged]:
        """Mask positions that depend only on the words of each window."""
        plain = TokenStore.build(rows, pad=pad)
        if not rows:
            return TokenStore.build([], pad=pad, at=[]), Ragged.build([])
        x = plain.take(torch.arange(len(rows)))
        uniform = torch.ones(3, *x.ids.shape, dtype=torch.float64)
        for i, row in enumerate(rows):
            rng = np.random.default_rng(zlib.crc32(np.asarray(row, dtype=np.int64).tobytes()))
            uniform[:, i, : len(row)] = torch.from_numpy(rng.random((3, len(row))))
        masked, y = self._mask(x.ids, x.mask, uniform)
        assert masked.at is not None
        ids = [row[:n] for row, n in zip(masked.ids.tolist(), plain.lengths().tolist(), strict=True)]
        positions = [[position for position in row if position != NONE] for row in masked.at.tolist()]
        words = [row[: len(at)] for row, at in zip(y.tolist(), positions, strict=True)]
        return TokenStore.build(ids, pad=pad, at=positions), Ragged.build(words)

    def augment(self, x: Inputs, y: Tensor, generator: torch.Generator) -> tuple[Inputs, Tensor]:
        """Restore the texts and mask other positions."""
        assert isinstance(x, Tokens)
        assert x.at is not None
        at = x.at.clamp(min=0)
        ids = x.ids.scatter(1, at, torch.where(x.at != NONE, y, x.ids.gather(1, at)))
        uniform = torch.rand(3, *ids.shape, generator=generator).to(ids.device)
        return self._mask(ids, x.mask, uniform)

    def _mask(self, ids: Tensor, mask: Tensor, uniform: Tensor) -> tuple[Tokens, Tensor]:
        """Mask words of texts (b, t), at least one per text; return the inputs and the masked words (b, k).

        The uniform samples (3, b, t) select the words, the replacement (mask, other word, none) and the other word.
        """
        allowed = mask & self.ordinary.to(ids.device)[ids]
        first = uniform[0].masked_fill(~allowed, 2.0)
        masked = allowed & ((first < SHARE) | (first == first.amin(1, keepdim=True)))
        words = self.words.to(ids.device)
        other = words[(uniform[2] * len(words)).long().clamp(max=len(words) - 1)]
        shown = torch.where(uniform[1] < MASKED, self.mask, torch.where(uniform[1] < REPLACED, other, ids))
        count = masked.sum(1)
        order = masked.int().argsort(dim=1, descending=True, stable=True)[:, : int(count.max())]  # (b, k)
        real = torch.arange(order.shape[1], device=ids.device) < count[:, None]
        y = torch.where(real, ids.gather(1, order), NONE)
        return Tokens(torch.where(masked, shown, ids), mask, None, torch.where(real, order, NONE)), y

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        total = F.cross_entropy(output.flatten(0, 1), y.flatten(), ignore_index=NONE, reduction="sum")
        return total / self.loss_count(y)

    def loss_count(self, y: Tensor) -> Tensor:
        return (y != NONE).sum().clamp(min=1)

    def stats(self, output: Tensor, y: Tensor) -> Tensor:
        """(b, 3) summed loss, masked words, correctly predicted words."""
        losses = F.cross_entropy(output.flatten(0, 1), y.flatten(), ignore_index=NONE, reduction="none").view_as(y)
        columns = (losses, y != NONE, output.argmax(-1) == y)
        return torch.stack([column.sum(1).to(losses) for column in columns], dim=1)

    def predictions(self, model: Model, x: Inputs, y: Tensor) -> Tensor:
        """(b, k) predicted word per masked position."""
        return super().predictions(model, x, y).masked_fill(y == NONE, NONE)

    def loss_from_stats(self, stats: Tensor, y: Tensor) -> Tensor:
        return stats[:, LOSS].sum() / stats[:, WORDS].sum().clamp(min=1)

    def scores(self, stats: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        loss, words, correct = stats.double().sum(0).tolist()
        nll = loss / max(1.0, words)
        perplexity = math.exp(min(nll, 700.0))  # avoids an overflow
        return select({"nll": nll, "perplexity": perplexity, "accuracy": correct / max(1.0, words)}, names)


def _bound(tokenizer: Any) -> Masked:
    """Return the task for a tokenizer."""
    if tokenizer.mask_token_id is None:
        raise BadInput("the task masked needs a tokenizer with a mask token: use an encoder such as hf:roberta-base")
    task = Masked()
    task.mask, task.tokenizer = tokenizer.mask_token_id, tokenizer
    task.ordinary = torch.ones(len(tokenizer), dtype=torch.bool)
    task.ordinary[list(tokenizer.all_special_ids)] = False
    task.words = task.ordinary.nonzero()[:, 0]
    return task


def _text(example: Any) -> str:
    """Return a text, the words of a tagged sentence, or the context of a question."""
    match example:
        case str():
            return example
        case Sentence():
            return " ".join(example.words)
        case Question():
            return example.context
    raise BadInput("the task masked needs plain texts: a .txt file, or a table with a text column")
