"""Masked words: which words stood at places that were hidden, as in pretraining (Devlin et al., 2019).

b texts, t tokens, k hidden places of the text with most, v words of the vocabulary
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Inputs, Question, Sentence, Tokens
from holdfast.core.ragged import NONE, Ragged
from holdfast.core.store import TokenStore, join
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.positions import giving_states, windows
from holdfast.nn.model import Model
from holdfast.record import Scores
from holdfast.tasks.base import Prepared, Rows, turned

LOST, WORDS, RIGHT = range(3)  # what is kept of a text
SHARE = 0.15  # of the words are hidden: 8 of 10 behind the mask, 1 by another word, 1 left as it is
MASKED, REPLACED = 0.8, 0.9
CHUNK = 512
ANY = "[MASK]"  # what a user may write for a hidden word, whatever the tokenizer's own mask is


class Masked:
    """Cross-entropy at the hidden places alone, whose states are gathered before the vocabulary is compared with.

    Validations and tests hide the same places every time, drawn from the text itself; a training batch hides others
    each time, drawn from the generator of the batches, so that a run that was stopped goes on with the same ones.
    """

    metrics = ("nll", "perplexity", "accuracy")
    needs = ()
    data_form = "corpus"

    def __init__(self) -> None:
        self.mask = 0
        self.tokenizer: Any = None
        self.ordinary = torch.ones(0, dtype=torch.bool)  # (v,) what can be hidden and put in its place
        self.words = torch.ones(0, dtype=torch.long)

    def prepare(self, encoder: Backbone, raw: Rows, classes: Sequence[str]) -> Prepared:
        """Windows with their hidden places; a text that has no word at all makes none."""
        giving = giving_states(encoder, "masked")
        task, pad = _knowing(giving.tokenizer), giving.tokenizer.pad_token_id
        stores, targets, counts = [], [], []
        for start in range(0, len(raw), CHUNK):
            ids, sizes = windows(giving, _texts(raw, start))
            kept = [bool(task.ordinary[row].any()) for row in ids]
            store, y = task._fixed([row for row, there in zip(ids, kept, strict=True) if there], pad)
            ends = np.cumsum([0, *kept])[np.cumsum([0, *sizes])]
            counts += np.diff(ends).tolist()
            stores.append(store)
            targets.append(y)
        starts = torch.tensor([0, *counts]).cumsum(0)
        return Prepared(join(stores), Ragged.join(targets), task, starts)

    def prepare_inference(self, encoder: Backbone, raw: Rows) -> Prepared:
        """Windows in which the user has hidden words; the target of each is the number of its text."""
        giving = giving_states(encoder, "masked")
        task, token = _knowing(giving.tokenizer), giving.tokenizer.mask_token
        rows, places, owners = [], [], []
        for start in range(0, len(raw), CHUNK):
            ids, sizes = windows(giving, [text.replace(ANY, token) for text in _texts(raw, start)])
            for row, owner in zip(ids, np.repeat(np.arange(len(sizes)), sizes).tolist(), strict=True):
                at = [place for place, word in enumerate(row) if word == task.mask]
                if at:
                    rows.append(row)
                    places.append(at)
                    owners.append([start + owner] * len(at))
        if not rows:
            raise BadInput(f"no text hides a word: write {token} where one is to be found")
        store = TokenStore.build(rows, pad=giving.tokenizer.pad_token_id, at=places)
        return Prepared(store, Ragged.build(owners), task)

    def compress(self, output: Tensor) -> Tensor:
        """(b, k, 2) the best word of each place, which is no special one, and its probability among all."""
        chance = output.float().softmax(-1)[..., : len(self.ordinary)]
        sure, best = chance.masked_fill(~self.ordinary.to(chance.device), -1.0).max(-1)
        return torch.stack([best.to(sure), sure], dim=-1)

    def prediction_columns(self, raw: Rows, found: Sequence[Tensor], y: Tensor | Ragged) -> dict[str, list[Any]]:
        """The best word of each hidden place and its probability; of a text that hides none, empty lists."""
        assert isinstance(y, Ragged)
        words: list[list[str]] = [[] for _ in range(len(raw))]
        scores: list[list[float]] = [[] for _ in range(len(raw))]
        for i, each in enumerate(found):
            owners = y.take(torch.tensor([i]))[0].tolist()
            for owner, (word, sure) in zip(owners, each[: len(owners)].tolist(), strict=True):
                words[owner].append(self.tokenizer.decode([int(word)]).strip())
                scores[owner].append(sure)
        return {"words": words, "scores": scores}

    def _fixed(self, rows: Sequence[list[int]], pad: int) -> tuple[TokenStore, Ragged]:
        """Windows with places hidden that depend on each one's own words and on nothing else."""
        plain = TokenStore.build(rows, pad=pad)
        if not rows:
            return TokenStore.build([], pad=pad, at=[]), Ragged.build([])
        x = plain.take(torch.arange(len(rows)))
        chance = torch.ones(3, *x.ids.shape, dtype=torch.float64)
        for i, row in enumerate(rows):
            drawn = np.random.default_rng(zlib.crc32(np.asarray(row, dtype=np.int64).tobytes())).random((3, len(row)))
            chance[:, i, : len(row)] = torch.from_numpy(drawn)
        hidden, y = self._hide(x.ids, x.mask, chance)
        assert hidden.at is not None
        lengths = plain.lengths().tolist()
        ids = [row[:n] for row, n in zip(hidden.ids.tolist(), lengths, strict=True)]
        places = [[place for place in row if place != NONE] for row in hidden.at.tolist()]
        words = [row[: len(at)] for row, at in zip(y.tolist(), places, strict=True)]
        return TokenStore.build(ids, pad=pad, at=places), Ragged.build(words)

    def augment(self, x: Inputs, y: Tensor, generator: torch.Generator) -> tuple[Inputs, Tensor]:
        """The same texts with other places hidden."""
        assert isinstance(x, Tokens)
        assert x.at is not None
        at = x.at.clamp(min=0)
        ids = x.ids.scatter(1, at, torch.where(x.at != NONE, y, x.ids.gather(1, at)))
        chance = torch.rand(3, *ids.shape, generator=generator).to(ids.device)
        return self._hide(ids, x.mask, chance)

    def _hide(self, ids: Tensor, mask: Tensor, chance: Tensor) -> tuple[Tokens, Tensor]:
        """Whole texts (b, t) to inputs with hidden places and the words there (b, k); at least one place a text.

        Of the chances (3, b, t) the first says which are hidden, the second how, the third by which word.
        """
        free = mask & self.ordinary.to(ids.device)[ids]
        which = chance[0].masked_fill(~free, 2.0)
        hidden = free & ((which < SHARE) | (which == which.amin(1, keepdim=True)))
        words = self.words.to(ids.device)
        other = words[(chance[2] * len(words)).long().clamp(max=len(words) - 1)]
        shown = torch.where(chance[1] < MASKED, self.mask, torch.where(chance[1] < REPLACED, other, ids))
        count = hidden.sum(1)
        order = hidden.int().argsort(dim=1, descending=True, stable=True)[:, : int(count.max())]  # (b, k)
        there = torch.arange(order.shape[1], device=ids.device) < count[:, None]
        y = torch.where(there, ids.gather(1, order), NONE)
        return Tokens(torch.where(hidden, shown, ids), mask, None, torch.where(there, order, NONE)), y

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        lost = F.cross_entropy(output.flatten(0, 1), y.flatten(), ignore_index=NONE, reduction="sum")
        return lost / (y != NONE).sum().clamp(min=1)

    def loss_count(self, y: Tensor) -> int | Tensor | None:
        return (y != NONE).sum().clamp(min=1)

    def stats(self, output: Tensor, y: Tensor) -> Tensor:
        """(b, 3) sum of risks, hidden words, words guessed right."""
        lost = F.cross_entropy(output.flatten(0, 1), y.flatten(), ignore_index=NONE, reduction="none").view_as(y)
        return torch.stack([part.sum(1).to(lost) for part in (lost, y != NONE, output.argmax(-1) == y)], dim=1)

    def loss_from_stats(self, kept: Tensor, y: Tensor) -> Tensor:
        return kept[:, LOST].sum() / kept[:, WORDS].sum().clamp(min=1)

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
        return y  # a draw for every hidden word would be another text


