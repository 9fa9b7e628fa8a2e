"""fit-bindings (L1): no kernel binds more storage buffers than the target allows.

Fusion stops at the limit; what exceeds it comes from a lowering, an operator with many inputs. Such a nest is relieved
in two ways: stores that write parts of one tensor become nests of their own (Concat of many inputs), and the largest
part of an expression that needs several buffers but no accumulator is computed beforehand, by a map over the axes that
it uses (scales and zero points of quantised operators).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from onnx2wgsl.codegen.storage import root
from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.program import Axis, Nest, Node, Program, Reduce, Scan, Step, Store, TensorType
from onnx2wgsl.ir.rewrite import Rewriter

from .base import Pass, PassResult


@dataclass(frozen=True)
class FitBindings(Pass[Program, Program]):
    """`storage_slots` is the target's limit of storage buffers in a dispatch."""

    storage_slots: int = 8
    name: ClassVar[str] = "fit-bindings"

    def run(self, program: Program) -> PassResult[Program]:
        fitter = _Fitter(dict(program.tensors), self.storage_slots)
        nodes = fitter.nodes(program.nodes)
        result = replace(program, tensors=fitter.tensors, nodes=tuple(nodes))
        return PassResult(result, fitter.relieved > 0, {"relieved": fitter.relieved}, tuple(fitter.refusals))


class _Fitter:
    def __init__(self, tensors: dict[str, TensorType], limit: int) -> None:
        self.tensors, self.limit = tensors, limit
        self.relieved = 0
        self.refusals: list[str] = []

    def nodes(self, nodes: tuple[Node, ...]) -> list[Node]:
        result: list[Node] = []
        for node in nodes:
            if isinstance(node, Scan):
                result.append(replace(node, body=tuple(self.nodes(node.body))))
            elif isinstance(node, Nest):
                result.extend(self.fitted(node))
            else:
                result.append(node)
        return result

    def slots(self, nest: Nest) -> int:
        return len({root(self.tensors, t) for t in (*nest.reads, *nest.writes)})

    def fitted(self, nest: Nest) -> list[Nest]:
        """The nest, or nests that do the same, each within the limit where that can be had."""
        if self.slots(nest) <= self.limit:
            return [nest]
        self.relieved += 1
        if not nest.steps and len(nest.stores) > 1:
            return [n for s in nest.stores for n in self.fitted(replace(nest, stores=(s,)))]
        nest = _told_apart(nest)
        before: list[Nest] = []
        while self.slots(nest) > self.limit:
            part = self.heaviest(nest)
            if part is None:
                self.refusals.append(f"{', '.join(nest.nodes)}: {self.slots(nest)} storage buffers cannot be reduced")
                break
            made, load = self.computed_before(nest, part)
            before.append(made)
            rewritten = _Replace(part, load).node(nest)
            assert isinstance(rewritten, Nest)
            nest = rewritten
        return [*before, nest]

    def heaviest(self, nest: Nest) -> Expr | None:
        """The expression without accumulators that would free the most buffers, the smallest of equals."""
        best: tuple[int, int, Expr] | None = None
        sizes = _sizes(nest)
        inner = {a.name for s in nest.steps for a in s.axes}
        for e in ex.walk(*(s.value for s in nest.stores), *(x for s in nest.steps for x in s.exprs)):
            if e.op in ("load", "const", "index") or any(n.op in ("acc", "leaf") for n in ex.walk(e)):
                continue
            if not e.free.isdisjoint(inner) and any(a.name in e.free for a in nest.space):
                continue
            read = {root(self.tensors, x.attr) for x in ex.loads(e)}
            if len(read) >= self.limit:
                continue
            freed = len(read - self.elsewhere(nest, e)) - 1
            points = 1
            for name in e.free:
                points *= sizes[name]
            if freed > 0 and (best is None or (freed, -points) > (best[0], -best[1])):
                best = (freed, points, e)
        return None if best is None else best[2]

    def elsewhere(self, nest: Nest, part: Expr) -> set[str]:
        """The buffers that the nest needs besides a part of its expressions."""
        marker = ex.variable("part", part.dtype)
        rest = _Replace(part, marker).node(nest)
        return {root(self.tensors, t) for t in (*rest.reads, *rest.writes)}

    def computed_before(self, nest: Nest, part: Expr) -> tuple[Nest, Expr]:
        """A map that computes a part of an expression over its axes, and the load that replaces it."""
        axes = [a for a in _axes(nest) if a.name in part.free]
        name = f"{nest.stores[0].tensor}.part{self.relieved}"
        while name in self.tensors:
            name += "'"
        self.tensors[name] = TensorType(part.dtype, tuple(a.size for a in axes))
        index = tuple(a.var for a in axes)
        return Nest(tuple(axes), (), (Store(name, (), index, part),), nest.nodes), ex.load(name, part.dtype, index)


class _Replace(Rewriter):
    """Replaces one expression by another."""

    def __init__(self, old: Expr, new: Expr) -> None:
        super().__init__()
        self.memo[old.key] = new


def _told_apart(nest: Nest) -> Nest:
    """The nest with no two sizes under one name: each step and store names its axes for itself."""
    sizes = {a.name: a.size for a in nest.space}
    steps = tuple(_renamed_step(s, *_names(s.axes, sizes)) for s in nest.steps)
    stores = tuple(_renamed_store(s, *_names(s.axes, sizes)) for s in nest.stores)
    return replace(nest, steps=steps, stores=stores)


def _names(axes: tuple[Axis, ...], sizes: dict[str, int]) -> tuple[tuple[Axis, ...], dict[str, Index]]:
    """The axes under names that have no other size yet, and what replaces the old names."""
    found: list[Axis] = []
    for axis in axes:
        name = axis.name
        while sizes.setdefault(name, axis.size) != axis.size:
            name += "'"
        found.append(Axis(name, axis.size))
    return tuple(found), {a.name: f.var for a, f in zip(axes, found, strict=True) if a != f}


def _renamed_step(step: Step, axes: tuple[Axis, ...], env: dict[str, Index]) -> Step:
    if isinstance(step, Reduce):
        return replace(step, axes=axes, body=tuple(e.substitute(env) for e in step.body)) if env else step
    return replace(step, axes=axes, lhs=step.lhs.substitute(env), rhs=step.rhs.substitute(env)) if env else step


def _renamed_store(store: Store, axes: tuple[Axis, ...], env: dict[str, Index]) -> Store:
    if not env:
        return store
    index = tuple(i.substitute(env) for i in store.index)
    return replace(store, axes=axes, index=index, value=store.value.substitute(env))


def _axes(nest: Nest) -> list[Axis]:
    found = {a.name: a for a in nest.space}
    for part in (*nest.steps, *nest.stores):
        for a in part.axes:
            found.setdefault(a.name, a)
    return list(found.values())


def _sizes(nest: Nest) -> Mapping[str, int]:
    return {a.name: a.size for a in _axes(nest)}
