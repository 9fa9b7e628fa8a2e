"""split-int64: rewrites what is left of i64 and u64 into pairs of u32 words, exact in all 64 bits.

A pair is the machine type u32x2, `vec2<u32>` with the low word first: the bytes of a little-endian int64. Bitwise
operators, `select` and equality work on pairs as they are; the others become the two-word operators of `ops.py` or are
spelled in words. A contraction of 64-bit operands becomes a reduction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.builder import sum_of
from onnx2wgsl.ir.dtypes import BOOL, F32, F32X2, F64, I32, I64, U32, U32X2, U64, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.program import Contract, Program, Reduce, Step
from onnx2wgsl.ir.rewrite import Rewriter

from .base import Pass, PassResult

WIDE = (I64, U64)
_DIRECT = {"add": "add64", "sub": "sub64", "mul": "mul64"}
_SIGNED = {"div": "sdiv64", "rem": "srem64", "shr": "sar64"}
_UNSIGNED = {"div": "udiv64", "rem": "urem64", "shr": "shr64", "floordiv": "udiv64", "mod": "urem64"}


@dataclass(frozen=True)
class SplitInt64(Pass[Program, Program]):
    name: ClassVar[str] = "split-int64"

    def run(self, program: Program) -> PassResult[Program]:
        ports = {p.tensor for p in (*program.inputs, *program.outputs)}
        tensors, constants = dict(program.tensors), dict(program.constants)
        count = 0
        for name, t in program.tensors.items():
            if t.dtype in WIDE and name not in ports:
                tensors[name] = replace(t, dtype=U32X2)
                count += 1
                if name in constants:
                    constants[name] = np.ascontiguousarray(constants[name]).view(np.uint64)
        rewriter = Split()
        nodes = tuple(rewriter.node(n) for n in program.nodes)
        result = replace(program, tensors=tensors, constants=constants, nodes=nodes)
        return PassResult(result, count > 0 or nodes != program.nodes, {"tensors": count})


class Split(Rewriter):
    def step(self, step: Step) -> Step:
        if isinstance(step, Contract) and step.dtype in WIDE:
            product = ex.cast(step.lhs, step.dtype) * ex.cast(step.rhs, step.dtype)
            step = Reduce(step.name, step.axes, sum_of(step.dtype), (product,))
        return super().step(step)

    def visit(self, e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op == "assume":
            return args[0] if e.dtype in WIDE else ex.assume(args[0], *e.attr)
        if e.op == "cast" and (e.dtype in WIDE or e.args[0].dtype in WIDE):
            return cast(args[0], e.args[0].dtype, e.dtype)
        if e.op == "bitcast" and e.dtype in WIDE:
            return ex.bitcast(args[0], U32X2)
        if e.op in ("lt", "le") and e.args[0].dtype in WIDE:
            return less(args[0], args[1], e.args[0].dtype, e.op)
        if e.dtype in WIDE:
            return self.wide(e, args)
        return super().visit(e, args)

    def wide(self, e: Expr, args: tuple[Expr, ...]) -> Expr:
        signed = e.dtype is I64
        match e.op:
            case "const":
                return ex.const(e.attr & 0xFFFFFFFFFFFFFFFF, U32X2)
            case "load":
                return ex.load(e.attr, U32X2, self.indices(e.index))
            case "index":
                return extend(ex.index_value(self.index(e.index[0]), I32))
            case "acc":
                return ex.acc(e.attr[0], U32X2, e.attr[1])
            case "leaf":
                return ex.leaf(e.attr[0], U32X2, e.attr[1])
            case "add" | "sub" | "mul":
                return ex.op(_DIRECT[e.op], *args)
            case "neg":
                return negate(args[0])
            case "min" | "max":
                first = less(args[0], args[1], e.dtype, "lt")
                return ex.select(first, *(args if e.op == "min" else args[::-1]))
            case "abs":
                return ex.select(is_negative(args[0]), negate(args[0]), args[0]) if signed else args[0]
            case "sign":
                positive = ex.select(args[0].equals(_int(0)), _int(0), _int(1))
                return ex.select(is_negative(args[0]), _int(-1), positive) if signed else positive
            case "shl":
                return ex.op("shl64", args[0], amount(args[1]))
            case "shr":
                return ex.op(_SIGNED["shr"] if signed else _UNSIGNED["shr"], args[0], amount(args[1]))
            case "floordiv" | "mod" if signed:
                return floor_division(e.op, *args)
            case "div" | "rem" | "floordiv" | "mod":
                return ex.op((_SIGNED if signed else _UNSIGNED)[e.op], *args)
            case "popcount":
                count = ex.op("popcount", ex.op("lo", args[0])) + ex.op("popcount", ex.op("hi", args[0]))
                return ex.op("pair", count, ex.const(0, U32))
        return ex.apply(e.op, args, U32X2)


def _int(value: int) -> Expr:
    return ex.const(value & 0xFFFFFFFFFFFFFFFF, U32X2)


def extend(x: Expr) -> Expr:
    """An i32 as a pair, its sign extended."""
    high = ex.op("shr", x, ex.const(31, I32))
    return ex.op("pair", ex.bitcast(x, U32), ex.bitcast(high, U32))


def negate(x: Expr) -> Expr:
    return ex.op("sub64", _int(0), x)


def is_negative(x: Expr) -> Expr:
    return ex.bitcast(ex.op("hi", x), I32) < 0


def amount(n: Expr) -> Expr:
    """A shift count as u32; anything above 63 stays above 63."""
    return (
        ex.select(ex.op("hi", n).equals(0), ex.op("lo", n), ex.const(64, U32)) if n.dtype is U32X2 else ex.cast(n, U32)
    )


def less(a: Expr, b: Expr, dtype: DType, op: str) -> Expr:
    """a < b or a <= b of pairs."""
    ah, bh = ex.op("hi", a), ex.op("hi", b)
    same = ah.equals(bh)
    if dtype is I64:
        ah, bh = ex.bitcast(ah, I32), ex.bitcast(bh, I32)
    return (ah < bh) | (same & ex.op(op, ex.op("lo", a), ex.op("lo", b)))


def floor_division(op: str, a: Expr, b: Expr) -> Expr:
    """Quotient or remainder that round to minus infinity."""
    rest = ex.op("srem64", a, b)
    crosses = ~rest.equals(_int(0)) & (is_negative(rest) ^ is_negative(b))
    if op == "mod":
        return ex.select(crosses, ex.op("add64", rest, b), rest)
    quotient = ex.op("sdiv64", a, b)
    return ex.select(crosses, ex.op("sub64", quotient, _int(1)), quotient)


def cast(x: Expr, source: DType, target: DType) -> Expr:
    """ONNX Cast where source or target is a 64-bit integer, which `x` and the result hold as a pair."""
    if source in WIDE and target in WIDE:
        return x
    if source in WIDE:
        return _from_pair(x, source, target)
    if source is BOOL or source.kind == "uint":
        return ex.op("pair", ex.cast(x, U32), ex.const(0, U32))
    if source.kind == "int":
        return extend(ex.cast(x, I32))
    if source is F64:
        return ex.op("f32x2tos64" if target is I64 else "f32x2tou64", ex.cast(x, F32X2))
    return ex.op("f32tos64" if target is I64 else "f32tou64", ex.cast(x, F32))


def _from_pair(x: Expr, source: DType, target: DType) -> Expr:
    if target is BOOL:
        return ~x.equals(_int(0))
    if target is F64:
        return ex.cast(ex.op("s64tof32x2" if source is I64 else "u64tof32x2", x), F64)
    if target.is_float:
        return ex.cast(ex.op("s64tof32" if source is I64 else "u64tof32", x), target)
    low = ex.op("lo", x)
    return low if target is U32 else ex.cast(ex.bitcast(low, I32), target)
