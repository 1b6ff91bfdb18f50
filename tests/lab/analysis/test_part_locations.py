"""Part locations in parts.csv: shared image names, notes and errors."""

from __future__ import annotations

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
    ("row", "message"), [("cat/a,tail,far,0.5", "x far"), ("cat/a,tail,0.5,12", "between 0 and 1")]
)
def test_invalid_locations_are_rejected(row, message, folder):
    found = read_images(folder)
    (folder / "parts.csv").write_text(f"image,part,x,y\n{row}\n")
    with pytest.raises(BadInput, match=f"row 1: .*{message}"):
        check_locations(found)


def test_missing_column_is_reported(folder):
    found = read_images(folder)
    (folder / "parts.csv").write_text("image,part,x\ncat/a,tail,0.5\n")
    with pytest.raises(BadInput, match="has no column y"):
        read_part_locations(found)
