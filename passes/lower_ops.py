"""lower-ops (L0 → L1): every ONNX node becomes nests through the lowering registered for its operator.

An operator without a lowering of its own that ONNX defines by a function body is expanded through that body. All
nodes that cannot be lowered are collected; the nodes that depend on them are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir

from onnx2wgsl.errors import Gap, UnsupportedError
from onnx2wgsl.ir.builder import Builder, Tensor
from onnx2wgsl.ir.dtypes import BY_ONNX, DType
from onnx2wgsl.ir.interp import evaluate, valid_part
from onnx2wgsl.ir.lengths import LengthError
from onnx2wgsl.ir.program import Node, Port, Program, TensorType, all_nodes

from .base import Pass, PassResult
from .lower import registry

UNKNOWN = object()

# Results of constant nodes larger than this many elements are left to the GPU.
FOLD_LIMIT = 1 << 24


# Operators besides the elementwise ones that never ask for the size of an axis they do not reduce with a mask.
LENGTH_OPERATORS = frozenset(
    (
        *("Identity", "Cast", "Transpose", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Slice", "Split", "Concat"),
        *("Expand", "Gather", "GatherND", "GatherElements", "OneHot", "Shape", "Size", "MatMul", "Gemm", "If", "Loop"),
        *("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceL1", "ReduceL2"),
        *("ReduceLogSum", "ReduceLogSumExp", "ArgMax", "ArgMin", "Softmax", "LogSoftmax"),
    )
)


class Lowerer:
    """Lowers graphs into one builder; `gaps` collects what could not be lowered."""

    def __init__(self, builder: Builder, opsets: Mapping[str, int]) -> None:
        self.builder, self.opsets = builder, dict(opsets)
        self.gaps: list[Gap] = []

    def graph(self, graph: onnx_ir.Graph, inputs: Sequence[Any], scope: dict[str, Any] | None = None) -> list[Any]:
        """Lowers a graph whose inputs have the given values, and returns the values of its outputs."""
        env = dict(scope or {})
        for value, given in zip(graph.inputs, inputs, strict=True):
            env[value.name or ""] = given
        for name, value in graph.initializers.items():
            if env.get(name) is None or not any(i.name == name for i in graph.inputs):
                env[name] = self.initializer(name, value)
        for node in graph:
            self.node(node, env)
        return [env.get(o.name) if o is not None and o.name else None for o in graph.outputs]

    def initializer(self, name: str, value: onnx_ir.Value) -> Any:
        tensor = value.const_value
        assert tensor is not None
        return self.constant_tensor(tensor, name)

    def constant_tensor(self, tensor: onnx_ir.TensorProtocol, name: str | None = None) -> Any:
        dtype = BY_ONNX.get(int(tensor.dtype))
        if dtype is None:
            return UNKNOWN
        name = (
            name if name is not None and name not in self.builder.program.tensors else self.builder.fresh(name or "c")
        )
        return self.builder.constant(np.asarray(tensor.numpy()).reshape(tuple(tensor.shape.numpy())), name, dtype)

    def node(self, node: onnx_ir.Node, env: dict[str, Any]) -> None:
        """Lowers one node and binds its outputs in `env`."""
        names = [i.name or "" if i is not None else "" for i in node.inputs]
        inputs = [env.get(n, UNKNOWN) if n else None for n in names]
        outer = self.builder.provenance
        label = node.name or f"{node.op_type}({', '.join(o.name or '' for o in node.outputs)})"
        if not outer:
            self.builder.provenance = (label,)
        self.builder.hint = node.outputs[0].name or node.op_type if node.outputs else node.op_type
        before = len(self.builder.nodes)
        try:
            if any(v is UNKNOWN for v in inputs):
                raise _Skipped
            results = self.lowered(node, inputs, names, env)
            self.fold_since(before)
            results = [self.settled(r) for r in results]
        except (registry.Refusal, LengthError) as refusal:
            del self.builder.nodes[before:]
            self.gaps.append(Gap(label, node.op_type, str(refusal)))
            results = [UNKNOWN] * len(node.outputs)
        except _Skipped:
            results = [UNKNOWN] * len(node.outputs)
        finally:
            self.builder.provenance = outer
        for output, value in zip(node.outputs, results, strict=False):
            if output.name:
                env[output.name] = value

    def fold_since(self, before: int) -> None:
        """Evaluates the nodes emitted since `before` that read constants only, one by one."""
        kept = [node for node in self.builder.nodes[before:] if not self.fold(node)]
        self.builder.nodes[before:] = kept

    def settled(self, value: Any) -> Any:
        """A tensor whose length turned out to be constant, cut to that length."""
        if not isinstance(value, Tensor) or value.type.length not in self.builder.program.constants:
            return value
        shape = list(value.shape)
        shape[value.type.length_axis] = int(self.builder.program.constants[value.type.length])
        self.builder.program.tensors[value.name] = replace(value.type, length=None)
        return value if tuple(shape) == value.shape else self.builder.map(shape, lambda *i: value[i])

    def fold(self, node: Node) -> bool:
        """Turns what a node writes into constants, if what it reads is constant and the result not too large."""
        program = self.builder.program
        made = {name for inner in all_nodes((node,)) for name in inner.writes}
        reads = {r for inner in all_nodes((node,)) for r in inner.reads}
        reads |= {length for name in made if (length := program.tensors[name].length) is not None}
        if any(r not in program.constants and r not in made for r in reads):
            return False
        if sum(program.tensors[name].count for name in made) > FOLD_LIMIT:
            return False
        constants = {r: program.constants[r] for r in reads if r in program.constants}
        values = evaluate(Program(program.tensors, constants, (), (), (node,)), {})
        for name in node.writes:
            value = np.asarray(valid_part(program, values, name))
            program.constants[name] = value
            program.tensors[name] = TensorType(program.tensors[name].dtype, value.shape)
        return True

    def lowered(self, node: onnx_ir.Node, inputs: list[Any], names: list[str], env: dict[str, Any]) -> list[Any]:
        version = self.opsets.get(node.domain, self.opsets.get("", 1))
        function = registry.find(node.domain, node.op_type, version)
        measured = any(isinstance(v, Tensor) and v.type.length is not None for v in inputs)
        if measured and node.op_type not in LENGTH_OPERATORS and not _elementwise(function):
            raise registry.Refusal(
                "an input has an axis whose length depends on data, which this operator does not take"
            )
        if function is None:
            return self.expanded(node, inputs, version)
        context = registry.Context(
            self.builder, node, inputs, version, lambda g, given: self.graph(g, given, env), names, self.gaps
        )
        result = function(context)
        return list(result) if isinstance(result, tuple) else [result]

    def expanded(self, node: onnx_ir.Node, inputs: list[Any], version: int) -> list[Any]:
        body = function_body(node, inputs, version)
        if body is None:
            known = f" in version {version}" if registry.find(node.domain, node.op_type, 1 << 20) else ""
            raise registry.Refusal(
                f"operator {node.domain + '::' if node.domain else ''}{node.op_type} is not supported{known}"
            )
        outer = dict(self.opsets)
        self.opsets.update({o.domain: o.version for o in body.opset_import})
        gaps = len(self.gaps)
        try:
            graph = onnx_ir.from_proto(_function_model(body, node)).graph
            results = self.graph(graph, [*inputs, *[None] * (len(graph.inputs) - len(inputs))])
        finally:
            self.opsets = outer
        if len(self.gaps) > gaps:
            reasons = "; ".join(f"{g.op}: {g.reason}" for g in self.gaps[gaps:])
            del self.gaps[gaps:]
            raise registry.Refusal(f"its function body cannot be lowered: {reasons}")
        return results


def _elementwise(function: registry.Lowering | None) -> bool:
    return function is not None and function.__module__.endswith((".elementwise", ".activations", ".casts"))


class _Skipped(Exception):
    """A node that depends on one that could not be lowered."""


def function_body(node: onnx_ir.Node, inputs: Sequence[Any], version: int) -> onnx.FunctionProto | None:
    """The function body that ONNX itself gives an operator, for the types of its inputs, or None."""
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return None
    body: onnx.FunctionProto
    if schema.has_function:
        body = schema.function_body
        return body
    if not schema.has_context_dependent_function:
        return None
    types = [_type_proto(v).SerializeToString() for v in inputs if not isinstance(v, list)]
    proto = onnx_ir.to_proto(node)
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= max(version, schema.since_version)]
    best = max(versions or schema.context_dependent_function_opset_versions)
    raw = schema.get_context_dependent_function_with_opset_version(best, proto.SerializeToString(), types)
    if not raw:
        return None
    body = onnx.FunctionProto.FromString(raw)
    return body


def _type_proto(value: Any) -> onnx.TypeProto:
    if not isinstance(value, Tensor):
        return onnx.TypeProto()
    return onnx.helper.make_tensor_type_proto(value.dtype.onnx, value.shape)


def _function_model(body: onnx.FunctionProto, node: onnx_ir.Node) -> onnx.ModelProto:
    """A function as a model, with references to the function's attributes replaced by the node's."""
    given = {a.name: onnx_ir.to_proto(a) for a in node.attributes.values()}
    for default in body.attribute_proto:
        given.setdefault(default.name, default)
    nodes = [_bind_attributes(n, given) for n in body.node]
    values = [onnx.ValueInfoProto(name=i) for i in body.input]
    outputs = [onnx.ValueInfoProto(name=o) for o in body.output]
    graph = onnx.helper.make_graph(nodes, body.name, values, outputs)
    return onnx.helper.make_model(graph, opset_imports=list(body.opset_import))


def _bind_attributes(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    bound = onnx.NodeProto()
    bound.CopyFrom(node)
    del bound.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                copy = onnx.AttributeProto()
                copy.CopyFrom(given[attribute.ref_attr_name])
                copy.name = attribute.name
                bound.attribute.append(copy)
            continue
        kept = bound.attribute.add()
        kept.CopyFrom(attribute)
        if attribute.type == onnx.AttributeProto.GRAPH:
            inner = [_bind_attributes(n, given) for n in attribute.g.node]
            del kept.g.node[:]
            kept.g.node.extend(inner)
    return bound


def dtype_of(value: onnx_ir.Value) -> DType | None:
    """The element type of a value of a model, or None where it is not a tensor that a GPU can hold."""
    return None if value.dtype is None else BY_ONNX.get(int(value.dtype))


def declare_inputs(builder: Builder, graph: onnx_ir.Graph) -> list[Any]:
    """Tensors for the inputs of a graph whose shapes are static; UNKNOWN for what is not a tensor."""
    result: list[Any] = []
    for value in graph.inputs:
        dtype = dtype_of(value)
        if value.name in graph.initializers:
            result.append(None)
        elif dtype is None or value.shape is None or not isinstance(value.type, onnx_ir.TensorType):
            result.append(UNKNOWN)
        else:
            result.append(builder.tensor(dtype, value.shape.numpy(), value.name))
    return result


def lower_model(model: onnx_ir.Model) -> Program:
    """Lowers a whole model; raises UnsupportedError with every gap."""
    builder = Builder()
    lowerer = Lowerer(builder, model.opset_imports)
    graph = model.graph
    inputs = declare_inputs(builder, graph)
    for value, tensor in zip(graph.inputs, inputs, strict=True):
        if tensor is UNKNOWN:
            lowerer.gaps.append(
                Gap("", "input", f"graph input {value.name} is {value.type}, which has no tensor on the GPU")
            )
    outputs = lowerer.graph(graph, inputs)
    if lowerer.gaps:
        raise UnsupportedError(lowerer.gaps)
    ports = _outputs(builder, graph, outputs)
    program = builder.program
    program.inputs = tuple(
        Port(v.name or "", t.name) for v, t in zip(graph.inputs, inputs, strict=True) if isinstance(t, Tensor)
    )
    program.outputs = tuple(ports)
    program.nodes = tuple(builder.nodes)
    return program.with_nodes(builder.nodes)


def _outputs(builder: Builder, graph: onnx_ir.Graph, values: list[Any]) -> list[Port]:
    """Every graph output gets a tensor of its own: constants, inputs and repeated values are copied."""
    owned = {s for n in builder.nodes for s in n.writes}
    ports: list[Port] = []
    gaps: list[Gap] = []
    for value, made in zip(graph.outputs, values, strict=True):
        if not isinstance(made, Tensor):
            gaps.append(Gap("", "output", f"graph output {value.name} is not a tensor"))
            continue
        tensor = made
        if made.name not in owned or any(p.tensor == made.name for p in ports):
            builder.hint = value.name or "output"
            tensor = builder.map(made.shape, lambda *i, made=made: made[i])
        ports.append(Port(value.name or "", tensor.name))
    if gaps:
        raise UnsupportedError(gaps)
    return ports


@dataclass(frozen=True)
class LowerOps(Pass[onnx_ir.Model, Program]):
    name: ClassVar[str] = "lower-ops"

    def run(self, program: onnx_ir.Model) -> PassResult[Program]:
        result = lower_model(program)
        nests = sum(1 for _ in all_nodes(result.nodes))
        return PassResult(result, True, {"onnx_nodes": len(program.graph), "nests": nests})
