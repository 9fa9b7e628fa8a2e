"""Elementwise operators: unary and binary arithmetic, comparison, logic, bits, variadic sums and extrema.

f16 and bf16 compute in f32 and round once, at the end. Integer arithmetic wraps; an integer division by zero, which
ONNX leaves undefined, gives 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.builder import Tensor, compute_type
from onnx2wgsl.ir.dtypes import BOOL, F32, F64, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import IndexLike

from .registry import Context, broadcast, lower


def unary(c: Context, function: Callable[[Expr], Expr]) -> Tensor:
    """A map over one tensor; f16 and bf16 compute in f32 and round once, at the end."""
    x = c[0]

    def value(*i: IndexLike) -> Expr:
        return ex.cast(function(ex.cast(x[i], compute_type(x.dtype))), x.dtype)

    return c.map(x.shape, value)


def binary(c: Context, function: Callable[[Expr, Expr], Expr]) -> Tensor:
    """A broadcasting map over two tensors, as they are; right for what rounds nothing, and for comparisons."""
    a, b = same_types(c, c[0], c[1])
    return c.map(broadcast(c, a.shape, b.shape), lambda *i: function(a.at(*i), b.at(*i)))


def arithmetic(c: Context, function: Callable[[Expr, Expr], Expr]) -> Tensor:
    """A broadcasting map over two tensors that rounds: f16 and bf16 compute in f32."""
    a, b = same_types(c, c[0], c[1])
    compute = compute_type(a.dtype)

    def value(*i: IndexLike) -> Expr:
        return ex.cast(function(ex.cast(a.at(*i), compute), ex.cast(b.at(*i), compute)), a.dtype)

    return c.map(broadcast(c, a.shape, b.shape), value)


def same_types(c: Context, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors themselves; refuses where their element types differ."""
    if any(t.dtype is not tensors[0].dtype for t in tensors):
        raise c.refuse(f"{c.op} needs operands of one type, got {' and '.join(str(t.dtype) for t in tensors)}")
    return tensors


def number(value: float, like: Expr) -> Expr:
    """A constant of the type of an expression."""
    return ex.const(value, like.dtype)


# Arithmetic


@lower("Add", since=7)
def add(c: Context) -> Tensor:
    return arithmetic(c, lambda a, b: a + b)


@lower("Sub", since=7)
def sub(c: Context) -> Tensor:
    return arithmetic(c, lambda a, b: a - b)


@lower("Mul", since=7)
def mul(c: Context) -> Tensor:
    return arithmetic(c, lambda a, b: a * b)


@lower("Div", since=7)
def div(c: Context) -> Tensor:
    """Integers truncate towards zero."""
    return arithmetic(c, lambda a, b: a / b)


@lower("Mod", since=10)
def mod(c: Context) -> Tensor:
    """`fmod=0` takes the divisor's sign, `fmod=1` the dividend's."""
    return arithmetic(c, lambda a, b: ex.op("rem" if c.attr("fmod", 0) else "mod", a, b))


@lower("Pow", since=7)
def pow_(c: Context) -> Tensor:
    """`Z = X ^ Y` in the type of X; the exponent has a type of its own from opset 12."""
    x, y = c[0], c[1]

    def value(*i: IndexLike) -> Expr:
        base, exponent = x.at(*i), y.at(*i)
        if x.dtype.is_integer:
            return integer_base_power(base, exponent)
        return ex.cast(float_power(ex.cast(base, compute_type(x.dtype)), exponent), x.dtype)

    return c.map(broadcast(c, x.shape, y.shape), value)


def float_power(x: Expr, y: Expr) -> Expr:
    """Small constant exponents as products (and `√`), which are exact where `pow` may not be."""
    if y.op == "const":
        match y.attr:
            case 0:
                return number(1, x)
            case 1:
                return x
            case 2:
                return x * x
            case 3:
                return x * x * x
            case 4:
                return (x * x) * (x * x)
            case -1:
                return 1 / x
            case -2:
                return 1 / (x * x)
            case 0.5:
                return ex.op("sqrt", x)
    return ex.op("pow", x, ex.cast(y, x.dtype))


