"""The single place that decides how buffers are used on the device."""

from __future__ import annotations

from wgpu import BufferUsage


class DeviceTensorPolicy:
    """Usage flags by what a buffer is for."""

    TENSOR = BufferUsage.STORAGE | BufferUsage.COPY_DST | BufferUsage.COPY_SRC
    UNIFORM = BufferUsage.UNIFORM | BufferUsage.COPY_DST
    STAGING = BufferUsage.MAP_READ | BufferUsage.COPY_DST
    ARGUMENTS = BufferUsage.STORAGE | BufferUsage.INDIRECT | BufferUsage.COPY_DST
    TIMESTAMPS = BufferUsage.QUERY_RESOLVE | BufferUsage.COPY_SRC

    @staticmethod
    def usage(kind: str) -> int:
        """The flags for a buffer of a plan, by its kind."""
        flags: int = DeviceTensorPolicy.UNIFORM if kind == "uniform" else DeviceTensorPolicy.TENSOR
        return flags
