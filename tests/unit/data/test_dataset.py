"""Data sets, their splits and held-out rows, and alignment with a model."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Sentence
from holdfast.data.align import one_domain, with_classes, without_held_out
from holdfast.data.dataset import Dataset, concatenated, join
from holdfast.data.raw import Records, Texts, Vectors
from holdfast.data.sample import check_sample, draw_sample, load_sample, save_sample
from holdfast.data.splits import (
    TEST,
    TRAIN,
    DomainRows,
    HeldOut,
    Part,
    row_hashes,
    rows_by_domain,
    split_parts,
)
from holdfast.data.synthetic import world
from holdfast.train.plans import LeaveOneOut


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


KINDS = ["vector", "text", "image", pytest.param("graph", marks=pytest.mark.graph)]


def held(data, rows_each=4):
    parts = [Part(name, data.rows_of(name)[:rows_each]) for name in data.domains]
    return HeldOut.of(data, parts)


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_rows_are_recognised_in_any_order_and_without_domains(kind):
    data = world(kind, "none", domains=3, size=12, classes=2, seed=0)
    found = HeldOut.from_json(json.loads(json.dumps(held(data).to_json())))
    order = np.random.default_rng(0).permutation(len(data))
    mixed = data.subset(order)
    blind = replace(mixed, domain=np.zeros(len(data), dtype=np.int64), domains=("all",))
    for again in (found.mark(mixed), found.mark(blind)):
        for part in split_parts(again, TEST):
            wanted = row_hashes(data, data.rows_of(part.domain)[:4])
            assert sorted(row_hashes(again, part.rows)) == sorted(wanted)
    assert sum(map(len, split_parts(found.mark(mixed), TRAIN))) == 24
    assert split_parts(found.mark(blind), TRAIN) == ()  # their domain is unknown


def test_changed_label_or_content_is_not_recognised():
    data = world("text", "none", domains=2, size=6, classes=2, seed=0)
    found = held(data)
    turned = replace(data, y=1 - data.y)
    assert split_parts(found.mark(turned), TEST) == ()
    assert len(set(row_hashes(data, np.arange(len(data)))) & set(row_hashes(turned, np.arange(len(data))))) == 0


def test_rows_of_unknown_domains_are_dropped():
    data = world("vector", "none", domains=3, size=8, classes=2, seed=0)
    two = data.subset(np.flatnonzero(data.domain < 2))
    found = HeldOut.of(data, [Part(name, data.rows_of(name)[:3]) for name in data.domains[:2]])
    assert len(found.mark(data)) == len(two)


def test_copies_of_a_held_out_row_are_dropped():
    texts = ["same", "same", "same", "other", "same", "else"]
    domain = np.asarray([0, 0, 0, 0, 1, 1])
    data = Dataset("t", Texts.of(texts), np.zeros(6, dtype=np.int64), ("a",), domain, ("x", "y"))
    found = HeldOut.of(data, [Part("x", np.asarray([1])), Part("y", np.asarray([4]))])
    again = found.mark(data)
    assert [(part.domain, len(part)) for part in split_parts(again, TEST)] == [("x", 1), ("y", 1)]
    assert [again.raw.take(part.rows) for part in split_parts(again, TRAIN)] == [["other"], ["else"]]
    assert again.domain[again.split == TEST].tolist() == [0, 1]
    assert len(concatenated([again, again])) == 2 * len(again)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_sample_is_loaded_exactly(kind, tmp_path):
    data = world(kind, "none", domains=2, size=12, classes=2, seed=0)
    held = [Part(name, data.rows_of(name)[:5]) for name in data.domains]
    train = [Part(name, data.rows_of(name)[5:]) for name in data.domains]
    kept = draw_sample(data, train, held, limit=3, seed=0)
    again = load_sample(save_sample(tmp_path / "sample.safetensors", kept, size=16))
    assert again.limit == 3
    assert [len(part) for part in split_parts(again.dataset, TRAIN)] == [3, 3]
    every = np.arange(12)
    assert row_hashes(again.dataset, every) == row_hashes(kept.dataset, every)
    for mark, parts in ((TRAIN, train), (TEST, held)):
        for own, part in zip(split_parts(again.dataset, mark), parts, strict=True):
            assert set(row_hashes(again.dataset, own.rows)) <= set(row_hashes(data, part.rows))


def test_pairs_of_texts_stay_pairs(tmp_path):
    pairs = [(f"a {i}", f"b {i}") for i in range(6)]
    data = Dataset("p", Texts.of(pairs), np.arange(6) % 2, ("n", "y"), np.zeros(6, dtype=np.int64), ("d",))
    kept = draw_sample(data, [Part("d", np.arange(3))], [Part("d", np.arange(3, 6))], limit=5, seed=0)
    again = load_sample(save_sample(tmp_path / "s.safetensors", kept, size=None)).dataset
    assert again.raw.take(np.arange(6)) == pairs


def test_unsupported_samples_are_rejected_before_training():
    tags = Records([Sentence(["a"], [0])])
    assert isinstance(tags.take(np.arange(1))[0], Sentence)
    data = Dataset("t", tags, np.zeros(1, dtype=np.int64), ("O",), np.zeros(1, dtype=np.int64), ("d",))
    with pytest.raises(BadInput, match=r"--keep-sample .*tags or answers"):
        check_sample(data, 5)
    check_sample(data, 0)
    with pytest.raises(BadInput, match=r"--keep-sample .*-1"):
        check_sample(data, -1)


@pytest.fixture
def data():
    return world("vector", "none", domains=2, size=10, classes=2, seed=0)


def test_labels_are_recoded_to_the_classes_of_the_model(data):
    a, b = data.classes
    found = with_classes(data, ("zebra", b, a))
    assert [found.classes[y] for y in found.y] == [data.classes[y] for y in data.y]
    with pytest.raises(BadInput, match=rf"row \d+ has the label '{b}'.*\({a}\)"):
        with_classes(data, (a,))
    with pytest.raises(BadInput, match="row 3 has no label"):
        with_classes(replace(data, y=np.where(np.arange(20) == 2, -1, data.y)), data.classes)


def test_one_domain_is_selected_or_named(data):
    second = data.domains[1]
    assert one_domain(data, second, ()).domains == (second,)
    assert len(one_domain(data, second, ())) == 10
    with pytest.raises(BadInput, match=r"several domains .* --domain NAME"):
        one_domain(data, None, ())
    with pytest.raises(BadInput, match="no domain 'third'"):
        one_domain(data, "third", ())
    single = data.subset(data.rows_of(second))
    with pytest.raises(BadInput, match=rf"no domain 'third' in .*{second}.*--domain"):
        one_domain(single, "third", ())
    with pytest.raises(BadInput, match=f"already knows the domain '{second}'"):
        one_domain(single, None, (second,))
    single = replace(single, domain=np.zeros(10, dtype=np.int64), domains=("all",))
    assert one_domain(single, None, ()).domains == (data.name,)
    assert one_domain(single, "new", ()).domains == ("new",)
    with pytest.raises(BadInput, match="already knows the domain 'new'"):
        one_domain(single, "new", ("new",))


def test_held_out_examples_are_dropped(data):
    held = HeldOut.of(data, [Part(data.domains[0], np.arange(4))])
    left, count = without_held_out(data, held)
    assert (len(left), count) == (16, 4)
    assert without_held_out(data, None)[1] == 0
    with pytest.raises(BadInput, match="every example"):
        without_held_out(data.subset(np.arange(4)), held)


def test_splits_of_the_file_are_used(data):
    one = one_domain(data, data.domains[0], ())
    marked = replace(one, split=np.asarray([0] * 6 + [1] * 2 + [2] * 2))
    train, valid = DomainRows.of(marked, marked.domains[0], np.arange(len(marked)), start=100).train_valid(0.2, 0)
    assert (train.rows.tolist(), valid.rows.tolist()) == (list(range(100, 106)), [106, 107])
