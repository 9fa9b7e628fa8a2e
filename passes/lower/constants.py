"""Tensors that need no data: constants, shapes, ranges, windows, identity matrices and triangles."""

from __future__ import annotations

from math import ceil, isfinite, pi, prod
from typing import Any

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.builder import Tensor
from onnx2wgsl.ir.dtypes import BY_ONNX, F32, I32, I64, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import IndexLike

from .registry import Context, lower

LARGEST = 1 << 28
"""Elements up to which a tensor of one value is a constant, which passes may look at."""


@lower("Constant")
def constant(c: Context) -> Tensor:
    """One attribute holds the value: a tensor, a number, or a list of numbers."""
    value = c.attr("value")
    if value is not None:
        dtype = BY_ONNX.get(int(c.node.attributes["value"].value.dtype))
        if dtype is None:
            raise c.refuse("a constant of strings has no tensor on the GPU")
        return c.constant(value, None, dtype)
    for name, numpy in (("float", np.float32), ("int", np.int64)):
        one, many = c.attr(f"value_{name}"), c.attr(f"value_{name}s")
        if one is not None or many is not None:
            return c.constant(np.asarray(one if many is None else many, numpy))
    if "sparse_value" in c.node.attributes:
        raise c.refuse("a sparse constant has no tensor on the GPU")
    raise c.refuse("a constant of strings has no tensor on the GPU")


@lower("ConstantOfShape", since=9)
def constant_of_shape(c: Context) -> Tensor:
    shape = c.ints(0)
    if any(size < 0 for size in shape):
        raise c.refuse(f"ConstantOfShape of {shape}: a size is negative")
    value = np.asarray(c.attr("value", np.zeros(1, np.float32))).reshape(-1)
    dtype = BY_ONNX[int(c.node.attributes["value"].value.dtype)] if "value" in c.node.attributes else F32
    if prod(shape) > LARGEST:
        return c.map(shape, lambda *_: ex.const(value[0], dtype))
    return c.constant(np.broadcast_to(value[0], shape), dtype=dtype)


@lower("Shape")
def shape(c: Context) -> Tensor:
    """The sizes `[start:end]`; a size that depends on data is read from the tensor that holds it."""
    x = c[0]
    start, end = (clamped(c.attr(name, default), x.rank) for name, default in (("start", 0), ("end", x.rank)))
    sizes = x.shape[start : max(end, start)]
    at = x.type.length_axis - start
    if x.type.length is None or not 0 <= at < len(sizes):
        return c.constant(np.asarray(sizes, np.int64))
    parts = [np.asarray(part, np.int64) for part in (sizes[:at], sizes[at + 1 :])]
    return c.builder.concat([c.constant(parts[0]), length_of(c, x), c.constant(parts[1])], 0)


def clamped(position: int, rank: int) -> int:
    return min(max(position + rank if position < 0 else position, 0), rank)


def length_of(c: Context, x: Tensor) -> Tensor:
    """How many elements the axis has whose length depends on data, as an i64 tensor of one element."""
    assert x.type.length is not None
    length = Tensor(c.builder, x.type.length)

    def value(*_: IndexLike) -> Expr:
        return ex.cast(ex.assume(length[(0,) * length.rank], 0, x.shape[x.type.length_axis]), I64)

    return c.map((1,), value)


@lower("Size")
def size(c: Context) -> Tensor:
    x = c[0]
    if x.type.length is None:
        return c.constant(np.asarray(x.type.count, np.int64))
    length, axis = length_of(c, x), x.type.length_axis
    return c.map((), lambda: length[0] * prod(x.shape[:axis] + x.shape[axis + 1 :]))


