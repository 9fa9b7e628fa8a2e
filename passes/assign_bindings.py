"""assign-bindings (L2 → L3): one bind group a dispatch, a slot for each byte range that it uses.

Tensors that are the same range share a slot. Tensors take slots from 0: inputs by first use, then outputs; the uniform
slice takes the first uniform slot. A buffer that a dispatch writes is bound read-write wherever the dispatch uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnx2wgsl.errors import Gap, UnsupportedError
from onnx2wgsl.ir.kernel import KernelStep
from onnx2wgsl.ir.plan import DEFAULT_LIMITS, Binding
from onnx2wgsl.ir.text import quoted

from .base import Pass, PassResult
from .plan_memory import PlacedProgram, Region


@dataclass(frozen=True)
class BoundStep:
    """A dispatch with its bindings, and for each tensor name in its kernels' text the slot."""

    step: KernelStep
    bindings: tuple[Binding, ...]
    slots: dict[str, int]


@dataclass
class BoundProgram:
    placed: PlacedProgram
    steps: list[BoundStep]

    def __str__(self) -> str:
        lines: list[str] = []
        for number, bound in enumerate(self.steps):
            lines.append(f"dispatch {number} from {', '.join(map(quoted, bound.step.nodes))}")
            lines.extend(
                f"  slot {b.slot}: {b.access} {b.buffer} at {b.offset}, {b.size} bytes: "
                + ", ".join(map(quoted, b.tensors))
                for b in bound.bindings
            )
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class AssignBindings(Pass[PlacedProgram, BoundProgram]):
    """`storage_slots` is the target's limit of storage buffers in a dispatch."""

    storage_slots: int = DEFAULT_LIMITS["maxStorageBuffersPerShaderStage"]
    name: ClassVar[str] = "assign-bindings"

    def run(self, program: PlacedProgram) -> PassResult[BoundProgram]:
        steps = [self.step(program, step) for step in program.program.steps]
        most = max((len(s.bindings) for s in steps), default=0)
        return PassResult(BoundProgram(program, steps), True, {"dispatches": len(steps), "most_slots": most})

    def step(self, program: PlacedProgram, step: KernelStep) -> BoundStep:
        names = (*step.reads, *(w for w in step.writes if w not in step.reads))
        regions: dict[Region, list[str]] = {}
        for name in names:
            regions.setdefault(program.regions[step.bound(name)], []).append(name)
        written = {program.regions[step.bound(w)].buffer for w in step.writes}
        if len(regions) > self.storage_slots:
            what = f"one kernel needs {len(regions)} storage buffers, the target allows {self.storage_slots}"
            raise UnsupportedError([Gap(", ".join(step.nodes), "kernel", what)])
        bindings, slots = [], {}
        for slot, (region, members) in enumerate(regions.items()):
            access = "read_write" if region.buffer in written else "read"
            tensors = tuple(step.bound(m) for m in members)
            bindings.append(Binding(slot, "storage", access, region.buffer, region.offset, region.size, tensors))
            slots.update(dict.fromkeys(members, slot))
        return BoundStep(step, tuple(bindings), slots)
