"""Activation functions: maps of one variable, written so that no branch overflows where its result is used."""

from __future__ import annotations

from math import pi, sqrt

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.builder import Tensor, compute_type
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import IndexLike

from .elementwise import number, unary
from .registry import Context, lower


def sigmoid_of(x: Expr) -> Expr:
    """`1 / (1 + e^-x)`; the exponential may overflow to infinity, which gives 0."""
    return 1 / (ex.op("exp", -x) + 1)


def log1p(x: Expr) -> Expr:
    """`log(1 + x)` for x ≥ 0 that keeps the digits of a small x, by `log(w) · x / (w - 1)` with `w = 1 + x`."""
    w = x + 1
    return ex.select(w.equals(1), x, ex.op("log", w) * (x / (w - 1)))


def softplus_of(x: Expr) -> Expr:
    """`log(1 + e^x) = max(x, 0) + log(1 + e^-|x|)`."""
    return ex.op("max", x, number(0, x)) + log1p(ex.op("exp", -ex.op("abs", x)))


def clamp(x: Expr, lo: float, hi: float) -> Expr:
    return ex.op("min", ex.op("max", x, number(lo, x)), number(hi, x))


@lower("Relu", since=6)
def relu(c: Context) -> Tensor:
    return unary(c, lambda x: ex.op("max", x, ex.zero(x.dtype)))


@lower("LeakyRelu", since=6)
def leaky_relu(c: Context) -> Tensor:
    alpha = c.attr("alpha", 0.01)
    return unary(c, lambda x: ex.select(x < 0, x * alpha, x))


@lower("PRelu", since=7)
def prelu(c: Context) -> Tensor:
    """The slope broadcasts to the input, and not the other way round."""
    x, slope = c[0], c[1]
    own = x.shape[x.rank - slope.rank :] if slope.rank else ()
    if slope.rank > x.rank or any(s not in (1, n) for s, n in zip(slope.shape, own, strict=True)):
        raise c.refuse(f"slope {slope.type} does not broadcast to {x.type}")
    compute = compute_type(x.dtype)

    def value(*i: IndexLike) -> Expr:
        v = ex.cast(x[i], compute)
        return ex.cast(ex.select(v < 0, v * ex.cast(slope.at(*i), compute), v), x.dtype)

    return c.map(x.shape, value)


@lower("Elu", since=6)
def elu(c: Context) -> Tensor:
    alpha = c.attr("alpha", 1.0)
    return unary(c, lambda x: ex.select(x < 0, (ex.op("exp", x) - 1) * alpha, x))


@lower("Selu", since=6)
def selu(c: Context) -> Tensor:
    alpha, gamma = c.attr("alpha", 1.6732632423543772), c.attr("gamma", 1.0507009873554805)
    return unary(c, lambda x: ex.select(x <= 0, (ex.op("exp", x) - 1) * (gamma * alpha), x * gamma))


@lower("Celu", since=12)
def celu(c: Context) -> Tensor:
    alpha = c.attr("alpha", 1.0)
    return unary(c, lambda x: ex.select(x < 0, (ex.op("exp", x / alpha) - 1) * alpha, x))


@lower("Gelu", since=20)
def gelu(c: Context) -> Tensor:
    """`x/2 · (1 + erf(x / √2))`, or with `tanh(√(2/π) · (x + 0.044715 x³))` in its place."""
    approximate = c.attr("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise c.refuse(f"Gelu has approximate none or tanh, got {approximate!r}")

    def value(x: Expr) -> Expr:
        if approximate == "none":
            return x * 0.5 * (ex.op("erf", x * sqrt(0.5)) + 1)
        return x * 0.5 * (ex.op("tanh", (x + x * x * x * 0.044715) * sqrt(2 / pi)) + 1)

    return unary(c, value)


@lower("Sigmoid", since=6)
def sigmoid(c: Context) -> Tensor:
    return unary(c, sigmoid_of)


@lower("HardSigmoid", since=6)
def hard_sigmoid(c: Context) -> Tensor:
    alpha, beta = c.attr("alpha", 0.2), c.attr("beta", 0.5)
    return unary(c, lambda x: clamp(x * alpha + beta, 0, 1))


@lower("HardSwish", since=14)
def hard_swish(c: Context) -> Tensor:
    return unary(c, lambda x: x * clamp(x * (1 / 6) + 0.5, 0, 1))


@lower("Swish", since=24)
def swish(c: Context) -> Tensor:
    alpha = c.attr("alpha", 1.0)
    return unary(c, lambda x: x * sigmoid_of(x * alpha))


@lower("Mish", since=18)
def mish(c: Context) -> Tensor:
    """`x · tanh(log(1 + e^x)) = x · n / (n + 2)` with `n = e^x · (e^x + 2)`; the quotient is 1 from x = 20 on."""

    def value(x: Expr) -> Expr:
        e = ex.op("exp", ex.op("min", x, number(20, x)))
        n = e * (e + 2)
        return x * (n / (n + 2))

    return unary(c, value)


@lower("Softplus")
def softplus(c: Context) -> Tensor:
    return unary(c, softplus_of)


@lower("Softsign")
def softsign(c: Context) -> Tensor:
    return unary(c, lambda x: x / (ex.op("abs", x) + 1))


@lower("ThresholdedRelu", since=10)
def thresholded_relu(c: Context) -> Tensor:
    alpha = c.attr("alpha", 1.0)
    return unary(c, lambda x: ex.select(x > alpha, x, number(0, x)))


@lower("Shrink", since=9)
def shrink(c: Context) -> Tensor:
    """Both attributes are cast to the type of the input, as in ONNX's own function body."""
    lambd, bias = c.attr("lambd", 0.5), c.attr("bias", 0.0)

    def value(x: Expr) -> Expr:
        limit, shift = number(lambd, x), number(bias, x)
        return ex.select(x < -limit, x + shift, ex.select(limit < x, x - shift, number(0, x)))

    return unary(c, value)
