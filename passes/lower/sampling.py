"""Sampling at positions that come from data: GridSample, AffineGrid, RoiAlign, DeformConv.

A sample is a sum over a few taps per axis, each an integer position with a weight; the positions are data, so a tap is
one load at `Value` indices. Before they become integers, positions are clamped to a little beyond the tensor: what
lies farther out has the same value, and no conversion overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, accumulator, compute_type, max_of, sum_of
from onnx2wgsl.ir.dtypes import I32, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index

from .convolution import add_bias, channels, convolve
from .registry import Context, lower
from .windows import sliding_windows

Indices = tuple[Index, ...]
# A tap: its integer position and its weight.
Tap = tuple[Expr, Expr]

CUBIC = -0.75


def clamped(x: Expr, lo: float, hi: float) -> Expr:
    return ex.op("min", ex.op("max", x, ex.const(lo, x.dtype)), ex.const(hi, x.dtype))


def linear_taps(x: Expr) -> list[Tap]:
    """The two neighbours of a position, by distance."""
    low = ex.op("floor", x)
    first, part = ex.cast(low, I32), x - low
    return [(first, 1.0 - part), (first + 1, part)]


def nearest_tap(x: Expr) -> list[Tap]:
    """The nearest element, ties to even."""
    return [(ex.cast(ex.op("round", x), I32), ex.one(x.dtype))]


def cubic_taps(x: Expr) -> list[Tap]:
    """The four neighbours of a position, by the cubic convolution kernel."""
    low = ex.op("floor", x)
    first, t = ex.cast(low, I32), x - low
    a = CUBIC

    def near(d: Expr) -> Expr:
        return ((a + 2) * d - (a + 3)) * d * d + 1.0

    def far(d: Expr) -> Expr:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    weights = (far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t))
    return [(first + (k - 1), w) for k, w in enumerate(weights)]


def interpolate(taps: Sequence[Sequence[Tap]], load: Callable[[Sequence[Expr]], Expr]) -> Expr:
    """`Σ load(positions) · Π weights` over all combinations of taps."""
    total: Expr | None = None
    for combination in product(*taps):
        value = load([position for position, _ in combination])
        for _, weight in combination:
            value = value * weight
        total = value if total is None else total + value
    assert total is not None
    return total


def or_zero(
    x: Tensor, dtype: DType, lead: Sequence[Index], sizes: Sequence[int]
) -> Callable[[Sequence[Expr]], Expr]:
    """Loads an element at integer positions, zero outside of the tensor."""

    def load(where: Sequence[Expr]) -> Expr:
        inside = ex.TRUE
        for p, size in zip(where, sizes, strict=True):
            inside = inside & (p >= 0) & (p < size)
        at = [ix.value_index(p, 0, size - 1) for p, size in zip(where, sizes, strict=True)]
        return ex.select(inside, ex.cast(x[(*lead, *at)], dtype), 0.0)

    return load


def reflected(x: Expr, lo: float, hi: float) -> Expr:
    """Folds a position back into [lo, hi], as often as it takes."""
    if hi <= lo:
        return ex.const(lo, x.dtype)
    t = ex.op("mod", x - lo, ex.const(2 * (hi - lo), x.dtype))
    return ex.op("min", t, 2 * (hi - lo) - t) + lo


@lower("GridSample", since=16)
def grid_sample(c: Context) -> Tensor:
    """`Y[n, c, o…]`: X at the position in `grid[n, o…]`, whose coordinates run from −1 to 1, the last axis first."""
    x, grid = c[0], c[1]
    sizes = x.shape[2:]
    rank = len(sizes)
    if rank < 1 or grid.rank != x.rank or grid.shape[-1] != rank or grid.shape[0] != x.shape[0]:
        raise c.refuse(f"a grid of {grid.type} does not fit an input of {x.type}")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(m := str(c.attr("mode", "linear")), m)
    padding, align = str(c.attr("padding_mode", "zeros")), bool(c.attr("align_corners", 0))
    taps = {"linear": linear_taps, "nearest": nearest_tap, "cubic": cubic_taps}.get(mode)
    if taps is None or padding not in ("zeros", "border", "reflection"):
        raise c.refuse(f"mode {mode} with padding_mode {padding} is not known")
    if not all(sizes):
        raise c.refuse(f"an input of {x.type} has nothing to sample")
    dtype = compute_type(x.dtype)

    def position(i: Indices, axis: int) -> Expr:
        size = sizes[axis]
        given = ex.cast(grid[(i[0], *i[2:], rank - 1 - axis)], dtype)
        at = (given + 1.0) * ((size - 1) / 2) if align else ((given + 1.0) * float(size) - 1.0) * 0.5
        if mode == "nearest":
            at = ex.op("round", at)
        if padding == "border":
            return clamped(at, 0, size - 1) if mode != "cubic" else clamped(at, -3, size + 2)
        if padding == "reflection" and mode != "cubic":
            return reflected(at, *_edges(size, align))
        return clamped(at, -3, size + 2) if padding == "zeros" else at

    def load(i: Indices) -> Callable[[Sequence[Expr]], Expr]:
        if padding == "zeros":
            return or_zero(x, dtype, i[:2], sizes)

        def inside(where: Sequence[Expr]) -> Expr:
            at = []
            for p, size in zip(where, sizes, strict=True):
                if padding == "reflection":
                    folded = reflected(ex.cast(p, dtype), *_edges(size, align))
                    p = ex.cast(clamped(folded, 0, size - 1), I32)
                bounded = ex.op("min", ex.op("max", p, ex.zero(I32)), ex.const(size - 1, I32))
                at.append(ix.value_index(bounded, 0, size - 1))
            return ex.cast(x[(*i[:2], *at)], dtype)

        return inside

    def value(*i: Index) -> Expr:
        return ex.cast(interpolate([taps(position(i, a)) for a in range(rank)], load(i)), x.dtype)

    return c.map((*x.shape[:2], *grid.shape[1:-1]), value)


def _edges(size: int, align: bool) -> tuple[float, float]:
    return (0.0, size - 1.0) if align else (-0.5, size - 0.5)


@lower("AffineGrid", since=20)
def affine_grid(c: Context) -> Tensor:
    """`grid[n, o…, k] = Σ_j theta[n, k, j] · (x, y, …, 1)_j`, x along the last axis."""
    theta, size = c[0], c.ints(1)
    rank = len(size) - 2
    if rank not in (2, 3) or theta.shape != (size[0], rank, rank + 1):
        raise c.refuse(f"theta of {theta.type} does not fit a size of {size}")
    align = bool(c.attr("align_corners", 0))
    dtype = compute_type(theta.dtype)

    def ramp(n: int) -> np.ndarray[Any, Any]:
        full = np.linspace(-1.0, 1.0, n) if align else (2 * np.arange(n) + 1) / n - 1
        return np.asarray(full, np.float64).astype(dtype.numpy)

    ramps = [c.constant(ramp(n)) for n in size[2:]]

    def value(n: Index, *rest: Index) -> Expr:
        *o, k = rest
        total = ex.cast(theta[n, k, rank], dtype)
        for j in range(rank):
            total = total + ex.cast(theta[n, k, j], dtype) * ramps[rank - 1 - j][o[rank - 1 - j]]
        return ex.cast(total, theta.dtype)

    return c.map((size[0], *size[2:], rank), value)


@lower("RoiAlign", since=10)
def roi_align(c: Context) -> Tensor:
    """The mean or maximum of `sampling_ratio`² samples in each bin of each region."""
    x, rois, batch = c[0], c[1], c[2]
    if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 4 or not all(x.shape):
        raise c.refuse(f"RoiAlign of {x.type} with regions of {rois.type}")
    height, width = int(c.attr("output_height", 1)), int(c.attr("output_width", 1))
    largest = str(c.attr("mode", "avg")) == "max"
    half = c.version >= 16 and str(c.attr("coordinate_transformation_mode", "half_pixel")) == "half_pixel"
    ratio = int(c.attr("sampling_ratio", 0))
    if ratio <= 0:
        raise c.refuse("sampling_ratio 0 makes the number of samples depend on the regions")
    dtype = compute_type(x.dtype)
    scale, sizes = ex.const(c.attr("spatial_scale", 1.0), dtype), x.shape[2:]

    def sample(i: Indices, r: Indices, axis: int, bins: int) -> tuple[list[Tap], Expr]:
        """The taps along an axis (1 is x), and whether the sample lies on the image."""
        low, high = (ex.cast(rois[i[0], k + (0 if axis else 1)], dtype) * scale for k in (0, 2))
        start = low - 0.5 if half else low
        length = high - low if half else ex.op("max", high - low, ex.one(dtype))
        step = length / float(bins)
        at = ex.cast(ex.index_value(i[2 + axis], I32), dtype)
        fraction = (ex.cast(ex.index_value(r[axis], I32), dtype) + 0.5) / float(ratio)
        y = start + at * step + fraction * step
        size = sizes[axis]
        inside = (y >= -1.0) & (y <= float(size))
        y = clamped(y, 0, size - 1)
        (first, keep), (second, part) = linear_taps(y)
        return [(first, keep), (ex.op("min", second, ex.const(size - 1, I32)), part)], inside

    def body(i: Indices, r: Indices) -> Expr:
        rows, in_rows = sample(i, r, 0, height)
        columns, in_columns = sample(i, r, 1, width)
        image = ix.value_index(ex.cast(batch[i[0]], I32), 0, x.shape[0] - 1)

        def load(where: Sequence[Expr]) -> Expr:
            at = [ix.value_index(p, 0, size - 1) for p, size in zip(where, sizes, strict=True)]
            return ex.cast(x[(image, i[1], *at)], dtype)

        if not largest:
            return ex.select(in_rows & in_columns, interpolate([rows, columns], load), 0.0)
        parts = [load([p, q]) * v * w for (p, v), (q, w) in product(rows, columns)]
        best = parts[0]
        for part in parts[1:]:
            best = ex.op("max", best, part)
        return ex.select(in_rows & in_columns, best, 0.0)

    def finish(total: Expr, *_i: Index) -> Expr:
        return ex.cast(total if largest else total / float(ratio * ratio), x.dtype)

    monoid = max_of(dtype) if largest else sum_of(dtype)
    return c.reduce((rois.shape[0], x.shape[1], height, width), (ratio, ratio), monoid, body, finish)[0]


@lower("DeformConv", since=19)
def deform_conv(c: Context) -> Tensor:
    """A convolution whose taps are moved by `offset` and scaled by `mask`.

    The samples are a tensor of their own, `[n, channel, tap…, o…]`: every output channel reads them.
    """
    x, w, offset, mask = c[0], c[1], c[2], c.optional(4)
    ch = channels(c, x, w)
    windows = sliding_windows(c, x.shape[2:], w.shape[2:])
    kernel, outs, rank = w.shape[2:], tuple(win.out for win in windows), x.rank - 2
    sets = int(c.attr("offset_group", 1))
    taps = int(np.prod(kernel))
    if x.shape[1] % sets or offset.shape != (ch.batch, sets * taps * rank, *outs):
        raise c.refuse(f"an offset of {offset.type} does not fit {sets} groups of {taps} taps over {list(outs)}")
    if mask is not None and mask.shape != (ch.batch, sets * taps, *outs):
        raise c.refuse(f"a mask of {mask.type} does not fit {sets} groups of {taps} taps over {list(outs)}")
    dtype = compute_type(x.dtype)
    per_set = x.shape[1] // sets

    def sample(*i: Index) -> Expr:
        n, channel, k, o = i[0], i[1], i[2 : 2 + rank], i[2 + rank :]
        tap = channel // per_set * taps + ix.flatten(k, kernel)
        found = []
        for axis, window in enumerate(windows):
            moved = ex.cast(offset[(n, tap * rank + axis, *o)], dtype)
            base = ex.cast(ex.index_value(window.position(o[axis], k[axis]), I32), dtype)
            found.append(linear_taps(clamped(base + moved, -2, window.size + 1)))
        value = interpolate(found, or_zero(x, dtype, (n, channel), x.shape[2:]))
        return ex.cast(value if mask is None else value * ex.cast(mask[(n, tap, *o)], dtype), x.dtype)

    samples = c.map((ch.batch, x.shape[1], *kernel, *outs), sample)
    total = accumulator(x.dtype)
    finish = add_bias(c.optional(3), total, x.dtype)
    return convolve(
        c, ch, windows, lambda n, channel, k, o: samples[(n, channel, *k, *o)], lambda *i: w[i], finish, total
    )


@lower("ImageDecoder", since=20)
def image_decoder(c: Context) -> Tensor:
    raise c.refuse("decoding compressed images is left to the application")
