"""Published image sets: folders by domain and by split, the binary files of CIFAR, and WILDS."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from holdfast.core.errors import Absent, BadInput
from holdfast.data.known import table
from holdfast.data.known.known_set import KnownSet
from holdfast.data.load import load_data
from tests.published import write_images

BY_DOMAIN = [name for name, row in table().items() if row["reader"] == "image_sets:read_domain_folders"]
BY_SPLIT = [name for name, row in table().items() if row["reader"] == "image_sets:read_split_folders"]
PACS = KnownSet.of("pacs")
# domains, classes and images of Tables 6 and 7
PRINTED = {
    "pacs": (4, 7, 9991), "vlcs": (4, 5, 10_729), "office-home": (4, 65, 15_588), "terra-incognita": (4, 10, 24_788),
    "domain-net": (6, 345, 586_575), "sviro": (10, 7, 56_000), "cub-dg": (4, 200, 47_152),
}  # fmt: skip


def draw(path: Path, colour: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (colour, 0, 0)).save(path)
    return path


def fill(folder: Path, domains, spelling: int) -> None:
    for names in ((name, *others) for name, others in domains.items()):
        for kind in ("a", "b"):
            draw(folder / names[min(spelling, len(names) - 1)] / kind / "1.png")


def test_sizes_are_the_published_ones():
    sets = map(KnownSet.of, BY_DOMAIN)
    assert {known.name: (len(known.domains), known.classes, known.sizes["all"]) for known in sets} == PRINTED


@pytest.mark.parametrize("spelling", [0, 1])
@pytest.mark.parametrize("name", BY_DOMAIN)
def test_domain_folders_get_their_published_names(name, spelling, tmp_path):
    known = KnownSet.of(name)
    fill(tmp_path / known.files[spelling], known.domains, spelling)
    found = load_data(name, data_dir=tmp_path)
    assert (found.name, found.domains, found.classes) == (name, tuple(known.domains), ("a", "b"))
    for i, path in enumerate(found.raw.files()):
        domain = found.domains[found.domain[i]]
        assert path.parts[-3].lower() in {word.lower() for word in (domain, *known.domains[domain])}
    (note,) = found.notes
    assert f"{2 * len(known.domains)} instead of {known.sizes['all']:,}" in note
    assert f"2 classes instead of {known.classes}" in note
    assert len(load_data(name, data_dir=tmp_path / known.files[spelling])) == len(found)  # the folder itself


def test_published_sizes_need_no_note(tmp_path):
    fill(tmp_path / "PACS", PACS.domains, 1)
    assert replace(PACS, sizes={"all": 8}, classes=2).load_reader()(data_dir=tmp_path).notes == ()


def test_missing_incomplete_and_unknown_folders_are_rejected(tmp_path):
    fill(tmp_path / "PACS", {"photo": ()}, 0)
    with pytest.raises(Absent, match="pacs"):
        load_data("pacs", data_dir=tmp_path)
    fill(tmp_path / "PACS", PACS.domains, 1)
    draw(tmp_path / "PACS" / "oil" / "a" / "1.png")
    with pytest.raises(BadInput, match=r"'oil'.*art, cartoon, photo, sketch"):
        load_data("pacs", data_dir=tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.mark.parametrize("name", BY_SPLIT)
def test_split_folders_and_binary_files_are_one_domain_with_splits(folder, name):
    found = load_data(name, data_dir=folder)
    assert (found.name, found.domains) == (name, (name,))
    assert found.split is not None
    counts = np.bincount(found.split, minlength=3).tolist()
    assert counts == {"pets": [12, 0, 12], "cifar10": [60, 0, 12], "cifar100": [12, 0, 12]}.get(name, [12, 12, 12])
    assert any("published number of images: train" in note for note in found.notes)


def test_missing_split_folders_are_reported_with_their_layout(tmp_path):
    assert BY_SPLIT == ["dtd", "pets", "flowers", "cifar10", "cifar100"]
    with pytest.raises(Absent, match=r"cifar-10-batches-bin .*binary"):
        load_data("cifar10", data_dir=tmp_path)


def test_unknown_split_folder_is_rejected(folder, tmp_path):
    (tmp_path / "dtd").mkdir()
    (tmp_path / "dtd" / "images").symlink_to(folder / "dtd" / "train")
    with pytest.raises(BadInput, match=r"'images'.*dtd/SPLIT/CLASS/FILE"):
        load_data("dtd", data_dir=tmp_path)


def test_cifar_bytes_are_labels_and_pixels(tmp_path):
    rows = np.zeros((2, 3074), dtype=np.uint8)
    rows[0, :2], rows[1, :2] = (7, 42), (3, 99)
    rows[0, 2], rows[1, 2 + 1024 + 33] = 200, 100  # red, first pixel; green, second row and second column
    place = tmp_path / "cifar-100-binary"
    place.mkdir()
    rows.tofile(place / "train.bin")
    rows[:1].tofile(place / "test.bin")
    found = load_data("cifar100", data_dir=tmp_path)
    assert found.y.tolist() == [42, 99, 42]  # the fine label, not the coarse one
    images = found.raw.take(np.arange(3)).numpy()
    assert images.shape == (3, 3, 32, 32)
    assert (images[0, 0, 0, 0], images[1, 1, 1, 1], images.sum()) == (200, 100, 500)
    assert len(found.classes) == 100


def test_cifar_class_names_are_read_if_complete(tmp_path):
    place = tmp_path / "cifar-10-batches-bin"
    place.mkdir()
    for file in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = np.zeros((10, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(10)
        rows.tofile(place / file)
    assert load_data("cifar10", data_dir=tmp_path).classes == tuple(map(str, range(10)))
    (place / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    assert load_data("cifar10", data_dir=tmp_path).classes == tuple("abcdefghij")


def test_damaged_cifar_files_are_rejected(tmp_path):
    place = tmp_path / "cifar-100-binary"
    place.mkdir()
    with pytest.raises(BadInput, match=r"train\.bin"):
        load_data("cifar100", data_dir=tmp_path)
    (place / "train.bin").write_bytes(b"\0" * 3073)
    (place / "test.bin").write_bytes(b"\0" * 3074)
    with pytest.raises(BadInput, match=r"train\.bin .* 3,074 bytes"):
        load_data("cifar100", data_dir=tmp_path)
    (place / "train.bin").write_bytes(b"\xff" * 3074)
    with pytest.raises(BadInput, match=r"cifar100.* 255"):
        load_data("cifar100", data_dir=tmp_path)


def test_camelyon(tmp_path):
    rows = [("004", 4, 3328, 21792, 1, 0), ("010", 0, 32, 64, 0, 2), ("010", 0, 96, 64, 1, 2)]
    root = tmp_path / "camelyon17_v1.0"
    for i, (patient, node, x, y, _, _) in enumerate(rows):
        place = f"patient_{patient}_node_{node}"
        draw(root / "patches" / place / f"patch_{place}_x_{x}_y_{y}.png", colour=10 * i)
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    lines += [f"{i},{p},{n},{x},{y},{t},0,{c},0" for i, (p, n, x, y, t, c) in enumerate(rows)]
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")
    found = load_data("camelyon", data_dir=tmp_path)
    assert (found.domains, found.classes) == (("hospital_0", "hospital_2"), ("normal", "tumor"))
    assert found.y.tolist() == [1, 0, 1]
    assert found.raw.take(np.arange(3), size=4)[:, 0, 0, 0].tolist() == [0, 10, 20]
    assert "3 instead of 455,954" in found.notes[0]


def test_fmow_drops_withheld_images_and_maps_countries_to_regions(tmp_path):
    root = tmp_path / "fmow_v1.1"
    rows = [("train", "zoo", "FRA"), ("seq", "zoo", "FRA"), ("test", "dam", "KEN"), ("val", "zoo", "XKX")]
    lines = ["split,img_filename,category,country_code"] + [f"{s},x.jpg,{c},{k}" for s, c, k in rows]
    root.mkdir()
    (root / "rgb_metadata.csv").write_text("\n".join(lines) + "\n")
    (root / "country_code_mapping.csv").write_text("name,alpha-3,region\nFrance,FRA,Europe\nKenya,KEN,Africa\n")
    for i in (0, 2, 3):
        draw(root / "images" / f"rgb_img_{i}.png", colour=i)
    found = load_data("fmow", data_dir=tmp_path)
    assert [found.domains[d] for d in found.domain] == ["Europe", "Africa", "Other"]
    assert [found.classes[y] for y in found.y] == ["zoo", "dam", "zoo"]
    assert found.raw.take(np.arange(3), size=4)[:, 0, 0, 0].tolist() == [0, 2, 3]
    assert "1 images" in found.notes[0]
    assert "3 instead of 470,086" in found.notes[1]


@pytest.mark.parametrize("listed", [True, False])
def test_complete_fmow_matches_the_published_size_with_and_without_withheld_rows(listed, tmp_path):
    lines = ["split,category,country_code", *(f"train,kind{i},FRA" for i in range(62))]
    lines += ["seq,kind0,FRA", "seq,kind1,FRA"] if listed else []
    (tmp_path / "rgb_metadata.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "country_code_mapping.csv").write_text("name,alpha-3,region\nFrance,FRA,Europe\n")
    draw(tmp_path / "images" / "rgb_img_0.png")
    notes = replace(KnownSet.of("fmow"), sizes={"all": 62}).load_reader()(data_dir=tmp_path).notes
    assert len(notes) == listed
    assert all("2 images" in note for note in notes)


def test_missing_or_damaged_wilds_files_are_rejected(tmp_path):
    (tmp_path / "metadata.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match=r"metadata\.csv .*patient, node"):
        load_data("camelyon", data_dir=tmp_path)
    (tmp_path / "metadata.csv").write_text("patient,node,x_coord,y_coord,tumor,center\n004,1,2,3,0,1\n")
    with pytest.raises(BadInput, match=r"patch_patient_004.*camelyon"):
        load_data("camelyon", data_dir=tmp_path)
