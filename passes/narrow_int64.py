"""narrow-int64: computes in i32 what provably fits, or of which only the low word is asked for.

Two questions are asked of each 64-bit value. Does it fit in i32 by its range? Ranges come from constants, loop axes,
stated facts (`assume`), casts from narrower types, and the ranges of the tensors that are loaded. Is only its low word
demanded? An index into a tensor below 2³¹ elements and a truncating cast ask for no more, and +, −, ×, bitwise
operators and `select` commute with truncation; the sign of an assumed index is the sign of its low word. An
intermediate or a constant whose values all fit is stored as i32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.dtypes import BOOL, I32, I64, U32, U64
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.program import Nest, Program, Store, TensorType, all_nodes
from onnx2wgsl.ir.rewrite import Rewriter

from .base import Pass, PassResult

WIDE = (I64, U64)
Range = tuple[int, int]
_COMMUTES = frozenset({"add", "sub", "mul", "neg", "and", "or", "xor", "not"})
_COMPARES = frozenset({"eq", "ne", "lt", "le"})


@dataclass(frozen=True)
class NarrowInt64(Pass[Program, Program]):
    name: ClassVar[str] = "narrow-int64"

    def run(self, program: Program) -> PassResult[Program]:
        facts, refusals = tensor_ranges(program)
        tensors, constants = dict(program.tensors), dict(program.constants)
        for name in facts.narrowed:
            tensors[name] = replace(tensors[name], dtype=I32)
            if name in constants:
                constants[name] = constants[name].astype(np.int32)
        rewriter = Narrow(facts, tensors)
        nodes = tuple(rewriter.node(n) for n in program.nodes)
        result = replace(program, tensors=tensors, constants=constants, nodes=nodes)
        wide = sum(t.dtype in WIDE for t in program.tensors.values())
        statistics = {"int64_tensors": wide, "narrowed": len(facts.narrowed), "kept": wide - len(facts.narrowed)}
        return PassResult(result, bool(wide), statistics, tuple(refusals))


class Facts:
    """Value ranges of tensors and, through them, of expressions."""

    def __init__(self) -> None:
        self.tensors: dict[str, Range] = {}
        self.narrowed: set[str] = set()
        self.memo: dict[bytes, Range] = {}

    def range(self, e: Expr) -> Range:
        """Inclusive bounds of an integer or bool expression."""
        for node in ex.walk(e):
            if node.key not in self.memo:
                self.memo[node.key] = self.of(node)
        return self.memo[e.key]

    def fits(self, e: Expr) -> bool:
        lo, hi = self.range(e)
        return I32.lo <= lo and hi <= I32.hi

    def of(self, e: Expr) -> Range:
        whole = (
            (e.dtype.lo, e.dtype.hi) if e.dtype.is_integer else (0, 1) if e.dtype is BOOL else (-(1 << 127), 1 << 127)
        )
        match e.op:
            case "const":
                return (int(e.attr), int(e.attr)) if not e.dtype.is_float else whole
            case "index":
                return e.index[0].lo, e.index[0].hi
            case "load":
                return self.tensors.get(e.attr, whole)
            case "assume":
                lo, hi = self.memo[e.args[0].key]
                return max(lo, e.attr[0]), min(hi, e.attr[1])
        if not e.dtype.is_integer:
            return whole
        found = _combined(e, [self.memo[a.key] for a in e.args])
        return found if found is not None and whole[0] <= found[0] and found[1] <= whole[1] else whole


def _combined(e: Expr, args: list[Range]) -> Range | None:
    match e.op:
        case "add":
            return args[0][0] + args[1][0], args[0][1] + args[1][1]
        case "sub":
            return args[0][0] - args[1][1], args[0][1] - args[1][0]
        case "mul":
            corners = [a * b for a in args[0] for b in args[1]]
            return min(corners), max(corners)
        case "neg":
            return -args[0][1], -args[0][0]
        case "abs":
            lo, hi = args[0]
            return (0 if lo <= 0 <= hi else min(abs(lo), abs(hi))), max(abs(lo), abs(hi))
        case "min":
            return min(args[0][0], args[1][0]), min(args[0][1], args[1][1])
        case "max":
            return max(args[0][0], args[1][0]), max(args[0][1], args[1][1])
        case "select":
            return min(args[1][0], args[2][0]), max(args[1][1], args[2][1])
        case "sign":
            return -1, 1
        case "mod" if args[1][0] > 0:
            return 0, args[1][1] - 1
        case "rem" | "div" if args[1][0] > 0:
            most = max(abs(args[0][0]), abs(args[0][1]))
            most = min(most, args[1][1] - 1) if e.op == "rem" else most
            return (0 if args[0][0] >= 0 else -most), most
        case "cast" if not e.args[0].dtype.is_float:
            return args[0]
    return None


def tensor_ranges(program: Program) -> tuple[Facts, list[str]]:
    """Ranges of all integer tensors, which of them to store as i32, and why not the others."""
    facts, refusals = Facts(), []
    ports = {p.tensor for p in (*program.inputs, *program.outputs)}
    fixed = ports | _loop_tensors(program)
    for name, value in program.constants.items():
        if program.tensors[name].dtype.is_integer and value.size and value.dtype.kind in "iu":
            facts.tensors[name] = (int(value.min()), int(value.max()))
    for node in all_nodes(program.nodes):
        if not isinstance(node, Nest):
            continue
        for store in node.stores:
            if store.value.dtype.is_integer and store.tensor not in fixed:
                lo, hi = facts.range(store.value)
                old = facts.tensors.get(store.tensor, (lo, hi))
                facts.tensors[store.tensor] = (min(lo, old[0]), max(hi, old[1]))
    for name, t in program.tensors.items():
        if t.dtype in WIDE:
            reason = _refusal(name, t, facts, ports, fixed)
            if reason is None:
                facts.narrowed.add(name)
            else:
                refusals.append(f"{name}: kept as two words, {reason}")
    return facts, refusals


def _refusal(name: str, t: TensorType, facts: Facts, ports: set[str], fixed: set[str]) -> str | None:
    if name in ports:
        return "it is a graph input or output"
    if name in fixed:
        return "it is carried by a loop"
    if t.place is not None:
        return "it is part of another tensor"
    lo, hi = facts.tensors.get(name, (t.dtype.lo, t.dtype.hi))
    return None if I32.lo <= lo and hi <= I32.hi else f"its range [{lo}, {hi}] does not fit in i32"


def _loop_tensors(program: Program) -> set[str]:
    from onnx2wgsl.ir.program import Guard, Opaque, Scan

    found: set[str] = set()
    for node in all_nodes(program.nodes):
        if isinstance(node, Scan):
            found.update(t for c in node.carried for t in (c.init, c.arg, c.next, c.result))
            found.update(t for s in node.stacked for t in (s.value, s.result))
        elif isinstance(node, Guard):
            found.update(t for result in node.results for t in result)
        elif isinstance(node, Opaque):
            found.update((*node.reads, *node.writes))
    for t in program.tensors.values():
        if t.place is not None:
            found.add(t.place.parent)
    return found


class Narrow(Rewriter):
    """`self(e)` keeps an expression's type; `low(e)` is its low word as i32."""

    def __init__(self, facts: Facts, tensors: dict[str, TensorType]) -> None:
        super().__init__()
        self.facts, self.tensors = facts, tensors
        self.lows: dict[bytes, Expr] = {}

    def as_index(self, e: Expr) -> Expr:
        return self.low(e) if e.dtype in WIDE else self(e)

    def store(self, store: Store) -> Store:
        made = super().store(store)
        if self.tensors[store.tensor].dtype is I32 and store.value.dtype in WIDE:
            return replace(made, value=self.low(store.value))
        return made

    def visit(self, e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op in _COMPARES and e.args[0].dtype in WIDE and all(self.facts.fits(a) for a in e.args):
            return ex.op(e.op, *(self.low(a) for a in e.args))
        if e.op == "cast" and e.args[0].dtype in WIDE:
            return self.cast(e, args)
        if e.dtype in WIDE and e.op not in ("const", "leaf", "acc", "load") and self.facts.fits(e):
            return ex.cast(self.low(e), e.dtype)
        return super().visit(e, args)

    def load(self, e: Expr) -> Expr:
        where = self.indices(e.index)
        if e.attr in self.facts.narrowed:
            return ex.cast(ex.load(e.attr, I32, where), e.dtype)
        return ex.load(e.attr, e.dtype, where)

    def cast(self, e: Expr, args: tuple[Expr, ...]) -> Expr:
        source = e.args[0]
        if e.dtype in WIDE:
            return ex.cast(args[0], e.dtype)
        if e.dtype.is_integer or self.facts.fits(source):
            return ex.cast(self.low(source), e.dtype)
        return ex.cast(args[0], e.dtype)

    def low(self, e: Expr) -> Expr:
        """The low word of a 64-bit expression as i32; its value, where it fits."""
        if e.key not in self.lows:
            self.lows[e.key] = self.low_of(e)
        return self.lows[e.key]

    def low_of(self, e: Expr) -> Expr:
        if e.op == "const":
            return ex.const(e.attr, I32)
        if e.op == "index":
            return ex.index_value(self.index(e.index[0]), I32)
        if e.op == "load" and e.attr in self.facts.narrowed:
            return ex.load(e.attr, I32, self.indices(e.index))
        if e.op in _COMMUTES:
            return ex.op(e.op, *(self.low(a) for a in e.args))
        if e.op == "select":
            return ex.select(self(e.args[0]), self.low(e.args[1]), self.low(e.args[2]))
        if e.op == "assume":
            lo, hi = e.attr
            return ex.assume(self.low(e.args[0]), lo, hi) if I32.lo <= lo and hi <= I32.hi else self.low(e.args[0])
        if e.op == "cast" and not e.args[0].dtype.is_float:
            return self.low_cast(e.args[0])
        if e.op in ("min", "max", "abs", "sign", "div", "rem", "floordiv", "mod") and self.same_in_i32(e):
            return ex.op(e.op, *(self.low(a) for a in e.args))
        return ex.cast(super().__call__(e) if e.op in ("load", "acc", "leaf") else self.wide(e), I32)

    def wide(self, e: Expr) -> Expr:
        """The expression in its own type, without asking again whether it fits."""
        return ex.apply(e.op, tuple(self(a) for a in e.args), e.dtype)

    def same_in_i32(self, e: Expr) -> bool:
        return all(self.facts.fits(a) for a in e.args) and self.facts.fits(e)

    def low_cast(self, source: Expr) -> Expr:
        if source.dtype in WIDE:
            return self.low(source)
        if source.dtype is U32:
            return ex.bitcast(self(source), I32)
        return ex.cast(self(source), I32)


