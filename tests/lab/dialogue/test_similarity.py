"""Similarity of texts by word vectors."""

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.nn.backbones import word_vectors
from lab.dialogue.similarity import load_similarity


def test_cosine_of_mean_vectors(tmp_path):
    rng = np.random.default_rng(0)
    vectors = {word: rng.normal(size=5) for word in ("a", "b", "c", "d")}
    np.savez(tmp_path / "v.npz", words=np.array([*vectors]), vectors=np.stack([*vectors.values()]))
    (tmp_path / "v.txt").write_text("".join(f"{w} {' '.join(map(str, v))}\n" for w, v in vectors.items()))
    for name in ("v.npz", "v.txt"):
        like = load_similarity(tmp_path / name)
        texts = [(["a", "b", "a"], ["c"]), (["a", "zebra"], ["a"]), (["zebra"], ["a"]), ([], ["a"])]
        result = like.cosines(*([like.ids(pair[i]) for pair in texts] for i in (0, 1)))
        mean = (2 * vectors["a"] + vectors["b"]) / 3
        expected = mean @ vectors["c"] / np.linalg.norm(mean) / np.linalg.norm(vectors["c"])
        np.testing.assert_allclose(result, [expected, 1.0, 0.0, 0.0], atol=1e-6)


def test_large_files_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(word_vectors, "MAX_WORDS", 2)
    (tmp_path / "v.txt").write_text("a 1 2\nb 2 1\nc 0 1\n")
    np.savez(tmp_path / "v.npz", words=np.array(["a", "b", "c"]), vectors=np.ones((3, 2)))
    for name in ("v.txt", "v.npz"):
        assert list(load_similarity(tmp_path / name).index) == ["a", "b"]


def test_bad_files(tmp_path):
    with pytest.raises(BadInput, match="no file of word vectors"):
        load_similarity(tmp_path / "nothing.txt")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(BadInput, match="no word vectors"):
        load_similarity(tmp_path / "empty.txt")
    np.savez(tmp_path / "flat.npz", words=np.array(["a"]), vectors=np.ones(2))
    with pytest.raises(BadInput, match="numbers \\(n, d\\)"):
        load_similarity(tmp_path / "flat.npz")
