"""fix-shapes (L0): gives every input a static shape, and turns bound inputs into constants.

Dimensions are fixed by name, inputs by their whole shape, and values by binding. Whatever stays open is named with
the inputs where it occurs and the flag to give, all at once.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import onnx_ir

from onnx2wgsl.errors import CompileError, Gap, UnsupportedError, escape_name
from onnx2wgsl.ir.dtypes import BY_ONNX, DType

from .base import Pass, PassResult
from .load_model import nearest, quoted

Dim = int | str | None


@dataclass(frozen=True)
class FixShapes(Pass[onnx_ir.Model, onnx_ir.Model]):
    """`dims` fixes dimensions by name, `input_shapes` inputs by name, `bind` makes inputs constants."""

    name: ClassVar[str] = "fix-shapes"
    dims: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    bind: Mapping[str, Any] = field(default_factory=dict)

    def run(self, program: onnx_ir.Model) -> PassResult[onnx_ir.Model]:
        model = program
        graph = model.graph
        optional = _drop_optional_inputs(graph, set(self.bind))
        inputs = {v.name or "": v for v in graph.inputs}
        _check_names("input_shapes", self.input_shapes, inputs)
        _check_names("bind", self.bind, inputs)
        _check_dims(self.dims, inputs)
        known: dict[str, int] = {k: _size(f'dimension "{escape_name(k)}"', v) for k, v in self.dims.items()}
        arrays = {name: bound_array(inputs[name], value, known) for name, value in self.bind.items()}
        given = {name: tuple(shape) for name, shape in self.input_shapes.items()}
        given.update({name: array.shape for name, array in arrays.items()})
        known |= _implied(inputs, given, known)
        shapes = {name: _resolve(value, given.get(name), known, self.dims) for name, value in inputs.items()}
        _report_open(inputs, shapes)
        changed = optional > 0 or bool(arrays)
        for name, value in inputs.items():
            shape = [int(d) for d in shapes[name] or () if isinstance(d, int)]
            if isinstance(value.type, onnx_ir.TensorType):
                changed = changed or dims_of(value) != tuple(shape)
                value.shape = onnx_ir.Shape(shape)
        for name, array in arrays.items():
            _make_constant(graph, inputs[name], array)
        _forget_open_shapes(graph)
        statistics = {"inputs": len(graph.inputs), "bound": len(arrays), "optional inputs made constants": optional}
        return PassResult(model, changed, statistics)


def dims_of(value: onnx_ir.Value) -> tuple[Dim, ...] | None:
    """The dimensions of a value: sizes, names or None; None where the rank is not known.

    Some exporters write -1 for a dimension that they leave open.
    """
    if value.shape is None:
        return None
    return tuple(d.value if not isinstance(d, int) else d if d >= 0 else None for d in value.shape.dims)


def _drop_optional_inputs(graph: onnx_ir.Graph, bound: set[str]) -> int:
    """An initializer that is also an input has a default value: it stays a constant, unless it is bound."""
    count = 0
    for value in list(graph.inputs):
        if value.name in graph.initializers:
            if value.name in bound:
                del graph.initializers[value.name]
                value.const_value = None
            else:
                graph.inputs.remove(value)
                count += 1
    return count


def _check_names(option: str, given: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    for name in given:
        if name not in inputs:
            known = f" The inputs are {quoted(inputs)}." if len(inputs) <= 20 else ""
            raise CompileError(f"{option}: the model has no input {quoted([name])}{nearest(name, inputs)}{known}")


def _check_dims(dims: Mapping[str, int], inputs: Mapping[str, onnx_ir.Value]) -> None:
    known = {n for v in inputs.values() for d in dims_of(v) or () if isinstance(d, str) for n in (d, *names_in(d))}
    for name in dims:
        if name not in known:
            listed = (
                f" The named dimensions are {quoted(sorted(known))}." if known else " The inputs name no dimensions."
            )
            raise CompileError(f"dims: no input has a dimension {quoted([name])}{nearest(name, known)}{listed}")


def _size(label: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise CompileError(f"The size of {label} must be an integer of 0 or more, got {escape_name(value)}.")
    return int(value)


_OPERATORS: Mapping[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}


def names_in(expression: str) -> Iterator[str]:
    """The names of a symbolic dimension such as `past + sequence`."""
    tree = _parse(expression)
    if tree is not None:
        yield from (n.id for n in ast.walk(tree) if isinstance(n, ast.Name))


def _parse(expression: str) -> ast.expr | None:
    if len(expression) > 200:
        return None
    try:
        return ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def evaluate_dim(expression: str, known: Mapping[str, int]) -> int | None:
    """The size of a named dimension, or of a sum or product of named dimensions."""
    if expression in known:
        return known[expression]
    tree = _parse(expression)
    result = None if tree is None or isinstance(tree, ast.Name) else _evaluate(tree, known)
    return result if result is not None and result >= 0 else None


def _evaluate(tree: ast.expr, known: Mapping[str, int]) -> int | None:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return int(tree.value)
    if isinstance(tree, ast.Name):
        return known.get(tree.id)
    if not isinstance(tree, ast.BinOp) or type(tree.op) not in _OPERATORS:
        return None
    left, right = _evaluate(tree.left, known), _evaluate(tree.right, known)
    if left is None or right is None or (right == 0 and isinstance(tree.op, (ast.Div, ast.FloorDiv))):
        return None
    return int(_OPERATORS[type(tree.op)](left, right))


def _implied(
    inputs: Mapping[str, onnx_ir.Value], given: Mapping[str, tuple[int, ...]], known: Mapping[str, int]
) -> dict[str, int]:
    """Sizes of named dimensions that whole shapes agree on, for the inputs whose shapes are not given."""
    found: dict[str, set[int]] = {}
    for name, shape in given.items():
        dims = dims_of(inputs[name])
        for dim, size in zip(dims or (), shape, strict=False):
            if isinstance(dim, str) and dim not in known:
                found.setdefault(dim, set()).add(int(size))
    return {dim: sizes.pop() for dim, sizes in found.items() if len(sizes) == 1}


def _resolve(
    value: onnx_ir.Value, given: tuple[int, ...] | None, known: Mapping[str, int], explicit: Mapping[str, int]
) -> tuple[Dim, ...] | None:
    """The dimensions of an input with what is known filled in."""
    dims = dims_of(value)
    label = f'input "{escape_name(value.name)}"'
    if given is None:
        if dims is None:
            return None
        return tuple(_filled(d, known) for d in dims)
    sizes = tuple(_size(f"axis {k} of {label}", s) for k, s in enumerate(given))
    if dims is None:
        return sizes
    if len(dims) != len(sizes):
        raise CompileError(
            f"The {label} has rank {len(dims)} {describe(dims)}, the shape {list(sizes)} has rank {len(sizes)}."
        )
    for axis, (dim, size) in enumerate(zip(dims, sizes, strict=True)):
        if isinstance(dim, int) and dim != size:
            raise CompileError(f"The {label} has size {dim} at axis {axis}, the shape {list(sizes)} gives {size}.")
        if isinstance(dim, str) and explicit.get(dim, size) != size:
            raise CompileError(
                f"The {label} has dimension {quoted([dim])} at axis {axis}: "
                f"its shape gives {size}, dims gives {explicit[dim]}."
            )
    return sizes


def _filled(dim: Dim, known: Mapping[str, int]) -> Dim:
    if not isinstance(dim, str):
        return dim
    found = evaluate_dim(dim, known)
    return dim if found is None else found


def describe(dims: Sequence[Dim]) -> str:
    """Dimensions for people: `[batch, 3, ?, ?]`."""
    return "[" + ", ".join("?" if d is None else escape_name(d, 40) for d in dims) + "]"


def _report_open(inputs: Mapping[str, onnx_ir.Value], shapes: Mapping[str, tuple[Dim, ...] | None]) -> None:
    """Raises with every dimension that has no value, where it occurs, and the flag to give."""
    named: dict[str, list[str]] = {}
    lines: list[str] = []
    for name, dims in shapes.items():
        if not _is_tensor(inputs[name]):
            continue  # refused below, or with all gaps by lower-ops
        shown = escape_name(name)
        if dims is None:
            lines.append(f'  input "{shown}" has no known rank: give --shape "{shown}=…"')
            continue
        if any(d is None for d in dims):
            template = ",".join("…" if d is None else escape_name(d, 40) for d in dims)
            lines.append(
                f'  input "{shown}" {describe(dims)} has unnamed open dimensions: give --shape "{shown}={template}"'
            )
        for axis, dim in enumerate(dims):
            if isinstance(dim, str):
                named.setdefault(dim, []).append(f'"{shown}" axis {axis}')
    for dim, places in named.items():
        where = ", ".join(places[:8]) + (f" and {len(places) - 8} more" if len(places) > 8 else "")
        flags = " ".join(f"--dim {escape_name(n)}=…" for n in dict.fromkeys(names_in(dim)) or [dim])
        lines.append(f'  dimension "{escape_name(dim)}" (input {where}): give {flags}')
    gaps = [
        Gap("", "input", f"graph input {escape_name(name)} is {value.type}, which has no tensor on the GPU")
        for name, value in inputs.items()
        if not _is_tensor(value)
    ]
    if lines and gaps:
        raise UnsupportedError(gaps)
    if lines:
        raise CompileError("These dimensions have no value:\n" + "\n".join(lines))


def _is_tensor(value: onnx_ir.Value) -> bool:
    return isinstance(value.type, onnx_ir.TensorType) and (value.dtype is None or int(value.dtype) in BY_ONNX)


def bound_array(value: onnx_ir.Value, given: Any, known: Mapping[str, int]) -> np.ndarray[Any, Any]:
    """A bound value as an array of exactly the input's type; refuses what would change its meaning."""
    label = f'input "{escape_name(value.name)}"'
    dtype = None if value.dtype is None else BY_ONNX.get(int(value.dtype))
    if dtype is None or not isinstance(value.type, onnx_ir.TensorType):
        raise CompileError(f"The {label} is {escape_name(value.type)}; only tensors of numbers can be bound.")
    try:
        array = np.asarray(given)
    except ValueError:
        raise CompileError(f"The value bound to {label} has rows of different lengths.") from None
    if array.dtype == object or array.dtype.kind in "USOMm":
        raise CompileError(f"The value bound to {label} is not a tensor of numbers; {dtype} is needed.")
    dims = dims_of(value)
    if dims is not None:
        dims = tuple(_filled(d, known) for d in dims)
        if array.ndim == 0 and all(d == 1 for d in dims):
            array = array.reshape((1,) * len(dims))
        fits = len(dims) == array.ndim and all(
            not isinstance(d, int) or d == s for d, s in zip(dims, array.shape, strict=True)
        )
        if not fits:
            raise CompileError(
                f"The value bound to {label} has shape {list(array.shape)}, the model says {describe(dims)}."
            )
    return _converted(array, dtype, label)


