"""Models for numbers, sets of labels and levels, and averages of them: tables, folders, servers, programs."""

import csv
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from holdfast.adaptation.adapt import Terms, adapt, ledger_of
from holdfast.api import Comparison, compare, refit
from holdfast.core.errors import BadInput
from holdfast.folders.format import load_model
from holdfast.folders.versions import use_version
from holdfast.monitor.observe import observe
from holdfast.prediction.export import export
from holdfast.prediction.outputs import answers, label_thresholds, predict_examples
from holdfast.prediction.predict import predict
from holdfast.serve.service import Service
from holdfast.stats.labels import COMBINED
from holdfast.uncertainty.arrays import Predicted
from holdfast.uncertainty.mixture import best_weights, shrunk_weights
from tests.unit.prediction.test_combine import assert_test_outputs_choose_nothing
from tests.unit.prediction.test_export import run

SETTINGS = {"regress": {}, "multilabel": {}, "ordinal": {"task.order": ["low", "mid", "high"]}}
SIMPLE = {"regress": ["mean", "columns + ridge"], "multilabel": ["mean", "columns + logistic"],
          "ordinal": ["majority", "columns + logistic"]}  # fmt: skip


def frame(task: str, rows: int = 160, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    size, colour = rng.normal(size=rows), rng.choice(["red", "blue"], rows)
    score = size + (colour == "red") + 0.3 * rng.normal(size=rows)
    label = {
        "regress": 100 + 10 * score,
        "multilabel": [
            "|".join(["big"] * int(s > 0) + ["warm"] * int(c == "red")) for s, c in zip(size, colour, strict=True)
        ],
        "ordinal": np.asarray(["low", "mid", "high"])[np.digitize(score, [0, 1])],
    }[task]  # fmt: skip
    data = pd.DataFrame({"size": size, "colour": colour, "label": label, "domain": [f"d{i % 2}" for i in range(rows)]})
    data.loc[::11, "size"] = np.nan
    return data


@pytest.fixture(scope="module", params=list(SETTINGS))
def done(request, tmp_path_factory) -> Comparison:
    task = request.param
    return compare(
        frame(task), methods="erm", seeds=2, out=tmp_path_factory.mktemp("runs"), steps=20, lr=0.003, cache=False,
        settings={"task": task, "encoder.dimension": 8, **SETTINGS[task]}, device="cpu",
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(done, tmp_path_factory):
    """Model folder of a stack with two members of equal weight."""
    stacks = [record for record in done.records if record.spec["method"] == "stack"]
    runs = {(r.spec["method"], r.spec["seed"], r.episode): r for r in done.records if r.spec["method"] not in COMBINED}
    simple = "ridge" if done.dataset.task == "regress" else "boosting"
    for record in stacks:
        place = record.spec["seed"], record.episode
        record.stages[0]["members"] = [{"id": runs[name, *place].id, "weight": 0.5} for name in (simple, "erm")]
    decision = replace(done.decision, label="stack", spec=stacks[0].spec)
    chosen = replace(done, summary=replace(done.summary, decision=decision))
    return refit(chosen, tmp_path_factory.mktemp("model") / "model", device="cpu", cache=False)


def test_tables_have_trees_and_combinations_for_every_task(done):
    rows = {entry["method"]: entry for entry in done.table() if entry["target"] == "average"}
    task = done.dataset.task
    assert {*SIMPLE[task], "columns + boosting", "erm", "stack", "ensemble", "ensemble(stack)"} == set(rows)
    sign = -1 if task == "regress" else 1
    assert sign * rows["columns + boosting"]["mean"] > sign * rows[SIMPLE[task][0]]["mean"] + 0.05
    assert sign * rows["stack"]["mean"] > sign * rows[SIMPLE[task][0]]["mean"] + 0.05
    stage = next(record for record in done.records if record.spec["method"] == "ensemble").stages[0]
    (scores,) = stage["test"].values()
    if task == "regress":
        assert 0.7 < scores["coverage"] <= 1
        assert len(next(iter(stage["predictions"].values()))["low"]) > 10
    else:
        assert list(stage["right"]) == list(stage["test"])


def test_outputs_on_the_target_change_neither_members_nor_weights(done):
    assert_test_outputs_choose_nothing(done)


def test_a_saved_average_is_the_mean_of_its_members(done, folder):
    saved, raw = load_model(folder), done.dataset.raw
    each = [replace(member, members=()) for _, member in saved.all_members]
    assert [round(weight, 6) for weight, _ in saved.all_members] == [0.5, 0.5]
    mixed, alone = predict_examples(saved, raw), [predict_examples(member, raw) for member in each]
    assert mixed.values == pytest.approx(np.mean([a.values for a in alone], axis=0))
    if saved.predicts == "numbers":
        assert mixed.ends == pytest.approx(np.mean([a.ends for a in alone], axis=0))
    elif saved.predicts == "labels":
        limits = np.mean([member.calibration.thresholds for member in each], axis=0)
        assert label_thresholds(saved) == pytest.approx(limits)


@pytest.fixture(scope="module", params=["average", "single"])
def model(request, folder, tmp_path_factory):
    """The folder of the average, and one of its network alone."""
    if request.param == "average":
        return folder
    return replace(load_model(folder), members=()).save(tmp_path_factory.mktemp("single") / "model")


@pytest.mark.parametrize("form", ["torch", pytest.param("onnx", marks=pytest.mark.slow)])
def test_files_servers_and_programs_agree(done, model, tmp_path, form):
    if form == "onnx":
        pytest.importorskip("onnxruntime", reason="needs ONNX: pip install 'holdfast[export]'")
    task = done.dataset.task
    data = frame(task, 40, seed=3).assign(colour=["red", "green", None, "blue"] * 10)
    data.to_csv(tmp_path / "new.csv", index=False)
    result = predict(model, tmp_path / "new.csv", tmp_path / "p.csv", device="cpu")
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert len(rows) == result.examples == result.scored == 40
    assert (set(result.scores), result.accuracy is None) == (
        ({"rmse", "mae"}, True) if task == "regress" else (set(), False)
    )
    exported = export(model, tmp_path / f"m{'.onnx' if form == 'onnx' else '.pt2'}", format=form)
    about = json.loads(exported.about.read_text())
    program = run(exported.program, program_inputs(about, data))
    columns = ["prediction", "low", "high"] if task == "regress" else [f"p_{name}" for name in about["labels"]]
    assert (about["output"].get("columns") == columns, "thresholds" in about["output"]) == (
        task == "regress",
        task == "multilabel",
    )
    written = np.asarray([[float(row[name]) for name in columns] for row in rows])
    np.testing.assert_allclose(program, written, atol=1e-3 if task == "regress" else 1e-5)
    service = Service(model, device="cpu")
    inputs = json.loads(data[["size", "colour"]].to_json(orient="records"))
    for answer, row in zip(
        service.answer([service.parser.parse(json.dumps({"examples": inputs}).encode())]), rows, strict=True
    ):
        assert answer["foreign"] == pytest.approx(float(row["foreign"]))
        if task == "regress":
            assert [answer[name] for name in columns] == pytest.approx([float(row[name]) for name in columns], rel=1e-4)
        else:
            label = "|".join(answer["labels"]) if task == "multilabel" else answer["label"]
            assert label == row["labels" if task == "multilabel" else "label"]
    if task != "ordinal":
        with pytest.raises(BadInput, match=f"task {task} has no class probabilities"):
            load_model(model).probabilities(done.dataset.raw)


def test_examples_above_the_percentile_get_no_prediction(done, model, tmp_path):
    frame(done.dataset.task, 40).to_csv(tmp_path / "new.csv", index=False)
    result = predict(model, tmp_path / "new.csv", tmp_path / "p.csv", device="cpu", abstain_above=60.0)
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    name = {"regress": "prediction", "multilabel": "labels", "ordinal": "label"}[done.dataset.task]
    distant = [row for row in rows if float(row["foreign"]) > 60]
    assert 0 < result.abstained == len(distant) < 40
    assert not any(row[name] for row in distant)


def program_inputs(about: dict, data: pd.DataFrame) -> dict[str, np.ndarray]:
    """Prepare the inputs from the JSON description only."""
    steps = about["preprocessing"]
    assert steps["takes"] == "table"
    numbers = data[[column["name"] for column in steps["numbers"]]].to_numpy(dtype=np.float32, copy=True)
    codes = [
        [steps["missing"] if pd.isna(v) else column["codes"].get(v, steps["unknown"]) for v in data[column["name"]]]
        for column in steps["codes"]
    ]
    return {"numbers": numbers, "codes": np.asarray(codes, dtype=np.int64).T}


def test_a_model_learns_another_domain_and_returns_to_the_version_before(done, model, tmp_path):
    task = done.dataset.task
    frame(task, 60, seed=5).assign(domain="d9").to_csv(tmp_path / "new.csv", index=False)
    adapt(model, tmp_path / "new.csv", Terms(steps=5, force=True, device="cpu"), earlier=[frame(task)])
    saved = load_model(model)
    assert {member.domains[-1] for _, member in saved.all_members} == {"d9"}
    assert saved.calibration is not None
    assert (saved.model.scale is not None) == (task == "regress")
    use_version(model, ledger_of(model), 1)
    assert "d9" not in load_model(model).domains


def test_weights_of_numbers_and_labels():
    rng = np.random.default_rng(0)
    y = {"a": rng.normal(size=300), "b": rng.normal(size=40)}
    good = {d: np.stack([v + 0.1 * rng.normal(size=len(v))] * 3, axis=1) for d, v in y.items()}
    noise = {d: rng.normal(size=(len(v), 3)) for d, v in y.items()}
    other = {d: np.stack([v + 0.1 * rng.normal(size=len(v))] * 3, axis=1) for d, v in y.items()}
    assert best_weights([good, noise], y, numbers=True) == pytest.approx([1, 0], abs=0.05)
    assert best_weights([good, good], y, numbers=True) == pytest.approx([0.5, 0.5])
    assert best_weights([good, other, noise], y, numbers=True) == pytest.approx([0.5, 0.5, 0], abs=0.1)
    labels = {d: (rng.random((len(v), 2)) > 0.5).astype(float) for d, v in y.items()}
    sure = {d: np.where(v > 0.5, 0.8, 0.2) for d, v in labels.items()}
    flat = {d: np.full(v.shape, 0.5) for d, v in labels.items()}
    assert best_weights([sure, flat], labels, numbers=False) == pytest.approx([1, 0])


def test_weights_are_uniform_unless_the_source_domains_agree_on_others():
    rng = np.random.default_rng(0)
    y = {d: rng.normal(size=30) for d in "abc"}
    close = [{d: (v + 0.5 * rng.normal(size=30))[:, None] for d, v in y.items()} for _ in range(2)]
    assert abs(best_weights(close, y, numbers=True)[0] - 0.5) > 0.02
    assert shrunk_weights(close, y, numbers=True) == pytest.approx([0.5, 0.5], abs=0.01)
    far = {d: v + 3 * rng.normal(size=(30, 1)) for d, v in close[0].items()}
    assert shrunk_weights([close[0], far], y, numbers=True)[0] > 0.9
    labels = {"a": rng.integers(0, 2, 90)}  # one domain is divided
    good = {"a": np.where(labels["a"][:, None] == [0, 1], 0.9, 0.1)}
    flat = {"a": np.full((90, 2), 0.5)}
    assert shrunk_weights([good, flat], labels, numbers=False) == pytest.approx([1, 0])


def test_a_monitor_sees_the_answers_of_the_average(done, folder):
    saved, raw = load_model(folder), done.dataset.raw
    assert saved.reference is not None
    served: list[Predicted] = []
    answers(saved, raw, observe=lambda _, predicted: served.append(predicted))
    observed = observe(saved, raw, saved.reference)
    first = replace(saved, members=())
    mixed, alone = (predict_examples(each, raw).values for each in (saved, first))
    assert not np.allclose(mixed, alone)
    for whole, own in ((served[0].values, served[0].first), (observed.answers, observed.outputs)):
        assert whole == pytest.approx(mixed, rel=1e-4, abs=1e-5)
        assert own == pytest.approx(alone, rel=1e-4, abs=1e-5)
    assert served[0].foreign == pytest.approx(observed.foreign)
