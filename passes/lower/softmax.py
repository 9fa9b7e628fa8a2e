"""Softmax, LogSoftmax, Hardmax: a reduction or two and a map, which fusion makes one row nest.

From opset 13 on they act along one axis; before, all axes from `axis` on are one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, arg_best, compute_type, max_of, sum_of
from onnx2wgsl.ir.dtypes import I32
from onnx2wgsl.ir.expr import Expr

from .reductions import Rows
from .registry import Context, lower


def rows_of(c: Context, x: Tensor) -> Rows:
    """The axes that are normalised over, kept with size 1 in what is reduced."""
    if not x.rank:
        return Rows((), ())
    if c.version >= 13:
        return Rows(x.shape, (c.axis(int(c.attr("axis", -1)), x.rank),))
    first = int(c.attr("axis", 1))
    first = x.rank if first == x.rank else c.axis(first, x.rank)
    return Rows(x.shape, tuple(range(first, x.rank)))


Operand = Callable[..., Expr]


def row_maximum(c: Context, x: Operand, rows: Rows, like: Any) -> Tensor:
    return c.reduce(rows.results, rows.over, max_of(like), lambda i, r: x(*rows.full(i, r)))[0]


def row_sum(c: Context, x: Operand, rows: Rows, like: Any) -> Tensor:
    return c.reduce(rows.results, rows.over, sum_of(like), lambda i, r: x(*rows.full(i, r)))[0]


def softmax_of(c: Context, x: Tensor, rows: Rows, log: bool = False, wide: bool = False) -> Tensor:
    """`e^(x - m) / Σ e^(x - m)` with m the row's maximum, or its logarithm `x - m - log Σ e^(x - m)`.

    With `wide` the result has the type that is computed in.
    """
    compute = compute_type(x.dtype)
    result = compute if wide else x.dtype
    if not rows.axes:
        return c.map(x.shape, lambda *_: ex.const(0 if log else 1, result))

    def value(*i: ix.Index) -> Expr:
        return ex.cast(x[i], compute)

    top = row_maximum(c, value, rows, compute)

    def exponential(*i: ix.Index) -> Expr:
        return ex.op("exp", value(*i) - top.at(*i))

    total = row_sum(c, exponential, rows, compute)
    if log:
        return c.map(x.shape, lambda *i: ex.cast(value(*i) - top.at(*i) - ex.op("log", total.at(*i)), result))
    return c.map(x.shape, lambda *i: ex.cast(exponential(*i) / total.at(*i), result))


@lower("Softmax")
def softmax(c: Context) -> Tensor:
    return softmax_of(c, c[0], rows_of(c, c[0]))


@lower("LogSoftmax")
def log_softmax(c: Context) -> Tensor:
    return softmax_of(c, c[0], rows_of(c, c[0]), log=True)


@lower("Hardmax")
def hardmax(c: Context) -> Tensor:
    """1 at the first of the row's largest elements, 0 elsewhere."""
    x = c[0]
    rows = rows_of(c, x)
    if not rows.axes or not rows.count:
        return c.map(x.shape, lambda *_: ex.one(x.dtype))

    def body(i: Any, r: Any) -> tuple[Expr, Expr]:
        return x[rows.full(i, r)], ex.index_value(ix.flatten(r, rows.over), I32)

    best = c.reduce(rows.results, rows.over, arg_best(x.dtype, True), body, lambda _, position, *__: position)[0]

    def value(*i: ix.Index) -> Expr:
        own = ix.flatten([i[k] for k in rows.axes], rows.over)
        return ex.select(best.at(*i).equals(ex.index_value(own, I32)), ex.one(x.dtype), ex.zero(x.dtype))

    return c.map(x.shape, value)