@lower("EyeLike", since=9)
def eye_like(c: Context) -> Tensor:
    x = c[0]
    if x.rank != 2:
        raise c.refuse(f"EyeLike needs a matrix, got {x.type}")
    dtype, k = c.dtype_attr("dtype", x.dtype), int(c.attr("k", 0))

    def value(i: Any, j: Any) -> Expr:
        on = ex.index_value(i + k, I32).equals(ex.index_value(j, I32))
        return ex.select(on, ex.one(dtype), ex.zero(dtype))

    return c.map(x.shape, value)


@lower("Range", since=11)
def range_(c: Context) -> Tensor:
    """`start + i · delta` for `max(ceil((limit - start) / delta), 0)` values of i; small floats step in f32."""
    start, limit, delta = (c.value(k).reshape(-1)[0] for k in range(3))
    dtype = c[0].dtype
    if not delta:
        raise c.refuse("Range needs a delta other than 0")
    if dtype.is_integer:
        count = counted(c, -(-(int(limit) - int(start)) // int(delta)))
        return c.constant((int(start) + np.arange(count, dtype=np.int64) * int(delta)).astype(dtype.numpy))
    wide: Any = np.float64 if dtype.bits == 64 else np.float32
    first, last, step = (wide(v) for v in (start, limit, delta))
    with np.errstate(all="ignore"):
        size = float((last - first) / step)
    count = counted(c, ceil(size) if isfinite(size) else size)
    return c.constant((first + np.arange(count).astype(wide) * step).astype(dtype.numpy))


def counted(c: Context, count: float) -> int:
    """How many elements a constant has that is computed here."""
    if not count <= LARGEST:
        raise c.refuse(f"it has {count} elements; at most {LARGEST} are supported")
    return max(int(count), 0) if isfinite(count) else 0


# Windows and mel filters, in float64 at compile time


def cosine_window(c: Context, terms: tuple[float, float, float]) -> Tensor:
    """`a0 - a1 cos(2πn / N) + a2 cos(4πn / N)`, with N the size, or one less where it is not periodic."""
    count = counted(c, c.ints(0)[0])
    n = np.arange(count, dtype=np.float64) * (2 * pi / max(count if c.attr("periodic", 1) else count - 1, 1))
    value = terms[0] - terms[1] * np.cos(n) + terms[2] * np.cos(2 * n)
    return table(c, value, c.dtype_attr("output_datatype", F32))


def table(c: Context, value: np.ndarray[Any, Any], dtype: DType) -> Tensor:
    return c.constant(value.astype(dtype.numpy), None, dtype)


@lower("HannWindow", since=17)
def hann_window(c: Context) -> Tensor:
    return cosine_window(c, (0.5, 0.5, 0.0))


@lower("HammingWindow", since=17)
def hamming_window(c: Context) -> Tensor:
    return cosine_window(c, (25 / 46, 21 / 46, 0.0))


@lower("BlackmanWindow", since=17)
def blackman_window(c: Context) -> Tensor:
    return cosine_window(c, (0.42, 0.5, 0.08))


@lower("MelWeightMatrix", since=17)
def mel_weight_matrix(c: Context) -> Tensor:
    """Triangles between bins that are equally spaced on the mel scale, over the bins of a one-sided DFT."""
    bins, length, rate = (c.ints(k)[0] for k in range(3))
    low, high = (float(c.value(k).reshape(-1)[0]) for k in (3, 4))
    mels = 2595 * np.log10(1 + np.asarray([low, high]) / 700)
    points = mels[0] + np.arange(bins + 2) * ((mels[1] - mels[0]) / (bins + 2))
    edges = (((length + 1) * (700 * (10 ** (points / 2595) - 1))) // rate).astype(np.int64)
    result = np.zeros((length // 2 + 1, bins))
    for k in range(bins):
        left, centre, right = edges[k : k + 3]
        if left == centre:
            result[centre, k] = 1
        for j in range(left, centre + 1):
            if left != centre:
                result[j, k] = (j - left) / (centre - left)
        for j in range(centre, right):
            result[j, k] = (right - j) / (right - centre)
    return table(c, result, c.dtype_attr("output_datatype", F32))
