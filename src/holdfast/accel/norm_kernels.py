"""Kernels of batch normalisation with an optional residual and ReLU, of layer normalisation, and of sums of columns.

Inputs are matrices (m, c) of m rows and c channels, which an image in channels-last order is. Sums over rows are taken
per chunk of rows in a fixed order, so that results are reproducible.
"""

import torch
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from holdfast.accel.registry import ceil_div, kernel, launch, power_of_two

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROWS, COLS = 64, 64  # tile of a program; c must be a multiple of COLS
FEW_ROWS = 32  # of a tile of `_statistics`, which holds no second input
PROGRAMS = 1024  # of a sum over rows, about 8 per multiprocessor of a large GPU
PIECES, NARROW = 128, 16  # chunks and columns of a tile of a final sum
TOKENS = 4  # rows of a tile of layer normalisation, which holds complete rows
TOKEN_PROGRAMS, MIN_TOKENS = 528, 16  # of its backward pass: programs at most, and rows of each at least


def batch_statistics(x: Tensor, running: tuple[Tensor, Tensor], eps: float, momentum: float) -> tuple[Tensor, Tensor]:
    """Return mean and inverse standard deviation (c,) of the columns, and update the running mean and variance."""
    (m, c), (chunks, each) = x.shape, _chunks(x)
    sums = x.new_empty(chunks, 2, c, dtype=torch.float32)
    mean, inverse = x.new_empty(2, c, dtype=torch.float32).unbind(0)
    # sums per chunk of rows first, then over the chunks: enough programs for a GPU, and always one order of additions
    launch(_statistics, (chunks, c // COLS), (x, sums), m, c, each, ROWS=FEW_ROWS, COLS=COLS)
    launch(
        _finish_statistics, (c // NARROW,), (x, sums, mean, inverse, *running), m, c, chunks, eps, momentum,
        PIECES=PIECES, COLS=NARROW,
    )  # fmt: skip
    return mean, inverse


def normalise(
    x: Tensor, residual: Tensor | None, mean: Tensor, inverse: Tensor, weight: Tensor, bias: Tensor, *, relu: bool
) -> Tensor:
    """Return (x - mean) inverse weight + bias + residual, with negative values set to 0 for `relu`."""
    (m, c), out = x.shape, torch.empty_like(x)
    launch(
        _normalise, (ceil_div(m, ROWS), c // COLS),
        (x, x if residual is None else residual, mean, inverse, weight, bias, out), m, c,
        RELU=relu, RESIDUAL=residual is not None, ROWS=ROWS, COLS=COLS,
    )  # fmt: skip
    return out


def normalise_backward(
    grad: Tensor, x: Tensor, out: Tensor | None, mean: Tensor, inverse: Tensor, weight: Tensor, bias: Tensor,
    *, relu: bool, batch: bool,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x, residual, weight and bias.

    `out` is the result of `normalise` with a residual, else None; `batch` is true for statistics of x itself.
    """
    (m, c), (chunks, each) = x.shape, _chunks(x)
    sums = x.new_empty(chunks, 2, c, dtype=torch.float32)
    by_weight, by_bias = x.new_empty(2, c, dtype=torch.float32).unbind(0)
    flags = {"RELU": relu, "RESIDUAL": out is not None, "ROWS": ROWS, "COLS": COLS}
    # a kernel needs an argument also where it reads none
    inputs = (grad, x, x if out is None else out, mean, inverse, weight, bias)
    launch(_gradient_sums, (chunks, c // COLS), (*inputs, sums), m, c, each, **flags)
    launch(_finish_sums, (c // NARROW,), (sums, by_bias, by_weight), c, chunks, PIECES=PIECES, COLS=NARROW)
    by_x = torch.empty_like(x)
    # without ReLU the gradient of the residual is that of the result, without a copy
    by_residual = torch.empty_like(x) if out is not None and relu else (grad if out is not None else None)
    launch(
        _normalise_backward, (ceil_div(m, ROWS), c // COLS),
        (*inputs, by_weight, by_bias, by_x, by_x if by_residual is None else by_residual), m, c, BATCH=batch, **flags,
    )  # fmt: skip
    return by_x, by_residual, by_weight, by_bias


def column_sums(x: Tensor) -> Tensor:
    """Return the sums (c,) of the columns in the dtype of x, added in fp32."""
    (m, c), (chunks, each) = x.shape, _chunks(x)
    sums, out = x.new_empty(chunks, c, dtype=torch.float32), x.new_empty(c)
    launch(_column_sums, (chunks, c // COLS), (x, sums), m, c, each, ROWS=ROWS, COLS=COLS)
    launch(_finish_columns, (c // NARROW,), (sums, out), c, chunks, PIECES=PIECES, COLS=NARROW)
    return out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return the normalised rows (m, c) in fp32 and in `dtype`, and mean and inverse standard deviation (m,) of x."""
    m, c = x.shape
    full, narrow = x.new_empty(m, c, dtype=torch.float32), x.new_empty(m, c, dtype=dtype)
    mean, inverse = x.new_empty(2, m, dtype=torch.float32).unbind(0)
    launch(
        _layer_norm, (ceil_div(m, TOKENS),), (x, weight, bias, full, narrow, mean, inverse), m, c, eps,
        ROWS=TOKENS, COLS=power_of_two(c),
    )  # fmt: skip
    return full, narrow, mean, inverse


def layer_norm_backward(
    full: Tensor | None, narrow: Tensor | None, x: Tensor, weight: Tensor, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias from those of the two results of `layer_norm`, one of which exists."""
    m, c = x.shape
    # few programs with a loop each, because all of them write sums for weight and bias
    each = max(MIN_TOKENS, TOKENS * ceil_div(ceil_div(m, TOKENS), TOKEN_PROGRAMS))
    chunks = ceil_div(m, each)
    by_x, sums = torch.empty_like(x), x.new_empty(chunks, 2, c, dtype=torch.float32)
    by_weight, by_bias = x.new_empty(2, c, dtype=torch.float32).unbind(0)
    launch(
        _layer_norm_backward, (chunks,),
        (x if full is None else full, x if narrow is None else narrow, x, weight, mean, inverse, by_x, sums),
        m, c, each, FULL=full is not None, NARROW=narrow is not None, ROWS=TOKENS, COLS=power_of_two(c),
    )  # fmt: skip
    launch(_finish_sums, (c // NARROW,), (sums, by_bias, by_weight), c, chunks, PIECES=PIECES, COLS=NARROW)
    return by_x, by_weight, by_bias


def _chunks(x: Tensor) -> tuple[int, int]:
    """Return the number of chunks and the rows of each, a multiple of ROWS."""
    m, c = x.shape
    # about PROGRAMS programs over chunks and columns together
    tiles = ceil_div(m, ROWS)
    each = ceil_div(tiles, max(1, min(tiles, PROGRAMS * COLS // c)))
    return ceil_div(tiles, each), each * ROWS


@kernel
def _statistics(x, sums, m, c, each, ROWS: tl.constexpr, COLS: tl.constexpr):
    # differences to the first row, whose squares cancel less
    chunk, columns = tl.program_id(0), tl.program_id(1) * COLS + tl.arange(0, COLS)
    first = tl.load(x + columns).to(tl.float32)[None, :]
    total = tl.zeros([ROWS, COLS], tl.float32)
    squares = tl.zeros([ROWS, COLS], tl.float32)
    for start in range(chunk * each, min((chunk + 1) * each, m), ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < m)[:, None]
        value = tl.load(x + rows[:, None].to(tl.int64) * c + columns[None, :], mask=inside, other=0.0).to(tl.float32)
        # rows outside were loaded as 0, and would add -first
        value = tl.where(inside, value - first, 0.0)
        total += value
        squares += value * value
    place = sums + chunk * 2 * c + columns
    tl.store(place, tl.sum(total, 0))
    tl.store(place + c, tl.sum(squares, 0))


@kernel
def _add_chunks(sums, columns, chunks, stride, PIECES: tl.constexpr, COLS: tl.constexpr):
    """Add up the sums of all chunks, which are `stride` apart, always in the same order."""
    total = tl.zeros([PIECES, COLS], tl.float32)
    for start in range(0, chunks, PIECES):
        index = start + tl.arange(0, PIECES)
        places = sums + index[:, None] * stride + columns[None, :]
        total += tl.load(places, mask=(index < chunks)[:, None], other=0.0)
    return tl.sum(total, 0)


@kernel
def _finish_statistics(
    x, sums, mean, inverse, running_mean, running_variance, m, c, chunks, eps, momentum,
    PIECES: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(0) * COLS + tl.arange(0, COLS)
    shift = _add_chunks(sums, columns, chunks, 2 * c, PIECES, COLS) / m
    squares = _add_chunks(sums + c, columns, chunks, 2 * c, PIECES, COLS)
    # rounding may make the difference of two sums negative
    variance = tl.maximum(squares / m - shift * shift, 0.0)
    value = tl.load(x + columns).to(tl.float32) + shift
    tl.store(mean + columns, value)
    tl.store(inverse + columns, 1 / tl.sqrt(variance + eps))
    old_mean, old_variance = tl.load(running_mean + columns), tl.load(running_variance + columns)
    # the running variance has the divisor m - 1, as that of torch
    unbiased = variance * (m / tl.maximum(m - 1.0, 1.0))
    tl.store(running_mean + columns, old_mean + momentum * (value - old_mean))
    tl.store(running_variance + columns, old_variance + momentum * (unbiased - old_variance))


@kernel
def _normalise(
    x, residual, mean, inverse, weight, bias, out, m, c,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLS + tl.arange(0, COLS)
    # one multiplication and addition per entry: (x - mean) inverse weight + bias = x scale + shift
    scale = tl.load(inverse + columns) * tl.load(weight + columns)
    shift = tl.load(bias + columns) - tl.load(mean + columns) * scale
    places, inside = rows[:, None].to(tl.int64) * c + columns[None, :], (rows < m)[:, None]
    value = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if RESIDUAL:
        value += tl.load(residual + places, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(out + places, value.to(out.dtype.element_ty), mask=inside)


@kernel
def _gradient_sums(
    grad, x, out, mean, inverse, weight, bias, sums, m, c, each,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    chunk, columns = tl.program_id(0), tl.program_id(1) * COLS + tl.arange(0, COLS)
    # sums of the gradient and of its product with the normalised value: the gradients of bias and weight
    centre, factor = tl.load(mean + columns)[None, :], tl.load(inverse + columns)[None, :]
    scale, shift = tl.load(weight + columns)[None, :], tl.load(bias + columns)[None, :]
    total = tl.zeros([ROWS, COLS], tl.float32)
    products = tl.zeros([ROWS, COLS], tl.float32)
    for start in range(chunk * each, min((chunk + 1) * each, m), ROWS):
        rows = start + tl.arange(0, ROWS)
        places, inside = rows[:, None].to(tl.int64) * c + columns[None, :], (rows < m)[:, None]
        slope = tl.load(grad + places, mask=inside, other=0.0).to(tl.float32)
        value = (tl.load(x + places, mask=inside, other=0.0).to(tl.float32) - centre) * factor
        if RELU:
            # the sign of the result decides: it is computed again from x, and read from `out` with a residual
            result = value * scale + shift
            if RESIDUAL:
                result = tl.load(out + places, mask=inside, other=0.0).to(tl.float32)
            slope = tl.where(result > 0, slope, 0.0)
        total += slope
        products += slope * value
    place = sums + chunk * 2 * c + columns
    tl.store(place, tl.sum(total, 0))
    tl.store(place + c, tl.sum(products, 0))


@kernel
def _finish_sums(sums, first, second, c, chunks, PIECES: tl.constexpr, COLS: tl.constexpr):
    columns = tl.program_id(0) * COLS + tl.arange(0, COLS)
    tl.store(first + columns, _add_chunks(sums, columns, chunks, 2 * c, PIECES, COLS))
    tl.store(second + columns, _add_chunks(sums + c, columns, chunks, 2 * c, PIECES, COLS))


@kernel
def _normalise_backward(
    grad, x, out, mean, inverse, weight, bias, by_weight, by_bias, by_x, by_residual, m, c,
    BATCH: tl.constexpr, RELU: tl.constexpr, RESIDUAL: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLS + tl.arange(0, COLS)
    factor, scale = tl.load(inverse + columns)[None, :], tl.load(weight + columns)[None, :]
    places, inside = rows[:, None].to(tl.int64) * c + columns[None, :], (rows < m)[:, None]
    slope = tl.load(grad + places, mask=inside, other=0.0).to(tl.float32)
    value = (tl.load(x + places, mask=inside, other=0.0).to(tl.float32) - tl.load(mean + columns)[None, :]) * factor
    if RELU:
        result = value * scale + tl.load(bias + columns)[None, :]
        if RESIDUAL:
            result = tl.load(out + places, mask=inside, other=0.0).to(tl.float32)
        slope = tl.where(result > 0, slope, 0.0)
        if RESIDUAL:
            tl.store(by_residual + places, slope.to(by_residual.dtype.element_ty), mask=inside)
    # mean and variance depend on all rows: remove the mean of the slope and its component along the value
    if BATCH:
        slope -= (tl.load(by_bias + columns)[None, :] + value * tl.load(by_weight + columns)[None, :]) / m
    tl.store(by_x + places, (slope * factor * scale).to(by_x.dtype.element_ty), mask=inside)


@kernel
def _column_sums(x, sums, m, c, each, ROWS: tl.constexpr, COLS: tl.constexpr):
    chunk, columns = tl.program_id(0), tl.program_id(1) * COLS + tl.arange(0, COLS)
    total = tl.zeros([ROWS, COLS], tl.float32)
    for start in range(chunk * each, min((chunk + 1) * each, m), ROWS):
        rows = start + tl.arange(0, ROWS)
        places, inside = rows[:, None].to(tl.int64) * c + columns[None, :], (rows < m)[:, None]
        total += tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(sums + chunk * c + columns, tl.sum(total, 0))


@kernel
def _finish_columns(sums, out, c, chunks, PIECES: tl.constexpr, COLS: tl.constexpr):
    columns = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = _add_chunks(sums, columns, chunks, c, PIECES, COLS)
    tl.store(out + columns, total.to(out.dtype.element_ty))


@kernel
def _layer_norm(
    x, weight, bias, full, narrow, mean, inverse, m, c, eps, ROWS: tl.constexpr, COLS: tl.constexpr
):  # fmt: skip
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLS)
    known = (columns < c)[None, :]
    places, inside = rows[:, None].to(tl.int64) * c + columns[None, :], (rows < m)[:, None] & known
    value = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    # a row is held complete, so the variance is that of centred values, without cancellation
    centre = tl.sum(value, 1) / c
    value = tl.where(known, value - centre[:, None], 0.0)
    factor = 1 / tl.sqrt(tl.sum(value * value, 1) / c + eps)
    tl.store(mean + rows, centre, mask=rows < m)
    tl.store(inverse + rows, factor, mask=rows < m)
    scale = tl.load(weight + columns, mask=columns < c, other=0.0)[None, :]
    result = value * factor[:, None] * scale + tl.load(bias + columns, mask=columns < c, other=0.0)[None, :]
    tl.store(full + places, result, mask=inside)
    tl.store(narrow + places, result.to(narrow.dtype.element_ty), mask=inside)


@kernel
def _layer_norm_backward(
    full, narrow, x, weight, mean, inverse, by_x, sums, m, c, each,
    FULL: tl.constexpr, NARROW: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    chunk, columns = tl.program_id(0), tl.arange(0, COLS)
    known = (columns < c)[None, :]
    scale = tl.load(weight + columns, mask=columns < c, other=0.0)[None, :]
    total = tl.zeros([ROWS, COLS], tl.float32)
    products = tl.zeros([ROWS, COLS], tl.float32)
    for start in range(chunk * each, min((chunk + 1) * each, m), ROWS):
        rows = start + tl.arange(0, ROWS)
        places, inside = rows[:, None].to(tl.int64) * c + columns[None, :], (rows < m)[:, None] & known
        # both results are the same function of x in two dtypes: their gradients add up
        slope = tl.zeros([ROWS, COLS], tl.float32)
        if FULL:
            slope += tl.load(full + places, mask=inside, other=0.0)
        if NARROW:
            slope += tl.load(narrow + places, mask=inside, other=0.0).to(tl.float32)
        centre = tl.load(mean + rows, mask=rows < m, other=0.0)[:, None]
        factor = tl.load(inverse + rows, mask=rows < m, other=0.0)[:, None]
        value = tl.where(known, (tl.load(x + places, mask=inside, other=0.0).to(tl.float32) - centre) * factor, 0.0)
        total += slope
        products += slope * value
        slope *= scale
        # mean and variance depend on the complete row, as in `_normalise_backward` on the column
        slope -= (value * tl.sum(slope * value, 1)[:, None] + tl.sum(slope, 1)[:, None]) / c
        tl.store(by_x + places, (slope * factor).to(by_x.dtype.element_ty), mask=inside)
    place = sums + chunk * 2 * c + columns
    tl.store(place, tl.sum(total, 0), mask=columns < c)
    tl.store(place + c, tl.sum(products, 0), mask=columns < c)
