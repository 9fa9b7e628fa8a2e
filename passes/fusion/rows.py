"""Rows: reductions and maps over the same rows become steps and stores of one nest.

A row nest reduces over axes of its own for each point of its space. A reader that loads its results at one row per row
joins it: a reduction appends its steps, a map becomes a store whose other axes are the store's own. LayerNorm and
softmax, spelled in small operators, become one nest like this. *Absorb* moves a map that a row nest reads, and that
others read too, into the nest, with a store.
"""

from __future__ import annotations

from dataclasses import replace

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.bijection import at_dimensions, invert
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.program import Axis, Contract, Nest, Reduce, Step, Store, unique

from . import heuristics
from .graph import Graph
from .inline import Inliner, body_of, rename_step, too_large, with_accs


def fuse_rows(graph: Graph, producer: int, reader: int) -> str | None:
    """Joins a reader to a row nest. Returns None when done, else why not."""
    rows, taken = graph.nest(producer), graph.nest(reader)
    if rows is None or taken is None or not _is_row(rows) or any(isinstance(s, Contract) for s in taken.steps):
        return "not a row nest followed by a map or reduction"
    outputs = {s.tensor: s for s in rows.stores}
    if len(outputs) < len(rows.stores) or any(s.domain for s in (*rows.stores, *taken.stores)):
        return "an output is written in parts"
    if len(taken.stores) > 1 and not taken.steps and any(s.axes for s in taken.stores):
        return "the reader writes in parts"
    env = _row_map(graph, rows, taken, outputs)
    if isinstance(env, str):
        return env
    if graph.other_path(producer, reader):
        return "another path leads from the producer to the reader"
    fused = _joined(graph, rows, taken, outputs, env, reader)
    if isinstance(fused, str):
        return fused
    problem = too_large(graph, fused)
    if problem is not None:
        return problem
    graph.remove(reader)
    graph.replace(producer, fused)
    return None


def _is_row(nest: Nest) -> bool:
    return bool(nest.steps) and all(isinstance(s, Reduce) for s in nest.steps)


def _row_map(graph: Graph, rows: Nest, taken: Nest, outputs: dict[str, Store]) -> dict[str, Index] | str:
    """The reader's row axes as indices over the row nest's space; its other axes are left out."""
    loads = [e for e in ex.loads(*_roots(taken)) if e.attr in outputs]
    if not loads:
        return "the reader loads no result in an expression"
    found: tuple[Index, ...] | None = None
    for e in loads:
        source = outputs[e.attr]
        inverse = invert(source.index, graph.tensors[e.attr].shape, (*rows.space, *source.axes))
        if inverse is None:
            return f"{e.attr} is not written once at every point"
        at = at_dimensions(inverse, e.index)
        row = tuple(at[a.name] for a in rows.space)
        if found is not None and row != found:
            return "the reader loads several rows at one point"
        found = row
    assert found is not None
    used = {name for i in found for name in i.free}
    own = [a for a in taken.space if a.name in used]
    if len(used) != len(own):
        return "the row depends on an axis that is reduced or stored over"
    rest = [a for a in taken.space if a.name not in used and a.size > 1]
    if taken.steps and rest:
        return "the reader has other rows"
    inverse = invert(found, [a.size for a in rows.space], own)
    if inverse is None:
        return "the rows are not the same"
    count = 1
    for a in rows.space:
        count *= a.size
    longest = max((a.size for s in rows.steps for a in s.axes), default=1)
    if rest and (heuristics.rows_are_long(count, longest) or not _shares(rows, taken)):
        return "few long rows, or nothing in common to load"
    ones = {a.name: ix.constant(0) for a in taken.space if a.size == 1}
    return {**ones, **at_dimensions(inverse, [a.var for a in rows.space])}


def _roots(nest: Nest) -> list[Expr]:
    return [e for s in nest.steps for e in s.exprs] + [s.value for s in nest.stores]


def _shares(rows: Nest, taken: Nest) -> bool:
    return bool(set(rows.reads) & set(taken.reads)) or any(s.axes and s.tensor in taken.reads for s in rows.stores)


