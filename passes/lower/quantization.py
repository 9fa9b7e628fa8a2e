"""Quantisation: linear in both directions (per tensor, axis or block), and products of quantised matrices.

`(a - za)(b - zb)` is written as it stands, in i32; the pass that legalises integers expands it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, compute_type, max_of, min_of
from onnx2wgsl.ir.dtypes import F32, I32, U8, DType
from onnx2wgsl.ir.expr import Expr

from .casts import converted
from .registry import Context, broadcast, lower

Indices = tuple[ix.Index, ...]
Parameter = Callable[..., Expr]


def parameter(c: Context, x: Tensor, p: Tensor) -> Parameter:
    """Reads a scale or zero point of x: one value, one per position of `axis`, or one per block along it."""
    if p.type.count == 1 and p.rank <= 1:
        return lambda *_: p[(0,) * p.rank]
    block = int(c.attr("block_size", 0))
    if p.rank == 1 and not block:
        axis = c.axis(int(c.attr("axis", 1)), x.rank)
        if p.shape[0] != x.shape[axis]:
            raise c.refuse(f"a scale of {p.type} does not fit axis {axis} of {x.type}")
        return lambda *i: p[i[axis]]
    if p.rank != x.rank:
        raise c.refuse(f"a scale of {p.type} is neither one value, nor one per axis or block of {x.type}")
    axis = c.axis(int(c.attr("axis", 1)), x.rank)
    if not block:
        block = -(-x.shape[axis] // p.shape[axis]) if p.shape[axis] else 1
    blocks = [-(-n // block) if k == axis else n for k, n in enumerate(x.shape)]
    if list(p.shape) != blocks:
        raise c.refuse(f"a scale of {p.type} does not fit {x.type} in blocks of {block} along axis {axis}")
    return lambda *i: p[tuple(v // block if k == axis else v for k, v in enumerate(i))]


def saturated(x: Expr, zero_point: Expr | None, dtype: DType, saturate: bool = True) -> Expr:
    """`saturate(round(x) + zero_point)`, ties to even; small floats round by their own cast."""
    if dtype.is_float:
        return converted(x if zero_point is None else x + ex.cast(zero_point, x.dtype), dtype, saturate)
    whole = ex.op("round", x)
    if zero_point is not None:
        whole = whole + ex.cast(zero_point, x.dtype)
    bounded = ex.op("min", ex.op("max", whole, ex.const(dtype.lo, x.dtype)), ex.const(dtype.hi, x.dtype))
    return ex.cast(bounded, dtype)


@lower("QuantizeLinear", since=10)
def quantize_linear(c: Context) -> Tensor:
    """`saturate(round(x / scale) + zero_point)`.

    The division is in f32, or in the type that `precision` or the scale has: f16 rounds its quotient.
    """
    x, scale, zero = c[0], c[1], c.optional(2)
    dtype = c.dtype_attr("output_dtype", U8 if zero is None else zero.dtype)
    if zero is not None and zero.dtype is not dtype:
        raise c.refuse(f"output_dtype is {dtype}, and the zero point is {zero.dtype}")
    if dtype.is_integer and dtype.bits > 16:
        raise c.refuse(f"QuantizeLinear to {dtype} is not defined")
    precision = c.dtype_attr("precision", scale.dtype if scale.dtype.bits >= 16 else F32)
    compute = compute_type(precision)
    saturate = bool(c.attr("saturate", 1))
    scale_at = parameter(c, x, scale)
    zero_at = None if zero is None else parameter(c, x, zero)

    def value(*i: ix.Index) -> Expr:
        operands = (ex.cast(ex.cast(e, precision), compute) for e in (x[i], scale_at(*i)))
        numerator, denominator = operands
        quotient = ex.cast(ex.cast(numerator / denominator, precision), compute)
        return saturated(quotient, None if zero_at is None else zero_at(*i), dtype, saturate)

    return c.map(x.shape, value)


@lower("DequantizeLinear", since=10)
def dequantize_linear(c: Context) -> Tensor:
    """`(x - zero_point) · scale`, the difference of integers in i32."""
    x, scale, zero = c[0], c[1], c.optional(2)
    dtype = c.dtype_attr("output_dtype", scale.dtype)
    compute = compute_type(scale.dtype) if scale.dtype.bits >= 16 else F32
    between = I32 if x.dtype.is_integer else compute
    scale_at = parameter(c, x, scale)
    zero_at = None if zero is None else parameter(c, x, zero)

    def value(*i: ix.Index) -> Expr:
        v = ex.cast(x[i], between)
        if zero_at is not None:
            v = v - ex.cast(zero_at(*i), between)
        return converted(ex.cast(v, compute) * ex.cast(scale_at(*i), compute), dtype)

    return c.map(x.shape, value)


@lower("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(c: Context) -> tuple[Tensor, ...]:
    """u8 with `scale = (max(x, 0) - min(x, 0)) / 255` and `zero_point = round(saturate(-min / scale))`.

    Where all elements are 0 the scale is 0, and so are the zero point and the result.
    """
    x = c[0]

    def bound(monoid: Callable[[DType], object], clip: str) -> Tensor:
        def finish(acc: Expr, *_: ix.Index) -> Expr:
            return ex.op(clip, acc, ex.zero(F32))

        return c.reduce((), x.shape, monoid(F32), lambda _, r: x[r], finish)[0]

    high, low = bound(max_of, "max"), bound(min_of, "min")
    scale = c.map((), lambda: (high[()] - low[()]) / 255)

    def divided(v: Expr) -> Expr:
        return ex.select(scale[()].equals(0), ex.zero(F32), v / scale[()])

    zero = c.map((), lambda: saturated(divided(-low[()]), None, U8))
    y = c.map(x.shape, lambda *i: saturated(divided(x[i]), zero[()], U8))
    return y, scale, zero


# Products of quantised matrices


def quantized_product(
    c: Context,
    operands: tuple[Tensor, Tensor],
    parameters: Callable[[Tensor, Tensor], tuple[Parameter, Parameter]],
    finish: Callable[..., Expr],
) -> Tensor:
    """NumPy matmul of operands that `parameters` turns into expressions."""
    a, b = operands
    if not a.rank or not b.rank or a.shape[-1] != b.shape[max(b.rank - 2, 0)]:
        raise c.refuse(f"{c.op} of {a.type} and {b.type}: the inner sizes differ")
    batch = broadcast(c, a.shape[:-2], b.shape[:-2])
    rows, columns, n = a.shape[-2:-1], b.shape[-1:] if b.rank > 1 else (), len(batch)
    left, right = parameters(a, b)

    def pair(i: Indices, r: Indices) -> tuple[Expr, Expr]:
        return left(*i[: n + len(rows)], *r), right(*i[:n], *r, *i[n + len(rows) :])

    shape = (*batch, *rows, *columns)
    return c.contract(shape, (a.shape[-1],), pair, finish, F32 if a.dtype.is_float else I32)


def row_parameter(c: Context, p: Tensor, t: Tensor, rows: bool) -> Callable[[Sequence[ix.IndexLike]], Expr]:
    """A scale or zero point of a matrix: one value, or one per row (or column); its index is an element's of `t`."""
    size = t.shape[-2 if rows and t.rank > 1 else -1]
    if p.type.count == 1:
        return lambda _: p[(0,) * p.rank]
    if p.rank == 1 and p.shape[0] == size and not (rows and t.rank < 2):
        return lambda i: p[i[-2] if rows else i[-1]]
    if p.rank == t.rank and p.shape[-1 if rows else -2] == 1:
        return lambda i: p.at(*i)
    raise c.refuse(f"{p.type} is neither one value nor one per {'row' if rows else 'column'} of {t.type}")


