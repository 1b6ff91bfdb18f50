"""Prediction sets calibrated on left-out domains: thresholds, coverage, files, servers and estimators."""

import csv
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from holdfast.api import compare, refit
from holdfast.cli import app
from holdfast.core.errors import BadInput
from holdfast.estimator import DomainClassifier, DomainRegressor
from holdfast.folders.format import load_model
from holdfast.prediction.outputs import calibrate
from holdfast.prediction.predict import predict
from holdfast.record import load
from holdfast.report.page import write_report
from holdfast.serve.service import Service
from holdfast.stats.summary import summarise
from holdfast.train.training_data import training_data
from holdfast.uncertainty.conformal import Calibrated, DensityRatio, measure, needed_examples, quantiles
from holdfast.uncertainty.left_out import LeftOut, Projection


def left_out(rng, domains=6, size=400, classes=4, noise=0.0):
    """Probabilities of left-out domains whose accuracy differs between domains by about `noise`."""
    outputs, y, domain = [], [], []
    for index in range(domains):
        labels = rng.integers(0, classes, size)
        logits = rng.normal(size=(size, classes)) + (1.5 + noise * rng.normal()) * np.eye(classes)[labels]
        outputs.append(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))
        y.append(labels)
        domain.append(np.full(size, index))
    index = np.concatenate(domain)
    names = tuple(f"d{i}" for i in range(domains))
    return LeftOut(names, index, index, np.concatenate(y), np.concatenate(outputs))


def test_equal_weights_give_the_usual_quantile():
    rng = np.random.default_rng(0)
    for count in (9, 10, 19, 50):
        values = rng.normal(size=count)
        rank = int(np.ceil((count + 1) * 0.9 - 1e-9))
        expected = np.inf if rank > count else np.sort(values)[rank - 1]
        assert quantiles(values, np.ones(count), np.ones(1), 0.9)[0] == expected
    assert needed_examples(0.9) == 9
    assert needed_examples(0.99) == 99


def test_heavier_examples_move_the_quantile():
    values = np.asarray([1.0, 2.0, 3.0])
    assert quantiles(values, np.asarray([8.0, 1.0, 1.0]), np.asarray([0.0]), 0.75)[0] == 1.0
    assert quantiles(values, np.asarray([1.0, 1.0, 8.0]), np.asarray([0.0]), 0.75)[0] == 3.0
    assert quantiles(values, np.ones(3), np.asarray([0.0, 9.0]), 0.75).tolist() == [3.0, np.inf]


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_split_sets_cover_exchangeable_domains_as_stated(coverage):
    measured = measure(left_out(np.random.default_rng(0)), coverage)
    assert [each.domain for each in measured] == [f"d{i}" for i in range(6)]
    assert np.mean([each.coverage for each in measured]) == pytest.approx(coverage, abs=0.015)
    larger = measure(left_out(np.random.default_rng(0)), min(0.97, coverage + 0.04))
    assert np.mean([each.size for each in larger]) > np.mean([each.size for each in measured])


def test_split_weighs_domains_and_not_rows():
    easy, hard = (left_out(np.random.default_rng(0), domains=1, size=n) for n in (2000, 100))
    hard = replace(hard, outputs=1 - hard.outputs)
    index = np.repeat([0, 1], [2000, 100])
    both = LeftOut(
        ("easy", "hard"), index, index, np.concatenate([easy.y, hard.y]), np.concatenate([easy.outputs, hard.outputs])
    )
    sets = Calibrated.fit(both, 0.9)
    limit = sets._thresholds(1, None, None)[0]
    assert limit > Calibrated.fit(easy, 0.9)._thresholds(1, None, None)[0]
    shares = [(sets.scores[index == i] <= limit).mean() for i in (0, 1)]
    assert np.mean(shares) == pytest.approx(0.9, abs=0.02)


