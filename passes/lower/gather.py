"""Gather and scatter: indices that come from data.

A gather is a load at a `Value` index. A scatter is turned around: each output element reduces over the updates that
may hit it, so that the result does not depend on the order of threads; among several updates the last one wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from onnx2wgsl.ir import builder as b
from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, compute_type
from onnx2wgsl.ir.dtypes import I32, I64, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.program import Monoid

from .registry import Context, lower

# Outputs times updates per output that a scatter or a ranking may cost.
WORK_LIMIT = 1 << 32
# Entries of a compile-time table that inverts the constant indices of a scatter.
TABLE_LIMIT = 1 << 20


def wrapped(c: Context, indices: Tensor, where: Sequence[Index], size: int) -> Index:
    """The index along an axis that `indices[where]` names; negative ones count from the end."""
    if size == 0:
        raise c.refuse("an empty axis has no elements to index")
    known = indices.value
    lo, hi = (int(known.min()), int(known.max())) if known is not None and known.size else (-size, size - 1)
    if lo < -size or hi >= size:
        raise c.refuse(f"indices from {lo} to {hi} lie outside of an axis of size {size}")
    value = ex.assume(indices[tuple(where)], lo, hi)
    if lo < 0:
        value = ex.select(value < 0, value + size, value) if hi >= 0 else value + size
    return ix.value_index(value, 0, size - 1)


@lower("Gather")
def gather(c: Context) -> Tensor:
    """`result[a…, q…, b…] = data[a…, indices[q…], b…]`."""
    x, indices = c[0], c[1]
    if not x.rank:
        raise c.refuse(f"{x.type} has no axis to gather along")
    axis, n = c.axis(c.attr("axis", 0), x.rank), indices.rank
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if not prod(shape):
        return c.builder.tensor(x.dtype, shape)
    run = progression(indices)

    def value(*i: Index) -> Expr:
        q = i[axis : axis + n]
        if run is not None:
            first, step, along = run
            first += x.shape[axis] if first < 0 else 0
            position = q[along] * step + first if n else ix.constant(first)
        else:
            position = wrapped(c, indices, q, x.shape[axis])
        return x[(*i[:axis], position, *i[axis + n :])]

    if run is not None:
        last = run[0] + run[1] * (indices.type.count - 1)
        if not all(-x.shape[axis] <= v < x.shape[axis] for v in (run[0], last)):
            raise c.refuse(f"indices from {run[0]} to {last} lie outside of axis {axis} of {x.type}")
    return c.map(shape, value)


def progression(indices: Tensor) -> tuple[int, int, int] | None:
    """(first, step, axis) of constant indices that are an arithmetic progression along one axis and of one sign."""
    array = indices.value
    if array is None or not array.size or sum(s != 1 for s in array.shape) > 1:
        return None
    flat = array.reshape(-1).astype(np.int64)
    step = int(flat[1] - flat[0]) if flat.size > 1 else 0
    if not np.array_equal(flat, flat[0] + step * np.arange(flat.size)) or (flat[0] < 0) != (flat[-1] < 0):
        return None
    return int(flat[0]), step, next((k for k, s in enumerate(array.shape) if s != 1), 0)


@lower("GatherElements")
def gather_elements(c: Context) -> Tensor:
    x, indices = c[0], c[1]
    axis = c.axis(c.attr("axis", 0), x.rank)
    if indices.rank != x.rank:
        raise c.refuse(f"{indices.type} and {x.type} differ in rank")
    if not indices.type.count:
        return c.builder.tensor(x.dtype, indices.shape)
    return c.map(indices.shape, lambda *i: x[(*i[:axis], wrapped(c, indices, i, x.shape[axis]), *i[axis + 1 :])])


@lower("GatherND")
def gather_nd(c: Context) -> Tensor:
    """`result[b…, q…, s…] = data[b…, indices[b…, q…, :]…, s…]`."""
    x, indices = c[0], c[1]
    batch, depth = c.attr("batch_dims", 0), indices.shape[-1] if indices.rank else 0
    if not indices.rank or batch >= min(x.rank, indices.rank) or batch + depth > x.rank:
        raise c.refuse(f"{indices.type} with {batch} batch dimensions does not index {x.type}")
    if x.shape[:batch] != indices.shape[:batch]:
        raise c.refuse(f"{indices.type} and {x.type} differ in their {batch} batch dimensions")
    n = indices.rank - 1
    shape = (*indices.shape[:-1], *x.shape[batch + depth :])
    if not prod(shape):
        return c.builder.tensor(x.dtype, shape)

    def value(*i: Index) -> Expr:
        own = [wrapped(c, column(indices, k), (*i[:n], ix.constant(k)), x.shape[batch + k]) for k in range(depth)]
        return x[(*i[:batch], *own, *i[n:])]

    return c.map(shape, value)


class _Column(Tensor):
    """A tensor of index tuples, of which only one component's values matter for bounds."""

    def __init__(self, tensor: Tensor, k: int) -> None:
        super().__init__(tensor.builder, tensor.name)
        self.k = k

    @property
    def value(self) -> np.ndarray[Any, Any] | None:
        array = super().value
        return None if array is None else array[..., self.k]


