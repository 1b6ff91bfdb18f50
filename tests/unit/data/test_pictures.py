"""Sets of pictures by their names: CIFAR's binary files byte by byte, folders by split and class, what is missing."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast import catalog
from holdfast.core.errors import Absent, BadInput
from holdfast.data.known import pictures
from holdfast.data.known.pictures import PictureSet
from holdfast.data.load import load_data
from tests.published import write_pictures

SETS = {each.name: each for each in vars(pictures).values() if isinstance(each, PictureSet)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("pictures"))


def test_every_set_is_in_the_catalog_and_says_its_home_where_it_is_missing(tmp_path):
    assert list(SETS) == ["dtd", "pets", "flowers", "cifar10", "cifar100"]
    for name, each in SETS.items():
        assert catalog.DATASETS[name].target.startswith("holdfast.data.known.pictures:")
        for where in (None, tmp_path):
            with pytest.raises(Absent, match=rf"get it from {each.home} .*{name}/SPLIT/CLASS/FILE"):
                load_data(name, data_dir=where)
    with pytest.raises(Absent, match=r"cifar-10-batches-bin .the binary version, not the pickled one"):
        load_data("cifar10", data_dir=tmp_path)


@pytest.mark.parametrize("name", SETS)
def test_one_domain_with_its_split(folder, name):
    found = load_data(name, data_dir=folder)
    assert (found.name, found.domains) == (name, (name,))
    assert found.split is not None
    counts = np.bincount(found.split, minlength=3).tolist()
    assert counts == {"pets": [12, 0, 12], "cifar10": [60, 0, 12], "cifar100": [12, 0, 12]}.get(name, [12, 12, 12])
    assert any("has not the published number of images: train" in note for note in found.notes)


def test_bytes_are_labels_and_pixels(tmp_path):
    rows = np.zeros((2, 3074), dtype=np.uint8)
    rows[0, :2], rows[1, :2] = (7, 42), (3, 99)
    rows[0, 2], rows[1, 2 + 1024 + 33] = 200, 100  # red, first pixel; green, second row and second column
    place = tmp_path / "cifar-100-binary"
    place.mkdir()
    rows.tofile(place / "train.bin")
    rows[:1].tofile(place / "test.bin")
    found = load_data("cifar100", data_dir=tmp_path)
    assert found.y.tolist() == [42, 99, 42]  # the fine label, not the coarse one before it
    images = found.raw.take(np.arange(3)).numpy()
    assert images.shape == (3, 3, 32, 32)
    assert (images[0, 0, 0, 0], images[1, 1, 1, 1], images.sum()) == (200, 100, 500)
    assert len(found.classes) == 100


def test_names_of_classes_are_read_where_there_is_one_for_each(tmp_path):
    place = tmp_path / "cifar-10-batches-bin"
    place.mkdir()
    for file in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = np.zeros((10, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(10)
        rows.tofile(place / file)
    assert load_data("cifar10", data_dir=tmp_path).classes == tuple(map(str, range(10)))
    (place / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    assert load_data("cifar10", data_dir=tmp_path).classes == tuple("abcdefghij")


def test_wrong_files_get_one_sentence(tmp_path):
    place = tmp_path / "cifar-100-binary"
    place.mkdir()
    with pytest.raises(BadInput, match=r"lacks train\.bin"):
        load_data("cifar100", data_dir=tmp_path)
    (place / "train.bin").write_bytes(b"\0" * 3073)
    (place / "test.bin").write_bytes(b"\0" * 3074)
    with pytest.raises(BadInput, match=r"train\.bin is broken: .* 3,074 bytes"):
        load_data("cifar100", data_dir=tmp_path)
    (place / "train.bin").write_bytes(b"\xff" * 3074)
    with pytest.raises(BadInput, match="is not the binary version of cifar100: it has a label of 255"):
        load_data("cifar100", data_dir=tmp_path)


def test_a_folder_that_is_no_split_is_told(folder, tmp_path):
    (tmp_path / "dtd").mkdir()
    (tmp_path / "dtd" / "images").symlink_to(folder / "dtd" / "train")
    with pytest.raises(BadInput, match="'images' is no split: put images at dtd/SPLIT/CLASS/FILE"):
        load_data("dtd", data_dir=tmp_path)
