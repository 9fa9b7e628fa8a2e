"""Convolutions: contractions whose operand is a guarded index map.

A convolution is `Y[n, g, m, o…] = Σ_{c, k…} X[n, g, c, o·stride + k·dilation − pad…] · W[g, m, c, k…]`, where an
element in the padding is zero: implicit GEMM, with nothing materialised. One input and one output channel per group
(depthwise) leaves no column axis, and is a reduction.

A transposed convolution adds every input element, times the kernel, to the output from `i·stride − pad` on. Read from
the output's side, the position `o = stride·q + r` of *phase* r receives only from the taps k with
`k·dilation ≡ r + pad (mod stride)`, and from the inputs `i = (o + pad − k·dilation) / stride`, which is affine in q and
in the number of the tap. Where all phases have equally many taps (kernel a multiple of the stride, no dilation) the
phase is an axis of one contraction; else each phase is a step and a store of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.builder import Tensor, accumulator, product_step, sum_of
from onnx2wgsl.ir.dtypes import F32, I32, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.program import Axis, Contract, Reduce, Store

from .registry import Context, lower
from .windows import Window, auto_pad, pads, per_axis, positions, sliding_windows

Indices = tuple[Index, ...]
Operand = Callable[..., Expr]
# (batch, channel, taps, outputs) → the element that a tap of an output sees
Taken = Callable[[Index, Index, Sequence[Index], Sequence[Index]], Expr]
# (value of the sum, *index of the output element) → the output element
Finish = Callable[..., Expr]
Steps = tuple["Contract | Reduce", ...]


@dataclass(frozen=True)
class Channels:
    """Batch size, groups, and the input and output channels of one group."""

    batch: int
    groups: int
    inputs: int
    outputs: int

    @property
    def space(self) -> tuple[int, int, int]:
        return self.batch, self.groups, self.outputs


def channels(c: Context, x: Tensor, w: Tensor, transposed: bool = False) -> Channels:
    """Reads the channel counts off X and W (`[M, C/group, …]`, transposed `[C, M/group, …]`)."""
    if x.rank < 3 or w.rank != x.rank:
        raise c.refuse(f"{c.op} needs X and W of one rank of 3 or more, got {x.type} and {w.type}")
    groups = int(c.attr("group", 1))
    own = x.shape[1] // groups if groups else 0
    fits = groups > 0 and own * groups == x.shape[1]
    fits = fits and (w.shape[0] == x.shape[1] if transposed else w.shape[1] == own and w.shape[0] % groups == 0)
    if not fits:
        raise c.refuse(f"channels of {x.type} and {w.type} do not agree for group {groups}")
    return Channels(x.shape[0], groups, own, w.shape[1] if transposed else w.shape[0] // groups)


def conv_windows(c: Context, x: Tensor, w: Tensor) -> tuple[Window, ...]:
    kernel = c.attr("kernel_shape") or w.shape[2:]
    if tuple(kernel) != w.shape[2:]:
        raise c.refuse(f"kernel_shape {list(kernel)} differs from the kernel of {w.type}")
    return sliding_windows(c, x.shape[2:], w.shape[2:])


def sum_step(
    name: str, over: Sequence[Axis], lhs: Expr, rhs: Expr, dtype: DType, has_column: bool
) -> tuple[Steps, Expr]:
    """Σ lhs · rhs as a contraction, or as a reduction where the output has no column axis."""
    if has_column or all(a.size == 1 for a in over) or not all(a.size for a in over):
        return product_step(name, over, lhs, rhs, dtype)
    body = ex.cast(lhs, dtype) * ex.cast(rhs, dtype)
    return (Reduce(name, tuple(a for a in over if a.size != 1), sum_of(dtype), (body,)),), ex.acc(name, dtype)


def named(prefix: str, sizes: Sequence[int]) -> tuple[Axis, ...]:
    return tuple(Axis(f"{prefix}{k}", size) for k, size in enumerate(sizes))


def padded(windows: Sequence[Window], x: Operand) -> Taken:
    """The element under a tap, zero in the padding."""

    def taken(n: Index, channel: Index, k: Sequence[Index], o: Sequence[Index]) -> Expr:
        where, inside = positions(windows, o, k)
        value = x(n, channel, *where)
        return ex.select(inside, value, ex.zero(value.dtype))

    return taken


def convolve(
    c: Context, ch: Channels, windows: Sequence[Window], x: Taken, w: Operand, finish: Finish, dtype: DType
) -> Tensor:
    """The sum of `x(n, channel, taps, outputs) · w(m, channel of the group, tap…)`, accumulated in `dtype`.

    `padded` makes x of a tensor. `finish(sum, n, m, o…)` makes the result.
    """
    space = named("i", (*ch.space, *(win.out for win in windows)))
    over = named("r", (ch.inputs, *(win.kernel for win in windows)))
    n, g, m, *o = (a.var for a in space)
    ci, *k = (a.var for a in over)
    lhs = x(n, g * ch.inputs + ci, k, o)
    depthwise = ch.inputs == 1 and ch.outputs == 1 and ch.groups > 1
    steps, total = sum_step("a0", over, lhs, w(g * ch.outputs + m, ci, *k), dtype, not depthwise)
    at = (n, g * ch.outputs + m, *o)
    value = finish(total, *at)
    result = c.builder.tensor(value.dtype, (ch.batch, ch.groups * ch.outputs, *(win.out for win in windows)))
    c.builder.emit(space, steps, [Store(result.name, (), at, value)])
    return result


def add_bias(bias: Tensor | None, dtype: DType, result: DType) -> Finish:
    """`sum + bias[m]`, rounded once."""

    def finish(total: Expr, _n: Index, m: Index, *_o: Index) -> Expr:
        return ex.cast(total if bias is None else total + ex.cast(bias[m], dtype), result)

    return finish


@lower("Conv")
def conv(c: Context) -> Tensor:
    x, w = c[0], c[1]
    dtype = accumulator(x.dtype)
    finish = add_bias(c.optional(2), dtype, x.dtype)
    windows = conv_windows(c, x, w)
    return convolve(c, channels(c, x, w), windows, padded(windows, _load(x)), _load(w), finish, dtype)


def _load(t: Tensor) -> Operand:
    return lambda *i: t[i]


def centred(c: Context, t: Tensor, zero_point: Tensor | None) -> Operand:
    """`t − zero_point` in i32; the zero point is one value, or one per element of the first axis."""
    if zero_point is None:
        return lambda *i: ex.cast(t[i], I32)
    scalar = zero_point.type.count == 1
    if not scalar and zero_point.shape != t.shape[:1]:
        raise c.refuse(f"a zero point of {zero_point.type} is neither one value nor one per output channel of {t.type}")

    def value(*i: Index) -> Expr:
        return ex.cast(t[i], I32) - ex.cast(one_of(zero_point, i[0]), I32)

    return value


def one_of(t: Tensor, channel: Index) -> Expr:
    """The element of a parameter that is one value or one per channel."""
    return t[(0,) * t.rank] if t.type.count == 1 else t[channel]


@lower("ConvInteger", since=10)
def conv_integer(c: Context) -> Tensor:
    x, w, x_zero, w_zero = c[0], c[1], c.optional(2), c.optional(3)
    if x_zero is not None and x_zero.type.count != 1:
        raise c.refuse(f"x_zero_point must be one value, got {x_zero.type}")
    finish = add_bias(None, I32, I32)
    windows = conv_windows(c, x, w)
    left, right = padded(windows, centred(c, x, x_zero)), centred(c, w, w_zero)
    return convolve(c, channels(c, x, w), windows, left, right, finish, I32)


@lower("QLinearConv", since=10)
def qlinear_conv(c: Context) -> Tensor:
    """`Y = saturate(round((Σ (X − zx)(W − zw) + B) · (sx · sw / sy)) + zy)`; sw and zw may be per output channel."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (c[k] for k in range(8))
    bias = c.optional(8)
    if any(t.type.count != 1 for t in (x_scale, x_zero, y_scale, y_zero)):
        raise c.refuse("the scales and zero points of X and Y must be one value")

    def finish(total: Expr, _n: Index, m: Index, *_o: Index) -> Expr:
        whole = total if bias is None else total + bias[m]
        factor = one_of(x_scale, m) * one_of(w_scale, m) / one_of(y_scale, m)
        return requantize(ex.cast(whole, F32) * factor, one_of(y_zero, m))

    windows = conv_windows(c, x, w)
    left, right = padded(windows, centred(c, x, x_zero)), centred(c, w, w_zero)
    return convolve(c, channels(c, x, w), windows, left, right, finish, I32)


