"""The verifier of capture plans: what a runtime may rely on, checked before anything is created on a device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from onnx2wgsl.errors import ArtifactError, escape_name

from .dtypes import BY_NAME
from .plan import (
    CHUNK_BYTES,
    OFFSET_ALIGNMENT,
    SHARD_BYTES,
    TENSOR_SLOTS,
    UNIFORM_SLOT_START,
    Binding,
    Buffer,
    Declaration,
    Entry,
    Kernel,
    Plan,
    Port,
    Requires,
    State,
    Step,
    Variant,
    Weight,
    code_lines,
    layout_signature,
    parse_declarations,
    parse_workgroup_size,
)

_KERNEL_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_ACCESS = {"storage": ("read", "read_write"), "uniform": ("uniform",)}
_WRITABLE = ("arena", "output", "state")
_UNIFORM_TYPES = {"u32": (4, 4), "i32": (4, 4), "f32": (4, 4)} | {
    f"vec{n}<{scalar}>": (8 if n == 2 else 16, 4 * n) for n in (2, 3, 4) for scalar in ("u32", "i32", "f32")
}
"""WGSL type to (alignment, size) in bytes."""


def verify_plan(plan: Plan) -> None:
    """Raise ArtifactError, in words that name entry, step and kernel, unless the plan is consistent."""
    _check_unique("kernel", (kernel.id for kernel in plan.kernels))
    _check_unique("entry", (entry.name for entry in plan.entries))
    _check_unique("buffer", (buffer.name for buffer in plan.buffers))
    for kernel in plan.kernels:
        _verify_kernel(kernel)
    _verify_weights(plan)
    for entry in plan.entries:
        _verify_entry(plan, entry)


def _fail(where: str, problem: str) -> None:
    raise ArtifactError(f"{where}: {problem}.")


def _check_unique(what: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            _fail(f"{what} {escape_name(name)}", f"expected one of that name, but got {count}")


def _verify_kernel(kernel: Kernel) -> None:
    where = f"kernel {escape_name(kernel.id)}"
    if not _KERNEL_ID.fullmatch(kernel.id):
        _fail(where, "expected an id of letters, digits, '_' and '-', at most 100 of them")
    try:
        lines = code_lines(kernel.wgsl)
        declared = parse_declarations(kernel.wgsl)
        size = parse_workgroup_size(kernel.wgsl)
    except ArtifactError as error:
        raise ArtifactError(f"{where}: {error}.") from error
    if any(re.match(r"(enable|requires)\b", line) for line in lines):
        _fail(where, "its text has an enable or requires line, which belongs into wgsl_enables")
    planned = tuple(sorted(kernel.declarations, key=lambda declaration: declaration.slot))
    if declared != planned:
        _fail(where, f"its text declares {_describe(declared)}, but the plan says {_describe(planned)}")
    if size != kernel.workgroup_size:
        _fail(where, f"its text has workgroup size {size}, but the plan says {kernel.workgroup_size}")


def _describe(declarations: Sequence[Declaration]) -> str:
    texts = (
        f"slot {d.slot} {d.access} {d.type}" + "".join(f" {name}:{kind}" for name, kind in d.fields)
        for d in declarations
    )
    return "; ".join(texts) or "nothing"


def _verify_weights(plan: Plan) -> None:
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    for buffer in plan.buffers:
        _verify_buffer(buffer, ("weights",), plan.requires)
    for index, shard in enumerate(plan.shards):
        where = f"shard {escape_name(shard.file)}"
        if not 0 < shard.size <= SHARD_BYTES or (index + 1 < len(plan.shards) and shard.size != SHARD_BYTES):
            _fail(where, f"expected {SHARD_BYTES} bytes (fewer in the last shard only), but got {shard.size}")
        if len(shard.chunks) != -(-shard.size // CHUNK_BYTES):
            _fail(where, f"{len(shard.chunks)} chunk hashes do not cover {shard.size} bytes")
    total = sum(shard.size for shard in plan.shards)
    for weight in plan.weights:
        _verify_weight(weight, buffers, total)


def _verify_weight(weight: Weight, buffers: Mapping[str, Buffer], total: int) -> None:
    where = f"weight {escape_name(weight.name)}"
    if weight.buffer not in buffers:
        _fail(where, f"there is no weight buffer {escape_name(weight.buffer)}")
    if weight.size % 4 or weight.offset % 4 or weight.stream_offset % 4:
        _fail(where, "size and offsets must be multiples of 4")
    if weight.offset + weight.size > buffers[weight.buffer].size:
        _fail(where, f"it ends behind the {buffers[weight.buffer].size} bytes of its buffer")
    if weight.stream_offset + weight.size > total:
        _fail(where, f"it ends behind the {total} bytes of all shards")


def _verify_buffer(buffer: Buffer, kinds: tuple[str, ...], requires: Requires) -> None:
    where = f"buffer {escape_name(buffer.name)}"
    if buffer.kind not in kinds:
        _fail(where, f"expected a kind among {', '.join(kinds)}, but got {escape_name(buffer.kind)}")
    if buffer.size <= 0 or buffer.size % 4:
        _fail(where, f"expected a positive size that is a multiple of 4, but got {buffer.size}")
    if buffer.size > requires.limit("maxBufferSize"):
        _fail(where, f"its {buffer.size} bytes exceed maxBufferSize, {requires.limit('maxBufferSize')}")


def _verify_entry(plan: Plan, entry: Entry) -> None:
    requires = plan.requires.merge(entry.baseline_requires)
    _check_unique("buffer", (buffer.name for buffer in (*plan.buffers, *entry.buffers)))
    _check_unique("input", (port.name for port in entry.inputs))
    _check_unique("output", (port.name for port in entry.outputs))
    _check_unique("step", (step.name for step in entry.steps))
    for buffer in entry.buffers:
        _verify_buffer(buffer, ("arena", "input", "output", "state", "uniform"), requires)
    buffers = {buffer.name: buffer for buffer in (*plan.buffers, *entry.buffers)}
    for port in entry.inputs:
        _verify_port(port, buffers, ("input", "state"))
    for port in entry.outputs:
        _verify_port(port, buffers, ("output", "state"))
    _verify_owners(entry, buffers)
    for state in entry.states:
        _verify_state(entry, state, buffers)
    _verify_uniforms(entry)
    kernels = {kernel.id: kernel for kernel in plan.kernels}
    for step in entry.steps:
        _StepVerifier(entry.name, step, kernels, buffers, requires).run()


def _verify_port(port: Port, buffers: Mapping[str, Buffer], kinds: tuple[str, ...]) -> None:
    where = f"{kinds[0]} {escape_name(port.name)}"
    if port.dtype not in BY_NAME:
        _fail(where, f"unknown dtype {escape_name(port.dtype)}")
    elements = 1
    for extent in port.shape:
        elements *= extent
    expected = -(-elements * BY_NAME[port.dtype].bits // 8)
    if port.size != expected:
        _fail(where, f"expected {expected} bytes for {port.dtype}{list(port.shape)}, but got {port.size}")
    if port.buffer is None:
        if elements and kinds[0] == "output":
            _fail(where, "it has elements but no buffer")
        return
    if port.buffer not in buffers or buffers[port.buffer].kind not in kinds:
        _fail(where, f"there is no {kinds[0]} buffer {escape_name(port.buffer)}")
    padded = -(-port.size // 4) * 4
    if buffers[port.buffer].size != padded:
        _fail(where, f"expected a buffer of {padded} bytes, but got {buffers[port.buffer].size}")
    for length in port.lengths:
        if not 0 <= length.axis < len(port.shape):
            _fail(where, f"it has no axis {length.axis} for a length")
        if length.buffer not in buffers or length.offset % 4 or length.offset + 4 > buffers[length.buffer].size:
            _fail(where, "its length lies in no buffer")


def _verify_owners(entry: Entry, buffers: Mapping[str, Buffer]) -> None:
    owners = Counter(port.buffer for port in (*entry.inputs, *entry.outputs) if port.buffer)
    for name, count in owners.items():
        if count > 1 and buffers[name].kind != "state":
            _fail(f"buffer {escape_name(name)}", f"it belongs to {count} inputs and outputs instead of one")


def _verify_state(entry: Entry, state: State, buffers: Mapping[str, Buffer]) -> None:
    where = f"state {escape_name(state.name_in)}"
    inputs = {port.name: port for port in entry.inputs}
    outputs = {port.name: port for port in entry.outputs}
    if state.name_in not in inputs or state.name_out not in outputs:
        _fail(where, f"expected an input of that name and an output {escape_name(state.name_out)}")
    source, target = outputs[state.name_out], inputs[state.name_in]
    if (source.dtype, source.shape) != (target.dtype, target.shape):
        _fail(where, "input and output differ in dtype or shape")
    kinds = {buffers[port.buffer].kind for port in (source, target) if port.buffer}
    if "state" in kinds and source.buffer != target.buffer:
        _fail(where, "a state that is updated in place needs one buffer for input and output")
    if state.axis is None:
        return
    if kinds != {"state"} or not 0 <= state.axis < len(target.shape) or target.shape[state.axis] != state.capacity:
        _fail(where, "a growing state needs a state buffer that has its capacity along its axis")
    if not 0 < state.growth <= state.capacity:
        _fail(where, f"expected a growth between 1 and the capacity {state.capacity}, but got {state.growth}")


def _verify_uniforms(entry: Entry) -> None:
    sizes = [buffer.size for buffer in entry.buffers if buffer.kind == "uniform"]
    if sizes != ([len(entry.uniform_data)] if entry.uniform_data else []):
        _fail(f"entry {escape_name(entry.name)}", "expected one uniform buffer of the size of uniform_data")
    inputs = {port.name: port for port in entry.inputs}
    growing = {state.name_in for state in entry.states if state.axis is not None}
    for param in entry.params:
        where = f"param {escape_name(param.name)}"
        if param.type not in ("u32", "i32", "f32") or param.offset % 4 or param.offset + 4 > len(entry.uniform_data):
            _fail(where, "expected a u32, i32 or f32 inside uniform_data")
        if param.source == "state" and param.name not in growing:
            _fail(where, "there is no growing state of that name")
        if param.source == "input" and (param.name not in inputs or any(n != 1 for n in inputs[param.name].shape)):
            _fail(where, "there is no input of that name with one element")


class _StepVerifier:
    """The checks of one step, which share what an error has to name."""

    def __init__(
        self, entry: str, step: Step, kernels: Mapping[str, Kernel], buffers: Mapping[str, Buffer], requires: Requires
    ) -> None:
        self.step, self.kernels, self.buffers, self.requires = step, kernels, buffers, requires
        names = ", ".join(dict.fromkeys(escape_name(variant.kernel) for variant in step.variants))
        self.where = f"entry {escape_name(entry)}, step {escape_name(step.name)}, kernel {names or 'none'}"

    def run(self) -> None:
        step = self.step
        if step.op != "dispatch":
            self.fail(f"unknown operation {escape_name(step.op)}")
        if not step.variants or step.variants[-1].requires or step.variants[-1].prefer:
            self.fail("the last variant must be the baseline, without requires and prefer")
        for binding in step.bindings:
            self.binding(binding)
        self.slots()
        for one, other in combinations(step.bindings, 2):
            self.pair(one, other)
        for variant in step.variants:
            self.variant(variant)

    def fail(self, problem: str) -> None:
        _fail(self.where, problem)

    def binding(self, binding: Binding) -> None:
        slot = f"slot {binding.slot}"
        if binding.access not in _ACCESS.get(binding.kind, ()):
            self.fail(f"{slot} has kind {escape_name(binding.kind)} with access {escape_name(binding.access)}")
        if binding.kind == "storage" and not 0 <= binding.slot < TENSOR_SLOTS:
            self.fail(f"a tensor has {slot}, but tensors take slots 0 to {TENSOR_SLOTS - 1}")
        if binding.kind == "uniform" and binding.slot < UNIFORM_SLOT_START:
            self.fail(f"a uniform has {slot}, but uniforms start at {UNIFORM_SLOT_START}")
        buffer = self.buffers.get(binding.buffer)
        if buffer is None:
            self.fail(f"{slot} binds the buffer {escape_name(binding.buffer)}, which does not exist")
            return
        if binding.offset < 0 or binding.offset % OFFSET_ALIGNMENT:
            self.fail(f"{slot} has offset {binding.offset}, which is no multiple of {OFFSET_ALIGNMENT}")
        if binding.size <= 0 or binding.size % 4:
            self.fail(f"{slot} has size {binding.size}, which is no positive multiple of 4")
        if binding.offset + binding.size > buffer.size:
            end = binding.offset + binding.size
            self.fail(f"{slot} ends at byte {end} of {escape_name(buffer.name)}, which has {buffer.size}")
        if (binding.kind == "uniform") != (buffer.kind == "uniform"):
            self.fail(f"{slot} binds a buffer of kind {buffer.kind} as {binding.kind}")
        if binding.access == "read_write" and buffer.kind not in _WRITABLE:
            self.fail(f"{slot} writes {escape_name(buffer.name)}, a buffer of kind {buffer.kind}")
        limit = "maxStorageBufferBindingSize" if binding.kind == "storage" else "maxUniformBufferBindingSize"
        if binding.size > self.requires.limit(limit):
            self.fail(f"{slot} has {binding.size} bytes, above {limit}, {self.requires.limit(limit)}")

    def slots(self) -> None:
        for slot, count in Counter(binding.slot for binding in self.step.bindings).items():
            if count > 1:
                self.fail(f"slot {slot} is bound {count} times")
        storage = sum(binding.kind == "storage" for binding in self.step.bindings)
        limit = self.requires.limit("maxStorageBuffersPerShaderStage")
        if storage > limit:
            self.fail(f"it binds {storage} storage slots, above maxStorageBuffersPerShaderStage, {limit}")

    def pair(self, one: Binding, other: Binding) -> None:
        if one.buffer != other.buffer or one.access == other.access != "read_write":
            return
        slots = f"slots {one.slot} and {other.slot}"
        if one.access != other.access:
            self.fail(f"{slots} bind {escape_name(one.buffer)} both read and read_write")
        if one.offset < other.offset + other.size and other.offset < one.offset + one.size:
            self.fail(f"{slots} overlap in {escape_name(one.buffer)}")

    def variant(self, variant: Variant) -> None:
        kernel = self.kernels.get(variant.kernel)
        if kernel is None:
            self.fail(f"there is no kernel {escape_name(variant.kernel)}")
            return
        requires = self.requires.merge(variant.requires)
        most = requires.limit("maxComputeWorkgroupsPerDimension")
        if any(not 0 < extent <= most for extent in variant.grid):
            self.fail(f"grid {variant.grid} must have 1 to {most} workgroups in each dimension")
        x, y, z = kernel.workgroup_size
        if x * y * z > requires.limit("maxComputeInvocationsPerWorkgroup"):
            self.fail(f"workgroup size {kernel.workgroup_size} exceeds maxComputeInvocationsPerWorkgroup")
        bound = {binding.slot: binding for binding in self.step.bindings}
        declared = {declaration.slot: declaration for declaration in kernel.declarations}
        if bound.keys() != declared.keys():
            self.fail(f"it binds slots {sorted(bound)}, but {kernel.id} declares slots {sorted(declared)}")
        for slot, declaration in declared.items():
            self.declaration(kernel, declaration, bound[slot])
        signature = layout_signature(kernel.declarations, self.step.bindings)
        if signature != self.step.signature:
            self.fail(f"expected the layout signature {signature}, but got {escape_name(self.step.signature)}")

    def declaration(self, kernel: Kernel, declaration: Declaration, binding: Binding) -> None:
        slot = f"slot {binding.slot}"
        if (declaration.kind, declaration.access) != (binding.kind, binding.access):
            self.fail(f"{slot} is bound as {binding.access}, but {kernel.id} declares {declaration.access}")
        if declaration.kind == "storage":
            return
        try:
            needed = uniform_size(declaration.fields)
        except KeyError as error:
            self.fail(f"{slot} of {kernel.id} has a uniform field of unknown type {escape_name(error.args[0])}")
            return
        if binding.size < needed:
            self.fail(f"{slot} has {binding.size} bytes, but the uniform fields of {kernel.id} take {needed}")


def uniform_size(fields: Sequence[tuple[str, str]]) -> int:
    """Bytes of a uniform struct with these (name, WGSL type) fields; KeyError for a type that uniforms do not have."""
    end, largest = 0, 4
    for _, kind in fields:
        alignment, size = _UNIFORM_TYPES[kind]
        end = -(-end // alignment) * alignment + size
        largest = max(largest, alignment)
    return -(-end // largest) * largest
