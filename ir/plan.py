"""L3, the capture plan: everything a runtime needs to replay a model, as plain data.

A plan is a list of entries over shared kernels and weights. An entry is a list of steps, a step one dispatch: kernels
to choose from, a grid, and byte ranges of buffers to bind. Nothing here is computed at run time. `plan_verify` checks
a plan, `plan_json` reads and writes it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx2wgsl.errors import ArtifactError

FORMAT_VERSION = "1.0"
TENSOR_SLOTS = 16
UNIFORM_SLOT_START = 16
OFFSET_ALIGNMENT = 256
CHUNK_BYTES = 4 << 20
SHARD_BYTES = 16 << 20

DEFAULT_LIMITS: Mapping[str, int] = {
    "maxStorageBuffersPerShaderStage": 8,
    "maxUniformBuffersPerShaderStage": 12,
    "maxBufferSize": 256 << 20,
    "maxStorageBufferBindingSize": 128 << 20,
    "maxUniformBufferBindingSize": 64 << 10,
    "maxComputeInvocationsPerWorkgroup": 256,
    "maxComputeWorkgroupSizeX": 256,
    "maxComputeWorkgroupSizeY": 256,
    "maxComputeWorkgroupSizeZ": 64,
    "maxComputeWorkgroupsPerDimension": 65535,
    "maxComputeWorkgroupStorageSize": 16 << 10,
}
"""The default limits of the WebGPU specification that a compute plan can run into (bytes or counts)."""


@dataclass(frozen=True, slots=True)
class Requires:
    """What an adapter must have, in the names of the WebGPU specification; empty means the defaults suffice.

    `limits` maps a limit to the value needed; `subgroup_matrix` lists configurations such as `f16:f32:16x16x16`.
    """

    features: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    wgsl_language_features: tuple[str, ...] = ()
    subgroup_matrix: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.features or self.limits or self.wgsl_language_features or self.subgroup_matrix)

    def merge(self, other: Requires) -> Requires:
        """What is needed where both are needed."""
        limits = dict(self.limits)
        for name, value in other.limits.items():
            stronger = min if name.startswith("min") else max
            limits[name] = stronger(value, limits.get(name, value))
        return Requires(
            tuple(sorted({*self.features, *other.features})),
            dict(sorted(limits.items())),
            tuple(sorted({*self.wgsl_language_features, *other.wgsl_language_features})),
            tuple(sorted({*self.subgroup_matrix, *other.subgroup_matrix})),
        )

    def limit(self, name: str) -> int:
        """The value of a limit (one of `DEFAULT_LIMITS`) on a device made for these requirements."""
        return max(DEFAULT_LIMITS[name], self.limits.get(name, 0))


@dataclass(frozen=True, slots=True)
class Buffer:
    """`size` bytes, a positive multiple of 4; `kind` is weights, arena, input, output, state or uniform.

    Each graph input and output has a buffer of its own, so that a device tensor can take its place. A `state` buffer is
    updated in place by the kernels.
    """

    name: str
    size: int
    kind: str


@dataclass(frozen=True, slots=True)
class Binding:
    """A byte range of a buffer at a slot. `kind`: storage or uniform; `access`: read, read_write or uniform.

    `offset` is a multiple of 256, `size` of 4. `tensors` names what lies in the range, for a reader.
    """

    slot: int
    kind: str
    access: str
    buffer: str
    offset: int
    size: int
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Declaration:
    """A binding as the kernel text declares it. `type` is WGSL (`array<vec4<f32>>`); uniforms have ordered `fields`."""

    slot: int
    kind: str
    access: str
    type: str
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """One WGSL module with the entry point `main`. `id` is a safe file name: `[A-Za-z0-9_-]`, at most 100 characters.

    `wgsl` holds no `enable` and no `requires` line; `wgsl_enables` lists the extensions that a runtime enables.
    """

    id: str
    wgsl: str
    workgroup_size: tuple[int, int, int]
    declarations: tuple[Declaration, ...]
    wgsl_enables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel and its grid (workgroups in x, y, z), taken where `requires` hold and `prefer` matches the adapter.

    `prefer` may name adapter (cpu or gpu), vendor and architecture.
    """

    kernel: str
    grid: tuple[int, int, int]
    requires: Requires = Requires()
    prefer: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One dispatch. The first fitting variant is taken; the last is the baseline (no `requires`, no `prefer`).

    All variants use the same bindings. `name` occurs once in the entry; `nodes` are the ONNX nodes computed here.
    """

    name: str
    nodes: tuple[str, ...]
    variants: tuple[Variant, ...]
    bindings: tuple[Binding, ...]
    signature: str
    op: str = "dispatch"


@dataclass(frozen=True, slots=True)
class Weight:
    """Bytes `[stream_offset, stream_offset + size)` of the concatenated shards go to `buffer` at `offset`.

    All three are multiples of 4. `dtype` and `shape` are those of the tensor in the model.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: str
    offset: int
    size: int
    stream_offset: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A weight file of `size` bytes; `chunks` are the SHA-256 (hex) of its pieces of 4 MiB."""

    file: str
    size: int
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Length:
    """The number of valid elements along `axis`: an i32 at byte `offset` of `buffer`, written by the run."""

    axis: int
    buffer: str
    offset: int


@dataclass(frozen=True, slots=True)
class Port:
    """A graph input or output: row-major little-endian ONNX elements, `size` bytes without padding, at the start of
    `buffer` (whose size is rounded up to 4).

    `dtype` is f32, i64, bool, f16, …; sub-byte types are packed, lowest bits first. `buffer` is None where there are no
    elements, and for an input that only feeds uniform fields. `lengths` lists axes that are sized by data; `shape` then
    is the bound.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer: str | None
    size: int
    lengths: tuple[Length, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """The input `name_in` is fed by the output `name_out` of the run before; zero at first.

    Ports of equal shape in two buffers: the output is copied over the input after each run. Both ports in one `state`
    buffer: the kernels update it in place. A growing state has `axis`, the `growth` along it in each run, and its
    `capacity`, the size of both ports along that axis.
    """

    name_in: str
    name_out: str
    axis: int | None = None
    growth: int = 0
    capacity: int = 0


@dataclass(frozen=True, slots=True)
class ParamField:
    """A uniform field of WGSL `type` (u32, i32 or f32) at byte `offset` of the uniform buffer, written before each run.

    `source` is "input": the value of the scalar graph input `name`; or "state": the length of the growing state whose
    input is `name`, before the run.
    """

    name: str
    offset: int
    type: str
    source: str = "input"


@dataclass(frozen=True, slots=True)
class Entry:
    """One executable plan. `uniform_data` is the first content of the one uniform buffer (empty if there is none).

    `baseline_requires` is what every adapter must have for this entry; `requires` is all that its variants may use.
    `bound` names the model's inputs that were made constants, and so are not passed to `run`.
    """

    name: str
    buffers: tuple[Buffer, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    steps: tuple[Step, ...]
    states: tuple[State, ...] = ()
    params: tuple[ParamField, ...] = ()
    bound: tuple[str, ...] = ()
    uniform_data: bytes = b""
    requires: Requires = Requires()
    baseline_requires: Requires = Requires()


@dataclass(frozen=True, slots=True)
class PassRecord:
    """A pass that ran: its name, its options, and what it counted (JSON values)."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    statistics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole artifact but for the bytes of the weights. `requires` is what every entry needs of an adapter.

    `buffers` are the weight buffers, which the entries share; `source_sha256` is the hash of the model file (hex), and
    `golden_sha256` that of `golden.npz` where the artifact has one.
    """

    producer: str
    source_sha256: str
    buffers: tuple[Buffer, ...]
    weights: tuple[Weight, ...]
    kernels: tuple[Kernel, ...]
    entries: tuple[Entry, ...]
    shards: tuple[Shard, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    requires: Requires = Requires()
    golden_sha256: str | None = None
    format_version: str = FORMAT_VERSION

    def kernel(self, kernel_id: str) -> Kernel:
        """The kernel of that id; KeyError if there is none."""
        return {kernel.id: kernel for kernel in self.kernels}[kernel_id]

    def entry(self, name: str) -> Entry:
        """The entry of that name; ArtifactError if there is none."""
        found = {entry.name: entry for entry in self.entries}
        if name not in found:
            raise ArtifactError(f"This artifact has no entry {name!r}. It has: {', '.join(found)}.")
        return found[name]


def layout_signature(declarations: Sequence[Declaration], bindings: Sequence[Binding]) -> str:
    """A hash (hex) over slot, kind, access and byte size of each binding, and order and types of the uniform fields."""
    fields = {declaration.slot: declaration.fields for declaration in declarations}
    parts = [
        f"{b.slot} {b.kind} {b.access} {b.size} " + ",".join(f"{name}:{kind}" for name, kind in fields.get(b.slot, ()))
        for b in sorted(bindings, key=lambda binding: binding.slot)
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def print_declaration(declaration: Declaration) -> str:
    """A declaration in the fixed form that `parse_declarations` reads: one line, or two for a uniform."""
    slot = f"@group(0) @binding({declaration.slot})"
    if declaration.kind == "storage":
        return f"{slot} var<storage, {declaration.access}> b{declaration.slot}: {declaration.type};"
    fields = " ".join(f"{name}: {kind}," for name, kind in declaration.fields)
    return f"struct Uniforms {{ {fields} }}\n{slot} var<uniform> u: Uniforms;"


_LINE_BREAK = re.compile("[\n\v\f\r\u0085\u2028\u2029]")
_STORAGE = re.compile(r"@group\(0\) @binding\((\d+)\) var<storage, (read|read_write)> b(\d+): (.+);")
_UNIFORM = re.compile(r"@group\(0\) @binding\((\d+)\) var<uniform> u: Uniforms;")
_STRUCT = re.compile(r"struct Uniforms \{ ((?:\w+: [\w<>]+, ?)+)\}")
_RESOURCE = re.compile(r"@\s*(?:binding|group)\b|\bvar\s*<\s*(?:storage|uniform)\b|\bstruct\s+Uniforms\b")
_WORKGROUP_SIZE = re.compile(r"@workgroup_size\((\d+)(?:, ?(\d+))?(?:, ?(\d+))?\)")


def code_lines(wgsl: str) -> list[str]:
    """The lines of a kernel's text without comments; ArtifactError for block comments, which kernels never have."""
    lines = [line.split("//", 1)[0].strip() for line in _LINE_BREAK.split(wgsl)]
    if any("/*" in line for line in lines):
        raise ArtifactError("kernels have line comments only, but this one has a block comment")
    return [line for line in lines if line]


def parse_declarations(wgsl: str) -> tuple[Declaration, ...]:
    """The declarations of a kernel's text, by slot; ArtifactError where one is not in the printer's fixed form."""
    found: list[Declaration] = []
    fields: tuple[tuple[str, str], ...] = ()
    for line in code_lines(wgsl):
        if struct := _STRUCT.fullmatch(line):
            pairs = (pair.split(":") for pair in struct[1].split(",") if pair.strip())
            fields = tuple((name.strip(), kind.strip()) for name, kind in pairs)
        elif (storage := _STORAGE.fullmatch(line)) and storage[1] == storage[3] and ";" not in storage[4]:
            found.append(Declaration(int(storage[1]), "storage", storage[2], storage[4]))
        elif uniform := _UNIFORM.fullmatch(line):
            found.append(Declaration(int(uniform[1]), "uniform", "uniform", "Uniforms", fields))
        elif _RESOURCE.search(line):
            raise ArtifactError(f"expected a declaration in the printer's fixed form, but got {line!r}")
    return tuple(sorted(found, key=lambda declaration: declaration.slot))


def parse_workgroup_size(wgsl: str) -> tuple[int, int, int]:
    """The workgroup size (x, y, z) in a kernel's text; ArtifactError unless it has exactly one."""
    sizes = [match for line in code_lines(wgsl) for match in _WORKGROUP_SIZE.finditer(line)]
    if len(sizes) != 1:
        raise ArtifactError(f"expected one @workgroup_size, but got {len(sizes)}")
    x, y, z = (int(value or 1) for value in sizes[0].groups())
    return x, y, z
