"""Part locations in parts.csv and in the files of CUB: shared image names, notes and errors."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from holdfast.core.errors import BadInput
from holdfast.data.part_locations import read_part_locations, shared_name
from holdfast.data.raw import Pixels
from holdfast.data.readers.images import read_images


@pytest.fixture
def folder(tmp_path):
    for domain in ("photo", "sketch"):
        for label in ("cat", "dog"):
            place = tmp_path / domain / label
            place.mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(place / "a.b.png")
    return tmp_path


def test_shared_name_is_equal_in_all_domains(folder):
    found = read_images(folder)
    assert found.ids is not None
    assert {shared_name(each) for each in found.ids} == {"cat/a.b", "dog/a.b"}


def test_table_next_to_the_domains(folder):
    found = read_images(folder)
    assert read_part_locations(found.raw, found.ids) == {}
    (folder / "parts.csv").write_text("image,part,x,y\ncat/a.b,beak,0.25,1\ncat/a.b,tail,0,0.5\n")
    assert read_part_locations(found.raw, found.ids) == {"cat/a.b": [("beak", 0.25, 1.0), ("tail", 0.0, 0.5)]}
    assert read_part_locations(Pixels(np.zeros((2, 3, 4, 4), np.uint8)), None) == {}


def test_table_is_not_counted_as_ignored(folder):
    (folder / "parts.csv").write_text("image,part,x,y\n")
    assert read_images(folder).notes == ()
    (folder / "photo" / "parts.csv").write_text("image,part,x,y\n")
    (note,) = read_images(folder).notes
    assert note.startswith("1 files")


@pytest.mark.parametrize(
    ("row", "message"), [("cat/a,tail,far,0.5", "x far"), ("cat/a,tail,0.5,12", "between 0 and 1")]
)
def test_invalid_locations_are_rejected(row, message, folder):
    found = read_images(folder)
    (folder / "parts.csv").write_text(f"image,part,x,y\n{row}\n")
    with pytest.raises(BadInput, match=f"row 1: .*{message}"):
        read_part_locations(found.raw, found.ids)


def test_missing_column_is_reported(folder):
    found = read_images(folder)
    (folder / "parts.csv").write_text("image,part,x\ncat/a,tail,0.5\n")
    with pytest.raises(BadInput, match="has no column y"):
        read_part_locations(found.raw, found.ids)


def test_broken_link_is_reported(folder):
    (folder / "photo" / "cat" / "dead.png").symlink_to("/nonexistent/x.png")
    with pytest.raises(BadInput, match=r"dead\.png is a link"):
        read_images(folder)


BIRD, GULL = "001.Auk/Auk_0046_18", "002.Gull/Gull_0001_2"
PLACES = "1 1 10.0 5.0 1\n1 7 30.0 20.0 1\n1 2 0.0 0.0 0\n2 7 25.0 50.0 1\n3 1 1.0 1.0 1\n"


def draw(path: Path, size: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size).save(path)


def annotate(root: Path, places: str = PLACES) -> None:
    (root / "parts").mkdir(parents=True)
    (root / "images.txt").write_text(f"1 {BIRD}.jpg\n2 {GULL}.jpg\n3 003.Wren/Wren_1.jpg\n")
    (root / "parts" / "parts.txt").write_text("1 back\n2 beak\n7 left eye\n")
    (root / "parts" / "part_locs.txt").write_text(places)


@pytest.fixture
def styles(tmp_path) -> Path:
    """Two styles of two birds; one image is a pixel smaller in the other style."""
    root = tmp_path / "CUB-DG"
    for style, cut in (("Natural", 0), ("Candy", 1)):
        draw(root / style / f"{BIRD}.jpg", (40, 20 - cut))
        draw(root / style / f"{GULL}.png", (50, 100))
    return root


def parts(folder: Path):
    found = read_images(folder)
    return read_part_locations(found.raw, found.ids)


WANTED = {BIRD: [("back", 0.25, 0.25), ("left eye", 0.75, 1.0)], GULL: [("left eye", 0.5, 0.5)]}


def test_annotations_next_to_the_domains(styles):
    assert parts(styles) == {}
    annotate(styles)
    assert parts(styles) == WANTED
    (styles / "parts.csv").write_text(f"image,part,x,y\n{BIRD},crown,0.5,0.5\n")
    assert parts(styles) == {BIRD: [("crown", 0.5, 0.5)]}  # what the user made goes before


def test_cub_next_to_the_data_set_provides_original_sizes(styles):
    cub = styles.parent / "CUB_200_2011"
    annotate(cub)
    draw(cub / "images" / f"{BIRD}.jpg", (80, 40))  # the set holds it at half this size
    assert parts(styles) == {BIRD: [("back", 0.125, 0.125), ("left eye", 0.375, 0.5)], GULL: WANTED[GULL]}


def test_cub_is_one_domain_without_its_annotation_folders(tmp_path):
    draw(tmp_path / "images" / f"{BIRD}.jpg", (40, 20))
    (tmp_path / "attributes").mkdir()
    annotate(tmp_path)
    assert read_images(tmp_path).domains == ("images",)
    assert parts(tmp_path) == {BIRD: WANTED[BIRD]}
    (tmp_path / "images.txt").unlink()
    with pytest.raises(BadInput, match=r"the domain folder .*attributes holds no images"):
        read_images(tmp_path)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ("1 1 far 5.0 1", "line 1: x and y"),
        ("1 1 10.0 5.0 1\n1 7 30.0 90.0 1", r"line 2: 30\.0, 90\.0 .*Auk_0046_18.* 40 x 20"),
        ("1 9 10.0 5.0 1", "line 1 names image 1 and part 9"),
        ("1 1 10.0 5.0", "line 1 has 4 columns, expected 5"),
    ],
)
def test_invalid_lines_are_rejected(places, message, styles):
    annotate(styles, places)
    with pytest.raises(BadInput, match=message):
        parts(styles)


def test_missing_list_is_rejected(styles):
    cub = styles.parent / "CUB_200_2011"
    annotate(cub)
    (cub / "images.txt").unlink()
    with pytest.raises(BadInput, match=r"images\.txt .*CUB-200-2011"):
        parts(styles)
