"""The cache of decoded images: equal to decoding, keyed by content, written atomically."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from holdfast.core.errors import BadInput
from holdfast.core.store import TensorStore
from holdfast.data import cache as module
from holdfast.data.batches import prepare
from holdfast.data.cache import cached_features, decoded_images
from holdfast.data.raw import Concat, ImageFiles, Pixels, Subset
from holdfast.data.readers.images import read_images
from holdfast.nn.backbones.small import CNN
from holdfast.train import assemble as assembly


@pytest.fixture
def images(tmp_path) -> ImageFiles:
    rng, paths = np.random.default_rng(0), []
    for i in range(7):
        paths.append(tmp_path / "set" / f"d{i % 2}" / f"c{i % 3}" / f"{i}.png")
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (9 + i, 12, 3), dtype=np.uint8)).save(paths[-1])
    return ImageFiles(paths)


def cached_files(folder: Path) -> list[Path]:
    return sorted((folder / "pictures").glob("*.uint8"))


def test_cached_images_equal_decoded_images(images, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 3)
    seen = []
    for size in (6, 8):
        found = decoded_images(images, size, tmp_path, tick=seen.append)
        assert found is not None
        assert torch.equal(found, images.take(np.arange(7), size=size))
    assert seen == [3, 3, 1] * 2
    assert len(cached_files(tmp_path)) == 2


def test_images_are_decoded_once_and_changes_are_noticed(images, tmp_path, monkeypatch):
    first = decoded_images(images, 6, tmp_path)

    def refuse(*_, **__):
        raise AssertionError("decoded again")

    with monkeypatch.context() as patch:
        patch.setattr(module, "decode_image", refuse)
        again = decoded_images(ImageFiles(images.paths), 6, tmp_path)
    assert torch.equal(first, again)
    again.zero_()  # a private map: the file is as it was
    assert torch.equal(decoded_images(images, 6, tmp_path), first)
    Image.new("RGB", (5, 5), (1, 2, 3)).save(images.paths[3])
    other = decoded_images(ImageFiles(images.paths), 6, tmp_path)
    assert other[3, :, 0, 0].tolist() == [1, 2, 3]
    assert torch.equal(other[2], first[2])


def test_incomplete_file_is_rewritten_and_errors_leave_no_file(images, tmp_path):
    first = decoded_images(images, 6, tmp_path).clone()
    (path,) = cached_files(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    assert torch.equal(decoded_images(images, 6, tmp_path), first)
    content = bytearray(path.read_bytes())
    content[100:200] = bytes(100)
    path.write_bytes(content)
    assert torch.equal(decoded_images(images, 6, tmp_path), first)
    path.write_bytes(content)
    path.with_suffix(".crc32").unlink()  # without a checksum it is not trusted
    assert torch.equal(decoded_images(images, 6, tmp_path), first)
    images.paths[5].write_bytes(b"no image")
    with pytest.raises(BadInput, match="cannot be read as an image"):
        decoded_images(ImageFiles(images.paths), 6, tmp_path)
    assert cached_files(tmp_path) == [path]


def test_subsets_and_concatenations(images, tmp_path):
    rows = Subset(images, np.array([4, 1]))
    assert torch.equal(decoded_images(rows, 6, tmp_path), images.take(np.array([4, 1]), size=6))
    both = Concat([rows, images])
    assert torch.equal(decoded_images(both, 6, tmp_path), both.take(np.arange(9), size=6))
    plain = Pixels(np.zeros((2, 3, 6, 6), dtype=np.uint8))
    assert decoded_images(plain, 6, tmp_path) is None
    assert decoded_images(Concat([rows, plain]), 6, tmp_path) is None


def test_workspace_reads_the_cache(images, tmp_path):
    dataset = read_images(tmp_path / "set")
    cache, encoder = tmp_path / "cache", CNN(size=8)
    found = assembly.Workspace(dataset, cache=cache).store(encoder)
    without = assembly.Workspace(dataset, cache=None).store(encoder)
    assert len(cached_files(cache)) == 1
    assert torch.equal(found.take(torch.arange(7)), without.take(torch.arange(7)))
    assert torch.equal(prepare(dataset.raw, encoder.prepare, size=8).take(torch.arange(7)), found.take(torch.arange(7)))


def test_large_store_stays_on_the_host(monkeypatch):
    store = TensorStore(torch.zeros(10, 3, 4, 4, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (480 * 4 - 1, 0))
    on_host = store.to("cuda")
    assert on_host.data is store.data
    assert on_host.pinned  # batches are copied to the GPU from pinned memory
    assert not store.to("cpu").pinned
    assert store.to("cpu").take(torch.tensor([1])).shape == (1, 3, 4, 4)


def test_a_feature_file_without_a_checksum_is_computed_again(images, tmp_path):
    computed = []

    def compute(rows: np.ndarray) -> torch.Tensor:
        computed.append(len(rows))
        return torch.ones(len(rows), 2)

    groups = [np.arange(7)]
    for _ in range(2):
        cached_features(images, groups, compute, key="k", folder=tmp_path)
    assert computed == [7]
    (path,) = (tmp_path / "features").iterdir()
    with safe_open(path, "pt") as file:
        tree = file.metadata()["tree"]
    save_file({"t0": torch.zeros(7, 2)}, path, metadata={"tree": tree})
    assert cached_features(images, groups, compute, key="k", folder=tmp_path).min() == 1
    assert computed == [7, 7]
