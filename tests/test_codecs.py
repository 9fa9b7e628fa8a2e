"""Conversions between f32 and the narrow floats on the GPU, against NumPy and ml_dtypes."""

from __future__ import annotations

import numpy as np
import pytest

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.dtypes import ALL, F32, U32, DType
from tests.tensor_programs import elementwise, on_gpu

NARROW = [d for d in ALL if d.is_float and d.bits < 32]


def patterns(dtype: DType) -> np.ndarray:
    """Every bit pattern of a type."""
    return np.arange(1 << dtype.bits, dtype=np.uint32)


def decoded(dtype: DType, bits: np.ndarray) -> np.ndarray:
    word = np.uint16 if dtype.bits == 16 else np.uint8
    return bits.astype(word).view(dtype.numpy).astype(np.float32)


def encoded(dtype: DType, values: np.ndarray) -> np.ndarray:
    word = np.uint16 if dtype.bits == 16 else np.uint8
    with np.errstate(all="ignore"):
        return values.astype(dtype.numpy).view(word).astype(np.uint32)


def interesting(dtype: DType) -> np.ndarray:
    """Bits of f32 values: every value of the type, the midpoints between them, their neighbours, and random ones."""
    values = np.unique(decoded(dtype, patterns(dtype)))
    values = values[np.isfinite(values)]
    with np.errstate(all="ignore"):
        middle = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
        top = np.abs(values[-1:] * np.float32(1.0625))
    edge = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 3.4e38, -3.4e38, 1e30, 1e-30], np.float32)
    bits = np.concatenate([values, middle, top, -top, edge]).view(np.uint32)
    near = [bits, bits + 1, bits - 1, np.random.default_rng(1).integers(0, 1 << 32, 20000, np.uint32)]
    return np.concatenate(near).astype(np.uint32)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_pattern_decodes(dtype: DType) -> None:
    bits = patterns(dtype)
    program = elementwise(
        {"y": lambda b: ex.bitcast(ex.op(f"from_{dtype.name}", b), U32)}, {"bits": (U32, bits.size)}
    )
    got = on_gpu(program, {"bits": bits | np.uint32(0xABCD << dtype.bits & 0xFFFFFFFF)})["y"].view(np.float32)
    expected = decoded(dtype, bits)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_values_round_to_nearest(dtype: DType) -> None:
    bits = interesting(dtype)
    program = elementwise(
        {"y": lambda b: ex.op(f"to_{dtype.name}", ex.bitcast(b, F32))}, {"bits": (U32, bits.size)}
    )
    got = on_gpu(program, {"bits": bits})["y"]
    values = bits.view(np.float32)
    expected = encoded(dtype, values)
    wrong = got != expected
    if dtype.name == "f16":
        wrong &= ~(np.isnan(values) & ((got & 0x7FFF) > 0x7C00))
    assert not wrong.any(), [
        (hex(b), float(v), hex(g), hex(e))
        for b, v, g, e in zip(bits[wrong][:5], values[wrong][:5], got[wrong][:5], expected[wrong][:5], strict=True)
    ]
