"""Held-out rows are recognised by content, and samples of a data set are saved and loaded exactly."""

import json
from dataclasses import replace

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Sentence
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Texts
from holdfast.data.readers.tags import Sentences
from holdfast.data.sample import check_sample, draw_sample, load_sample, save_sample
from holdfast.data.splits import TEST, TRAIN, HeldOut, Part, merge_marked, row_hashes, split_parts
from holdfast.data.synthetic import world

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
    assert len(merge_marked([again, again])) == 2 * len(again)


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
    tags = Sentences([["a"]], [[0]])
    assert isinstance(tags.take(np.arange(1))[0], Sentence)
    data = Dataset("t", tags, np.zeros(1, dtype=np.int64), ("O",), np.zeros(1, dtype=np.int64), ("d",))
    with pytest.raises(BadInput, match=r"--keep-sample .*tags or answers"):
        check_sample(data, 5)
    check_sample(data, 0)
    with pytest.raises(BadInput, match=r"--keep-sample .*-1"):
        check_sample(data, -1)
