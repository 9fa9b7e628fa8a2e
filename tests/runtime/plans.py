"""Small plans written by hand, so that the runtime is tested without the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnx2wgsl.artifact import Artifact, Golden
from onnx2wgsl.ir.dtypes import BY_NAME
from onnx2wgsl.ir.plan import (
    Binding,
    Buffer,
    Declaration,
    Entry,
    Kernel,
    Plan,
    Port,
    Step,
    Variant,
    Weight,
    layout_signature,
    print_declaration,
)


def read(slot: int, of: str = "f32") -> Declaration:
    return Declaration(slot, "storage", "read", f"array<{of}>")


def write(slot: int, of: str = "f32") -> Declaration:
    return Declaration(slot, "storage", "read_write", f"array<{of}>")


def uniform(*fields: tuple[str, str]) -> Declaration:
    return Declaration(16, "uniform", "uniform", "Uniforms", fields)


def kernel(name: str, declarations: Sequence[Declaration], body: str) -> Kernel:
    """A kernel with one thread for each workgroup, whose number is `i` in the body."""
    lines = [f"// {name}", *map(print_declaration, declarations), "@compute @workgroup_size(1)"]
    lines.append("fn main(@builtin(workgroup_id) id: vec3<u32>) { let i = id.x; " + body + " }")
    return Kernel(name, "\n".join(lines) + "\n", (1, 1, 1), tuple(declarations))


def binding(slot: int, access: str, buffer: str, size: int, offset: int = 0) -> Binding:
    return Binding(slot, "uniform" if access == "uniform" else "storage", access, buffer, offset, size, (buffer,))


def step(name: str, kernels: Sequence[Kernel], groups: int, bindings: Sequence[Binding], **variant: Any) -> Step:
    """A step over `groups` workgroups; all kernels but the last are variants with the given `requires` or `prefer`."""
    *others, baseline = kernels
    variants = [Variant(other.id, (groups, 1, 1), **variant) for other in others]
    variants.append(Variant(baseline.id, (groups, 1, 1)))
    signature = layout_signature(baseline.declarations, bindings)
    return Step(name, (f"/{name}",), tuple(variants), tuple(bindings), signature)


def port(name: str, dtype: str, *shape: int, buffer: str | None = "", **more: Any) -> Port:
    size = -(-int(np.prod(shape)) * BY_NAME[dtype].bits // 8)
    buffer = (name if size else None) if buffer == "" else buffer
    return Port(name, dtype, shape, buffer, size, **more)


def buffer_of(of: Port, kind: str) -> Buffer:
    return Buffer(of.buffer or of.name, -(-of.size // 4) * 4, kind)


def plan(kernels: Sequence[Kernel], entry: Entry, **more: Any) -> Plan:
    return Plan(
        producer="test",
        source_sha256="",
        kernels=tuple(kernels),
        entries=(entry,),
        **({"buffers": (), "weights": ()} | more),
    )


ADD = kernel("add", [read(0), read(1), write(2)], "b2[i] = b0[i] + b1[i];")
WRONG_ADD = kernel("wrong_add", [read(0), read(1), write(2)], "b2[i] = b0[i] - b1[i];")
SCALE = kernel("scale", [read(0), write(1), uniform(("factor", "f32"), ("bias", "f32"))], "b1[i] = b0[i] * u.factor;")
SQUARE = kernel("square", [read(0), write(1)], "b1[i] = b0[i] * b0[i];")
COPY = kernel("copy", [read(0, "u32"), write(1, "u32")], "b1[i] = b0[i];")


def add_plan(kernels: Sequence[Kernel] = (ADD,), **variant: Any) -> Plan:
    """sum = x + y, f32[2, 3]."""
    x, y, total = port("x", "f32", 2, 3), port("y", "f32", 2, 3), port("sum", "f32", 2, 3)
    bindings = [binding(0, "read", "x", 24), binding(1, "read", "y", 24), binding(2, "read_write", "sum", 24)]
    buffers = (buffer_of(x, "input"), buffer_of(y, "input"), buffer_of(total, "output"))
    entry = Entry("main", buffers, (x, y), (total,), (step("add_0", kernels, 6, bindings, **variant),))
    return plan(kernels, entry)


def chain_plan() -> Plan:
    """z = ((x + w) * 3)², through an arena, with a weight and a uniform; f32[64]."""
    x, z = port("x", "f32", 64), port("z", "f32", 64)
    steps = (
        step(
            "add_0",
            [ADD],
            64,
            [binding(0, "read", "x", 256), binding(1, "read", "weights", 256, 256), binding(2, "read_write", "a", 256)],
        ),
        step(
            "scale_1",
            [SCALE],
            64,
            [
                binding(0, "read", "a", 256),
                binding(1, "read_write", "b", 256, 256),
                binding(16, "uniform", "u", 16, 256),
            ],
        ),
        step("square_2", [SQUARE], 64, [binding(0, "read", "b", 256, 256), binding(1, "read_write", "z", 256)]),
    )
    buffers = (
        buffer_of(x, "input"),
        buffer_of(z, "output"),
        Buffer("a", 256, "arena"),
        Buffer("b", 512, "arena"),
        Buffer("u", 512, "uniform"),
    )
    data = bytes(256) + np.array([3, 0, 0, 0], np.float32).tobytes() + bytes(240)
    entry = Entry("main", buffers, (x,), (z,), steps, uniform_data=data)
    weight = Weight("w", "f32", (64,), "weights", 256, 256, 8)
    return plan([ADD, SCALE, SQUARE], entry, buffers=(Buffer("weights", 512, "weights"),), weights=(weight,))


CHAIN_WEIGHT = np.arange(64, dtype=np.float32) / 8


def chain_artifact(**more: Any) -> Artifact:
    return Artifact.create(chain_plan(), [bytes(8), CHAIN_WEIGHT], **more)


def chain_of(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the chain computes, rounded as in f32."""
    scaled: np.ndarray[Any, Any] = (x + CHAIN_WEIGHT) * np.float32(3)
    return scaled * scaled


def copy_plan(dtype: str, *shape: int) -> Plan:
    """y = x, word by word."""
    x, y = port("x", dtype, *shape), port("y", dtype, *shape)
    if x.buffer is None:
        return plan([], Entry("main", (), (x,), (y,), ()))
    size = -(-x.size // 4) * 4
    steps = (step("copy_0", [COPY], size // 4, [binding(0, "read", "x", size), binding(1, "read_write", "y", size)]),)
    return plan([COPY], Entry("main", (buffer_of(x, "input"), buffer_of(y, "output")), (x,), (y,), steps))


def golden_for_add() -> Golden:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    return Golden({"x": x, "y": x}, {"sum": x + x})
