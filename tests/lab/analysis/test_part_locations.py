"""Part locations in parts.csv and in the files of CUB: shared image names, fractions of the sides, notes and errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Pixels
from holdfast.data.readers.images import read_images
from lab.analysis.part_locations import check_locations, read_part_locations, shared_name, unmatched_note

ZEROS = np.zeros(2, dtype=np.int64)
PIXELS = Dataset("toy", Pixels(np.zeros((2, 3, 4, 4), np.uint8)), ZEROS, ("cat",), ZEROS, ("all",))


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
    assert read_part_locations(found) == {}
    (folder / "parts.csv").write_text("image,part,x,y\ncat/a.b,beak,0.25,1\ncat/a.b,tail,0,0.5\n")
    assert read_part_locations(found) == {"cat/a.b": [("beak", 0.25, 1.0), ("tail", 0.0, 0.5)]}
    assert read_part_locations(PIXELS) == {}


def test_unmatched_table_gives_a_note(folder):
    found = read_images(folder)
    assert unmatched_note(found) == ""
    (folder / "parts.csv").write_text("image,part,x,y\nowl/a.b,beak,0.25,1\n")
    assert "(its first is 'owl/a.b')" in unmatched_note(found)
    (folder / "parts.csv").write_text("image,part,x,y\nowl/a.b,beak,0.25,1\ncat/a.b,beak,0.25,1\n")
    assert unmatched_note(found) == ""
    assert unmatched_note(PIXELS) == ""


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("image,part,x,y\ncat/a,tail,far,0.5", "row 1: .*x far"),
        ("image,part,x,y\ncat/a,tail,0.5,12", "row 1: .*between 0 and 1"),
        ("image,part,x\ncat/a,tail,0.5", "has no column y"),
    ],
)
def test_invalid_locations_are_rejected(table, message, folder):
    found = read_images(folder)
    (folder / "parts.csv").write_text(f"{table}\n")
    with pytest.raises(BadInput, match=message):
        check_locations(found)


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
    return read_part_locations(read_images(folder))


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


def test_cub_as_one_domain(tmp_path):
    draw(tmp_path / "images" / f"{BIRD}.jpg", (40, 20))
    annotate(tmp_path)
    assert parts(tmp_path) == {BIRD: WANTED[BIRD]}


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
