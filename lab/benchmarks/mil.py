"""Benchmark `mil`: a meta step against a step of ERM, and prediction with a memory against prediction without.

The encoder has the shape of MiniLM and random weights: bf16, 32 texts of 128 tokens on a GPU; fp32, 8 of 64 on a CPU.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig

from holdfast.core.batch import DomainBatch
from holdfast.core.inputs import Inputs, Tokens
from holdfast.core.seeds import seeded
from holdfast.core.store import TokenStore
from holdfast.data.batches import Examples
from holdfast.methods.base import Method, StageInfo
from holdfast.methods.mil import MIL
from holdfast.nn.backbones.pretrained import module_from_config
from holdfast.nn.memory.neck import key_value
from holdfast.nn.model import Model
from lab.benchmarks.harness import Result, one_thread, ratio, repeated
from lab.benchmarks.networks import classifier, trainer

WIDTH, WORDS, HELD = 384, 30_522, 2


class Encoder(nn.Module):
    """Transformer with six layers of width 384 and 12 heads, mean-pooled."""

    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536,
            # on a CPU dropout would take as long as the rest of the forward pass
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.module = module_from_config(config)

    def forward(self, x: Inputs) -> Tensor:
        assert isinstance(x, Tokens)
        states = self.module(input_ids=x.ids, attention_mask=x.mask.long()).last_hidden_state.float()  # (b, t, d)
        return states.mean(1)


def run(device: torch.device) -> list[Result]:
    """Measure three cases; the held-out domain of MIL's batch is as large as the two training domains together."""
    gpu = device.type == "cuda"
    count, rounds = (8, 30) if gpu else (1, 15)
    batch = _batch(32 if gpu else 8, 128 if gpu else 64, device)
    training, _ = batch.hold_out(HELD)
    mil, erm = _mil(device), trainer(_model(WIDTH, device), lr=1e-5)
    step = repeated(partial(mil.step, batch), count)
    cases: list[tuple[str, Callable[[], None], Callable[[], None], float]] = [
        ("meta-step/erm-on-seen", step, repeated(partial(erm.step, training), count), 1.75),
        ("meta-step/erm-on-all", step, repeated(partial(erm.step, batch), count), 1.75),
        ("predict-with-memory/without", _predictions(mil, device), _predictions(erm, device), 1.03),
    ]
    with one_thread():
        return [Result(name, ratio(a, b, device, rounds=rounds), bar=target) for name, a, b, target in cases]


def _model(neck: Any, device: torch.device) -> Model:
    with seeded(0, "init"):
        encoder = Encoder()
    return classifier(encoder, neck, 2, device, precision="bf16" if device.type == "cuda" else "fp32")


def _mil(device: torch.device) -> Method:
    method: Any = trainer(_model(key_value(WIDTH), device), MIL, lr=1e-5)
    method.begin_stage(StageInfo(0, ("a", "b", "c")))
    method.begin_phase("meta")
    method.held_out, method.remaining = HELD, 1 << 30  # hold out this domain during the measurement
    return method


def _batch(size: int, length: int, device: torch.device) -> DomainBatch:
    """Return a batch with two training domains of `size` texts in total and a held-out domain of `size` texts."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(0, WORDS, (2 * size, length), generator=rng).to(device)
    y = torch.randint(0, 2, (2 * size,), generator=rng).to(device)
    return DomainBatch(Tokens(ids, torch.ones_like(ids, dtype=torch.bool)), y, (0, 1, 2), (size // 2, size // 2, size))


def _predictions(method: Method, device: torch.device) -> Callable[[], None]:
    """Predict all texts of a tokenized data set, as `holdfast predict` does."""
    n, length = (2048, 128) if device.type == "cuda" else (48, 64)
    ids = torch.randint(0, WORDS, (n, length), generator=torch.Generator().manual_seed(0)).tolist()
    examples = Examples(TokenStore.build(ids, pad=0), torch.zeros(n, dtype=torch.long), (), device=device)
    rows = np.arange(n)

    def go() -> None:
        method.eval()
        examples.map(method.predict, rows)

    return go
