"""Selection by value: sizes that depend on data, and the best or the distinct elements.

Nothing here sorts. An element's place is how many others come before it, which is a reduction, so results are the
same on every device. Results sized by data have the largest size that is possible, and a length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt, prod

from onnx2wgsl.ir import builder as b
from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor
from onnx2wgsl.ir.dtypes import BOOL, I32, I64
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.program import Monoid, Opaque

from .gather import checked_work
from .registry import Context, lower
from .views import reshape_to

# Up to this many best elements are selected one after the other, where an axis is too long to rank it whole.
SELECT_LIMIT = 16
# An axis up to this size is ranked by comparing all pairs.
RANK_SIZE = 256
# An axis longer than this is sorted, where more than a few elements of it are wanted.
SORT_SIZE = 2048


def one_if(condition: Expr) -> Expr:
    return ex.select(condition, ex.const(1, I32), ex.const(0, I32))


def count_true(c: Context, flags: Tensor) -> Tensor:
    """How many of a vector of flags hold, as an i32 scalar."""
    return c.reduce((), flags.shape, b.sum_of(I32), lambda i, r: one_if(flags[r]))[0]  # noqa: ARG005


def running_count(c: Context, flags: Tensor) -> Tensor:
    """`count[j]`: how many flags hold up to and including j; blocks of √n keep it to n·√n additions."""
    n = flags.shape[0]
    width = isqrt(n - 1) + 1
    blocks = -(-n // width)

    def flag(j: Index) -> Expr:
        return one_if(flags[j]) if j.hi < n else ex.select(ex.in_range(j, 0, n), one_if(flags[j]), ex.const(0, I32))

    totals = c.reduce((blocks,), (width,), b.sum_of(I32), lambda i, r: flag(i[0] * width + r[0]))[0]

    def earlier(i: Sequence[Index], r: Sequence[Index]) -> Expr:
        return ex.select(before(r[0], i[0]), totals[r[0]], ex.const(0, I32))

    base = c.reduce((blocks,), (blocks,), b.sum_of(I32), earlier)[0]

    def within(i: Sequence[Index], r: Sequence[Index]) -> Expr:
        start = i[0] // width * width
        return ex.select(~before(i[0], start + r[0]), flag(start + r[0]), ex.const(0, I32))

    return c.reduce((n,), (width,), b.sum_of(I32), within, lambda a, j: a + base[j // width])[0]


def before(a: Index, other: Index) -> Expr:
    return ex.index_value(a, I32) < ex.index_value(other, I32)


def positions_of(c: Context, flags: Tensor) -> tuple[Tensor, Tensor]:
    """The positions of the flags that hold, in order and padded to all of them, and their number.

    The p-th position is the number of j whose running count is at most p, found block by block.
    """
    n = flags.shape[0]
    checked_work(c, n, 3 * (isqrt(n) + 1))
    counts = running_count(c, flags)
    width = isqrt(n - 1) + 1
    blocks = -(-n // width)
    total = count_true(c, flags)

    def passed(p: Index, j: Index) -> Expr:
        return one_if(ex.op("le", counts[j], ex.index_value(p, I32)))

    def whole(i: Sequence[Index], r: Sequence[Index]) -> Expr:
        last = r[0] * width + (width - 1)
        inside = ex.in_range(last, 0, n)
        return passed(i[0], last) if inside == ex.TRUE else ex.select(inside, passed(i[0], last), ex.const(0, I32))

    block = c.reduce((n,), (blocks,), b.sum_of(I32), whole)[0]

    def rest(i: Sequence[Index], r: Sequence[Index]) -> Expr:
        j = ix.value_index(block[i[0]], 0, blocks - 1) * width + r[0]
        inside = ex.in_range(j, 0, n)
        return ex.select(inside, passed(i[0], j), ex.const(0, I32))

    def finish(a: Expr, p: Index) -> Expr:
        return ex.op("min", block[p] * width + a, ex.const(n - 1, I32))

    return c.reduce((n,), (width,), b.sum_of(I32), rest, finish)[0], total


@lower("NonZero")
def non_zero(c: Context) -> Tensor:
    """Coordinates `[rank, count]` of the elements that are not zero, in row-major order."""
    x = c[0]
    shape = x.shape if x.rank else (1,)
    n = x.type.count
    if not n:
        return c.constant(_empty((len(shape), 0)))
    flat = reshape_to(c, x, (n,))
    flags = flat if x.dtype is BOOL else c.map((n,), lambda j: ~flat[j].equals(ex.zero(x.dtype)))
    where, total = positions_of(c, flags)
    parts = []
    for k in range(len(shape)):

        def coordinate(_: Index, p: Index, k: int = k) -> Expr:
            return ex.index_value(ix.unflatten(ix.value_index(where[p], 0, n - 1), shape)[k], I64)

        parts.append(c.map((1, n), coordinate))
    result = parts[0] if len(parts) == 1 else c.builder.concat(parts, 0)
    return c.builder.measured(result, total, 1)


def _empty(shape: tuple[int, ...]) -> object:
    import numpy as np

    return np.zeros(shape, np.int64)


@lower("Compress")
def compress(c: Context) -> Tensor:
    """Slices along an axis (default: elements of the flattened input) where the condition holds."""
    x, condition = c[0], c[1]
    if c.attr("axis") is None:
        x, axis = reshape_to(c, x, (x.type.count,)), 0
    else:
        axis = c.axis(c.attr("axis"), x.rank)
    n = min(condition.shape[0], x.shape[axis])
    shape = (*x.shape[:axis], n, *x.shape[axis + 1 :])
    if not n:
        return c.builder.tensor(x.dtype, shape)
    known = condition.value
    if known is not None:
        kept = [k for k in range(n) if known[k]]
        table = c.constant(_positions(kept))
        size = x.shape[axis]
        shape = (*shape[:axis], len(kept), *shape[axis + 1 :])
        if not kept:
            return c.builder.tensor(x.dtype, shape)
        return c.map(shape, lambda *i: x[(*i[:axis], ix.value_index(table[i[axis]], 0, size - 1), *i[axis + 1 :])])
    flags = condition if condition.shape[0] == n else c.map((n,), lambda j: condition[j])
    where, total = positions_of(c, flags)
    result = c.map(shape, lambda *i: x[(*i[:axis], ix.value_index(where[i[axis]], 0, n - 1), *i[axis + 1 :])])
    return c.builder.measured(result, total, axis)


def _positions(kept: list[int]) -> object:
    import numpy as np

    return np.asarray(kept, np.int32)


@lower("TopK")
def top_k_1(c: Context) -> tuple[Tensor, ...]:
    return best(c, c[0], c.attr("k"), True)


@lower("TopK", since=10)
def top_k(c: Context) -> tuple[Tensor, ...]:
    return best(c, c[0], c.ints(1)[0], bool(c.attr("largest", 1)))


def best(c: Context, x: Tensor, k: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The k best elements along an axis, best first, ties by position, and their positions."""
    axis = c.axis(c.attr("axis", -1), x.rank)
    n = x.shape[axis]
    if not 0 <= k <= n:
        raise c.refuse(f"the {k} best of {n} elements are asked for")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    if not prod(shape):
        return c.builder.tensor(x.dtype, shape), c.builder.tensor(I64, shape)
    if k == n == 1:
        return x, c.map(shape, lambda *_: ex.const(0, I64))
    if n > SORT_SIZE and k > SELECT_LIMIT:
        places = sorted_places(c, x, axis, k, largest)
    elif n > RANK_SIZE and k <= SELECT_LIMIT:
        places = selected(c, x, axis, k, largest)
    else:
        places = ranked(c, x, axis, k, largest)

    def position(i: Sequence[Index]) -> Index:
        return ix.value_index(places[tuple(i)], 0, n - 1)

    values = c.map(shape, lambda *i: x[(*i[:axis], position(i), *i[axis + 1 :])])
    return values, c.map(shape, lambda *i: ex.index_value(position(i), I64))


