"""`watch`: batches, drift, alerts, later labels, history, report and every bad input."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from holdfast.core.errors import BadInput
from holdfast.estimator import DomainClassifier, DomainRegressor
from holdfast.folders.format import load_model
from holdfast.monitor.sequence import SUFFIX
from holdfast.monitor.state import FILE, MAX_ENTRIES, add_entries, first_drifted, read_history
from holdfast.monitor.watch import parse_conditions, watch
from tests.calls import run_cli

COLUMNS = ("x0", "x1", "x2", "x3")


def draw(n: int, seed: int, *, shift: float = 0.0, domain: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two classes along the first column; each domain moves the last one."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    x = rng.normal(size=(n, 4))
    x[:, 0] += 2.5 * y - 1.25 + shift
    x[:, 3] += 1.5 * domain
    return x, y


def lines(x, y=None, **columns) -> str:
    named = dict(zip(COLUMNS, x.T, strict=True)) | ({} if y is None else {"label": [("no", "yes")[i] for i in y]})
    named |= columns
    rows = (",".join(f"{v:.5f}" if isinstance(v, float) else str(v) for v in row) for row in zip(*named.values()))  # noqa: B905
    return "\n".join([",".join(named), *rows]) + "\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    pairs = [draw(200, seed, domain=seed) for seed in range(3)]
    x, y = (np.concatenate(each) for each in zip(*pairs, strict=True))
    path = folder / "train.csv"
    path.write_text(lines(x, y, domain=np.repeat(["a", "b", "c"], 200)))
    from holdfast.data.load import load_data

    estimator = DomainClassifier("logistic", encoder="features", left_out=True, cache=False)
    estimator.fit_dataset(load_data(path), folder=folder / "model")
    return folder / "model"


@pytest.fixture
def batches(tmp_path):
    """Four weeks without a domain column: two like the training data, two with other inputs."""
    pairs = [draw(80, 10 + i, domain=i % 3, shift=1.5 * (i >= 6)) for i in range(12)]
    x, y = (np.concatenate(each) for each in zip(*pairs, strict=True))
    path = tmp_path / "new.csv"
    path.write_text(lines(x, y, week=np.repeat([1, 2, 3, 4], 240), id=np.arange(960)))
    return path


def test_drift_is_reported_with_the_first_batch_and_the_cost(model, batches, tmp_path):
    result = watch(model, batches, by="week", state=tmp_path / "state", out=tmp_path / "watch.html", fail_on=["drift"])
    assert [check.batch for check in result.checks] == ["1", "2", "3", "4"]
    assert [bool(check.drifted) for check in result.checks] == [False, False, True, True]
    assert result.failed
    last = result.checks[-1]
    assert {"features", "column x0"} <= {finding.name for finding in last.drifted}
    assert "column x1" not in {finding.name for finding in last.drifted}
    assert last.since == "3"
    assert len(result.alerts) == 2
    assert "4: drift in " in result.alerts[-1]
    assert ", since 3; " in result.alerts[-1]
    assert "accuracy is " in result.alerts[-1]
    for check in result.checks:
        assert check.accuracy is not None
        assert check.true is not None
        assert check.labelled == 240
    known = result.checks[0]
    assert abs(known.accuracy.estimate - known.true) < 0.06
    assert known.accuracy.low <= known.true <= known.accuracy.high
    page = (tmp_path / "watch.html").read_text()
    for text in ("Drift in 2 of 4 tested batches.", "Accuracy over time", "Most drifted examples of 4", "since 3"):
        assert text in page
    json.dumps(result.json(), allow_nan=False)


def test_history_continues_and_repeated_batches_are_replaced(model, batches, tmp_path):
    state = tmp_path / "state"
    watch(model, batches, by="week", state=state)
    watch(model, batches, by="week", state=state)
    assert len(read_history(state)) == 4
    x, y = draw(240, 77, shift=1.5)
    later = tmp_path / "later.csv"
    later.write_text(lines(x, y))
    result = watch(model, later, state=state)
    assert result.checks[0].since == "3"
    assert len(read_history(state)) == 5
    text = (state / FILE).read_text()
    assert "examples" not in text
    assert not [line for line in later.read_text().splitlines()[1:] if line.split(",")[0] in text]
    other = watch(model, later, state=tmp_path / "none", keep=False)
    assert other.checks[0].since == "later"
    assert not (tmp_path / "none").exists()
    watch(model, later)
    assert len(read_history(model)) == 1
    assert load_model(model).reference is not None
    (model / FILE).unlink()


def test_drift_adds_up_over_calls(model, tmp_path):
    state, names = tmp_path / "state", []
    for week in range(6):
        pairs = [draw(70, 300 + 3 * week + i, domain=i, shift=0.7 * (week >= 3)) for i in range(3)]
        x = np.concatenate([pair[0] for pair in pairs])
        path = tmp_path / f"week{week}.csv"
        path.write_text(lines(x))
        (check,) = watch(model, path, state=state).checks
        names.append({finding.name for finding in check.findings if finding.name.endswith(SUFFIX)})
        drifted = [finding.name for finding in check.drifted]
    assert names[0] == set()
    assert f"features {SUFFIX}" in names[1]
    assert f"features {SUFFIX}" in drifted
    assert len(read_history(state)) == 6
    repeated = watch(model, path, state=state).checks[0]
    assert repeated.findings == check.findings  # a batch that is checked again is not its own past
    alone = watch(model, path, state=tmp_path / "none", keep=False).checks[0]
    assert not [finding for finding in alone.findings if finding.name.endswith(SUFFIX)]
    assert "summary" not in json.dumps(alone.json())


def test_labels_that_arrive_later_are_joined_by_id(model, batches, tmp_path):
    x, y = draw(100, 5)
    unlabelled, labels = tmp_path / "u.csv", tmp_path / "labels.csv"
    unlabelled.write_text(lines(x, id=np.arange(100)))
    truth = [("no", "yes")[i] for i in y]
    labels.write_text("id,label\n" + "".join(f"{i},{truth[i]}\n" for i in range(60)) + "900,yes\n70,maybe\n")
    before = watch(model, unlabelled, keep=False).checks[0]
    assert before.true is None
    result = watch(model, unlabelled, labels=labels, keep=False)
    assert result.checks[0].labelled == 60
    assert result.checks[0].true > 0.7
    assert any("1 labels in --labels" in note for note in result.notes)
    assert any("not scored: maybe" in note for note in result.notes)


def test_domains_are_checked_one_by_one_against_their_own_reference(model, tmp_path):
    pairs = [draw(150, 20 + i, domain=i) for i in (0, 1)]
    x, y = (np.concatenate(each) for each in zip(*pairs, strict=True))
    path = tmp_path / "domains.csv"
    path.write_text(lines(x, y, domain=np.repeat(["a", "b"], 150)))
    by_domain = {check.domain: check for check in watch(model, path, keep=False).checks}
    assert set(by_domain) == {None, "a", "b"}
    assert by_domain["a"].compared_with == "the training domain a"
    assert not by_domain["a"].drifted
    assert not by_domain["b"].drifted
    assert by_domain[None].drifted  # a mix without the third domain
    path.write_text(lines(draw(150, 3, domain=2)[0], domain=["a"] * 150))
    (check,) = watch(model, path, keep=False).checks
    assert check.domain == "a"
    assert {"features", "column x3"} <= {finding.name for finding in check.drifted}


def test_a_folder_of_tables_and_rows_per_batch(model, batches, tmp_path):
    folder = tmp_path / "days"
    folder.mkdir()
    for day in (1, 2):
        (folder / f"day{day}.csv").write_text(lines(draw(60, day)[0]))
    assert [check.batch for check in watch(model, folder, keep=False).checks] == ["day1", "day2"]
    result = watch(model, batches, rows=480, keep=False)
    assert [(check.batch, check.rows) for check in result.checks] == [("1 to 480", 480), ("481 to 960", 480)]
    (folder / "day3.csv").write_text(lines(draw(5, 3)[0]))
    last = watch(model, folder, keep=False).checks[-1]
    assert "fewer than 20" in last.note
    assert last.findings == []


def test_a_reference_of_the_user_replaces_a_missing_one(model, batches, tmp_path):
    bare = tmp_path / "bare"
    replace(load_model(model), reference=None, left_out=None).save(bare)
    with pytest.raises(BadInput, match="no reference to compare new examples with: fit the model again, or pass"):
        watch(bare, batches)
    pairs = [draw(200, 40 + seed, domain=seed) for seed in range(3)]
    x, y = (np.concatenate(each) for each in zip(*pairs, strict=True))
    own = tmp_path / "own.csv"
    own.write_text(lines(x, y))
    result = watch(bare, batches, by="week", reference=own, keep=False)
    assert [bool(check.drifted) for check in result.checks] == [False, False, True, True]
    assert any("fit it with --left-out" in note for note in result.notes)
    own.write_text(lines(x[:30], y[:30]))
    with pytest.raises(BadInput, match="has 30 examples: a reference needs at least 40"):
        watch(bare, batches, reference=own)


def test_a_regression_has_drift_and_errors_but_no_accuracy(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    estimator = DomainRegressor("ridge", encoder="features", cache=False)
    estimator.fit(x, x[:, 0] + 0.1 * rng.normal(size=300), domains=["a", "b", "c"] * 100)
    folder = estimator.save_pretrained(tmp_path / "numbers")
    moved = rng.normal(size=(200, 3)) + np.asarray([2, 0, 0])
    path = tmp_path / "moved.npz"
    np.savez(path, x=moved, y=moved[:, 0])
    (check,) = watch(folder, path, keep=False).checks
    assert {"features", "predictions"} <= {finding.name for finding in check.drifted}
    assert check.accuracy is None
    assert check.true is not None
    assert check.true < 0.5
    with pytest.raises(BadInput, match="needs a model that predicts one class per example"):
        watch(folder, path, fail_on=["accuracy<0.5"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "week", "rows": 50}, "--by and --rows both define batches"),
        ({"rows": 5}, "`rows` must be at least 20"),
        ({"by": "month"}, "month"),
        ({"level": 2.0}, "--level must be a probability between 0 and 1; got 2"),
        ({"fail_on": ["accuracy>0.8"]}, r"--fail-on takes drift, or accuracy<NUMBER .* got 'accuracy>0.8'"),
        ({"labels": "none.csv"}, "no file none.csv"),
        ({"labels": "labels.txt"}, "must be a table"),
        ({"labels": "empty.csv"}, "has no label column"),
        ({"labels": "twice.csv"}, "row 2 has another label for the id '1' than an earlier row"),
        ({"labels": "noid.csv"}, "row 1 has no id"),
        ({"labels": "other.csv"}, "no id in --labels occurs in the data"),
        ({"out": "new.csv"}, "would overwrite the data"),
    ],
)
def test_bad_options_are_one_sentence(model, batches, monkeypatch, options, message):
    monkeypatch.chdir(batches.parent)
    for name, text in {
        "labels.txt": "x", "empty.csv": "id,x\n1,2\n", "twice.csv": "id,label\n1,yes\n1,no\n",
        "noid.csv": "id,label\n,yes\n", "other.csv": "id,label\nzz,yes\n",
    }.items():  # fmt: skip
        (batches.parent / name).write_text(text)
    with pytest.raises(BadInput, match=message) as raised:
        watch(model, "new.csv", keep=False, **options)
    assert "\n" not in str(raised.value)


def test_conditions():
    assert parse_conditions(["drift", "accuracy < 0.75"], predicts="classes") == [None, 0.75]


def test_two_writers_lose_no_entry(tmp_path):
    def entry(i: int) -> dict:
        fields = dict.fromkeys(("discrepancy", "foreign", "predicted", "labelled", "accuracy", "true"))
        return {"model": "m", "data": str(i), "batch": str(i), "domain": None, "rows": 1, "drifted": [], "since": "",
                **fields}  # fmt: skip

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: add_entries(tmp_path, [entry(i)]), range(24)))
    assert sorted(int(e["batch"]) for e in read_history(tmp_path)) == list(range(24))
    assert read_history(tmp_path, "other") == []
    add_entries(tmp_path, [entry(i) for i in range(MAX_ENTRIES)])
    assert len(read_history(tmp_path)) == MAX_ENTRIES
    with (tmp_path / FILE).open("a") as file:
        file.write("{}\n")
    with pytest.raises(BadInput, match=rf"line {MAX_ENTRIES + 1} is not an entry of `holdfast watch`"):
        read_history(tmp_path)


def test_the_start_of_a_drift_is_the_first_batch_without_a_break():
    def entry(batch: str, drifted: bool, domain: str | None = None) -> dict:
        return {"batch": batch, "drifted": ["features"] * drifted, "domain": domain}

    history = [entry("1", True), entry("2", False), entry("3", True), entry("x", False, "a"), entry("4", True)]
    assert first_drifted(history, None) == "3"
    assert first_drifted(history, "a") == ""


def test_command_line(model, batches, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    common = (model, batches, "--by", "week", "--no-state")
    ran = run_cli("watch", *common, "--json", "--fail-on", "drift")
    document = ran.json
    assert ran.code == 1
    assert document["failed"] is True
    assert [batch["batch"] for batch in document["batches"]] == ["1", "2", "3", "4"]
    assert document["batches"][3]["accuracy"]["low"] is not None
    assert "input" not in document["batches"][3]["examples"][0]
    ran = run_cli("watch", *common, "--fail-on", "accuracy<0.01")
    assert ran.code == 0
    assert "Drift in 2 of 4 tested batches." in ran.out
    assert "report: watch.html" in ran.err
    assert (tmp_path / "watch.html").is_file()
    ran = run_cli("watch", model, "missing.csv", "--json")
    assert ran.code == 2
    assert "missing.csv" in ran.json["error"]