def integer_base_power(x: Expr, y: Expr) -> Expr:
    """An integer to any power, truncated to its type; whole exponents are exact."""
    if y.dtype.is_integer or y.dtype is BOOL:
        return integer_power(x, y)
    wide = F64 if y.dtype is F64 else F32
    exponent = ex.cast(y, wide)
    whole = exponent.equals(ex.op("trunc", exponent))
    # An inexact `pow` must not turn 4^0.5 into 1.9999999, which would truncate to 1.
    power = ex.op("pow", ex.cast(x, wide), exponent)
    nearest = ex.op("round", power)
    close = ex.op("abs", power - nearest) < ex.op("abs", power) * number(2**-20, power)
    other = ex.cast(ex.select(close, nearest, power), x.dtype)
    return ex.select(whole, integer_power(x, ex.cast(exponent, x.dtype)), other)


def integer_power(x: Expr, y: Expr) -> Expr:
    """`x ^ y` by repeated squaring, modulo the width. Exponents of the width or more keep only their parity.

    That changes nothing where the power can be represented (x is 0, 1 or -1), nor for other even x (0). A negative
    exponent gives 1 / x^|y|, truncated; 0 for x = 0.
    """
    exponent = ex.cast(y, x.dtype)
    bits = x.dtype.bits
    if y.op == "const" and 0 <= y.attr < bits:
        return constant_power(x, int(y.attr))
    one = number(1, x)
    negative = exponent < 0 if x.dtype.kind == "int" and y.dtype.kind == "int" else ex.FALSE
    count = ex.select(negative, -exponent, exponent) if negative is not ex.FALSE else exponent
    width = bits if bits < x.dtype.hi else x.dtype.hi - 1
    count = ex.select(count >= width, number(width, x) + (count & one), count)
    result, square = one, x
    for bit in range((width + 1).bit_length()):
        taken = (count & number(1 << bit, x)).equals(0)
        result = ex.select(taken, result, result * square)
        square = square * square
    if negative is ex.FALSE:
        return result
    unit = x.equals(1) | x.equals(-1)
    return ex.select(negative, ex.select(unit, result, number(0, x)), result)


def constant_power(x: Expr, exponent: int) -> Expr:
    """`x ^ exponent` by the fewest squarings."""
    result: Expr | None = None
    square = x
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        square = square * square if exponent else square
    return number(1, x) if result is None else result


# Comparison and logic


@lower("Equal", since=7)
def equal(c: Context) -> Tensor:
    return binary(c, lambda a, b: a.equals(b) if a.dtype is not BOOL else ~(a ^ b))


@lower("Greater", since=7)
def greater(c: Context) -> Tensor:
    return binary(c, lambda a, b: a > b)


@lower("GreaterOrEqual", since=12)
def greater_or_equal(c: Context) -> Tensor:
    return binary(c, lambda a, b: a >= b)


@lower("Less", since=7)
def less(c: Context) -> Tensor:
    return binary(c, lambda a, b: a < b)


@lower("LessOrEqual", since=12)
def less_or_equal(c: Context) -> Tensor:
    return binary(c, lambda a, b: a <= b)


@lower("And", since=7)
@lower("BitwiseAnd", since=18)
def and_(c: Context) -> Tensor:
    return binary(c, lambda a, b: a & b)


@lower("Or", since=7)
@lower("BitwiseOr", since=18)
def or_(c: Context) -> Tensor:
    return binary(c, lambda a, b: a | b)


@lower("Xor", since=7)
@lower("BitwiseXor", since=18)
def xor(c: Context) -> Tensor:
    return binary(c, lambda a, b: a ^ b)


@lower("Not")
@lower("BitwiseNot", since=18)
def not_(c: Context) -> Tensor:
    return unary(c, lambda x: ~x)


