"""An entry made ready on a device: buffers, weights, pipelines and bind groups, and the commands of one run."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx2wgsl.artifact import Artifact
from onnx2wgsl.ir.plan import Binding, Entry, Kernel, Step, Variant

from .bind_groups import BindGroupCache
from .device import Gpu, enable_lines
from .policy import DeviceTensorPolicy
from .readback import Readback, Source

Progress = Callable[[str, int, int], None]
"""Called with "bytes" or "pipelines", how many are done, and how many there are."""

_CHUNKS_PER_SUBMISSION = 16
_BUFFER_TYPES = {"read": "read-only-storage", "read_write": "storage", "uniform": "uniform"}
_COMPUTE_STAGE = 4


@dataclass(frozen=True, slots=True)
class Copy:
    """`size` bytes from the start of one buffer to the start of another, after the steps of a run."""

    source: Any
    target: Any
    size: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A step with the variant that this device takes."""

    step: Step
    variant: Variant
    pipeline: Any
    layout: Any


class Program:
    """One entry on one device, with the chosen variant of each step.

    Commands cannot be replayed in WebGPU; pipelines and bind groups can, and `execute` only records them again.
    """

    def __init__(
        self, artifact: Artifact, entry: Entry, gpu: Gpu, variants: Sequence[Variant], progress: Progress | None = None
    ) -> None:
        self.gpu = gpu
        self.entry = entry
        self._progress: Progress = progress or (lambda *_: None)
        self._bound = self._make_buffers(artifact)
        self.own = dict(self._bound)
        self.readback = Readback(gpu)
        self._upload(artifact)
        self.dispatches = self._make_dispatches(artifact, variants)
        self._cache = BindGroupCache()
        self._groups = [self._cached_group(dispatch) for dispatch in self.dispatches]

    def bind(self, buffers: Mapping[str, Any]) -> None:
        """Let the steps use other buffers under the plan's names, all at once: the ones before may be gone already."""
        changed = {name for name, buffer in buffers.items() if self._bound[name] is not buffer}
        if not changed:
            return
        self._bound.update(buffers)
        for index, dispatch in enumerate(self.dispatches):
            if any(binding.buffer in changed for binding in dispatch.step.bindings):
                self._groups[index] = self._cached_group(dispatch)

    def bound(self, name: str) -> Any:
        """The buffer that the steps use as the plan's buffer `name`."""
        return self._bound[name]

    def write(self, name: str, data: Any, offset: int = 0) -> None:
        """Write host bytes (a multiple of 4) into the buffer that is bound as `name`."""
        self.gpu.device.queue.write_buffer(self._bound[name], offset, data)

    def renew(self, name: str) -> None:
        """Put a fresh buffer, all zeros, in the place of the program's own `name`, which now belongs to another."""
        size = next(buffer.size for buffer in self.entry.buffers if buffer.name == name)
        self.own[name] = self.gpu.create_buffer(name, size, DeviceTensorPolicy.TENSOR)
        self.bind({name: self.own[name]})

    def execute(
        self,
        eager: bool = False,
        steps_per_submission: int | None = None,
        copies: Iterable[Copy] = (),
        downloads: Sequence[Source] = (),
    ) -> list[Any]:
        """Run all steps, then the copies, then the downloads, and return the bytes of the latter.

        `eager` makes every bind group anew and gives each dispatch a pass of its own. Without downloads the call does
        not wait for the device.
        """
        queue = self.gpu.device.queue
        count = len(self.dispatches)
        per_submission = steps_per_submission or max(count, 1)
        encoder = self._encoder()
        for start in range(0, count, per_submission):
            if start:
                queue.submit([encoder.finish()])
                encoder = self._encoder()
            indices = range(start, min(start + per_submission, count))
            (self._record_eagerly if eager else self._record)(encoder, indices)
        for copy in copies:
            encoder.copy_buffer_to_buffer(copy.source, 0, copy.target, 0, copy.size)
        if downloads:
            self.readback.copy(encoder, downloads)
        queue.submit([encoder.finish()])
        return self.readback.read() if downloads else []

    def dispatch(self, encoder: Any, index: int, **pass_arguments: Any) -> None:
        """Record one step in a pass of its own."""
        compute_pass = encoder.begin_compute_pass(**pass_arguments)
        self._record_step(compute_pass, index, self._groups[index])
        compute_pass.end()

    def destroy(self) -> None:
        """Free the buffers that belong to the program."""
        self.readback.destroy()
        for buffer in self.own.values():
            buffer.destroy()

    def _encoder(self) -> Any:
        return self.gpu.create("command encoder", "")

    def _record(self, encoder: Any, indices: range) -> None:
        compute_pass = encoder.begin_compute_pass()
        for index in indices:
            self._record_step(compute_pass, index, self._groups[index])
        compute_pass.end()

    def _record_eagerly(self, encoder: Any, indices: range) -> None:
        for index in indices:
            compute_pass = encoder.begin_compute_pass()
            self._record_step(compute_pass, index, self._make_group(self.dispatches[index]))
            compute_pass.end()

    def _record_step(self, compute_pass: Any, index: int, group: Any) -> None:
        dispatch = self.dispatches[index]
        compute_pass.set_pipeline(dispatch.pipeline)
        compute_pass.set_bind_group(0, group)
        compute_pass.dispatch_workgroups(*dispatch.variant.grid)

    def _make_buffers(self, artifact: Artifact) -> dict[str, Any]:
        used = {binding.buffer for step in self.entry.steps for binding in step.bindings}
        weights = [buffer for buffer in artifact.plan.buffers if buffer.name in used]
        return {
            buffer.name: self.gpu.create_buffer(buffer.name, buffer.size, DeviceTensorPolicy.usage(buffer.kind))
            for buffer in (*weights, *self.entry.buffers)
        }

    def _upload(self, artifact: Artifact) -> None:
        queue = self.gpu.device.queue
        for buffer in self.entry.buffers:
            if buffer.kind == "uniform":
                queue.write_buffer(self.own[buffer.name], 0, self.entry.uniform_data)
        weights = sorted(
            (weight for weight in artifact.plan.weights if weight.buffer in self.own and weight.size),
            key=lambda weight: weight.stream_offset + weight.size,
        )
        if not weights:
            return
        ends = [weight.stream_offset + weight.size for weight in weights]
        total = sum(shard.size for shard in artifact.plan.shards)
        start = 0
        for index, chunk in enumerate(artifact.weights.chunks(), 1):
            end = start + len(chunk)
            for weight in weights[bisect.bisect_right(ends, start) :]:
                low, high = max(start, weight.stream_offset), min(end, weight.stream_offset + weight.size)
                if low < high:
                    offset = weight.offset + low - weight.stream_offset
                    queue.write_buffer(self.own[weight.buffer], offset, chunk, low - start, high - low)
            start = end
            if index % _CHUNKS_PER_SUBMISSION == 0:
                queue.submit([])  # lets wgpu free its staging memory, which would otherwise hold all weights
            self._progress("bytes", start, total)

    def _make_dispatches(self, artifact: Artifact, variants: Sequence[Variant]) -> list[Dispatch]:
        kernels = {kernel.id: kernel for kernel in artifact.plan.kernels}
        names = list(dict.fromkeys(variant.kernel for variant in variants))
        layouts: dict[tuple[tuple[int, str], ...], Any] = {}
        pipelines: dict[str, tuple[Any, Any]] = {}
        for done, name in enumerate(names, 1):
            key = tuple((declaration.slot, declaration.access) for declaration in kernels[name].declarations)
            if key not in layouts:
                layouts[key] = self._make_layout(name, key)
            pipelines[name] = self._make_pipeline(kernels[name], layouts[key]), layouts[key]
            self._progress("pipelines", done, len(names))
        return [
            Dispatch(step, variant, *pipelines[variant.kernel])
            for step, variant in zip(self.entry.steps, variants, strict=True)
        ]

    def _make_layout(self, label: str, key: tuple[tuple[int, str], ...]) -> Any:
        entries = [
            {"binding": slot, "visibility": _COMPUTE_STAGE, "buffer": {"type": _BUFFER_TYPES[access]}}
            for slot, access in key
        ]
        return self.gpu.create("bind group layout", label, entries=entries)

    def _make_pipeline(self, kernel: Kernel, layout: Any) -> Any:
        code = enable_lines(kernel.wgsl_enables) + kernel.wgsl
        module = self.gpu.create("shader module", kernel.id, code=code)
        pipeline_layout = self.gpu.create("pipeline layout", kernel.id, bind_group_layouts=[layout])
        compute = {"module": module, "entry_point": "main"}
        return self.gpu.create("compute pipeline", kernel.id, layout=pipeline_layout, compute=compute)

    def _cached_group(self, dispatch: Dispatch) -> Any:
        buffers = [self._bound[binding.buffer] for binding in dispatch.step.bindings]
        return self._cache.get(dispatch.step, buffers, lambda: self._make_group(dispatch))

    def _make_group(self, dispatch: Dispatch) -> Any:
        entries = [self._resource(binding) for binding in dispatch.step.bindings]
        return self.gpu.create("bind group", dispatch.step.name, layout=dispatch.layout, entries=entries)

    def _resource(self, binding: Binding) -> dict[str, Any]:
        buffer = self._bound[binding.buffer]
        return {
            "binding": binding.slot,
            "resource": {"buffer": buffer, "offset": binding.offset, "size": binding.size},
        }
