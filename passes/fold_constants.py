"""fold-constants (L0): evaluates what does not depend on the inputs, and resolves branches on constants.

The graph is lowered with the ordinary lowerings, which evaluate constant nodes with the interpreter of tensor
programs; there is no second set of rules. A node that cannot be lowered is left as it is. Every value whose static
type the lowerings found is annotated with it, so that the model that is left shows all shapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir
from onnx_ir.passes import common

from onnx2wgsl.ir.builder import Builder, Tensor

from . import lower as _registered  # noqa: F401 - registers all lowerings
from .base import Pass, PassResult
from .lower_ops import UNKNOWN, Lowerer, dtype_of

# Nodes whose results differ from run to run.
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


@dataclass(frozen=True)
class FoldConstants(Pass[onnx_ir.Model, onnx_ir.Model]):
    """`size_limit`: elements that a folded result may have; a larger one stays a node, unless its inputs are larger."""

    name: ClassVar[str] = "fold-constants"
    size_limit: int = 1 << 22

    def run(self, program: onnx_ir.Model) -> PassResult[onnx_ir.Model]:
        folder = _Folder(program, self.size_limit)
        folder.run()
        common.RemoveUnusedNodesPass()(program)
        changed = folder.folded + folder.resolved + folder.annotated > 0
        statistics = {"folded": folder.folded, "branches": folder.resolved, "annotated": folder.annotated}
        return PassResult(program, changed, statistics, tuple(folder.refusals))


class _Folder:
    def __init__(self, model: onnx_ir.Model, limit: int) -> None:
        self.model, self.graph, self.limit = model, model.graph, limit
        self.builder = Builder()
        self.lowerer = Lowerer(self.builder, model.opset_imports)
        self.env: dict[str, Any] = {}
        self.folded = self.resolved = self.annotated = 0
        self.refusals: list[str] = []

    def run(self) -> None:
        for value in self.graph.inputs:
            self.env[value.name or ""] = self._input(value)
        for name, value in self.graph.initializers.items():
            self.env[name] = self.lowerer.initializer(name, value)
        queue = list(reversed(list(self.graph)))
        while queue:
            node = queue.pop()
            branch = self._branch(node)
            if branch is not None:
                queue.extend(reversed(self._resolve(node, branch)))
                continue
            self.lowerer.node(node, self.env)
            self._annotate(node)
            self._fold(node)

    def _input(self, value: onnx_ir.Value) -> Any:
        """The tensor of an input; one without a static shape is unknown, and so is all that depends on it."""
        dtype = dtype_of(value)
        if value.name in self.graph.initializers:
            return None
        if dtype is None or value.shape is None or not isinstance(value.type, onnx_ir.TensorType):
            return UNKNOWN
        return self.builder.tensor(dtype, value.shape.numpy(), value.name) if value.shape.is_static() else UNKNOWN

    def _branch(self, node: onnx_ir.Node) -> onnx_ir.Graph | None:
        """The branch that an If on a constant takes."""
        if node.op_type != "If" or node.domain or not node.inputs or node.inputs[0] is None:
            return None
        condition = self.env.get(node.inputs[0].name or "")
        if not isinstance(condition, Tensor) or condition.value is None or condition.value.size != 1:
            return None
        taken = "then_branch" if bool(condition.value.reshape(-1)[0]) else "else_branch"
        return node.attributes[taken].as_graph()

    def _resolve(self, node: onnx_ir.Node, branch: onnx_ir.Graph) -> list[onnx_ir.Node]:
        """Moves the nodes of a branch in front of its If, which goes; returns the moved nodes."""
        names = self._names()
        labels = {n.name for n in self.graph if n.name}
        results = list(branch.outputs)
        branch.outputs.clear()
        for old, value in list(branch.initializers.items()):
            del branch.initializers[old]
            new = _fresh(names, old)
            value.name = new
            self.graph.register_initializer(value)
            self.env[new] = self.lowerer.initializer(new, value)
        moved = list(branch)
        for inner in moved:
            branch.remove(inner)
            inner.name = _fresh(labels, inner.name) if inner.name else inner.name
            for output in inner.outputs:
                output.name = _fresh(names, output.name) if output.name else output.name
        for k, (output, result) in enumerate(zip(node.outputs, results, strict=True)):
            name = output.name
            copy = onnx_ir.node("Identity", [result], name=_fresh(labels, f"{node.name or 'If'}.{k}"))
            output.name = _fresh(names, name or "if")
            copy.outputs[0].name, copy.outputs[0].type = name, output.type
            moved.append(copy)
            output.replace_all_uses_with(copy.outputs[0], replace_graph_outputs=True)
        self.graph.insert_before(node, moved)
        self.graph.remove(node, safe=True)
        self.resolved += 1
        return moved

    def _names(self) -> set[str]:
        """All names of the model, nested graphs included."""
        names = {n for g in (self.graph, *self.graph.subgraphs()) for n in _graph_names(g)}
        return names | {n for n in self.env if n}

    def _annotate(self, node: onnx_ir.Node) -> None:
        """Gives the node's outputs the static types that lowering found."""
        for output in node.outputs:
            tensor = self.env.get(output.name or "")
            if not output.name or not isinstance(tensor, Tensor):
                continue
            t = tensor.type
            shape: list[int | None] = [None if t.length and k == t.length_axis else s for k, s in enumerate(t.shape)]
            old = None if output.shape is None else [d if isinstance(d, int) else None for d in output.shape.dims]
            if old != shape or output.dtype != t.dtype.onnx:
                self.annotated += 1
                output.shape = onnx_ir.Shape(shape)
                output.type = onnx_ir.TensorType(onnx_ir.DataType(t.dtype.onnx))

    def _fold(self, node: onnx_ir.Node) -> None:
        """Replaces a node whose results are all constants."""
        if node.op_type in RANDOM or (node.op_type == "Constant" and not node.domain):
            return
        named = [o for o in node.outputs if o.name]
        found = (self.env.get(o.name or "") for o in named)
        made = [t for t in found if isinstance(t, Tensor) and t.value is not None]
        if not named or len(made) < len(named):
            return
        size = sum(t.type.count for t in made)
        if size > self.limit:
            self.refusals.append(
                f"{node.name or node.op_type}: its constant result of {size} elements exceeds {self.limit}"
            )
            return
        for output, tensor in zip(named, made, strict=True):
            self._replace(node, output, tensor)
        self.graph.remove(node, safe=True)
        self.folded += 1

    def _replace(self, node: onnx_ir.Node, output: onnx_ir.Value, tensor: Tensor) -> None:
        """An initializer takes the place of an output; a graph's output stays the result of a Constant node."""
        assert tensor.value is not None
        name, dtype = output.name, onnx_ir.DataType(tensor.dtype.onnx)
        array = np.ascontiguousarray(tensor.value).reshape(tensor.shape)
        value = onnx_ir.Tensor(array, dtype=dtype, shape=onnx_ir.Shape(tensor.shape), name=name)
        kept = output.is_graph_output()
        output.name = None
        if kept:
            constant = onnx_ir.node("Constant", [], {"value": value}, name=node.name)
            new = constant.outputs[0]
            self.graph.insert_before(node, constant)
        else:
            new = onnx_ir.Value(const_value=value)
        new.name, new.type, new.shape = name, onnx_ir.TensorType(dtype), onnx_ir.Shape(tensor.shape)
        output.replace_all_uses_with(new, replace_graph_outputs=True)
        if not kept:
            self.graph.register_initializer(new)


def _graph_names(graph: onnx_ir.Graph) -> Iterable[str]:
    yield from (v.name for v in graph.inputs if v.name)
    yield from graph.initializers
    yield from (o.name for node in graph for o in node.outputs if o.name)


def _fresh(names: set[str], name: str | None) -> str:
    """A name that is not in use, and is from now on."""
    base, number = name or "value", 0
    result = base
    while result in names:
        number += 1
        result = f"{base}.{number}"
    names.add(result)
    return result
