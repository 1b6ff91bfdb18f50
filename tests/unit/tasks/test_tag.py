"""Tags of words: entities counted as by hand, words that are cut off, risks of first tokens alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Sentence
from holdfast.core.ragged import NONE
from holdfast.data.raw import Texts
from holdfast.data.readers.tags import Sentences
from holdfast.nn.backbones.text import TextEncoder
from holdfast.tasks.base import ColumnTask, Structured
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
    """(first, last, kind) word by word: an I- that continues nothing begins one."""
    found, begin, inside = [], 0, None
    for i, tag in enumerate([*(CLASSES[t] for t in tags), "O"]):
        kind = None if tag == "O" else tag[2:]
        if inside is not None and (kind != inside or tag.startswith("B-")):
            found.append((begin, i - 1, inside))
            inside = None
        if kind is not None and inside is None:
            begin, inside = i, kind
    return set(found)


def padded(rows):
    width = max(map(len, rows))
    return torch.tensor([row + [NONE] * (width - len(row)) for row in rows])


def sure(rows):
    return F.one_hot(padded(rows).clamp(min=0), len(CLASSES)).float() * 9


@given(pairs=st.lists(TAGS.flatmap(lambda t: st.tuples(st.just(t), st.permutations(t))), min_size=1, max_size=4))
def test_entities_are_counted_as_by_hand(pairs):
    true, said = [list(a) for a, _ in pairs], [list(b) for _, b in pairs]
    kept = TASK.stats(sure(said), padded(true))
    for row, a, b in zip(kept.tolist(), true, said, strict=True):
        mine, theirs = entities(b), entities(a)
        assert (row[CORRECT_ENTITIES], row[PREDICTED_ENTITIES], row[TRUE_ENTITIES]) == (
            len(mine & theirs),
            len(mine),
            len(theirs),
        )
        assert row[CORRECT_TAGS] == sum(x == y for x, y in zip(a, b, strict=True))
        assert row[VISIBLE] == row[WORDS] == len(a)


def test_scores_are_those_of_all_sentences_together():
    y = padded([[1, 2, 0, 3], [3, 0]])
    kept = TASK.stats(sure([[1, 2, 0, 1], [3, 3]]), y)  # found 4, true 3, right 2
    found = TASK.scores(kept, y, TASK.metrics)
    assert found["entity_precision"] == pytest.approx(2 / 4)
    assert found["entity_recall"] == pytest.approx(2 / 3)
    assert found["entity_f1"] == pytest.approx(4 / 7)
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert TASK.selection_value("nll", 2.0) == -2.0
    with pytest.raises(BadInput, match="entity_f1"):
        TASK.selection_value("entity_f", 1.0)


def test_a_word_that_was_cut_off_costs_recall_and_no_risk():
    y = torch.tensor([[1, 2, 3 + 5]])  # the last was never seen
    output = sure([[1, 2, 3]])
    kept = TASK.stats(output, y)
    assert kept[0, [VISIBLE, WORDS, CORRECT_ENTITIES, PREDICTED_ENTITIES, TRUE_ENTITIES]].tolist() == [2, 3, 1, 1, 2]
    seen = F.cross_entropy(output[0, :2], y[0, :2])
    torch.testing.assert_close(TASK.loss(output, y), seen)
    torch.testing.assert_close(TASK.loss_from_stats(kept, y), seen)
    assert kept[0, LOSS] == pytest.approx(2 * float(seen))


def test_a_batch_without_a_word_that_is_seen_has_no_risk():
    assert float(TASK.loss(torch.zeros(1, 1, 5), torch.tensor([[7]]))) == 0


def test_draws_keep_what_is_not_seen():
    y = torch.tensor([[1, 9, NONE]])
    drawn = TASK.sample_targets(sure([[4, 4, 4]]) * 9, y)
    assert drawn.tolist() == [[4, 9, NONE]]


def test_prepared_targets_lie_at_the_words(tmp_path):
    encoder = TextEncoder.build(list, name=str(tiny_bert(tmp_path / "b")), length=8)
    raw = Sentences([["the", "phone", "x1"], ["bad"] * 9], [[0, 1, 2], [0] * 8 + [3]])
    made = Tag().prepare(encoder, raw, CLASSES)
    y = made.y.take(torch.arange(2))
    assert y[0].tolist() == [0, 1, 2] + [NONE] * 6
    assert y[1].tolist() == [0] * 6 + [5, 5, 8]  # six words and two marks fill eight tokens
    assert made.store.take(torch.arange(1)).at.tolist() == [[1, 2, 3]]
    assert isinstance(made.task, Structured)
    assert isinstance(made.task, ColumnTask)
    told = made.task.prediction_columns(raw, list(sure([[3, 4, 0], [1] * 9])), made.y)
    assert told["tokens"][0] == ["the", "phone", "x1"]
    assert told["tags"] == [["B-PER", "I-PER", "O"], ["B-LOC"] * 6 + ["O"] * 3]
    with pytest.raises(BadInput, match="task tag needs sentences"):
        Tag().prepare(encoder, Texts.of(["a text"]), CLASSES)
    assert raw.take(torch.tensor([0]).numpy()) == [Sentence(["the", "phone", "x1"], [0, 1, 2])]
