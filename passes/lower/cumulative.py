"""CumSum and CumProd in closed form: reductions with a masked body.

Element i is the reduction over all r ≤ i. Beyond `BLOCK` elements the axis is cut into blocks: the reduction of the
elements of its own block, combined with the exclusive cumulative result of the blocks before, found the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, compute_type, product_of, sum_of
from onnx2wgsl.ir.dtypes import I32, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.program import Monoid

from .registry import Context, lower

BLOCK = 64

Load = Callable[[tuple[ix.Index, ...]], Expr]


def cumulative(
    c: Context, shape: tuple[int, ...], axis: int, load: Load, monoid: Monoid, inclusive: bool, dtype: DType
) -> Tensor:
    """`Σ_{r ≤ i[axis]} load(…r…)`, with r < i where it is not inclusive, as a tensor of type `dtype`."""
    size = shape[axis]
    block = size if size <= 2 * BLOCK else BLOCK
    blocks = -(-size // block) if size else 0
    identity = monoid.identity[0]

    def before(i: tuple[ix.Index, ...], position: ix.Index) -> tuple[ix.Index, ...]:
        return (*i[:axis], position, *i[axis + 1 :])

    base: Tensor | None = None
    if blocks > 1:

        def block_sum(i: Any, r: Any) -> Expr:
            position = i[axis] * block + r[0]
            return ex.select(ex.in_range(position, 0, size), load(before(i, position)), identity)

        sums = c.reduce(before_shape(shape, axis, blocks), (block,), monoid, block_sum)[0]
        base = cumulative(c, sums.shape, axis, lambda i: sums[i], monoid, False, sums.dtype)

    def body(i: Any, r: Any) -> Expr:
        own = i[axis] % block
        position = i[axis] // block * block + r[0]
        here, there = ex.index_value(r[0], I32), ex.index_value(own, I32)
        reached = here <= there if inclusive else here < there
        return ex.select(reached, load(before(i, position)), identity)

    def done(acc: Expr, *i: ix.Index) -> Expr:
        if base is not None:
            acc = ex.op(monoid.combine[0].op, base[before(i, i[axis] // block)], acc)
        return ex.cast(acc, dtype)

    return c.reduce(shape, (block,), monoid, body, done)[0]


def before_shape(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def along(c: Context, monoid: Callable[[DType], Monoid]) -> Tensor:
    """Both operators: `exclusive` leaves the element itself out, `reverse` runs from the end."""
    x = c[0]
    if not x.rank:
        raise c.refuse(f"{c.op} needs an axis, got a scalar")
    axis, compute = c.axis(c.ints(1)[0], x.rank), compute_type(x.dtype)
    last, reverse = x.shape[axis] - 1, bool(c.attr("reverse", 0))

    def placed(i: tuple[ix.Index, ...]) -> tuple[ix.Index, ...]:
        return (*i[:axis], last - i[axis], *i[axis + 1 :]) if reverse else i

    result = cumulative(
        c,
        x.shape,
        axis,
        lambda i: ex.cast(x[placed(i)], compute),
        monoid(compute),
        not c.attr("exclusive", 0),
        x.dtype,
    )
    return c.map(x.shape, lambda *i: result[placed(i)]) if reverse else result


@lower("CumSum", since=11)
def cum_sum(c: Context) -> Tensor:
    return along(c, sum_of)


@lower("CumProd", since=26)
def cum_prod(c: Context) -> Tensor:
    return along(c, product_of)
