"""From the device to the host: copies into a few staging buffers, inside the run's own commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .device import Gpu
from .policy import DeviceTensorPolicy

_ALIGNMENT = 8
_STAGING_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """`size` bytes of a buffer from byte `offset`, both multiples of 4."""

    buffer: Any
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class _Place:
    staging: int
    offset: int
    size: int


class Readback:
    """Staging buffers for downloads; those of the last layout are used again."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._sizes: tuple[int, ...] = ()
        self._places: list[_Place] = []
        self._staging: list[Any] = []

    def copy(self, encoder: Any, sources: Sequence[Source]) -> None:
        """Record the copies of `sources`; `read` gives their bytes after the submission."""
        sizes = tuple(source.size for source in sources)
        if sizes != self._sizes:
            self.destroy()
            self._allocate(sizes)
        for source, place in zip(sources, self._places, strict=True):
            staging = self._staging[place.staging]
            encoder.copy_buffer_to_buffer(source.buffer, source.offset, staging, place.offset, source.size)

    def read(self) -> list[Any]:
        """The bytes of the sources that were copied last, as writable buffers of the caller's own; waits for them."""
        for staging in self._staging:
            staging.map_sync("READ")
        found = [self._staging[place.staging].read_mapped(place.offset, place.size) for place in self._places]
        for staging in self._staging:
            staging.unmap()
        return found

    def destroy(self) -> None:
        """Free the staging buffers."""
        for staging in self._staging:
            staging.destroy()
        self._sizes, self._places, self._staging = (), [], []

    def _allocate(self, sizes: tuple[int, ...]) -> None:
        totals: list[int] = []
        for size in sizes:
            if not totals or totals[-1] + size > _STAGING_BYTES:
                totals.append(0)
            self._places.append(_Place(len(totals) - 1, totals[-1], size))
            totals[-1] += -(-size // _ALIGNMENT) * _ALIGNMENT
        for total in totals:
            self._staging.append(self._gpu.create_buffer("staging", total, DeviceTensorPolicy.STAGING))
        self._sizes = sizes
