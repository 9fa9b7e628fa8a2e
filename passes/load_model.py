"""load-model (L0): reads a model, checks it before anything is allocated, inlines functions, cuts out a part.

A model may come from a stranger. External data must lie under the model's folder, sizes are checked against a bound
before they are allocated, functions that would multiply without end are refused, and every message escapes names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Union

import onnx
import onnx_ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx_ir.passes import common

from onnx2wgsl.errors import CompileError, escape_name
from onnx2wgsl.ir.dtypes import BY_ONNX

from .base import Pass, PassResult

Source = Union[str, "os.PathLike[str]", onnx.ModelProto, onnx_ir.Model]

# Nodes that a model may have once all functions are inlined.
NODE_LIMIT = 1_000_000


@dataclass(frozen=True)
class LoadModel(Pass[Source, onnx_ir.Model]):
    """`from_` and `to` name tensors: the part of the graph from the former to the latter is kept.

    `memory_limit` bounds the bytes of any one tensor and of all weights together.
    """

    name: ClassVar[str] = "load-model"
    from_: tuple[str, ...] = ()
    to: tuple[str, ...] = ()
    memory_limit: int = 1 << 34

    def run(self, program: Source) -> PassResult[onnx_ir.Model]:
        proto, folder = read(program)
        check_names(proto)
        check_versions(proto)
        check_tensors(proto, folder, self.memory_limit)
        calls = count_nodes(proto)
        check_graph(proto.graph, _context(proto), frozenset(), {f.name for f in proto.functions})
        model = parsed(proto)
        if folder is not None:
            onnx_ir.external_data.set_base_dir(model.graph, folder)
            for function in model.functions.values():
                onnx_ir.external_data.set_base_dir(function.graph, folder)
        inlined = len(model.functions)
        if inlined:
            model = inline(model)
        drop_repeated_outputs(model.graph)
        open_negative_dims(model)
        model.graph.sort()
        if self.from_ or self.to:
            cut(model, self.from_, self.to)
        statistics = {"nodes": len(model.graph), "functions": inlined, "nodes after inlining": calls}
        return PassResult(model, True, statistics)


def parsed(proto: onnx.ModelProto) -> onnx_ir.Model:
    try:
        return onnx_ir.from_proto(proto)
    except (onnx_ir.serde.SerdeError, ValueError, TypeError, KeyError) as error:
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        raise CompileError(f"The model is not valid: {escape_name(root, 300)}") from None


def inline(model: onnx_ir.Model) -> onnx_ir.Model:
    try:
        return common.InlinePass()(model).model
    except ValueError as error:
        raise CompileError(f"The model's functions cannot be inlined: {escape_name(error, 300)}.") from None


def drop_repeated_outputs(graph: onnx_ir.Graph) -> None:
    """A tensor that is listed as an output twice is one output: results go by name."""
    if len({id(v) for v in graph.outputs}) < len(graph.outputs):
        graph.outputs[:] = list(dict.fromkeys(graph.outputs))


def quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{escape_name(n)}"' for n in names)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: a hint at the known name that is most like an unknown one, or a full stop."""
    found = get_close_matches(name[:200], [k[:200] for k in known], 1, 0.5)
    return f'; did you mean "{escape_name(found[0])}"?' if found else "."


def read(source: Any) -> tuple[onnx.ModelProto, Path | None]:
    """The model as a protobuf message, and the folder that its external data may lie in."""
    if isinstance(source, onnx_ir.Model):
        return onnx_ir.to_proto(source), _folder_of(source)
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return copy, None
    if not isinstance(source, (str, os.PathLike)):
        kind = type(source).__name__
        raise CompileError(f"A model is a path, an onnx.ModelProto or an onnx_ir.Model, got {kind}.")
    path = Path(source)
    where = f'"{escape_name(path, 400)}"'
    if not path.exists():
        raise CompileError(f"There is no file {where}.")
    if path.is_dir():
        raise CompileError(f"{where} is a folder; a model is one .onnx file.")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except OSError as error:
        raise CompileError(f"{where} cannot be read: {error.strerror}.") from None
    except DecodeError:
        raise CompileError(f"{where} is not an ONNX model, or it is truncated.") from None
    if not proto.HasField("graph"):
        raise CompileError(f"{where} is not an ONNX model: it holds no graph.")
    return proto, path.parent


def _folder_of(model: onnx_ir.Model) -> Path | None:
    """The folder of the first external tensor of a model in memory."""
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if isinstance(value.const_value, onnx_ir.ExternalTensor):
                return Path(value.const_value.base_dir)
    return None