def column(indices: Tensor, k: int) -> Tensor:
    return _Column(indices, k)


@lower("OneHot")
def one_hot(c: Context) -> Tensor:
    """Indices may be of any numeric type; those outside of [-depth, depth - 1] give a row of off values."""
    indices, depth, values = c[0], c.ints(1)[0], c[2]
    rank = indices.rank + 1
    axis = c.axis(c.attr("axis", -1), rank)
    if depth < 1:
        raise c.refuse(f"depth {depth} is not positive")

    def value(*i: Index) -> Expr:
        given = ex.cast(indices[(*i[:axis], *i[axis + 1 :])], I64)
        position = ex.select(given < 0, given + depth, given)
        return ex.select(position.equals(ex.index_value(i[axis], I64)), values[ix.constant(1)], values[ix.constant(0)])

    return c.map((*indices.shape[:axis], depth, *indices.shape[axis:]), value)


@lower("Trilu")
def trilu(c: Context) -> Tensor:
    """Keeps the elements on and above (`upper`) or below the k-th diagonal."""
    x, upper = c[0], bool(c.attr("upper", 1))
    if x.rank < 2:
        raise c.refuse(f"an input of rank 2 or more is needed, got {x.type}")
    given = c.optional(1)
    bound = max(x.shape[-2:]) + 1

    def value(*i: Index) -> Expr:
        diagonal = i[-1] - i[-2]
        k = ex.const(0, I64) if given is None else given[(0,) * given.rank]
        if k.op == "const":
            k = ex.const(min(max(int(k.attr), -bound), bound), I32)
        offset = ex.index_value(diagonal, k.dtype)
        keep = ex.op("le", k, offset) if upper else ex.op("le", offset, k)
        return ex.select(keep, x[i], ex.zero(x.dtype))

    return c.map(x.shape, value)


def combination(c: Context, dtype: DType) -> Monoid | None:
    """The monoid of the attribute `reduction`, or None where the last update replaces what was there."""
    reduction = c.attr("reduction", "none")
    wide = compute_type(dtype)
    match reduction:
        case "none":
            return None
        case "add":
            return b.sum_of(wide)
        case "mul":
            return b.product_of(wide)
        case "max":
            return b.max_of(dtype)
        case "min":
            return b.min_of(dtype)
    raise c.refuse(f"reduction {reduction} is not known")


def checked_work(c: Context, outputs: int, updates: int) -> None:
    if outputs * updates > WORK_LIMIT:
        raise c.refuse(f"{outputs} outputs times {updates} updates that may hit each exceed the limit of {WORK_LIMIT}")


def join(old: Expr, new: Expr, monoid: Monoid, dtype: DType) -> Expr:
    """Combines the element that was there with the reduced updates."""
    wide = monoid.identity[0].dtype
    return ex.cast(ex.op(monoid.combine[0].op, ex.cast(old, wide), new), dtype)


