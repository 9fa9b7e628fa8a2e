"""Element types: every ONNX tensor type, and the machine types that WGSL can compute with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class DType:
    """An element type.

    `bits` is the width of one element in an ONNX tensor's bytes; `kind` is one of bool, int, uint, float, wide.
    """

    name: str
    kind: str
    bits: int
    numpy: np.dtype[Any]
    onnx: int

    def __repr__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    @property
    def lo(self) -> int:
        """Smallest value of an integer type."""
        return -(1 << (self.bits - 1)) if self.kind == "int" else 0

    @property
    def hi(self) -> int:
        """Largest value of an integer type."""
        return (1 << (self.bits - (self.kind == "int"))) - 1 if self.kind != "bool" else 1


def _make(name: str, kind: str, bits: int, numpy: Any, onnx: int) -> DType:
    return DType(name, kind, bits, np.dtype(numpy), onnx)


BOOL = _make("bool", "bool", 8, np.bool_, 9)
I8 = _make("i8", "int", 8, np.int8, 3)
I16 = _make("i16", "int", 16, np.int16, 5)
I32 = _make("i32", "int", 32, np.int32, 6)
I64 = _make("i64", "int", 64, np.int64, 7)
U8 = _make("u8", "uint", 8, np.uint8, 2)
U16 = _make("u16", "uint", 16, np.uint16, 4)
U32 = _make("u32", "uint", 32, np.uint32, 12)
U64 = _make("u64", "uint", 64, np.uint64, 13)
F16 = _make("f16", "float", 16, np.float16, 10)
BF16 = _make("bf16", "float", 16, ml_dtypes.bfloat16, 16)
F32 = _make("f32", "float", 32, np.float32, 1)
F64 = _make("f64", "float", 64, np.float64, 11)
F8E4M3FN = _make("f8e4m3fn", "float", 8, ml_dtypes.float8_e4m3fn, 17)
F8E4M3FNUZ = _make("f8e4m3fnuz", "float", 8, ml_dtypes.float8_e4m3fnuz, 18)
F8E5M2 = _make("f8e5m2", "float", 8, ml_dtypes.float8_e5m2, 19)
F8E5M2FNUZ = _make("f8e5m2fnuz", "float", 8, ml_dtypes.float8_e5m2fnuz, 20)
F8E8M0 = _make("f8e8m0", "float", 8, ml_dtypes.float8_e8m0fnu, 24)
F4E2M1 = _make("f4e2m1", "float", 4, ml_dtypes.float4_e2m1fn, 23)
I4 = _make("i4", "int", 4, ml_dtypes.int4, 22)
U4 = _make("u4", "uint", 4, ml_dtypes.uint4, 21)
I2 = _make("i2", "int", 2, ml_dtypes.int2, 26)
U2 = _make("u2", "uint", 2, ml_dtypes.uint2, 25)

# A machine type: one 64-bit integer as two u32 words, `vec2<u32>` in WGSL. The interpreter holds it as uint64.
U32X2 = _make("u32x2", "wide", 64, np.uint64, 0)

# A machine type: a float64 as the sum of two f32, `vec2<f32>` in WGSL. The interpreter holds it as float64.
F32X2 = _make("f32x2", "float", 64, np.float64, 0)

ALL = (
    BOOL, I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32, F64, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ,
    F8E8M0, F4E2M1, I4, U4, I2, U2, U32X2, F32X2,
)  # fmt: skip
BY_NAME = {d.name: d for d in ALL}
BY_ONNX = {d.onnx: d for d in ALL if d.onnx}
_BY_NUMPY = {d.numpy: d for d in ALL if d not in (U32X2, F32X2)}


_VECTORS: dict[tuple[str, int], DType] = {}


def vector(element: DType, lanes: int) -> DType:
    """The WGSL vector of `lanes` elements of a machine type; the element itself for one lane."""
    if lanes == 1:
        return element
    key = (element.name, lanes)
    if key not in _VECTORS:
        _VECTORS[key] = DType(f"{element.name}x{lanes}v", element.kind, element.bits * lanes, element.numpy, 0)
    return _VECTORS[key]


def from_numpy(dtype: np.dtype[Any]) -> DType:
    """The element type of a NumPy array; raises KeyError for types that ONNX does not have."""
    return _BY_NUMPY[np.dtype(dtype)]
