"""Duplicate rows, what they duplicate, and which rows are kept."""

import numpy as np

from holdfast.auditing.duplicates import CONFLICT, EQUAL, KEPT, NEAR, choose, conflicts, find_duplicates
from holdfast.auditing.examples import Examples
from holdfast.auditing.facts import domain_facts, dropped, examples_of, leaks, overlaps
from holdfast.auditing.shift import label_counts
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Texts

LONG = "the quick brown fox jumps over the lazy dog and runs away from the old farm house"
ROWS = [  # text, label, domain, split
    ("one plain sentence about nothing", 0, 0, 0),
    ("one plain sentence about nothing", 0, 0, 2),  # 1: the same in test
    ("one plain sentence about nothing", 0, 1, 0),  # 2: the same in another domain
    (LONG, 1, 0, 0),
    (LONG + "s", 1, 1, 1),  # 4: nearly, in valid
    ("disputed", 0, 0, 0),
    ("disputed", 1, 0, 0),  # 6: a tie
    ("mostly clear", 1, 1, 0),
    ("mostly clear", 0, 1, 0),
    ("mostly clear", 0, 1, 0),  # 9: label 0 is the most frequent
    ("quite another thing", 1, 1, 2),
]


def planted() -> Dataset:
    text, y, domain, split = (list(column) for column in zip(*ROWS, strict=True))
    return Dataset("planted", Texts.of(text), np.array(y), ("a", "b"), np.array(domain), ("x", "y"), np.array(split))


def test_choice_keeps_test_rows_and_most_frequent_labels():
    dataset = planted()
    duplicates = find_duplicates(Examples(dataset), near=0.8)
    assert len(duplicates.group) - len(duplicates.first) == 5
    choice = choose(duplicates, dataset.y, dataset.split)
    expected = {1: KEPT, 4: KEPT, 8: KEPT, 10: KEPT, 3: NEAR, 5: CONFLICT, 6: CONFLICT}
    assert choice.reason.tolist() == [expected.get(row, EQUAL) for row in range(11)]
    assert choice.because[[0, 2, 3, 7, 9]].tolist() == [1, 1, 4, 8, 8]
    assert {"row": 4, "reason": "near", "of": 5} in dropped(choice)
    assert len(dropped(choice)) == 7
    exact = choose(find_duplicates(Examples(dataset), near=1.0), dataset.y, dataset.split)
    assert exact.reason[3] == KEPT


def test_first_row_is_kept_without_splits_and_labels():
    dataset = planted()
    duplicates = find_duplicates(Examples(dataset), near=0.8)
    choice = choose(duplicates, np.full(11, -1), None)
    assert choice.kept_rows().tolist() == [0, 3, 5, 7, 10]


def test_facts_count_planted_duplicates():
    dataset = planted()
    examples = Examples(dataset)
    duplicates = find_duplicates(examples, near=0.8)
    conflict = conflicts(duplicates, dataset.y)
    assert np.flatnonzero(conflict).tolist() == [5, 6, 7, 8, 9]
    names, counts = label_counts(dataset)
    assert counts.tolist() == [[3, 2], [3, 3]]
    one, other = domain_facts(
        dataset, duplicates, choose(duplicates, dataset.y, dataset.split), conflict, names, counts
    )
    assert (one.again, one.elsewhere, one.near, one.near_elsewhere, one.conflicts, one.kept) == (2, 2, 0, 1, 2, 1)
    assert (other.again, other.elsewhere, other.near, other.near_elsewhere, other.kept) == (2, 1, 0, 1, 3)
    assert one.splits == {"train": 4, "test": 1}
    assert [(k.split, k.also_in, k.examples, k.equal, k.near) for k in leaks(dataset, duplicates)] == [
        ("valid", "train", 1, 0, 1),
        ("test", "train", 2, 1, 0),
        ("test", "valid", 2, 0, 0),
    ]
    assert overlaps(dataset, duplicates) == {"x": {"y": 3}, "y": {"x": 2}}
    shown = examples_of(examples, duplicates, conflict)
    assert [example.what for example in shown] == ["conflict", "conflict", "equal", "near"]
    assert shown[0].rows == (8, 9, 10)
    assert shown[2].domains == ("x", "y")
