"""Resize and Upsample: separable sampling along each axis, by tables made here.

Where the element o of an axis comes from is known at compile time: an input position and a weight for each of a few
taps. Nearest sampling has one tap of weight 1, and most often its positions are a quotient of indices, which inlines
like any view. Else an axis is a sum over its taps of `weight[o, tap] · X[position[o, tap]]`, with the axes together
while they have few taps, and one after the other where they have many (antialiasing).

Positions along an axis are computed in single precision, as ONNX Runtime does, so that ties fall to the same element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, compute_type, sum_of
from onnx2wgsl.ir.dtypes import F32, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index

from .registry import Context, lower

Array = np.ndarray[Any, Any]
Indices = tuple[Index, ...]
F = np.float32

# Axes are summed together while their taps multiply to at most this many.
JOINT_TAPS = 16


@dataclass(frozen=True)
class Options:
    """The attributes of Resize."""

    mode: str
    transform: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float


@dataclass(frozen=True)
class Sampling:
    """One axis: for each output the input positions and weights of its taps, and whether it lies outside."""

    size: int
    out: int
    position: Array
    weight: Array
    outside: Array

    @property
    def taps(self) -> int:
        return int(self.position.shape[1])

    @property
    def trivial(self) -> bool:
        return self.size == self.out and self.taps == 1 and bool((self.position[:, 0] == np.arange(self.out)).all())


def resized_length(size: int, out: int, scale: float) -> float:
    """The length that align_corners divides by: `size · scale`, which ONNX's own results keep fractional."""
    length = size * scale
    return float(out) if abs(length - out) < 1e-4 * out else length


def coordinates(o: Options, size: int, out: int, scale: float, roi: tuple[float, float]) -> Array:
    """Where each output of an axis lies in the input, as a real position."""
    x, s = np.arange(out, dtype=F), F(scale)
    match o.transform:
        case "asymmetric":
            return x / s
        case "pytorch_half_pixel" if out == 1:
            return np.zeros(1, F)
        case "half_pixel" | "pytorch_half_pixel":
            return (x + F(0.5)) / s - F(0.5)
        case "half_pixel_symmetric":
            centre = F(size) / F(2)
            return centre * (F(1) - F(out) / (s * F(size))) + (x + F(0.5)) / s - F(0.5)
        case "align_corners":
            return x * F(size - 1) / F(resized_length(size, out, scale) - 1) if out > 1 else np.zeros(1, F)
        case "tf_half_pixel_for_nn":
            return (x + F(0.5)) / s
        case _:
            start, stop = F(roi[0]), F(roi[1])
            if out == 1:
                return np.array([F(0.5) * (start + stop) * F(size - 1)], F)
            return start * F(size - 1) + x * (stop - start) * F(size - 1) / F(out - 1)


_ROUND: dict[str, Callable[[Array, float], Array]] = {
    "round_prefer_floor": lambda x, _: np.ceil(x - F(0.5)),
    "round_prefer_ceil": lambda x, _: np.floor(x + F(0.5)),
    "floor": lambda x, _: np.floor(x),
    "ceil": lambda x, _: np.ceil(x),
    "simple": lambda x, scale: np.ceil(x) if scale < 1 else np.trunc(x),
}


def _linear(distance: Array, _a: float) -> Array:
    return np.maximum(1.0 - np.abs(distance), 0.0)


def _cubic(distance: Array, a: float) -> Array:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def sampling(o: Options, size: int, out: int, scale: float, roi: tuple[float, float]) -> Sampling:
    """The taps of one axis; positions outside of the input count as the nearest edge, or not at all."""
    x = coordinates(o, size, out, scale, roi)
    outside = (x < 0) | (x > size - 1)
    if o.transform != "tf_crop_and_resize":
        outside = np.zeros(out, bool)
    if o.mode == "nearest":
        chosen = _ROUND[o.nearest](x, scale)
        position = np.clip(chosen, 0, size - 1).astype(np.int32)
        return Sampling(size, out, position[:, None], np.ones((out, 1)), outside)
    narrow = min(scale, 1.0) if o.antialias else 1.0
    kernel, reach = (_linear, 1) if o.mode == "linear" else (_cubic, 2)
    first = math.floor(-reach / narrow) + 1
    taps = np.arange(first, 2 - first)
    real = x.astype(np.float64)
    where = np.floor(real)[:, None] + taps
    weight = kernel((where - real[:, None]) * narrow, o.cubic)
    if o.exclude_outside:
        weight = np.where((where < 0) | (where >= size), 0.0, weight)
    if o.exclude_outside or o.antialias:
        weight = weight / weight.sum(axis=1, keepdims=True)
    used = (weight != 0).any(axis=0) if out else taps == 0
    position = np.clip(where, 0, size - 1).astype(np.int32)
    return Sampling(size, out, position[:, used], weight[:, used], outside)


