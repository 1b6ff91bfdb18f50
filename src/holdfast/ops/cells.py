"""LSTM and GRU cells: one step forward and backward, after the matrix products.

Shapes: a rows of a step, g directions, h hidden units. Both cells have four blocks of pre-activations ("sums"),
(g, a, 4h), and declare which blocks the input and the state contribute to (`by_input`, `by_state`), and how many blocks
of h a step saves besides h (`inner_blocks`).

`step` returns the next hidden and inner state, as a differentiable expression. `forward` writes them into `h` and
`inner` and turns the sums into the gates in place. `backward` writes the gradient of the sums to `out` and returns the
direct gradient of `h_before`; `grad_inner` becomes the gradient of the inner state before the step.
"""

import torch
from torch import Tensor

BLOCKS = 4


class LSTM:
    """c' = f c + i g, h' = o tanh c' (Hochreiter & Schmidhuber, 1997; Gers et al., 2000); blocks g, i, f, o."""

    by_input = slice(0, 4)
    by_state = slice(0, 4)
    inner_blocks = 2  # c' and tanh c'

    @staticmethod
    def step(sums: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        g, i, f, o = sums.chunk(BLOCKS, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    @staticmethod
    def forward(sums: Tensor, h: Tensor, inner: Tensor, h_before: Tensor, inner_before: Tensor) -> None:
        g, i, f, o = sums.chunk(BLOCKS, -1)
        c, squashed = inner.chunk(2, -1)
        g.tanh_()
        sums[..., h.shape[-1] :].sigmoid_()
        torch.mul(i, g, out=c)
        c.addcmul_(f, inner_before.chunk(2, -1)[0])
        torch.tanh(c, out=squashed)
        torch.mul(o, squashed, out=h)

    @staticmethod
    def backward(
        gates: Tensor, inner: Tensor, h_before: Tensor, inner_before: Tensor,
        grad: Tensor, grad_inner: Tensor, out: Tensor,
    ) -> Tensor | None:  # fmt: skip
        width = grad.shape[-1]
        g, i, f, o = gates.chunk(BLOCKS, -1)
        squashed, c_before = inner.chunk(2, -1)[1], inner_before.chunk(2, -1)[0]
        by_squashed = grad * o
        grad_inner += by_squashed.addcmul_(by_squashed * squashed, squashed, value=-1)  # the gradient of c'
        by_sigmoid = torch.addcmul(gates, gates, gates, value=-1)  # s (1 - s), unused for g
        torch.mul(torch.addcmul(grad_inner, grad_inner * g, g, value=-1), i, out=out[..., :width])
        torch.mul(grad_inner, g, out=out[..., width : 2 * width])
        torch.mul(grad_inner, c_before, out=out[..., 2 * width : 3 * width])
        torch.mul(grad, squashed, out=out[..., 3 * width :])
        out[..., width:] *= by_sigmoid[..., width:]
        grad_inner *= f
        return None


class GRU:
    """h' = (1 - z) n + z h with n = tanh(.. + r u), u the state's part of n (Cho et al., 2014); blocks u, r, z, n."""

    by_input = slice(1, 4)
    by_state = slice(0, 3)
    inner_blocks = 0

    @staticmethod
    def step(sums: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        u, r, z, n = sums.chunk(BLOCKS, -1)
        return torch.lerp((n + r.sigmoid() * u).tanh(), h, z.sigmoid()), c

    @staticmethod
    def forward(sums: Tensor, h: Tensor, inner: Tensor, h_before: Tensor, inner_before: Tensor) -> None:
        width = h.shape[-1]
        u, r, z, n = sums.chunk(BLOCKS, -1)
        sums[..., width : 3 * width].sigmoid_()
        n.addcmul_(r, u).tanh_()
        torch.lerp(n, h_before, z, out=h)

    @staticmethod
    def backward(
        gates: Tensor, inner: Tensor, h_before: Tensor, inner_before: Tensor,
        grad: Tensor, grad_inner: Tensor, out: Tensor,
    ) -> Tensor | None:  # fmt: skip
        u, r, z, n = gates.chunk(BLOCKS, -1)
        out_u, out_r, out_z, out_n = out.chunk(BLOCKS, -1)
        direct = grad * z
        by_n = grad - direct
        torch.addcmul(by_n, by_n * n, n, value=-1, out=out_n)
        torch.mul(out_n, r, out=out_u)
        torch.mul(torch.addcmul(out_u, out_u, r, value=-1), u, out=out_r)
        torch.mul(torch.addcmul(direct, direct, z, value=-1), h_before - n, out=out_z)
        return direct


Cell = type[LSTM] | type[GRU]
CELLS: dict[str, Cell] = {"lstm": LSTM, "gru": GRU}
