"""Span task: best span by brute force, windows of one question, normalised words."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Question
from holdfast.data.raw import Records, Texts
from holdfast.nn.backbones.text import TextEncoder
from holdfast.tasks.span import (
    END,
    FROM,
    LOSS,
    SCORE,
    START,
    TO,
    WHICH,
    WINDOW,
    Span,
    exact_match,
    normalized_words,
    word_f1,
)
from tests.annotated import question_rows
from tests.tiny import tiny_bert


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return TextEncoder.build(list, name=str(tiny_bert(tmp_path_factory.mktemp("bert"))), length=24)


@pytest.fixture(scope="module")
def raw():
    parts = ("context", "question", "answers", "answer_start")
    rows = [[row[part] for part in parts] for row in question_rows("home", 12)]
    return Records([Question(context, question, tuple(a), tuple(s)) for context, question, a, s in rows])


@pytest.fixture(scope="module")
def bound(encoder, raw):
    return Span().prepare(encoder, raw, ("start", "end"))


def test_window_targets_are_the_answer_positions(bound, raw, encoder):
    questions = raw.take(np.arange(len(raw)))
    assert len(bound.store) > len(raw)
    result = set()
    for i, window in enumerate(bound.task.windows):
        first, last, places, number = bound.y[i].tolist()
        assert number == i
        assert places == len(window.spans) + 1
        if first:
            text = questions[window.owner].context[window.spans[first - 1][0] : window.spans[last - 1][1]]
            assert text == questions[window.owner].answers[0]
            result.add(window.owner)
        else:
            assert last == 0
    assert result == set(range(len(raw)))  # the overlap is longer than an answer
    owners = [w.owner for w in bound.task.windows]
    assert owners == [row for row in range(len(raw)) for _ in range(int(bound.starts[row + 1] - bound.starts[row]))]


def test_best_span_equals_brute_force(bound):
    x = torch.randn(len(bound.store), 60, 2, generator=torch.Generator().manual_seed(0))
    kept = bound.task.stats(x, bound.y)
    for row, output, target in zip(kept.tolist(), x.tolist(), bound.y.tolist(), strict=True):
        n = target[2]
        tried = {(i, j): output[i][0] + output[j][1] for i in range(1, n) for j in range(i, min(n, i + 30))}
        (i, j), score = max(tried.items(), key=lambda each: each[1])
        assert (row[FROM] + 1, row[TO] + 1) == (i, j)
        assert row[SCORE] == pytest.approx(score, rel=1e-5)
        assert row[WHICH] == target[WINDOW]


def test_answers_respect_the_maximum_length(encoder, raw):
    bound = Span(answer=3).prepare(encoder, raw, ("start", "end"))
    x = torch.randn(len(bound.store), 60, 2, generator=torch.Generator().manual_seed(0))
    for row, output, target in zip(bound.task.stats(x, bound.y).tolist(), x.tolist(), bound.y.tolist(), strict=True):
        n = target[2]
        tried = {(i, j): output[i][0] + output[j][1] for i in range(1, n) for j in range(i, min(n, i + 3))}
        assert (row[FROM] + 1, row[TO] + 1) == max(tried, key=lambda each: tried[each])


def test_windows_overlap_by_the_stride_and_questions_are_cut(encoder, raw, bound):
    questions = raw.take(np.arange(len(raw)))
    for stride in (0, 3):
        result = Span(stride=stride, question=2).prepare(encoder, raw, ()).task.windows
        both = [(a, b) for a, b in pairwise(result) if a.owner == b.owner]
        assert both
        for first, second in both:
            shared = [tuple(span) for span in second.spans.tolist() if span in first.spans.tolist()]
            assert len(shared) == stride
            text = questions[first.owner].context
            assert text[first.spans[-1][0] :].startswith(text[slice(*first.spans[-1])])
    usual = Span(stride=8, question=64).prepare(encoder, raw, ("start", "end"))  # a third of the length
    assert torch.equal(usual.y, bound.y)
    short = Span(question=1).prepare(encoder, raw, ())
    assert len(short.store) < len(bound.store)  # more room for the text
    assert Span(stride=3).prepare(encoder, raw, ()).task.stride == 3


@pytest.mark.parametrize(
    ("value", "pattern"),
    [
        ({"stride": -1}, "`stride` .* 0, got -1"),
        ({"question": 0}, "`question` .* 1, got 0"),
        ({"answer": 2.5}, r"answer .* got 2\.5"),
        ({"answer": True}, "answer .* got True"),
        ({"stride": 20, "question": 5}, r"task\.stride 20 .* 15"),
    ],
)
def test_invalid_settings_raise(value, pattern, encoder, raw):
    with pytest.raises(BadInput, match=pattern):
        catalog.build("tasks", "span", options=value).prepare(encoder, raw, ())


def test_loss_is_the_mean_over_both_ends_of_real_positions(bound):
    x = torch.randn(len(bound.store), 60, 2, generator=torch.Generator().manual_seed(1))
    each = []
    for output, target in zip(x, bound.y, strict=True):
        real = output[: int(target[2])]
        each.append((F.cross_entropy(real[:, 0], target[START]) + F.cross_entropy(real[:, 1], target[END])) / 2)
    expected = torch.stack(each)
    torch.testing.assert_close(bound.task.loss(x, bound.y), expected.mean())
    kept = bound.task.stats(x, bound.y)
    torch.testing.assert_close(kept[:, LOSS], expected)
    assert bound.task.scores(kept, bound.y, ["nll"])["nll"] == pytest.approx(float(expected.mean()))


def test_best_window_provides_the_answer(bound, raw):
    output = torch.zeros(len(bound.store), 60, 2)
    for i, (first, last, _, _) in enumerate(bound.y.tolist()):
        output[i, first or 1, START] = output[i, last or 1, END] = 9.0 if first else 4.0
    kept = bound.task.stats(output, bound.y)
    result = bound.task.scores(kept, bound.y, bound.task.metrics)
    assert result["exact_match"] == result["answer_f1"] == 1.0
    assert bound.task.correct(kept, bound.y).tolist() == [True] * len(raw)
    columns = bound.task.prediction_columns(raw, list(output), bound.y)
    assert columns["answer"] == [q.answers[0] for q in raw.take(np.arange(len(raw)))]
    assert all(0.5 < sure <= 1 for sure in columns["score"])
    wrong = bound.task.stats(-output, bound.y)
    assert bound.task.scores(wrong, bound.y, ["exact_match"])["exact_match"] < 0.5
    assert bound.task.sample_targets(output * 9, bound.y)[:, 2:].equal(bound.y[:, 2:])


def test_words_are_normalised_as_in_squad():
    assert normalized_words("The  Fox, an (old) one!") == ["fox", "old", "one"]
    assert exact_match("the U.S.", "US")
    assert not exact_match("fox one", "one fox")
    assert word_f1("one fox", "the fox one") == 1.0
    assert word_f1("a red fox", "fox fox") == pytest.approx(2 * 1 / 4)
    assert word_f1("the", "a") == 1.0
    assert word_f1("the", "fox") == 0.0


def test_plain_texts_raise(encoder):
    with pytest.raises(BadInput, match="needs questions with a text"):
        Span().prepare(encoder, Texts.of(["a"]), ())
