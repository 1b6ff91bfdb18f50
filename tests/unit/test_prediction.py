import csv
import json
import shutil

import numpy as np
import pandas as pd
import pytest

from holdfast import BadInput, DomainClassifier
from holdfast.data.synthetic import world
from holdfast.models import predict as prediction
from holdfast.models import saved
from holdfast.models.adapt import Terms, adapt
from holdfast.models.predict import predict
from holdfast.run.workspace import training_data

N = 90


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prediction") / "model"
    data = world("text", "none", domains=2, size=60, classes=2, seed=0)
    made = DomainClassifier(
        encoder="bilstm", steps=25, batch=16, lr=0.02, settings={"encoder.hidden": 8, "encoder.embedding": 8}
    )
    made.fit(data.raw.take(np.arange(len(data))), np.asarray(data.classes)[data.y], domains=data.domain)
    made.save_pretrained(folder)
    return folder, made


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
    monkeypatch.setattr(saved, "WINDOW", rows)
    monkeypatch.setattr(prediction, "WINDOW", rows)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_file_in_pieces_gives_exactly_what_it_gives_as_a_whole(model, table, monkeypatch, suffix):
    folder, made = model
    home, rows = table
    small_windows(monkeypatch, 16)
    asked = []
    monkeypatch.setattr(
        saved.SavedModel, "judge", lambda self, raw, judge=saved.SavedModel.judge, **more: (
            asked.append(len(raw)), judge(self, raw, **more)
        )[1],
    )  # fmt: skip
    done = predict(folder, home / f"new.{suffix}", home / "out.parquet", device="cpu")
    assert asked == [16, 16, 16, 16, 16, 10]  # never more than a window in memory
    found = pd.read_parquet(done.path)
    whole = made.predict_proba(rows["text"].tolist())
    np.testing.assert_array_equal(found[[f"p_{name}" for name in made.classes_]].to_numpy(), whole)
    np.testing.assert_array_equal(found["foreign"], made.foreignness(rows["text"].tolist()))
    assert found["id"].tolist() == [str(i + 1) for i in range(N)]
    assert done.accuracy == pytest.approx((found["label"] == rows["label"]).mean())
    assert (done.examples, done.scored, sum(done.counts.values())) == (N, N, N)


def test_calibration_does_not_raise_the_nll_and_can_be_switched_off(model, table):
    folder, made = model
    home, rows = table
    right = (rows["label"].to_numpy()[:, None] == np.asarray(made.classes_)).argmax(1)
    nll = {}
    for on in (True, False):
        found = pd.read_parquet(predict(folder, home / "new.csv", home / "o.parquet", calibrated=on).path)
        p = found[[f"p_{name}" for name in made.classes_]].to_numpy()
        nll[on] = -np.log(p[np.arange(N), right]).mean()
    assert nll[True] <= nll[False]


def test_foreign_examples_get_no_label_where_asked(model, table):
    folder, _ = model
    home, rows = table
    odd = pd.DataFrame({"id": ["x", "y"], "text": ["qq zz xx", "hmm"], "label": ["", ""]})
    pd.concat([rows.assign(id=[f"r{i}" for i in range(N)]), odd]).to_csv(home / "mixed.csv", index=False)
    done = predict(folder, home / "mixed.csv", home / "out.csv", abstain_above=90)
    found = list(csv.DictReader((home / "out.csv").read_text().splitlines()))
    assert all((row["label"] == "") == (float(row["foreign"]) > 90) for row in found)
    assert done.abstained == sum(row["label"] == "" for row in found) > 0
    assert done.abstained + sum(done.counts.values()) == N + 2
    assert done.scored <= N
    predict(folder, home / "mixed.csv", home / "out.jsonl", abstain_above=0)
    lines = [json.loads(line) for line in (home / "out.jsonl").read_text().splitlines()]
    assert any(line["label"] is None for line in lines)
    with pytest.raises(BadInput, match="between 0 and 100, not 120"):
        predict(folder, home / "mixed.csv", home / "out.csv", abstain_above=120)


def test_an_older_folder_predicts_and_says_what_is_missing(model, table, tmp_path):
    _, made = model
    home, rows = table
    folder = made.save_pretrained(tmp_path / "old")
    (folder / "gauge.safetensors").unlink()
    (folder / "heldout.json").unlink()
    done = predict(folder, home / "new.csv", home / "out.parquet")
    assert "no calibration and no measure of foreignness" in done.notes[0]
    found = pd.read_parquet(done.path)
    assert found.columns.tolist() == ["id", "label", *(f"p_{name}" for name in made.classes_)]
    plain = made._model().probabilities(saved_texts(rows), calibrated=False)
    np.testing.assert_allclose(found.iloc[:, 2:].to_numpy(), plain, atol=1e-6)
    with pytest.raises(BadInput, match="cannot abstain"):
        predict(folder, home / "new.csv", home / "out.csv", abstain_above=90)


def saved_texts(rows):
    from holdfast.data.raw import Texts

    return Texts.of(rows["text"].tolist())


