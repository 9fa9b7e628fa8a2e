"""The scalar operators: one table of name, arity, result type and NumPy meaning.

Integer arithmetic wraps. `floordiv` and `mod` round to minus infinity (ONNX Mod), `div` and `rem` of integers truncate
(ONNX Div, Mod with fmod=1) and give 0 for a zero divisor. Shifts by the width or more give 0. `min` and `max`
propagate NaN. `round` ties to even. Comparisons with NaN are false, `ne` is true.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dtypes import ALL, BOOL, F32, F32X2, F64, I32, I64, U32, U32X2, U64, DType

Array = Any


@dataclass(frozen=True)
class OpInfo:
    """`result`: "same" as the first argument, "second", "attr" (given), or bool, wide, u32, i32, f32, double."""

    name: str
    arity: int
    result: str
    numpy: Callable[..., Array]
    commutative: bool = False


def _wide(x: Array, dtype: Any) -> Array:
    """Small floats compute in f32, as the GPU does."""
    return x.astype(np.float32) if dtype.kind == "V" or (dtype.itemsize < 4 and dtype.kind == "f") else x


def _float(function: Callable[..., Array]) -> Callable[..., Array]:
    def call(*args: Array) -> Array:
        dtype = np.asarray(args[0]).dtype
        return np.asarray(function(*(_wide(np.asarray(a), dtype) for a in args))).astype(dtype, copy=False)

    return call


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(np.asarray(x, np.float64)).astype(x.dtype)


def _bool_or(integer: Callable[..., Array], logical: Callable[..., Array]) -> Callable[..., Array]:
    def call(*args: Array) -> Array:
        return logical(*args) if np.asarray(args[0]).dtype == np.bool_ else integer(*args)

    return call


def _div(a: Array, b: Array) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "iu":
        return _float(np.divide)(a, b)
    safe = np.where(b == 0, np.ones_like(b), b)
    quotient = a // safe
    return np.where(b == 0, np.zeros_like(a), quotient + ((quotient < 0) & (quotient * safe != a)).astype(a.dtype))


def _rem(a: Array, b: Array) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "iu":
        return _float(np.fmod)(a, b)
    return np.where(b == 0, np.zeros_like(a), a - _div(a, b) * b)


def _floordiv(a: Array, b: Array) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "iu":
        return _float(lambda x, y: np.floor(x / y))(a, b)
    return np.where(b == 0, np.zeros_like(a), a // np.where(b == 0, np.ones_like(b), b))


def _mod(a: Array, b: Array) -> Array:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind not in "iu":
        return _float(np.mod)(a, b)
    return np.where(b == 0, np.zeros_like(a), a - _floordiv(a, b) * b)


def _popcount(x: Array) -> Array:
    x = np.ascontiguousarray(x)
    return np.bitwise_count(x.view(f"u{x.dtype.itemsize}")).astype(x.dtype).reshape(x.shape)


def _shift(a: Array, n: Array, left: bool) -> Array:
    a, n = np.asarray(a), np.asarray(n)
    bits = a.dtype.itemsize * 8
    count = n.astype(np.uint64)
    safe = np.minimum(count, bits - 1).astype(a.dtype)
    moved = a << safe if left else a >> safe
    over = np.zeros_like(a) if left or a.dtype.kind == "u" else np.where(a < 0, -1, 0).astype(a.dtype)
    return np.where(count >= bits, over, moved)


def _signed(x: Array) -> Array:
    return np.asarray(x, np.uint64).view(np.int64)


def _unsigned(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.uint64)


def cast_array(x: Array, dtype: DType) -> Array:
    """ONNX Cast of an array: integers wrap, floats to integers truncate and saturate (NaN gives 0), bool is x != 0."""
    x = np.asarray(x)
    target = dtype.numpy
    if x.dtype == target:
        return x
    with np.errstate(all="ignore"):
        if target == np.bool_:
            return x.astype(np.float32) != 0 if x.dtype.kind == "V" else x != 0
        floating = (
            x.dtype.kind in "fV" and not dtype.is_float and x.dtype.name not in ("int4", "uint4", "int2", "uint2")
        )
        if not floating:
            return x.astype(target)
        wide = x.astype(np.float64)
        lo, hi = float(dtype.lo), float(dtype.hi)
        inside = np.where(np.isnan(wide), 0.0, np.clip(np.trunc(wide), lo, hi))
        if dtype.bits < 64:
            return inside.astype(np.int64).astype(target)
        result = np.where(inside >= hi, 0.0, inside).astype(target)
        return np.where(inside >= hi, np.asarray(dtype.hi, target), result)


def _bitcast(x: Array, dtype: DType) -> Array:
    return np.ascontiguousarray(x).view(dtype.numpy).reshape(np.shape(x))


def _mulhi(a: Array, b: Array) -> Array:
    return ((a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)


def _compare(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: function(_wide(np.asarray(a), np.asarray(a).dtype), _wide(np.asarray(b), np.asarray(b).dtype))


def _wide_shift(a: Array, n: Array, kind: str) -> Array:
    moved = _shift(_signed(a) if kind == "sar" else a, n.astype(np.int64) if kind == "sar" else n, kind == "shl")
    return _unsigned(moved)


def _to_odd(x: Array) -> Array:
    """The f32 next to a float64 whose last bit is 1, unless it is exact: rounding it again is rounding once."""
    near = np.asarray(x).astype(np.float32)
    down = np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float32(0)), near)
    inexact = np.isfinite(x) & (down != x)
    return np.where(inexact, (down.view(np.uint32) | 1).view(np.float32), near)


_TABLE = [
    OpInfo("add", 2, "same", _bool_or(np.add, np.logical_or), commutative=True),
    OpInfo("sub", 2, "same", np.subtract),
    OpInfo("mul", 2, "same", _bool_or(np.multiply, np.logical_and), commutative=True),
    OpInfo("div", 2, "same", _div),
    OpInfo("rem", 2, "same", _rem),
    OpInfo("floordiv", 2, "same", _floordiv),
    OpInfo("mod", 2, "same", _mod),
    OpInfo("min", 2, "same", np.minimum, commutative=True),
    OpInfo("max", 2, "same", np.maximum, commutative=True),
    OpInfo("pow", 2, "same", _float(np.power)),
    OpInfo("atan2", 2, "same", _float(np.arctan2)),
    OpInfo("and", 2, "same", _bool_or(np.bitwise_and, np.logical_and), commutative=True),
    OpInfo("or", 2, "same", _bool_or(np.bitwise_or, np.logical_or), commutative=True),
    OpInfo("xor", 2, "same", _bool_or(np.bitwise_xor, np.logical_xor), commutative=True),
    OpInfo("shl", 2, "same", lambda a, n: _shift(a, n, True)),
    OpInfo("shr", 2, "same", lambda a, n: _shift(a, n, False)),
    OpInfo("not", 1, "same", _bool_or(np.invert, np.logical_not)),
    OpInfo("neg", 1, "same", np.negative),
    OpInfo("abs", 1, "same", np.abs),
    OpInfo("sign", 1, "same", np.sign),
    OpInfo("floor", 1, "same", _float(np.floor)),
    OpInfo("ceil", 1, "same", _float(np.ceil)),
    OpInfo("round", 1, "same", _float(np.round)),
    OpInfo("trunc", 1, "same", _float(np.trunc)),
    OpInfo("sqrt", 1, "same", _float(np.sqrt)),
    OpInfo("exp", 1, "same", _float(np.exp)),
    OpInfo("log", 1, "same", _float(np.log)),
    OpInfo("sin", 1, "same", _float(np.sin)),
    OpInfo("cos", 1, "same", _float(np.cos)),
    OpInfo("tan", 1, "same", _float(np.tan)),
    OpInfo("asin", 1, "same", _float(np.arcsin)),
    OpInfo("acos", 1, "same", _float(np.arccos)),
    OpInfo("atan", 1, "same", _float(np.arctan)),
    OpInfo("sinh", 1, "same", _float(np.sinh)),
    OpInfo("cosh", 1, "same", _float(np.cosh)),
    OpInfo("tanh", 1, "same", _float(np.tanh)),
    OpInfo("asinh", 1, "same", _float(np.arcsinh)),
    OpInfo("acosh", 1, "same", _float(np.arccosh)),
    OpInfo("atanh", 1, "same", _float(np.arctanh)),
    OpInfo("erf", 1, "same", _float(_erf)),
    OpInfo("popcount", 1, "same", _popcount),
    OpInfo("isnan", 1, "bool", lambda x: np.isnan(_wide(x, x.dtype))),
    OpInfo("isinf", 1, "bool", lambda x: np.isinf(_wide(x, x.dtype))),
    OpInfo("eq", 2, "bool", _compare(np.equal), commutative=True),
    OpInfo("ne", 2, "bool", _compare(np.not_equal), commutative=True),
    OpInfo("lt", 2, "bool", _compare(np.less)),
    OpInfo("le", 2, "bool", _compare(np.less_equal)),
    OpInfo("select", 3, "second", np.where),
    OpInfo("cast", 1, "attr", cast_array),
    OpInfo("bitcast", 1, "attr", _bitcast),
    # Marks a rounding that the program asks for; one between the operators of a chain may be left out.
    OpInfo("exact", 1, "same", lambda x: x),
    OpInfo("mulhi", 2, "same", _mulhi),
    # Two-word integers: what `split-int64` rewrites i64 and u64 to. The interpreter holds a pair as one uint64.
    OpInfo("pair", 2, "wide", lambda lo, hi: lo.astype(np.uint64) | hi.astype(np.uint64) << np.uint64(32)),
    OpInfo("lo", 1, "u32", lambda x: np.asarray(x).astype(np.uint32)),
    OpInfo("hi", 1, "u32", lambda x: (np.asarray(x) >> np.uint64(32)).astype(np.uint32)),
    OpInfo("add64", 2, "wide", np.add, commutative=True),
    OpInfo("sub64", 2, "wide", np.subtract),
    OpInfo("mul64", 2, "wide", np.multiply, commutative=True),
    OpInfo("udiv64", 2, "wide", _div),
    OpInfo("urem64", 2, "wide", _rem),
    OpInfo("sdiv64", 2, "wide", lambda a, b: _unsigned(_div(_signed(a), _signed(b)))),
    OpInfo("srem64", 2, "wide", lambda a, b: _unsigned(_rem(_signed(a), _signed(b)))),
    OpInfo("shl64", 2, "wide", lambda a, n: _wide_shift(a, n, "shl")),
    OpInfo("shr64", 2, "wide", lambda a, n: _wide_shift(a, n, "shr")),
    OpInfo("sar64", 2, "wide", lambda a, n: _wide_shift(a, n, "sar")),
    OpInfo("u64tof32", 1, "f32", lambda x: x.astype(np.float32)),
    OpInfo("s64tof32", 1, "f32", lambda x: _signed(x).astype(np.float32)),
    OpInfo("f32tou64", 1, "wide", lambda x: _saturate(x, np.uint64)),
    OpInfo("f32tos64", 1, "wide", lambda x: _unsigned(_saturate(x, np.int64))),
    # Double-floats: what `split-float64` rewrites f64 to; `from_f64` and `to_f64` are between them and f64's own bytes.
    OpInfo("from_f64", 1, "double", lambda bits: _bitcast(bits, F64)),
    OpInfo("to_f64", 1, "wide", lambda x: _bitcast(np.asarray(x, np.float64), U64)),
    OpInfo("f32tof32x2", 1, "double", lambda x: x.astype(np.float64)),
    OpInfo("s32tof32x2", 1, "double", lambda x: x.astype(np.float64)),
    OpInfo("u32tof32x2", 1, "double", lambda x: x.astype(np.float64)),
    OpInfo("s64tof32x2", 1, "double", lambda x: _signed(x).astype(np.float64)),
    OpInfo("u64tof32x2", 1, "double", lambda x: x.astype(np.float64)),
    OpInfo("f32x2tof32", 1, "f32", lambda x: x.astype(np.float32)),
    OpInfo("f32x2toodd", 1, "f32", _to_odd),
    OpInfo("f32x2tos32", 1, "i32", lambda x: cast_array(x, I32)),
    OpInfo("f32x2tou32", 1, "u32", lambda x: cast_array(x, U32)),
    OpInfo("f32x2tos64", 1, "wide", lambda x: _unsigned(cast_array(x, I64))),
    OpInfo("f32x2tou64", 1, "wide", lambda x: cast_array(x, U64)),
]


def _saturate(x: Array, dtype: Any) -> Array:
    info = np.iinfo(dtype)
    wide = np.where(np.isnan(x), 0.0, np.trunc(np.asarray(x, np.float64)))
    inside = np.where((wide >= float(info.max)) | (wide <= float(info.min)), 0.0, wide).astype(dtype)
    return np.where(
        wide >= float(info.max), dtype(info.max), np.where(wide <= float(info.min), dtype(info.min), inside)
    )


def _narrow_codecs() -> list[OpInfo]:
    """`to_X` gives the bits of an f32 in the narrow float X as u32, `from_X` the f32 of such bits."""

    def encode(dtype: DType) -> Callable[[Array], Array]:
        word = np.uint16 if dtype.bits == 16 else np.uint8
        return lambda x: np.asarray(x).astype(dtype.numpy).view(word).astype(np.uint32)

    def decode(dtype: DType) -> Callable[[Array], Array]:
        word = np.uint16 if dtype.bits == 16 else np.uint8
        mask = (1 << dtype.bits) - 1
        return lambda bits: (np.asarray(bits) & mask).astype(word).view(dtype.numpy).astype(np.float32)

    found = []
    for dtype in ALL:
        if dtype.is_float and dtype.bits < 32:
            found.append(OpInfo(f"to_{dtype.name}", 1, "u32", encode(dtype)))
            found.append(OpInfo(f"from_{dtype.name}", 1, "f32", decode(dtype)))
    return found


OPS = {info.name: info for info in [*_TABLE, *_narrow_codecs()]}
_RESULT: dict[str, DType] = {"bool": BOOL, "wide": U32X2, "u32": U32, "i32": I32, "f32": F32, "double": F32X2}


def result_dtype(op: str, args: tuple[DType, ...], given: DType | None) -> DType:
    """The type of an operator's result."""
    rule = OPS[op].result
    if rule == "same":
        return args[0]
    if rule == "second":
        return args[1]
    if rule == "attr":
        assert given is not None
        return given
    return _RESULT[rule]
