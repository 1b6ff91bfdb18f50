"""`holdfast.fit`, which the command `fit` calls."""

import pytest

import holdfast
from holdfast.core.errors import BadInput
from holdfast.folders.format import load_model
from tests.tables import table_world

DATA = table_world(domains=3, size=40, classes=2, seed=0)
QUICK = {"encoder": "tabular", "steps": 40, "batch": 8, "device": "cpu", "cache": False}


def test_fit_saves_a_model_of_all_domains_and_returns_its_scores(tmp_path):
    fitted = holdfast.fit(DATA, out=tmp_path / "model", lr=0.003, keep_sample=2, **QUICK)
    assert fitted.folder == tmp_path / "model"
    assert set(fitted.valid) == set(DATA.domains)
    assert fitted.rate is None
    assert (fitted.record.spec["lr"], fitted.metric) == (0.003, fitted.record.spec["metric"])
    saved = load_model(fitted.folder)
    assert saved.sample is not None
    assert saved.probabilities(DATA.raw) == pytest.approx(fitted.model.probabilities(DATA.raw))


def test_settings_come_before_arguments(tmp_path):
    settings = {"method": "coral", "metric": "macro_f1", "lr": 0.01}
    fitted = holdfast.fit(DATA, out=tmp_path / "model", method="erm", settings=settings, **QUICK)
    assert (fitted.record.spec["method"], fitted.metric, fitted.record.spec["lr"]) == ("coral", "macro_f1", 0.01)


def test_the_folder_is_checked_before_the_data_is_read(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"notes\.txt|is not a model folder"):
        holdfast.fit(tmp_path / "missing.csv", out=tmp_path / "notes.txt")
