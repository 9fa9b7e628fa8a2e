"""Map into readers: a map disappears into the expressions that load its tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.bijection import invert
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.program import Contract, Nest, Reduce, Step, nest_exprs
from onnx2wgsl.ir.rewrite import Rewriter

from . import heuristics
from .graph import Graph


@dataclass(frozen=True)
class Body:
    """A map's value as a function of the dimensions d0, d1, … of its tensor."""

    tensor: str
    value: Expr

    def at(self, indices: tuple[Index, ...]) -> Expr:
        return self.value.substitute({f"d{k}": i for k, i in enumerate(indices)})


def body_of(graph: Graph, nest: Nest) -> Body | None:
    """The body of a map that writes the whole of one tensor, each element once."""
    if nest.steps or len(nest.stores) != 1 or nest.stores[0].domain:
        return None
    store = nest.stores[0]
    inverse = invert(store.index, graph.tensors[store.tensor].shape, (*nest.space, *store.axes))
    return None if inverse is None else Body(store.tensor, store.value.substitute(inverse))


class Inliner(Rewriter):
    """Replaces the loads of one tensor by a body, inside of indices too."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def load(self, e: Expr) -> Expr:
        return self.body.at(self.indices(e.index)) if e.attr == self.body.tensor else super().load(e)


def inline_views(graph: Graph, number: int) -> str | None:
    """Inlines a map without arithmetic into all readers. Returns None when done, else why not."""
    nest = graph.nest(number)
    body = body_of(graph, nest) if nest else None
    if nest is None or body is None:
        return "not a map"
    if heuristics.cost(body.value) or len(ex.loads(body.value)) > 1:
        return "not a view"
    return _inline(graph, number, body)


def inline_map(graph: Graph, number: int, into_contractions: bool) -> str | None:
    """Inlines a map into all of its readers, or none. Returns None when done, else why not."""
    nest = graph.nest(number)
    body = body_of(graph, nest) if nest else None
    if nest is None or body is None:
        return "not a map"
    if graph.stored(body.tensor):
        return "its tensor must be stored"
    readers = [graph.nest(r) for r in graph.readers.get(body.tensor, ())]
    count = graph.tensors[body.tensor].count
    arithmetic = heuristics.cost(body.value)
    loads = ex.loads(body.value)
    large = sum(heuristics.is_large(graph.tensors[e.attr].count, count) for e in loads)
    for reader in readers:
        if reader is None:
            return "a reader is not a nest"
        uses = uses_of(reader, body.tensor)
        worst = max(points for points, _ in uses) / max(count, 1)
        if any(contracted for _, contracted in uses):
            if not into_contractions:
                return "a reader is a contraction"
            if not heuristics.may_feed_contraction(arithmetic, len(loads), large, worst):
                return "too dear to compute inside of a contraction"
        elif not heuristics.may_repeat(arithmetic, large, len(readers), worst):
            return f"too dear to compute again in {len(readers)} readers, {worst:g} times per element"
    return _inline(graph, number, body)


def uses_of(nest: Nest, tensor: str) -> list[tuple[int, bool]]:
    """For each part of a nest that loads a tensor: how often the loads are evaluated, and whether by a contraction."""
    found: list[tuple[int, bool]] = []
    sizes = {a.name: a.size for a in nest.space}
    parts: list[tuple[tuple[Expr, ...], dict[str, int], bool]] = [
        (s.exprs, sizes | {a.name: a.size for a in s.axes}, isinstance(s, Contract)) for s in nest.steps
    ]
    for store in nest.stores:
        inner = tuple(e for i in store.index for e in ex.index_exprs(i))
        parts.append(((store.value, *inner), sizes | {a.name: a.size for a in store.axes}, False))
    for exprs, extent, contracted in parts:
        points = 0
        for e in ex.loads(*exprs):
            if e.attr == tensor:
                times = 1
                for name in e.free:
                    times *= extent[name]
                points += times
        if points:
            found.append((points, contracted))
    return found or [(0, False)]


def _inline(graph: Graph, number: int, body: Body) -> str | None:
    readers = sorted(graph.readers.get(body.tensor, ()))
    made: list[tuple[int, Nest]] = []
    refused: str | None = None
    provenance = graph.nodes[number].nodes
    for r in readers:
        reader = graph.nest(r)
        if reader is None:
            refused = "a reader is not a nest"
            continue
        rewritten = Inliner(body).node(reader)
        assert isinstance(rewritten, Nest)
        rewritten = replace(rewritten, nodes=tuple(dict.fromkeys((*provenance, *reader.nodes))))
        problem = too_large(graph, rewritten) or lone_axis(rewritten)
        if problem is not None:
            refused = problem
            continue
        made.append((r, rewritten))
    if refused is not None and heuristics.cost(body.value):
        return refused
    for r, nest in made:
        graph.replace(r, nest)
    if refused is None and not graph.stored(body.tensor):
        graph.remove(number)
    return None if made else refused


def too_large(graph: Graph, nest: Nest) -> str | None:
    """Why a nest must not grow like this, or None."""
    slots = graph.slots(nest)
    if slots > heuristics.STORAGE_SLOTS:
        return f"the kernel would bind {slots} storage buffers, the target allows {heuristics.STORAGE_SLOTS}"
    depths: dict[bytes, int] = {}
    for e in ex.walk(*nest_exprs(nest)):
        depths[e.key] = 1 + max((depths[below.key] for below in e.below), default=0)
    if len(depths) > heuristics.LARGEST_NEST:
        return f"the kernel would have {len(depths)} expressions"
    deepest = max(depths.values(), default=0)
    return f"its expressions would be {deepest} deep" if deepest > heuristics.DEEPEST_EXPRESSION else None


def lone_axis(nest: Nest) -> str | None:
    """Why a contraction is none any more: an axis that it reduces has gone from an operand."""
    for step in nest.steps:
        if isinstance(step, Contract) and any(a.name not in e.free for a in step.axes for e in (step.lhs, step.rhs)):
            return "a contracted axis would occur in one operand only"
    return None


def with_accs(e: Expr, rename: dict[str, str]) -> Expr:
    """An expression with the steps that it reads renamed."""

    def rule(n: Expr) -> Expr | None:
        return ex.acc(rename[n.attr[0]], n.dtype, n.attr[1]) if n.op == "acc" and n.attr[0] in rename else None

    return ex.rewrite(e, rule)


def rename_step(step: Step, rename: dict[str, str]) -> Step:
    name = rename.get(step.name, step.name)
    if isinstance(step, Reduce):
        return replace(step, name=name, body=tuple(with_accs(e, rename) for e in step.body))
    return replace(step, name=name, lhs=with_accs(step.lhs, rename), rhs=with_accs(step.rhs, rename))
