"""Normalisations: a mean, a mean of squared distances, and a map, which fusion makes one row nest.

All compute in f32 (f64 stays) and round once. The variance is that of the distances from the mean, never E[x²] - E[x]².
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, compute_type, sum_of
from onnx2wgsl.ir.dtypes import BY_ONNX, F32, DType
from onnx2wgsl.ir.expr import Expr

from .reductions import Rows
from .registry import Context, lower

Operand = Callable[..., Expr]


def value_of(x: Tensor, compute: DType) -> Operand:
    """An element of a tensor in the type that is computed in."""
    return lambda *i: ex.cast(x[i], compute)


def mean_of(c: Context, x: Operand, rows: Rows, dtype: DType) -> Tensor:
    """`Σ x / n` for each row, with the reduced axes kept."""
    return c.reduce(
        rows.results, rows.over, sum_of(dtype), lambda i, r: x(*rows.full(i, r)), lambda acc, *_: acc / rows.count
    )[0]


def moments(c: Context, x: Operand, rows: Rows, dtype: DType) -> tuple[Tensor, Tensor]:
    """Mean and population variance of each row."""
    mean = mean_of(c, x, rows, dtype)

    def squared(*i: ix.Index) -> Expr:
        distance = x(*i) - mean.at(*i)
        return distance * distance

    return mean, mean_of(c, squared, rows, dtype)


def inverse_root(variance: Expr, epsilon: float) -> Expr:
    return 1 / ex.op("sqrt", variance + epsilon)


def channel_of(i: Sequence[ix.Index]) -> ix.IndexLike:
    """The second axis; a tensor of one dimension has one channel."""
    return i[1] if len(i) > 1 else 0


def needs_channels(c: Context, x: Tensor, *per_channel: Tensor) -> int:
    """The number of channels; refuses parameters of another size."""
    if not x.rank:
        raise c.refuse(f"{c.op} needs an input of rank 1 or more, got a scalar")
    count = x.shape[1] if x.rank > 1 else 1
    for t in per_channel:
        if t.shape != (count,):
            raise c.refuse(f"{c.op} of {x.type} needs parameters of shape [{count}], got {t.type}")
    return count


# BatchNormalization


@lower("BatchNormalization", since=7)
def batch_normalization_spatial(c: Context) -> Tensor:
    """Version 7 may keep statistics per element (`spatial=0`), of the input's shape without the batch."""
    if c.attr("spatial", 1):
        return batch_normalization_inference(c)
    x, params = c[0], [c[k] for k in range(1, 5)]
    compute = compute_type(x.dtype)

    def value(*i: ix.Index) -> Expr:
        scale, bias, mean, variance = (ex.cast(p.at(*i[1:]), compute) for p in params)
        return ex.cast((ex.cast(x[i], compute) - mean) * (scale * inverse_root(variance, epsilon)) + bias, x.dtype)

    epsilon = c.attr("epsilon", 1e-5)
    return c.map(x.shape, value)


@lower("BatchNormalization", since=9)
def batch_normalization_inference(c: Context) -> Tensor:
    """`x · a + b` with `a = scale / √(var + ε)` and `b = bias - mean · a`, which are constants of the channel."""
    if any(c.wants(k) for k in range(1, c.output_count)):
        raise c.refuse("BatchNormalization before opset 14 has further outputs in training, which it leaves open")
    return normalized_channels(c, *(c[k] for k in range(5)))