def affine(s: Sampling) -> tuple[int, int, int] | None:
    """(a, b, d) with position = (a·o + b) // d for every output of a nearest axis, or None."""
    if not s.out:
        return 1, 0, 1
    position, o = s.position[:, 0].astype(np.int64), np.arange(s.out)
    common = math.gcd(s.size, s.out)
    candidates = [(s.size // common, s.out // common)]
    if s.out > 1:
        candidates.append((int(position[-1] - position[0]), s.out - 1))
    for a, d in candidates:
        for factor in (1, 2):
            offset = int(position[0]) * d * factor
            for b in {offset, offset + a * factor // 2, offset + (d * factor - 1) // 2, offset + d * factor - 1}:
                if ((a * factor * o + b) // (d * factor) == position).all():
                    return a * factor, b, d * factor
    return None


class Sampler:
    """The sampled axes of a tensor as tables of the program."""

    def __init__(self, c: Context, axes: dict[int, Sampling], dtype: DType) -> None:
        self.axes = {a: s for a, s in axes.items() if not s.trivial}
        self.c, self.dtype = c, dtype
        self.position = {a: c.constant(s.position) for a, s in self.axes.items() if affine_of(s) is None}
        self.weight = {a: c.constant(s.weight.astype(dtype.numpy)) for a, s in self.axes.items() if s.taps > 1}
        self.outside = {a: c.constant(s.outside) for a, s in axes.items() if s.outside.any()}

    def index(self, axis: int, o: Index, tap: Index) -> Index:
        s = self.axes[axis]
        form = affine_of(s)
        if form is not None:
            return (o * form[0] + form[1]) // form[2]
        return ix.value_index(self.position[axis][o, tap], 0, s.size - 1)

    def sum(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """`Σ weights · X[positions]` over the taps of `axes`; a map where all have one tap."""
        shape = [self.axes[a].out if a in axes else n for a, n in enumerate(x.shape)]
        many = [a for a in axes if self.axes[a].taps > 1]

        def body(i: Indices, r: Indices) -> Expr:
            tap = dict(zip(many, r, strict=True))
            where = [self.index(a, o, tap.get(a, ix.constant(0))) if a in axes else o for a, o in enumerate(i)]
            if not many:
                return x[tuple(where)]
            value = ex.cast(x[tuple(where)], self.dtype)
            for a in many:
                value = value * self.weight[a][i[a], tap[a]]
            return value

        if not many:
            return self.c.map(shape, lambda *i: body(i, ()))
        return self.c.reduce(shape, [self.axes[a].taps for a in many], sum_of(self.dtype), body)[0]

    def apply(self, x: Tensor) -> Tensor:
        """All axes: those of one tap and few others together, and the rest one after the other."""
        taps = math.prod(s.taps for s in self.axes.values())
        shrinking = sorted(self.axes, key=lambda a: self.axes[a].out / self.axes[a].size)
        groups = [list(self.axes)] if taps <= JOINT_TAPS else [[a] for a in shrinking]
        result = x
        for group in groups:
            result = self.sum(result, group)
        return result


def affine_of(s: Sampling) -> tuple[int, int, int] | None:
    return affine(s) if s.taps == 1 else None


def resample(c: Context, x: Tensor, o: Options, axes: dict[int, Sampling]) -> Tensor:
    """The sampled tensor in the type of X; elements outside of a cropped region take the extrapolation value."""
    dtype = compute_type(x.dtype) if x.dtype.is_float else F32
    sampler = Sampler(c, axes, dtype)
    result = sampler.apply(x)
    if not sampler.outside and result.dtype is x.dtype:
        return result

    def finish(*i: Index) -> Expr:
        value = to_type(result[i], x.dtype, o.antialias)
        beyond = ex.FALSE
        for axis, table in sampler.outside.items():
            beyond = beyond | table[i[axis]]
        return ex.select(beyond, ex.const(o.extrapolation, x.dtype), value)

    return c.map(result.shape, finish)


def to_type(value: Expr, dtype: DType, nearest: bool) -> Expr:
    """An interpolated value in the type of X: integers truncate, or with antialiasing round.

    Before it is truncated, a sum of weights that comes out just below a whole number is taken as that number.
    """
    if value.dtype.is_float and dtype.is_integer:
        size = ex.op("floor", ex.op("abs", value) + (0.5 if nearest else 1e-4))
        value = ex.select(value < 0.0, -size, size)
    return ex.cast(value, dtype)


def options(c: Context) -> Options:
    mode = str(c.attr("mode", "nearest"))
    found = Options(
        "linear" if mode == "bilinear" else mode,
        str(c.attr("coordinate_transformation_mode", "half_pixel")),
        str(c.attr("nearest_mode", "round_prefer_floor")),
        float(c.attr("cubic_coeff_a", -0.75)),
        bool(c.attr("exclude_outside", 0)),
        bool(c.attr("antialias", 0)),
        float(c.attr("extrapolation_value", 0.0)),
    )
    transforms = "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric tf_crop_and_resize"
    if found.transform not in (*transforms.split(), "tf_half_pixel_for_nn"):
        raise c.refuse(f"coordinate_transformation_mode {found.transform} is not known")
    if found.mode not in ("nearest", "linear", "cubic") or found.nearest not in _ROUND:
        raise c.refuse(f"mode {mode} with nearest_mode {found.nearest} is not known")
    return found


def scaled_size(size: int, scale: float) -> int:
    """The size that a scale gives, in single precision: 5 elements times 1.4 are 7, though 1.4 rounds down."""
    return math.floor(F(size) * F(scale))


def sized_axes(c: Context, x: Tensor) -> tuple[list[int], list[int], list[float]]:
    """The resized axes with their output sizes and scales, from `scales` or `sizes`."""
    axes = [c.axis(int(a), x.rank) for a in c.attr("axes") or range(x.rank)]
    scales, sizes = (c.optional_value(p) if len(c.inputs) > p else None for p in (2, 3))
    if scales is not None and scales.size:
        if scales.size != len(axes):
            raise c.refuse(f"{scales.size} scales are given for {len(axes)} axes")
        factors = [float(s) for s in scales.reshape(-1)]
        return axes, [scaled_size(x.shape[a], s) for a, s in zip(axes, factors, strict=True)], factors
    if sizes is None or sizes.size != len(axes):
        raise c.refuse(f"neither scales nor sizes are given for {len(axes)} axes")
    wanted = [int(s) for s in sizes.reshape(-1)]
    if any(x.shape[a] == 0 for a in axes):
        raise c.refuse(f"an empty tensor of {x.type} has no scale")
    policy = str(c.attr("keep_aspect_ratio_policy", "stretch"))
    factors = [w / x.shape[a] for a, w in zip(axes, wanted, strict=True)]
    if policy == "stretch":
        return axes, wanted, factors
    common = min(factors) if policy == "not_larger" else max(factors)
    return axes, [math.floor(common * x.shape[a] + 0.5) for a in axes], [common] * len(axes)


@lower("Resize", since=11)
def resize(c: Context) -> Tensor:
    x, o = c[0], options(c)
    axes, outs, scales = sized_axes(c, x)
    regions = [(0.0, 1.0)] * len(axes)
    if o.transform == "tf_crop_and_resize":
        roi = c.value(1).astype(np.float64).reshape(2, -1)
        if roi.shape[1] != len(axes):
            raise c.refuse(f"roi has {roi.size} values for {len(axes)} axes")
        regions = [(float(a), float(b)) for a, b in roi.T]
    found = {
        a: sampling(o, x.shape[a], out, scale, region)
        for a, out, scale, region in zip(axes, outs, scales, regions, strict=True)
        if out != x.shape[a] or scale != 1 or o.transform == "tf_crop_and_resize"
    }
    return resample(c, x, o, found)


def scaled(c: Context, x: Tensor, scales: Sequence[float]) -> Tensor:
    """The first form of Resize: asymmetric, and nearest truncates (or rounds up where it shrinks)."""
    if len(scales) != x.rank:
        raise c.refuse(f"{len(scales)} scales are given for an input of {x.type}")
    mode = str(c.attr("mode", "nearest"))
    if mode not in ("nearest", "linear", "bilinear"):
        raise c.refuse(f"mode {mode} is not known")
    o = Options("nearest" if mode == "nearest" else "linear", "asymmetric", "simple", 0.0, False, False, 0.0)
    found = {
        a: sampling(o, n, scaled_size(n, s), s, (0.0, 1.0))
        for a, (n, s) in enumerate(zip(x.shape, scales, strict=True))
        if s != 1
    }
    return resample(c, x, o, found)


@lower("Resize", since=10)
@lower("Upsample", since=9)
def resize_10(c: Context) -> Tensor:
    return scaled(c, c[0], [float(s) for s in c.value(1).reshape(-1)])


@lower("Upsample", since=7)
def upsample_7(c: Context) -> Tensor:
    return scaled(c, c[0], [float(s) for s in c.attr("scales")])


@lower("Upsample")
def upsample_1(c: Context) -> Tensor:
    return scaled(c, c[0], [1.0, 1.0, float(c.attr("height_scale")), float(c.attr("width_scale"))])
