"""Steps captured as CUDA graphs on a GPU."""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast import catalog
from holdfast.accel import short_attention
from holdfast.accel.graphs import CudaRecorder
from holdfast.core.batch import DomainBatch
from holdfast.core.inputs import Tokens
from holdfast.methods.base import Method, StageInfo
from holdfast.methods.captured import captured_steps
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.text import TextEncoder
from holdfast.nn.heads import Linear
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from holdfast.tasks.classify import Classify
from tests.tiny import tiny_bert

pytestmark = pytest.mark.gpu
STEPS, WIDTH = 20, 32


class SynchronisingLoss(Classify):
    """Reads the loss on the CPU in every step."""

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        loss = super().loss(outputs, y)
        return loss if loss.item() >= 0 else -loss


def _method(
    name: str, *, precision: str, optimizer: str = "adamw", task: Classify | None = None, body: nn.Module | None = None
) -> Method:
    torch.manual_seed(0)
    body = body or nn.Sequential(nn.Linear(WIDTH, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 32), nn.Dropout(0.1))
    model = Model(body, NoNeck(32), Linear(32, 3), precision=precision).cuda()
    settings = OptimizerSettings(optimizer=optimizer, lr=0.003, schedule="cosine", warmup=3, steps=STEPS, clip=1.0)
    make = partial(Optimizer, settings)
    method = catalog.build("methods", name, model, options={}, task=task or Classify(), optimizer=make).cuda()
    method.begin_stage(StageInfo(0, ("a", "b")))
    return method.train()


def _batches() -> list[DomainBatch]:
    rng = torch.Generator().manual_seed(1)
    draws = [(torch.randn(16, WIDTH, generator=rng), torch.randint(0, 3, (16,), generator=rng)) for _ in range(STEPS)]
    return [DomainBatch(x.cuda(), y.cuda(), (0, 1), (8, 8)) for x, y in draws]


def _train(method: Method, *, compile: str, batches: list[DomainBatch] | None = None) -> tuple[list[float], str]:
    torch.manual_seed(2)
    with captured_steps(method, compile=compile) as capture:
        risks = [float(method.take_step(batch)["risk"]) for batch in batches or _batches()]
    return risks, "" if capture is None else capture.summary


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["erm", "group-dro", "coral", "vrex", "fishr", "dann"])
def test_captured_steps_train_as_eager_ones(name: str, precision: str) -> None:
    eager, replayed = (_method(name, precision=precision) for _ in range(2))
    expected, _ = _train(eager, compile="off")
    risks, summary = _train(replayed, compile="auto")
    assert summary == "captured"
    assert risks == pytest.approx(expected, rel=0.02, abs=1e-3)
    for a, b in zip(eager.parameters(), replayed.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.003)


@pytest.mark.parametrize("name", ["group-dro", "fishr", "dann"])
def test_steps_with_other_domains_share_a_graph(name: str) -> None:
    pairs = [(i % 5, 5 + i % 3) for i in range(STEPS)]
    drawn = [replace(b, domains=p, drawn=torch.tensor(p).cuda()) for b, p in zip(_batches(), pairs, strict=True)]
    eager, replayed = (_method(name, precision="fp32") for _ in range(2))
    for method in (eager, replayed):
        torch.manual_seed(1)
        method.begin_stage(StageInfo(0, tuple("abcdefgh"), domains_per_step=2))
        method.cuda()
    expected, _ = _train(eager, compile="off", batches=drawn)
    risks, summary = _train(replayed, compile="auto", batches=drawn)
    assert summary == "captured"
    assert risks == pytest.approx(expected, rel=0.02, abs=1e-3)


def test_attention_with_dropout_draws_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of attention have their own random numbers, in captured and in eager steps."""
    short, used = short_attention.short_attention, []

    def watched(*x: Tensor, **options: Any) -> Tensor | None:
        out = short(*x, **options)
        used.append(out is not None)
        return out

    monkeypatch.setattr(short_attention, "short_attention", watched)
    folder, rng = str(tiny_bert(tmp_path)), torch.Generator().manual_seed(1)
    batches = []
    for batch in _batches():
        ids = torch.randint(2, 12, (16, 24), generator=rng).cuda()
        mask = torch.arange(24).cuda() < torch.randint(4, 25, (16, 1), generator=rng).cuda()
        batches.append(DomainBatch(Tokens(ids, mask), batch.y, batch.domains, batch.sizes))
    risks = []
    for compile in ("off", "auto"):
        method = _method("erm", precision="bf16", body=TextEncoder.build(lambda: None, name=folder, dropout=0.3))
        used.clear()  # encoders are tested on the CPU when they are built
        trained = _train(method, compile=compile, batches=batches)
        risks.append(trained[0])
        assert used
        assert all(used)
    assert trained[1] == "captured"
    assert risks[1] == pytest.approx(risks[0], rel=0.03, abs=3e-3)


def test_sgd_is_captured() -> None:
    risks, summary = _train(_method("erm", precision="fp32", optimizer="sgd"), compile="auto")
    expected, _ = _train(_method("erm", precision="fp32", optimizer="sgd"), compile="off")
    assert summary == "captured"
    assert risks == pytest.approx(expected, rel=0.01, abs=1e-3)


def test_a_step_that_synchronises_stays_eager() -> None:
    risks, summary = _train(_method("erm", precision="fp32", task=SynchronisingLoss()), compile="auto")
    assert summary.startswith("the CPU waits for the GPU in ")
    assert all(torch.tensor(risks).isfinite())


def test_a_failed_capture_leaves_a_usable_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check for synchronisations the capture itself fails, and training goes on eagerly."""

    @contextmanager
    def none_seen(self):
        yield []

    monkeypatch.setattr(CudaRecorder, "synchronisations", none_seen)
    risks, summary = _train(_method("erm", precision="fp32", task=SynchronisingLoss()), compile="auto")
    assert summary.startswith("capturing failed")
    expected, _ = _train(_method("erm", precision="fp32"), compile="off")
    assert risks == pytest.approx(expected, rel=0.01, abs=1e-3)
