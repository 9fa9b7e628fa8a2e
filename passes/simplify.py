"""simplify (L0): removes what has no effect: dead nodes, unused weights, Identity, Dropout of inference.

Constant nodes become initializers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir
from onnx_ir.passes import common

from .base import Pass, PassResult


@dataclass(frozen=True)
class Simplify(Pass[onnx_ir.Model, onnx_ir.Model]):
    """Every rewrite keeps the results of the model for all inputs, bit for bit."""

    name: ClassVar[str] = "simplify"

    def run(self, program: onnx_ir.Model) -> PassResult[onnx_ir.Model]:
        model, graph = program, program.graph
        before = len(graph), len(graph.initializers)
        lifted = sum(_lift(node, graph) for node in list(graph))
        removed = sum(_bypass(node, graph) for node in list(graph))
        common.RemoveUnusedNodesPass()(model)
        statistics = {
            "nodes removed": before[0] - len(graph),
            "identities": removed,
            "constants lifted": lifted,
            "initializers removed": before[1] + lifted - len(graph.initializers),
        }
        return PassResult(model, any(statistics.values()), statistics)


def _lift(node: onnx_ir.Node, graph: onnx_ir.Graph) -> bool:
    """Turns a Constant node with a tensor into an initializer; true where the node is gone."""
    if node.domain or node.op_type != "Constant" or "value" not in node.attributes:
        return False
    result = node.outputs[0]
    name = result.name
    if not name or result.is_graph_output():
        return False
    value = node.attributes["value"].as_tensor()
    result.name = None
    shape = onnx_ir.Shape(value.shape.numpy())
    new = onnx_ir.Value(name=name, type=onnx_ir.TensorType(value.dtype), shape=shape, const_value=value)
    result.replace_all_uses_with(new)
    graph.remove(node, safe=True)
    graph.register_initializer(new)
    return True


def _bypass(node: onnx_ir.Node, graph: onnx_ir.Graph) -> bool:
    """Lets the readers of a node that copies its input read the input; true where the node is gone."""
    if node.domain or not _copies(node, graph.opset_imports.get("", 1)):
        return False
    source, result = node.inputs[0], node.outputs[0]
    if source is None or any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
        return False
    if result.is_graph_output():
        return _rename(node, source, result, graph)
    result.replace_all_uses_with(source)
    graph.remove(node, safe=True)
    return True


def _rename(node: onnx_ir.Node, source: onnx_ir.Value, result: onnx_ir.Value, graph: onnx_ir.Graph) -> bool:
    """The source takes the name of the graph's output, where it is a plain result of a node of the same graph."""
    producer = source.producer()
    if producer is None or producer.graph is not graph or source.is_graph_output():
        return False
    name = result.name
    result.replace_all_uses_with(source, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    source.name = name
    source.type, source.shape = result.type or source.type, result.shape or source.shape
    return True


def _copies(node: onnx_ir.Node, version: int) -> bool:
    if node.op_type == "Identity":
        return True
    if node.op_type != "Dropout":
        return False
    if version < 7:
        attribute = node.attributes.get("is_test")
        return attribute is not None and attribute.as_int() == 1
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is None:
        return True
    value = training.const_value
    return value is not None and not bool(value.numpy().reshape(-1)[0])
