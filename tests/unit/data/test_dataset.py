"""Joined data sets and scored rows: rows, labels, splits and digests are unchanged."""

import numpy as np
import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset, join
from holdfast.data.raw import Texts, Vectors
from holdfast.data.splits import DomainRows, rows_by_domain
from holdfast.train.plans import CrossDataset, LeaveOneOut


def reviews(name: str, texts: list, labels: list[int], classes: tuple[str, ...], **more) -> Dataset:
    domain = np.zeros(len(texts), dtype=np.int64)
    return Dataset(
        name=name, raw=Texts.of(texts), y=np.array(labels), classes=classes, domain=domain, domains=(name,), **more
    )


FIRST = reviews(
    "a", ["a0", "a1", "a2", "a3"], [0, 1, 0, 1], ("bad", "good"), split=np.array([0, 0, 1, 2]), notes=("n",)
)
SECOND = reviews("b", ["b0", "b1", "b2"], [0, 1, 0], ("good", "bad"))


def test_rows_labels_domains_and_splits():
    found = join([FIRST, SECOND])
    assert (found.name, found.domains, found.classes, found.notes) == ("a+b", ("a", "b"), ("bad", "good"), ("n",))
    assert found.raw.take(np.array([5, 0, 6, 3])) == ["b1", "a0", "b2", "a3"]
    assert [found.classes[y] for y in found.y] == ["bad", "good", "bad", "good", "good", "bad", "good"]
    parts = rows_by_domain(found)
    assert {kind: rows.tolist() for kind, rows in parts["a"].splits.items()} == {
        "train": [0, 1],
        "valid": [2],
        "test": [3],
    }
    assert parts["b"].splits == {}  # it names no splits, so all its rows are tested, or cut by the seed
    assert parts["b"].test_part().rows.tolist() == [4, 5, 6]
    assert len(parts["b"].train_valid(0.4, 0)[0]) == 2
    assert join([SECOND]).split is None


def test_digest_equals_that_of_the_column_and_depends_on_order():
    raw = join([FIRST, SECOND]).raw
    assert raw.digest(np.array([4, 5, 6])) == SECOND.raw.digest(np.arange(3))
    assert raw.digest(np.array([1, 3])) == FIRST.raw.digest(np.array([1, 3]))
    some = [raw.digest(np.array(rows)) for rows in ([0, 4], [4, 0], [0, 5], [0, 4, 1])]
    assert len(set(some)) == 4
    assert join([FIRST, SECOND]).fingerprint != join([SECOND, FIRST]).fingerprint


def test_vectors_are_one_tensor():
    made = [
        Dataset(name=name, raw=Vectors(np.full((2, 3), value)), y=np.array([0, 1]), classes=("x", "y"),
                domain=np.zeros(2, dtype=np.int64), domains=(name,))
        for name, value in (("p", 1.0), ("q", 2.0))
    ]  # fmt: skip
    found = join(made).raw.take(np.array([3, 0]))
    assert torch.equal(found, torch.tensor([[2.0] * 3, [1.0] * 3]))


def test_incompatible_data_sets_are_rejected():
    pairs = reviews("p", [("x", "y"), ("z", "w")], [0, 1], ("bad", "good"))
    with pytest.raises(BadInput, match=r"a and p cannot be joined.*a text.*a pair of texts"):
        join([FIRST, pairs])
    with pytest.raises(BadInput, match=r"domain 'a' occurs in two of a\+a"):
        join([FIRST, FIRST])


def test_joined_set_works_with_the_cross_dataset_plan():
    found = join([FIRST, SECOND])
    (episode,) = CrossDataset(targets=("b",)).episodes(rows_by_domain(found), 0)
    (stage,) = episode.stages
    assert [(p.domain, p.rows.tolist()) for p in stage.train] == [("a", [0, 1])]
    assert [(p.domain, p.rows.tolist()) for p in stage.test] == [("b", [4, 5, 6])]


ROWS = np.arange(6)
GIVEN = {"train": ROWS[:3], "valid": ROWS[3:5], "test": ROWS[5:]}


def test_scored_rows_are_those_of_the_split_or_all():
    share = DomainRows("d", ROWS, GIVEN)
    assert [share.test_part(kind).rows.tolist() for kind in ("train", "valid", "test")] == [[0, 1, 2], [3, 4], [5]]
    assert share.test_part().rows.tolist() == [5]
    assert DomainRows("d", ROWS, {}).test_part("valid").rows.tolist() == ROWS.tolist()
    assert DomainRows("d", ROWS, {**GIVEN, "test": ROWS[:0]}).test_part().rows.tolist() == ROWS.tolist()
    with pytest.raises(BadInput, match="unknown split 'dev'"):
        share.test_part("dev")


def test_leave_one_out_can_score_on_validation_rows():
    found = {"a": DomainRows("a", ROWS, GIVEN), "b": DomainRows("b", ROWS + 6, {k: v + 6 for k, v in GIVEN.items()})}
    plain, other = (next(LeaveOneOut(targets=("b",), scored=s).episodes(found, 0)) for s in ("test", "valid"))
    assert [p.rows.tolist() for p in plain.stages[0].test] == [[11]]
    assert [p.rows.tolist() for p in other.stages[0].test] == [[9, 10]]
    for episode in (plain, other):
        assert [p.rows.tolist() for p in episode.stages[0].train] == [[0, 1, 2]]
