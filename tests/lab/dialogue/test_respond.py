"""Respond task: loss, corpus BLEU-2 and the other metrics."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from lab.dialogue.encoder import Dialogue
from lab.dialogue.head import NoHead
from lab.dialogue.respond import Respond, shared_ngrams
from tests.unit.report.fake_records import record

TASK = Respond()
NONE = torch.full((4,), -1)
PAIRS = [("where is it", "it is here now"), ("is it here", "no it is not"), ("now", "yes"), ("why", "it is")]


def stats_of(answers: list[list[int]], expected: list[list[int]], *, near: float = math.nan) -> torch.Tensor:
    """Build the statistics of these answers and references."""
    rows = [
        [1.0, 2.0, shared_ngrams(a, b, 1), shared_ngrams(a, b, 2), len(a), len(b), near, *a, *[0] * (8 - len(a))]
        for a, b in zip(answers, expected, strict=True)
    ]
    return torch.tensor(rows)


def bleu2(answers: list[list[int]], expected: list[list[int]]) -> float:
    """Compute BLEU-2 by its definition: clipped corpus precisions, their geometric mean, the brevity penalty."""
    precisions = []
    for n in (1, 2):
        matched = total = 0
        for a, b in zip(answers, expected, strict=True):
            ours = Counter(tuple(a[i : i + n]) for i in range(len(a) - n + 1))
            theirs = Counter(tuple(b[i : i + n]) for i in range(len(b) - n + 1))
            matched += sum(min(count, theirs[gram]) for gram, count in ours.items())
            total += sum(ours.values())
        precisions.append(matched / total)
    c, r = sum(map(len, answers)), sum(map(len, expected))
    brevity = 1.0 if c >= r else math.exp(1 - r / c)
    return brevity * math.sqrt(precisions[0] * precisions[1])


def test_loss_is_the_mean_over_words():
    output = torch.tensor([[6.0, 2.0], [1.0, 8.0]])
    loss = TASK.loss(output, NONE[:2])
    assert float(loss) == pytest.approx(0.7)
    scores = TASK.scores(output, NONE[:2], ["nll", "perplexity"])
    assert scores == pytest.approx({"nll": 0.7, "perplexity": math.exp(0.7)})
    assert float(TASK.loss(torch.zeros(3, 2), NONE[:3])) == 0.0


@pytest.mark.parametrize("seed", range(6))
def test_bleu_equals_the_corpus_definition(seed):
    rng = np.random.default_rng(seed)
    answers, expected = ([rng.integers(1, 5, rng.integers(1, 8)).tolist() for _ in range(9)] for _ in range(2))
    result = TASK.scores(stats_of(answers, expected), NONE, ["bleu2"])["bleu2"]
    assert result == pytest.approx(bleu2(answers, expected))


def test_bleu_without_shared_words_or_bigrams_is_zero():
    for answers, expected in (([2], [3, 1]), ([3, 1], [1, 3]), ([], [1, 3]), ([-1, 1], [1, -1])):  # -1 is unknown
        assert TASK.scores(stats_of([answers], [expected]), NONE, ["bleu2"])["bleu2"] == 0.0


def test_distinct_bigrams_and_similarity():
    seen = stats_of([[1, 2, 1, 2], [1, 2], [5]], [[1]] * 3, near=0.25)
    assert TASK.scores(seen, NONE, ["distinct2"])["distinct2"] == pytest.approx(2 / 4)
    assert TASK.scores(seen, NONE, ["w2v_similarity"])["w2v_similarity"] == pytest.approx(0.25)
    assert TASK.scores(stats_of([[1]], [[1]]), NONE, ["w2v_similarity", "distinct2"]) == {
        "w2v_similarity": None,
        "distinct2": 0.0,
    }


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    encoder = Dialogue.build(lambda: PAIRS, embedding=8, hidden=8, slots=4, longest=5)
    return Model(encoder, NoNeck(2), NoHead(2)).eval()


def test_evaluate_returns_all_statistics(model):
    x = model.backbone.prepare(PAIRS).take(torch.arange(4))
    with torch.no_grad():
        seen, answers = TASK.evaluate(model, x, torch.zeros(0)), model.backbone.answer(x).tolist()
        assert torch.equal(seen[:, :2], model(x))
    assert seen.shape == (4, 12)
    pattern = [[word for word in row if word] for row in answers]
    expected = [model.backbone.table.ids(text.split()) for _, text in PAIRS]
    torch.testing.assert_close(
        seen, torch.cat([model(x).detach(), stats_of(pattern, expected)[:, 2:12]], 1), equal_nan=True
    )
    scores = TASK.scores(seen, NONE, TASK.metrics)
    assert set(scores) == set(TASK.metrics)
    assert [name for name, value in scores.items() if value is None] == ["w2v_similarity"]


def test_validation_uses_the_likelihood():
    assert [TASK.validation_metric(name) for name in TASK.metrics] == ["nll", "perplexity", "nll", "nll", "nll"]
    for metric in TASK.metrics:
        run = record("erm", 0, {"films": 0.5})
        run.spec.update(task="respond", metric=metric)
        assert run.validated == TASK.validation_metric(metric)
    assert TASK.selection_value("nll", 2.0) == TASK.selection_value("perplexity", 2.0) == -2.0
    assert TASK.selection_value("bleu2", 0.5) == 0.5
    with pytest.raises(BadInput, match="did you mean 'bleu2'"):
        TASK.selection_value("bleu", 1.0)
    with pytest.raises(BadInput, match="unknown metric"):
        TASK.scores(torch.zeros(1, 9), NONE[:1], ["rouge"])


def test_targets_are_not_sampled_and_other_encoders_raise(model):
    assert TASK.sample_targets(torch.zeros(4, 2), NONE) is NONE
    plain = Model(torch.nn.Identity(), NoNeck(2), Linear(2, 2))
    with pytest.raises(BadInput, match="dialogue-gru"):
        TASK.evaluate(plain, torch.zeros(1, 2), torch.zeros(1))
    with pytest.raises(BadInput, match="no layer"):
        model.head.last_layer()
