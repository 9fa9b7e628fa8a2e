"""Elementwise operators: unary and binary arithmetic, comparison, logic, casts, activations."""

from __future__ import annotations

from collections.abc import Callable

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.builder import Tensor, compute_type
from onnx2wgsl.ir.dtypes import BOOL
from onnx2wgsl.ir.expr import Expr

from .registry import Context, broadcast, lower


def unary(c: Context, function: Callable[[Expr], Expr]) -> Tensor:
    """A map over one tensor; f16 and bf16 compute in f32 and round once, at the end."""
    x = c[0]

    def value(*i: ex.IndexLike) -> Expr:
        return ex.cast(function(ex.cast(x[i], compute_type(x.dtype))), x.dtype)

    return c.map(x.shape, value)


def binary(c: Context, function: Callable[[Expr, Expr], Expr]) -> Tensor:
    """A broadcasting map over two tensors."""
    a, b = c[0], c[1]
    return c.map(broadcast(c, a.shape, b.shape), lambda *i: function(a.at(*i), b.at(*i)))


@lower("Add", since=7)
def add(c: Context) -> Tensor:
    return binary(c, lambda a, b: a + b)


@lower("Relu", since=6)
def relu(c: Context) -> Tensor:
    return unary(c, lambda x: ex.op("max", x, ex.zero(x.dtype)))


@lower("Not")
def not_(c: Context) -> Tensor:
    return unary(c, lambda x: ~x)


@lower("Equal", since=7)
def equal(c: Context) -> Tensor:
    return binary(c, lambda a, b: a.equals(b) if a.dtype is not BOOL else ~(a ^ b))