def test_mondrian_uses_the_own_threshold_and_the_largest_for_unknown_domains():
    data = left_out(np.random.default_rng(1), noise=0.8)
    sets = Calibrated.fit(data, 0.9, "mondrian")
    own = [sets._thresholds(1, [name], None)[0] for name in data.domains]
    assert len(set(own)) == 6
    assert sets._thresholds(2, ["d3", "new"], None).tolist() == [own[3], max(own)]
    for index, name in enumerate(data.domains):
        rows = data.take(data.domain == index)
        assert sets.predict(rows.outputs, domains=[name] * 400).covers(rows.y).mean() == pytest.approx(0.9, abs=0.02)
    split, mondrian = (measure(data, 0.9, method) for method in ("split", "mondrian"))
    assert np.mean([e.coverage for e in mondrian]) > np.mean([e.coverage for e in split])
    assert min(e.coverage for e in split) < 0.87  # domains that differ are not all covered as stated


def test_weights_correct_a_covariate_shift():
    """Errors grow with the feature; new examples have large features, and only weighted sets follow."""
    projection = Projection(np.zeros(1, np.float32), np.ones((1, 1), np.float32))
    index = np.repeat([0, 1], 1500)
    covered = {"split": [], "weighted": []}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        x, new = (rng.normal(centre, 1, size=(3000, 1)).astype(np.float32) for centre in (0, 1))
        y, truth = (rng.normal(size=3000) * (0.3 + np.exp(0.6 * each[:, 0])) for each in (x, new))
        known = LeftOut(("a", "b"), index, index, y, np.zeros((3000, 1)), x, projection)
        for method, shares in covered.items():
            sets = Calibrated.fit(known, 0.9, method, new=new)
            shares.append(sets.predict(np.zeros((3000, 1)), features=new).covers(truth).mean())
    assert np.mean(covered["split"]) < 0.8
    assert np.mean(covered["weighted"]) == pytest.approx(0.9, abs=0.02)
    assert DensityRatio.fit(x, np.ones(3000), new)(x).mean() == pytest.approx(1)


def test_sets_are_never_empty_and_ordered_sets_have_no_gaps():
    probabilities = np.asarray([[0.48, 0.04, 0.48], [0.98, 0.01, 0.01]])
    index = np.repeat([0, 1], 50)
    known = LeftOut(("a", "b"), index, index, np.zeros(100, np.int64), np.tile([[0.45, 0.3, 0.25]], (100, 1)))
    assert Calibrated.fit(known, 0.9).predict(probabilities).values.tolist() == [[1, 0, 1], [1, 0, 0]]
    assert Calibrated.fit(known, 0.9, ordered=True).predict(probabilities).values.tolist() == [[1, 1, 1], [1, 0, 0]]
    sure = replace(known, outputs=np.tile([[1.0, 0.0, 0.0]], (100, 1)))
    assert Calibrated.fit(sure, 0.9).predict(probabilities[:1]).sizes.tolist() == [1]


def test_intervals_enclose_quantiles_of_the_network():
    rng = np.random.default_rng(3)
    y, index = rng.normal(size=1000), np.repeat([0, 1], 500)
    outputs = np.tile([[0.0, -3.0, 3.0]], (1000, 1))  # too wide, so that the margin is negative
    sets = Calibrated.fit(LeftOut(("a", "b"), index, index, y, outputs), 0.8)
    predicted = sets.predict(outputs[:1])
    assert -1.5 < predicted.values[0, 0] < -1.1
    assert 1.1 < predicted.values[0, 1] < 1.5
    crossed = sets.predict(np.asarray([[0.0, -0.1, 0.1]]))
    assert crossed.values[0, 0] == crossed.values[0, 1]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng, rows = np.random.default_rng(0), []
    for domain, shift in (("a", 0.0), ("b", 0.4), ("c", -0.4)):
        for p, q in rng.normal(size=(60, 2)):
            label = ("low", "mid", "high")[int(np.digitize(p + shift + rng.normal() / 2, [-0.6, 0.6]))]
            rows.append([f"{p:.4f}", f"{q:.4f}", label, domain])
    path = tmp_path_factory.mktemp("data") / "data.csv"
    path.write_text("\n".join(map(",".join, [["p", "q", "label", "domain"], *rows])) + "\n")
    return path