def precedes(a: Expr, other: Expr, largest: bool) -> Expr:
    """Whether a comes strictly before the other by value; NaN counts as the largest value."""
    better = a > other if largest else a < other
    if not a.dtype.is_float:
        return better
    first, second = (a, other) if largest else (other, a)
    return better | (ex.op("isnan", first) & ~ex.op("isnan", second))


def sorted_places(c: Context, x: Tensor, axis: int, k: int, largest: bool) -> Tensor:
    """Positions of the k best: the rows along the axis are sorted by a network."""
    n, others = x.shape[axis], (*x.shape[:axis], *x.shape[axis + 1 :])
    rows = prod(others)

    def element(row: Index, j: Index) -> Expr:
        i = ix.unflatten(row, others)
        return x[(*i[:axis], j, *i[axis:])]

    lines = c.map((rows, n), element)
    places = c.builder.tensor(I32, (rows, 1 << (n - 1).bit_length()))
    a, other = ex.leaf("a", x.dtype), ex.leaf("b", x.dtype)
    order = (("before", precedes(a, other, largest)),)
    c.builder.append(Opaque("sort", (), order, (lines.name,), (places.name,), c.builder.provenance))

    def place(*i: Index) -> Expr:
        return places[ix.flatten((*i[:axis], *i[axis + 1 :]), others), i[axis]]

    return c.map((*others[:axis], k, *others[axis:]), place)


