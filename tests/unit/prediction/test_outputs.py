"""Model folders for numbers, sets of labels and levels: predictions, serving, export and adaptation."""

import csv
import json

import numpy as np
import pytest
import torch

from holdfast.adaptation.adapt import Terms, adapt
from holdfast.core.errors import BadInput
from holdfast.data.raw import Vectors
from holdfast.estimator import DomainClassifier
from holdfast.folders.format import load_model
from holdfast.prediction.export import export
from holdfast.prediction.predict import predict
from holdfast.serve.service import Service
from holdfast.train.training_data import training_data

SETTINGS = {"regress": {}, "multilabel": {}, "ordinal": {"task.order": ["low", "mid", "high"]}}


def write(path, shift=0.0, domains=("a", "b", "c"), seed=0):
    rng = np.random.default_rng(seed)
    x, noise = rng.normal(size=(180, 2)) + shift, 4 * rng.normal(size=180)
    labels = {
        "regress": [f"{500 + 30 * a - 10 * b + e:.4f}" for (a, b), e in zip(x, noise, strict=True)],
        "multilabel": ["|".join(n for n, v in zip(("red", "blue"), row, strict=True) if v > 0) for row in x],
        "ordinal": [("low", "mid", "high")[int(np.clip(np.floor(a + 1.5), 0, 2))] for a, _ in x],
    }[path.stem.split("-")[0]]
    rows = [
        [f"{a:.5f}", f"{b:.5f}", label, domains[i % len(domains)]]
        for i, ((a, b), label) in enumerate(zip(x, labels, strict=True))
    ]
    path.write_text("\n".join(",".join(row) for row in [["p", "q", "label", "domain"], *rows]) + "\n")
    return path


@pytest.fixture(scope="module", params=list(SETTINGS))
def model(request, tmp_path_factory):
    folder, task = tmp_path_factory.mktemp(request.param), request.param
    data = write(folder / f"{task}.csv")
    settings = {"task": task, **SETTINGS[task]}
    dataset = training_data(data, task=task, settings=settings)
    options = {"encoder": "features", "steps": 150, "lr": 0.05, "device": "cpu", "cache": False, "keep_sample": 20}
    DomainClassifier(settings=settings, **options).fit_dataset(dataset, folder=folder / "model")
    return task, folder / "model", data


def test_files_servers_and_programs_agree(model, tmp_path):
    task, folder, data = model
    result = predict(folder, data, tmp_path / "p.csv", device="cpu")
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    examples = [[float(row["p"]), float(row["q"])] for row in csv.DictReader(data.read_text().splitlines())][:20]
    service = Service(folder, device="cpu")
    answers = service.answer([service.parser.parse(json.dumps({"examples": examples}).encode())])
    saved, exported = load_model(folder), export(folder, tmp_path / "m.pt2", format="torch")
    program = torch.export.load(exported.program).module()(x=torch.tensor(examples)).detach().numpy()
    about = json.loads(exported.about.read_text())
    names = {"regress": "prediction", "multilabel": "labels", "ordinal": "label"}
    for row, answer, output in zip(rows[:20], answers, program, strict=True):
        if task == "regress":
            served = [answer[name] for name in ("prediction", "low", "high")]
            assert served == pytest.approx([float(row[name]) for name in ("prediction", "low", "high")], rel=1e-5)
            assert output == pytest.approx(served, rel=1e-5)
        else:
            label = answer[names[task]]
            assert row[names[task]] == ("|".join(label) if task == "multilabel" else label)
            assert output == pytest.approx(list(answer["probabilities"].values()), abs=1e-4)
        assert float(row["foreign"]) == pytest.approx(answer["foreign"])
    assert len(rows) == result.examples == 180
    if task == "regress":
        assert 3 < result.scores["rmse"] < 6
        assert result.accuracy is None
        assert about["output"]["columns"] == ["prediction", "low", "high"]
    else:
        assert result.accuracy > 0.8
        assert result.scores == {}
    assert ("thresholds" in about["output"]) == (task == "multilabel")
    if saved.predicts != "classes":
        with pytest.raises(BadInput, match=f"task {task} has no class probabilities"):
            saved.probabilities(Vectors(np.asarray(examples)))


def test_distant_examples_get_no_prediction(model, tmp_path):
    task, folder, _ = model
    far = write(tmp_path / f"{task}-far.csv", shift=50.0)
    result = predict(folder, far, tmp_path / "p.csv", device="cpu", abstain_above=99.0)
    assert result.abstained == result.examples == 180


def test_adaptation_adds_a_version(model, tmp_path):
    task, folder, _ = model
    new = write(tmp_path / f"{task}-new.csv", domains=("d",), seed=7)
    result = adapt(folder, new, Terms(device="cpu", steps=20, max_forgetting=100.0))
    assert result.version == 2
    assert not result.refused
    saved = load_model(folder)
    assert saved.domains == ("a", "b", "c", "d")
    assert saved.calibration is not None
    assert (saved.model.scale is not None) == (task == "regress")