@lower("Scatter", "ScatterElements")
def scatter_elements(c: Context) -> Tensor:
    """Updates can meet only along `axis`: an output element reduces over that axis of the indices."""
    x, indices, updates = c[0], c[1], c[2]
    axis = c.axis(c.attr("axis", 0), x.rank)
    if indices.shape != updates.shape or indices.rank != x.rank:
        raise c.refuse(f"{indices.type} and {updates.type} do not fit {x.type}")
    if not indices.type.count or not x.type.count:
        return x
    checked_work(c, x.type.count, indices.shape[axis])
    monoid = combination(c, x.dtype)

    def place(i: Sequence[Index], r: Index) -> tuple[Index, ...]:
        return (*i[:axis], r, *i[axis + 1 :])

    def covered(i: Sequence[Index]) -> Expr:
        """Whether the indices extend to this element along the other axes."""
        inside = ex.TRUE
        for k, (v, size) in enumerate(zip(i, indices.shape, strict=True)):
            inside = inside if k == axis else inside & ex.in_range(v, 0, size)
        return inside

    def hit(i: Sequence[Index], r: Index) -> Expr:
        target = wrapped(c, indices, place(i, r), x.shape[axis])
        return covered(i) & ex.index_value(target, I32).equals(ex.index_value(i[axis], I32))

    if monoid is None:
        return c.reduce(
            x.shape,
            (indices.shape[axis],),
            b.max_of(I32),
            lambda i, r: ex.select(hit(i, r[0]), ex.index_value(r[0], I32), ex.const(-1, I32)),
            lambda last, *i: ex.select(
                ex.const(0, I32) <= last,
                updates[place(i, ix.value_index(last, 0, indices.shape[axis] - 1))],
                x[i],
            ),
        )[0]
    wide = monoid.identity[0].dtype
    return c.reduce(
        x.shape,
        (indices.shape[axis],),
        monoid,
        lambda i, r: ex.select(hit(i, r[0]), ex.cast(updates[place(i, r[0])], wide), monoid.identity[0]),
        lambda a, *i: join(x[i], a, monoid, x.dtype),
    )[0]


@lower("ScatterND")
def scatter_nd(c: Context) -> Tensor:
    """`result[indices[q…]…, s…]` takes `updates[q…, s…]`; constant indices are inverted at compile time."""
    x, indices, updates = c[0], c[1], c[2]
    depth = indices.shape[-1] if indices.rank else 0
    n = indices.rank - 1
    if not indices.rank or depth > x.rank or updates.shape != (*indices.shape[:-1], *x.shape[depth:]):
        raise c.refuse(f"{indices.type} and {updates.type} do not fit {x.type}")
    over = indices.shape[:-1]
    if not prod(over) or not x.type.count:
        return x
    monoid = combination(c, x.dtype)
    inverse = inverted(c, indices, x.shape[:depth]) if monoid is None else None
    if inverse is not None:
        return scatter_by_table(c, x, updates, inverse, over)
    checked_work(c, x.type.count, prod(over))

    def hit(i: Sequence[Index], q: Sequence[Index]) -> Expr:
        same = ex.TRUE
        for k in range(depth):
            target = wrapped(c, column(indices, k), (*q, ix.constant(k)), x.shape[k])
            same = same & ex.index_value(target, I32).equals(ex.index_value(i[k], I32))
        return same

    if monoid is None:
        last_wins = Monoid(tuple(ex.const(-1, I32) for _ in range(max(n, 1))), _lexicographic_max(max(n, 1)))

        def body(i: tuple[Index, ...], q: tuple[Index, ...]) -> tuple[Expr, ...]:
            found = hit(i, q)
            own = q or (ix.constant(0),)
            return tuple(ex.select(found, ex.index_value(v, I32), ex.const(-1, I32)) for v in own)

        def finish(*args: Any) -> Expr:
            position, i = args[: max(n, 1)], args[max(n, 1) :]
            where = [ix.value_index(p, 0, s - 1) for p, s in zip(position, over, strict=False)]
            return ex.select(ex.const(0, I32) <= position[0], updates[(*where, *i[depth:])], x[i])

        return c.reduce(x.shape, over, last_wins, body, finish)[0]
    wide = monoid.identity[0].dtype
    return c.reduce(
        x.shape,
        over,
        monoid,
        lambda i, q: ex.select(hit(i, q), ex.cast(updates[(*q, *i[depth:])], wide), monoid.identity[0]),
        lambda a, *i: join(x[i], a, monoid, x.dtype),
    )[0]


