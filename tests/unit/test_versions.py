"""Model folders, records, grafts and caches of every released version are read by the present one."""

import json
import shutil

import numpy as np
import pytest
import torch

from holdfast import DomainClassifier, load_graft
from holdfast.adaptation.adapt import ledger_of
from holdfast.data import cache
from holdfast.data.load import load_data
from holdfast.data.raw import ImageFiles, Vectors
from holdfast.folders.format import load_model
from holdfast.folders.versions import use_version
from holdfast.record import load
from holdfast.stats.table import flat_table, tabulate
from tests.fixtures import write
from tests.graphs import rings_and_stars, write_zip

RELEASES = sorted(path.name for path in write.VERSIONS.iterdir())


@pytest.fixture(params=RELEASES)
def release(request, tmp_path):
    """A copy of the files of one version."""
    return shutil.copytree(write.VERSIONS / request.param, tmp_path / request.param)


@pytest.fixture
def expected(release):
    return json.loads((release / write.EXPECTED).read_text(encoding="utf-8"))


def test_models_predict_what_they_predicted(release, expected):
    assert len(expected["models"]) >= 4
    for name, values in expected["models"].items():
        classifier = DomainClassifier.from_pretrained(release / "models" / name)
        is_text = isinstance(values["inputs"][0], str)
        dtype = np.uint8 if name == "images" else np.float32
        inputs = values["inputs"] if is_text else np.array(values["inputs"], dtype=dtype)
        np.testing.assert_allclose(classifier.predict_proba(inputs), values["probabilities"], atol=1e-5, err_msg=name)


@pytest.mark.graph
def test_model_of_graphs_predicts(release, tmp_path):
    data = load_data(write_zip(tmp_path / "shapes.zip", rings_and_stars(4), tags=lambda g, node: node % 3), need=())
    probabilities = load_model(release / "models" / "graphs").probabilities(data.raw)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)


def test_versions_of_an_adapted_model_can_be_chosen(release):
    folder = release / "models" / "adapted"
    ledger = ledger_of(folder)
    assert (ledger.current, [version.learned for version in ledger.versions]) == (2, [("a", "b"), ("c",)])
    assert load_model(folder).domains == ("a", "b", "c")
    use_version(folder, ledger, 1)
    assert load_model(folder).domains == ("a", "b")


def test_records_give_the_same_table(release, expected):
    records = list(load(release / "records"))
    assert {record.spec["method"] for record in records} >= {"erm"}
    assert flat_table(tabulate(records, records[0].spec["metric"])) == expected["table"]
    assert [record.id for record in load(release / "records.jsonl.gz")] == [record.id for record in records]


def test_caches_are_used(release, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("computed again")

    monkeypatch.setattr(cache, "decode_image", fail)
    raw, folder = Vectors(write.vectors()), release / "cache"
    features = cache.cached_features(raw, [np.arange(3)], fail, key=write.FEATURE_KEY, folder=folder)
    assert torch.equal(features, write.features(np.arange(3)))
    images = cache.decoded_images(ImageFiles(sorted((folder / "images").iterdir())), write.SIZE, folder)
    assert images[0].amax((1, 2)).tolist() == [255, 0, 0]
    assert images.shape == (3, 3, write.SIZE, write.SIZE)


def test_graft_computes_the_same(release, expected):
    module = load_graft(write.network(), release / "graft").eval()
    outputs = module(torch.from_numpy(write.vectors())).detach()
    np.testing.assert_allclose(outputs, expected["graft"], atol=1e-6)