def ranked(c: Context, x: Tensor, axis: int, k: int, largest: bool) -> Tensor:
    """Positions of the k best: an element's rank is the number of elements that precede it."""
    n = x.shape[axis]
    checked_work(c, x.type.count, n)

    def other(i: Sequence[Index], j: Index) -> Expr:
        return x[(*i[:axis], j, *i[axis + 1 :])]

    def ahead(i: Sequence[Index], r: Sequence[Index]) -> Expr:
        mine, theirs = x[tuple(i)], other(i, r[0])
        tie = before(r[0], i[axis]) & ~precedes(mine, theirs, largest)
        return one_if(precedes(theirs, mine, largest) | tie)

    ranks = c.reduce(x.shape, (n,), b.sum_of(I32), ahead)[0]

    def found(i: Sequence[Index], r: Sequence[Index]) -> Expr:
        mine = other_rank(i, r[0]).equals(ex.index_value(i[axis], I32))
        return ex.select(mine, ex.index_value(r[0], I32), ex.const(0, I32))

    def other_rank(i: Sequence[Index], j: Index) -> Expr:
        return ranks[(*i[:axis], j, *i[axis + 1 :])]

    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return c.reduce(shape, (n,), b.max_of(I32), found)[0]


def selected(c: Context, x: Tensor, axis: int, k: int, largest: bool) -> Tensor:
    """Positions of the k best, each found among the elements that come after the one before it."""
    n = x.shape[axis]
    rest = (*x.shape[:axis], *x.shape[axis + 1 :])

    def at(i: Sequence[Index], j: Index) -> Expr:
        return x[(*i[:axis], j, *i[axis:])]

    av, bv = ex.leaf("a", x.dtype, 0), ex.leaf("b", x.dtype, 0)
    ai, bi = ex.leaf("a", I32, 1), ex.leaf("b", I32, 1)
    tie = ~precedes(av, bv, largest) & (bi < ai)
    take = (bi < n) & (~(ai < n) | precedes(bv, av, largest) | tie)
    monoid = Monoid(
        (ex.zero(x.dtype), ex.const(n, I32)),
        (ex.select(take, bv, av), ex.select(take, bi, ai)),
    )
    parts: list[Tensor] = []
    for _ in range(k):
        last = parts[-1] if parts else None

        def candidate(i: tuple[Index, ...], r: tuple[Index, ...], last: Tensor | None = last) -> tuple[Expr, ...]:
            mine, here = at(i, r[0]), ex.index_value(r[0], I32)
            if last is None:
                return mine, here
            place = last[(*i[:axis], ix.constant(0), *i[axis:])]
            bound = at(i, ix.value_index(place, 0, n - 1))
            later = (place < here) & ~precedes(mine, bound, largest)
            return mine, ex.select(precedes(bound, mine, largest) | later, here, ex.const(n, I32))

        found = c.reduce(rest, (n,), monoid, candidate)[1]
        shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        parts.append(c.map(shape, lambda *i, found=found: found[(*i[:axis], *i[axis + 1 :])]))
    return parts[0] if k == 1 else c.builder.concat(parts, axis)