def _lexicographic_max(n: int) -> tuple[Expr, ...]:
    """Combines two tuples of positions to the later one in row-major order."""
    left, right = [ex.leaf("a", I32, k) for k in range(n)], [ex.leaf("b", I32, k) for k in range(n)]
    later = ex.FALSE
    for a, r in zip(reversed(left), reversed(right), strict=True):
        later = (a < r) | (a.equals(r) & later)
    return tuple(ex.select(later, r, a) for a, r in zip(left, right, strict=True))


def inverted(c: Context, indices: Tensor, shape: Sequence[int]) -> Tensor | None:
    """A table [q axes, shape…] of the last update that hits each position, -1 where there is none."""
    array = indices.value
    over = indices.shape[:-1]
    if array is None or prod(shape) * max(len(over), 1) > TABLE_LIMIT or array.size > TABLE_LIMIT:
        return None
    tuples = array.reshape(-1, array.shape[-1]).astype(np.int64)
    sizes = np.asarray(shape, np.int64)
    if ((tuples < -sizes) | (tuples >= sizes)).any():
        raise c.refuse(f"an index tuple lies outside of {list(shape)}")
    tuples = np.where(tuples < 0, tuples + sizes, tuples)
    table = np.full((max(len(over), 1), *shape), -1, np.int32)
    flat = np.full(prod(shape), -1, np.int64)
    where: Any = np.ravel_multi_index(tuple(tuples.T), tuple(shape)) if len(shape) else np.zeros(len(tuples), np.int64)
    for number, target in enumerate(where.tolist()):
        flat[target] = number
    found = np.flatnonzero(flat >= 0)
    parts = np.unravel_index(flat[found], over) if over else (flat[found],)
    for k, part in enumerate(parts):
        table[k].reshape(-1)[found] = part
    return c.constant(table)


def scatter_by_table(c: Context, x: Tensor, updates: Tensor, table: Tensor, over: Sequence[int]) -> Tensor:
    depth = table.rank - 1

    def value(*i: Index) -> Expr:
        own = [table[(ix.constant(k), *i[:depth])] for k in range(table.shape[0])]
        where = [ix.value_index(ex.assume(v, -1, s - 1), 0, s - 1) for v, s in zip(own, over, strict=False)]
        return ex.select(ex.const(0, I32) <= own[0], updates[(*where, *i[depth:])], x[i])

    return c.map(x.shape, value)


@lower("TensorScatter")
def tensor_scatter(c: Context) -> Tensor:
    """Writes `update` into a cache at a position per batch; the position wraps around in circular mode."""
    x, update, positions = c[0], c[1], c.optional(2)
    axis = c.axis(c.attr("axis", -2), x.rank)
    size, count = x.shape[axis], update.shape[axis]
    circular = c.attr("mode", "linear") == "circular"

    def value(*i: Index) -> Expr:
        start = ex.const(0, I64) if positions is None else positions[i[0]]
        if not circular:
            start = ex.assume(start, 0, size - count)
        distance = ex.index_value(i[axis], start.dtype) - start
        if circular:
            distance = ex.op("mod", distance, ex.const(size, start.dtype))
        hit = ex.op("le", ex.const(0, start.dtype), distance) & (distance < count)
        where = ix.value_index(distance, 0, max(count - 1, 0))
        return ex.select(hit, update[(*i[:axis], where, *i[axis + 1 :])], x[i])

    return x if not count else c.map(x.shape, value)
