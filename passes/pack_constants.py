"""pack-constants (L1): constant operands in the order in which contractions read them; constant sub-expressions folded.

A constant operand of a contraction is evaluated on its own grid and stored as `[batch…, reduced…, free]`, its free axes
flattened and padded to a multiple of four, so that its loads are vectors along the free axis. An operand that is one
load with this property stays as it is. Where storing values would take much more memory than the constants that they
are computed from (8-bit weights that are widened), the loads are packed, each by itself, and the arithmetic stays.

Elsewhere the largest sub-expressions over nothing but constants (`scale / sqrt(variance + epsilon)`) become constants,
if they are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from onnx2wgsl.codegen.axes import Contraction, Operand, classify
from onnx2wgsl.codegen.grid import product, spread
from onnx2wgsl.codegen.storage import root
from onnx2wgsl.codegen.vectors import LANE, LANES, failures
from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.dtypes import DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.interp import Grid
from onnx2wgsl.ir.program import Axis, Contract, Guard, Nest, Node, Program, Scan, Step, Store, TensorType

from .base import Pass, PassResult


@dataclass(frozen=True)
class PackConstants(Pass[Program, Program]):
    """`most` bounds the elements of a folded sub-expression, `growth` how much packing may enlarge a constant.

    Nothing is folded where a kernel would come to bind more than `storage_slots` buffers by it.
    """

    most: int = 65536
    growth: int = 2
    storage_slots: int = 8
    name: ClassVar[str] = "pack-constants"

    def run(self, program: Program) -> PassResult[Program]:
        packer = Packer(program, self.most, self.growth, self.storage_slots)
        nodes = tuple(packer.node(n) for n in program.nodes)
        packed = replace(program, tensors=packer.tensors, constants=packer.constants)
        statistics = {"packed": packer.packed, "folded": packer.folded}
        return PassResult(packed.with_nodes(nodes), bool(packer.packed or packer.folded), statistics)


@dataclass
class _Constants:
    """What a grid needs of an interpreter."""

    env: Mapping[str, Any]
    wide: bool = False
    params: Mapping[str, int] = field(default_factory=dict)

    def numpy_dtype(self, dtype: DType) -> np.dtype[Any]:
        return dtype.numpy


class Packer:
    def __init__(self, program: Program, most: int, growth: int, storage_slots: int = 8) -> None:
        self.most, self.growth, self.storage_slots = most, growth, storage_slots
        self.tensors, self.constants = dict(program.tensors), dict(program.constants)
        self.made: dict[tuple[Any, ...], str] = {}
        self.facts: dict[bytes, tuple[bool, bool]] = {}
        self.packed = self.folded = 0

    def node(self, node: Node) -> Node:
        match node:
            case Nest():
                return self.nest(node)
            case Scan():
                return replace(node, body=tuple(self.node(n) for n in node.body))
            case Guard():
                body = tuple(self.node(n) for n in node.body)
                return replace(node, body=body, otherwise=tuple(self.node(n) for n in node.otherwise))
        return node

    def nest(self, nest: Nest) -> Nest:
        c = classify(nest, self.tensors)
        if c is not None and min(c.left.size, c.right.size) > 1:
            nest = replace(nest, steps=(self.contract(c),))
        steps = tuple(self.step(nest, s) for s in nest.steps)
        folded = replace(nest, steps=steps, stores=tuple(self.store(nest, s) for s in nest.stores))
        return folded if self.slots(folded) <= max(self.slots(nest), self.storage_slots) else nest

    def slots(self, node: Node) -> int:
        """Storage buffers that a node binds; one constant folded into many grows to many."""
        return len({root(self.tensors, t) for t in (*node.reads, *node.writes)})

    # Operands

    def contract(self, c: Contraction) -> Contract:
        sides = {o.value: self.operand(c, o) for o in (c.left, c.right)}
        return replace(c.step, lhs=sides[c.step.lhs], rhs=sides[c.step.rhs])

    def operand(self, c: Contraction, operand: Operand) -> Expr:
        value = operand.value
        if not self.is_constant(value) or self.reads_vectors(operand):
            return value
        if value.dtype.bits >= 8 and self.size(c, operand, value) <= self.allowed(value):
            return self.pack(c, operand, value)
        loads = [e for e in ex.loads(value) if self.is_packable_load(c, operand, e)]
        return with_replaced(value, {e: self.pack(c, operand, e) for e in loads})

    def is_packable_load(self, c: Contraction, operand: Operand, load: Expr) -> bool:
        plain = not any(True for i in load.index for _ in ex.index_exprs(i))
        return plain and load.dtype.bits >= 8 and self.size(c, operand, load) <= self.allowed(load)

    def allowed(self, value: Expr) -> int:
        """The bytes that a packed constant may take."""
        return max(self.growth * sum(self.constants[e.attr].nbytes for e in ex.loads(value)), 1 << 18)

    def size(self, c: Contraction, operand: Operand, value: Expr) -> int:
        shape, _ = layout(c, operand, value)
        return product(shape) * max(value.dtype.bits, 8) // 8

    def reads_vectors(self, operand: Operand) -> bool:
        """Whether an operand is one load that gives vectors along its free axis as it is."""
        if operand.value.op != "load":
            return False
        free = ix.var("free4", -(-operand.size // LANES)) * LANES + LANE
        value = operand.value.substitute(spread(free, operand.free))
        return operand.size % LANES == 0 and not failures(value, self.tensors)

    def pack(self, c: Contraction, operand: Operand, value: Expr) -> Expr:
        """A constant over the axes of an operand, and its load."""
        shape, where = layout(c, operand, value)
        axes = tuple(a for a in (*c.batch, *c.outer, *c.inner) if a.name in value.free)
        free = operand.free if len(shape) > len(axes) else ()
        key = (value.key, axes, free)
        if key not in self.made:
            array = self.evaluate(value, (*axes, *free))
            if free:
                array = array.reshape(*array.shape[: len(axes)], operand.size)
                array = np.pad(array, [(0, 0)] * len(axes) + [(0, shape[-1] - operand.size)])
            self.made[key] = self.constant(value, array)
            self.packed += 1
        return ex.load(self.made[key], value.dtype, where)

    # Sub-expressions

    def step(self, nest: Nest, step: Step) -> Step:
        axes = (*nest.space, *step.axes)
        if isinstance(step, Contract):
            return replace(step, lhs=self.fold(step.lhs, axes), rhs=self.fold(step.rhs, axes))
        return replace(step, body=tuple(self.fold(e, axes) for e in step.body))

    def store(self, nest: Nest, store: Store) -> Store:
        return replace(store, value=self.fold(store.value, (*nest.space, *store.axes)))

    def fold(self, root: Expr, axes: Sequence[Axis]) -> Expr:
        found = [e for e in frontier(root, self.is_constant) if self.is_foldable(e, axes)]
        return with_replaced(root, {e: self.folded_load(e, axes) for e in found})

    def is_foldable(self, e: Expr, axes: Sequence[Axis]) -> bool:
        loads = ex.loads(e)
        if e.op == "load" or not loads or e.dtype.bits < 8:
            return False
        count = product([a.size for a in axes if a.name in e.free])
        largest = max(self.tensors[x.attr].count for x in loads)
        return count <= min(self.most, max(largest, 4096))

    def folded_load(self, e: Expr, axes: Sequence[Axis]) -> Expr:
        used = [a for a in axes if a.name in e.free]
        array = self.evaluate(e, used)
        self.folded += 1
        if not used:
            return ex.const(array[()], e.dtype)
        key = (e.key, tuple(used))
        if key not in self.made:
            self.made[key] = self.constant(e, array)
        return ex.load(self.made[key], e.dtype, [a.var for a in used])

    # Constants

    def is_constant(self, e: Expr) -> bool:
        """Whether an expression depends on nothing but constants and loop axes, and reads some."""
        for node in ex.walk(e):
            if node.key not in self.facts:
                below = [self.facts[x.key] for x in ex.children(node)]
                known = self.is_known(node) and all(k for k, _ in below)
                self.facts[node.key] = known, node.op == "load" or any(r for _, r in below)
        return all(self.facts[e.key])

    def is_known(self, node: Expr) -> bool:
        if node.op == "load" and (node.attr not in self.constants or self.tensors[node.attr].length is not None):
            return False
        return node.op not in ("acc", "leaf", "var") and not any(has_param(i) for i in node.index)

    def evaluate(self, value: Expr, axes: Sequence[Axis]) -> Any:
        grid = Grid(_Constants(self.constants), tuple(axes), {}, {})
        with np.errstate(all="ignore"):
            return grid.eval_on(value, [a.name for a in axes])

    def constant(self, value: Expr, array: Any) -> str:
        source = next(e.attr for e in ex.loads(value))
        name = next(n for k in range(len(self.tensors) + 1) if (n := f"{source}.packed{k or ''}") not in self.tensors)
        self.tensors[name] = TensorType(value.dtype, array.shape)
        self.constants[name] = np.ascontiguousarray(array.astype(value.dtype.numpy, copy=False))
        return name


def layout(c: Contraction, operand: Operand, value: Expr) -> tuple[list[int], list[Index]]:
    """The shape of a packed operand, and the index of its load."""
    axes = [a for a in (*c.batch, *c.outer, *c.inner) if a.name in value.free]
    shape, where = [a.size for a in axes], [a.var for a in axes]
    if any(a.name in value.free for a in operand.free):
        shape.append(-(-operand.size // LANES) * LANES)
        where.append(ix.flatten([a.var for a in operand.free], [a.size for a in operand.free]))
    return shape, where


def with_replaced(root: Expr, replacements: dict[Any, Any]) -> Expr:
    """An expression with whole sub-expressions replaced."""
    return ex.rewrite(root, lambda _: None, replacements) if replacements else root


def frontier(root: Expr, constant: Callable[[Expr], bool]) -> Iterator[Expr]:
    """The largest sub-expressions that are constant."""
    stack, seen = [root], set()
    while stack:
        e = stack.pop()
        if e.key in seen:
            continue
        seen.add(e.key)
        if constant(e):
            yield e
        else:
            stack.extend(ex.children(e))


def has_param(i: Index) -> bool:
    """Whether an index depends on a parameter of the run."""
    inner = [atom.num for atom, _ in i.terms if isinstance(atom, (ix.Div, ix.Mod))]
    return any(isinstance(atom, ix.Param) for atom, _ in i.terms) or any(map(has_param, inner))
