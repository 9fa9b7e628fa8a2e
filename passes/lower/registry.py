"""Registering lowerings, and what a lowering sees of its node.

A lowering is one function, `@lower("Relu", since=6)`, from a `Context` to the node's outputs. It is written in ONNX's
own dtypes and never asks what the device has. It refuses what it cannot do with `c.refuse(reason)`; the reasons are
those of the closed list in `docs/operators.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx_ir

from onnx2wgsl.errors import Gap
from onnx2wgsl.ir.builder import Builder, Tensor
from onnx2wgsl.ir.dtypes import BY_ONNX, DType

Result = Tensor | list[Any] | None
Results = Result | tuple[Result, ...]
Lowering = Callable[["Context"], Results]
F = TypeVar("F", bound=Callable[..., Any])

_REGISTRY: dict[tuple[str, str], list[tuple[int, Lowering]]] = {}


class Refusal(Exception):
    """A node that cannot be lowered, with a reason for people."""

    def __init__(self, reason: str, input_name: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.input_name = reason, input_name


def lower(*names: str, since: int = 1, domain: str = "") -> Callable[[F], F]:
    """Registers a lowering for operators of a domain from opset version `since` until the next registered one."""

    def register(function: F) -> F:
        for name in names:
            versions = _REGISTRY.setdefault((domain, name), [])
            if any(v == since for v, _ in versions):
                raise ValueError(f"{domain or 'ai.onnx'}::{name} since {since} is registered twice")
            versions.append((since, function))
            versions.sort(key=lambda entry: -entry[0])
        return function

    return register


def find(domain: str, name: str, version: int) -> Lowering | None:
    """The lowering for an operator at an opset version."""
    domain = "" if domain == "ai.onnx" else domain
    return next((f for since, f in _REGISTRY.get((domain, name), []) if since <= version), None)


def registered() -> list[tuple[str, str, int]]:
    """(domain, operator, since) of every lowering, sorted."""
    return sorted((d, n, since) for (d, n), versions in _REGISTRY.items() for since, _ in versions)


@dataclass
class Context:
    """One node to lower: its inputs as tensors (None where absent, a list for a sequence), attributes and opset."""

    builder: Builder
    node: onnx_ir.Node
    inputs: list[Any]
    version: int
    lower_graph: Callable[[onnx_ir.Graph, Sequence[Any]], list[Any]]
    input_names: list[str] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    @property
    def op(self) -> str:
        return self.node.op_type

    @property
    def output_count(self) -> int:
        """Number of outputs that the node declares, trailing unnamed ones included."""
        return len(self.node.outputs)

    def wants(self, position: int) -> bool:
        """Whether the node names its output at `position`."""
        return position < len(self.node.outputs) and bool(self.node.outputs[position].name)

    def __getitem__(self, position: int) -> Tensor:
        """The input at `position`; refuses where it is absent or not a tensor."""
        value = self.optional(position)
        if value is None:
            raise self.refuse(f"input {position} is required and absent")
        return value

    def optional(self, position: int) -> Tensor | None:
        """The input at `position`, or None where it is absent."""
        value = self.inputs[position] if position < len(self.inputs) else None
        if isinstance(value, list):
            raise self.refuse(f"input {position} is a sequence; a tensor is expected")
        return value

    def value(self, position: int) -> np.ndarray[Any, Any]:
        """The value of an input that must be known at compile time."""
        tensor = self[position]
        if tensor.value is None:
            name = self.input_names[position] if position < len(self.input_names) else tensor.name
            raise self.refuse(f"input {position} ({name}) must be known at compile time", name)
        return tensor.value

    def optional_value(self, position: int) -> np.ndarray[Any, Any] | None:
        """The compile-time value of an input, or None where it is absent."""
        return None if self.optional(position) is None else self.value(position)

    def ints(self, position: int) -> list[int]:
        """A compile-time input as a flat list of integers."""
        return [int(v) for v in self.value(position).reshape(-1)]

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as int, float, str, list, ndarray (tensor) or graph."""
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        value = attribute.value
        if isinstance(value, onnx_ir.TensorProtocol):
            return value.numpy()
        return list(value) if isinstance(value, (tuple, list)) else value

    def dtype_attr(self, name: str, default: DType) -> DType:
        """An attribute that holds a TensorProto data type."""
        number = self.attr(name, None)
        if not number:
            return default
        found = BY_ONNX.get(int(number))
        if found is None:
            known = {int(t): t.name for t in onnx_ir.DataType}
            raise self.refuse(f"element type {known.get(int(number), number)} has no tensor on the GPU")
        return found

    def axis(self, value: int, rank: int) -> int:
        """A normalised axis; refuses one that is out of range."""
        if not -rank <= value < max(rank, 1):
            raise self.refuse(f"axis {value} is out of range for rank {rank}")
        return value + rank if value < 0 else value

    def refuse(self, reason: str, input_name: str | None = None) -> Refusal:
        """The exception to raise for what cannot be lowered."""
        return Refusal(reason, input_name)

    # Short forms of the builder, so that a lowering reads as its equation.
    @property
    def map(self) -> Callable[..., Tensor]:
        return self.builder.map

    @property
    def reduce(self) -> Callable[..., tuple[Tensor, ...]]:
        return self.builder.reduce

    @property
    def contract(self) -> Callable[..., Tensor]:
        return self.builder.contract

    @property
    def constant(self) -> Callable[..., Tensor]:
        return self.builder.constant


def broadcast(c: Context, *shapes: Sequence[int]) -> tuple[int, ...]:
    """The NumPy broadcast of shapes; refuses with the shapes where there is none."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[int] = []
    for k in range(rank):
        sizes = {s[k - rank + len(s)] for s in shapes if k - rank + len(s) >= 0} - {1}
        if len(sizes) > 1:
            raise c.refuse(f"shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast")
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)
