"""plan-memory (L2 → L3): where every tensor lives.

Inputs, outputs and constants have buffers of their own. Intermediates share arenas by liveness over the step list,
largest first, at multiples of 256 bytes. WebGPU refuses one buffer bound read-only and read-write in one dispatch, and
read-write operands cost a contraction a quarter of its speed; so `fast` colours the tensors into a few arenas such that
no contraction or reduction writes an arena that it reads, and `compact` puts all of them into one arena.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from onnx2wgsl.codegen.storage import byte_size, root
from onnx2wgsl.ir.kernel import KernelProgram
from onnx2wgsl.ir.plan import DEFAULT_LIMITS, OFFSET_ALIGNMENT, Buffer, Weight
from onnx2wgsl.ir.program import TensorType
from onnx2wgsl.ir.text import quoted

from .base import Pass, PassResult

ARENAS = 4


class Region(NamedTuple):
    """A byte range of a buffer."""

    buffer: str
    offset: int
    size: int


@dataclass
class WeightPool:
    """The weights of an artifact, which its entries share: one region for each content, in the order of the stream."""

    weights: list[Weight] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    found: dict[tuple[bytes, str], Region] = field(default_factory=dict)
    stream: int = 0

    def add(self, name: str, t: TensorType, value: Any) -> Region:
        """The region of a constant; equal contents share one."""
        array = np.ascontiguousarray(value)
        key = (hashlib.sha256(array.view(np.uint8).reshape(-1).data if array.size else b"").digest(), t.dtype.name)
        if key not in self.found:
            self.found[key] = self._place(name, t, array)
        return self.found[key]

    def _place(self, name: str, t: TensorType, array: Any) -> Region:
        size = byte_size(t)
        bound = aligned(size, 16)
        if not self.sizes or aligned(self.sizes[-1]) + bound > DEFAULT_LIMITS["maxBufferSize"]:
            self.sizes.append(0)
        offset = aligned(self.sizes[-1])
        self.sizes[-1] = offset + bound
        buffer = f"weights{len(self.sizes) - 1}"
        self.weights.append(Weight(name, t.dtype.name, t.shape, buffer, offset, size, self.stream))
        self.arrays.append(array)
        self.stream += size
        return Region(buffer, offset, bound)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(Buffer(f"weights{k}", size, "weights") for k, size in enumerate(self.sizes))

    def blobs(self) -> list[Any]:
        """The bytes of the weights in the order of the stream, each padded to a multiple of 4."""
        result: list[Any] = []
        for weight, array in zip(self.weights, self.arrays, strict=True):
            packed = pack_elements(array)
            result.append(packed)
            if packed.nbytes < weight.size:
                result.append(bytes(weight.size - packed.nbytes))
        return result


def pack_elements(array: Any) -> Any:
    """The bytes of an array as ONNX packs them: types narrower than a byte share bytes, lowest bits first."""
    name = array.dtype.name
    bits = 4 if name in ("int4", "uint4", "float4_e2m1fn") else 2 if name in ("int2", "uint2") else 8
    flat = array.reshape(-1)
    if bits == 8:
        return flat.view(np.uint8)
    codes = flat.view(np.uint8) & ((1 << bits) - 1)
    per_byte = 8 // bits
    codes = np.concatenate([codes, np.zeros(-len(codes) % per_byte, np.uint8)]).reshape(-1, per_byte)
    return np.bitwise_or.reduce(codes << (np.arange(per_byte, dtype=np.uint8) * bits), axis=1).astype(np.uint8)


@dataclass
class PlacedProgram:
    """Kernels with the region of every tensor."""

    program: KernelProgram
    regions: dict[str, Region]
    buffers: list[Buffer]
    pool: WeightPool
    memory: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        buffers = [f"buffer {b.name}: {b.kind}, {b.size} bytes" for b in self.buffers]
        places = [f"{quoted(n)} in {r.buffer} at {r.offset}, {r.size} bytes" for n, r in self.regions.items()]
        return "\n".join([*buffers, *places]) + "\n"


class Life(NamedTuple):
    name: str
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class PlanMemory(Pass[KernelProgram, PlacedProgram]):
    policy: str = "fast"
    pool: WeightPool = field(default_factory=WeightPool, repr=False)
    name: ClassVar[str] = "plan-memory"

    def run(self, program: KernelProgram) -> PassResult[PlacedProgram]:
        fixed = {p.tensor for p in (*program.inputs, *program.outputs)}
        result = PlacedProgram(program, {}, [], self.pool)
        _place_ports(program, result)
        used = {s.bound(n) for s in program.steps for n in (*s.reads, *s.writes)}
        weights = [c for c in program.constants if c in used and c not in fixed]
        for name in weights:
            result.regions[name] = self.pool.add(name, program.tensors[name], program.constants[name])
        lives = lifetimes(program, fixed | set(program.constants))
        colours = _colours(program, lives) if self.policy == "fast" else {life.name: 0 for life in lives}
        for colour in sorted(set(colours.values())):
            members = [life for life in lives if colours[life.name] == colour]
            offsets, size = pack(members)
            result.buffers.append(Buffer(f"arena{colour}", size, "arena"))
            for life in members:
                result.regions[life.name] = Region(f"arena{colour}", offsets[life.name], life.size)
        result.memory = {
            "weights": sum({result.regions[n]: byte_size(program.tensors[n]) for n in weights}.values()),
            "arena": sum(b.size for b in result.buffers if b.kind == "arena"),
            "largest_live_set": largest_live(lives, len(program.steps)),
            "sum_of_intermediates": sum(life.size for life in lives),
        }
        return PassResult(result, True, {**result.memory, "arenas": len(set(colours.values()))})


def aligned(size: int, to: int = OFFSET_ALIGNMENT) -> int:
    return -(-size // to) * to


def _place_ports(program: KernelProgram, result: PlacedProgram) -> None:
    for kind, ports in (("input", program.inputs), ("output", program.outputs)):
        for k, port in enumerate(ports):
            size = byte_size(program.tensors[port.tensor])
            if size:
                name = f"{kind}{k}"
                result.buffers.append(Buffer(name, size, kind))
                result.regions[port.tensor] = Region(name, 0, size)


def lifetimes(program: KernelProgram, fixed: set[str]) -> list[Life]:
    """First and last step of each intermediate tensor, in order of first use; an output's length lives to the end."""
    spans: dict[str, list[int]] = {}
    for k, step in enumerate(program.steps):
        for name in (*step.reads, *step.writes):
            bound = step.bound(name)
            if bound not in fixed:
                spans.setdefault(bound, [k, k])[1] = k
    for port in program.outputs:
        length = program.tensors[port.tensor].length
        if length in spans:
            spans[length][1] = len(program.steps) - 1
    return [
        Life(n, aligned(byte_size(program.tensors[root(program.tensors, n)]), 16), first, last)
        for n, (first, last) in spans.items()
    ]


