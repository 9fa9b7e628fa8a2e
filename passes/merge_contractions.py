"""merge-contractions (L1): contractions of one left operand with constant right operands become one, wider.

Q, K and V of an attention, gate and up of a gated layer: their nests have the same space but for one axis n, the same
reduced axes and, after canonical renaming, the same lhs; the rhs is a constant that n indexes. The constants are joined
along n, and every part keeps its epilogue as a store whose domain is its interval of n. Either operand may be the
constant one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.program import Axis, Contract, Nest, Node, Program, Store, unique

from .base import Pass, PassResult
from .fusion.graph import Graph
from .fusion.inline import too_large


@dataclass(frozen=True)
class Candidate:
    """A contraction with a plain constant operand: its free axis n, the operand's name, and what must be equal."""

    number: int
    nest: Nest
    constant: str
    axis: Axis
    dimension: int
    key: tuple[Any, ...]


@dataclass(frozen=True)
class MergeContractions(Pass[Program, Program]):
    name: ClassVar[str] = "merge-contractions"

    def run(self, program: Program) -> PassResult[Program]:
        graph = Graph.of(program.nodes, program.tensors, {p.tensor for p in program.outputs})
        groups: dict[tuple[Any, ...], list[Candidate]] = {}
        for number, node in graph.nodes.items():
            found = candidate(program, number, node)
            if found is not None:
                groups.setdefault(found.key, []).append(found)
        tensors, constants = dict(program.tensors), dict(program.constants)
        graph.tensors = tensors
        merged, refusals = 0, []
        for members in groups.values():
            if len(members) < 2:
                continue
            problem = self.merge(graph, members, tensors, constants)
            if problem is None:
                merged += len(members)
            else:
                refusals.append(f"{', '.join(m.constant for m in members)}: not merged, {problem}")
        result = replace(program, tensors=tensors, constants=constants).with_nodes(graph.ordered())
        return PassResult(result, merged > 0, {"merged": merged}, tuple(refusals))

    def merge(
        self, graph: Graph, members: Sequence[Candidate], tensors: dict[str, Any], constants: dict[str, Any]
    ) -> str | None:
        """Replaces the members by one nest; returns why not, where it cannot."""
        numbers = [m.number for m in members]
        for a in numbers:
            for b in numbers:
                if a != b and (b in set(graph.inputs(a)) or graph.other_path(b, a)):
                    return "one depends on another"
        first = members[0]
        name = "+".join(m.constant for m in members)[:200]
        name = name if name not in tensors else f"{name}.{first.number}"
        total = sum(m.axis.size for m in members)
        wide = Axis(first.axis.name, total)
        stores: list[Store] = []
        offset = 0
        for m in members:
            stores.extend(_shifted(s, m.axis, first.axis, wide, offset) for s in m.nest.stores)
            offset += m.axis.size
        step = _step(first, wide, name)
        space = tuple(wide if a.name == first.axis.name else a for a in first.nest.space)
        nest = Nest(space, (step,), tuple(stores), unique(n for m in members for n in m.nest.nodes))
        shape = list(tensors[first.constant].shape)
        shape[first.dimension] = total
        tensors[name] = replace(tensors[first.constant], shape=tuple(shape))
        problem = too_large(graph, nest)
        if problem is not None:
            del tensors[name]
            return problem
        constants[name] = np.concatenate([constants[m.constant] for m in members], axis=first.dimension)
        for m in members[1:]:
            graph.remove(m.number)
        graph.replace(first.number, nest)
        return None


def candidate(program: Program, number: int, node: Node) -> Candidate | None:
    """A nest that could be merged with others, with the key that these share."""
    if not isinstance(node, Nest) or len(node.steps) != 1 or not isinstance(node.steps[0], Contract):
        return None
    step = node.steps[0]
    if any(s.axes or s.domain for s in node.stores):
        return None
    for constant, other, side in ((step.rhs, step.lhs, "rhs"), (step.lhs, step.rhs, "lhs")):
        if constant.op != "load" or constant.attr not in program.constants:
            continue
        free = [a for a in node.space if a.name in constant.free and a.name not in other.free]
        if len(free) != 1:
            continue
        dimensions = [k for k, i in enumerate(constant.index) if i == free[0].var]
        if len(dimensions) != 1 or sum(free[0].name in i.free for i in constant.index) != 1:
            continue
        rest = tuple((a.name, a.size) for a in node.space if a != free[0])
        place = node.space.index(free[0])
        where = tuple(i.key for k, i in enumerate(constant.index) if k != dimensions[0])
        key = (side, other.key, rest, place, step.axes, dimensions[0], where, step.dtype, constant.dtype)
        return Candidate(number, node, constant.attr, free[0], dimensions[0], key)
    return None


def _step(first: Candidate, wide: Axis, name: str) -> Contract:
    step = first.nest.steps[0]
    assert isinstance(step, Contract)
    env = {first.axis.name: wide.var}

    def widened(e: Expr) -> Expr:
        if e.op == "load" and e.attr == first.constant:
            return ex.load(name, e.dtype, [i.substitute(env) for i in e.index])
        return e

    return replace(step, lhs=widened(step.lhs), rhs=widened(step.rhs))


def _shifted(store: Store, axis: Axis, target: Axis, wide: Axis, offset: int) -> Store:
    """A part's store on its interval of the merged axis."""
    env = {axis.name: wide.var - offset}
    index = tuple(i.substitute(env) for i in store.index)
    return Store(store.tensor, (), index, store.value.substitute(env), ((target.name, offset, offset + axis.size),))
