"""Malicious files: nothing is executed or unpickled, memory is bounded, and nothing is written elsewhere."""

import io
import json
import os
import pickle
import shutil
import struct
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from holdfast.core.checkpoint import save_tensors
from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.data.readers import graphs
from holdfast.data.readers import npz as archives
from holdfast.folders.format import load_model


class Trap:
    """Create a folder when unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def hostile(folder, mark):
    """Write the trap in every kind of file that Python programs commonly unpickle."""
    trap = Trap(mark)
    torch.save({"w": trap}, folder / "weights.pt")
    np.save(folder / "x.npy", np.array([trap], dtype=object), allow_pickle=True)
    np.savez(folder / "x.npz", x=np.array([trap], dtype=object), y=np.arange(1))
    (folder / "x.pkl").write_bytes(pickle.dumps(trap))
    return ["weights.pt", "x.npy", "x.npz", "x.pkl"]


def test_no_file_is_unpickled_whatever_its_name(tmp_path):
    mark = tmp_path / "mark"
    names = hostile(tmp_path, mark)
    pickle.loads((tmp_path / "x.pkl").read_bytes())
    assert mark.exists()  # the trap works
    mark.rmdir()
    for name in names:
        content = (tmp_path / name).read_bytes()
        for suffix in (".csv", ".tsv", ".jsonl", ".parquet", ".npz", ".zip", ".json", ".txt", ".pt", ".pkl", ".conll"):
            path = tmp_path / f"other{suffix}"
            path.write_bytes(content)
            for form in ("table", "tags", "questions", "corpus"):
                with pytest.raises(BadInput):
                    load_data(path, known={}, form=form)
            path.unlink()
    assert not mark.exists()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from holdfast.estimator import DomainClassifier

    small = {"encoder.hidden": 4, "encoder.embedding": 4}
    texts, labels = ["good a", "bad b", "good c", "bad d"] * 6, ["pos", "neg"] * 12
    classifier = DomainClassifier(encoder="bilstm", steps=2, batch=2, settings=small)
    return classifier.fit(texts, labels, domains=["x", "y", "z"] * 8).save_pretrained(
        tmp_path_factory.mktemp("m") / "model"
    )


@pytest.fixture
def copy(model, tmp_path):
    return shutil.copytree(model, tmp_path / "model")


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "record.json", "gauge.safetensors", "heldout.json"]
)
def test_no_file_of_a_model_folder_is_unpickled(copy, tmp_path, name):
    hostile(tmp_path, tmp_path / "mark")
    for trap in ("weights.pt", "x.pkl", "x.npz"):
        (copy / name).write_bytes((tmp_path / trap).read_bytes())
        with pytest.raises(BadInput, match="model"):
            load_model(copy)
    assert not (tmp_path / "mark").exists()


def test_changed_bit_of_the_weights_is_detected(copy):
    load_model(copy)
    weights = copy / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-5] + bytes([content[-5] ^ 8]) + content[-4:])
    with pytest.raises(BadInput, match=r"model\.safetensors.*changed"):
        load_model(copy)


def test_header_larger_than_the_file_is_rejected(copy):
    header = json.dumps({"w": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 64)
    with pytest.raises(BadInput, match="model folder"):
        load_model(copy)
    (copy / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    with pytest.raises(BadInput, match="model folder"):
        load_model(copy)


@pytest.mark.parametrize("wide", [10**9, 10**15])
def test_settings_that_would_fill_the_memory_are_rejected(copy, wide):
    config = json.loads((copy / "config.json").read_text())
    config["encoder"]["settings"]["hidden"] = wide
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput):
        load_model(copy)


def test_weights_of_other_shapes_and_files_without_checksums(copy):
    path = copy / "model.safetensors"
    weights = load_file(path)
    save_file(weights, path)  # a file without a checksum
    load_model(copy)
    save_tensors(path, {name: value[..., :1].contiguous() for name, value in weights.items() if value.ndim})
    with pytest.raises(BadInput, match="model folder"):
        load_model(copy)


@pytest.mark.parametrize("classes", [["pos"], ["pos", "neg", "new"], {}])
def test_number_of_classes_must_match_the_head(copy, classes):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"classes": classes}))
    with pytest.raises(BadInput, match=f"2 outputs.* {len(classes)} classes"):
        load_model(copy)


def packed(path, members, **more):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    return path


def test_zip_bomb_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "MIN_LIMIT", 1 << 20)
    monkeypatch.setattr(graphs, "MAX_TEXT", 1 << 20)
    bomb = packed(tmp_path / "graphs.zip", {"dataset/graphs/graphs.txt": b"0\n" * (1 << 21)})
    array = io.BytesIO()
    np.save(array, np.zeros((1 << 20, 1), dtype=np.float32))
    other = packed(tmp_path / "x.npz", {"x.npy": array.getvalue(), "y.npy": array.getvalue()})
    for path in (bomb, other):
        with pytest.raises(BadInput, match=r"would unpack from .* to .* GiB"):
            load_data(path, known={})


def test_array_with_a_huge_declared_shape_is_rejected(tmp_path):
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(array, {"descr": "<f8", "fortran_order": False, "shape": (1 << 45, 8)})
    path = packed(tmp_path / "x.npz", {"x.npy": array.getvalue() + b"\0" * 64, "y.npy": array.getvalue()})
    with pytest.raises(BadInput, match=r"x\.npz"):
        load_data(path, known={})


def test_paths_outside_an_archive_are_not_written(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    path = packed(
        inside / "g.zip", {"../out.txt": "1 0\n0 0\n", "/abs.txt": "1 0\n0 0\n", "..\\out2.txt": "1 0\n0 0\n"}
    )
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput):
        load_data(path, known={})
    assert sorted(tmp_path.rglob("*")) == before


def test_formulas_are_escaped_in_csv_predictions_only(holdfast, tmp_path, model):
    ids = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "-7", "plain"]
    lines = ["id,text", *(f'"{name}",good' for name in ids)]
    (tmp_path / "d.csv").write_text("\n".join(lines) + "\n")
    assert holdfast("predict", model, "d.csv", "--out", "p.csv").code == 0
    assert holdfast("predict", model, "d.csv", "--out", "p.jsonl").code == 0
    import pandas as pd

    ids_read = pd.read_csv(tmp_path / "p.csv", dtype=str)["id"].tolist()
    assert ids_read == ["'=1+1", "'+cmd|' /C calc'!A0", "'-2+3", "'@SUM(A1)", "'\t=1", "-7", "plain"]
    assert [json.loads(line)["id"] for line in (tmp_path / "p.jsonl").read_text().splitlines()] == ids
