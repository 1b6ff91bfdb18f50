"""Tag task: entity counts, truncated words, loss at first tokens."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Sentence
from holdfast.core.ragged import NONE
from holdfast.data.raw import Records, Texts
from holdfast.nn.backbones.text import TextEncoder
from holdfast.tasks.base import Structured
from holdfast.tasks.tag import (
    CORRECT_ENTITIES,
    CORRECT_TAGS,
    LOSS,
    PREDICTED_ENTITIES,
    TRUE_ENTITIES,
    VISIBLE,
    WORDS,
    Tag,
)
from tests.tiny import tiny_bert

CLASSES = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
TASK = Tag(CLASSES)
TAGS = st.lists(st.integers(0, 4), min_size=1, max_size=9)


def entities(tags):
    """Return (first, last, kind) per entity; an I- tag without a preceding tag of its type starts one."""
    result, begin, inside = [], 0, None
    for i, tag in enumerate([*(CLASSES[t] for t in tags), "O"]):
        kind = None if tag == "O" else tag[2:]
        if inside is not None and (kind != inside or tag.startswith("B-")):
            result.append((begin, i - 1, inside))
            inside = None
        if kind is not None and inside is None:
            begin, inside = i, kind
    return set(result)


def padded(rows):
    width = max(map(len, rows))
    return torch.tensor([row + [NONE] * (width - len(row)) for row in rows])


def sure(rows):
    return F.one_hot(padded(rows).clamp(min=0), len(CLASSES)).float() * 9


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(pairs=st.lists(TAGS.flatmap(lambda t: st.tuples(st.just(t), st.permutations(t))), min_size=1, max_size=4))
def test_entity_counts_equal_a_naive_count(pairs):
    true, pattern = [list(a) for a, _ in pairs], [list(b) for _, b in pairs]
    kept = TASK.stats(sure(pattern), padded(true))
    for row, a, b in zip(kept.tolist(), true, pattern, strict=True):
        mine, theirs = entities(b), entities(a)
        assert (row[CORRECT_ENTITIES], row[PREDICTED_ENTITIES], row[TRUE_ENTITIES]) == (
            len(mine & theirs),
            len(mine),
            len(theirs),
        )
        assert row[CORRECT_TAGS] == sum(x == y for x, y in zip(a, b, strict=True))
        assert row[VISIBLE] == row[WORDS] == len(a)


def test_scores_are_computed_over_all_sentences():
    y = padded([[1, 2, 0, 3], [3, 0]])
    kept = TASK.stats(sure([[1, 2, 0, 1], [3, 3]]), y)  # predicted 4, true 3, correct 2
    result = TASK.scores(kept, y, TASK.metrics)
    assert result["entity_precision"] == pytest.approx(2 / 4)
    assert result["entity_recall"] == pytest.approx(2 / 3)
    assert result["entity_f1"] == pytest.approx(4 / 7)
    assert result["accuracy"] == pytest.approx(4 / 6)
    assert TASK.selection_value("nll", 2.0) == -2.0
    with pytest.raises(BadInput, match="entity_f1"):
        TASK.selection_value("entity_f", 1.0)


def test_truncated_word_lowers_recall_but_not_the_loss():
    y = torch.tensor([[1, 2, 3 + 5]])  # the last word was cut off
    output = sure([[1, 2, 3]])
    kept = TASK.stats(output, y)
    assert kept[0, [VISIBLE, WORDS, CORRECT_ENTITIES, PREDICTED_ENTITIES, TRUE_ENTITIES]].tolist() == [2, 3, 1, 1, 2]
    seen = F.cross_entropy(output[0, :2], y[0, :2])
    torch.testing.assert_close(TASK.loss(output, y), seen)
    torch.testing.assert_close(TASK.loss_from_stats(kept, y), seen)
    assert kept[0, LOSS] == pytest.approx(2 * float(seen))


def test_batch_without_visible_words_has_zero_loss():
    assert float(TASK.loss(torch.zeros(1, 1, 5), torch.tensor([[7]]))) == 0


def test_sampled_targets_keep_truncated_words():
    y = torch.tensor([[1, 9, NONE]])
    drawn = TASK.sample_targets(sure([[4, 4, 4]]) * 9, y)
    assert drawn.tolist() == [[4, 9, NONE]]


def test_targets_are_at_first_tokens(tmp_path):
    encoder = TextEncoder.build(list, name=str(tiny_bert(tmp_path / "b")), length=8)
    raw = Records([Sentence(["the", "phone", "x1"], [0, 1, 2]), Sentence(["bad"] * 9, [0] * 8 + [3])])
    bound = Tag().prepare(encoder, raw, CLASSES)
    y = bound.y.take(torch.arange(2))
    assert y[0].tolist() == [0, 1, 2] + [NONE] * 6
    assert y[1].tolist() == [0] * 6 + [5, 5, 8]  # six words and two special tokens fill eight tokens
    assert bound.store.take(torch.arange(1)).at.tolist() == [[1, 2, 3]]
    assert isinstance(bound.task, Structured)
    columns = bound.task.prediction_columns(raw, list(sure([[3, 4, 0], [1] * 9])), bound.y)
    assert columns["tokens"][0] == ["the", "phone", "x1"]
    assert columns["tags"] == [["B-PER", "I-PER", "O"], ["B-LOC"] * 6 + ["O"] * 3]
    with pytest.raises(BadInput, match="task tag needs sentences"):
        Tag().prepare(encoder, Texts.of(["a text"]), CLASSES)
    assert raw.take(torch.tensor([0]).numpy()) == [Sentence(["the", "phone", "x1"], [0, 1, 2])]