def _joined(
    graph: Graph, rows: Nest, taken: Nest, outputs: dict[str, Store], env: dict[str, Index], reader: int
) -> Nest | str:
    names = {s.name: f"a{len(rows.steps) + k}" for k, s in enumerate(taken.steps)}
    rest = [a for a in taken.space if a.name not in env]
    own = {a.name: Axis(f"s{k}", a.size) for k, a in enumerate(rest)}
    env = {**env, **{n: a.var for n, a in own.items()}}
    renamed = [rename_step(s, names) for s in taken.steps]
    steps: list[Step] = []
    for step in renamed:
        assert isinstance(step, Reduce)
        inner, body_env = _fresh_axes(step.axes, "r", env)
        moved = [_bound(graph, rows, e, body_env, outputs) for e in step.body]
        if any(m is None for m in moved):
            return "a result is loaded at a point that is not of the row"
        steps.append(replace(step, axes=inner, body=tuple(m for m in moved if m is not None)))
    stores: list[Store] = []
    for store in taken.stores:
        outer = tuple(own[a.name] for a in rest)
        inner, store_env = _fresh_axes(store.axes, "s", env, len(outer))
        value = _bound(graph, rows, with_accs(store.value, names), store_env, outputs)
        if value is None:
            return "a result is loaded at a point that is not of the row"
        index = tuple(i.substitute(store_env) for i in store.index)
        stores.append(Store(store.tensor, (*outer, *inner), index, value))
    read = {t for t in taken.reads if t in outputs}
    kept = [s for s in rows.stores if s.tensor not in read or _needed(graph, s.tensor, reader)]
    return Nest(rows.space, (*rows.steps, *steps), (*kept, *stores), unique((*rows.nodes, *taken.nodes)))


def _fresh_axes(
    axes: tuple[Axis, ...], prefix: str, env: dict[str, Index], start: int = 0
) -> tuple[tuple[Axis, ...], dict[str, Index]]:
    made = tuple(Axis(f"{prefix}{start + k}", a.size) for k, a in enumerate(axes))
    return made, {**env, **{a.name: m.var for a, m in zip(axes, made, strict=True)}}


def _bound(graph: Graph, rows: Nest, e: Expr, env: dict[str, Index], outputs: dict[str, Store]) -> Expr | None:
    """An expression of the reader at the row nest's point, its loads of the nest's results replaced by their values."""
    moved = e.substitute(env)
    replaced: dict[Expr, Expr] = {}
    for load in ex.loads(moved):
        if load.attr not in outputs:
            continue
        source = outputs[load.attr]
        inverse = invert(source.index, graph.tensors[load.attr].shape, (*rows.space, *source.axes))
        assert inverse is not None
        at = at_dimensions(inverse, load.index)
        if any(at[a.name] != a.var for a in rows.space):
            return None
        replaced[load] = source.value.substitute({a.name: at[a.name] for a in source.axes})
    return ex.rewrite(moved, replaced.get) if replaced else moved


def _needed(graph: Graph, tensor: str, reader: int) -> bool:
    return graph.stored(tensor) or bool(graph.readers.get(tensor, set()) - {reader})


def absorb(graph: Graph, producer: int, reader: int) -> str | None:
    """Moves a map into a row nest that reads each of its elements once. Returns None when done, else why not."""
    nest, rows = graph.nest(producer), graph.nest(reader)
    body = body_of(graph, nest) if nest is not None else None
    if nest is None or rows is None or body is None or not _is_row(rows):
        return "not a map followed by a row nest"
    t = graph.tensors[body.tensor]
    for step in rows.steps:
        for e in ex.loads(*step.exprs):
            if e.attr != body.tensor or any(True for i in e.index for _ in ex.index_exprs(i)):
                continue
            if invert(e.index, t.shape, (*rows.space, *step.axes)) is None:
                continue
            if graph.other_path(producer, reader):
                return "another path leads from the map to the row nest"
            inner, env = _fresh_axes(step.axes, "s", {})
            where = tuple(i.substitute(env) for i in e.index)
            moved = Inliner(body).node(rows)
            assert isinstance(moved, Nest)
            extra = Store(body.tensor, inner, where, body.at(where))
            fused = replace(moved, stores=(extra, *moved.stores), nodes=unique((*nest.nodes, *rows.nodes)))
            problem = too_large(graph, fused)
            if problem is not None:
                return problem
            graph.remove(producer)
            graph.replace(reader, fused)
            return None
    return "the row nest does not read each element once"
