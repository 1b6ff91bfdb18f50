import numpy as np
import pytest
import torch

from holdfast import DomainClassifier
from holdfast.core.tape import record, tape
from holdfast.data.synthetic import world
from holdfast.models.calibration import Calibration, read_entropy


@pytest.fixture(scope="module")
def fitted():
    data = world("vector", "rotation", domains=4, size=80, classes=2, seed=0)
    rows = np.flatnonzero(data.domain < 2)
    made = DomainClassifier("memory+erm", steps=40, batch=16, settings={"encoder.hidden": [8], "neck.slots": 6})
    return data, made.fit(data.raw.take(rows).numpy(), data.y[rows], domains=data.domain[rows])


def test_examples_of_a_shifted_domain_are_more_foreign(fitted):
    data, made = fitted
    found = [made.foreignness(data.raw.take(np.flatnonzero(data.domain == i)).numpy()).mean() for i in (0, 3)]
    assert found[0] < 60
    assert found[1] > found[0] + 5
    assert made.foreignness(np.full((1, data.raw.take(np.arange(1)).shape[1]), 50.0)) == 100


def test_a_memory_tells_how_undecided_it_is(fitted):
    data, made = fitted
    judged = made._model().predict(data.raw)
    assert judged.undecided is not None
    assert judged.undecided.min() >= 0
    assert judged.undecided.max() <= 100
    assert len(np.unique(judged.undecided)) > 5


def test_it_comes_back_from_its_file(fitted, tmp_path):
    _, made = fitted
    gauge = made._model().calibration
    again = Calibration.load(gauge.save(tmp_path / "gauge.safetensors"))
    features = np.random.default_rng(0).normal(size=(9, gauge.foreign.scale.shape[0]))
    np.testing.assert_array_equal(again.foreign.percentiles(features), gauge.foreign.percentiles(features))
    np.testing.assert_array_equal(again.entropies, gauge.entropies)
    assert again.temperature == gauge.temperature


def test_probabilities_are_the_networks_own_where_asked(fitted):
    data, made = fitted
    saved = made._model()
    with torch.no_grad():
        plain = (
            saved.model(saved.encoder.prepare(data.raw.take(np.arange(9))).take(torch.arange(9))).double().softmax(1)
        )
    np.testing.assert_allclose(saved.probabilities(data.raw, calibrated=False)[:9], plain.numpy(), atol=1e-6)
    assert saved.calibration.temperature != 1.0
    assert not np.allclose(saved.probabilities(data.raw)[:9], plain.numpy(), atol=1e-4)


def test_the_entropy_of_reads_is_one_where_all_slots_are_alike():
    even, sure = torch.full((1, 2, 4), 0.25), torch.eye(4)[:1].expand(1, 2, 4)
    with tape() as heard:
        record("memory/weights", torch.cat([even, sure]))
        record("memory/weights", torch.ones(7, 2, 4))  # one read a token, not one an example
    torch.testing.assert_close(read_entropy(heard, 2), torch.tensor([1.0, 0.0]))
    with tape() as silent:
        pass
    assert read_entropy(silent, 2) is None