def check_names(proto: onnx.ModelProto) -> None:
    """Names must be text; protobuf hands out bytes that are not UTF-8 as they are."""
    graphs = [*all_graphs(proto.graph), *(g for f in proto.functions for n in f.node for g in node_graphs(n))]
    nodes = [n for g in graphs for n in g.node] + [n for f in proto.functions for n in f.node]
    names: list[Any] = [o.domain for o in proto.opset_import]
    for graph in graphs:
        values = (*graph.input, *graph.output, *graph.value_info)
        names += [graph.name, *(t.name for t in graph.initializer), *(v.name for v in values)]
        names += [d.dim_param for v in values for d in v.type.tensor_type.shape.dim]
    for node in nodes:
        names += [node.name, node.op_type, node.domain, *node.input, *node.output, *(a.name for a in node.attribute)]
    for function in proto.functions:
        names += [function.name, function.domain, *function.input, *function.output]
    for name in names:
        if not isinstance(name, str):
            raise CompileError(f"The model has a name that is not UTF-8 text: {escape_name(name)}.")


def check_versions(proto: onnx.ModelProto) -> None:
    if proto.ir_version > onnx.IR_VERSION:
        raise CompileError(
            f"The model has IR version {proto.ir_version}; the newest one known to this compiler is {onnx.IR_VERSION}."
        )
    newest = onnx.defs.onnx_opset_version()
    versions = [o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    if not versions and proto.ir_version >= 3 and not proto.opset_import:
        raise CompileError("The model names no operator set (opset_import is empty).")
    for version in versions:
        if not 1 <= version <= newest:
            raise CompileError(f"The model uses operator set {version}; this compiler knows 1 to {newest}.")


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and those in attributes of its nodes."""
    yield graph
    for node in graph.node:
        yield from node_graphs(node)


def node_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from all_graphs(inner)


def all_tensors(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Every tensor of the model with a name for people."""
    graphs = list(all_graphs(proto.graph))
    nodes = [n for f in proto.functions for n in f.node]
    graphs += [g for n in nodes for g in node_graphs(n)]
    for graph in graphs:
        for tensor in graph.initializer:
            yield f'initializer "{escape_name(tensor.name)}"', tensor
        for sparse in graph.sparse_initializer:
            yield f'sparse initializer "{escape_name(sparse.values.name)}"', sparse.values
            yield f'sparse initializer "{escape_name(sparse.values.name)}"', sparse.indices
    for node in (*(n for g in graphs for n in g.node), *nodes):
        for attribute in node.attribute:
            label = f'attribute "{escape_name(attribute.name)}" of node "{escape_name(node.name or node.op_type)}"'
            for tensor in (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors):
                yield label, tensor


def _fields_of(tensor: onnx.TensorProto) -> tuple[Any, ...]:
    """The repeated fields that hold a tensor's elements where its raw data do not."""
    t = tensor
    return t.float_data, t.int32_data, t.int64_data, t.double_data, t.uint64_data, t.string_data


def check_tensors(proto: onnx.ModelProto, folder: Path | None, limit: int) -> None:
    """Sizes, before anything is allocated, and where external data lies."""
    total = 0
    for label, tensor in all_tensors(proto):
        size = checked_size(label, tensor.dims, tensor.data_type, limit)
        total += size or 0
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            check_external(label, tensor, folder, size)
        elif tensor.HasField("raw_data") and size is not None and len(tensor.raw_data) != size:
            found = f"{len(tensor.raw_data)} bytes of data"
            raise CompileError(f"The {label} has {found}, its shape {list(tensor.dims)} needs {size}.")
        elif size and not tensor.HasField("raw_data") and not any(map(len, _fields_of(tensor))):
            raise CompileError(f"The {label} has no data, its shape {list(tensor.dims)} needs {size} bytes.")
    if total > limit:
        raise CompileError(f"The model's tensors take {total} bytes, more than the bound of {limit}.")
    for graph in all_graphs(proto.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            kind = value.type.tensor_type
            if value.type.HasField("tensor_type") and kind.HasField("shape"):
                dims = [d.dim_value for d in kind.shape.dim if d.HasField("dim_value") and d.dim_value >= 0]
                checked_size(f'tensor "{escape_name(value.name)}"', dims, kind.elem_type, limit)


def checked_size(label: str, dims: Sequence[int], data_type: int, limit: int) -> int | None:
    """Bytes of a tensor (None for an element type without a width); refuses negative and enormous shapes."""
    if any(d < 0 for d in dims):
        raise CompileError(f"The {label} has a negative size in its shape {list(dims)}.")
    dtype = BY_ONNX.get(data_type)
    bits = prod(dims) * (dtype.bits if dtype is not None else 8)
    if bits > limit * 8:
        shown = str(list(dims)) if len(dims) <= 16 else f"of rank {len(dims)}"
        size = -(-bits // 8)
        raise CompileError(f"The {label} with shape {shown} takes {size} bytes, more than the bound of {limit}.")
    return None if dtype is None else -(-bits // 8)


def check_external(label: str, tensor: onnx.TensorProto, folder: Path | None, size: int | None) -> None:
    """External data must be a part of a regular file under the model's folder, links followed."""
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    shown = f'"{escape_name(location)}"'
    if folder is None:
        raise CompileError(f"The {label} lies in the file {shown}; compile the model by its path.")
    if (
        not location
        or "\0" in location
        or Path(location).is_absolute()
        or ".." in Path(location.replace("\\", "/")).parts
    ):
        raise CompileError(f"The {label} has its data at {shown}; only files under the model's folder are read.")
    root = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(root, location))  # noqa: PTH118
    if os.path.commonpath([root, path]) != root:
        raise CompileError(
            f"The {label} has its data at {shown}, a link out of the model's folder, which is not followed."
        )
    if not os.path.isfile(path):  # noqa: PTH113
        raise CompileError(f"The {label} has its data in {shown}, and there is no such file beside the model.")
    try:
        offset = int(entries.get("offset", "0") or 0)
        length = int(entries["length"]) if entries.get("length") else size
    except ValueError:
        raise CompileError(f"The {label} has an offset or a length that is not a number.") from None
    if size is not None and length != size:
        raise CompileError(
            f"The {label} has {length} bytes of data in {shown}, its shape {list(tensor.dims)} needs {size}."
        )
    available = os.path.getsize(path)  # noqa: PTH202
    if offset < 0 or offset + (length or 0) > available:
        end = offset + (length or 0)
        raise CompileError(f"The {label} ends at byte {end} of {shown}, which has {available} bytes: it is truncated.")


def open_negative_dims(model: onnx_ir.Model) -> None:
    """Some exporters write -1 for a size that is open."""
    graphs = (model.graph, *model.graph.subgraphs())
    values = [v for g in graphs for v in g.inputs]
    values += [o for g in graphs for node in g for o in node.outputs]
    for value in values:
        if value.shape is not None and any(isinstance(d, int) and d < 0 for d in value.shape.dims):
            dims = [None if isinstance(d, int) and d < 0 else d for d in value.shape.dims]
            value.shape = onnx_ir.Shape(dims)


def count_nodes(proto: onnx.ModelProto) -> int:
    """Nodes after inlining; refuses functions that call themselves, or that would grow beyond the limit."""
    functions = {(f.domain, f.name): f for f in proto.functions}
    known: dict[tuple[str, str], int] = {}
    active: set[tuple[str, str]] = set()

    def of_nodes(nodes: Iterable[onnx.NodeProto]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            total += of_function(key) if key in functions else 1
            total += sum(of_nodes(g.node) for a in node.attribute for g in (a.g, *a.graphs))
        return total

    def of_function(key: tuple[str, str]) -> int:
        if key in active:
            raise CompileError(f'The function "{escape_name(key[1])}" calls itself.')
        if key not in known:
            active.add(key)
            known[key] = of_nodes(functions[key].node)
            active.discard(key)
        return known[key]

    try:
        total = of_nodes(proto.graph.node)
    except RecursionError:
        raise CompileError("The model's functions are nested too deeply.") from None
    if total > NODE_LIMIT:
        raise CompileError(f"The model has {total} nodes once its functions are inlined, more than {NODE_LIMIT}.")
    return total


def _context(proto: onnx.ModelProto) -> Any:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = max(proto.ir_version, 3)
    context.opset_imports = {o.domain: o.version for o in proto.opset_import} or {"": 1}
    return context


def check_graph(graph: onnx.GraphProto, context: Any, outer: frozenset[str], functions: set[str]) -> None:
    """Every name is written once and exists where it is read; every node fits its operator's definition."""
    made: set[str] = set()
    sources = [v.name for v in graph.input] + [n for node in graph.node for n in node.output if n]
    initializers = {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    for name in sources:
        if name in made:
            raise CompileError(f"The tensor {quoted([name])} is written twice.")
        made.add(name)
    visible = outer | made | initializers
    for node in graph.node:
        for name in node.input:
            if name and name not in visible:
                label = f"{escape_name(node.op_type)} node {quoted([node.name])}"
                raise CompileError(f"The {label} reads {quoted([name])}, which nothing makes{nearest(name, visible)}")
        graphs = [g for a in node.attribute for g in (*([a.g] if a.HasField("g") else []), *a.graphs)]
        for inner in graphs:
            check_graph(inner, context, visible, functions)
        if not graphs and node.domain in ("", "ai.onnx") and node.op_type not in functions:
            _check_node(node, context)
    _check_outputs(graph, visible)
    _check_cycles(graph)


def _check_outputs(graph: onnx.GraphProto, visible: frozenset[str]) -> None:
    for value in graph.output:
        if value.name not in visible:
            raise CompileError(
                f"The graph's output {quoted([value.name])} is made by no node{nearest(value.name, visible)}"
            )


# What the checker says about nodes that another pass reports better, or that do no harm.
_TOLERATED = ("No Op registered", "is deprecated", "No opset import for domain")


def _check_node(node: onnx.NodeProto, context: Any) -> None:
    try:
        onnx.checker.check_node(node, context)
    except onnx.checker.ValidationError as error:
        text = str(error).split("\n\n==>")[0]
        if any(t in text for t in _TOLERATED):
            return
        label = f"{escape_name(node.op_type)} node {quoted([node.name])}"
        raise CompileError(f"The {label} is not valid: {escape_name(text, 300)}") from None
    except (UnicodeDecodeError, RuntimeError):
        return


def _check_cycles(graph: onnx.GraphProto) -> None:
    """Nodes may stand in any order, as long as there is one in which each comes after what it reads."""
    writer = {name: k for k, node in enumerate(graph.node) for name in node.output if name}
    reads = [{writer[n] for n in node_reads(node) if n in writer} for node in graph.node]
    if all(r < k for k, found in enumerate(reads) for r in found):
        return
    state: list[int] = [0] * len(reads)
    for start in range(len(reads)):
        stack = [(start, iter(reads[start]))] if not state[start] else []
        if stack:
            state[start] = 1
        while stack:
            node, rest = stack[-1]
            following = next((r for r in rest if state[r] != 2), None)
            if following is None:
                state[node] = 2
                stack.pop()
            elif state[following] == 1:
                raise CompileError(f"The node {quoted([graph.node[following].name])} depends on its own result.")
            else:
                state[following] = 1
                stack.append((following, iter(reads[following])))


def node_reads(node: onnx.NodeProto) -> Iterator[str]:
    """The names a node reads, those that its inner graphs take from outside included."""
    yield from node.input
    for graph in node_graphs(node):
        for inner in graph.node:
            yield from inner.input
        yield from (o.name for o in graph.output)


def cut(model: onnx_ir.Model, start: Sequence[str], end: Sequence[str]) -> None:
    """Keeps the part of the graph between named tensors; unknown types come from ONNX's inference."""
    graph = model.graph
    values = {v.name or "": v for v in (*graph.inputs, *graph.initializers.values())}
    values.update({o.name or "": o for node in graph for o in node.outputs if o.name})
    for name in (*start, *end):
        if name not in values:
            raise CompileError(f"The graph has no tensor {quoted([name])} to cut at{nearest(name, values)}")
    if any(values[n].type is None for n in (*start, *end)):
        _infer(model, values)
    for name in start:
        _start_at(graph, values, name)
    if end:
        graph.outputs[:] = [values[name] for name in dict.fromkeys(end)]
    common.RemoveUnusedNodesPass()(model)
    unused = [v for v in graph.inputs if not v.uses() and not v.is_graph_output() and v.name not in start]
    for value in unused:
        graph.inputs.remove(value)


def _start_at(graph: onnx_ir.Graph, values: dict[str, onnx_ir.Value], name: str) -> None:
    old = values[name]
    if old.is_graph_input():
        return
    if old.type is None:
        raise CompileError(f"The type of {quoted([name])} is not known; a graph cannot start there.")
    if old.is_initializer():
        del graph.initializers[name]
    new = onnx_ir.Value(name=name, type=old.type, shape=old.shape)
    old.name = _unused(values, name)
    onnx_ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.inputs.append(new)
    values[name] = new


def _unused(values: dict[str, onnx_ir.Value], name: str) -> str:
    number = 1
    while f"{name}.{number}" in values:
        number += 1
    return f"{name}.{number}"


def _infer(model: onnx_ir.Model, values: dict[str, onnx_ir.Value]) -> None:
    """Fills in the types that ONNX infers."""
    try:
        inferred = common.ShapeInferencePass()(model.clone()).model
    except Exception:
        return
    for node in inferred.graph:
        for output in node.outputs:
            known = values.get(output.name or "")
            if known is not None and known.type is None:
                known.type, known.shape = output.type, output.shape
