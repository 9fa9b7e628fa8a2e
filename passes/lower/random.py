"""Random numbers: a counter-based generator as integer expressions over an element's flat position.

Element p of stream k is `mix(mix(p + k₀) ^ k₁)`, where (k₀, k₁) are drawn from the operator's seed attribute, or from
the name of its output where there is none, and `mix` is a 32-bit permutation of full avalanche (Wellons' lowbias32).
The numbers are the same in every run and on every device. Uniform numbers are the upper 24 bits over 2²⁴; normal ones
are made by the Box-Muller transform; categories are drawn by the largest of log-probability plus Gumbel noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import pi
from typing import Any

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, arg_best, compute_type
from onnx2wgsl.ir.dtypes import BOOL, F32, I32, U32, DType
from onnx2wgsl.ir.expr import Expr

from .registry import Context, lower

Indices = Sequence[ix.IndexLike]
Draw = Callable[[Indices], Expr]


def mix(x: Expr) -> Expr:
    """A permutation of the 32-bit words."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ ex.op("shr", x, ex.const(shift, U32))) * factor
    return x ^ ex.op("shr", x, ex.const(16, U32))


def uniform(c: Context, shape: Sequence[int], stream: int = 0) -> Draw:
    """Draws from (0, 1): multiples of 2⁻²⁴, moved up by half of one so that neither 0 nor 1 occurs."""
    seed = c.attr("seed")
    origin = repr(float(seed)) if seed is not None else next((o.name for o in c.node.outputs if o.name), c.op)
    words = np.frombuffer(blake2b(f"{origin}/{stream}".encode(), digest_size=8).digest(), "<u4")

    def draw(i: Indices) -> Expr:
        position = ex.index_value(ix.flatten(i, shape), U32)
        word = mix(mix(position + int(words[0])) ^ int(words[1]))
        # 23 bits, so that the half is exact and the sum stays below 1.
        return (ex.cast(ex.op("shr", word, ex.const(9, U32)), F32) + 0.5) * 2.0**-23

    return draw


def normal(c: Context, shape: Sequence[int]) -> Draw:
    """`√(-2 log u) · cos(2π v)` of two uniform streams."""
    u, v = uniform(c, shape, 0), uniform(c, shape, 1)
    return lambda i: ex.op("sqrt", ex.op("log", u(i)) * -2) * ex.op("cos", v(i) * (2 * pi))


def filled(c: Context, shape: Sequence[int], dtype: DType, value: Draw) -> Tensor:
    return c.map(shape, lambda *i: ex.cast(value(i), dtype))


def normal_tensor(c: Context, shape: Sequence[int], dtype: DType) -> Tensor:
    mean, scale, draw = c.attr("mean", 0.0), c.attr("scale", 1.0), normal(c, shape)
    return filled(c, shape, dtype, lambda i: draw(i) * scale + mean)


def uniform_tensor(c: Context, shape: Sequence[int], dtype: DType) -> Tensor:
    low, high, draw = c.attr("low", 0.0), c.attr("high", 1.0), uniform(c, shape)
    return filled(c, shape, dtype, lambda i: draw(i) * (high - low) + low)


@lower("RandomNormal")
def random_normal(c: Context) -> Tensor:
    return normal_tensor(c, c.attr("shape"), c.dtype_attr("dtype", F32))


@lower("RandomNormalLike")
def random_normal_like(c: Context) -> Tensor:
    return normal_tensor(c, c[0].shape, c.dtype_attr("dtype", c[0].dtype))


@lower("RandomUniform")
def random_uniform(c: Context) -> Tensor:
    return uniform_tensor(c, c.attr("shape"), c.dtype_attr("dtype", F32))


@lower("RandomUniformLike")
def random_uniform_like(c: Context) -> Tensor:
    return uniform_tensor(c, c[0].shape, c.dtype_attr("dtype", c[0].dtype))


@lower("Bernoulli", since=15)
def bernoulli(c: Context) -> Tensor:
    """1 with the probability that the input gives."""
    x = c[0]
    draw, dtype = uniform(c, x.shape), c.dtype_attr("dtype", x.dtype)
    return c.map(x.shape, lambda *i: ex.cast(draw(i) < ex.cast(x[i], F32), dtype))


@lower("Multinomial", since=7)
def multinomial(c: Context) -> Tensor:
    """Draws categories from the log-probabilities of each row: the largest of `logit - log(-log u)`."""
    x, count = c[0], int(c.attr("sample_size", 1))
    if x.rank != 2 or not x.shape[1]:
        raise c.refuse(f"Multinomial needs [batch, classes], got {x.type}")
    dtype = c.dtype_attr("dtype", I32)
    batch, classes = x.shape
    draw = uniform(c, (batch, count, classes))

    def body(i: Any, r: Any) -> tuple[Expr, Expr]:
        noise = -ex.op("log", -ex.op("log", draw((*i, *r))))
        return ex.cast(x[i[0], r[0]], F32) + noise, ex.index_value(r[0], I32)

    def finish(_: Expr, position: Expr, *__: Any) -> Expr:
        return ex.cast(ex.assume(position, 0, classes - 1), dtype)

    return c.reduce((batch, count), (classes,), arg_best(F32, True), body, finish)[0]


@lower("Dropout", since=7)
def dropout_inference(c: Context) -> tuple[Any, ...]:
    """Before opset 12 the operator is the identity of inference; the mask keeps all."""
    x = c[0]
    mask = BOOL if c.version >= 10 else x.dtype
    return x, c.map(x.shape, lambda *_: ex.one(mask)) if c.wants(1) else None


@lower("Dropout", since=12)
def dropout(c: Context) -> tuple[Any, ...]:
    """The identity, unless `training_mode` is set: then each element is kept with the probability 1 - ratio."""
    x, ratio = c[0], c.optional(1)
    training = c.optional_value(2)
    if training is None or not training.reshape(-1)[0]:
        return x, c.map(x.shape, lambda *_: ex.TRUE) if c.wants(1) else None
    share = ex.const(0.5, F32) if ratio is None else ex.cast(ratio[(0,) * ratio.rank], F32)
    draw, compute = uniform(c, x.shape), compute_type(x.dtype)
    mask = c.map(x.shape, lambda *i: draw(i) >= share)

    def value(*i: ix.IndexLike) -> Expr:
        scaled = ex.cast(x[i], compute) / ex.cast(ex.const(1, F32) - share, compute)
        return ex.select(mask[i], ex.cast(scaled, x.dtype), ex.zero(x.dtype))

    return c.map(x.shape, value), mask
