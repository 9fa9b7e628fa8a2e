"""Changes of the element type: Cast, CastLike, BitCast, and the operators that return their input."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.builder import Tensor
from onnx2wgsl.ir.dtypes import (
    BOOL,
    F4E2M1,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0,
    F32,
    F64,
    U8,
    U32,
    DType,
)
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import IndexLike

from .registry import Context, lower

FLOAT8 = (F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ)


def largest(dtype: DType) -> float:
    """The largest finite value of a float type."""
    return float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]


def converted(x: Expr, dtype: DType, saturate: bool = True) -> Expr:
    """ONNX Cast of one value. `saturate` makes what is out of a float8's range its largest value, infinities too.

    A float outside of the range of an integer is undefined in ONNX: it saturates here, and gives 0 for the integers
    of 2 and 4 bits, as ONNX's own cases expect.
    """
    if x.dtype is dtype:
        return x
    if x.dtype.is_float and x.dtype.bits < 16 and not (dtype is F32 or dtype is F64):
        x = ex.cast(x, F32)
    if (dtype in FLOAT8 and saturate) or dtype is F4E2M1:
        wide = x if x.dtype.is_float and x.dtype.bits >= 32 else ex.cast(x, F32)
        limit = ex.const(largest(dtype), wide.dtype)
        return ex.cast(ex.op("min", ex.op("max", wide, -limit), limit), dtype)
    if x.dtype.is_float and dtype.is_integer and dtype.bits < 8:
        whole = ex.op("trunc", ex.cast(x, F32))
        inside = (whole >= dtype.lo) & (whole <= dtype.hi)
        return ex.cast(ex.select(inside, whole, ex.const(0, F32)), dtype)
    return ex.cast(x, dtype)


def to_exponent(x: Expr, round_mode: str, saturate: bool) -> Expr:
    """float8e8m0: a power of two, as the exponent bits of an f32, rounded up, down or to the nearest."""
    bits = ex.bitcast(ex.cast(x, F32), U32)
    exponent = ex.op("shr", bits, ex.const(23, U32)) & 0xFF
    mantissa = bits & 0x7FFFFF
    if round_mode == "up":
        more = mantissa > 0
        # Below 2^-126 the f32 is denormal; the smallest power, 2^-127, has the mantissa 2^22.
        more = ex.select(exponent.equals(0), mantissa > 0x400000, more)
    elif round_mode == "nearest":
        more = mantissa >= 0x400000
        more = ex.select(exponent.equals(0), mantissa >= 0x600000, more)
    else:
        more = ex.FALSE
    raised = exponent + ex.cast(more, U32)
    top = ex.const(254 if saturate else 255, U32)
    code = ex.op("min", raised, top)
    is_infinite = bits.equals(0x7F800000)
    code = ex.select(is_infinite, ex.const(254 if saturate else 255, U32), code)
    code = ex.select(ex.op("isnan", ex.cast(x, F32)), ex.const(255, U32), code)
    # 2^(code - 127) is the f32 with that exponent; 2^-127 is denormal, and the code 255 is NaN.
    power = ex.bitcast(ex.op("shl", code, ex.const(23, U32)), F32)
    power = ex.select(code.equals(0), ex.const(2.0**-127, F32), power)
    return ex.cast(ex.select(code.equals(255), ex.const(np.nan, F32), power), F8E8M0)


def cast_tensor(c: Context, x: Tensor, dtype: DType) -> Tensor:
    saturate = bool(c.attr("saturate", 1))
    if x.dtype is dtype:
        return x
    if dtype is F8E8M0:
        mode = c.attr("round_mode", "up")
        return c.map(x.shape, lambda *i: to_exponent(x[i], mode, saturate))

    def value(*i: IndexLike) -> Expr:
        made = converted(x[i], dtype, saturate)
        return ex.op("exact", made) if dtype.is_float and dtype.bits < 32 else made

    return c.map(x.shape, value)


@lower("Cast", since=6)
def cast(c: Context) -> Tensor:
    return cast_tensor(c, c[0], c.dtype_attr("to", F32))


@lower("CastLike", since=15)
def cast_like(c: Context) -> Tensor:
    return cast_tensor(c, c[0], c[1].dtype)


@lower("BitCast", since=26)
def bit_cast(c: Context) -> Tensor:
    x, dtype = c[0], c.dtype_attr("to", F32)
    if x.dtype.bits != dtype.bits:
        raise c.refuse(f"BitCast needs types of one width, got {x.dtype} and {dtype}")
    return c.map(x.shape, lambda *i: bits_as(x[i], dtype))


def bits_as(x: Expr, dtype: DType) -> Expr:
    """A bool's byte is 0 or 1."""
    if x.dtype is dtype:
        return x
    if x.dtype is BOOL:
        return bits_as(ex.cast(x, U8), dtype)
    if dtype is BOOL:
        return ex.op("ne", ex.bitcast(x, U8), ex.const(0, U8))
    return ex.bitcast(x, dtype)


@lower("Identity")
def identity(c: Context) -> Any:
    """Whatever it is, sequences included."""
    return c.inputs[0]

