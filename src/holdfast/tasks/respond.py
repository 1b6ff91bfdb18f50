"""Answering messages: the likelihood of the true response, and how near the model's own answer comes to it.

b examples, t words of an answer
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Inputs
from holdfast.nn.decoding import Responder
from holdfast.nn.model import Model
from holdfast.record import LOWER_IS_BETTER, Scores
from holdfast.tasks.base import turned

LOST, WORDS, ONES, TWOS, SAID, WANTED, NEAR = range(7)  # what is kept of an example; the words of its answer follow


class Respond:
    """Negative log-likelihood of the response's words, END included, each after the true words before it.

    Outputs are (b, 2): its sum over the words of an example, and how many they are. Scores of the model's own answers
    are asked for at the end alone: validations during training look at the likelihood, and decode nothing.
    """

    metrics = ("nll", "perplexity", "bleu2", "w2v_similarity", "distinct2")
    needs = ("domain",)
    data_form = "table"

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        lost, words = output.unbind(1)
        return lost.sum() / words.sum().clamp(min=1)

    def loss_count(self, y: Tensor) -> int | Tensor | None:
        return None

    def stats(self, output: Tensor, y: Tensor) -> Tensor:
        return output

    def loss_from_stats(self, kept: Tensor, y: Tensor) -> Tensor:
        return self.loss(kept, y)

    def evaluate(self, model: Model, x: Inputs, y: Tensor) -> Tensor:
        """(b, 7 + t) the two outputs, words that answer and response share, their lengths, their likeness, the answer.

        A likeness that nothing tells is NaN.
        """
        speaker = model.backbone
        if not isinstance(speaker, Responder):
            raise BadInput("the task respond needs an encoder that answers, such as dialogue-gru")
        answers, output = speaker.answer(x), model(x)
        near = speaker.similarity(answers, x)
        if near is None:
            near = torch.full_like(output[:, 0], torch.nan)
        pairs = zip(_rows(answers), _rows(speaker.references(x)), strict=True)
        counts = [(shared(a, b, 1), shared(a, b, 2), len(a), len(b)) for a, b in pairs]
        return torch.cat([output, torch.tensor(counts).to(output), near[:, None].to(output), answers.to(output)], 1)

    def scores(self, kept: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        seen = kept.double()
        return {name: _score(name, seen) for name in names}

    def correct(self, seen: Tensor, y: Tensor) -> Tensor | None:
        return None

    def validation_metric(self, metric: str) -> str:
        return metric if metric in LOWER_IS_BETTER else "nll"

    def selection_value(self, metric: str, value: float) -> float:
        return turned(metric, value, self.metrics)

    def sample_targets(self, output: Tensor, y: Tensor) -> Tensor:
        return y  # the response lies in the example: the outputs tell its likelihood, not that of others


def shared(answer: Sequence[int], wanted: Sequence[int], n: int) -> int:
    """How many runs of n words of the answer the response has too, each as often as there at most."""
    return (Counter(_runs(answer, n)) & Counter(_runs(wanted, n))).total()


def _runs(words: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def _rows(words: Tensor) -> list[list[int]]:
    """The words of each row without the padding after them, which is 0."""
    return [[word for word in row if word] for row in words.tolist()]


def _score(name: str, seen: Tensor) -> float | None:
    match name:
        case "nll":
            return _nll(seen)
        case "perplexity":
            return math.exp(min(_nll(seen), 700.0))  # a larger one is no number
        case "bleu2":
            return _bleu(seen)
        case "w2v_similarity":
            near = seen[:, NEAR]
            return None if bool(near.isnan().any()) else float(near.mean())
        case "distinct2":
            pairs = [pair for row in _rows(seen[:, NEAR + 1 :].long()) for pair in _runs(row, 2)]
            return len(set(pairs)) / len(pairs) if pairs else 0.0
    raise unknown("metric", name, Respond.metrics)


def _nll(seen: Tensor) -> float:
    return float(seen[:, LOST].sum() / seen[:, WORDS].sum().clamp(min=1))


def _bleu(seen: Tensor) -> float:
    """sqrt(p1 p2) exp(min(0, 1 - r / c)) over all examples together (Papineni et al., 2002), runs of one and two words.

    c and r count the words of all answers and of all responses.
    """
    ones, twos, said, wanted = (float(seen[:, at].sum()) for at in (ONES, TWOS, SAID, WANTED))
    pairs = float((seen[:, SAID] - 1).clamp(min=0).sum())
    if not (ones and twos):
        return 0.0
    return math.sqrt(ones / said * twos / pairs) * math.exp(min(0.0, 1 - wanted / said))
