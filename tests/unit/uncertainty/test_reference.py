"""Reference of a model: statistics of held-out examples, stored in its folder without the examples."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.core.checkpoint import load_tree, save_tree
from holdfast.core.errors import BadInput
from holdfast.data.input_statistics import UNKNOWN, input_statistics, vocabulary_of
from holdfast.data.raw import Texts
from holdfast.data.synthetic import world
from holdfast.estimator import DomainClassifier
from holdfast.folders.format import load_model
from holdfast.uncertainty.reference import FILE, ROWS, Columns, Reference, category_counts
from tests.tables import table_world


def fitted(dataset, folder, **options) -> Reference:
    DomainClassifier(steps=4, batch=4, cache=False, **options).fit_dataset(dataset, folder=folder)
    reference = load_model(folder).reference
    assert reference is not None
    return reference


def test_reference_has_held_out_texts_as_statistics_only(tmp_path):
    dataset = world("text", "vocabulary", domains=2, size=40)
    reference = fitted(dataset, tmp_path / "model", encoder="bilstm")
    assert reference.domains == dataset.domains
    assert 0 < len(reference) <= ROWS
    np.testing.assert_allclose(reference.outputs.sum(axis=1), 1, atol=1e-5)
    for values in (reference.foreign, reference.lengths, reference.unknown):
        assert values is not None
        assert len(values) == len(reference)
    assert reference.coordinates is not None
    assert reference.projection is not None
    assert reference.columns is None
    words = {word for text in dataset.raw.take(np.arange(len(dataset))) for word in text.split()}
    content = (tmp_path / "model" / FILE).read_bytes()
    assert not [word for word in words if len(word) > 3 and word.encode() in content]


def test_reference_summarises_columns_per_domain(tmp_path):
    reference = fitted(table_world(domains=2, size=60), tmp_path / "model")
    columns = reference.columns
    assert columns.counts.tolist() == [len(reference), *np.bincount(reference.domain).tolist()]
    assert columns.missing[0, 0] > 0  # every ninth number is missing
    np.testing.assert_array_equal(columns.missing[0], columns.missing[1:].sum(axis=0))
    np.testing.assert_array_equal(columns.codes[0], columns.codes[1:].sum(axis=0))
    assert (np.diff(columns.quantiles, axis=2) >= 0).all()


def test_unknown_categories_are_counted_apart():
    codes = np.asarray([[0], [1], [1], [-1], [UNKNOWN]])
    assert category_counts(codes, (("sign", 2),)).tolist() == [1, 2, 1]
    first = Columns.of(input_statistics(table_world(domains=1, size=40).raw, np.arange(40)), np.zeros(40), 1)
    assert first.category_slice(0) == slice(0, 3)


def test_unknown_words_are_shares_per_text():
    known = input_statistics(Texts.of(["a good film", "a bad film"]), np.arange(2))
    new = input_statistics(Texts.of(["a good book", "", "zzz yyy"]), np.arange(3))
    vocabulary = vocabulary_of(known)
    assert vocabulary is not None
    assert new.unknown_words(vocabulary).tolist() == pytest.approx([1 / 3, 0, 1])
    assert new.unknown_words(None) is None
    assert new.lengths.tolist() == [3, 0, 2]


def test_members_of_an_average_have_no_reference_of_their_own(tmp_path):
    from holdfast.folders.format import Member

    dataset = world("vector", "none", domains=2, size=40)
    fitted(dataset, tmp_path / "one")
    saved = load_model(tmp_path / "one")
    replace(saved, members=(Member(0.5, saved),)).save(tmp_path / "both")
    both = load_model(tmp_path / "both")
    assert both.reference is not None
    assert both.members[0].saved.reference is None


def test_a_damaged_reference_is_one_error(tmp_path):
    fitted(world("vector", "none", domains=2, size=40), tmp_path / "model")
    path = tmp_path / "model" / FILE
    tree = load_tree(path)
    for change, message in (
        ({"format": 9}, "has format 9"),
        ({"y": tree["y"][:3]}, "arrays of different lengths"),
        ({"domain": tree["domain"] + 7}, "unknown domain"),
    ):
        save_tree(path, tree | change)
        with pytest.raises(BadInput, match=message):
            load_model(tmp_path / "model")
