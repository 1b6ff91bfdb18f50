"""Extractive question answering: the start and the end of the answer in a text, over windows of long texts.

Shapes: b windows, k positions in the longest window, n questions.
"""

import copy
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from holdfast.core.errors import BadInput, check_known
from holdfast.core.inputs import Inputs, Question
from holdfast.core.ragged import Ragged
from holdfast.core.settings import checked_settings, keywords_of, setting
from holdfast.core.store import join
from holdfast.data.raw import Raw
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.backbones.positions import FIRST, Window, question_windows, token_encoder
from holdfast.nn.model import Model
from holdfast.record import Scores
from holdfast.tasks.base import Prepared, Task, chunks

START, END, POSITIONS, WINDOW = range(4)  # columns of a window's target
LOSS, SCORE, FROM, TO, WHICH = range(5)  # columns of `Span.stats`
CHUNK = 512
ARTICLES = {"a", "an", "the"}
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Span(Task):
    """Mean cross-entropy of the answer's first and last token; exact match and word F1 of the best span.

    In a window without the answer both targets are the first position. The predicted answer is the span with the
    highest score over all windows of a question; it is never empty. Windows overlap by `stride` tokens, by default a
    third of the encoder's length; `question` and `answer` are the maximum numbers of tokens of each.
    """

    metrics = ("answer_f1", "exact_match", "nll")
    needs = ("answers",)
    data_form = "questions"
    unit = "answers"

    @checked_settings
    class Settings:
        stride: int | None = setting(None, least=0, help="tokens by which windows overlap")
        question: int = setting(64, least=1, help="tokens of a question, at most")
        answer: int = setting(30, least=1, help="tokens of an answer, at most")

    @keywords_of(Settings)
    def __init__(self, settings: Settings) -> None:
        self.stride, self.question, self.answer = settings.stride, settings.question, settings.answer
        self.raw: Raw | None = None
        self.windows: Sequence[Window] = ()

    def prepare(self, encoder: Backbone, raw: Raw, classes: Sequence[str]) -> Prepared:
        """Build windows of question and text, with the positions of the answer as targets."""
        tokens, stores, y, counts, windows = token_encoder(encoder, "span"), [], [], [], []
        for start, questions in chunks(raw, CHUNK):
            if not isinstance(questions[0], Question):
                raise BadInput("the task span needs questions with a text: see docs/tasks.md for the files")
            pairs = [(q.question, q.context) for q in questions]
            store, new, sizes = question_windows(tokens, pairs, longest=self.question, overlap=self.stride)
            stores.append(store)
            counts += sizes
            for window in new:
                first, last = _answer_positions(questions[window.owner], window.spans)
                y.append((first, last, len(window.spans) + 1, len(windows)))
                windows.append(Window(start + window.owner, window.spans))
        starts = torch.tensor([0, *counts]).cumsum(0)
        bound = copy.copy(self)
        bound.raw, bound.windows = raw, windows
        return Prepared(join(stores), torch.tensor(y), bound, starts)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return self._losses(output, y).mean()

    def loss_count(self, y: Tensor) -> int | Tensor | None:
        return len(y)

    def _losses(self, output: Tensor, y: Tensor) -> Tensor:
        """(b,) mean of the start loss and the end loss per window."""
        logits = _masked_logits(output, y)
        first, last = (F.cross_entropy(logits[..., i], y[:, i], reduction="none") for i in (START, END))
        return (first + last) / 2

    def stats(self, output: Tensor, y: Tensor) -> Tensor:
        """(b, 5) the loss, the score of the best span, its first and last token of the text, the window."""
        columns = (self._losses(output, y), *_best_spans(output, y, self.answer), y[:, WINDOW])
        return torch.stack([column.float() for column in columns], dim=1)

    def predictions(self, model: Model, x: Inputs, y: Tensor) -> Tensor:
        """(b, 1) best span per window, as one number."""
        _, first, last = _best_spans(output := model(x), y, self.answer)
        return (first.long() * output.shape[1] + last.long())[:, None]

    def loss_from_stats(self, stats: Tensor, y: Tensor) -> Tensor:
        return stats[:, LOSS].mean()

    def scores(self, stats: Tensor, y: Tensor, names: Sequence[str]) -> Scores:
        for name in names:
            check_known("metric", name, self.metrics)
        values = {"nll": float(stats[:, LOSS].double().mean())}
        if set(names) - {"nll"}:
            answers = self._answers(stats)
            exact = [any(exact_match(text, a) for a in q.answers) for q, text in answers]
            f1 = [max(word_f1(text, a) for a in q.answers) for q, text in answers]
            values |= {"exact_match": float(np.mean(exact)), "answer_f1": float(np.mean(f1))}
        return {name: values[name] for name in names}

    def _best_windows(self, stats: Tensor) -> dict[int, int]:
        """Question -> row of its window with the highest score, in the order of the questions' first windows."""
        owner = [self.windows[int(window)].owner for window in stats[:, WHICH].tolist()]
        score, best = stats[:, SCORE].tolist(), {}
        for row, question in enumerate(owner):
            if question not in best or score[row] > score[best[question]]:
                best[question] = row
        return best

    def _answers(self, stats: Tensor) -> list[tuple[Question, str]]:
        """Each question with the text of its best span."""
        assert self.raw is not None, "this task has not prepared a data set"
        best = self._best_windows(stats)
        questions = self.raw.take(np.fromiter(best, dtype=np.int64))
        rows = [stats[row].tolist() for row in best.values()]
        return [(q, self._text(q, row)) for q, row in zip(questions, rows, strict=True)]

    def _text(self, question: Question, row: Sequence[float]) -> str:
        spans = self.windows[int(row[WHICH])].spans
        return question.context[spans[int(row[FROM])][0] : spans[int(row[TO])][1]]

    def correct(self, stats: Tensor, y: Tensor) -> Tensor | None:
        return torch.tensor([any(exact_match(text, a) for a in q.answers) for q, text in self._answers(stats)])

    def sample_targets(self, output: Tensor, y: Tensor) -> Tensor:
        """(b, 4) targets with both ends sampled."""
        probability = _masked_logits(output, y).softmax(1)
        ends = [torch.multinomial(probability[..., i], 1) for i in (START, END)]
        return torch.cat([*ends, y[:, POSITIONS:]], dim=1)

    def prediction_columns(self, raw: Raw, outputs: Sequence[Tensor], y: Tensor | Ragged) -> dict[str, list[Any]]:
        """Return one answer per question, and the probability of its start and end in its window."""
        assert isinstance(y, Tensor)
        stats = torch.cat([self.stats(output[None], y[i : i + 1]) for i, output in enumerate(outputs)])
        scores = []
        for i in self._best_windows(stats).values():
            logs = _masked_logits(outputs[i][None], y[i : i + 1])[0].log_softmax(0)
            first, last = int(stats[i, FROM]) + 1, int(stats[i, TO]) + 1
            scores.append(float((logs[first, START] + logs[last, END]).exp()))
        return {"answer": [text for _, text in self._answers(stats)], "score": scores}


