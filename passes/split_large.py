"""split-large (L1): no binding is larger than the target allows.

A constant above the limit is cut along an axis of its readers' space that indexes one of its dimensions; every reader
becomes one nest per part, each with its interval of that axis. What cannot be cut, and an intermediate, an input or an
output above the limit, is refused with the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from onnx2wgsl.codegen.storage import byte_size
from onnx2wgsl.errors import Gap, UnsupportedError, escape_name
from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.plan import DEFAULT_LIMITS
from onnx2wgsl.ir.program import Axis, Nest, Node, Place, Program, Scan, Store, TensorType, nest_exprs
from onnx2wgsl.ir.rewrite import Rewriter

from .base import Pass, PassResult


@dataclass(frozen=True)
class SplitLarge(Pass[Program, Program]):
    """`binding_bytes` is the target's largest storage buffer binding."""

    binding_bytes: int = DEFAULT_LIMITS["maxStorageBufferBindingSize"]
    name: ClassVar[str] = "split-large"

    def run(self, program: Program) -> PassResult[Program]:
        large = [n for n, t in program.tensors.items() if byte_size(t) > self.binding_bytes]
        if not large:
            return PassResult(program, False, {"cut": 0})
        tensors, constants = dict(program.tensors), dict(program.constants)
        nodes: list[Node] = list(program.nodes)
        for name in large:
            if name not in constants:
                raise self.refusal(name, tensors[name], "it is no constant")
            nodes = self.cut(name, nodes, tensors, constants)
        result = replace(program, tensors=tensors, constants=constants).with_nodes(nodes)
        return PassResult(result, True, {"cut": len(large)})

    def cut(
        self, name: str, nodes: Sequence[Node], tensors: dict[str, TensorType], constants: dict[str, Any]
    ) -> list[Node]:
        readers = [n for n in nodes if name in n.reads]
        dimension = self.dimension(name, readers, tensors[name])
        size = tensors[name].shape[dimension]
        pieces = ceil_div(byte_size(tensors[name]), self.binding_bytes)
        width = ceil_div(ceil_div(size, pieces), 16) * 16
        width = width if byte_size(tensors[name]) * width <= self.binding_bytes * size else size // pieces
        parts: list[tuple[str, int, int]] = []
        for lo in range(0, size, width):
            hi = min(lo + width, size)
            part = f"{name}[{lo}:{hi}]"
            shape = list(tensors[name].shape)
            shape[dimension] = hi - lo
            tensors[part] = replace(tensors[name], shape=tuple(shape))
            constants[part] = constants[name].take(range(lo, hi), axis=dimension)
            parts.append((part, lo, hi))
        result: list[Node] = []
        for node in nodes:
            if name not in node.reads:
                result.append(node)
                continue
            assert isinstance(node, Nest)
            axis = _axis_of(name, dimension, node)
            assert axis is not None
            result.extend(_part(node, axis, name, dimension, p, tensors) for p in parts)
        return result

    def dimension(self, name: str, readers: Sequence[Node], t: TensorType) -> int:
        """A dimension that every reader indexes by a space axis of its own, for all loads the same."""
        if any(isinstance(r, Scan) or not isinstance(r, Nest) for r in readers):
            raise self.refusal(name, t, "a loop reads it")
        for dimension in range(len(t.shape)):
            if all(_axis_of(name, dimension, r) is not None for r in readers if isinstance(r, Nest)):
                return dimension
        raise self.refusal(name, t, "its readers do not index one of its dimensions by an axis of their results")

    def refusal(self, name: str, t: TensorType, why: str) -> UnsupportedError:
        reason = (
            f"the tensor {escape_name(name)} {t} has {byte_size(t)} bytes, above the target's largest binding of "
            f"{self.binding_bytes}, and cannot be cut: {why}"
        )
        return UnsupportedError([Gap("", "binding", reason)])


def _axis_of(name: str, dimension: int, nest: Nest) -> Axis | None:
    """The space axis that alone indexes a dimension of a tensor in all of a nest's loads of it."""
    found: Axis | None = None
    for e in ex.loads(*nest_exprs(nest)):
        if e.attr != name:
            continue
        var = e.index[dimension].as_var
        axis = next((a for a in nest.space if var is not None and a.name == var.name), None)
        if axis is None or (found is not None and axis != found):
            return None
        found = axis
    return found


def _part(
    nest: Nest, axis: Axis, name: str, dimension: int, part: tuple[str, int, int], tensors: dict[str, TensorType]
) -> Nest:
    """The nest on one interval of an axis, reading one part of the constant."""
    part_name, lo, hi = part
    own = Axis(axis.name, hi - lo)
    env = {axis.name: own.var + lo}

    class Cut(Rewriter):
        def visit(self, e: Expr, args: tuple[Expr, ...]) -> Expr:
            if e.op == "load":
                where = [i.substitute(env) for i in self.indices(e.index)]
                if e.attr == name:
                    where[dimension] = own.var
                    return ex.load(part_name, e.dtype, where)
                return ex.load(e.attr, e.dtype, where)
            if e.op == "index":
                return ex.index_value(self.index(e.index[0]).substitute(env), e.dtype)
            return super().visit(e, args)

        def store(self, store: Store) -> Store:
            return _placed(super().store(store), axis, own, lo, tensors)

    cut = Cut().node(nest)
    assert isinstance(cut, Nest)
    stores = tuple(s for s in cut.stores if all(a < b for _, a, b in s.domain))
    return replace(cut, space=tuple(own if a == axis else a for a in cut.space), stores=stores)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _placed(store: Store, axis: Axis, own: Axis, lo: int, tensors: dict[str, TensorType]) -> Store:
    """A store into a part of its tensor: the part that the interval [lo, lo + own.size) of the axis writes."""
    bounds = {n: (start, stop) for n, start, stop in store.domain}
    start, stop = bounds.get(axis.name, (0, axis.size))
    start, stop = max(start, lo), min(stop, lo + own.size)
    domain = tuple((n, *b) for n, b in bounds.items() if n != axis.name)
    if start >= stop:
        return replace(store, domain=((axis.name, 0, 0),))
    dimensions = [k for k, i in enumerate(store.index) if axis.name in i.free]
    moved = [(i - axis.var).const for i in store.index if (i - axis.var).is_const]
    if len(dimensions) != 1 or len(moved) != 1:
        what = f"the tensor {escape_name(store.tensor)} is not laid out along the axis of the cut of a large constant"
        raise UnsupportedError([Gap("", "binding", what)])
    k, t = dimensions[0], tensors[store.tensor]
    shape = list(t.shape)
    shape[k] = stop - start
    part = f"{store.tensor}[{start + moved[0]}:{stop + moved[0]}]"
    tensors[part] = replace(t, shape=tuple(shape), place=Place(store.tensor, k, start + moved[0]))
    index = list(store.index)
    index[k] = own.var + (lo - start)
    if (start, stop) != (lo, lo + own.size):
        domain = (*domain, (axis.name, start - lo, stop - lo))
    env = {axis.name: own.var + lo}
    return Store(
        part, store.axes, tuple(i.substitute(env) if j != k else i for j, i in enumerate(index)), store.value, domain
    )
