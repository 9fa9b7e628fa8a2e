"""Optimisers of ai.onnx.preview.training: Adagrad, Adam, Momentum. Elementwise, in the type of the tensors.

The inputs are the learning rate R, the update count T, and for n tensors all X, then all gradients, then the states;
the outputs are all new X, then the new states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.builder import Tensor
from onnx2wgsl.ir.expr import Expr

from .registry import Context, lower

DOMAIN = "ai.onnx.preview.training"

Step = Callable[[Expr, Expr, Expr, tuple[Expr, ...]], tuple[Expr, ...]]


def optimised(c: Context, states: int, step: Step) -> tuple[Tensor, ...]:
    """`step(rate, count, gradient, (x, states…))` for each tensor; the count in the type of the rate."""
    groups = states + 2
    count, odd = divmod(len(c.inputs) - 2, groups)
    if odd or count < 1:
        raise c.refuse(f"{c.op} needs {groups} inputs per tensor after R and T, got {len(c.inputs) - 2}")
    results: list[list[Tensor]] = []
    for k in range(count):
        x, gradient, *own = (c[2 + k + group * count] for group in range(groups))
        results.append([one(c, (x, gradient, *own), part, step) for part in range(states + 1)])
    return tuple(r[part] for part in range(states + 1) for r in results)


def one(c: Context, tensors: tuple[Tensor, ...], part: int, step: Step) -> Tensor:
    x, gradient, *states = tensors
    rate, count = c[0], c[1]

    def value(*i: Any) -> Expr:
        r, t = rate[(0,) * rate.rank], count[(0,) * count.rank]
        g = gradient[i] + x[i] * c.attr("norm_coefficient", 0.0)
        return step(ex.cast(r, x.dtype), ex.cast(t, x.dtype), g, (x[i], *(s[i] for s in states)))[part]

    return c.map(x.shape, value)


@lower("Adagrad", domain=DOMAIN)
def adagrad(c: Context) -> tuple[Tensor, ...]:
    decay, epsilon = c.attr("decay_factor", 0.0), c.attr("epsilon", 1e-6)

    def step(r: Expr, t: Expr, g: Expr, state: tuple[Expr, ...]) -> tuple[Expr, ...]:
        x, h = state
        squares = h + g * g
        return x - g * (r / (t * decay + 1)) / (ex.op("sqrt", squares) + epsilon), squares

    return optimised(c, 1, step)


@lower("Adam", domain=DOMAIN)
def adam(c: Context) -> tuple[Tensor, ...]:
    alpha, beta, epsilon = c.attr("alpha", 0.9), c.attr("beta", 0.999), c.attr("epsilon", 1e-6)
    shrink = 1 - c.attr("norm_coefficient_post", 0.0)

    def step(r: Expr, t: Expr, g: Expr, state: tuple[Expr, ...]) -> tuple[Expr, ...]:
        x, v, h = state
        mean, squares = v * alpha + g * (1 - alpha), h * beta + g * g * (1 - beta)
        powers = [1 - ex.op("pow", ex.const(base, t.dtype), t) for base in (alpha, beta)]
        rate = ex.select(t > 0, r * ex.op("sqrt", powers[1]) / powers[0], r)
        return (x - rate * mean / (ex.op("sqrt", squares) + epsilon)) * shrink, mean, squares

    return optimised(c, 2, step)


@lower("Momentum", domain=DOMAIN)
def momentum(c: Context) -> tuple[Tensor, ...]:
    alpha, beta, mode = c.attr("alpha"), c.attr("beta"), c.attr("mode")
    if mode not in ("standard", "nesterov"):
        raise c.refuse(f"Momentum has mode standard or nesterov, got {mode!r}")

    def step(r: Expr, t: Expr, g: Expr, state: tuple[Expr, ...]) -> tuple[Expr, ...]:
        x, v = state
        velocity = v * alpha + g * ex.select(t > 0, ex.const(beta, g.dtype), ex.one(g.dtype))
        return x - r * (velocity if mode == "standard" else g + velocity * alpha), velocity

    return optimised(c, 1, step)
