"""Arrays in .npz files: vectors, images, roles and errors."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.npz import read_arrays

X = np.arange(8, dtype=np.float64).reshape(4, 2)
Y = np.array([1, 0, 1, 10])
D = np.array(["b", "a", "b", "b"])


def save(folder: Path, **arrays) -> Path:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


def refusal(path: Path, **options) -> str:
    with pytest.raises(BadInput) as caught:
        read_arrays(path, ReadOptions(**options))
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def test_vectors(tmp_path):
    path = save(tmp_path, X=X, labels=Y, env=D, split=np.array(["train", "val", "test", "train"]), id=Y)
    found = read_arrays(path)
    assert found.raw.kind == "vector"
    assert found.raw.take(np.array([1])).tolist() == [[2, 3]]
    assert (found.classes, found.y.tolist()) == (("0", "1", "10"), [1, 0, 1, 2])
    assert (found.domains, found.domain.tolist()) == (("b", "a"), [0, 1, 0, 0])
    assert found.split.tolist() == [0, 1, 2, 0]
    assert found.ids == ["1", "0", "1", "10"]
    assert (found.y.dtype, found.domain.dtype) == (np.int64, np.int64)


def test_domains_are_ordered_by_time(tmp_path):
    dates = np.array(["2021-01-01", "2020-01-01", "2022-01-01", "2022-01-01"], dtype="datetime64[D]")
    assert read_arrays(save(tmp_path, x=X, y=Y, d=D, date=dates)).domains == ("a", "b")
    assert read_arrays(save(tmp_path, x=X, y=Y, d=D, time=np.array([1, 2, 0, 0]))).domains == ("b", "a")


@pytest.mark.parametrize("layout", ["first", "last", "grey", "grey-first", "grey-last"])
def test_images_become_channels_first(tmp_path, layout):
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 5, 6), dtype=np.uint8)
    grey = layout.startswith("grey")
    images[:, 1:] = images[:, :1] if grey else images[:, 1:]
    given = {
        "first": images,
        "last": images.transpose(0, 2, 3, 1),
        "grey": images[:, 0],
        "grey-first": images[:, :1],
        "grey-last": images[:, :1].transpose(0, 2, 3, 1),
    }
    found = read_arrays(save(tmp_path, images=given[layout], y=Y, domain=D))
    assert found.raw.kind == "image"
    assert np.array_equal(found.raw.take(np.arange(4)).numpy(), images)


def test_roles_by_name_and_by_need(tmp_path):
    path = save(tmp_path, x=X, z=X + 1, y=Y)
    found = read_arrays(path, ReadOptions(columns={"features": "z"}, need=("label",)))
    assert found.raw.take(np.array([0])).tolist() == [[1, 2]]
    assert found.domains == ("all",)
    bare = read_arrays(path, ReadOptions(columns={"label": ""}, need=()))
    assert (bare.classes, bare.y.tolist()) == ((), [-1] * 4)
    assert "no domain array: it has 'x', 'z', 'y'" in refusal(path)
    assert "no label array 'w'" in refusal(path, columns={"label": "w"}, need=())
    with pytest.raises(BadInput, match="did you mean 'features'"):
        read_arrays(path, ReadOptions(columns={"feature": "z"}))


def test_invalid_values_are_rejected(tmp_path):
    bad = X.copy()
    bad[2, 1] = np.nan
    assert "row 3, column 2 of the input array is nan" in refusal(save(tmp_path, x=bad, y=Y, d=D))
    bad[2, 1] = 1e300
    assert "row 3, column 2" in refusal(save(tmp_path, x=bad, y=Y, d=D))
    assert "4 rows but the label array has 3" in refusal(save(tmp_path, x=X, y=Y[:3], d=D))
    assert "row 2 of the domain array" in refusal(save(tmp_path, x=X, y=Y, d=np.array(["a", " ", "b", "c"])))
    assert "row 2 of the label array" in refusal(save(tmp_path, x=X, y=np.array([0, np.nan, 1, 1]), d=D))
    assert "no rows" in refusal(save(tmp_path, x=X[:0], y=Y[:0], d=D[:0]))
    assert "shape (4,)" in refusal(save(tmp_path, x=Y, y=Y, d=D))
    assert "expected (n,)" in refusal(save(tmp_path, x=X, y=X, d=D))
    assert "uint8" in refusal(save(tmp_path, x=np.zeros((4, 3, 2, 2)), y=Y, d=D))
    assert "3 colours" in refusal(save(tmp_path, x=np.zeros((4, 4, 5, 5), dtype=np.uint8), y=Y, d=D))
    assert "split 'x'" in refusal(save(tmp_path, x=X, y=Y, d=D, split=np.array(["train", "x", "test", "test"])))


def test_damaged_files_are_rejected(tmp_path):
    path = save(tmp_path, x=np.random.default_rng(0).random((500, 4)), y=np.zeros(500), d=np.zeros(500))
    content = path.read_bytes()
    for damaged in (b"", b"hello", content[: len(content) // 2], content[:3000] + b"\xff" * 500 + content[3500:]):
        path.write_bytes(damaged)
        assert "data.npz" in refusal(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"not an array")
    assert "'x' is not an array" in refusal(path)


def test_objects_are_never_unpickled(tmp_path):
    path = save(tmp_path, x=X, y=Y, d=np.array(["a", None, 1, 2], dtype=object))
    assert "never unpickled" in refusal(path)
