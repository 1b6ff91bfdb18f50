"""What a recurrent network with a bank of slots costs beside torch's own without one, forward and backward.

Both have two directions of an LSTM, 300 wide, fp32, 32 rows of 30 steps. b rows, t steps, e input width
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from holdfast.bench.harness import Result, one_thread, ratio
from holdfast.nn.recurrent.layer import RecurrentLayer

WIDTH, ROWS, STEPS = 300, 32, 30
BARS = {"cpu": {500: 2.0}, "cuda": {500: 1.5, 2500: 2.2}}


def run(device: torch.device) -> list[Result]:
    """One case a number of slots; gradients of the inputs and of every parameter are taken on both sides."""
    torch.manual_seed(0)
    x = torch.randn(ROWS, STEPS, WIDTH, device=device, requires_grad=True)  # (b, t, e)
    grad = torch.randn(ROWS, STEPS, 2 * WIDTH, device=device)
    lengths = torch.full((ROWS,), STEPS)
    torchs = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True).to(device)
    reference = _passes(torchs, lambda: torchs(x)[0], x, grad)
    found = []
    with one_thread():
        for slots, bar in BARS[device.type].items():
            mine = RecurrentLayer(WIDTH, WIDTH, slots=slots).to(device)
            passes = _passes(mine, lambda made=mine: made(x, lengths).padded(), x, grad)
            found.append(
                Result(f"memory-lstm/lstm, {slots} slots", ratio(passes, reference, device, rounds=30), bar=bar)
            )
    return found


def _passes(part: nn.Module, forward: Callable[[], Tensor], x: Tensor, grad: Tensor) -> Callable[[], None]:
    learned = (x, *part.parameters())

    def go() -> None:
        torch.autograd.grad(forward(), learned, grad)

    return go
