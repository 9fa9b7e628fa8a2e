"""build-plan (L3): prints each distinct kernel once and writes the entry's steps.

Kernels that are equal as text are one kernel: names in the text are canonical, offsets stand in the bind groups.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from onnx2wgsl.codegen.emitter import uniform_field
from onnx2wgsl.codegen.storage import storage_of
from onnx2wgsl.codegen.wgsl import Bound, element_types, print_kernel
from onnx2wgsl.errors import CompileError, escape_name
from onnx2wgsl.ir import program as l1
from onnx2wgsl.ir.kernel import Kernel
from onnx2wgsl.ir.plan import (
    DEFAULT_LIMITS,
    OFFSET_ALIGNMENT,
    UNIFORM_SLOT_START,
    Binding,
    Buffer,
    Declaration,
    Entry,
    Length,
    Port,
    Requires,
    State,
    Step,
    Variant,
    layout_signature,
)
from onnx2wgsl.ir.plan import Kernel as PlanKernel
from onnx2wgsl.ir.plan_json import print_entry

from .assign_bindings import BoundProgram, BoundStep
from .base import Pass, PassResult
from .load_model import nearest, quoted


@dataclass
class BuiltEntry:
    """One entry; its kernels and weights are in the pools that it was built with."""

    entry: Entry
    memory: dict[str, int]

    def __str__(self) -> str:
        return print_entry(self.entry)


@dataclass
class KernelPool:
    """Distinct kernels by their text, with all the nodes that they serve."""

    found: dict[str, tuple[str, Kernel, tuple[Declaration, ...], dict[str, None]]] = field(default_factory=dict)
    printed: dict[tuple[Any, ...], tuple[Kernel, str, tuple[Declaration, ...]]] = field(default_factory=dict)

    def print(
        self, kernel: Kernel, views: Mapping[str, Bound], fields: tuple[str, ...]
    ) -> tuple[str, tuple[Declaration, ...]]:
        """The text and declarations of a kernel; printed once for each way in which it is bound."""
        key = (id(kernel), tuple(views.items()), fields)
        if key not in self.printed:
            self.printed[key] = (kernel, *print_kernel(kernel, views, (), fields, UNIFORM_SLOT_START))
        return self.printed[key][1:]

    def add(self, text: str, kernel: Kernel, declarations: tuple[Declaration, ...], nodes: Sequence[str]) -> str:
        if text not in self.found:
            slug = re.sub(r"[^A-Za-z0-9]+", "_", f"{kernel.schedule.split(':')[0]}_{nodes[0] if nodes else ''}")[:48]
            self.found[text] = (f"k{len(self.found):03d}_{slug}".strip("_"), kernel, declarations, {})
        self.found[text][3].update(dict.fromkeys(nodes))
        return self.found[text][0]

    def finished(self) -> tuple[PlanKernel, ...]:
        return tuple(
            PlanKernel(kernel_id, _header(tuple(nodes)) + text, kernel.workgroup_size, declarations)
            for text, (kernel_id, kernel, declarations, nodes) in self.found.items()
        )


@dataclass(frozen=True)
class BuildPlan(Pass[BoundProgram, BuiltEntry]):
    """`entry` is the entry's name, `states` are (input, output) names, `bound` the inputs that were made constants."""

    entry: str = "main"
    states: tuple[tuple[str, str], ...] = ()
    bound: tuple[str, ...] = ()
    kernels: KernelPool = field(default_factory=KernelPool, repr=False)
    name: ClassVar[str] = "build-plan"

    def requires(self, program: BoundProgram) -> None:
        ports = program.placed.program
        for name, output in self.states:
            for what, wanted, known in (("input", name, ports.inputs), ("output", output, ports.outputs)):
                if wanted not in [p.name for p in known]:
                    hint = nearest(wanted, [p.name for p in known])
                    raise CompileError(f"states: the model has no {what} {quoted([wanted])}{hint}")

    def run(self, program: BoundProgram) -> PassResult[BuiltEntry]:
        uniforms = _Uniforms()
        steps = [self.step(program, s, k, self.kernels, uniforms) for k, s in enumerate(program.steps)]
        placed = program.placed
        buffers = list(placed.buffers)
        if uniforms.data:
            buffers.append(Buffer("uniforms", len(uniforms.data), "uniform"))
        requires = _requires(buffers, steps)
        entry = Entry(
            self.entry,
            tuple(buffers),
            tuple(_port(program, p) for p in placed.program.inputs),
            tuple(_port(program, p) for p in placed.program.outputs),
            tuple(steps),
            tuple(State(i, o) for i, o in self.states),
            bound=self.bound,
            uniform_data=bytes(uniforms.data),
            requires=requires,
            baseline_requires=requires,
        )
        distinct = {v.kernel for s in steps for v in s.variants}
        statistics = {"steps": len(steps), "kernels": len(distinct), **placed.memory}
        return PassResult(BuiltEntry(entry, placed.memory), True, statistics)

    def step(
        self, program: BoundProgram, bound: BoundStep, number: int, kernels: KernelPool, uniforms: _Uniforms
    ) -> Step:
        step, bindings = bound.step, bound.bindings
        fields = tuple(uniform_field(n) for n, _ in step.uniforms)
        if fields:
            offset, size = uniforms.slice(tuple(v for _, v in step.uniforms))
            bindings = (*bindings, Binding(UNIFORM_SLOT_START, "uniform", "uniform", "uniforms", offset, size))
        variants = []
        declarations: tuple[Declaration, ...] = ()
        for kernel in step.variants:
            text, declarations = kernels.print(kernel, _views(program, bound, kernel), fields)
            kernel_id = kernels.add(text, kernel, declarations, step.nodes)
            variants.append(Variant(kernel_id, kernel.grid, prefer=dict(kernel.prefer)))
        label = step.nodes[0] if step.nodes else "step"
        signature = layout_signature(declarations, bindings)
        return Step(f"{number:04d} {label}", step.nodes, tuple(variants), bindings, signature)


