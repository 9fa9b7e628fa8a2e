"""Epilogue: a map that reads a nest's output at every point once becomes a store of that nest."""

from __future__ import annotations

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.bijection import at_dimensions, invert
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.program import Nest, Store, unique

from .graph import Graph
from .inline import too_large


def fuse_epilogue(graph: Graph, producer: int, reader: int) -> str | None:
    """Moves the stores of a map into the nest that makes its input. Returns None when done, else why not."""
    made, taken = graph.nest(producer), graph.nest(reader)
    if made is None or taken is None or taken.steps or not made.steps:
        return "not a nest followed by a map"
    if graph.other_path(producer, reader):
        return "another path leads from the producer to the reader"
    outputs = {s.tensor: s for s in made.stores}
    if len(outputs) < len(made.stores) or not all(_whole(graph, made, s) for s in made.stores):
        return "an output is written in parts"
    stores: list[Store] = []
    for store in taken.stores:
        moved = _move(graph, taken, store, outputs)
        if isinstance(moved, str):
            return moved
        stores.append(moved)
    read = {t for t in taken.reads if t in outputs}
    kept = [s for s in made.stores if s.tensor not in read or _needed(graph, s.tensor, reader)]
    fused = Nest(made.space, made.steps, (*kept, *stores), unique((*made.nodes, *taken.nodes)))
    problem = too_large(graph, fused)
    if problem is not None:
        return problem
    graph.remove(reader)
    graph.replace(producer, fused)
    return None


def _whole(graph: Graph, nest: Nest, store: Store) -> bool:
    """Whether a store writes every element of its tensor; of a concatenation it may be one part of several."""
    shape = graph.tensors[store.tensor].shape
    return not store.domain and invert(store.index, shape, (*nest.space, *store.axes)) is not None


def _needed(graph: Graph, tensor: str, reader: int) -> bool:
    return graph.stored(tensor) or bool(graph.readers.get(tensor, set()) - {reader})


def _move(graph: Graph, taken: Nest, store: Store, outputs: dict[str, Store]) -> Store | str:
    """A store of the map over the axes of the producer's store, with its loads of the producer's outputs replaced."""
    loads = [e for e in ex.loads(store.value) if e.attr in outputs]
    if not loads:
        return "a store of the map does not read the producer"
    if store.domain or any(e.attr in outputs for i in store.index for x in ex.index_exprs(i) for e in ex.loads(x)):
        return "a store of the map is restricted or indexed by the producer's output"
    first = loads[0]
    source = outputs[first.attr]
    inverse = invert(first.index, graph.tensors[first.attr].shape, (*taken.space, *store.axes))
    if inverse is None:
        return f"{first.attr} is not read once at every point"
    env = at_dimensions(inverse, source.index)
    value = _substituted(store.value, env, outputs, source)
    if value is None:
        return "the map reads the producer at several points"
    return Store(store.tensor, source.axes, tuple(i.substitute(env) for i in store.index), value)


def _substituted(value: Expr, env: dict[str, Index], outputs: dict[str, Store], source: Store) -> Expr | None:
    moved = value.substitute(env)
    for e in ex.loads(moved):
        if e.attr in outputs and (outputs[e.attr].index != e.index or outputs[e.attr].axes != source.axes):
            return None
    return ex.rewrite(moved, lambda n: outputs[n.attr].value if n.op == "load" and n.attr in outputs else None)
