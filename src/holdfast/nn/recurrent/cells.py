"""What LSTM and GRU do with the sums that enter their gates: one step forward, and the same step back.

a rows of a step, g directions, h hidden units. Both cells have four blocks of sums, (g, a, 4h), and say which blocks
the input adds to and which the state adds to. A step forward turns the sums into the gates in place.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from holdfast.nn.kernels import kernels

BLOCKS = 4


class Cell(Protocol):
    """A set of equations without parameters; `kept` counts what a step keeps besides h, in blocks of h."""

    by_input: ClassVar[slice]
    by_state: ClassVar[slice]
    kept: ClassVar[int]

    @staticmethod
    def plain(sums: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The next hidden and inner state, as an expression that can be differentiated."""
        ...

    @staticmethod
    def forward(sums: Tensor, h: Tensor, keep: Tensor, h_before: Tensor, kept_before: Tensor) -> None:
        """Write the next state into `h` and `keep`."""
        ...

    @staticmethod
    def back(
        gates: Tensor, keep: Tensor, h_before: Tensor, kept_before: Tensor, grad: Tensor, inner: Tensor, out: Tensor
    ) -> Tensor | None:
        """From the gradient of h to that of the sums, written into `out`; what goes to the h before beside the sums.

        `inner`, the gradient of the inner state, becomes that of the inner state before.
        """
        ...


class LSTM:
    """c' = f c + i g, h' = o tanh c' (Hochreiter & Schmidhuber, 1997; Gers et al., 2000); blocks g, i, f, o."""

    by_input: ClassVar[slice] = slice(0, 4)
    by_state: ClassVar[slice] = slice(0, 4)
    kept: ClassVar[int] = 2  # c' and tanh c'

    @staticmethod
    def plain(sums: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        g, i, f, o = sums.chunk(BLOCKS, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    @staticmethod
    def forward(sums: Tensor, h: Tensor, keep: Tensor, h_before: Tensor, kept_before: Tensor) -> None:
        fast = kernels("recurrent", sums)
        if fast is not None:
            fast.lstm(sums, h, keep, kept_before)
            return
        g, i, f, o = sums.chunk(BLOCKS, -1)
        c, squashed = keep.chunk(2, -1)
        g.tanh_()
        sums[..., h.shape[-1] :].sigmoid_()
        torch.mul(i, g, out=c)
        c.addcmul_(f, kept_before.chunk(2, -1)[0])
        torch.tanh(c, out=squashed)
        torch.mul(o, squashed, out=h)

    @staticmethod
    def back(
        gates: Tensor, keep: Tensor, h_before: Tensor, kept_before: Tensor, grad: Tensor, inner: Tensor, out: Tensor
    ) -> Tensor | None:
        fast = kernels("recurrent", gates)
        if fast is not None:
            return fast.lstm_backward(gates, keep, kept_before, grad, inner, out)
        width = grad.shape[-1]
        g, i, f, o = gates.chunk(BLOCKS, -1)
        squashed, c_before = keep.chunk(2, -1)[1], kept_before.chunk(2, -1)[0]
        through = grad * o
        inner += through.addcmul_(through * squashed, squashed, value=-1)  # the gradient of c'
        by_sigmoid = torch.addcmul(gates, gates, gates, value=-1)  # s (1 - s), of which g makes no use
        torch.mul(torch.addcmul(inner, inner * g, g, value=-1), i, out=out[..., :width])
        torch.mul(inner, g, out=out[..., width : 2 * width])
        torch.mul(inner, c_before, out=out[..., 2 * width : 3 * width])
        torch.mul(grad, squashed, out=out[..., 3 * width :])
        out[..., width:] *= by_sigmoid[..., width:]
        inner *= f
        return None


class GRU:
    """h' = (1 - z) n + z h with n = tanh(.. + r u), u the state's share in n (Cho et al., 2014); blocks u, r, z, n."""

    by_input: ClassVar[slice] = slice(1, 4)
    by_state: ClassVar[slice] = slice(0, 3)
    kept: ClassVar[int] = 0

    @staticmethod
    def plain(sums: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        u, r, z, n = sums.chunk(BLOCKS, -1)
        return torch.lerp((n + r.sigmoid() * u).tanh(), h, z.sigmoid()), c

    @staticmethod
    def forward(sums: Tensor, h: Tensor, keep: Tensor, h_before: Tensor, kept_before: Tensor) -> None:
        fast = kernels("recurrent", sums)
        if fast is not None:
            fast.gru(sums, h, h_before)
            return
        width = h.shape[-1]
        u, r, z, n = sums.chunk(BLOCKS, -1)
        sums[..., width : 3 * width].sigmoid_()
        n.addcmul_(r, u).tanh_()
        torch.lerp(n, h_before, z, out=h)

    @staticmethod
    def back(
        gates: Tensor, keep: Tensor, h_before: Tensor, kept_before: Tensor, grad: Tensor, inner: Tensor, out: Tensor
    ) -> Tensor | None:
        fast = kernels("recurrent", gates)
        if fast is not None:
            return fast.gru_backward(gates, h_before, grad, out)
        u, r, z, n = gates.chunk(BLOCKS, -1)
        out_u, out_r, out_z, out_n = out.chunk(BLOCKS, -1)
        straight = grad * z
        by_n = grad - straight
        torch.addcmul(by_n, by_n * n, n, value=-1, out=out_n)
        torch.mul(out_n, r, out=out_u)
        torch.mul(torch.addcmul(out_u, out_u, r, value=-1), u, out=out_r)
        torch.mul(torch.addcmul(straight, straight, z, value=-1), h_before - n, out=out_z)
        return straight


CELLS: dict[str, type[Cell]] = {"lstm": LSTM, "gru": GRU}
