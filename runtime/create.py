"""Creation of device objects: each succeeds, or raises an error that says what was wanted, where, and why it failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import wgpu

from onnx2wgsl.errors import DeviceError, DeviceLostError, OutOfMemoryError, escape_name

T = TypeVar("T")

_LOST = "device is lost"
_LOST_LOGS = ("DEVICE LOST!", "The WGPU device was lost")


def is_device_lost(error: BaseException) -> bool:
    """Whether `error` says that the device is gone; wgpu-py has no signal of its own for it."""
    return isinstance(error, DeviceLostError) or (
        isinstance(error, wgpu.GPUError | RuntimeError) and _LOST in str(error).lower()
    )


@contextmanager
def quiet_about_loss() -> Iterator[None]:
    """Keep wgpu's log from reporting a loss that is handled here; all else is logged as ever."""

    def wanted(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(_LOST_LOGS)

    logger = logging.getLogger("wgpu")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)


def create_or_fail(kind: str, label: str, factory: Callable[[], T | None], adapter: str, needs: str = "") -> T:
    """What `factory` makes, never None.

    `kind` and `label` name the object, `adapter` where it is made, and `needs` what it takes (a size, a feature).
    Raises DeviceLostError, OutOfMemoryError or DeviceError.
    """
    what = f"{kind} {escape_name(label)}" if label else kind
    requirement = f" It needs {needs}." if needs else ""
    try:
        made = factory()
    except Exception as error:
        if is_device_lost(error):
            raise DeviceLostError(f"The device {adapter} was lost while making {what}.") from error
        raised = OutOfMemoryError if isinstance(error, wgpu.GPUOutOfMemoryError) else DeviceError
        raise raised(f"Could not create {what} on {adapter}: {_reason(error)}.{requirement}") from error
    if made is None:
        raise DeviceError(f"Could not create {what} on {adapter}: the driver returned nothing.{requirement}")
    return made


@contextmanager
def in_words(doing: str, adapter: str) -> Iterator[None]:
    """Raise what wgpu raises in the body as DeviceLostError, OutOfMemoryError or DeviceError."""
    try:
        yield
    except (wgpu.GPUError, RuntimeError) as error:
        if is_device_lost(error):
            raise DeviceLostError(f"The device {adapter} was lost while {doing}.") from error
        raised = OutOfMemoryError if isinstance(error, wgpu.GPUOutOfMemoryError) else DeviceError
        raise raised(f"{doing[0].upper()}{doing[1:]} failed on {adapter}: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    """The words of wgpu's message without its frame ("Validation Error / Caused by: / In wgpu…")."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and line not in ("Validation Error", "Caused by:") and line[:7] != "In wgpu"]
    return " ".join(told).rstrip(".") or type(error).__name__