def _answer_positions(question: Question, spans: np.ndarray) -> tuple[int, int]:
    """First and last position of the first answer inside a window; the first position if it contains none."""
    for answer, start in zip(question.answers, question.starts, strict=True):
        end = start + len(answer)
        if len(spans) and spans[0][0] <= start and end <= spans[-1][1]:
            inside = np.flatnonzero((spans[:, 1] > start) & (spans[:, 0] < end))
            if len(inside):
                return int(inside[0]) + 1, int(inside[-1]) + 1
    return FIRST, FIRST


def _masked_logits(output: Tensor, y: Tensor) -> Tensor:
    """(b, k, 2) logits with the positions after a window's end masked out."""
    padding = torch.arange(output.shape[1], device=y.device) >= y[:, POSITIONS, None]
    return output.masked_fill(padding[..., None], torch.finfo(output.dtype).min)


def _best_spans(output: Tensor, y: Tensor, longest: int) -> tuple[Tensor, Tensor, Tensor]:
    """(b,) each: the highest start + end logit of spans of at most `longest` tokens, its first and its last token."""
    logits = _masked_logits(output, y)[:, 1:].double()  # the first position is no answer
    first, last = logits.unbind(-1)  # (b, k - 1)
    ends = F.pad(last, (0, longest - 1), value=-torch.inf).unfold(1, longest, 1)  # (b, k - 1, longest)
    score, index = (first[..., None] + ends).flatten(1).max(1)
    start = index // longest
    return score, start, start + index % longest


def normalized_words(text: str) -> list[str]:
    """Lower-case words without punctuation and articles."""
    return [word for word in text.lower().translate(NO_PUNCTUATION).split() if word not in ARTICLES]


def exact_match(answer: str, reference: str) -> bool:
    return normalized_words(answer) == normalized_words(reference)


def word_f1(answer: str, reference: str) -> float:
    """F1 of the words, with multiplicity; 1 if neither text has any."""
    words, references = normalized_words(answer), normalized_words(reference)
    if not words or not references:
        return float(words == references)
    shared = (Counter(words) & Counter(references)).total()
    return 2 * shared / (len(words) + len(references))
