"""A row of GMoE's tables with a ResNet, from pictures and a file of weights to the cell."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from holdfast.core.errors import BadInput
from holdfast.nn.backbones.resnet import ResNet
from holdfast.recipes.reproduce import reproduce


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, chance = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for domain in ("candy", "mosaic", "natural", "udnie"):
        for kind in ("a", "b"):
            place = folder / "cub-dg" / domain / kind
            place.mkdir(parents=True)
            for i in range(5):
                Image.fromarray(chance.integers(0, 255, (8, 8, 3), np.uint8)).save(place / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    save_file(ResNet(depth=50, stem="large").state_dict(), folder / "resnet50.safetensors")
    return folder


def run(data, out, **more):
    settings = {"encoder.size": 32, **more.pop("settings", {})}
    options = {"columns": ["candy"], "seeds": 1, "steps": 1, "batch": 2, "device": "cpu", "cache": False}
    return reproduce("gmoe/table17", data_dir=data, out=out, settings=settings, **options, **more)


def test_a_row_with_a_resnet_runs_where_its_weights_are_named(data, weights, tmp_path):
    given = {"encoder.weights": str(weights / "{start}.safetensors")}
    done = run(data, tmp_path, rows=["erm"], settings=given)
    (cell,) = done.cells
    assert cell.values
    assert cell.text().startswith("64.3 / ")
    (record,) = done.records
    assert record.spec["encoder_args"]["weights"] == str(weights / "resnet50.safetensors")
    assert record.cost["macs"] > 80_000_000
    page = done.report.read_text()
    assert "64.3 / " in page
    assert "multiply-adds (M)" in page


def test_without_them_it_is_told_and_the_others_take_another_encoder(data, tmp_path):
    done = run(data, tmp_path, rows=["erm", "vit", "gmoe-released"], encoder="vit-tiny")
    told = {one.cell.row.name: (bool(one.values), one.reason) for one in done.cells}
    assert told["vit"] == told["gmoe-released"] == (True, "")
    assert not told["erm"][0]
    assert "its weights, resnet50, have to be named" in told["erm"][1]
    with pytest.raises(BadInput, match=r"have to be named: --set encoder\.weights=FILE"):
        run(data, tmp_path / "none", rows=["erm"])
    with pytest.raises(BadInput, match="leave --encoder out"):
        run(data, tmp_path / "both", rows=["erm"], encoder="vit-tiny", settings={"encoder.weights": "w.safetensors"})