@pytest.fixture(scope="module")
def model(table):
    folder = table.parent / "model"
    options = {"steps": 30, "device": "cpu", "left_out": True, "settings": {"encoder.hidden": [8]}}
    DomainClassifier(**options).fit_dataset(training_data(table), folder=folder)
    return folder


@pytest.mark.parametrize("method", ["split", "mondrian", "weighted"])
def test_files_have_sets(model, table, tmp_path, method):
    result = predict(model, table, tmp_path / "p.csv", device="cpu", coverage=0.8, sets=method)
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert {"set", "set_size", "foreign", "label"} <= set(rows[0])
    for row in rows:
        names = row["set"].split("|")
        assert row["label"] in names
        assert len(names) == int(row["set_size"])
    summary = result.sets.json()
    truth = [line.split(",")[2] for line in table.read_text().splitlines()[1:]]
    covered = np.mean([label in row["set"].split("|") for label, row in zip(truth, rows, strict=True)])
    assert summary["covered"] == pytest.approx(covered)
    assert summary["covered"] > 0.75
    assert summary["labelled"] == 180
    assert [each["domain"] for each in summary["measured"]] == ["a", "b", "c"]


def test_weighted_sets_do_not_depend_on_the_chunks(model, table, tmp_path, monkeypatch):
    predict(model, table, tmp_path / "one.csv", device="cpu", coverage=0.8, sets="weighted")
    monkeypatch.setattr("holdfast.prediction.predict.WINDOW", 16)
    monkeypatch.setattr("holdfast.prediction.predict.SAMPLE", 40)
    result = predict(model, table, tmp_path / "two.csv", device="cpu", coverage=0.8, sets="weighted")
    one, two = ((tmp_path / name).read_text() for name in ("one.csv", "two.csv"))
    assert len(one.splitlines()) == len(two.splitlines()) == 181
    assert result.sets.covered / 180 > 0.7  # from a sample of 40 rows of all chunks


def test_command_prints_and_returns_the_coverage(model, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = CliRunner().invoke(app, ["predict", str(model), str(table), "--coverage", "0.8", "--json"])
    sets = json.loads(out.stdout)["sets"]
    assert (sets["coverage"], sets["method"], len(sets["measured"])) == (0.8, "split", 3)
    out = CliRunner().invoke(app, ["predict", str(model), str(table), "--json"])
    assert json.loads(out.stdout)["sets"] is None
    out = CliRunner().invoke(app, ["predict", str(model), str(table), "--coverage", "0.8", "--sets", "mondrian"])
    assert "prediction sets (mondrian): mean size" in out.output
    assert "coverage 80.0% is nominal; measured on left-out domains: a " in out.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coverage": 90}, "between 0 and 1, such as 0.9; got 90"),
        ({"coverage": 0.9, "sets": "weigthed"}, "did you mean 'weighted'"),
        ({"coverage": 0.999}, "needs at least 999 examples of left-out domains, the model folder has 180"),
        ({"coverage": 0.99, "sets": "mondrian"}, "at least 99 examples of left-out domains in one domain"),
        ({"coverage": 0.9, "calibrated": False}, "remove --uncalibrated"),
    ],
)
def test_wrong_requests_are_explained(model, table, tmp_path, options, message):
    with pytest.raises(BadInput, match=message):
        predict(model, table, tmp_path / "p.csv", device="cpu", **options)
    assert not (tmp_path / "p.csv").exists()


