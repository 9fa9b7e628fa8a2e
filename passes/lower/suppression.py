"""NonMaxSuppression: each step selects the best box left of every class and drops those that overlap it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor
from onnx2wgsl.ir.dtypes import BOOL, F32, I32, I64
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.program import Monoid

from .control import STEP_LIMIT, Body, emit_scan
from .registry import Context, lower
from .selection import positions_of

Corners = tuple[Expr, Expr, Expr, Expr]


def corners(boxes: Tensor, batch: Index, n: Index, centered: bool) -> Corners:
    """Top, left, bottom and right of a box that is given by two corners or by its centre and size."""
    a, b, c, d = (boxes[batch, n, ix.constant(k)] for k in range(4))
    if centered:
        half_w, half_h = c * 0.5, d * 0.5
        return b - half_h, a - half_w, b + half_h, a + half_w
    return ex.op("min", a, c), ex.op("min", b, d), ex.op("max", a, c), ex.op("max", b, d)


def overlaps(one: Corners, other: Corners, threshold: Expr) -> Expr:
    """Whether the intersection over the union of two boxes exceeds a threshold."""

    def extent(lo: int, hi: int) -> Expr:
        return ex.op("min", one[hi], other[hi]) - ex.op("max", one[lo], other[lo])

    def area(box: Corners) -> Expr:
        return (box[2] - box[0]) * (box[3] - box[1])

    zero = ex.zero(one[0].dtype)
    height, width = ex.op("max", extent(0, 2), zero), ex.op("max", extent(1, 3), zero)
    both = height * width
    union = area(one) + area(other) - both
    return (both > 0) & (union > 0) & (both / union > threshold)


def threshold(c: Context, position: int, default: float) -> Expr:
    given = c.optional(position)
    return ex.const(default, F32) if given is None else given[(0,) * given.rank]


@lower("NonMaxSuppression", since=10)
def non_max_suppression(c: Context) -> Tensor:
    """`[count, 3]`: batch, class and box of what is selected, by batch, class and falling score."""
    boxes, scores = c[0], c[1]
    batches, classes, n = scores.shape
    most = 0 if c.optional(2) is None else max(int(c.value(2).reshape(-1)[0]), 0)
    steps = min(most, n)
    if not steps * batches * classes:
        return c.constant(np.zeros((0, 3), np.int64))
    if steps > STEP_LIMIT:
        raise c.refuse(f"{steps} boxes of a class are asked for; at most {STEP_LIMIT} are supported")
    limit = threshold(c, 3, 0.0)
    eligible: Tensor = c.map(scores.shape, lambda *i: above(c, scores[i]))
    left = c.builder.tensor(BOOL, scores.shape)
    body = Body(c.builder.fresh("step"), steps)
    outer, c.builder.nodes = c.builder.nodes, body.nodes
    try:
        found = best_left(c, scores, left)
        centered = bool(c.attr("center_point_box", 0))

        def stays(b: Index, k: Index, j: Index) -> Expr:
            chosen = ix.value_index(found[b, k], 0, n - 1)
            apart = ~overlaps(corners(boxes, b, j, centered), corners(boxes, b, chosen, centered), limit)
            return left[b, k, j] & ~found[b, k].equals(ex.index_value(j, I32)) & apart

        following = c.map(scores.shape, stays)
    finally:
        c.builder.nodes = outer
    _, (selected,) = emit_scan(c, body, [(eligible, left, following)], [(found, 0, body.position)], None)
    return compacted(c, selected, (batches, classes, steps), n)


def above(c: Context, score: Expr) -> Expr:
    if c.optional(4) is None:
        return ex.TRUE
    return score > threshold(c, 4, 0.0)


def best_left(c: Context, scores: Tensor, left: Tensor) -> Tensor:
    """Position of the best score that is left, the first of equal ones; the number of boxes where none is."""
    n = scores.shape[2]
    av, bv = ex.leaf("a", scores.dtype, 0), ex.leaf("b", scores.dtype, 0)
    ai, bi = ex.leaf("a", I32, 1), ex.leaf("b", I32, 1)
    take = (bi < n) & (~(ai < n) | (bv > av) | (~(av > bv) & (bi < ai)))
    monoid = Monoid((ex.zero(scores.dtype), ex.const(n, I32)), (ex.select(take, bv, av), ex.select(take, bi, ai)))

    def candidate(i: tuple[Index, ...], r: tuple[Index, ...]) -> tuple[Expr, ...]:
        place = ex.select(left[(*i, *r)], ex.index_value(r[0], I32), ex.const(n, I32))
        return scores[(*i, *r)], place

    return c.reduce(scores.shape[:2], (n,), monoid, candidate)[1]


def compacted(c: Context, selected: Tensor, shape: Sequence[int], n: int) -> Tensor:
    """The selections of all batches and classes one after the other."""
    batches, classes, steps = shape
    total = batches * classes * steps

    def box(j: Index) -> tuple[Index, Index, Expr]:
        b, k, t = ix.unflatten(j, (batches, classes, steps))
        return b, k, selected[t, b, k]

    flags = c.map((total,), lambda j: box(j)[2] < n)
    where, count = positions_of(c, flags)

    def column(k: int) -> Tensor:
        def value(p: Index, _: Index) -> Expr:
            b, group, chosen = box(ix.value_index(where[p], 0, total - 1))
            return (ex.index_value(b, I64), ex.index_value(group, I64), ex.cast(chosen, I64))[k]

        return c.map((total, 1), value)

    return c.builder.measured(c.builder.concat([column(k) for k in range(3)], 1), count, 0)
