"""Predictions of model folders: chunked reading, calibration, abstention and named columns."""

import csv
import json
import shutil

import numpy as np
import pandas as pd
import pytest

from holdfast import BadInput, DomainClassifier
from holdfast.data.synthetic import world
from holdfast.folders import format as saved
from holdfast.folders import predictor
from holdfast.prediction import predict as prediction
from holdfast.prediction.predict import predict
from holdfast.train.training_data import training_data

N = 90


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prediction") / "model"
    data = world("text", "none", domains=2, size=60, classes=2, seed=0)
    classifier = DomainClassifier(
        encoder="bilstm",
        steps=25,
        batch=16,
        lr=0.02,
        settings={"encoder.hidden": 8, "encoder.embedding": 8, "schedule": "constant", "average": "none"},
    )
    classifier.fit(data.raw.take(np.arange(len(data))), np.asarray(data.classes)[data.y], domains=data.domain)
    classifier.save_pretrained(folder)
    return folder, classifier


@pytest.fixture
def table(tmp_path):
    data = world("text", "none", domains=1, size=N, classes=2, seed=3)
    texts, labels = data.raw.take(np.arange(N)), np.asarray(data.classes)[data.y]
    table = pd.DataFrame({"text": texts, "label": labels})
    table.to_csv(tmp_path / "new.csv", index=False)
    table.to_json(tmp_path / "new.jsonl", orient="records", lines=True)
    table.to_parquet(tmp_path / "new.parquet")
    return tmp_path, table


def small_windows(monkeypatch, rows):
    monkeypatch.setattr(predictor, "WINDOW", rows)
    monkeypatch.setattr(prediction, "WINDOW", rows)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_chunked_reading_gives_the_same_predictions(model, table, monkeypatch, suffix):
    folder, classifier = model
    home, rows = table
    small_windows(monkeypatch, 16)
    sizes, original = [], saved.SavedModel.predict

    def counted(self, raw, **options):
        sizes.append(len(raw))
        return original(self, raw, **options)

    monkeypatch.setattr(saved.SavedModel, "predict", counted)
    done = predict(folder, home / f"new.{suffix}", home / "out.parquet", device="cpu")
    assert sizes == [16, 16, 16, 16, 16, 10]  # at most one window in memory
    predictions = pd.read_parquet(done.path)
    expected = classifier.predict_proba(rows["text"].tolist())
    np.testing.assert_array_equal(predictions[[f"p_{name}" for name in classifier.classes_]].to_numpy(), expected)
    np.testing.assert_array_equal(predictions["foreign"], classifier.foreignness(rows["text"].tolist()))
    assert predictions["id"].tolist() == [str(i + 1) for i in range(N)]
    assert done.accuracy == pytest.approx((predictions["label"] == rows["label"]).mean())
    assert (done.examples, done.scored, sum(done.counts.values())) == (N, N, N)


def test_foreign_examples_get_no_label_with_abstain_above(model, table):
    folder, _ = model
    home, rows = table
    odd = pd.DataFrame({"id": ["x", "y"], "text": ["qq zz xx", "hmm"], "label": ["", ""]})
    pd.concat([rows.assign(id=[f"r{i}" for i in range(N)]), odd]).to_csv(home / "mixed.csv", index=False)
    done = predict(folder, home / "mixed.csv", home / "out.csv", abstain_above=90)
    predictions = list(csv.DictReader((home / "out.csv").read_text().splitlines()))
    assert all((row["label"] == "") == (float(row["foreign"]) > 90) for row in predictions)
    assert done.abstained == sum(row["label"] == "" for row in predictions) > 0
    assert done.abstained + sum(done.counts.values()) == N + 2
    assert done.scored <= N
    predict(folder, home / "mixed.csv", home / "out.jsonl", abstain_above=0)
    lines = [json.loads(line) for line in (home / "out.jsonl").read_text().splitlines()]
    assert any(line["label"] is None for line in lines)
    with pytest.raises(BadInput, match=r"--abstain-above.*120"):
        predict(folder, home / "mixed.csv", home / "out.csv", abstain_above=120)


def test_folder_without_calibration_predicts_with_a_note(model, table, tmp_path):
    _, classifier = model
    home, rows = table
    folder = classifier.save_pretrained(tmp_path / "old")
    (folder / "gauge.safetensors").unlink()
    (folder / "heldout.json").unlink()
    done = predict(folder, home / "new.csv", home / "out.parquet")
    assert "uncalibrated" in done.notes[0]
    predictions = pd.read_parquet(done.path)
    assert predictions.columns.tolist() == ["id", "label", *(f"p_{name}" for name in classifier.classes_)]
    plain = classifier._model().predict(saved_texts(rows), calibrated=False).values
    np.testing.assert_allclose(predictions.iloc[:, 2:].to_numpy(), plain, atol=1e-6)
    raw = pd.read_parquet(predict(model[0], home / "new.csv", home / "raw.parquet", calibrated=False).path)
    np.testing.assert_allclose(raw[[f"p_{name}" for name in classifier.classes_]].to_numpy(), plain, atol=1e-6)
    with pytest.raises(BadInput, match="--abstain-above"):
        predict(folder, home / "new.csv", home / "out.csv", abstain_above=90)


def saved_texts(rows):
    from holdfast.data.raw import Texts

    return Texts.of(rows["text"].tolist())


def test_an_error_late_in_a_file_leaves_no_predictions(model, table, monkeypatch):
    folder, _ = model
    home, _ = table
    small_windows(monkeypatch, 16)
    (home / "bad.csv").write_text((home / "new.csv").read_text() + "  ,x\n")
    with pytest.raises(BadInput, match=f"row {N + 1}, column 'text'"):
        predict(folder, home / "bad.csv", home / "out.csv")
    assert not [p for p in home.iterdir() if "out" in p.name]


