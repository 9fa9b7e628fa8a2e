"""split-float64: rewrites f64 into double-floats, pairs of f32 whose sum is the value; with `strategy="f32"` into f32.

A pair is the machine type f32x2, `vec2<f32>` in WGSL: 48 bits and more in f32's range of exponents. What is larger
becomes infinite, what is smaller than f32's normal numbers zero. The interpreter computes such values in float64 as it
is, so it is the more exact of the two. Operators keep their names: those of f32x2 are functions of the prelude. A
contraction of f64 becomes a reduction.

Graph inputs, outputs and constants keep the eight bytes of a float64, two u32 words. So does a tensor that is only
moved: a value that is loaded, selected and stored, but not computed with, is never converted, so that it keeps all its
bits. Tensors that share memory (parts of a concat, the states of a loop) are all held in the same way.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.builder import sum_of
from onnx2wgsl.ir.dtypes import BOOL, F32, F32X2, F64, I32, U32, U32X2, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.program import (
    Attention,
    Contract,
    Guard,
    Nest,
    Program,
    Reduce,
    Scan,
    Step,
    Store,
    all_nodes,
    nest_exprs,
)
from onnx2wgsl.ir.rewrite import Rewriter

from .base import Pass, PassResult


@dataclass(frozen=True)
class SplitFloat64(Pass[Program, Program]):
    """`strategy` is "f32x2", or "f32": everything that is f64 computes in f32."""

    strategy: str = "f32x2"
    name: ClassVar[str] = "split-float64"

    def run(self, program: Program) -> PassResult[Program]:
        computed = F32X2 if self.strategy == "f32x2" else F32
        found = [n for n, t in program.tensors.items() if t.dtype is F64]
        if not found and not any(e.dtype is F64 for e in ex.walk(*_all_exprs(program))):
            return PassResult(program, False, {"tensors": 0})
        if computed is F32:
            warnings.warn(
                "The model computes in float64, and f64='f32' computes that in float32: results have 7 digits, not 16.",
                stacklevel=2,
            )
        words = kept_as_words(program)
        split = [n for n in found if n not in words]
        tensors = {**program.tensors, **{n: replace(program.tensors[n], dtype=computed) for n in split}}
        rewriter = Split(computed, words)
        nodes = tuple(rewriter.node(n) for n in program.nodes)
        return PassResult(replace(program, tensors=tensors, nodes=nodes), True, {"tensors": len(split)})

    def ensures(self, program: Program) -> None:
        if any(e.dtype is F64 for e in ex.walk(*_all_exprs(program))):
            raise AssertionError("split-float64 left a float64")


def _all_exprs(program: Program) -> list[Expr]:
    return [e for n in all_nodes(program.nodes) if isinstance(n, Nest) for e in nest_exprs(n)]


def kept_as_words(program: Program) -> set[str]:
    """The f64 tensors that stay as their bytes: ports, constants, and what is only moved."""
    tensors = program.tensors
    groups = _Groups()
    for name, t in tensors.items():
        if t.place is not None:
            groups.join(name, t.place.parent)
    values: dict[str, list[Expr]] = {}
    for node in all_nodes(program.nodes):
        match node:
            case Nest():
                for store in node.stores:
                    values.setdefault(store.tensor, []).append(store.value)
            case Attention():
                values.setdefault(node.store.tensor, []).append(node.store.value)
            case Scan():
                for c in node.carried:
                    groups.join(c.init, c.arg, c.next, c.result)
                for s in node.stacked:
                    groups.join(s.value, s.result)
            case Guard():
                for names in node.results:
                    groups.join(*names)
    fixed = {p.tensor for p in (*program.inputs, *program.outputs)} | set(program.constants)
    fixed = {groups.of(n) for n in fixed}
    f64 = {n for n, t in tensors.items() if t.dtype is F64}
    words = set(f64)
    dropped = True
    while dropped:
        computed = {groups.of(n) for n in words if not all(is_moved(v, words) for v in values.get(n, ()))}
        rest = {n for n in words if groups.of(n) not in computed or groups.of(n) in fixed}
        dropped, words = rest != words, rest
    return words


class _Groups:
    """Tensors that must be held alike."""

    def __init__(self) -> None:
        self.parents: dict[str, str] = {}

    def of(self, name: str) -> str:
        while (parent := self.parents.get(name, name)) != name:
            name = parent
        return name

    def join(self, first: str, *names: str) -> None:
        for name in names:
            self.parents[self.of(name)] = self.of(first)


def is_moved(e: Expr, words: Iterable[str]) -> bool:
    """Whether an f64 value comes as it is from tensors that hold words, from constants, or from reinterpreted words."""
    stack = [e]
    while stack:
        e = stack.pop()
        if e.op == "select":
            stack.extend(e.args[1:])
        elif not (e.op == "const" or (e.op == "load" and e.attr in words) or e.op == "bitcast"):
            return False
    return True


class Split(Rewriter):
    """Each f64 expression as its value in `computed`, and where it is only moved as its words too."""

    def __init__(self, computed: DType, words: set[str]) -> None:
        super().__init__()
        self.computed, self.tensors = computed, words
        self.moved: dict[bytes, Expr] = {}

    def step(self, step: Step) -> Step:
        if not isinstance(step, Contract) or step.dtype is not F64:
            return super().step(step)
        if self.computed is F32:
            return replace(step, lhs=self.part(step.lhs), rhs=self.part(step.rhs), dtype=F32)
        product = ex.cast(step.lhs, F64) * ex.cast(step.rhs, F64)
        return super().step(Reduce(step.name, step.axes, sum_of(F64), (product,)))

    def part(self, operand: Expr) -> Expr:
        return self(ex.cast(operand, F64))

    def store(self, store: Store) -> Store:
        if store.value.dtype is F64 and store.tensor in self.tensors:
            return replace(store, index=self.indices(store.index), value=self.words(store.value))
        return super().store(store)

    def words(self, e: Expr) -> Expr:
        """The two words of a float64, as they are where it is only moved."""
        if e.key not in self.moved:
            self.moved[e.key] = self.moved_words(e) if is_moved(e, self.tensors) else self.rounded(e)
        return self.moved[e.key]

    def moved_words(self, e: Expr) -> Expr:
        match e.op:
            case "load":
                return ex.load(e.attr, U32X2, self.indices(e.index))
            case "bitcast":
                return ex.bitcast(self(e.args[0]), U32X2)
            case "select":
                return ex.select(self(e.args[0]), self.words(e.args[1]), self.words(e.args[2]))
        return ex.op("to_f64", ex.const(e.attr, F32X2))

    def rounded(self, e: Expr) -> Expr:
        value = self(e)
        return ex.op("to_f64", value if value.dtype is F32X2 else ex.op("f32tof32x2", value))

    def visit(self, e: Expr, args: tuple[Expr, ...]) -> Expr:
        source = e.args[0] if e.args else e
        if e.op == "load" and e.dtype is F64:
            return self.load(e)
        if e.op == "load":
            return ex.load(e.attr, e.dtype, self.indices(e.index))
        if e.op == "index":
            return ex.index_value(self.index(e.index[0]), e.dtype)
        if e.op == "bitcast" and e.dtype is F64:
            return self.value(ex.bitcast(args[0], U32X2))
        if e.op == "bitcast" and source.dtype is F64:
            return ex.bitcast(self.words(source), e.dtype)
        if source.dtype is F64 and is_moved(source, self.tensors):
            if e.op == "isnan":
                return _beyond(self.words(source), above=True)
            if e.op == "isinf":
                return _beyond(self.words(source), above=False)
            if e.op == "cast" and e.dtype is BOOL:
                return ~_size(self.words(source)).equals(ex.const(0, U32X2))
        if e.op == "cast" and F64 in (e.dtype, source.dtype):
            return self.cast(e, args[0])
        if e.dtype is F64:
            return self.typed(e, args)
        return super().visit(e, args)

    def value(self, words: Expr) -> Expr:
        """Words as a value to compute with."""
        made = ex.op("from_f64", words)
        return made if self.computed is F32X2 else ex.op("f32x2tof32", made)

    def load(self, e: Expr) -> Expr:
        if e.attr in self.tensors:
            return self.value(ex.load(e.attr, U32X2, self.indices(e.index)))
        return ex.load(e.attr, self.computed, self.indices(e.index))

    def typed(self, e: Expr, args: tuple[Expr, ...]) -> Expr:
        match e.op:
            case "const":
                return ex.const(e.attr, self.computed)
            case "acc":
                return ex.acc(e.attr[0], self.computed, e.attr[1])
            case "leaf":
                return ex.leaf(e.attr[0], self.computed, e.attr[1])
        return ex.apply(e.op, args, self.computed)

    def cast(self, e: Expr, x: Expr) -> Expr:
        """ONNX Cast where source or target is f64."""
        source, target = e.args[0].dtype, e.dtype
        if self.computed is F32X2:
            return to_double(x, source) if target is F64 else from_double(x, target)
        if F32X2 in (source, target):
            return ex.op("f32x2tof32" if target is F64 else "f32tof32x2", x)
        return ex.cast(x, F32 if target is F64 else target)


def to_double(x: Expr, source: DType) -> Expr:
    """A value of another type as a double-float."""
    if source is F32X2:
        return x
    if source is BOOL:
        return ex.select(x, ex.const(1.0, F32X2), ex.const(0.0, F32X2))
    if source.is_float:
        return ex.op("f32tof32x2", ex.cast(x, F32))
    wide = I32 if source.kind == "int" else U32
    return ex.op("s32tof32x2" if wide is I32 else "u32tof32x2", ex.cast(x, wide))


def from_double(x: Expr, target: DType) -> Expr:
    """ONNX Cast of a double-float: integers truncate and saturate, narrow floats are rounded once."""
    if target is F32X2:
        return x
    if target is BOOL:
        return ~x.equals(0.0)
    if target is F32:
        return ex.op("f32x2tof32", x)
    if target.is_float:
        return ex.cast(ex.op("f32x2toodd", x), target)
    wide = I32 if target.kind == "int" else U32
    whole = ex.op("f32x2tos32" if wide is I32 else "f32x2tou32", x)
    if target is wide:
        return whole
    inside = ex.op("min", ex.op("max", whole, ex.const(target.lo, wide)), ex.const(target.hi, wide))
    return ex.cast(inside, target)


def _size(words: Expr) -> Expr:
    """The words of a float64 without its sign."""
    return ex.op("and", words, ex.const((1 << 63) - 1, U32X2))


def _beyond(words: Expr, above: bool) -> Expr:
    """Whether a float64 is infinite, or with `above` is none."""
    size = _size(words)
    low, high = ex.op("lo", size), ex.op("hi", size)
    infinite = ex.const(0x7FF00000, U32)
    if not above:
        return high.equals(infinite) & low.equals(0)
    return (infinite < high) | (high.equals(infinite) & ~low.equals(0))
