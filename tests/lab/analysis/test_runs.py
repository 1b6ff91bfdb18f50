"""Analyses of runs: files are checked before the training, and notes name what is missing."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from PIL import Image

from holdfast.api import compare
from holdfast.core.errors import BadInput
from holdfast.data.readers.images import read_images
from holdfast.data.synthetic import world
from holdfast.train.run import train
from holdfast.train.settings import make_spec
from holdfast.train.workspace import Workspace


def write_images(folder: Path, *domains: str, parts: str) -> Path:
    for domain, label, i in itertools.product(domains, ("cat", "dog"), range(5)):
        place = folder / domain / label
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(place / f"{i}.png")
    (folder / "parts.csv").write_text(f"image,part,x,y\n{parts}\n")
    return folder


@pytest.mark.parametrize("name", ["expert-parts", "attention-map"])
def test_invalid_part_locations_raise_before_training(tmp_path, name):
    data = read_images(write_images(tmp_path, "photo", "sketch", "paint", parts="cat/0,tail,far,0.5"))
    workspace, ticks = Workspace(data), []
    chosen = make_spec(data, steps=1, every=1, batch=2, settings={"encoder": "cnn"})
    episode = workspace.episodes(chosen)[0]
    with pytest.raises(BadInput, match="row 1"):
        train(chosen, episode, workspace, tick=ticks.append, analyse=(name,))
    assert not ticks
    assert train(chosen, episode, workspace, tick=ticks.append)[0].stages
    assert ticks


def test_part_locations_of_other_images_are_noted(tmp_path):
    folder = write_images(tmp_path / "set", "photo", "sketch", parts="photo/cat/0.png,tail,0.5,0.5")
    done = compare(
        folder, baselines=False, methods=["erm"], out=tmp_path / "out", analyse=["expert-parts"], seeds=1, steps=1,
        batch=2, encoder="cnn", cache=False,
    )  # fmt: skip
    repeated, nothing, others = done.notes
    assert "repeat earlier ones" in repeated
    assert nothing.startswith("expert-parts: ")
    assert "'photo/cat/0.png'" in others
    assert "'cat/0'" in others
    assert "photo/cat/0.png" in done.report.read_text(encoding="utf-8")


def test_analyses_without_anything_to_show_are_explained_together(tmp_path):
    data = world("vector", "rotation", domains=3, size=60, classes=2, seed=0)
    done = compare(
        data, methods=["erm"], seeds=1, steps=4, out=tmp_path, device="cpu", settings={"encoder.hidden": [8]},
        analyse=["slot-map", "a-distance", "slot-diversity"], baselines=False,
    )  # fmt: skip
    (slots,) = done.notes
    assert slots.startswith("slot-map, slot-diversity: ")
    assert "method=hma" in slots
    assert slots in done.report.read_text(encoding="utf-8")
