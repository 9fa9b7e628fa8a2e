"""Linear algebra besides matrix products: Einsum as contractions of pairs, Det by elimination."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, accumulator, arg_best, compute_type, sum_of
from onnx2wgsl.ir.dtypes import I32, DType
from onnx2wgsl.ir.expr import Expr

from .registry import Context, lower

# Einsum. Each operand is a tensor with one label per axis. Axes that occur twice in an operand (a diagonal) are read at
# one index, axes of size 1 that broadcast are read at 0; so a label occurs once, with one size. A label that only one
# operand has, and that the result lacks, is summed first. What is left are products of pairs, cheapest result first, in
# which every summed label occurs in both operands.


@dataclass(frozen=True)
class Operand:
    """A tensor and a label per axis; an axis without a label has size 1."""

    tensor: Tensor
    labels: tuple[str, ...]
    sizes: dict[str, int]

    @property
    def free(self) -> tuple[str, ...]:
        """The labels, each once."""
        return tuple(dict.fromkeys(x for x in self.labels if x))

    def at(self, where: dict[str, ix.Index], dtype: DType) -> Expr:
        return ex.cast(self.tensor[tuple(where[x] if x else ix.constant(0) for x in self.labels)], dtype)


def parse(c: Context) -> tuple[list[Operand], list[str]]:
    """The operands, and the labels of the result."""
    equation = str(c.attr("equation")).replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    tensors = [c[k] for k in range(len(c.inputs))]
    if len(terms) != len(tensors):
        raise c.refuse(f"Einsum {equation!r} has {len(terms)} terms, and {len(tensors)} inputs")
    labels = [term_labels(c, term, t.rank, equation) for term, t in zip(terms, tensors, strict=True)]
    sizes: dict[str, int] = {}
    for names, t in zip(labels, tensors, strict=True):
        for name, size in zip(names, t.shape, strict=True):
            known = sizes.setdefault(name, size)
            if size != known and 1 not in (size, known):
                raise c.refuse(f"Einsum {equation!r}: {name!r} is both {known} and {size}")
            sizes[name] = size if known == 1 else known
    # A size of 1 that meets another one broadcasts; it carries no label.
    operands = [
        Operand(t, tuple(x if n == sizes[x] else "" for x, n in zip(names, t.shape, strict=True)), sizes)
        for names, t in zip(labels, tensors, strict=True)
    ]
    dots = sorted((x for x in sizes if x.startswith(".")), key=lambda x: -int(x[1:]))
    if arrow:
        before, ellipsis, after = right.partition("...")
        result = [*before, *(dots if ellipsis else []), *after]
    else:
        counts = Counter(x for names in labels for x in names)
        result = [*dots, *sorted(x for x, n in counts.items() if n == 1 and not x.startswith("."))]
    if any(x not in sizes for x in result) or len(set(result)) != len(result):
        raise c.refuse(f"Einsum {equation!r}: the result has labels that no operand has, or one twice")
    return operands, result


def term_labels(c: Context, term: str, rank: int, equation: str) -> list[str]:
    """One label per axis; those under the ellipsis count from the right: `.3 .2 .1`."""
    before, ellipsis, after = term.partition("...")
    covered = rank - len(before) - len(after)
    if covered < 0 or (covered and not ellipsis) or (before + after and not (before + after).isalpha()):
        raise c.refuse(f"Einsum {equation!r}: {term!r} does not fit an input of rank {rank}")
    return [*before, *(f".{k}" for k in range(covered, 0, -1)), *after]


def summed_alone(c: Context, operand: Operand, kept: set[str], dtype: DType) -> Operand:
    """The operand without the labels that nothing else needs."""
    over = [x for x in operand.free if x not in kept]
    if not over:
        return operand
    labels = [x for x in operand.free if x in kept]
    sizes = operand.sizes

    def body(i: Sequence[ix.Index], r: Sequence[ix.Index]) -> Expr:
        return operand.at(dict(zip([*labels, *over], [*i, *r], strict=True)), dtype)

    tensor = c.reduce([sizes[x] for x in labels], [sizes[x] for x in over], sum_of(dtype), body)[0]
    return Operand(tensor, tuple(labels), sizes)


def product(c: Context, a: Operand, b: Operand, labels: list[str], result: DType) -> Operand:
    """`Σ a · b` over the labels that are not in `labels`; each of those is in both."""
    over = [x for x in a.free if x not in labels]
    operand = a.tensor.dtype if a.tensor.dtype is b.tensor.dtype else accumulator(a.tensor.dtype)
    dtype = operand if operand.is_integer else accumulator(operand)

    def operands(i: Sequence[ix.Index], r: Sequence[ix.Index]) -> tuple[Expr, Expr]:
        where = dict(zip([*labels, *over], [*i, *r], strict=True))
        return a.at(where, operand), b.at(where, operand)

    tensor = c.contract(
        [a.sizes[x] for x in labels], [a.sizes[x] for x in over], operands, lambda acc, *_: ex.cast(acc, result), dtype
    )
    return Operand(tensor, tuple(labels), a.sizes)


@lower("Einsum", since=12)
def einsum(c: Context) -> Tensor:
    operands, result = parse(c)
    dtype = operands[0].tensor.dtype
    if any(o.tensor.dtype is not dtype for o in operands):
        raise c.refuse("Einsum needs operands of one type")
    wide = dtype if dtype.is_integer else accumulator(dtype)
    while len(operands) > 1:
        operands = [summed_alone(c, o, needed(operands, k, result), wide) for k, o in enumerate(operands)]
        k, j = min(combinations(range(len(operands)), 2), key=lambda p: result_size(operands, p, result))
        rest = [o for n, o in enumerate(operands) if n not in (k, j)]
        wanted = set(result).union(*(o.free for o in rest))
        both = dict.fromkeys((*operands[k].free, *operands[j].free))
        whole = set(both) & wanted == set(result) and not rest
        labels = result if whole else [x for x in both if x in wanted]
        operands = [*rest, product(c, operands[k], operands[j], labels, wide if rest else dtype)]
    return finished(c, summed_alone(c, operands[0], set(result), wide), result, dtype)


def needed(operands: Sequence[Operand], own: int, result: Sequence[str]) -> set[str]:
    """The labels that the result or another operand has."""
    return set(result).union(*(o.free for k, o in enumerate(operands) if k != own))


def result_size(operands: Sequence[Operand], pair: tuple[int, int], result: Sequence[str]) -> int:
    others = set(result).union(*(o.free for k, o in enumerate(operands) if k not in pair))
    size = 1
    for x in {*operands[pair[0]].free, *operands[pair[1]].free} & others:
        size *= operands[0].sizes[x]
    return size


def finished(c: Context, operand: Operand, result: Sequence[str], dtype: DType) -> Tensor:
    """The last operand in the order and type of the result."""
    if list(operand.labels) == list(result) and operand.tensor.dtype is dtype:
        return operand.tensor
    sizes = operand.sizes
    return c.map([sizes[x] for x in result], lambda *i: operand.at(dict(zip(result, i, strict=True)), dtype))


# Determinants

CLOSED = 3
LARGEST = 64


@lower("Det", since=11)
def det(c: Context) -> Tensor:
    """The determinant of each matrix: written out up to 3×3, else by elimination with row exchange."""
    x = c[0]
    if x.rank < 2 or x.shape[-1] != x.shape[-2]:
        raise c.refuse(f"Det needs square matrices, got {x.type}")
    size, compute = x.shape[-1], compute_type(x.dtype)
    if size > LARGEST:
        raise c.refuse(f"Det of matrices of {size}×{size}: at most {LARGEST} rows are eliminated")
    if size <= CLOSED:
        return expanded_tensor(c, x, None, x.dtype)
    rest = c.map(x.shape, lambda *i: ex.cast(x[i], compute))
    factor: Tensor | None = None
    while rest.shape[-1] > CLOSED:
        rest, factor = eliminated(c, rest, factor)
    return expanded_tensor(c, rest, factor, x.dtype)


def expanded_tensor(c: Context, x: Tensor, factor: Tensor | None, dtype: DType) -> Tensor:
    """The determinant of each small matrix, times a factor."""
    size, compute = x.shape[-1], compute_type(x.dtype)

    def value(*i: Any) -> Expr:
        rows = [[ex.cast(x[(*i, r, k)], compute) for k in range(size)] for r in range(size)]
        result = expanded(rows, compute)
        return ex.cast(result if factor is None else factor[i] * result, dtype)

    return c.map(x.shape[:-2], value)


def expanded(m: list[list[Expr]], dtype: DType) -> Expr:
    """The determinant by expansion along the first row."""
    if not m:
        return ex.one(dtype)
    if len(m) == 1:
        return m[0][0]
    total: Expr | None = None
    for k, head in enumerate(m[0]):
        minor = [[v for j, v in enumerate(row) if j != k] for row in m[1:]]
        part = head * expanded(minor, dtype)
        total = part if total is None else total - part if k % 2 else total + part
    assert total is not None
    return total


def eliminated(c: Context, m: Tensor, factor: Tensor | None) -> tuple[Tensor, Tensor]:
    """Brings the row with the largest first element up, subtracts it from the others, and drops it and the column.

    Returns what is left, and the product of the pivots so far with the sign of the exchanges.
    """
    n, batch = m.shape[-1], m.shape[:-2]

    def first(i: Any, r: Any) -> tuple[Expr, Expr]:
        return ex.op("abs", m[(*i, r[0], 0)]), ex.index_value(r[0], I32)

    found = c.reduce(batch, (n,), arg_best(m.dtype, True, size=n), first, lambda _, position, *__: position)[0]

    def chosen(i: Any) -> ix.Index:
        return ix.value_index(ex.assume(found[i], 0, n - 1), 0, n - 1)

    def pivot(*i: Any) -> Expr:
        value = m[(*i, chosen(i), 0)]
        signed = ex.select(found[i].equals(0), value, -value)
        return signed if factor is None else factor[i] * signed

    def rest(*i: Any) -> Expr:
        outer, row, column = i[:-2], i[-2] + 1, i[-1] + 1
        up = chosen(outer)
        # The exchange puts row 0 where the pivot's row was.
        exchanged = found[outer].equals(ex.index_value(row, I32))

        def at(k: ix.IndexLike) -> Expr:
            return ex.select(exchanged, m[(*outer, 0, k)], m[(*outer, row, k)])

        head = m[(*outer, up, 0)]
        ratio = ex.select(head.equals(0), ex.zero(m.dtype), at(0) / head)
        return at(column) - ratio * m[(*outer, up, column)]

    return c.map((*batch, n - 1, n - 1), rest), c.map(batch, pivot)
