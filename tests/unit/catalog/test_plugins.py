"""Methods, encoders and data sets of user code and of installed plug-ins."""

import sys
from pathlib import Path

import pytest

from holdfast import catalog, compare
from holdfast.catalog import entry
from holdfast.core.errors import BadInput
from holdfast.data.load import load_data
from holdfast.data.synthetic import world
from holdfast.methods.erm import ERM
from holdfast.nn.backbones.small import MLP

MODULE = """
from holdfast.methods.base import Method
from holdfast.methods.erm import ERM

class Packaged(ERM):
    'Plain ERM from a package.'
"""


pytestmark = pytest.mark.usefixtures("clean_catalog")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a plug-in package into a folder on sys.path."""

    def install(entry_points: str, module: str = MODULE, name: str = "packaged") -> Path:
        (tmp_path / f"{name}.py").write_text(module)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return tmp_path

    return install


class WeightDecayed(ERM):
    """ERM under another name."""


class WideMLP(MLP):
    """MLP under another name."""


def test_a_registered_method_has_name_description_and_settings():
    assert catalog.register_method(WeightDecayed) == "weight-decayed"
    assert catalog.register_method(WeightDecayed, "other", "one line") == "other"
    assert catalog.lookup("methods", "weight-decayed").about == "ERM under another name."
    assert catalog.lookup("methods", "other").load() is WeightDecayed
    assert catalog.register_method(WeightDecayed) == "weight-decayed"  # again, as in a notebook
    assert "swad(weight-decayed)" not in catalog.METHODS
    assert [name for name, _ in catalog.unwrap("methods", "swad(weight-decayed)")] == ["swad", "weight-decayed"]
    assert {"name": "other", "about": "one line"} in catalog.describe("methods")


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: catalog.register_method(int), "int.*Method"),
        (lambda: catalog.register_method(WeightDecayed, "erm"), "'erm'.*WeightDecayed"),
        (lambda: catalog.register_method(WeightDecayed, "a,b"), "'a,b'"),
        (lambda: catalog.register_encoder(ERM), "ERM.*Backbone"),
        (lambda: catalog.register_dataset("data.csv"), "data.csv.*function"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_wrong_registrations(call, match):
    with pytest.raises(BadInput, match=match):
        call()


def test_compare_accepts_a_class(tmp_path):
    options = {"steps": 4, "seeds": 1, "out": tmp_path}
    result = compare(
        world("vector", "none", domains=3, size=20, seed=0), baselines=False, methods=["erm", WeightDecayed], **options
    )
    scores = {}
    for record in result.records:
        test = record.stages[0]["test"]
        scores.setdefault(record.episode, {})[record.spec["method"]] = test
    assert len(scores) == 3
    assert all(set(row) == {"erm", "weight-decayed"} and row["erm"] == row["weight-decayed"] for row in scores.values())


def test_a_local_class_cannot_run_in_worker_processes(tmp_path):
    class Inner(ERM):
        """Defined in a function."""

    catalog.register_method(Inner)
    parts = catalog.user_parts()
    entry.REGISTERED.clear()  # as in a worker process
    parts.install()
    with pytest.raises(BadInput, match=r"Inner.*one job"):
        catalog.lookup("methods", "inner").load()


def test_registered_encoders_and_data_sets():
    assert catalog.register_encoder(WideMLP) == "wide-mlp"
    assert catalog.resolve_encoder("vector", "wide-mlp") == "wide-mlp"
    with pytest.raises(BadInput, match=r"wide-mlp.*vector.*image"):
        catalog.resolve_encoder("image", "wide-mlp")
    dataset = world("vector", "none", domains=2, size=10, seed=0)
    assert catalog.register_dataset(lambda data_dir=None: dataset, "my-data", "a small world") == "my-data"
    assert load_data("my-data") is dataset
    assert {"name": "my-data", "about": "a small world"} in catalog.describe("datasets")


def test_an_installed_plugin_is_found_by_name(install):
    install("[holdfast.methods]\npackaged = packaged:Packaged\n")
    assert "packaged" not in catalog.METHODS  # not yet imported
    assert catalog.lookup("methods", "packaged").about == "Plain ERM from a package."
    assert catalog.incompatibility("packaged", "mlp") == ""
    assert "packaged" in catalog.buildable_names("methods")


def test_a_broken_plugin_gives_one_sentence_and_leaves_others_alone(install, caplog):
    broken = "\nimport missing_library\n"
    install("[holdfast.methods]\nbad = broken:Bad\nerm = broken:Bad\n", broken, "broken")
    assert "bad" in catalog.buildable_names("methods")
    with pytest.raises(BadInput, match=r"'bad' of broken.*missing_library.*uninstall"):
        catalog.build("methods", "bad", None, options={})
    assert "missing_library" in catalog.incompatibility("bad", "mlp")
    assert catalog.incompatibility("erm", "mlp") == ""
    assert "'erm' of broken" in caplog.text
    with pytest.raises(BadInput, match="did you mean"):
        catalog.lookup("methods", "errm")


def test_error_of_a_task_names_the_supported_tasks_and_other_parts():
    with pytest.raises(BadInput, match=r"'mixup'.* tag, only classify, ordinal, regress, multilabel: .*erm"):
        catalog.check_task("methods", "swad(mixup)", "tag")