def _knowing(tokenizer: Any) -> Masked:
    """The task with the words of a tokenizer."""
    if tokenizer.mask_token_id is None:
        raise BadInput("the task masked needs a tokenizer with a mask token: use one such as hf:roberta-base")
    made = Masked()
    made.mask, made.tokenizer = tokenizer.mask_token_id, tokenizer
    made.ordinary = torch.ones(len(tokenizer), dtype=torch.bool)
    made.ordinary[list(tokenizer.all_special_ids)] = False
    made.words = made.ordinary.nonzero()[:, 0]
    return made


def _texts(raw: Rows, start: int) -> Sequence[str]:
    return [_text(each) for each in raw.take(np.arange(start, min(start + CHUNK, len(raw))))]


def _text(example: Any) -> str:
    """A text, the words of a tagged sentence, or what a question is about."""
    match example:
        case str():
            return example
        case Sentence():
            return " ".join(example.words)
        case Question():
            return example.context
    raise BadInput("the task masked needs plain texts: a .txt file, or a table with a text column")


def _score(name: str, total: Sequence[float]) -> float:
    words = max(1.0, total[WORDS])
    match name:
        case "nll":
            return total[LOST] / words
        case "perplexity":
            return math.exp(min(total[LOST] / words, 700.0))  # a larger one is no number
        case "accuracy":
            return total[RIGHT] / words
    raise unknown("metric", name, Masked.metrics)