def test_models_without_left_out_domains_are_refused(model):
    saved = load_model(model)
    with pytest.raises(BadInput, match="holdfast fit --left-out"):
        calibrate(replace(saved, left_out=None), 0.9)
    with pytest.raises(BadInput, match="no features of left-out domains"):
        calibrate(replace(saved, left_out=saved.left_out.without_features()), 0.9, "weighted")
    spec = {**saved.record.spec, "task": "multilabel"}
    with pytest.raises(BadInput, match="task multilabel has no prediction sets"):
        calibrate(replace(saved, record=replace(saved.record, spec=spec)), 0.9)


def test_servers_answer_with_the_sets_of_files(model, table, tmp_path):
    predict(model, table, tmp_path / "p.jsonl", device="cpu", coverage=0.8)
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()[:10]]
    examples = [[*map(float, line.split(",")[:2])] for line in table.read_text().splitlines()[1:11]]
    service = Service(model, device="cpu", coverage=0.8)
    answers = service.answer([service.parser.parse(json.dumps({"examples": examples}).encode())])
    assert [answer["set"] for answer in answers] == [row["set"].split("|") for row in rows]
    assert service.model()["sets"]["coverage"] == 0.8
    assert "sets" not in Service(model, device="cpu").model()
    with pytest.raises(BadInput, match="all new examples at once"):
        Service(model, device="cpu", coverage=0.8, sets="weighted")


def test_estimators_return_sets_and_intervals(model):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2)).astype(np.float32)
    domains = np.repeat(["a", "b", "c"], 40)
    classifier = DomainClassifier.from_pretrained(model)
    named = pd.DataFrame(X, columns=["p", "q"])
    for method in ("split", "mondrian", "weighted"):
        sets = classifier.predict_set(named, 0.8, method=method, domains=domains)
        assert sets.shape == (120, 3)
        assert sets[np.arange(120), classifier.predict_proba(named).argmax(axis=1)].all()
    y = 100 + 5 * X[:, 0] + rng.normal(size=120)
    regressor = DomainRegressor(steps=60, left_out=True, settings={"encoder.hidden": [8]}).fit(X, y, domains=domains)
    widths = {}
    for coverage in (0.5, 0.9):
        low, high = regressor.predict_interval(X, coverage)
        widths[coverage] = (high - low).mean()
        assert ((y >= low) & (y <= high)).mean() > coverage - 0.15
    assert widths[0.5] < widths[0.9]
    low, high = regressor.predict_interval(X, 0.9, method="mondrian", domains=domains)
    assert len(np.unique((high - low).round(4))) == 3
    assert regressor.predict_interval(X)[0].shape == (120,)


def test_reports_and_cards_show_the_measured_coverage(table, tmp_path):
    options = {"methods": "erm", "seeds": 1, "baselines": False, "steps": 30, "settings": {"encoder.hidden": [8]}}
    done = compare(str(table), out=tmp_path / "runs", model=tmp_path / "runs/model", **options)
    folder = refit(done, tmp_path / "runs/model")
    card = (folder / "README.md").read_text()
    assert "| domain | examples | measured coverage | mean labels per set |" in card
    records = list(load(tmp_path / "runs"))
    assert sorted(records, key=lambda r: r.id) == sorted(done.records, key=lambda r: r.id)
    sets = {domain: levels for r in records for domain, levels in r.stages[-1]["sets"].items()}
    assert set(sets) == {"a", "b", "c"}
    expected = measure(load_model(folder).left_out, 0.9)
    for each in expected:
        assert sets[each.domain]["0.9"]["split"]["coverage"] == pytest.approx(each.coverage, abs=1e-5)
        assert f"| {each.domain} | 60 | {each.coverage:.3f} |" in card
    page = tmp_path / "again.html"
    write_report(summarise(records, done.metric), page, title="again")
    for text in (done.report.read_text(), page.read_text()):
        assert "Coverage of prediction sets" in text
        assert "mean over domains" in text
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs/records").iterdir()}
    compare(str(table), out=tmp_path / "runs", **options)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs/records").iterdir()}