def test_image_folders_are_predicted_in_chunks(tmp_path, monkeypatch):
    from PIL import Image

    data = world("image", "none", domains=2, size=20, classes=2, seed=0)
    X = data.raw.take(np.arange(40)).numpy()
    classifier = DomainClassifier(encoder="cnn", steps=4, batch=8, settings={"encoder.size": 16})
    classifier.fit(X, data.y, domains=data.domain)
    folder = classifier.save_pretrained(tmp_path / "model")
    (tmp_path / "images").mkdir()
    for i in range(10):
        Image.fromarray(X[i].transpose(1, 2, 0)).save(tmp_path / "images" / f"{i}.png")
    small_windows(monkeypatch, 4)
    done = predict(folder, tmp_path / "images", tmp_path / "out.parquet", device="cpu")
    predictions = pd.read_parquet(done.path)
    assert predictions["id"].tolist() == [f"{i}.png" for i in range(10)]
    np.testing.assert_array_equal(predictions[["p_0", "p_1"]].to_numpy(), classifier.predict_proba(X[:10]))


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A model trained on a table with named numeric columns, and the table."""
    home, rng = tmp_path_factory.mktemp("numbers"), np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(80, 3)), columns=["age", "dose", "pulse"])
    table["label"], table["domain"] = np.where(table["age"] > 2 * table["dose"], "yes", "no"), ["a", "b"] * 40
    table.to_csv(home / "seen.csv", index=False)
    classifier = DomainClassifier(steps=30, batch=16, device="cpu", settings={"encoder.hidden": [8]})
    classifier.fit_dataset(training_data(home / "seen.csv"), folder=home / "model")
    return home / "model", table


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_numeric_columns_are_matched_by_name(numbers, tmp_path, suffix):
    folder, table = numbers
    reordered = table[["domain", "pulse", "label", "dose", "age"]]
    write = {"csv": reordered.to_csv, "parquet": reordered.to_parquet}
    if suffix == "jsonl":
        reordered.to_json(tmp_path / "new.jsonl", orient="records", lines=True)
    else:
        write[suffix](tmp_path / f"new.{suffix}", index=False)
    table.to_csv(tmp_path / "same.csv", index=False)
    predictions = predict(folder, tmp_path / f"new.{suffix}", tmp_path / "new-out.parquet", device="cpu")
    plain = predict(folder, tmp_path / "same.csv", tmp_path / "same-out.parquet", device="cpu")
    assert len(set(pd.read_parquet(plain.path)["label"])) == 2
    np.testing.assert_allclose(
        pd.read_parquet(predictions.path)["p_yes"], pd.read_parquet(plain.path)["p_yes"], atol=1e-6
    )


@pytest.mark.parametrize("other", ["heart", "id"])
def test_missing_features_are_named(numbers, tmp_path, other):
    folder, table = numbers
    table.rename(columns={"pulse": other}).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(BadInput, match=f"'pulse' of the model: it has 'age', 'dose', '{other}'"):
        predict(folder, tmp_path / "new.csv", tmp_path / "out.csv", device="cpu")


def test_unknown_columns_are_ignored(numbers, tmp_path):
    folder, table = numbers
    table = table.assign(pulse=70.0)  # a column with a single value
    table.to_csv(tmp_path / "plain.csv", index=False)
    wide = table.assign(weight=1.0)[["weight", *table.columns]]
    wide.to_csv(tmp_path / "more.csv", index=False)
    plain, more = (
        predict(folder, tmp_path / f"{name}.csv", tmp_path / f"{name}-out.csv", device="cpu").path.read_text()
        for name in ("plain", "more")
    )
    assert plain == more


def test_model_without_feature_names_uses_column_order(numbers, tmp_path):
    folder, table = numbers
    shutil.copytree(folder, tmp_path / "old")
    config = json.loads((tmp_path / "old" / "config.json").read_text())
    assert config.pop("columns") == ["age", "dose", "pulse"]
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    table.rename(columns={"pulse": "heart"}).to_csv(tmp_path / "new.csv", index=False)
    assert predict(tmp_path / "old", tmp_path / "new.csv", tmp_path / "out.csv", device="cpu").examples == len(table)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_copied_numbers_of_text_files_stay_numbers(model, table, monkeypatch, suffix):
    (folder, _), (home, rows) = model, table
    small_windows(monkeypatch, 30)
    more = rows.assign(count=range(N), share=0.5, code="007", gap=[None if i % 9 == 0 else i / 4 for i in range(N)])
    more.to_csv(home / "new.csv", index=False)
    carry, out = ["count", "share", "code", "gap"], home / f"out.{suffix}"
    predict(folder, home / "new.csv", out, device="cpu", carry=carry)
    read = pd.read_parquet(out) if suffix == "parquet" else pd.read_json(out, lines=True, dtype=False)
    assert read["count"].tolist() == list(range(N))
    assert read[["share", "code"]].drop_duplicates().values.tolist() == [[0.5, "007"]]
    assert (read["gap"].tolist()[1:3], read["gap"].isna().sum()) == ([0.25, 0.5], 10)
    more.assign(count=["x" if i == 89 else i for i in range(N)]).to_csv(home / "new.csv", index=False)
    with pytest.raises(BadInput, match="column 'count' of --with begins with numbers"):
        predict(folder, home / "new.csv", out, device="cpu", carry=carry)