def normalized_channels(c: Context, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    needs_channels(c, x, scale, bias, mean, variance)
    compute, epsilon = compute_type(x.dtype), c.attr("epsilon", 1e-5)

    def part(t: Tensor, i: tuple[ix.Index, ...]) -> Expr:
        return ex.cast(t[i], compute)

    factor = c.map(scale.shape, lambda *i: part(scale, i) * inverse_root(part(variance, i), epsilon))
    offset = c.map(scale.shape, lambda *i: part(bias, i) - part(mean, i) * factor[i])

    def value(*i: ix.Index) -> Expr:
        channel = channel_of(i)
        return ex.cast(ex.cast(x[i], compute) * factor[channel] + offset[channel], x.dtype)

    return c.map(x.shape, value)


@lower("BatchNormalization", since=14)
def batch_normalization(c: Context) -> Tensor | tuple[Tensor, ...]:
    """In training mode the statistics are those of the batch, and the running ones move towards them."""
    if not c.attr("training_mode", 0):
        if any(c.wants(k) for k in range(1, c.output_count)):
            raise c.refuse("BatchNormalization has running statistics as outputs in training mode only")
        return normalized_channels(c, *(c[k] for k in range(5)))
    x, scale, bias, running_mean, running_variance = (c[k] for k in range(5))
    channels = needs_channels(c, x, scale, bias, running_mean, running_variance)
    compute, momentum = compute_type(x.dtype), c.attr("momentum", 0.9)
    rows = Rows(x.shape, tuple(k for k in range(x.rank) if k != 1), keep=False)
    kept = (channels,) if x.rank > 1 else ()
    mean = mean_of(c, value_of(x, compute), rows, compute)

    def squared(*i: ix.Index) -> Expr:
        distance = ex.cast(x[i], compute) - mean[i[1:2]]
        return distance * distance

    variance = mean_of(c, squared, rows, compute)
    own = [t if kept else c.map((1,), lambda *_, t=t: t[()]) for t in (mean, variance)]
    y = normalized_channels(c, x, scale, bias, *own)

    def moved(old: Tensor, new: Tensor) -> Tensor:
        def value(*i: ix.Index) -> Expr:
            wide = compute_type(old.dtype)
            blend = ex.cast(old[i], wide) * momentum + ex.cast(new[i], wide) * (1 - momentum)
            return ex.cast(blend, old.dtype)

        return c.map(old.shape, value)

    return y, moved(running_mean, own[0]), moved(running_variance, own[1])


# Normalisations of rows


def trailing_rows(c: Context, x: Tensor) -> Rows:
    """The axes from `axis` on."""
    first = c.axis(int(c.attr("axis", -1)), x.rank)
    return Rows(x.shape, tuple(range(first, x.rank)))


def stash_type(c: Context, x: Tensor) -> DType:
    """The type of the statistics: f32 unless the node says otherwise."""
    wanted = BY_ONNX.get(int(c.attr("stash_type", 1)), F32)
    return x.dtype if x.dtype.bits > wanted.bits else compute_type(wanted)


@lower("LayerNormalization", since=17)
def layer_normalization(c: Context) -> tuple[Any, ...]:
    """`(x - mean) / √(var + ε) · scale + bias` over the axes from `axis` on; also the mean and `1 / √(var + ε)`."""
    x, scale, bias = c[0], c[1], c.optional(2)
    rows, compute, epsilon = trailing_rows(c, x), stash_type(c, x), c.attr("epsilon", 1e-5)
    mean, variance = moments(c, value_of(x, compute), rows, compute)
    inverse = c.map(variance.shape, lambda *i: inverse_root(variance[i], epsilon))

    def value(*i: ix.Index) -> Expr:
        y = (ex.cast(x[i], compute) - mean.at(*i)) * inverse.at(*i) * ex.cast(scale.at(*i), compute)
        return ex.cast(y if bias is None else y + ex.cast(bias.at(*i), compute), x.dtype)

    stash = BY_ONNX.get(int(c.attr("stash_type", 1)), F32)

    def stashed(position: int, t: Tensor) -> Tensor | None:
        return c.map(t.shape, lambda *i: ex.cast(t[i], stash)) if c.wants(position) else None

    return c.map(x.shape, value), stashed(1, mean), stashed(2, inverse)


@lower("RMSNormalization", since=23)
def rms_normalization(c: Context) -> Tensor:
    """`x / √(mean(x²) + ε) · scale` over the axes from `axis` on."""
    x, scale = c[0], c[1]
    rows, compute, epsilon = trailing_rows(c, x), stash_type(c, x), c.attr("epsilon", 1e-5)
    load = value_of(x, compute)
    squares = mean_of(c, lambda *i: load(*i) * load(*i), rows, compute)

    def value(*i: ix.Index) -> Expr:
        y = load(*i) * inverse_root(squares.at(*i), epsilon) * ex.cast(scale.at(*i), compute)
        return ex.cast(y, x.dtype)

    return c.map(x.shape, value)


@lower("InstanceNormalization", since=6)
def instance_normalization(c: Context) -> Tensor:
    """Per batch and channel, over all other axes."""
    x, scale, bias = c[0], c[1], c[2]
    needs_channels(c, x, scale, bias)
    if x.rank < 3:
        raise c.refuse(f"InstanceNormalization needs spatial axes, got {x.type}")
    rows, compute, epsilon = Rows(x.shape, tuple(range(2, x.rank))), compute_type(x.dtype), c.attr("epsilon", 1e-5)
    load = value_of(x, compute)
    mean, variance = moments(c, load, rows, compute)

    def value(*i: ix.Index) -> Expr:
        factor = inverse_root(variance.at(*i), epsilon) * ex.cast(scale[i[1]], compute)
        return ex.cast((load(*i) - mean.at(*i)) * factor + ex.cast(bias[i[1]], compute), x.dtype)

    return c.map(x.shape, value)


@lower("GroupNormalization", since=18)
def group_normalization(c: Context) -> Tensor:
    """Per batch and group of channels; scale and bias per group in opset 18, per channel from opset 21 on."""
    x, scale, bias = c[0], c[1], c[2]
    groups, channels = int(c.attr("num_groups")), x.shape[1] if x.rank > 1 else 0
    per_group = c.version < 21
    if x.rank < 3 or groups < 1 or channels % groups:
        raise c.refuse(f"GroupNormalization of {x.type} in {groups} groups")
    expected = (groups,) if per_group else (channels,)
    if scale.shape != expected or bias.shape != expected:
        raise c.refuse(f"GroupNormalization needs scale and bias of {list(expected)}, got {scale.type} and {bias.type}")
    size, epsilon = channels // groups, c.attr("epsilon", 1e-5)
    compute = compute_type(x.dtype) if per_group else stash_type(c, x)
    rows = Rows((x.shape[0], groups, size, *x.shape[2:]), tuple(range(2, x.rank + 1)))

    def grouped(n: ix.Index, g: ix.Index, k: ix.Index, *rest: ix.Index) -> Expr:
        return ex.cast(x[(n, g * size + k, *rest)], compute)

    mean, variance = moments(c, grouped, rows, compute)

    def value(*i: ix.Index) -> Expr:
        group = i[1] // size
        row = (i[0], group, *(ix.constant(0) for _ in range(x.rank - 1)))
        own = group if per_group else i[1]
        factor = inverse_root(variance[row], epsilon) * ex.cast(scale[own], compute)
        return ex.cast((ex.cast(x[i], compute) - mean[row]) * factor + ex.cast(bias[own], compute), x.dtype)

    return c.map(x.shape, value)


@lower("LpNormalization")
def lp_normalization(c: Context) -> Tensor:
    """`x / ‖x‖` along an axis; 0 where the norm is."""
    x, p = c[0], int(c.attr("p", 2))
    if p not in (1, 2):
        raise c.refuse(f"LpNormalization has p 1 or 2, got {p}")
    rows, compute = Rows(x.shape, (c.axis(int(c.attr("axis", -1)), x.rank),)), compute_type(x.dtype)
    load = value_of(x, compute)

    def part(*i: ix.Index) -> Expr:
        return load(*i) * load(*i) if p == 2 else ex.op("abs", load(*i))

    def finish(acc: Expr, *_: ix.Index) -> Expr:
        return ex.op("sqrt", acc) if p == 2 else acc

    norm = c.reduce(rows.results, rows.over, sum_of(compute), lambda i, r: part(*rows.full(i, r)), finish)[0]

    def value(*i: ix.Index) -> Expr:
        n = norm.at(*i)
        return ex.cast(ex.select(n.equals(0), ex.zero(compute), load(*i) / n), x.dtype)

    return c.map(x.shape, value)


@lower("MeanVarianceNormalization", since=9)
def mean_variance_normalization(c: Context) -> Tensor:
    """`(x - mean) / (√var + 1e-9)` over the given axes."""
    x = c[0]
    axes = {c.axis(int(a), x.rank) for a in c.attr("axes", [0, 2, 3])}
    rows, compute = Rows(x.shape, tuple(sorted(axes))), compute_type(x.dtype)
    load = value_of(x, compute)
    if not axes:
        return c.map(x.shape, lambda *_: ex.zero(x.dtype))
    mean, variance = moments(c, load, rows, compute)

    def value(*i: ix.Index) -> Expr:
        return ex.cast((load(*i) - mean.at(*i)) / (ex.op("sqrt", variance.at(*i)) + 1e-9), x.dtype)

    return c.map(x.shape, value)


@lower("LRN")
def lrn(c: Context) -> Tensor:
    """`x / (bias + alpha / size · Σ x²)^beta` over `size` channels around each."""
    x, size = c[0], int(c.attr("size"))
    if x.rank < 2:
        raise c.refuse(f"LRN needs channels, got {x.type}")
    alpha, beta, bias = c.attr("alpha", 1e-4), c.attr("beta", 0.75), c.attr("bias", 1.0)
    compute, before = compute_type(x.dtype), (size - 1) // 2
    load = value_of(x, compute)

    def body(i: Sequence[ix.Index], r: Sequence[ix.Index]) -> Expr:
        channel = i[1] + r[0] - before
        v = load(i[0], channel, *i[2:])
        return ex.select(ex.in_range(channel, 0, x.shape[1]), v * v, ex.zero(compute))

    def finish(acc: Expr, *i: ix.Index) -> Expr:
        scale = acc * (alpha / size) + bias
        return ex.cast(load(*i) / ex.op("pow", scale, ex.const(beta, compute)), x.dtype)

    return c.reduce(x.shape, (size,), sum_of(compute), body, finish)[0]
