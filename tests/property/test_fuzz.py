"""Readers return a result or raise BadInput for any file content, never another exception."""

import json
import shutil
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.cli.options import read_config
from holdfast.core.errors import BadInput
from holdfast.data.dataset import Dataset
from holdfast.data.load import load_data
from holdfast.data.synthetic import world
from holdfast.estimator import DomainClassifier
from holdfast.models.saved import SavedModel, load_model
from holdfast.record import read as read_record
from holdfast.run.settings import make_spec
from holdfast.stats.table import tabulate
from tests.property.strategies import JSON, TEXT, changed, tables

QUICK = {"tables": 120, "settings": 60, "records": 60, "models": 40}
LONG = {"tables": 5000, "settings": 2000, "records": 2000, "models": 1000}  # ten thousand in all
DATA = world("vector", "rotation", domains=3, size=20, classes=2, seed=0)


def run_examples(check, count, strategy):
    """Run the check on `count` drawn inputs."""

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def inner(drawn):
        check(drawn)

    inner()


def accept_errors():
    """Accept BadInput."""
    return suppress(BadInput)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    classifier = DomainClassifier("erm", encoder="mlp", steps=2, batch=2, settings={"encoder.hidden": [4]})
    classifier.fit_dataset(DATA)
    return classifier.save_pretrained(tmp_path_factory.mktemp("fuzz") / "model")


@pytest.fixture
def checks(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "model")
    config, record = (json.loads((folder / name).read_text()) for name in ("config.json", "record.json"))

    def table(drawn):
        suffix, content = drawn
        path = tmp_path / f"data{suffix}"
        path.write_bytes(content)
        for form, need in (
            ("table", ("label", "domain")),
            ("table", ()),
            ("tags", ()),
            ("questions", ()),
            ("corpus", ()),
        ):
            with accept_errors():
                assert isinstance(load_data(path, known={}, need=need, form=form), Dataset)

    def setting(drawn):
        path = tmp_path / "settings.json"
        path.write_text(json.dumps(drawn), encoding="utf-8", errors="surrogatepass")
        with accept_errors():
            make_spec(DATA, settings=read_config(path))

    def one_record(drawn):
        path = tmp_path / "record.json"
        drawn = {key: value for key, value in drawn.items() if key != "checksum"}
        path.write_text(json.dumps(drawn), encoding="utf-8", errors="surrogatepass")
        with accept_errors():
            tabulate([read_record(path)], "accuracy")

    def one_model(drawn):
        (folder / "config.json").write_text(json.dumps(drawn), encoding="utf-8", errors="surrogatepass")
        with accept_errors():
            assert isinstance(load_model(folder), SavedModel)

    keys = [
        "lr",
        "steps",
        "method",
        "encoder",
        "encoder.hidden",
        "tune",
        "neck",
        "plan",
        "select",
        "clip",
        "every",
        "seed",
    ]
    some = st.dictionaries(st.one_of(st.sampled_from(keys), TEXT), JSON, max_size=3)
    return {
        "tables": (table, tables()),
        "settings": (setting, st.one_of(some, JSON)),
        "records": (one_record, changed(record)),
        "models": (one_model, changed(config)),
    }


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pyarrow, for half a character
@pytest.mark.parametrize("what", QUICK)
def test_inputs_are_read_or_rejected(checks, what):
    check, strategy = checks[what]
    run_examples(check, QUICK[what], strategy)


@pytest.mark.slow
@pytest.mark.parametrize("what", LONG)
def test_ten_thousand_inputs(checks, what):
    check, strategy = checks[what]
    run_examples(check, LONG[what], strategy)
