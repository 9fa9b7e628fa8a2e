"""Reductions: ReduceX over any axes, ArgMax and ArgMin.

Floats of 16 bits accumulate in f32 and round once. An empty set gives the identity, or what the function makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.builder import Tensor, arg_best, compute_type, max_of, min_of, product_of, sum_of
from onnx2wgsl.ir.dtypes import F32, I32, I64, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.program import Monoid

from .registry import Context, lower

Indices = tuple[Index, ...]
Function = Callable[[Expr], Expr]


@dataclass(frozen=True)
class Rows:
    """A shape and the axes that are reduced: sizes of the results and of the reduction, and the way back."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    keep: bool = True

    @property
    def results(self) -> tuple[int, ...]:
        kept = [(1 if k in self.axes else size, k in self.axes) for k, size in enumerate(self.shape)]
        return tuple(size for size, reduced in kept if self.keep or not reduced)

    @property
    def over(self) -> tuple[int, ...]:
        return tuple(self.shape[k] for k in self.axes)

    @property
    def count(self) -> int:
        n = 1
        for size in self.over:
            n *= size
        return n

    def full(self, i: Sequence[Index], r: Sequence[Index]) -> Indices:
        """The index of an element of the input, of those of a result and of the reduced axes."""
        inner = dict(zip(self.axes, r, strict=True))
        outer = iter(i)
        result: list[Index] = []
        for k in range(len(self.shape)):
            own = next(outer) if self.keep or k not in inner else None
            result.append(inner.get(k, own))  # type: ignore[arg-type]
        return tuple(result)


def reduced_rows(c: Context, x: Tensor, since: int) -> Rows:
    """The rows that a node asks for; the axes are an input from opset `since` on."""
    given = c.attr("axes") if c.version < since else None
    if c.version >= since and c.optional(1) is not None:
        given = c.ints(1)
    noop = c.version >= since and c.attr("noop_with_empty_axes", 0)
    axes = {c.axis(int(a), x.rank) for a in given or []} if x.rank else set()
    if not given:
        axes = set() if noop else set(range(x.rank))
    return Rows(x.shape, tuple(sorted(axes)), bool(c.attr("keepdims", 1)))


def reduce_rows(c: Context, x: Tensor, rows: Rows, monoid: Monoid, before: Function, after: Function) -> Tensor:
    """`after(Σ before(x))` for each row; a map where nothing is reduced."""
    if not rows.axes:
        return c.map(x.shape, lambda *i: after(before(x[i])))
    return c.reduce(
        rows.results, rows.over, monoid, lambda i, r: before(x[rows.full(i, r)]), lambda acc, *_: after(acc)
    )[0]


def reduction(
    c: Context,
    monoid: Callable[[DType], Monoid],
    before: Function = lambda x: x,
    after: Function = lambda x: x,
    since: int = 18,
) -> Tensor:
    """One of the ReduceX operators, with `before` and `after` in the type that it computes in."""
    x = c[0]
    compute = compute_type(x.dtype)
    return reduce_rows(
        c,
        x,
        reduced_rows(c, x, since),
        monoid(compute),
        lambda v: before(ex.cast(v, compute)),
        lambda v: ex.cast(after(v), x.dtype),
    )


def in_float(function: Function) -> Function:
    """Lets integers compute a function in f32; the caller casts back."""
    return lambda x: function(x if x.dtype.is_float else ex.cast(x, F32))


@lower("ReduceSum")
def reduce_sum(c: Context) -> Tensor:
    return reduction(c, sum_of, since=13)


@lower("ReduceProd")
def reduce_prod(c: Context) -> Tensor:
    return reduction(c, product_of)


@lower("ReduceMean")
def reduce_mean(c: Context) -> Tensor:
    """Integers divide their sum, and truncate."""
    count = reduced_rows(c, c[0], 18).count
    return reduction(c, sum_of, after=lambda x: x / count)


@lower("ReduceMax", "ReduceMin")
def reduce_extremum(c: Context) -> Tensor:
    """Exact in any type; of bools the disjunction and the conjunction."""
    x = c[0]
    monoid = (max_of if c.op == "ReduceMax" else min_of)(x.dtype)
    return reduce_rows(c, x, reduced_rows(c, x, 18), monoid, lambda v: v, lambda v: v)


@lower("ReduceL1")
def reduce_l1(c: Context) -> Tensor:
    return reduction(c, sum_of, before=magnitude)


def magnitude(x: Expr) -> Expr:
    return x if x.dtype.kind == "uint" else ex.op("abs", x)


@lower("ReduceL2")
def reduce_l2(c: Context) -> Tensor:
    return reduction(c, sum_of, before=lambda x: x * x, after=in_float(lambda x: ex.op("sqrt", x)))


@lower("ReduceSumSquare")
def reduce_sum_square(c: Context) -> Tensor:
    return reduction(c, sum_of, before=lambda x: x * x)


@lower("ReduceLogSum")
def reduce_log_sum(c: Context) -> Tensor:
    return reduction(c, sum_of, after=in_float(lambda x: ex.op("log", x)))


@lower("ReduceLogSumExp")
def reduce_log_sum_exp(c: Context) -> Tensor:
    """`m + log Σ e^(x - m)` with the row's maximum m, or 0 where that is infinite or the row is empty."""
    x = c[0]
    compute = compute_type(x.dtype) if x.dtype.is_float else F32
    rows = reduced_rows(c, x, 18)
    if not rows.axes:
        return c.map(x.shape, lambda *i: x[i])

    def shift(m: Expr, *_: Index) -> Expr:
        return ex.select(ex.op("isinf", m), ex.zero(compute), m)

    def value(i: Sequence[Index], r: Sequence[Index]) -> Expr:
        return ex.cast(x[rows.full(i, r)], compute)

    top = c.reduce(rows.results, rows.over, max_of(compute), value, shift)[0]
    return c.reduce(
        rows.results,
        rows.over,
        sum_of(compute),
        lambda i, r: ex.op("exp", value(i, r) - top[i]),
        lambda acc, *i: ex.cast(top[i] + ex.op("log", acc), x.dtype),
    )[0]


@lower("ArgMax", "ArgMin")
def arg_extremum(c: Context) -> Tensor:
    """The position of the best element, the first or last of equal ones; NaN is the best, as in NumPy."""
    x = c[0]
    axis = c.axis(int(c.attr("axis", 0)), x.rank)
    size = x.shape[axis] if x.rank else 1
    if not size:
        raise c.refuse(f"{c.op} over an empty axis of {x.type}")
    rows = Rows(x.shape, (axis,) if x.rank else (), bool(c.attr("keepdims", 1)))
    if not x.rank:
        return c.map((), lambda: ex.const(0, I64))
    monoid = arg_best(x.dtype, c.op == "ArgMax", bool(c.attr("select_last_index", 0)), size)

    def finish(_: Expr, position: Expr, *__: Any) -> Expr:
        return ex.cast(ex.assume(position, 0, size - 1), I64)

    return c.reduce(
        rows.results, rows.over, monoid, lambda i, r: (x[rows.full(i, r)], ex.index_value(r[0], I32)), finish
    )[0]
