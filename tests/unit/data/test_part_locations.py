"""Part locations in parts.csv: shared image names, notes and errors."""

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
