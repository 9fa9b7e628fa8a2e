"""Contractions as matrix products: which axes are batch, rows, columns and reduced.

An axis of the space that only one operand uses is a row or a column axis; one that both use, or neither, is a batch
axis. The operand that owns the axis along which the output is contiguous becomes the right one, whose columns are the
lanes of vectors. Reduced axes are flattened to one where that leaves every index affine; else the largest is the inner
one and comes last, so that the others (the taps of a window) are loops around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.program import Axis, Contract, Nest, TensorType

from .grid import product, spread
from .storage import address

MIN_INNER = 16


@dataclass(frozen=True)
class Operand:
    """One side of a product: `value` over the batch axes, its own `free` axes, and the reduced ones."""

    value: Expr
    free: tuple[Axis, ...]

    @property
    def size(self) -> int:
        return product([a.size for a in self.free])


@dataclass(frozen=True)
class Contraction:
    """`Σ left · right` over `outer` and `inner`: rows come from the left operand, columns from the right."""

    step: Contract
    batch: tuple[Axis, ...]
    left: Operand
    right: Operand
    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]

    @property
    def batches(self) -> int:
        return product([a.size for a in self.batch])

    @property
    def depth(self) -> int:
        return product([a.size for a in self.inner])

    def flattened(self) -> Contraction:
        """The same with all reduced axes as one inner axis, where the inner one alone is too short for a tile."""
        if self.depth >= MIN_INNER or not self.outer:
            return self
        return Contraction(self.step, self.batch, self.left, self.right, (), (*self.outer, *self.inner))


def classify(nest: Nest, tensors: Mapping[str, TensorType]) -> Contraction | None:
    """The product that a nest computes; None unless it is one contraction whose stores add no axes."""
    if len(nest.steps) != 1 or any(s.axes for s in nest.stores):
        return None
    (step,) = nest.steps
    if not isinstance(step, Contract) or any(e.op == "acc" for e in ex.walk(step.lhs, step.rhs)):
        return None
    space = [a for a in nest.space if a.size > 1]
    left_only = tuple(a for a in space if a.name in step.lhs.free and a.name not in step.rhs.free)
    right_only = tuple(a for a in space if a.name in step.rhs.free and a.name not in step.lhs.free)
    batch = tuple(a for a in space if a not in left_only and a not in right_only)
    left, right = Operand(step.lhs, left_only), Operand(step.rhs, right_only)
    contiguous = contiguous_axis(nest, (*left_only, *right_only), tensors)
    if contiguous is not None and contiguous in left_only:
        left, right = right, left
    outer, inner = reduced_axes(step, tensors)
    return Contraction(step, batch, left, right, outer, inner)


def contiguous_axis(nest: Nest, axes: Sequence[Axis], tensors: Mapping[str, TensorType]) -> Axis | None:
    """The axis along which the first output moves in the smallest strides."""
    store = nest.stores[0]
    where = address(tensors, store.tensor, store.index)
    strides = {a: abs(where.coefficient(a.name)) for a in axes}
    return min((a for a in axes if strides[a]), key=lambda a: strides[a], default=None)


def reduced_axes(step: Contract, tensors: Mapping[str, TensorType]) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Outer loops, and the axes that are flattened to the inner one."""
    axes = step.axes
    if len(axes) == 1:
        return (), axes
    env = spread(ix.var("k", product([a.size for a in axes])), axes)
    flat = [e.substitute(env) for e in (step.lhs, step.rhs)]
    if not any(_divides(i, "k") for e in ex.walk(*flat) for i in _positions(e, tensors)):
        return (), axes
    largest = max(axes, key=lambda a: a.size)
    return tuple(a for a in axes if a is not largest), (largest,)


def _positions(e: Expr, tensors: Mapping[str, TensorType]) -> tuple[Index, ...]:
    return (address(tensors, e.attr, e.index),) if e.op == "load" else e.index


def _divides(i: Index, name: str) -> bool:
    return any(name in atom.free and not isinstance(atom, ix.Var) for atom, _ in i.terms)