def requantize(scaled: Expr, zero_point: Expr) -> Expr:
    """`saturate(round(scaled) + zero_point)` in the type of the zero point; ties to even."""
    dtype = zero_point.dtype
    shifted = ex.op("round", scaled) + ex.cast(zero_point, F32)
    return ex.cast(ex.op("min", ex.op("max", shifted, ex.const(dtype.lo, F32)), ex.const(dtype.hi, F32)), dtype)


# Transposed convolution


@dataclass(frozen=True)
class Spread:
    """One axis of a transposed convolution: `size` elements are spread over `out`, starting at −before."""

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    out: int

    @property
    def uniform(self) -> bool:
        """Whether every phase has the same number of taps at affine positions."""
        return self.kernel % self.stride == 0 and (self.dilation == 1 or self.stride == 1)


@dataclass(frozen=True)
class Phase:
    """The taps `first + step·t`, t below `count`, that reach the outputs `stride·q + r` from `q + shift − back·t`."""

    r: int
    first: int
    step: int
    count: int
    shift: int
    back: int
    outputs: int


def phases(s: Spread) -> list[Phase]:
    """The phases of an axis that have outputs, those without taps included."""
    common = gcd(s.dilation, s.stride)
    found = []
    for r in range(min(s.stride, s.out)):
        first = next((k for k in range(s.kernel) if (r + s.before - k * s.dilation) % s.stride == 0), s.kernel)
        step = s.stride // common
        count = len(range(first, s.kernel, step))
        shift = (r + s.before - first * s.dilation) // s.stride
        found.append(Phase(r, first, step, count, shift, s.dilation // common, -(-(s.out - r) // s.stride)))
    return found


@lower("ConvTranspose")
def conv_transpose(c: Context) -> Tensor:
    x, w = c[0], c[1]
    ch = channels(c, x, w, transposed=True)
    spreads = _spreads(c, x, w)
    dtype = accumulator(x.dtype)
    finish = add_bias(c.optional(2), dtype, x.dtype)
    result = c.builder.tensor(x.dtype, (ch.batch, ch.groups * ch.outputs, *(s.out for s in spreads)))
    if all(s.uniform for s in spreads):
        _phases_as_axes(c, ch, spreads, finish, dtype, result)
    else:
        _phases_as_steps(c, ch, spreads, finish, dtype, result)
    return result


def _phases_as_axes(
    c: Context, ch: Channels, spreads: Sequence[Spread], finish: Finish, dtype: DType, result: Tensor
) -> None:
    """One contraction over (channel, tap) with the phases as axes; the last, partial period is a store of its own."""
    x, w = c[0], c[1]
    periods = [-(-s.out // s.stride) for s in spreads]
    strides = [s.stride for s in spreads]
    space = named("i", (*ch.space, *periods, *strides))
    over = named("r", (ch.inputs, *(s.kernel // s.stride for s in spreads)))
    n, g, m, *rest = (a.var for a in space)
    ci, *t = (a.var for a in over)
    q, r = rest[: len(spreads)], rest[len(spreads) :]
    where, taps, inside = [], [], ex.TRUE
    for s, qi, ri, ti in zip(spreads, q, r, t, strict=True):
        taps.append((ri + s.before) % s.stride + ti * s.stride)
        where.append(qi + (ri + s.before) // s.stride - ti * s.dilation)
        inside = inside & ex.in_range(where[-1], 0, s.size)
    lhs = ex.select(inside, x[(n, g * ch.inputs + ci, *where)], ex.zero(x.dtype))
    depthwise = ch.inputs == 1 and ch.outputs == 1 and ch.groups > 1
    steps, total = sum_step("a0", over, lhs, w[(g * ch.inputs + ci, m, *taps)], dtype, not depthwise)
    at = (n, g * ch.outputs + m, *(qi * s.stride + ri for s, qi, ri in zip(spreads, q, r, strict=True)))
    value = finish(total, *at)
    first = 3 + len(spreads)
    boxes = product(*(_boxes(s, space[3 + k].name, space[first + k].name) for k, s in enumerate(spreads)))
    stores = [Store(result.name, (), at, value, tuple(d for part in box for d in part)) for box in boxes]
    c.builder.emit(space, steps, stores)


def _boxes(s: Spread, period: str, phase: str) -> list[tuple[tuple[str, int, int], ...]]:
    """The (period, phase) boxes that cover exactly the outputs of an axis."""
    whole, rest = divmod(s.out, s.stride)
    if not rest:
        return [()]
    partial = ((period, whole, whole + 1), (phase, 0, rest))
    return [((period, 0, whole),), partial] if whole else [partial]


def _phases_as_steps(
    c: Context, ch: Channels, spreads: Sequence[Spread], finish: Finish, dtype: DType, result: Tensor
) -> None:
    """A contraction and a store for each combination of phases."""
    x, w = c[0], c[1]
    space = named("i", (*ch.space, *(-(-s.out // s.stride) for s in spreads)))
    n, g, m, *q = (a.var for a in space)
    depthwise = ch.inputs == 1 and ch.outputs == 1 and ch.groups > 1
    steps: list[Contract | Reduce] = []
    stores: list[Store] = []
    for number, combination in enumerate(product(*map(phases, spreads))):
        over = named("r", (ch.inputs, *(p.count for p in combination)))
        ci, *t = (a.var for a in over)
        where, taps, inside = [], [], ex.TRUE
        for s, p, qi, ti in zip(spreads, combination, q, t, strict=True):
            taps.append(p.first + ti * p.step)
            where.append(qi + p.shift - ti * p.back)
            inside = inside & ex.in_range(where[-1], 0, s.size)
        lhs = ex.select(inside, x[(n, g * ch.inputs + ci, *where)], ex.zero(x.dtype))
        made, total = sum_step(f"a{number}", over, lhs, w[(g * ch.inputs + ci, m, *taps)], dtype, not depthwise)
        steps.extend(made)
        at = (n, g * ch.outputs + m, *(qi * s.stride + p.r for s, p, qi in zip(spreads, combination, q, strict=True)))
        stores.append(Store(result.name, (), at, finish(total, *at), tuple(_domain(space[3:], combination))))
    c.builder.emit(space, steps, stores)


def _domain(axes: Sequence[Axis], combination: Sequence[Phase]) -> Iterator[tuple[str, int, int]]:
    for axis, phase in zip(axes, combination, strict=True):
        if phase.outputs < axis.size:
            yield axis.name, 0, phase.outputs


def _spreads(c: Context, x: Tensor, w: Tensor) -> list[Spread]:
    """The geometry of a transposed convolution by strides, dilations, pads, auto_pad, output_padding, output_shape."""
    rank = x.rank - 2
    strides, dilations = per_axis(c, "strides", rank, 1), per_axis(c, "dilations", rank, 1)
    extra, explicit, mode = per_axis(c, "output_padding", rank, 0), pads(c, rank), auto_pad(c)
    wanted = c.attr("output_shape")
    result = []
    for k, (size, kernel) in enumerate(zip(x.shape[2:], w.shape[2:], strict=True)):
        natural = strides[k] * (size - 1) + extra[k] + (kernel - 1) * dilations[k] + 1
        before, after = explicit[k] if mode == "NOTSET" else (0, 0)
        out = natural - before - after
        if wanted or mode.startswith("SAME"):
            out = int(list(wanted)[k - rank]) if wanted else size * strides[k]
            total = max(natural - out, 0)
            before = total // 2 if mode == "SAME_UPPER" else total - total // 2
        result.append(Spread(size, kernel, strides[k], dilations[k], before, max(out, 0)))
    return result
