"""TF-IDF equals that of scikit-learn, is learned from training texts only, and never needs a dense matrix."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer

from holdfast import catalog
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Graphs
from holdfast.data.synthetic import world
from holdfast.nn.backbones.ngrams import training_counts
from holdfast.nn.backbones.tfidf import Tfidf
from holdfast.nn.backbones.wl import WeisfeilerLehman, subtree_labels

TEXTS = world("text", "vocabulary", domains=2, size=40, classes=2, seed=0).raw.take(np.arange(80))
TRAIN, OTHER = [*TEXTS[:50], "Good, good film! It's GOOD."], [*TEXTS[50:], "a word nobody knows: zzz", ""]


def matrix(encoder, examples):
    return encoder.matrix(encoder.prepare(examples).take(torch.arange(len(examples))))


def test_equals_scikit_learn():
    encoder = Tfidf.build(lambda: TRAIN)
    options = {"sublinear_tf": True, "min_df": 2}
    for block, vectorizer in (
        ("text words", TfidfVectorizer(ngram_range=(1, 2), **options)),
        ("text characters", TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), **options)),
    ):
        vectorizer.fit(TRAIN)
        grams = encoder.vocabulary[block]
        assert set(grams) == set(vectorizer.vocabulary_)
        start = 0 if block == "text words" else len(encoder.vocabulary["text words"])
        own = matrix(encoder, OTHER)[:, start : start + len(grams)]
        expected = vectorizer.transform(OTHER)[:, [vectorizer.vocabulary_[gram] for gram in grams]]
        np.testing.assert_allclose(own.toarray(), expected.toarray(), atol=1e-6)


def test_counts_that_were_kept_equal_new_ones():
    encoder = Tfidf.build(lambda: TRAIN)
    mixed = [OTHER[3], TRAIN[7], OTHER[0], TRAIN[7], TRAIN[2]]
    kept = matrix(encoder, mixed)
    training_counts.cache_clear()
    fresh = matrix(encoder, mixed)
    assert isinstance(fresh, sparse.csr_matrix)
    assert (kept != fresh).nnz == 0
    assert Tfidf.build(lambda: TRAIN).vocabulary == encoder.vocabulary


def test_other_texts_change_nothing_and_the_limit_keeps_frequent_ngrams():
    before = Tfidf.build(lambda: TRAIN, dimension=8)
    Tfidf.build(lambda: [*TRAIN, *OTHER])  # such as the run with another target
    after = Tfidf.build(lambda: TRAIN, dimension=8)
    assert before.preparation_key() == after.preparation_key()
    assert torch.equal(before.idf, after.idf)
    few = Tfidf.build(lambda: TRAIN, features=30)
    assert len(few.idf) == 30
    assert float(few.idf.max()) <= float(before.idf.sort().values[29]) + 1e-6


def test_pairs_have_separate_columns():
    pairs = [(a, b) for a, b in zip(TRAIN[::2], TRAIN[1::2], strict=False)]
    encoder = Tfidf.build(lambda: pairs, characters=0)
    assert list(encoder.vocabulary) == ["text words", "second words"]
    swapped = [(b, a) for a, b in pairs]
    assert not torch.allclose(features(encoder, pairs), features(encoder, swapped))
    with pytest.raises(BadInput, match="built for pairs of texts, not single texts"):
        encoder.prepare(TRAIN)


def features(encoder, examples):
    return encoder(encoder.prepare(examples).take(torch.arange(len(examples))))


def test_features_are_the_table_times_the_values():
    encoder = Tfidf.build(lambda: TRAIN, dimension=7)
    expected = matrix(encoder, OTHER) @ encoder.table.detach().numpy()
    np.testing.assert_allclose(features(encoder, OTHER).detach().numpy(), expected, atol=1e-5)
    assert features(encoder, ["", "qq"]).shape == (2, 7)  # no known column
    features(encoder, OTHER).square().sum().backward()
    assert float(encoder.table.grad.abs().sum()) > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"words": 0, "characters": 0}, "both 0"), ({"characters": 2}, "at least 3"), ({"min_df": 99}, "lower")],
)
def test_bad_settings(settings, message):
    with pytest.raises(BadInput, match=message):
        Tfidf.build(lambda: TRAIN, **settings)


def ring(count, categories):
    ends = torch.arange(count)
    edges = torch.stack([torch.cat([ends, (ends + 1) % count]), torch.cat([(ends + 1) % count, ends])])
    return Graphs.single(torch.tensor(categories)[:, None], edges)


def test_subtree_labels_are_those_of_weisfeiler_and_lehman():
    one, other = ring(6, [0, 1, 0, 1, 0, 1]), ring(4, [1, 0, 1, 0])
    first, second = (subtree_labels(graph, 2, {}) for graph in (one, other))
    assert [len(set(labels)) for labels in first] == [2, 2, 2]
    assert [set(labels) for labels in first] == [set(labels) for labels in second]  # locally equal
    third = subtree_labels(ring(4, [1, 1, 0, 0]), 2, {})
    assert set(third[0]) == set(first[0])
    assert not set(third[1]) & set(first[1])


@pytest.mark.parametrize("kind", ["text", "graph"])
def test_vocabulary_comes_from_training_rows(kind):
    data = world(kind, "none", domains=2, size=20, classes=2, seed=0)
    name = {"text": "tfidf", "graph": "wl"}[kind]
    build = partial(catalog.build, "encoders", name, options={})
    encoder = build(partial(data.raw.take, np.arange(20)))
    assert isinstance(encoder, Tfidf | WeisfeilerLehman)
    counts = encoder.matrix(encoder.prepare(data.raw.take(np.arange(20))).take(torch.arange(20)))
    assert (np.bincount(counts.indices, minlength=counts.shape[1]) >= 2).all()