def _converted(array: np.ndarray[Any, Any], dtype: DType, label: str) -> np.ndarray[Any, Any]:
    if array.dtype == dtype.numpy:
        return np.ascontiguousarray(array).reshape(array.shape)
    with np.errstate(all="ignore"):
        result = array.astype(dtype.numpy)
        wide = array.astype(np.float64) if array.dtype.kind == "V" else array
        back = result.astype(np.float64) if result.dtype.kind in "fV" else result
        if dtype.is_float:
            exact = bool(np.all(np.isfinite(back) | ~np.isfinite(wide.astype(np.float64))))
        elif wide.dtype.kind == "f":
            exact = bool(np.all(back.astype(wide.dtype) == wide))
        else:
            exact = bool(np.all(np.equal(back.astype(object), wide.astype(object))))
    if not exact:
        raise CompileError(f"The value bound to {label} has elements that {dtype} cannot hold (it is {array.dtype}).")
    return result


def _make_constant(graph: onnx_ir.Graph, value: onnx_ir.Value, array: np.ndarray[Any, Any]) -> None:
    """Replaces an input by an initializer of the same name."""
    graph.inputs.remove(value)
    assert value.dtype is not None
    value.const_value = onnx_ir.Tensor(array, dtype=value.dtype, shape=onnx_ir.Shape(array.shape), name=value.name)
    value.shape = onnx_ir.Shape(array.shape)
    graph.register_initializer(value)


def _forget_open_shapes(graph: onnx_ir.Graph) -> None:
    """Shapes with open dimensions say nothing any more: one name may have stood for two sizes."""
    values = [o for node in graph for o in node.outputs]
    values += [o for inner in graph.subgraphs() for node in inner for o in node.outputs]
    for value in values:
        dims = dims_of(value)
        if dims is None or all(isinstance(d, int) for d in dims):
            continue
        value.shape = onnx_ir.Shape([d if isinstance(d, int) else None for d in dims])
