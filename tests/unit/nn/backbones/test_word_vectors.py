"""Word vectors from text and .npz files, and errors of invalid files."""

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.word_vectors import read_vectors

VECTORS = {"good": [1.0, 2.0], "bad": [-1.5, 0.25], "东": [0.0, 3.0]}


def write(path, kind: str):
    if kind == "npz":
        np.savez(path.with_suffix(".npz"), words=np.array(list(VECTORS)), vectors=np.array(list(VECTORS.values())))
        return path.with_suffix(".npz")
    lines = [f"{word} {a} {b}" for word, (a, b) in VECTORS.items()]
    # a word with a space, as in GloVe, and a duplicate word
    lines += ["at good 7 7", "good 9 9"]
    path.write_text("\n".join((["5 2"] if kind == "word2vec" else []) + lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["glove", "word2vec", "npz"])
def test_reads_known_words(kind, tmp_path):
    result = read_vectors(write(tmp_path / "vectors.txt", kind), ["good", "东", "unheard", "at"], 2)
    assert {word: vector.tolist() for word, vector in result.items()} == {"good": [1.0, 2.0], "东": [0.0, 3.0]}
    assert all(vector.dtype == np.float32 for vector in result.values())


def test_changed_file_is_reloaded(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("good 1 2\n")
    assert read_vectors(path, ["good"], 2)["good"].tolist() == [1, 2]
    path.write_text("good 3 4.5\n")
    assert read_vectors(path, ["good"], 2)["good"].tolist() == [3, 4.5]


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("good 1 2 3\nbad 1 2 3\n", "3 numbers per word"),
        ("good 1 2\nbad 1\n", "line 2: .* 2 numbers"),
        ("good 1 x\n", "line 1: the vector of 'good'"),
        ("good 1 nan\n", "NaN"),
    ],
)
def test_invalid_lines_raise(text, pattern, tmp_path):
    (tmp_path / "vectors.txt").write_text(text)
    with pytest.raises(BadInput, match=pattern):
        read_vectors(tmp_path / "vectors.txt", ["good"], 2)


def test_invalid_arrays_raise(tmp_path):
    path = tmp_path / "vectors.npz"
    words, vectors = np.array(["good", "bad"]), np.ones((2, 2))
    for arrays, pattern in [
        ({"names": words, "vectors": vectors}, "not an .npz"),
        ({"words": words, "vectors": np.ones((2, 3))}, "must be strings"),
        ({"words": words[:1], "vectors": vectors}, "must be strings"),
        ({"words": np.array([1, 2]), "vectors": vectors}, "must be strings"),
        ({"words": words, "vectors": np.array([["a", "b"], ["c", "d"]])}, "must be numbers"),
        ({"words": words, "vectors": np.array([[np.inf, 0], [0, 0]])}, "NaN"),
    ]:
        np.savez(path, **arrays)
        with pytest.raises(BadInput, match=pattern):
            read_vectors(path, ["good"], 2)
    path.write_bytes(b"PK no zip")
    with pytest.raises(BadInput, match=r"not an \.npz"):
        read_vectors(path, ["good"], 2)
    with pytest.raises(BadInput, match="no file"):
        read_vectors(tmp_path / "nowhere.txt", ["good"], 2)


def test_objects_are_not_unpickled(tmp_path):
    path = tmp_path / "vectors.npz"
    np.savez(path, words=np.array(["good", None], dtype=object), vectors=np.ones((2, 2)))
    with pytest.raises(BadInput, match=r"not an \.npz"):
        read_vectors(path, ["good"], 2)
