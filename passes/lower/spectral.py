"""DFT, STFT and Col2Im.

A Fourier transform is a contraction with a table of cosines and sines over (element, part of the input, frequency, part
of the output), made here in double precision. Long transforms would have tables of many megabytes: they read one
period of the cosine at `n·k mod N` instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, accumulator, sum_of
from onnx2wgsl.ir.dtypes import I32, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index

from .registry import Context, lower

Array = np.ndarray[Any, Any]
Indices = tuple[Index, ...]
# (element, part of the input, frequency, part of the output) → factor
Rotation = Callable[[Index, Index, Index, Index], Expr]

# Tables above this many elements are replaced by one period.
TABLE_LIMIT = 1 << 21


def unit(turns: Array, period: int) -> tuple[Array, Array]:
    """Cosine and sine of 2π · turns / period, exact where they are zero."""
    angle = 2 * np.pi * (turns % max(period, 1)) / max(period, 1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.where(np.abs(cos) < 1e-14, 0.0, cos), np.where(np.abs(sin) < 1e-14, 0.0, sin)


def rotation(
    c: Context, count: int, parts: int, bins: int, period: int, dtype: DType, inverse: bool = False
) -> Rotation:
    """exp(∓2πi·n·k / period) as a real matrix per (n, k): input part p to output part q."""
    sign = 1.0 if inverse else -1.0
    if count * parts * bins * 2 <= TABLE_LIMIT:
        cos, sin = unit(np.outer(np.arange(count), np.arange(bins)), period)
        sin = sign * sin
        full = np.array([[cos, sin], [-sin, cos]])[:parts]
        table = c.constant(np.ascontiguousarray(full.transpose(2, 0, 3, 1)).astype(dtype.numpy))
        return lambda n, p, k, q: table[n, p, k, q]
    if period * max(count, bins) >= 1 << 31:
        raise c.refuse(f"a transform of {period} points overflows its angles")
    cos, sin = unit(np.arange(period), period)
    wave = c.constant(np.stack([cos, sign * sin]).astype(dtype.numpy))

    def factor(n: Index, p: Index, k: Index, q: Index) -> Expr:
        turn = ex.op("mod", ex.index_value(n, I32) * ex.index_value(k, I32), ex.const(period, I32))
        at = ix.value_index(turn, 0, period - 1)
        cross = ex.index_value(p, I32).equals(ex.index_value(q, I32))
        value = ex.select(cross, wave[0, at], wave[1, at])
        return ex.select(ex.index_value(q - p, I32) < 0, -value, value)

    return factor


@lower("DFT", since=17)
def dft_17(c: Context) -> Tensor:
    return _dft(c, int(c.attr("axis", 1)))


@lower("DFT", since=20)
def dft(c: Context) -> Tensor:
    axis = c.optional_value(2)
    return _dft(c, -2 if axis is None else int(axis.reshape(-1)[0]))


def _dft(c: Context, axis: int) -> Tensor:
    """`Y[…, k, q] = Σ_{n, p} X[…, n, p] · exp(∓2πi·n·k / N)`; onesided keeps or completes half of the spectrum."""
    x = c[0]
    axis = c.axis(axis, x.rank)
    parts = x.shape[-1] if x.rank > 1 else 0
    inverse, onesided = bool(c.attr("inverse", 0)), bool(c.attr("onesided", 0))
    if parts not in (1, 2) or axis == x.rank - 1:
        raise c.refuse(f"DFT along axis {axis} of {x.type}, whose last axis must hold 1 or 2 parts")
    given = c.optional_value(1)
    size = x.shape[axis]
    if given is not None:
        length = int(given.reshape(-1)[0])
    else:
        length = 2 * (size - 1) if inverse and onesided else size
    if onesided and inverse:
        return _real_inverse(c, x, axis, length)
    if onesided and parts == 2:
        raise c.refuse("a one-sided transform needs a real input")
    bins = length // 2 + 1 if onesided else length
    dtype = accumulator(x.dtype)
    count = min(size, length)
    turn = rotation(c, count, parts, bins, length, dtype, inverse)
    shape = (*x.shape[:axis], bins, *x.shape[axis + 1 : -1], 2)

    def operands(i: Indices, r: Indices) -> tuple[Expr, Expr]:
        n, p = r
        value = ex.cast(x[(*i[:axis], n, *i[axis + 1 : -1], p)], dtype)
        return value, turn(n, p, i[axis], i[-1])

    def finish(total: Expr, *_i: Index) -> Expr:
        return ex.cast(total / float(length) if inverse else total, x.dtype)

    return c.contract(shape, (count, parts), operands, finish, dtype)


def _real_inverse(c: Context, x: Tensor, axis: int, length: int) -> Tensor:
    """A real signal from half of its spectrum: each bin but the first, and the middle one, counts twice."""
    if x.shape[-1] != 2:
        raise c.refuse("a one-sided inverse transform needs a complex input")
    dtype = accumulator(x.dtype)
    count = min(x.shape[axis], length // 2 + 1)
    cos, sin = unit(np.outer(np.arange(count), np.arange(length)), length)
    twice = np.where((np.arange(count) == 0) | (2 * np.arange(count) == length), 1.0, 2.0)[:, None] / max(length, 1)
    if cos.size * 2 > TABLE_LIMIT:
        raise c.refuse(f"a one-sided inverse transform of {length} points is too long")
    table = c.constant(np.stack([twice * cos, -twice * sin], axis=1).astype(dtype.numpy))
    shape = (*x.shape[:axis], length, *x.shape[axis + 1 : -1], 1)

    def operands(i: Indices, r: Indices) -> tuple[Expr, Expr]:
        k, p = r
        return ex.cast(x[(*i[:axis], k, *i[axis + 1 : -1], p)], dtype), table[k, p, i[axis]]

    return c.contract(shape, (count, 2), operands, lambda total, *_i: ex.cast(total, x.dtype), dtype)


@lower("STFT", since=17)
def stft(c: Context) -> Tensor:
    """`Y[b, f, k, q] = Σ_{t, p} X[b, f·step + t, p] · window[t] · exp(−2πi·t·k / N)`."""
    x, window = c[0], c.optional(2)
    step, given = int(c.value(1).reshape(-1)[0]), c.optional_value(3)
    if x.rank not in (2, 3) or step < 1:
        raise c.refuse(f"STFT of {x.type} with steps of {step}")
    parts = x.shape[2] if x.rank == 3 else 1
    length = x.shape[1] if window is None else window.shape[0]
    length = int(given.reshape(-1)[0]) if given is not None else length
    onesided = bool(c.attr("onesided", 1))
    if parts not in (1, 2) or (onesided and parts == 2) or (window is not None and window.shape != (length,)):
        raise c.refuse(f"STFT of {x.type} with frames of {length}, onesided {int(onesided)}")
    bins, frames = length // 2 + 1 if onesided else length, (x.shape[1] - length) // step + 1
    dtype = accumulator(x.dtype)
    turn = rotation(c, length, parts, bins, length, dtype)

    def operands(i: Indices, r: Indices) -> tuple[Expr, Expr]:
        b, f, k, q = i
        t, p = r
        at = f * step + t
        factor = turn(t, p, k, q)
        if window is not None:
            factor = factor * ex.cast(window[t], dtype)
        return ex.cast(x[(b, at, p) if x.rank == 3 else (b, at)], dtype), factor

    shape = (x.shape[0], max(frames, 0), bins, 2)
    return c.contract(shape, (length, parts), operands, lambda total, *_i: ex.cast(total, x.dtype), dtype)


@lower("Col2Im", since=18)
def col2im(c: Context) -> Tensor:
    """Each position of the image sums the taps that lie on it: tap k of block l is at `l·stride + k·dilation − pad`."""
    x, image, block = c[0], c.ints(1), c.ints(2)
    rank = len(image)
    strides, dilations = c.attr("strides") or [1] * rank, c.attr("dilations") or [1] * rank
    padding = c.attr("pads") or [0] * (2 * rank)
    if len(block) != rank or x.rank != 3 or x.shape[1] % math.prod(block):
        raise c.refuse(f"columns of {x.type} do not fit an image of {image} in blocks of {block}")
    counts = [
        (image[k] + padding[k] + padding[k + rank] - (block[k] - 1) * dilations[k] - 1) // strides[k] + 1
        for k in range(rank)
    ]
    if math.prod(counts) != x.shape[2]:
        raise c.refuse(f"{x.shape[2]} columns are given where an image of {image} has {math.prod(counts)} blocks")
    dtype = accumulator(x.dtype)

    def body(i: Indices, r: Indices) -> Expr:
        n, channel, *at = i
        inside, where = ex.TRUE, []
        for k in range(rank):
            moved = at[k] + padding[k] - r[k] * dilations[k]
            quotient = moved // strides[k]
            whole = ex.index_value(moved % strides[k], I32).equals(0)
            inside = inside & whole & ex.in_range(quotient, 0, counts[k])
            where.append(quotient)
        column = channel * math.prod(block) + ix.flatten(r, block)
        return ex.select(inside, ex.cast(x[n, column, ix.flatten(where, counts)], dtype), 0.0)

    shape = (x.shape[0], x.shape[1] // math.prod(block), *image)
    return c.reduce(shape, block, sum_of(dtype), body, lambda total, *_i: ex.cast(total, x.dtype))[0]