@lower("BitShift", since=11)
def bit_shift(c: Context) -> Tensor:
    """Shifts by the width or more give 0."""
    direction = c.attr("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise c.refuse(f"BitShift has direction LEFT or RIGHT, got {direction!r}")
    return binary(c, lambda a, b: ex.op("shl" if direction == "LEFT" else "shr", a, b))


@lower("Where", since=9)
def where(c: Context) -> Tensor:
    condition, x, y = c[0], c[1], c[2]
    same_types(c, x, y)
    shape = broadcast(c, condition.shape, x.shape, y.shape)
    return c.map(shape, lambda *i: ex.select(condition.at(*i), x.at(*i), y.at(*i)))


@lower("IsNaN", since=9)
def is_nan(c: Context) -> Tensor:
    x = c[0]
    return c.map(x.shape, lambda *i: ex.op("isnan", widened(x[i])))


@lower("IsInf", since=10)
def is_inf(c: Context) -> Tensor:
    x = c[0]
    positive, negative = c.attr("detect_positive", 1), c.attr("detect_negative", 1)

    def value(*i: IndexLike) -> Expr:
        v = widened(x[i])
        infinite = ex.op("isinf", v)
        if positive and negative:
            return infinite
        return infinite & (v > 0) if positive else infinite & (v < 0) if negative else ex.FALSE

    return c.map(x.shape, value)


def widened(x: Expr) -> Expr:
    """A float of fewer than 32 bits as f32; exact."""
    return ex.cast(x, F32) if x.dtype.bits < 32 else x


# Variadic operators


def variadic(c: Context, name: str, compute: Callable[[DType], DType], finish: Callable[[Expr], Expr]) -> Tensor:
    """Folds all inputs with a binary operator, from the left."""
    tensors = [c[k] for k in range(len(c.inputs))]
    if not tensors:
        raise c.refuse(f"{c.op} needs an input")
    dtype = same_types(c, *tensors)[0].dtype
    shape = broadcast(c, *(t.shape for t in tensors))

    def value(*i: IndexLike) -> Expr:
        parts = [ex.cast(t.at(*i), compute(dtype)) for t in tensors]
        return ex.cast(finish(reduce(lambda a, b: ex.op(name, a, b), parts)), dtype)

    return c.map(shape, value)


@lower("Max", since=6)
def max_(c: Context) -> Tensor:
    return variadic(c, "max", lambda d: d, lambda v: v)


@lower("Min", since=6)
def min_(c: Context) -> Tensor:
    return variadic(c, "min", lambda d: d, lambda v: v)


@lower("Sum", since=6)
def sum_(c: Context) -> Tensor:
    return variadic(c, "add", compute_type, lambda v: v)


@lower("Mean", since=6)
def mean(c: Context) -> Tensor:
    return variadic(c, "add", compute_type, lambda v: v / len(c.inputs))


@lower("Clip", since=6)
def clip_attributes(c: Context) -> Tensor:
    """The bounds are attributes, by default the largest floats of 32 bits (so that infinities are clipped)."""
    largest = float(np.finfo(np.float32).max)
    lo, hi = c.attr("min", -largest), c.attr("max", largest)
    return unary(c, lambda x: ex.op("min", ex.op("max", x, number(lo, x)), number(hi, x)))


@lower("Clip", since=11)
def clip(c: Context) -> Tensor:
    """`min(max(x, lo), hi)`: where the bounds cross, the result is the upper one."""
    x, lo, hi = c[0], c.optional(1), c.optional(2)
    for position, bound in ((1, lo), (2, hi)):
        if bound is not None and bound.type.count != 1:
            raise c.refuse(f"input {position} of Clip must be a scalar, got {bound.type}")

    def value(*i: IndexLike) -> Expr:
        v = x[i]
        v = v if lo is None else ex.op("max", v, lo[(0,) * lo.rank])
        return v if hi is None else ex.op("min", v, hi[(0,) * hi.rank])

    return c.map(x.shape, value)


# Functions of one variable

_FUNCTIONS = {
    "Abs": ("abs", 6), "Neg": ("neg", 6), "Sign": ("sign", 9), "Floor": ("floor", 6), "Ceil": ("ceil", 6),
    "Round": ("round", 11), "Sqrt": ("sqrt", 6), "Exp": ("exp", 6), "Log": ("log", 6), "Erf": ("erf", 9),
    "Sin": ("sin", 7), "Cos": ("cos", 7), "Tan": ("tan", 7), "Asin": ("asin", 7), "Acos": ("acos", 7),
    "Atan": ("atan", 7), "Sinh": ("sinh", 9), "Cosh": ("cosh", 9), "Tanh": ("tanh", 6), "Asinh": ("asinh", 9),
    "Acosh": ("acosh", 9), "Atanh": ("atanh", 9),
}  # fmt: skip


def _register(operator: str, name: str, since: int) -> None:
    @lower(operator, since=since)
    def function(c: Context) -> Tensor:
        return unary(c, lambda x: ex.op(name, x))


for _operator, (_name, _since) in _FUNCTIONS.items():
    _register(_operator, _name, _since)


@lower("Reciprocal", since=6)
def reciprocal(c: Context) -> Tensor:
    return unary(c, lambda x: 1 / x)
