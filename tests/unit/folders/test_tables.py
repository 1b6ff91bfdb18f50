"""Models of tables: saved statistics, missing values, unknown categories, trees."""

import json

import numpy as np
import pandas as pd
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.readers.in_memory import read_frame
from holdfast.estimator import DomainClassifier
from holdfast.nn.backbones.tabular import Columns
from holdfast.prediction.predict import predict
from holdfast.serve.service import Service


def frame(rows: int = 90, seed: int = 0, domains: int = 3) -> pd.DataFrame:
    """Two classes that depend on a number and a category, with missing values."""
    rng = np.random.default_rng(seed)
    age, colour = rng.normal(50, 10, rows), rng.choice(["red", "blue", "green"], rows)
    label = (age > 50) ^ (colour == "red")
    data = pd.DataFrame({"age": age, "colour": colour, "smoker": rng.random(rows) > 0.5, "size": rng.normal(size=rows)})
    data.loc[rng.random(rows) < 0.1, "size"] = np.nan
    data.loc[rng.random(rows) < 0.1, "colour"] = None
    return data.assign(label=np.where(label, "yes", "no"), domain=[f"d{i % domains}" for i in range(rows)])


def fitted(method: str, **options) -> DomainClassifier:
    data = frame()
    classifier = DomainClassifier(method=method, steps=20, device="cpu", **options)
    return classifier.fit(data.drop(columns=["label", "domain"]), data["label"], domains=data["domain"])


@pytest.mark.parametrize("method", ["erm", "logistic", "boosting"])
def test_a_saved_model_predicts_the_same(tmp_path, method):
    options = {"encoder": "columns"} if method != "erm" else {}
    model, new = fitted(method, keep_sample=5, **options), frame(40, seed=1)
    inputs = new.drop(columns=["label", "domain"])
    before = model.predict_proba(inputs)
    assert before.shape == (40, 2)
    folder = model.save_pretrained(tmp_path / "model")
    loaded = DomainClassifier.from_pretrained(folder, device="cpu")
    assert np.allclose(loaded.predict_proba(inputs[::-1]), before[::-1], atol=1e-6)
    assert not [path for path in folder.rglob("*") if path.suffix in (".pkl", ".joblib", ".pt")]
    new.to_csv(tmp_path / "new.csv", index=False)
    result = predict(folder, tmp_path / "new.csv", tmp_path / "out.csv", device="cpu")
    assert result.scored == 40
    table = pd.read_csv(tmp_path / "out.csv")
    assert np.allclose(table[["p_no", "p_yes"]], before, atol=1e-5)
    assert table["foreign"].between(0, 100).all()


def test_single_rows_and_unknown_categories(tmp_path):
    model = fitted("erm")
    row = pd.DataFrame({"age": [60.0], "colour": ["pink"], "smoker": [True], "size": [None]})
    alone = model.predict_proba(row)
    assert np.isfinite(alone).all()
    assert np.allclose(model.predict_proba(pd.concat([row, row.assign(colour="red")]))[0], alone[0], atol=1e-6)
    with pytest.raises(BadInput, match="lacks the column 'age' of the model"):
        model.predict(row.drop(columns="age"))
    folder = model.save_pretrained(tmp_path / "model")
    row.drop(columns="age").to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(BadInput, match="lacks the column 'age' of the model"):
        predict(folder, tmp_path / "new.csv", tmp_path / "out.csv")


def test_served_rows_equal_predictions(tmp_path):
    model, new = fitted("boosting", encoder="columns"), frame(6, seed=2).drop(columns=["label", "domain"])
    service = Service(model.save_pretrained(tmp_path / "model"), device="cpu")
    rows = json.loads(new.to_json(orient="records"))
    rows = [{key: value for key, value in row.items() if value is not None} for row in rows]
    answers = service.answer([service.parser.parse(json.dumps({"examples": rows}).encode())])
    expected = model.predict_proba(new)
    assert np.allclose([[a["probabilities"][name] for name in ("no", "yes")] for a in answers], expected, atol=1e-5)
    schema = service.model()["schema"]["properties"]
    assert schema["age"] == {"type": ["number", "null"]}
    assert set(schema["colour"]["examples"]) == {"red", "blue", "green"}
    with pytest.raises(BadInput, match="example 1 has none of the model's columns"):
        service.parser.parse(b'{"example": {"height": 3}}')
    with pytest.raises(BadInput, match="column 'age' has 'old', expected a number"):
        service.parser.parse(b'{"example": {"age": "old"}}')


def test_statistics_come_from_the_training_rows_only():
    dataset = read_frame(frame())
    rows = np.arange(30)
    encoder = Columns.build(lambda: dataset.raw.take(rows))
    changed = frame()
    changed.loc[30:, "age"] = 1e6
    changed.loc[30:, "colour"] = "pink"
    other = Columns.build(lambda: read_frame(changed).raw.take(rows))
    assert encoder.settings == other.settings
    assert all((value == other.state_dict()[name]).all() for name, value in encoder.state_dict().items())


def test_a_model_of_vectors_explains_missing_values(tmp_path):
    data = frame()[["age", "label", "domain"]].assign(weight=np.arange(90.0))
    classifier = DomainClassifier(method="logistic", device="cpu")
    classifier.fit(data[["age", "weight"]], data["label"], domains=data["domain"])
    folder = classifier.save_pretrained(tmp_path / "model")
    new = data.assign(note="x", kind=["a", "b"] * 45)
    new.to_csv(tmp_path / "new.csv", index=False)
    assert predict(folder, tmp_path / "new.csv", tmp_path / "out.csv", device="cpu").scored == 90
    new.assign(weight=np.where(np.arange(90) == 4, np.nan, 1.0)).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(BadInput, match="row 5, column 'weight' is missing, but the model was trained without"):
        predict(folder, tmp_path / "new.csv", tmp_path / "out.csv", device="cpu")