def pack(lives: Sequence[Life]) -> tuple[dict[str, int], int]:
    """Offsets such that tensors alive at the same time do not overlap, largest first; and the size of the arena."""
    placed: list[tuple[Life, int]] = []
    for life in sorted(lives, key=lambda x: (-x.size, x.first, x.name)):
        taken = sorted((o, o + p.size) for p, o in placed if p.first <= life.last and life.first <= p.last)
        offset = 0
        for lo, hi in taken:
            if offset + life.size <= lo:
                break
            offset = max(offset, aligned(hi))
        placed.append((life, offset))
    size = max((o + p.size for p, o in placed), default=0)
    return {p.name: o for p, o in placed}, size


def largest_live(lives: Sequence[Life], steps: int) -> int:
    """The most bytes alive at any step, each tensor rounded up to the alignment: the lower bound of an arena."""
    change = np.zeros(steps + 1, np.int64)
    for life in lives:
        change[life.first] += aligned(life.size)
        change[life.last + 1] -= aligned(life.size)
    return int(np.cumsum(change).max(initial=0))


def _colours(program: KernelProgram, lives: Sequence[Life]) -> dict[str, int]:
    """An arena for each intermediate, such that no stencil writes an arena that it reads."""
    intermediates = {life.name for life in lives}
    conflicts: dict[str, set[str]] = {n: set() for n in intermediates}
    for step in program.steps:
        if not step.stencil:
            continue
        reads = {step.bound(r) for r in step.reads} & intermediates
        writes = {step.bound(w) for w in step.writes} & intermediates
        for w in writes:
            for r in reads - {w}:
                conflicts[w].add(r)
                conflicts[r].add(w)
    colours: dict[str, int] = {}
    filled = [0] * ARENAS
    sizes = {life.name: life.size for life in lives}
    for life in lives:
        taken = {colours[c] for c in conflicts[life.name] if c in colours}
        free = [k for k in range(ARENAS) if k not in taken] or list(range(ARENAS))
        used = [k for k in free if filled[k]] or free
        colours[life.name] = min(used, key=lambda k: (max(0, sizes[life.name] - filled[k]), k))
        filled[colours[life.name]] = max(filled[colours[life.name]], sizes[life.name])
    return colours

