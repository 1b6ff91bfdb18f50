"""Decoding image files and reading folders of them."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from holdfast.auditing.audit import audit
from holdfast.core.errors import BadInput
from holdfast.data.decode import decode_image
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.images import read_images
from holdfast.data.splits import rows_by_domain
from holdfast.train.plans import LeaveOneOut


def draw(path: Path, colour=(255, 0, 0), mode: str = "RGB", size: tuple[int, int] = (12, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)
    return path


@pytest.fixture
def folder(tmp_path) -> Path:
    for domain in ("photo", "art"):
        for kind in ("dog", "cat"):
            for i in range(2):
                draw(tmp_path / "set" / domain / kind / f"{i}.png")
    return tmp_path / "set"


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "gif", "tiff"])
def test_decode_any_format(tmp_path, suffix):
    image = decode_image(draw(tmp_path / f"a.{suffix}", (200, 100, 50)), 6)
    assert (image.dtype, image.shape, image.is_contiguous()) == (torch.uint8, (3, 6, 6), True)
    assert torch.allclose(image[:, 3, 3].float(), torch.tensor([200.0, 100.0, 50.0]), atol=6)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "CMYK", "LA"])
def test_decode_any_mode(tmp_path, mode):
    path = draw(tmp_path / ("a.tif" if mode == "CMYK" else "a.png"), (255, 255, 255), mode)
    assert decode_image(path, 4).float().mean() > 250


def test_decode_keeps_16_bit_shades(tmp_path):
    shades = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(shades).save(tmp_path / "a.png")
    assert np.abs(decode_image(tmp_path / "a.png", 8)[0].numpy().astype(int) - shades // 257).max() <= 1


def test_decode_palette_with_transparency(tmp_path):
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    image.save(tmp_path / "a.png", transparency=b"\x00\xff")
    assert decode_image(tmp_path / "a.png", 4)[:, 0, 0].tolist() == [10, 200, 30]


def test_decode_keeps_sides(tmp_path):
    pixels = np.zeros((10, 20, 3), dtype=np.uint8)
    pixels[:5, :10] = 255  # top left
    Image.fromarray(pixels).save(tmp_path / "a.png")
    image = decode_image(tmp_path / "a.png", 8)
    assert image[:, 1, 1].min() == 255
    assert image[:, 6, 6].max() == image[:, 1, 6].max() == image[:, 6, 1].max() == 0


def test_damaged_image_is_reported(tmp_path):
    whole = draw(tmp_path / "a.jpg", size=(64, 64)).read_bytes()
    for damaged in (b"", b"no image", whole[:200], whole[: len(whole) // 2]):
        (tmp_path / "a.jpg").write_bytes(damaged)
        with pytest.raises(BadInput, match=r"a\.jpg cannot be read as an image"):
            decode_image(tmp_path / "a.jpg", 8)
    with pytest.raises(BadInput, match=r"gone\.png"):
        decode_image(tmp_path / "gone.png", 8)


def test_domains_and_classes_are_folders(folder):
    draw(folder / "art" / "dog" / ".hidden.png")
    draw(folder / ".thumbs" / "x" / "a.png")
    (folder / "art" / "dog" / "notes.txt").write_text("x")
    draw(folder / "photo" / "dog" / "UPPER.PNG")
    found = read_images(folder)
    assert found.name == "set"
    assert (found.classes, found.domains) == (("cat", "dog"), ("art", "photo"))
    assert found.ids[:3] == ["art/cat/0.png", "art/cat/1.png", "art/dog/0.png"]
    assert "photo/dog/UPPER.PNG" in found.ids
    assert len(found) == 9
    assert [found.domains[d] + "/" + found.classes[y] for d, y in zip(found.domain, found.y, strict=True)] == [
        i.rsplit("/", 1)[0] for i in found.ids
    ]
    assert found.raw.take(np.array([0, 1]), size=6).shape == (2, 3, 6, 6)
    assert "1 files" in found.notes[0]


def test_any_nesting_for_prediction(folder, tmp_path):
    draw(folder / "loose.png")
    found = read_images(folder, ReadOptions(need=()))
    assert found.ids is not None
    assert (len(found), found.classes, found.domains) == (9, (), ("all",))
    assert set(found.y.tolist()) == {-1}
    assert "loose.png" in found.ids
    draw(tmp_path / "flat" / "b.png")
    assert read_images(tmp_path / "flat", ReadOptions(need=())).ids == ["b.png"]


def test_classes_without_domains(tmp_path):
    draw(tmp_path / "dog" / "a.png")
    draw(tmp_path / "cat" / "a.png")
    found = read_images(tmp_path, ReadOptions(need=("label",)))
    assert (found.classes, found.y.tolist(), found.domains) == (("cat", "dog"), [0, 1], ("all",))
    both = read_images(tmp_path, ReadOptions(need=("domain",)))
    assert (both.classes, both.domains) == ((), ("cat", "dog"))


def test_single_domain_error_explains_the_folder_layout(tmp_path):
    for kind in ("dog", "cat"):
        draw(tmp_path / "photo" / kind / "a.png")
    found = read_images(tmp_path)
    for dataset in (found, found.limited(1)):
        with pytest.raises(BadInput, match=r"\(photo\).*DOMAIN/CLASS/FILE"):
            list(LeaveOneOut().episodes(rows_by_domain(dataset), 0))
    assert "(DOMAIN/CLASS/FILE)" in audit(tmp_path).advice[-1]


def test_invalid_folders_are_rejected(folder, tmp_path):
    (folder / "sketch" / "dog").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"domain folder .*sketch holds no images"):
        read_images(folder)
    draw(folder / "sketch" / "a.png")
    with pytest.raises(BadInput, match=r"'a\.png' in the domain 'sketch'"):
        read_images(folder)
    draw(folder / "b.png")
    with pytest.raises(BadInput, match=r"'b\.png' is not in a domain folder"):
        read_images(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="holds no images"):
        read_images(tmp_path / "empty")
    with pytest.raises(BadInput, match="not a folder"):
        read_images(tmp_path / "gone")


@pytest.mark.skipif(os.name != "posix", reason="needs pipes")
def test_pipes_are_refused_without_waiting(folder):
    pipe = folder / "photo" / "cat" / "pipe.png"
    os.mkfifo(pipe)
    with pytest.raises(BadInput, match=r"pipe\.png is not a regular file"):
        read_images(folder)
    with pytest.raises(BadInput, match=r"pipe\.png is not a regular file"):
        decode_image(pipe, 8)


def test_links_are_followed_but_not_in_circles(folder, tmp_path):
    draw(tmp_path / "elsewhere" / "dog" / "z.png")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "art" / "dog" / "round").symlink_to(folder)
    assert "linked" in read_images(folder).domains
    assert len(read_images(folder)) == 9


@pytest.mark.parametrize("locked", ["art", "art/cat"])
def test_unreadable_folder_is_reported(folder, monkeypatch, locked):
    def scandir(path, real=os.scandir):  # permissions do not hold for a superuser, who may run this
        if Path(path) == folder / locked:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(BadInput, match=f"{locked} .Permission denied"):
        read_images(folder)


def test_table_of_parts_is_not_counted_as_ignored(folder):
    (folder / "parts.csv").write_text("image,part,x,y\n")
    assert read_images(folder).notes == ()
    (folder / "photo" / "parts.csv").write_text("image,part,x,y\n")
    (note,) = read_images(folder).notes
    assert note.startswith("1 files")


def test_folders_of_annotations_are_no_domains(tmp_path):
    draw(tmp_path / "images" / "001.Auk" / "a.jpg")
    for name in ("parts", "attributes"):
        (tmp_path / name).mkdir()
    (tmp_path / "images.txt").write_text("1 001.Auk/a.jpg\n")
    assert read_images(tmp_path).domains == ("images",)
    (tmp_path / "images.txt").unlink()
    with pytest.raises(BadInput, match=r"the domain folder .*attributes holds no images"):
        read_images(tmp_path)


def test_broken_link_is_reported(folder):
    (folder / "photo" / "cat" / "dead.png").symlink_to("/nonexistent/x.png")
    with pytest.raises(BadInput, match=r"dead\.png is a link"):
        read_images(folder)
