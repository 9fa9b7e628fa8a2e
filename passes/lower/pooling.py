"""Pooling: reductions over the taps of sliding windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, accumulator, arg_best, lowest, max_of, sum_of
from onnx2wgsl.ir.dtypes import F32, I32, I64
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index

from .registry import Context, lower
from .windows import Window, positions, sliding_windows

Indices = tuple[Index, ...]


def pool_windows(c: Context, x: Tensor) -> tuple[Window, ...]:
    kernel = c.attr("kernel_shape")
    if x.rank < 3 or not kernel:
        raise c.refuse(f"{c.op} needs kernel_shape and an input of rank 3 or more, got {x.type}")
    return sliding_windows(c, x.shape[2:], [int(k) for k in kernel], bool(c.attr("ceil_mode", 0)), crop=True)


def pooled_shape(x: Tensor, windows: Sequence[Window]) -> tuple[int, ...]:
    return (*x.shape[:2], *(w.out for w in windows))


def taps(x: Tensor, windows: Sequence[Window], i: Indices, r: Indices, padding: float) -> tuple[Expr, Indices, Expr]:
    """The value of a tap (`padding` outside of the input), its position, and the condition that it is inside."""
    where, inside = positions(windows, i[2:], r)
    return ex.select(inside, x[(*i[:2], *where)], ex.const(padding, x.dtype)), where, inside


@lower("MaxPool")
def max_pool(c: Context) -> Tensor | tuple[Tensor, ...]:
    x = c[0]
    windows = pool_windows(c, x)
    if c.wants(1):
        return _max_pool_indices(c, x, windows)
    kernel = [w.kernel for w in windows]

    def body(i: Indices, r: Indices) -> Expr:
        return taps(x, windows, i, r, lowest(x.dtype))[0]

    return c.reduce(pooled_shape(x, windows), kernel, max_of(x.dtype), body)[0]


def _max_pool_indices(c: Context, x: Tensor, windows: Sequence[Window]) -> tuple[Tensor, ...]:
    """The maxima and their positions in the flattened input, ties to the first tap; `storage_order` 1 flattens the
    spatial axes in the reverse order."""
    sizes = x.shape[2:]
    area = math.prod(sizes)
    reverse = bool(c.attr("storage_order", 0))

    def body(i: Indices, r: Indices) -> tuple[Expr, Expr]:
        value, where, inside = taps(x, windows, i, r, lowest(x.dtype))
        position = ex.index_value(ix.flatten(where, sizes), I32)
        return value, ex.select(inside, position, ex.const(area, I32))

    def finish(value: Expr, position: Expr, *i: Index) -> tuple[Expr, Expr]:
        if reverse:
            row_major = ix.unflatten(ix.value_index(position, 0, area - 1), sizes)
            position = ex.index_value(ix.flatten(reversed(row_major), reversed(sizes)), I32)
        first = ex.index_value(ix.flatten(i[:2], x.shape[:2]) * area, I64)
        return value, first + ex.cast(ex.assume(position, 0, area - 1), I64)

    kernel = [w.kernel for w in windows]
    monoid = arg_best(x.dtype, largest=True, size=area)
    return c.reduce(pooled_shape(x, windows), kernel, monoid, body, finish)


@lower("AveragePool")
def average_pool(c: Context) -> Tensor:
    """The mean of a window's taps inside of the input, or inside of the padded input by `count_include_pad`.

    How many there are is a product of one number per axis: tables, made here.
    """
    x = c[0]
    windows = pool_windows(c, x)
    padded = bool(c.attr("count_include_pad", 0))
    dtype = accumulator(x.dtype)
    counts = [c.constant(_counts(w, padded).astype(dtype.numpy)) for w in windows]

    def body(i: Indices, r: Indices) -> Expr:
        return ex.cast(taps(x, windows, i, r, 0)[0], dtype)

    def finish(total: Expr, *i: Index) -> Expr:
        count = ex.one(dtype)
        for table, o in zip(counts, i[2:], strict=True):
            count = count * table[o]
        return ex.cast(total / count, x.dtype)

    return c.reduce(pooled_shape(x, windows), [w.kernel for w in windows], sum_of(dtype), body, finish)[0]


def _counts(w: Window, padded: bool) -> np.ndarray[Any, Any]:
    """How many taps of each window of an axis count."""
    position = np.arange(w.out)[:, None] * w.stride + np.arange(w.kernel)[None, :] * w.dilation - w.before
    low, high = (-w.before, w.size + w.after) if padded else (0, w.size)
    return np.asarray(((position >= low) & (position < high)).sum(axis=1))


@lower("LpPool")
def lp_pool(c: Context) -> Tensor:
    """`(Σ |x|^p)^(1/p)` over the taps of each window."""
    x = c[0]
    windows = pool_windows(c, x)
    return _norm(c, x, float(c.attr("p", 2)), windows)


@lower("GlobalLpPool")
def global_lp_pool(c: Context) -> Tensor:
    x = c[0]
    return _norm(c, x, float(c.attr("p", 2)), _whole(c, x))


def _norm(c: Context, x: Tensor, p: float, windows: Sequence[Window]) -> Tensor:
    dtype = accumulator(x.dtype)

    def body(i: Indices, r: Indices) -> Expr:
        size = ex.op("abs", ex.cast(taps(x, windows, i, r, 0)[0], dtype))
        return size if p == 1 else size * size if p == 2 else ex.op("pow", size, ex.const(p, dtype))

    def finish(total: Expr, *_i: Index) -> Expr:
        root = total if p == 1 else ex.op("sqrt", total) if p == 2 else ex.op("pow", total, ex.const(1 / p, dtype))
        return ex.cast(root, x.dtype)

    return c.reduce(pooled_shape(x, windows), [w.kernel for w in windows], sum_of(dtype), body, finish)[0]


def _whole(c: Context, x: Tensor) -> tuple[Window, ...]:
    """One window per axis, over all of it."""
    if x.rank < 2:
        raise c.refuse(f"{c.op} needs an input of rank 2 or more, got {x.type}")
    return tuple(Window(size, size, 1, 1, 0, 0, 1) for size in x.shape[2:])


@lower("GlobalAveragePool")
def global_average_pool(c: Context) -> Tensor:
    x = c[0]
    windows = _whole(c, x)
    dtype = accumulator(x.dtype)
    count = ex.const(math.prod(x.shape[2:]), dtype)
    return c.reduce(
        pooled_shape(x, windows),
        x.shape[2:],
        sum_of(dtype),
        lambda i, r: ex.cast(x[(*i[:2], *r)], dtype),
        lambda total, *_i: ex.cast(total / count, x.dtype),
    )[0]


@lower("GlobalMaxPool")
def global_max_pool(c: Context) -> Tensor:
    x = c[0]
    windows = _whole(c, x)
    return c.reduce(pooled_shape(x, windows), x.shape[2:], max_of(x.dtype), lambda i, r: x[(*i[:2], *r)])[0]


@lower("MaxUnpool", since=9)
def max_unpool(c: Context) -> Tensor:
    """Each element of X goes to its position in the flattened, natural output; all else is zero.

    Read from the output's side: the last element of the channel whose index is this position. With `output_shape` the
    positions are still those of the natural output, which lies in the corner of the larger one.
    """
    x, indices = c[0], c[1]
    kernel = c.attr("kernel_shape")
    if x.rank < 3 or not kernel or len(kernel) != x.rank - 2 or indices.shape != x.shape:
        raise c.refuse(f"MaxUnpool of {x.type} and {indices.type} with kernel_shape {kernel}")
    strides, padding = c.attr("strides") or [1] * len(kernel), c.attr("pads") or [0] * (2 * len(kernel))
    natural = [
        (size - 1) * s + k - padding[a] - padding[a + len(kernel)]
        for a, (size, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    shape = (*x.shape[:2], *natural) if c.optional(2) is None else tuple(c.ints(2))
    if len(shape) != x.rank or shape[:2] != x.shape[:2]:
        raise c.refuse(f"output_shape {list(shape)} does not fit an input of {x.type}")
    small = x.shape[2:]
    count = math.prod(small)

    def body(i: Indices, r: Indices) -> Expr:
        target = ex.index_value(ix.flatten((*i[:2], *i[2:]), (*x.shape[:2], *natural)), I64)
        return ex.select(indices[(*i[:2], *r)].equals(target), ex.index_value(ix.flatten(r, small), I32), -1)

    def finish(last: Expr, *i: Index) -> Expr:
        inside = ex.TRUE
        for position, size in zip(i[2:], natural, strict=True):
            inside = inside & ex.in_range(position, 0, size)
        source = ix.unflatten(ix.value_index(last, 0, count - 1), small)
        return ex.select(inside & (last >= 0), x[(*i[:2], *source)], ex.zero(x.dtype))

    return c.reduce(shape, small, max_of(I32), body, finish)[0]


@lower("MaxRoiPool")
def max_roi_pool(c: Context) -> Tensor:
    """The maximum of each bin of each region; a bin is masked out of the whole image, since its bounds are data."""
    x, rois = c[0], c[1]
    height, width = (int(v) for v in c.attr("pooled_shape"))
    scale = ex.const(c.attr("spatial_scale", 1.0), F32)
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 5:
        raise c.refuse(f"MaxRoiPool of {x.type} with regions of {rois.type}")

    def corner(i: Indices, column: int) -> Expr:
        scaled = ex.cast(rois[i[0], column], F32) * scale
        away = ex.op("floor", ex.op("abs", scaled) + 0.5)
        return ex.cast(ex.select(scaled < 0.0, -away, away), I32)

    def bounds(i: Indices, bin_: Index, first: int, bins: int, size: int) -> tuple[Expr, Expr]:
        start, stop = corner(i, first), corner(i, first + 2)
        length = ex.op("max", stop - start + 1, ex.one(I32))
        step = ex.cast(length, F32) / float(bins)
        at = ex.cast(ex.index_value(bin_, I32), F32)
        low = ex.cast(ex.op("floor", at * step), I32) + start
        high = ex.cast(ex.op("ceil", (at + 1.0) * step), I32) + start
        return tuple(ex.op("min", ex.op("max", e, ex.zero(I32)), ex.const(size, I32)) for e in (low, high))  # type: ignore[return-value]

    def body(i: Indices, r: Indices) -> Expr:
        image = ix.value_index(ex.cast(rois[i[0], 0], I32), 0, x.shape[0] - 1)
        inside = ex.TRUE
        for axis, (first, bins) in enumerate(((2, height), (1, width))):
            low, high = bounds(i, i[2 + axis], first, bins, x.shape[2 + axis])
            at = ex.index_value(r[axis], I32)
            inside = inside & (low <= at) & (at < high)
        return ex.select(inside, x[image, i[1], r[0], r[1]], lowest(x.dtype))

    def finish(best: Expr, *i: Index) -> Expr:
        low_y, high_y = bounds(i, i[2], 2, height, x.shape[2])
        low_x, high_x = bounds(i, i[3], 1, width, x.shape[3])
        return ex.select((high_y <= low_y) | (high_x <= low_x), ex.zero(x.dtype), best)

    return c.reduce((rois.shape[0], x.shape[1], height, width), x.shape[2:], max_of(x.dtype), body, finish)[0]
