"""Captured predictions: the values of eager ones, few shapes, and eager passes where a graph does not apply."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.accel import captured_prediction as captured
from holdfast.accel.captured_prediction import CapturedPrediction
from holdfast.accel.graphs import Graph
from holdfast.core.inputs import Tokens
from holdfast.data.raw import Vectors
from holdfast.estimator import DomainClassifier
from holdfast.folders.format import load_model
from holdfast.uncertainty.calibration import observer


class CpuRecorder:
    """A recorder whose replay runs the function on the memory of the graph."""

    fails = False
    wrong = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def record(self, function, inputs):
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        result = function().clone()
        return Graph(inputs, result, lambda: result.copy_(function() + self.wrong))


@pytest.fixture
def recorder():
    return type("Recorder", (CpuRecorder,), {})


def predictor(function, module: nn.Module, recorder) -> CapturedPrediction:
    return CapturedPrediction(function, module, make_recorder=recorder, possible=lambda _: True)


class WithNaN(nn.Linear):
    """A layer whose last output is undefined, as the entropy of a network without memory is."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super().forward(x), torch.full((len(x), 1), torch.nan)], dim=1)


def test_batches_of_similar_size_share_a_graph(recorder) -> None:
    torch.manual_seed(0)
    layer = WithNaN(4, 3)
    predict = predictor(layer, layer, recorder)
    for count in (5, 7, 8, 6, 8, 5, 1, 300):
        x = torch.randn(count, 4)
        with torch.no_grad():
            torch.testing.assert_close(predict(x), layer(x), equal_nan=True)
    assert len(predict.graphs.graphs) == 1
    assert predict.replays == 4  # the check of the graph, and three batches after it


def test_texts_are_padded_in_rows_and_tokens(recorder) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(20, 6)

    def mean(x: Tokens) -> Tensor:
        real = x.mask[..., None]
        return (table(x.ids) * real).sum(1) / real.sum(1)

    predict = predictor(mean, table, recorder)
    for length in (3, 9, 31, 20, 5):
        ids = torch.randint(1, 20, (3, length))
        x = Tokens(ids, torch.arange(length) < torch.tensor([[length], [1], [2]]), torch.zeros_like(ids))
        with torch.no_grad():
            torch.testing.assert_close(predict(x), mean(x))
    assert [graph.inputs[0].shape for graph in predict.graphs.graphs.values()] == [(4, captured.TOKENS)]
    assert predict.replays == 3


def test_graphs_are_dropped_when_the_weights_move(recorder) -> None:
    layer = nn.Linear(4, 3)
    predict, x = predictor(layer, layer, recorder), torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(3):
            predict(x)
        assert len(predict.graphs.graphs) == 1
        layer.weight = nn.Parameter(torch.randn(3, 4))
        torch.testing.assert_close(predict(x), layer(x))
    assert not predict.graphs.graphs


@pytest.mark.parametrize("problem", ["fails", "wrong", "no CUDA"])
def test_a_pass_that_cannot_be_captured_stays_eager(recorder, problem: str) -> None:
    setattr(recorder, problem, True)
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    predict = CapturedPrediction(layer, layer) if problem == "no CUDA" else predictor(layer, layer, recorder)
    for _ in range(5):
        with torch.no_grad():
            torch.testing.assert_close(predict(x), layer(x))
    assert predict.failed == (problem != "no CUDA")
    assert not predict.graphs.graphs


@pytest.mark.gpu
def test_a_saved_model_predicts_the_same_with_and_without_graphs(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 8)).astype(np.float32)
    y, domains = (x[:, 0] > 0).astype(int), np.repeat(["a", "b", "c"], 80)
    classifier = DomainClassifier(encoder="mlp", steps=20, device="cuda", cache=False).fit(x, y, domains=domains)
    saved = load_model(classifier.save_pretrained(tmp_path / "model"))
    eager = observer(saved.model)
    for count in (3, 4, 3, 4, 2, 3):
        found = saved.observe(Vectors(x[:count]), device="cuda").outputs
        with torch.no_grad():
            expected = eager(torch.from_numpy(x[:count]).to("cuda")).float().cpu().numpy()
        np.testing.assert_allclose(found, expected[:, : found.shape[1]], atol=0.02)
    assert saved._captured.replays >= 2
