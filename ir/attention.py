"""Attention as the nests that it stands for: scores, a softmax row by row, and the product with the values.

The interpreter runs these, and so does the schedule of a target that has no kernel of its own for attention.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import expr as ex
from .builder import max_of, sum_of
from .dtypes import F32
from .program import Attention, Axis, Contract, Nest, Reduce, Store, TensorType


def as_nests(node: Attention, tensors: Mapping[str, TensorType]) -> tuple[list[Nest], dict[str, TensorType]]:
    """Nests that compute an attention through two intermediate tensors, and the types of these."""
    rows = tuple(a.size for a in node.space)
    scores, weights = (_fresh(f"{node.store.tensor}.{what}", tensors) for what in ("scores", "weights"))
    shape = (*rows, node.key.size)
    made = {scores: TensorType(node.score.dtype, shape), weights: TensorType(F32, shape)}
    row = tuple(a.var for a in node.space)
    product = Contract("qk", (node.inner,), node.q, node.k, F32)
    scored = Store(scores, (), (*row, node.key.var), node.score)
    first = Nest((*node.space, node.key), (product,), (scored,), node.nodes)
    reduced = Axis("r0", node.key.size)
    score = ex.cast(ex.load(scores, node.score.dtype, (*row, reduced.var)), F32)
    largest = Reduce("max", (reduced,), max_of(F32), (score,))
    total = Reduce("sum", (reduced,), sum_of(F32), (ex.op("exp", score - ex.acc("max", F32)),))
    column = Axis("s0", node.key.size)
    own = ex.cast(ex.load(scores, node.score.dtype, (*row, column.var)), F32)
    share = ex.op("exp", own - ex.acc("max", F32)) / ex.acc("sum", F32)
    second = Nest(node.space, (largest, total), (Store(weights, (column,), (*row, column.var), share),), node.nodes)
    summed = Axis("r0", node.key.size)
    weight = ex.load(weights, F32, (*row, summed.var))
    value = ex.cast(node.v.substitute({node.key.name: summed.var}), F32)
    mixed = Contract("pv", (summed,), weight, value, F32)
    third = Nest((*node.space, node.value_axis), (mixed,), (node.store,), node.nodes)
    return [first, second, third], made


def _fresh(name: str, tensors: Mapping[str, TensorType]) -> str:
    while name in tensors:
        name += "'"
    return name