def _views(program: BoundProgram, bound: BoundStep, kernel: Kernel) -> dict[str, Bound]:
    """How each slot is declared in a kernel; tensors that share a slot share its declaration."""
    tensors = program.placed.program.tensors
    elements = {n: storage_of(tensors[bound.step.bound(n)].dtype).element for n in bound.slots}
    types = {**elements, **element_types(kernel, elements)}
    access = {b.slot: b.access for b in bound.bindings}
    return {n: Bound(slot, access[slot], types[n]) for n, slot in bound.slots.items()}


def _header(nodes: tuple[str, ...], most: int = 24) -> str:
    lines = [f"// {escape_name(n)}" for n in nodes[:most]]
    if len(nodes) > most:
        lines.append(f"// and {len(nodes) - most} more nodes")
    return "".join(line + "\n" for line in lines)


@dataclass
class _Uniforms:
    """The uniform buffer: one aligned slice for each distinct list of values."""

    data: bytearray = field(default_factory=bytearray)
    slices: dict[tuple[int, ...], int] = field(default_factory=dict)

    def slice(self, values: tuple[int, ...]) -> tuple[int, int]:
        size = -(-len(values) * 4 // 16) * 16
        if values not in self.slices:
            self.data.extend(bytes(-len(self.data) % OFFSET_ALIGNMENT))
            self.slices[values] = len(self.data)
            self.data += struct.pack(f"<{len(values)}i", *values).ljust(size, b"\0")
        return self.slices[values], size


def _port(program: BoundProgram, port: l1.Port) -> Port:
    placed = program.placed
    t = placed.program.tensors[port.tensor]
    region = placed.regions.get(port.tensor)
    lengths: tuple[Length, ...] = ()
    if t.length is not None:
        where = placed.regions[t.length]
        lengths = (Length(t.length_axis, where.buffer, where.offset),)
    size = t.count * t.dtype.bits // 8 if t.dtype.bits >= 8 else -(-t.count * t.dtype.bits // 8)
    return Port(port.name, t.dtype.name, t.shape, region.buffer if region else None, size, lengths)


def _requires(buffers: Sequence[Buffer], steps: Sequence[Step]) -> Requires:
    """The limits above the defaults that these buffers and bindings need."""
    needed = {
        "maxBufferSize": max((b.size for b in buffers), default=0),
        "maxStorageBufferBindingSize": max((b.size for s in steps for b in s.bindings), default=0),
    }
    return Requires(limits={k: v for k, v in sorted(needed.items()) if v > DEFAULT_LIMITS[k]})