def centred(c: Context, t: Tensor, zero: Tensor | None, rows: bool) -> Parameter:
    """`t - zero` in i32."""
    zero_at = None if zero is None else row_parameter(c, zero, t, rows)

    def value(*i: ix.IndexLike) -> Expr:
        own = own_index(t, i)
        v = ex.cast(t[own], I32)
        return v if zero_at is None else v - ex.cast(zero_at(own), I32)

    return value


def own_index(t: Tensor, i: Sequence[ix.IndexLike]) -> tuple[ix.IndexLike, ...]:
    """The index into a tensor that broadcasts, of one into the result."""
    return tuple(v if n != 1 else 0 for v, n in zip(i[len(i) - t.rank :], t.shape, strict=True))


@lower("MatMulInteger", since=10)
def matmul_integer(c: Context) -> Tensor:
    a_zero, b_zero = c.optional(2), c.optional(3)
    return quantized_product(
        c,
        (c[0], c[1]),
        lambda a, b: (centred(c, a, a_zero, rows=True), centred(c, b, b_zero, rows=False)),
        lambda acc, *_: acc,
    )


@lower("QLinearMatMul", since=10)
def qlinear_matmul(c: Context) -> Tensor:
    """`saturate(round(Σ (a - za)(b - zb) · (sa · sb / sy)) + zy)`; scales of a are per row, those of b per column."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (c[k] for k in range(8))
    if y_scale.type.count != 1 or y_zero.type.count != 1:
        raise c.refuse("the scale and the zero point of Y must be one value")
    rows, columns = row_parameter(c, a_scale, a, rows=True), row_parameter(c, b_scale, b, rows=False)
    dtype = y_zero.dtype

    def operands(left: Tensor, right: Tensor) -> tuple[Parameter, Parameter]:
        if left.dtype.is_integer:
            return centred(c, left, a_zero, rows=True), centred(c, right, b_zero, rows=False)
        return floating(left, a_zero), floating(right, b_zero)

    def floating(t: Tensor, zero: Tensor) -> Parameter:
        zero_at = row_parameter(c, zero, t, rows=zero is a_zero)

        def value(*i: ix.IndexLike) -> Expr:
            own = own_index(t, i)
            return ex.cast(t[own], F32) - ex.cast(zero_at(own), F32)

        return value

    def finish(acc: Expr, *i: ix.IndexLike) -> Expr:
        # The index of a row's scale needs no column, nor that of a column's scale a row.
        row_index = (*(i if b.rank > 1 else (*i, 0)),)
        column_index = (*(i if a.rank > 1 else (*i[:-1], 0, *i[-1:])),)
        sa, sb = (
            ex.cast(at(own_index(t, index)), F32) for at, t, index in ((rows, a, row_index), (columns, b, column_index))
        )
        factor = sa * sb / ex.cast(y_scale[(0,) * y_scale.rank], F32)
        return saturated(ex.cast(acc, F32) * factor, y_zero[(0,) * y_zero.rank], dtype)

    return quantized_product(c, (a, b), operands, finish)
