"""Tensors that live on a device, and the one-time record of who owns them."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx2wgsl.errors import InputError, escape_name
from onnx2wgsl.ir.dtypes import DType

from .create import in_words, quiet_about_loss
from .io import array_from_bytes


class Owner:
    """What the tensors of a session share with it: whether it was closed."""

    def __init__(self) -> None:
        self.closed = False


class DeviceTensor:
    """A tensor in a buffer of its own, row-major, on the device of the session that made it.

    It goes into `run` of any session on the same device. `lengths` are (axis, number of valid elements) for the axes
    that are sized by data; `shape` then is their bound.
    """

    def __init__(
        self,
        device: Any,
        buffer: Any,
        dtype: DType,
        shape: tuple[int, ...],
        owner: Owner,
        lengths: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self._device = device
        self._buffer = buffer
        self._element = dtype
        self._shape = shape
        self._owner = owner
        self._lengths = lengths
        self._disposed = False

    def __repr__(self) -> str:
        state = f", {self.problem}" if self.problem else ""
        return f"DeviceTensor({self._element.name}{list(self._shape)}{state})"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy (or ml_dtypes) type of the elements."""
        return self._element.numpy

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; for axes that are sized by data, their bound."""
        return self._shape

    @property
    def length(self) -> int | None:
        """The number of valid elements along the first axis that is sized by data; None if there is no such axis."""
        return self._lengths[0][1] if self._lengths else None

    @property
    def device(self) -> Any:
        """The wgpu device that the tensor is on."""
        return self._device

    @property
    def buffer(self) -> Any:
        """The wgpu buffer, whose size is rounded up to 4 bytes; None for a tensor without elements."""
        return self._buffer

    @property
    def problem(self) -> str:
        """Why the tensor cannot be used any more, in words; empty if it can."""
        if self._disposed:
            return "it was disposed"
        return "its session was closed" if self._owner.closed else ""

    def check_usable(self, name: str, device: Any) -> None:
        """Raise InputError unless the tensor can be the input `name` of a session on `device`."""
        if self.problem:
            raise InputError(f"Input '{escape_name(name)}' is a device tensor that cannot be used: {self.problem}.")
        if self._device is not device:
            raise InputError(
                f"Input '{escape_name(name)}' is a device tensor on another device than this session, "
                "or on one that was lost. Make both sessions with the same device (device=other.device)."
            )

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy of the elements, sliced to the lengths. Raises InputError if the tensor was disposed or its
        session closed."""
        if self.problem:
            raise InputError(f"This device tensor cannot be read: {self.problem}.")
        data = b""
        if self._buffer is not None:
            with quiet_about_loss(), in_words("reading a device tensor", self._device.adapter.info["device"]):
                data = self._device.queue.read_buffer(self._buffer)
        return slice_to_lengths(array_from_bytes(data, self._element, self._shape), self._lengths)

    def dispose(self) -> None:
        """Free the memory on the device; a second call does nothing."""
        if not self._disposed and self._buffer is not None:
            self._buffer.destroy()
        self._disposed = True


def slice_to_lengths(array: np.ndarray[Any, Any], lengths: tuple[tuple[int, int], ...]) -> np.ndarray[Any, Any]:
    """`array` cut to the number of valid elements along each of the (axis, length) pairs; C-contiguous."""
    for axis, length in lengths:
        array = array[(slice(None),) * axis + (slice(length),)]
    return array if array.flags.c_contiguous else array.copy()
