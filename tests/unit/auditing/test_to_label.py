"""Rows to label: uncertain, foreign and diverse ones first, in a table that `adapt` reads once it is filled in."""

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from holdfast.auditing.to_label import choose_rows, rows_to_label
from holdfast.cli import app
from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.estimator import DomainClassifier
from holdfast.train.training_data import training_data


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("label")
    rng = np.random.default_rng(0)
    lines = [
        f"{a:.3f},{b:.3f},{'yes' if a > 0 else 'no'},{'xy'[i % 2]}" for i, (a, b) in enumerate(rng.normal(size=(80, 2)))
    ]
    (folder / "train.csv").write_text("\n".join(["a,b,label,domain", *lines]) + "\n")
    DomainClassifier(steps=60, device="cpu", settings={"encoder.hidden": [8]}).fit_dataset(
        training_data(folder / "train.csv"), folder=folder / "model"
    )
    new = [(0.8, 0.0)] * 30 + [(-0.8, 0.1)] * 30 + [(0.01, 0.0), (-0.01, 0.2), (9.0, -9.0)]
    rows = [f"{i},{a + i / 1e4:.4f},{b:.4f}" for i, (a, b) in enumerate(new)]
    (folder / "new.csv").write_text("\n".join(["id,a,b", *rows]) + "\n")
    return folder


def test_choice_prefers_high_scores_and_avoids_copies():
    score = np.asarray([0.9, 0.89, 0.5, 0.1])
    features = np.asarray([[0.0, 0.0], [0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    assert choose_rows(score, features, 2).tolist() == [0, 2]  # the second row equals the first
    assert sorted(choose_rows(score, features, 9).tolist()) == [0, 1, 2, 3]


def test_uncertain_and_foreign_rows_come_first(model, tmp_path):
    result = rows_to_label(model / "model", model / "new.csv", tmp_path / "rows.csv", most=4, device="cpu")
    assert {61, 62} & set(result.rows)
    assert len(set(result.rows)) == 4
    rows = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    assert list(rows[0]) == ["id", "a", "b", "label", "predicted", "score"]
    assert [int(row["id"]) + 1 for row in rows] == result.rows
    assert all(row["label"] == "" and row["predicted"] in ("yes", "no") for row in rows)
    filled = (tmp_path / "rows.csv").read_text().replace('""', "yes")
    (tmp_path / "rows.csv").write_text(filled)
    assert load_data(tmp_path / "rows.csv", need=("label",)).classes == ("yes",)


def test_command_writes_json_and_explains_wrong_input(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["label", str(model / "model"), str(model / "new.csv"), "--most", "3"]
    document = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert (len(document["rows"]), document["examples"], document["column"]) == (3, 63, "label")
    assert "3 of 63 rows to label" in CliRunner().invoke(app, arguments).output
    for options, message in (({"most": 0}, "--most must be at least 1"), ({"out": "rows.txt"}, "rows.txt")):
        with pytest.raises(BadInput, match=message):
            rows_to_label(model / "model", model / "new.csv", **{"out": "rows.csv", **options})
    with pytest.raises(BadInput, match="would overwrite"):
        rows_to_label(model / "model", model / "new.csv", model / "new.csv")