@lower("Unique")
def unique(c: Context) -> tuple[Tensor, ...]:
    """Distinct elements, or distinct slices along `axis`; with their first positions, their places, their counts."""
    x = c[0]
    if c.attr("axis") is None:
        x, axis = reshape_to(c, x, (x.type.count,)), 0
    else:
        axis = c.axis(c.attr("axis"), x.rank)
    n, rest = x.shape[axis], (*x.shape[:axis], *x.shape[axis + 1 :])
    if not n or not prod(rest):
        raise c.refuse("the distinct slices of an empty tensor are not defined")
    checked_work(c, n * n, prod(rest))

    def at(j: Index, q: Sequence[Index]) -> Expr:
        return x[(*q[:axis], j, *q[axis:])]

    order = comparison(c, n, rest, at)
    first = c.reduce(
        (n,), (n,), b.any_of(), lambda i, r: before(r[0], i[0]) & order[r[0], i[0]].equals(0), lambda a, _: ~a
    )[0]
    total = count_true(c, first)
    if c.attr("sorted", 1):
        places = c.reduce((n,), (n,), b.sum_of(I32), lambda i, r: one_if(first[r[0]] & (order[r[0], i[0]] < 0)))[0]
    else:
        same = c.reduce(
            (n,),
            (n,),
            b.min_of(I32),
            lambda i, r: ex.select(order[r[0], i[0]].equals(0), ex.index_value(r[0], I32), ex.const(n, I32)),
        )[0]
        places = c.reduce(
            (n,), (n,), b.sum_of(I32), lambda i, r: one_if(first[r[0]] & (ex.index_value(r[0], I32) < same[i[0]]))
        )[0]

    def here(i: Sequence[Index], r: Sequence[Index]) -> Expr:
        return places[r[0]].equals(ex.index_value(i[0], I32))

    sources = c.reduce(
        (n,),
        (n,),
        b.min_of(I32),
        lambda i, r: ex.select(here(i, r), ex.index_value(r[0], I32), ex.const(n - 1, I32)),
    )[0]
    counts = c.reduce((n,), (n,), b.sum_of(I64), lambda i, r: ex.cast(one_if(here(i, r)), I64))[0]
    values = c.map(x.shape, lambda *i: at(ix.value_index(sources[i[axis]], 0, n - 1), (*i[:axis], *i[axis + 1 :])))
    inverse = c.map((n,), lambda j: ex.cast(places[j], I64))
    firsts = c.map((n,), lambda j: ex.cast(sources[j], I64))
    measured = c.builder.measured
    return measured(values, total, axis), measured(firsts, total, 0), inverse, measured(counts, total, 0)


def comparison(c: Context, n: int, rest: Sequence[int], at: Callable[[Index, Sequence[Index]], Expr]) -> Tensor:
    """`order[j, k]`: -1, 0 or 1 as slice j comes before, equals or comes after slice k."""
    minus, none, plus = ex.const(-1, I32), ex.const(0, I32), ex.const(1, I32)

    def sign(a: Expr, other: Expr) -> Expr:
        if a.dtype is BOOL:
            return ex.select(~(a ^ other), none, ex.select(other, minus, plus))
        return ex.select(precedes(a, other, False), minus, ex.select(precedes(other, a, False), plus, none))

    if not rest:
        return c.map((n, n), lambda j, k: sign(at(j, ()), at(k, ())))
    size = prod(rest)
    ap, bp = ex.leaf("a", I32, 0), ex.leaf("b", I32, 0)
    monoid = Monoid(
        (ex.const(size, I32), none),
        (ex.op("min", ap, bp), ex.select(bp < ap, ex.leaf("b", I32, 1), ex.leaf("a", I32, 1))),
    )

    def body(i: tuple[Index, ...], r: tuple[Index, ...]) -> tuple[Expr, ...]:
        found = sign(at(i[0], r), at(i[1], r))
        place = ex.index_value(ix.flatten(r, rest), I32)
        return ex.select(found.equals(0), ex.const(size, I32), place), found

    return c.reduce((n, n), rest, monoid, body, lambda _, s, *i: s)[0]  # noqa: ARG005
