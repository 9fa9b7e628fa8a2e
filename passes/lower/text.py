"""TfIdfVectorizer over integers: counts of n-grams as reductions over start positions, one per length and skip.

The n-grams of one length n are the rows of a constant table; row g is found at position p with skip s where
`x[p + k (s + 1)] = table[g, k]` for all k. The output's element j is the count of the n-gram whose index is j.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, sum_of
from onnx2wgsl.ir.dtypes import F32, I32, I64
from onnx2wgsl.ir.expr import Expr

from .registry import Context, lower

Array = np.ndarray[Any, Any]


def grams(c: Context) -> list[Array]:
    """The pool as one table per length, from 1 on."""
    if c.attr("pool_strings"):
        raise c.refuse("n-grams of strings have no tensor on the GPU")
    pool, starts = [int(v) for v in c.attr("pool_int64s", [])], [int(v) for v in c.attr("ngram_counts")]
    parts = list(enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1))
    if any((end - start) % n for n, (start, end) in parts):
        raise c.refuse("ngram_counts do not cut pool_int64s into whole n-grams")
    return [np.asarray(pool[start:end], np.int64).reshape(-1, n) for n, (start, end) in parts]


def counted(c: Context, x: Tensor, table: Array, skip: int) -> Tensor | None:
    """How often each row of the table occurs in each row of x, as i32; None where it cannot."""
    n = table.shape[1]
    starts = x.shape[-1] - (n - 1) * (skip + 1)
    if starts < 1 or not len(table):
        return None
    pool = c.constant(table)

    def body(i: Any, r: Any) -> Expr:
        found = ex.TRUE
        for k in range(n):
            value = ex.cast(x[(*i[:-1], r[0] + k * (skip + 1))], I64)
            found = found & value.equals(pool[i[-1], k])
        return ex.cast(found, I32)

    return c.reduce((*x.shape[:-1], len(table)), (starts,), sum_of(I32), body)[0]


@lower("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(c: Context) -> Tensor:
    """TF counts, IDF tells what occurs, TFIDF counts; the latter two times the n-gram's weight."""
    x, mode = c[0], c.attr("mode")
    tables = grams(c)
    indices = [int(v) for v in c.attr("ngram_indexes")]
    if len(set(indices)) != len(indices) or len(indices) != sum(map(len, tables)) or not indices or not x.rank:
        raise c.refuse("ngram_indexes must name each n-gram of the pool once")
    shortest, longest, skips = (int(c.attr(k)) for k in ("min_gram_length", "max_gram_length", "max_skip_count"))
    batch = x.shape[:-1]
    counts: list[Tensor] = []
    for n, table in enumerate(tables, 1):
        wanted = range(1 if n == 1 else skips + 1) if shortest <= n <= longest else ()
        parts = [t for t in (counted(c, x, table, skip) for skip in wanted) if t is not None]
        counts.append(summed(c, (*batch, len(table)), parts))
    every = c.builder.concat([t for t in counts if t.shape[-1]], len(batch))
    # For each element of the output, the n-gram that it counts; those that none does are 0.
    source = np.full(max(indices) + 1, -1, np.int32)
    source[indices] = np.arange(len(indices), dtype=np.int32)
    weight = np.ones(len(source), np.float32)
    if mode != "TF" and c.attr("weights"):
        weight[indices] = np.asarray(c.attr("weights"), np.float32)
    sources, weights = c.constant(source), c.constant(weight)

    def value(*i: Any) -> Expr:
        own = sources[i[-1]]
        count = ex.cast(every[(*i[:-1], ix.value_index(own, 0, len(indices) - 1))], F32)
        count = ex.op("min", count, ex.one(F32)) if mode == "IDF" else count
        return ex.select(own < 0, ex.zero(F32), count * weights[i[-1]])

    return c.map((*batch, len(source)), value)


def summed(c: Context, shape: tuple[int, ...], parts: list[Tensor]) -> Tensor:
    def value(*i: Any) -> Expr:
        total = ex.zero(I32)
        for part in parts:
            total = total + part[i]
        return total

    return c.map(shape, value)
