"""Features of ai.onnx.ml that are tensors in and tensors out: Binarizer, ArrayFeatureExtractor, Scaler, Normalizer."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, max_of, sum_of
from onnx2wgsl.ir.dtypes import F32, I32
from onnx2wgsl.ir.expr import Expr

from .reductions import Rows
from .registry import Context, lower

DOMAIN = "ai.onnx.ml"


@lower("Binarizer", domain=DOMAIN)
def binarizer(c: Context) -> Tensor:
    """1 above the threshold, else 0."""
    x, threshold = c[0], c.attr("threshold", 0.0)
    limit = ex.const(threshold, x.dtype if x.dtype.is_float else F32)

    def value(*i: Any) -> Expr:
        return ex.select(ex.cast(x[i], limit.dtype) > limit, ex.one(x.dtype), ex.zero(x.dtype))

    return c.map(x.shape, value)


@lower("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(c: Context) -> Tensor:
    """The given positions of the last axis; a vector becomes one row."""
    x, positions = c[0], c[1]
    if not x.rank or not x.shape[-1]:
        raise c.refuse(f"ArrayFeatureExtractor needs features, got {x.type}")
    count, last = positions.type.count, x.shape[-1] - 1
    shape = (*x.shape[:-1], count) if x.rank > 1 else (1, count)

    def value(*i: Any) -> Expr:
        where = positions[ix.unflatten(i[-1], positions.shape)]
        feature = ix.value_index(ex.assume(ex.cast(where, I32), 0, last), 0, last)
        return x[(*i[:-1], feature)] if x.rank > 1 else x[feature]

    return c.map(shape, value)


@lower("Scaler", domain=DOMAIN)
def scaler(c: Context) -> Tensor:
    """`(x - offset) · scale`, one value or one per feature, as f32."""
    x = c[0]
    given = c.attr("offset", [0.0]), c.attr("scale", [1.0])
    parts = [c.constant(np.asarray(v, np.float32)) for v in given]
    if not x.rank or any(p.shape[0] not in (1, x.shape[-1]) for p in parts):
        raise c.refuse(f"Scaler: offset and scale do not fit the features of {x.type}")
    offset, scale = parts
    return c.map(x.shape, lambda *i: (ex.cast(x[i], F32) - offset.at(*i)) * scale.at(*i))


@lower("Normalizer", domain=DOMAIN)
def normalizer(c: Context) -> Tensor:
    """Each row over its largest element, its sum of magnitudes, or its length; rows of norm 0 stay."""
    x, kind = c[0], c.attr("norm", "MAX")
    if kind not in ("MAX", "L1", "L2") or not x.rank:
        raise c.refuse(f"Normalizer of {x.type} with norm {kind!r}")
    rows = Rows(x.shape, (x.rank - 1,))

    def part(i: Any, r: Any) -> Expr:
        v = ex.cast(x[rows.full(i, r)], F32)
        return v * v if kind == "L2" else ex.op("abs", v) if kind == "L1" else v

    def finish(acc: Expr, *_: Any) -> Expr:
        return ex.op("sqrt", acc) if kind == "L2" else acc

    norm = c.reduce(rows.results, rows.over, (max_of if kind == "MAX" else sum_of)(F32), part, finish)[0]

    def value(*i: Any) -> Expr:
        n, v = norm.at(*i), ex.cast(x[i], F32)
        return ex.select(n.equals(0), v, v / n)

    return c.map(x.shape, value)
