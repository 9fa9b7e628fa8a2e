"""Times of an entry's steps."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wgpu.backends.wgpu_native import lib

from onnx2wgsl.artifact import Artifact
from onnx2wgsl.ir.plan import Entry

from .device import Gpu, choose_variants, open_gpu
from .policy import DeviceTensorPolicy
from .program import Program

_TIMESTAMPS = "timestamp-query"
_STEPS_PER_QUERY_SET = 2048


@dataclass(frozen=True, slots=True)
class StepTime:
    """The time of one step in microseconds, with what a reader needs to find it."""

    step: str
    kernel: str
    nodes: tuple[str, ...]
    grid: tuple[int, int, int]
    microseconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The times of all steps. `source` is "timestamps", or "wall clock" where the adapter has none: that includes the
    submission of each step and the wait for it.
    """

    adapter: str
    source: str
    steps: tuple[StepTime, ...]

    def chrome_trace(self) -> dict[str, Any]:
        """The steps one after another, as a trace for chrome://tracing or Perfetto."""
        events = []
        start = 0.0
        for step in self.steps:
            about = {"kernel": step.kernel, "nodes": list(step.nodes), "grid": list(step.grid)}
            event = {"name": step.step, "ph": "X", "pid": 0, "tid": 0, "ts": start, "dur": step.microseconds}
            events.append(event | {"args": about})
            start += step.microseconds
        return {"traceEvents": events, "otherData": {"adapter": self.adapter, "source": self.source}}


def profile_entry(artifact: Artifact, entry: Entry, gpu: Gpu, adapter: Any, runs: int) -> Profile:
    """The best time of each step over `runs`, on the adapter of `gpu`, with inputs of zeros."""
    if _TIMESTAMPS not in gpu.device.features and _TIMESTAMPS in gpu.info.features:
        gpu = open_gpu(artifact.plan, entry, adapter or gpu.device.adapter, extra_features=(_TIMESTAMPS,))
    program = Program(artifact, entry, gpu, choose_variants(artifact.plan, entry, gpu))
    try:
        program.execute(eager=True)
        with_timestamps = _TIMESTAMPS in gpu.device.features
        measure = _by_timestamps if with_timestamps else _by_wall_clock
        times = [measure(program) for _ in range(max(runs, 1))]
    finally:
        program.destroy()
    best = [min(of_step) for of_step in zip(*times, strict=True)]
    steps = tuple(
        StepTime(dispatch.step.name, dispatch.variant.kernel, dispatch.step.nodes, dispatch.variant.grid, microseconds)
        for dispatch, microseconds in zip(program.dispatches, best, strict=True)
    )
    return Profile(gpu.info.name, "timestamps" if with_timestamps else "wall clock", steps)


def _by_timestamps(program: Program) -> list[float]:
    count = len(program.dispatches)
    times: list[float] = []
    for start in range(0, count, _STEPS_PER_QUERY_SET):
        times += _timestamps_of(program, range(start, min(start + _STEPS_PER_QUERY_SET, count)))
    return times


def _timestamps_of(program: Program, indices: Sequence[int]) -> list[float]:
    gpu = program.gpu
    count = 2 * len(indices)
    queries = gpu.create("query set", "timestamps", type="timestamp", count=count)
    resolved = gpu.create_buffer("timestamps", 8 * count, DeviceTensorPolicy.TIMESTAMPS)
    encoder = gpu.create("command encoder", "")
    for place, index in enumerate(indices):
        writes = {
            "query_set": queries,
            "beginning_of_pass_write_index": 2 * place,
            "end_of_pass_write_index": 2 * place + 1,
        }
        program.dispatch(encoder, index, timestamp_writes=writes)
    encoder.resolve_query_set(queries, 0, count, resolved, 0)
    queue = gpu.device.queue
    queue.submit([encoder.finish()])
    ticks = struct.unpack(f"<{count}Q", queue.read_buffer(resolved))
    period = lib.wgpuQueueGetTimestampPeriod(queue._internal)  # nanoseconds; wgpu-py has no call of its own for it
    resolved.destroy()
    return [max(end - begin, 0) * period / 1000 for begin, end in zip(ticks[::2], ticks[1::2], strict=True)]


def _by_wall_clock(program: Program) -> list[float]:
    queue = program.gpu.device.queue
    fence = program.gpu.create_buffer("fence", 4, DeviceTensorPolicy.TENSOR)
    times = []
    for index in range(len(program.dispatches)):
        begin = time.perf_counter()
        encoder = program.gpu.create("command encoder", "")
        program.dispatch(encoder, index)
        queue.submit([encoder.finish()])
        queue.read_buffer(fence)
        times.append((time.perf_counter() - begin) * 1e6)
    fence.destroy()
    return times
