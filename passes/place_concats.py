"""place-concats (L1): the parts of a concatenation live inside the result's memory.

A part that is a whole tensor of its own, made by a nest, and neither a graph input, a graph output nor a constant, is
placed: it keeps its name, so that a reader of a prefix depends on the prefix only, and its store into the result falls
away. Placements nest. What cannot be placed stays a store of its own, one per part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.program import Nest, Node, Place, Program, Store, TensorType

from .base import Pass, PassResult


@dataclass(frozen=True)
class PlaceConcats(Pass[Program, Program]):
    name: ClassVar[str] = "place-concats"

    def run(self, program: Program) -> PassResult[Program]:
        ports = {p.tensor for p in (*program.inputs, *program.outputs)}
        made = {t for n in program.nodes if isinstance(n, Nest) for t in n.writes}
        tensors = dict(program.tensors)
        nodes: list[Node] = []
        placed, refusals = 0, []
        for node in program.nodes:
            if not is_concat(node):
                nodes.append(node)
                continue
            assert isinstance(node, Nest)
            kept = []
            for store in node.stores:
                place = _place(store, tensors, ports, made)
                if isinstance(place, str):
                    refusals.append(f"{store.value.attr} in {store.tensor}: not placed, {place}")
                    kept.append(store)
                    continue
                tensors[store.value.attr] = replace(tensors[store.value.attr], place=place)
                placed += 1
            if kept:
                nodes.append(replace(node, stores=tuple(kept)))
        result = replace(program, tensors=tensors).with_nodes(nodes)
        return PassResult(result, placed > 0, {"placed": placed, "stored": len(refusals)}, tuple(refusals))


def is_concat(node: Node) -> bool:
    """A nest that copies whole tensors side by side into one, as the builder's `concat` makes it."""
    if not isinstance(node, Nest) or node.space or node.steps or len(node.stores) < 2:
        return False
    return len(node.writes) == 1 and all(
        s.value.op == "load" and not s.domain and s.value.index == tuple(a.var for a in s.axes) for s in node.stores
    )


def _place(store: Store, tensors: dict[str, TensorType], ports: set[str], made: set[str]) -> Place | str:
    part = store.value.attr
    if part in ports:
        return "it is a graph input or output"
    if part not in made:
        return "no nest makes it"
    if tensors[part].place is not None:
        return "it is part of another tensor already"
    if store.tensor in ports and tensors[store.tensor].dtype.bits < 32:
        return "the result is packed"
    offsets = [i - a.var for i, a in zip(store.index, store.axes, strict=True)]
    moved = [k for k, o in enumerate(offsets) if o != ix.constant(0)]
    if any(not o.is_const for o in offsets) or len(moved) > 1:
        return "it is not shifted along one axis"
    axis = moved[0] if moved else _concat_axis(tensors[part].shape, tensors[store.tensor].shape)
    return Place(store.tensor, axis, offsets[axis].const if offsets else 0)


def _concat_axis(part: tuple[int, ...], whole: tuple[int, ...]) -> int:
    return next((k for k, (p, w) in enumerate(zip(part, whole, strict=True)) if p != w), 0)
