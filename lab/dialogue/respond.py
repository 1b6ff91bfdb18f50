"""Dialogue: the likelihood of the reference response, and metrics of the generated one.

Shapes: b examples, t words per response.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Inputs
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.model import Model
from holdfast.record import Scores
from holdfast.tasks.base import Task
from lab.dialogue.decoding import NextWords, Responder

# columns of `Respond.evaluate`; the word ids of the generated response follow
LOSS, WORDS, UNIGRAMS, BIGRAMS, LENGTH, REFERENCE_LENGTH, SIMILARITY = range(7)


class Respond(Task):
    """Negative log-likelihood of the response's words, END included, with teacher forcing.

    Outputs are (b, 2): the summed negative log-likelihood of an example and its number of words. Metrics of generated
    responses are computed in the test only; validation uses the likelihood and decodes nothing.
    """

    metrics = ("nll", "perplexity", "bleu2", "w2v_similarity", "distinct2")
    needs = ("domain",)
    data_form = "table"
    unit = "responses"

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        loss, words = output.unbind(1)
        return loss.sum() / words.sum().clamp(min=1)

    def evaluate(self, model: Model, x: Inputs, y: Tensor) -> Tensor:
        """(b, 7 + t) outputs, shared unigrams and bigrams, both lengths, similarity (NaN if unknown), response ids."""
        backbone = _responder(model.backbone)
        answers, output = backbone.answer(x), model(x)
        similarity = backbone.similarity(answers, x)
        if similarity is None:
            similarity = torch.full_like(output[:, 0], torch.nan)
        pairs = zip(_unpadded(answers), _unpadded(backbone.references(x)), strict=True)
        counts = [(shared_ngrams(a, b, 1), shared_ngrams(a, b, 2), len(a), len(b)) for a, b in pairs]
        columns = (torch.tensor(counts), similarity[:, None], answers)
        return torch.cat([output, *(column.to(output) for column in columns)], 1)

    def predictions(self, model: Model, x: Inputs, y: Tensor) -> Tensor:
        """(b, t) most probable next word at every position of the reference response; otherwise generated words."""
        backbone = model.backbone
        if isinstance(backbone, NextWords):
            return backbone.next_words(x)
        return backbone.answer(x) if isinstance(backbone, Responder) else super().predictions(model, x, y)

    def scores(self, stats: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        rows = stats.double()
        return {name: _score(name, rows) for name in names}

    def generate(self, encoder: Backbone, x: Inputs) -> Tensor:
        """(b, t) word ids of one response per message; of pairs, the first text is the message."""
        return _responder(encoder).answer(x)

    def text_columns(self, encoder: Backbone, words: Tensor | None) -> dict[str, list[str]]:
        return {"response": [] if words is None else _responder(encoder).texts(words.long())}


def _responder(encoder: Any) -> Responder:
    if not isinstance(encoder, Responder):
        raise BadInput("the task respond needs an encoder that generates responses, such as dialogue-gru")
    return encoder


def shared_ngrams(answer: Sequence[int], reference: Sequence[int], n: int) -> int:
    """Number of n-grams that answer and reference share, each counted at most as often as in the reference."""
    return (Counter(_ngrams(answer, n)) & Counter(_ngrams(reference, n))).total()


def _ngrams(words: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def _unpadded(words: Tensor) -> list[list[int]]:
    """Word ids per row without the padding, which is 0."""
    return [[word for word in row if word] for row in words.tolist()]


def _score(name: str, rows: Tensor) -> float | None:
    match name:
        case "nll":
            return _nll(rows)
        case "perplexity":
            return math.exp(min(_nll(rows), 700.0))  # avoids an overflow
        case "bleu2":
            return _bleu(rows)
        case "w2v_similarity":
            similarity = rows[:, SIMILARITY]
            return None if bool(similarity.isnan().any()) else float(similarity.mean())
        case "distinct2":
            bigrams = [pair for row in _unpadded(rows[:, SIMILARITY + 1 :].long()) for pair in _ngrams(row, 2)]
            return len(set(bigrams)) / len(bigrams) if bigrams else 0.0
    raise unknown("metric", name, Respond.metrics)


def _nll(rows: Tensor) -> float:
    return float(rows[:, LOSS].sum() / rows[:, WORDS].sum().clamp(min=1))


def _bleu(rows: Tensor) -> float:
    """Corpus BLEU-2, sqrt(p1 p2) exp(min(0, 1 - r / c)) (Papineni et al., 2002).

    c and r are the total numbers of words of generated and of reference responses.
    """
    columns = (UNIGRAMS, BIGRAMS, LENGTH, REFERENCE_LENGTH)
    unigrams, bigrams, length, reference = (float(rows[:, column].sum()) for column in columns)
    pairs = float((rows[:, LENGTH] - 1).clamp(min=0).sum())
    if not (unigrams and bigrams):
        return 0.0
    return math.sqrt(unigrams / length * bigrams / pairs) * math.exp(min(0.0, 1 - reference / length))