def test_what_is_wrong_late_in_a_file_leaves_no_predictions(model, table, monkeypatch):
    folder, _ = model
    home, _ = table
    small_windows(monkeypatch, 16)
    (home / "bad.csv").write_text((home / "new.csv").read_text() + "  ,x\n")
    with pytest.raises(BadInput, match=f"row {N + 1}, column 'text' has no text"):
        predict(folder, home / "bad.csv", home / "out.csv")
    assert not [p for p in home.iterdir() if "out" in p.name]


def test_a_folder_of_images_is_predicted_in_pieces(tmp_path, monkeypatch):
    from PIL import Image

    data = world("image", "none", domains=2, size=20, classes=2, seed=0)
    X = data.raw.take(np.arange(40)).numpy()
    made = DomainClassifier(encoder="cnn", steps=4, batch=8, settings={"encoder.size": 16})
    made.fit(X, data.y, domains=data.domain)
    folder = made.save_pretrained(tmp_path / "model")
    (tmp_path / "pictures").mkdir()
    for i in range(10):
        Image.fromarray(X[i].transpose(1, 2, 0)).save(tmp_path / "pictures" / f"{i}.png")
    small_windows(monkeypatch, 4)
    done = predict(folder, tmp_path / "pictures", tmp_path / "out.parquet", device="cpu")
    found = pd.read_parquet(done.path)
    assert found["id"].tolist() == [f"{i}.png" for i in range(10)]
    np.testing.assert_array_equal(found[["p_0", "p_1"]].to_numpy(), made.predict_proba(X[:10]))


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A model of a table whose numeric columns have names, and the table."""
    home, chance = tmp_path_factory.mktemp("numbers"), np.random.default_rng(0)
    table = pd.DataFrame(chance.normal(size=(80, 3)), columns=["age", "dose", "pulse"])
    table["label"], table["domain"] = np.where(table["age"] > 2 * table["dose"], "yes", "no"), ["a", "b"] * 40
    table.to_csv(home / "seen.csv", index=False)
    made = DomainClassifier(steps=30, batch=16, device="cpu", settings={"encoder.hidden": [8]})
    made.fit_dataset(training_data(home / "seen.csv"), folder=home / "model")
    return home / "model", table


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_numeric_columns_are_found_by_name(numbers, tmp_path, suffix):
    folder, table = numbers
    turned = table[["domain", "pulse", "label", "dose", "age"]]
    write = {"csv": turned.to_csv, "parquet": turned.to_parquet}
    if suffix == "jsonl":
        turned.to_json(tmp_path / "new.jsonl", orient="records", lines=True)
    else:
        write[suffix](tmp_path / f"new.{suffix}", index=False)
    table.to_csv(tmp_path / "same.csv", index=False)
    found = predict(folder, tmp_path / f"new.{suffix}", tmp_path / "new-out.parquet", device="cpu")
    plain = predict(folder, tmp_path / "same.csv", tmp_path / "same-out.parquet", device="cpu")
    assert len(set(pd.read_parquet(plain.path)["label"])) == 2
    np.testing.assert_allclose(pd.read_parquet(found.path)["p_yes"], pd.read_parquet(plain.path)["p_yes"], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pulse": "heart"}, r"trained on: 'pulse' \(it has 'age', 'dose', 'heart'\); rename or add"),
        ({"pulse": "id"}, r"trained on: 'pulse' \(it has 'age', 'dose'\); rename or add"),
    ],
)
def test_features_that_the_model_does_not_have_are_named(numbers, tmp_path, change, said):
    folder, table = numbers
    table.rename(columns=change).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(BadInput, match=said):
        predict(folder, tmp_path / "new.csv", tmp_path / "out.csv", device="cpu")


def test_columns_that_the_model_does_not_know_are_left_aside(numbers, tmp_path):
    folder, table = numbers
    table.to_csv(tmp_path / "plain.csv", index=False)
    wide = table.assign(weight=1.0)[["weight", *table.columns]]
    wide.to_csv(tmp_path / "more.csv", index=False)
    found = []
    for name in ("plain", "more"):
        found.append(predict(folder, tmp_path / f"{name}.csv", tmp_path / f"{name}-out.csv", device="cpu"))
    assert found[0].path.read_text() == found[1].path.read_text()


def test_a_model_without_names_takes_columns_by_position(numbers, tmp_path):
    folder, table = numbers
    shutil.copytree(folder, tmp_path / "old")
    config = json.loads((tmp_path / "old" / "config.json").read_text())
    assert config.pop("columns") == ["age", "dose", "pulse"]
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))
    table.rename(columns={"pulse": "heart"}).to_csv(tmp_path / "new.csv", index=False)
    assert predict(tmp_path / "old", tmp_path / "new.csv", tmp_path / "out.csv", device="cpu").examples == len(table)


def test_adapting_finds_numeric_columns_by_name_too(numbers, tmp_path):
    folder, table = numbers
    table.rename(columns={"pulse": "heart"}).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(BadInput, match="trained on: 'pulse'"):
        adapt(folder, tmp_path / "new.csv", Terms(force=True, device="cpu"), domain="c")
