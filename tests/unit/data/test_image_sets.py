"""Published sets of images: found by their folders, called as published, and told where they differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from holdfast import catalog
from holdfast.core.errors import Absent, BadInput
from holdfast.data.known import image_sets, wilds
from holdfast.data.known.image_sets import ImageSet

SETS = {name: each for name, each in vars(image_sets).items() if isinstance(each, ImageSet)}
# domains, classes and images of Tables 6 and 7
PRINTED = {
    "pacs": (4, 7, 9991), "vlcs": (4, 5, 10_729), "office-home": (4, 65, 15_588), "terra-incognita": (4, 10, 24_788),
    "domain-net": (6, 345, 586_575), "sviro": (10, 7, 56_000), "cub-dg": (4, 200, 47_152),
}  # fmt: skip


def draw(path: Path, colour: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (colour, 0, 0)).save(path)
    return path


def filled(folder: Path, each: ImageSet, spelling: int) -> None:
    for names in ((name, *others) for name, others in each.domains.items()):
        for kind in ("a", "b"):
            draw(folder / names[min(spelling, len(names) - 1)] / kind / "1.png")


def test_sizes_are_the_printed_ones():
    assert {s.name: (len(s.domains), s.classes, s.size) for s in SETS.values()} == PRINTED


@pytest.mark.parametrize("spelling", [0, 1])
@pytest.mark.parametrize("each", SETS.values(), ids=lambda s: s.name)
def test_found_by_its_folder_and_named_as_published(each, spelling, tmp_path):
    filled(tmp_path / each.folders[spelling], each, spelling)
    read = catalog.lookup("datasets", each.name).load()
    found = read(data_dir=tmp_path)
    assert found.name == each.name
    assert found.domains == tuple(each.domains)
    assert found.classes == ("a", "b")
    for i, row in enumerate(found.raw.paths):
        domain = found.domains[found.domain[i]]
        assert row.parts[-3].lower() in {word.lower() for word in (domain, *each.domains[domain])}
    (note,) = found.notes
    assert f"{2 * len(each.domains)} images instead of {each.size:,}" in note
    assert f"2 classes instead of {each.classes}" in note
    assert len(read(data_dir=tmp_path / each.folders[spelling])) == len(found)  # the folder itself will do


def test_as_many_as_published_is_not_remarked(tmp_path):
    each = replace(image_sets.PACS, size=8, classes=2)
    filled(tmp_path / "PACS", each, 1)
    assert each.read(data_dir=tmp_path).notes == ()


def test_absent_incomplete_and_odd_folders_get_one_sentence(tmp_path):
    with pytest.raises(Absent, match=r"pacs is not downloaded by itself.* PACS/DOMAIN/CLASS/FILE .* --data-dir"):
        image_sets.PACS.read()
    filled(tmp_path / "PACS", replace(image_sets.PACS, domains={"photo": ()}), 0)
    with pytest.raises(Absent, match="get it from"):
        image_sets.PACS.read(data_dir=tmp_path)
    filled(tmp_path / "PACS", image_sets.PACS, 1)
    draw(tmp_path / "PACS" / "oil" / "a" / "1.png")
    with pytest.raises(BadInput, match="'oil' is no domain of pacs: it has art, cartoon, photo, sketch"):
        image_sets.PACS.read(data_dir=tmp_path)


def test_camelyon(tmp_path):
    rows = [("004", 4, 3328, 21792, 1, 0), ("010", 0, 32, 64, 0, 2), ("010", 0, 96, 64, 1, 2)]
    root = tmp_path / "camelyon17_v1.0"
    for i, (patient, node, x, y, _, _) in enumerate(rows):
        place = f"patient_{patient}_node_{node}"
        draw(root / "patches" / place / f"patch_{place}_x_{x}_y_{y}.png", colour=10 * i)
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    lines += [f"{i},{p},{n},{x},{y},{t},0,{c},0" for i, (p, n, x, y, t, c) in enumerate(rows)]
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")
    found = wilds.camelyon(data_dir=tmp_path)
    assert (found.domains, found.classes) == (("hospital_0", "hospital_2"), ("normal", "tumor"))
    assert found.y.tolist() == [1, 0, 1]
    assert found.raw.take(np.arange(3), size=4)[:, 0, 0, 0].tolist() == [0, 10, 20]
    assert "3 images instead of 455,954" in found.notes[0]


def test_fmow_leaves_out_what_is_withheld_and_knows_regions(tmp_path):
    root = tmp_path / "fmow_v1.1"
    rows = [("train", "zoo", "FRA"), ("seq", "zoo", "FRA"), ("test", "dam", "KEN"), ("val", "zoo", "XKX")]
    lines = ["split,img_filename,category,country_code"] + [f"{s},x.jpg,{c},{k}" for s, c, k in rows]
    root.mkdir()
    (root / "rgb_metadata.csv").write_text("\n".join(lines) + "\n")
    (root / "country_code_mapping.csv").write_text("name,alpha-3,region\nFrance,FRA,Europe\nKenya,KEN,Africa\n")
    for i in (0, 2, 3):
        draw(root / "images" / f"rgb_img_{i}.png", colour=i)
    found = wilds.fmow(data_dir=tmp_path)
    assert [found.domains[d] for d in found.domain] == ["Europe", "Africa", "Other"]
    assert [found.classes[y] for y in found.y] == ["zoo", "dam", "zoo"]
    assert found.raw.take(np.arange(3), size=4)[:, 0, 0, 0].tolist() == [0, 2, 3]
    assert found.notes[0] == "fmow: 1 images that its authors withhold are left out"
    assert "3 images instead of 470,086" in found.notes[1]


@pytest.mark.parametrize("listed", [True, False])
def test_a_whole_fmow_is_as_published_whether_it_lists_what_is_withheld_or_not(listed, tmp_path, monkeypatch):
    monkeypatch.setattr(wilds, "LISTED", 64)
    monkeypatch.setattr(wilds, "WITHHELD", 2)
    lines = ["split,category,country_code", *(f"train,kind{i},FRA" for i in range(62))]
    lines += ["seq,kind0,FRA", "seq,kind1,FRA"] if listed else []
    (tmp_path / "rgb_metadata.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "country_code_mapping.csv").write_text("name,alpha-3,region\nFrance,FRA,Europe\n")
    draw(tmp_path / "images" / "rgb_img_0.png")
    notes = wilds.fmow(data_dir=tmp_path).notes
    assert notes == (("fmow: 2 images that its authors withhold are left out",) if listed else ())


def test_wilds_that_is_not_there_or_broken_gets_one_sentence(tmp_path):
    with pytest.raises(Absent, match=r"camelyon is not downloaded .* camelyon17_v1\.0 with metadata\.csv"):
        wilds.camelyon(data_dir=tmp_path)
    (tmp_path / "metadata.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match="it needs the columns patient, node"):
        wilds.camelyon(data_dir=tmp_path)
    (tmp_path / "metadata.csv").write_text("patient,node,x_coord,y_coord,tumor,center\n004,1,2,3,0,1\n")
    with pytest.raises(BadInput, match="is named in the metadata of camelyon but is not there"):
        wilds.camelyon(data_dir=tmp_path)
