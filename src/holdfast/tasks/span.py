"""Answers as stretches of a text: where one begins and ends, over windows of a long text.

b windows, k places of the window with most, n questions
"""

from __future__ import annotations

import copy
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core.errors import BadInput, unknown
from holdfast.core.inputs import Inputs, Question
from holdfast.core.ragged import Ragged
from holdfast.core.store import join
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.positions import FIRST, Window, beside_questions, giving_states
from holdfast.nn.model import Model
from holdfast.record import Scores
from holdfast.tasks.base import Prepared, Rows, turned

START, END, PLACES, WINDOW = range(4)  # what the target of a window holds
LOST, SCORE, FROM, TO, WHICH = range(5)  # what is kept of a window
ASKED, ANSWER = 64, 30  # the most tokens of a question, and of an answer, where nothing else is said
CHUNK = 512


class Span:
    """Mean of the cross-entropies of an answer's first and last token; exact match and F1 of words, best window first.

    In a window without the answer both are its first place. The text of an answer is that of the window whose best
    stretch scores highest; nothing is never an answer. Windows overlap by `stride` tokens, by default a third of the
    encoder's length; `question` and `answer` are the most tokens of each.
    """

    metrics = ("answer_f1", "exact_match", "nll")
    needs = ("answers",)
    data_form = "questions"

    def __init__(self, *, stride: int | None = None, question: int = ASKED, answer: int = ANSWER) -> None:
        least = {"stride": 0, "question": 1, "answer": 1}
        for name, value in (("stride", stride), ("question", question), ("answer", answer)):
            if value is not None and (type(value) is not int or value < least[name]):
                raise BadInput(f"task.{name} is a number of tokens, at least {least[name]}, not {value!r}")
        self.stride, self.question, self.answer = stride, question, answer
        self.raw: Rows | None = None
        self.windows: Sequence[Window] = ()

    def prepare(self, encoder: Backbone, raw: Rows, classes: Sequence[str]) -> Prepared:
        giving, stores, y, counts, windows = giving_states(encoder, "span"), [], [], [], []
        for start in range(0, len(raw), CHUNK):
            asked = raw.take(np.arange(start, min(start + CHUNK, len(raw))))
            if not isinstance(asked[0], Question):
                raise BadInput("the task span needs questions with a text: see docs/tasks.md for the files")
            pairs = [(q.question, q.context) for q in asked]
            store, made, sizes = beside_questions(giving, pairs, longest=self.question, overlap=self.stride)
            stores.append(store)
            counts += sizes
            for each in made:
                first, last = _places(asked[each.owner], each.spans)
                y.append((first, last, len(each.spans) + 1, len(windows)))
                windows.append(Window(start + each.owner, each.spans))
        starts = torch.tensor([0, *counts]).cumsum(0)
        knowing = copy.copy(self)
        knowing.raw, knowing.windows = raw, windows
        return Prepared(join(stores), torch.tensor(y), knowing, starts)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return self._lost(output, y).mean()

    def loss_count(self, y: Tensor) -> int | Tensor | None:
        return len(y)

    def _lost(self, output: Tensor, y: Tensor) -> Tensor:
        """(b,) the mean of both risks of a window."""
        both = _within(output, y)
        first, last = (F.cross_entropy(both[..., i], y[:, i], reduction="none") for i in (START, END))
        return (first + last) / 2

    def stats(self, output: Tensor, y: Tensor) -> Tensor:
        """(b, 5) the risk, the best stretch's score, its first and last token of the text, the window."""
        score, first, last = _best(output, y, self.answer)
        columns = (self._lost(output, y), score, first, last, y[:, WINDOW])
        return torch.stack([column.float() for column in columns], dim=1)

    def loss_from_stats(self, kept: Tensor, y: Tensor) -> Tensor:
        return kept[:, LOST].mean()

    def evaluate(self, model: Model, x: Inputs, y: Tensor) -> Tensor:
        return self.stats(model(x), y)

    def scores(self, kept: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        found: Scores = {}
        said = self._answers(kept) if {"answer_f1", "exact_match"} & set(names) else []
        for name in names:
            match name:
                case "answer_f1":
                    found[name] = float(np.mean([max(overlap(text, a) for a in q.answers) for q, text in said]))
                case "exact_match":
                    found[name] = float(np.mean([any(exact(text, a) for a in q.answers) for q, text in said]))
                case "nll":
                    found[name] = float(kept[:, LOST].double().mean())
                case _:
                    raise unknown("metric", name, self.metrics)
        return found

    def _answers(self, kept: Tensor) -> list[tuple[Question, str]]:
        """Each question with the text of its best window, in the order of the questions' first windows."""
        assert self.raw is not None, "this task has not prepared a data set"
        best: dict[int, list[float]] = {}
        for row in kept.tolist():
            owner = self.windows[int(row[WHICH])].owner
            if owner not in best or row[SCORE] > best[owner][SCORE]:
                best[owner] = row
        questions = self.raw.take(np.fromiter(best, dtype=np.int64))
        return [(q, self._text(q, row)) for q, row in zip(questions, best.values(), strict=True)]

    def _text(self, question: Question, row: Sequence[float]) -> str:
        spans = self.windows[int(row[WHICH])].spans
        return question.context[spans[int(row[FROM])][0] : spans[int(row[TO])][1]]

    def correct(self, seen: Tensor, y: Tensor) -> Tensor | None:
        return torch.tensor([any(exact(text, a) for a in q.answers) for q, text in self._answers(seen)])

    def validation_metric(self, metric: str) -> str:
        return metric

    def selection_value(self, metric: str, value: float) -> float:
        return turned(metric, value, self.metrics)

    def sample_targets(self, output: Tensor, y: Tensor) -> Tensor:
        """(b, 4) the same windows with both ends drawn as the outputs mean them."""
        chance = _within(output, y).softmax(1)
        ends = [torch.multinomial(chance[..., i], 1) for i in (START, END)]
        return torch.cat([*ends, y[:, PLACES:]], dim=1)

    def prediction_columns(self, raw: Rows, found: Sequence[Tensor], y: Tensor | Ragged) -> dict[str, list[Any]]:
        """The answer to each question, and how probable its two ends are in its window."""
        assert isinstance(y, Tensor)
        kept = torch.cat([self.stats(each[None], y[i : i + 1]) for i, each in enumerate(found)])
        best: dict[int, tuple[float, float]] = {}
        for i, (row, each) in enumerate(zip(kept.tolist(), found, strict=True)):
            owner = self.windows[i].owner
            if owner not in best or row[SCORE] > best[owner][0]:
                parts = _within(each[None], y[i : i + 1])[0].log_softmax(0)
                sure = float((parts[int(row[FROM]) + 1, START] + parts[int(row[TO]) + 1, END]).exp())
                best[owner] = (row[SCORE], sure)
        return {"answer": [text for _, text in self._answers(kept)], "score": [sure for _, sure in best.values()]}


def _places(question: Question, spans: np.ndarray) -> tuple[int, int]:
    """First and last place of the first answer that lies in this window; the first place where none does."""
    for answer, start in zip(question.answers, question.starts, strict=True):
        end = start + len(answer)
        if len(spans) and spans[0][0] <= start and end <= spans[-1][1]:
            inside = np.flatnonzero((spans[:, 1] > start) & (spans[:, 0] < end))
            if len(inside):
                return int(inside[0]) + 1, int(inside[-1]) + 1
    return FIRST, FIRST


def _within(output: Tensor, y: Tensor) -> Tensor:
    """(b, k, 2) the scores, with none at places that a window does not have."""
    beyond = torch.arange(output.shape[1], device=y.device) >= y[:, PLACES, None]
    return output.masked_fill(beyond[..., None], torch.finfo(output.dtype).min)


def _best(output: Tensor, y: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """(b,) each: the highest sum of a start and an end of at most so many tokens, and where the two are in the text."""
    both = _within(output, y)[:, 1:].double()  # the first place is no answer
    first, last = both.unbind(-1)  # (b, k - 1)
    ahead = F.pad(last, (0, most - 1), value=-torch.inf).unfold(1, most, 1)  # (b, k - 1, most)
    sums = (first[..., None] + ahead).flatten(1)
    score, at = sums.max(1)
    start = at // most
    return score, start, start + at % most


ARTICLES = {"a", "an", "the"}
_BARE = str.maketrans("", "", string.punctuation)


def words_of(text: str) -> list[str]:
    """The words in small letters, without punctuation and articles."""
    return [word for word in text.lower().translate(_BARE).split() if word not in ARTICLES]


def exact(said: str, true: str) -> bool:
    return words_of(said) == words_of(true)


def overlap(said: str, true: str) -> float:
    """F1 of the words, each counted as often as it comes; 1 where neither has any."""
    mine, theirs = words_of(said), words_of(true)
    if not mine or not theirs:
        return float(mine == theirs)
    shared = (Counter(mine) & Counter(theirs)).total()
    return 2 * shared / (len(mine) + len(theirs))
