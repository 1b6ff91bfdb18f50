"""Tables with a column of image files, alone or next to other columns: reading, bad paths, models and exports."""

import base64
import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from holdfast import DomainClassifier
from holdfast.core.errors import BadInput
from holdfast.data.load import load_chunks, load_data
from holdfast.data.raw import ImageFiles, Table
from holdfast.folders.format import load_model
from holdfast.nn.backbones.mixed import Mixed, MixedColumns
from holdfast.prediction.export import export
from holdfast.prediction.predict import predict
from holdfast.serve.service import Service

N = 24
IMAGE = {"image": "scan"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with images in `scans`, whose brightness is the label, and tables of them."""
    home = tmp_path_factory.mktemp("scans")
    (home / "scans").mkdir()
    rng = np.random.default_rng(0)
    rows = []
    for i in range(N):
        pixels = rng.normal(60 + 120 * (i % 2), 20, (8, 8, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(home / "scans" / f"{i}.png")
        age = None if i % 5 == 0 else 40 + i
        rows.append((f"scans/{i}.png", age, "mf"[i % 3 == 0], ["ill", "well"][i % 2], ["north", "south"][i // 2 % 2]))
    frame = pd.DataFrame(rows, columns=["scan", "age", "sex", "label", "domain"])
    frame.to_csv(home / "rows.csv", index=False)
    frame[["scan", "label", "domain"]].to_csv(home / "images.csv", index=False)
    return home


def test_images_are_read_next_to_columns(folder):
    dataset = load_data(folder / "rows.csv", columns=IMAGE)
    assert isinstance(dataset.raw, Table)
    assert dataset.raw.kind == "mixed"
    assert isinstance(dataset.raw.companion, ImageFiles)
    assert dataset.raw.companion.files()[3] == folder / "scans" / "3.png"
    assert dataset.columns == ("age", "sex", "scan")
    assert any("the input is 3 columns (number: age; category: sex; image: scan)" in note for note in dataset.notes)
    rows = dataset.raw.take(np.arange(2), size=16)
    assert rows.companion.shape == (2, 3, 16, 16)
    alone = load_data(folder / "images.csv", columns=IMAGE)
    assert alone.raw.kind == "image"
    frame = pd.read_csv(folder / "rows.csv").assign(scan=lambda f: [str(folder / path) for path in f["scan"]])
    assert load_data(frame, columns=IMAGE).raw.digest(np.arange(N)) == dataset.raw.digest(np.arange(N))


def test_a_column_of_file_names_has_a_hint(folder):
    (note,) = [note for note in load_data(folder / "rows.csv").notes if note.startswith("not used")]
    assert "'scan'" in note
    assert "--column image=NAME reads the images" in note


def test_bad_paths_are_listed(folder):
    table = pd.read_csv(folder / "rows.csv")
    table.loc[[1, 4], "scan"] = ["scans/none.png", None]
    table.to_csv(folder / "bad.csv", index=False)
    message = r"2 bad cells in 2 rows: column 'scan' has 'scans/none.png' \(row 2\).* \(row 5\), expected an image file"
    with pytest.raises(BadInput, match=message):
        load_data(folder / "bad.csv", columns=IMAGE)
    assert len(load_data(folder / "bad.csv", columns=IMAGE, skip_bad=True)) == N - 2
    chunks = list(load_chunks(folder / "bad.csv", rows=10, columns=IMAGE, skip_bad=True))
    assert [len(chunk) for chunk in chunks] == [10, 10, 2]
    with pytest.raises(BadInput, match="rows have the text 'sex' and the image 'scan', but one is possible"):
        load_data(folder / "rows.csv", columns={**IMAGE, "text": "sex"})


@pytest.mark.parametrize("family", [Mixed, MixedColumns])
def test_encoders_survive_saving(folder, tmp_path, family):
    rows = load_data(folder / "rows.csv", columns=IMAGE).raw.take(np.arange(N))
    torch.manual_seed(0)
    encoder = family.build(lambda: rows)
    assert (encoder.kind, encoder.size) == ("image", 32)
    values = encoder.eval()(encoder.prepare(rows).take(torch.arange(N)))
    assert values.shape == (N, encoder.width)
    loaded = family.load(tmp_path, json.loads(json.dumps(encoder.save(tmp_path))))
    loaded.load_state_dict(encoder.state_dict())
    assert torch.equal(loaded.eval()(loaded.prepare(rows).take(torch.arange(N))), values)
    with pytest.raises(BadInput, match="the model reads a table with one image per row"):
        encoder.prepare(
            load_data(folder / "rows.csv", columns={"text": "scan", "features": "age"}).raw.take(np.arange(3))
        )


def test_bases_of_images_are_checked(folder):
    rows = load_data(folder / "rows.csv", columns=IMAGE).raw.take(np.arange(N))
    assert Mixed.build(lambda: rows, base="resnet18", size=16).size == 16
    with pytest.raises(BadInput, match="encoder of images next to a table 'tfidf'"):
        Mixed.build(lambda: rows, base="tfidf")


def test_components_of_pixels_separate_bright_from_dark_images(folder):
    rows = load_data(folder / "rows.csv", columns=IMAGE).raw.take(np.arange(N))
    first = MixedColumns.build(lambda: rows).other(rows.companion)[:, 0]
    assert abs(float(first[::2].mean() - first[1::2].mean())) > 1.5
    assert float(first.std(correction=0)) == pytest.approx(1, abs=1e-3)


def test_a_model_predicts_serves_and_is_exported(folder, tmp_path):
    data = load_data(folder / "rows.csv", columns=IMAGE)
    DomainClassifier(steps=2, batch=4, device="cpu").fit_dataset(data, folder=tmp_path / "model")
    saved = load_model(tmp_path / "model")
    assert saved.columns == ("age", "sex", "scan")
    done = predict(tmp_path / "model", folder / "rows.csv", tmp_path / "out.csv", device="cpu")
    assert done.examples == N
    expected = pd.read_csv(tmp_path / "out.csv")["p_ill"].to_numpy()
    image = base64.b64encode((folder / "scans" / "1.png").read_bytes()).decode()
    service = Service(tmp_path / "model", device="cpu")
    request = service.parser.parse(json.dumps({"examples": [{"age": 41, "sex": "m", "scan": image}]}).encode())
    (answer,) = service.answer([request])
    assert answer["probabilities"]["ill"] == pytest.approx(expected[1], abs=1e-5)
    with pytest.raises(BadInput, match="example 1 is not an image: send the file in base64"):
        service.parser.parse(b'{"example": {"age": 41, "sex": "m"}}')
    exported = export(tmp_path / "model", tmp_path / "m.pt2", format="torch")
    assert exported.difference < 1e-5
    about = json.loads(exported.about.read_text())
    assert [each["name"] for each in about["inputs"]] == ["numbers", "codes", "image"]
    assert about["preprocessing"]["image"]["size"] == 32
