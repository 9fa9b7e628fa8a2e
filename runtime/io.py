"""Between NumPy arrays and the bytes of ONNX tensors, and the checks of what a caller passes in."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from onnx2wgsl.errors import InputError, escape_name
from onnx2wgsl.ir.dtypes import BY_NAME, DType, from_numpy
from onnx2wgsl.ir.plan import Port


def bytes_of_array(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The ONNX bytes of `array`, row-major and little-endian, padded with zeros to a multiple of 4; uint8[bytes].

    Elements below a byte are packed, the first in the lowest bits.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    raw = flat.view(np.uint8)
    if dtype.bits < 8:
        raw = _pack(raw, dtype.bits)
    missing = -len(raw) % 4
    return np.concatenate([raw, np.zeros(missing, np.uint8)]) if missing else raw


def array_from_bytes(data: Any, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The array of `shape` in the ONNX bytes `data` (any buffer; bytes behind the last element are ignored).

    It shares memory with `data` where its type allows.
    """
    count = math.prod(shape)
    raw: np.ndarray[Any, Any] = np.frombuffer(data, np.uint8, -(-count * dtype.bits // 8))
    if dtype.is_bool:
        truth: np.ndarray[Any, Any] = raw != 0
        return truth.reshape(shape)
    if dtype.bits < 8:
        return _unpack(raw, dtype)[:count].reshape(shape)
    typed: np.ndarray[Any, Any] = raw.view(dtype.numpy)
    return typed.reshape(shape)


def array_of_bits(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """`array` as `dtype`, where a file had to store it as its bits because NumPy's files do not know the type."""
    if array.dtype == dtype.numpy:
        return array
    typed: np.ndarray[Any, Any] = array.view(dtype.numpy)
    return typed


def host_array(port: Port, value: Any) -> np.ndarray[Any, Any]:
    """`value`, a NumPy array or scalar, checked against the port; InputError in words otherwise."""
    if not isinstance(value, np.ndarray | np.generic):
        kind = type(value).__name__
        raise InputError(f"Input {_quoted(port.name)} is a {kind}, but expected a NumPy array or a device tensor.")
    array = np.asarray(value)
    check_type(port, array.dtype, array.shape)
    return array


def check_type(port: Port, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raise InputError unless dtype and shape are exactly the port's."""
    name, expected = _quoted(port.name), BY_NAME[port.dtype].numpy
    if dtype != expected:
        raise InputError(
            f"Input {name} has dtype {dtype}, but the model takes {expected}. Nothing is cast silently: "
            f"pass array.astype({_spelled(expected)})."
        )
    if shape == port.shape:
        return
    wanted = f"Input {name} has shape {list(shape)}, but this entry takes {list(port.shape)}"
    if len(shape) != len(port.shape):
        raise InputError(f"{wanted}: expected rank {len(port.shape)}, but got {len(shape)}.")
    differing = [axis for axis, (got, want) in enumerate(zip(shape, port.shape, strict=True)) if got != want]
    dims = ", ".join(f"dim {axis} is {shape[axis]} instead of {port.shape[axis]}" for axis in differing)
    flag = ",".join(map(str, shape))
    raise InputError(f"{wanted}: {dims}. For this shape, compile with --shape {escape_name(port.name)}={flag}.")


def check_names(
    what: str, given: Iterable[str], known: Iterable[str], bound: Iterable[str] = (), required: Iterable[str] = ()
) -> None:
    """Raise InputError for names that are not known (with the nearest one), bound at compile time, or missing."""
    given, known = list(given), list(known)
    for name in given:
        if not isinstance(name, str):
            raise InputError(f"Expected names of {what}s as strings, but got {escape_name(name)}.")
        if name in bound:
            raise InputError(
                f"Input {_quoted(name)} became a constant when the model was compiled, so it cannot be passed."
            )
        if name not in known:
            raise InputError(f"There is no {what} {_quoted(name)}. {_suggestion(what, name, known)}")
    absent = [_quoted(name) for name in required if name not in given]
    if absent:
        raise InputError(f"Missing {what}{'s' if len(absent) > 1 else ''}: {', '.join(absent)}.")


def dtype_of(array: np.ndarray[Any, Any]) -> DType:
    """The element type of an array; InputError if no tensor can hold it."""
    try:
        return from_numpy(array.dtype)
    except KeyError:
        raise InputError(f"There are no tensors of dtype {array.dtype}.") from None


def _pack(raw: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    per_byte = 8 // bits
    padded = np.concatenate([raw & ((1 << bits) - 1), np.zeros(-len(raw) % per_byte, np.uint8)])
    lanes = padded.reshape(-1, per_byte) << (np.arange(per_byte, dtype=np.uint8) * bits)
    packed: np.ndarray[Any, Any] = np.bitwise_or.reduce(lanes, axis=1).astype(np.uint8)
    return packed


def _unpack(raw: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    shifts = np.arange(0, 8, dtype.bits, dtype=np.uint8)
    lanes = ((raw[:, None] >> shifts) & ((1 << dtype.bits) - 1)).reshape(-1)
    if dtype.is_float:
        return lanes.view(dtype.numpy)
    values = lanes.astype(np.int8)
    if dtype.kind == "int":
        values -= (values >> (dtype.bits - 1)) << dtype.bits
    return values.astype(dtype.numpy)


def _suggestion(what: str, name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, 1)
    if nearest:
        return f"Did you mean {_quoted(nearest[0])}?"
    return f"The {what}s are: {', '.join(map(_quoted, known))}." if known else f"It has no {what}s."


def _spelled(dtype: np.dtype[Any]) -> str:
    return f"numpy.{dtype.name}" if dtype.isbuiltin == 1 else f"ml_dtypes.{dtype.name}"


def _quoted(name: str) -> str:
    return f"'{escape_name(name)}'"
