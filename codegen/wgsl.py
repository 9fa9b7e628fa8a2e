"""Printing kernels as WGSL."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnx2wgsl.errors import escape_name
from onnx2wgsl.ir.dtypes import BOOL, F32, F32X2, I32, U32, U32X2, DType
from onnx2wgsl.ir.expr import Expr, const
from onnx2wgsl.ir.kernel import Assign, Barrier, For, If, Kernel, Let, Stmt, Var, Write, expressions, statements
from onnx2wgsl.ir.plan import Declaration, print_declaration

from .prelude import need

_TYPES = {"f32": "f32", "i32": "i32", "u32": "u32", "bool": "bool", "u32x2": "vec2<u32>", "f32x2": "vec2<f32>",
          "f16": "f16"}  # fmt: skip
_INFIX = {"add": "+", "sub": "-", "mul": "*"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<="}
_LOGIC = {"and": ("&", "&&"), "or": ("|", "||"), "xor": ("^", "!=")}
_HELPED_F32 = {
    "max", "min", "sign", "tanh", "exp", "log", "sqrt", "pow", "erf", "sin", "cos", "tan", "sinh", "cosh", "asinh",
    "acosh", "atanh", "asin", "acos", "atan", "rem", "mod",
}  # fmt: skip
_BUILTIN = {"floor": "floor", "ceil": "ceil", "round": "round", "trunc": "trunc", "abs": "abs",
            "max": "max", "min": "min", "popcount": "countOneBits", "sign": "sign", "atan2": "atan2"}  # fmt: skip


def type_name(dtype: DType) -> str:
    """The WGSL type of a machine type or a vector of one."""
    if dtype.name.endswith("v"):
        element, lanes = dtype.name[:-1].rsplit("x", 1)
        return f"vec{lanes}<{_TYPES[element]}>"
    return _TYPES[dtype.name]


def lanes_of(dtype: DType) -> int:
    return int(dtype.name[:-1].rsplit("x", 1)[1]) if dtype.name.endswith("v") else 1


@dataclass(frozen=True)
class Bound:
    """A buffer as a kernel sees it: its slot, access and WGSL element type (a vector where it is read as vectors)."""

    slot: int
    access: str
    element: DType


def element_types(kernel: Kernel, elements: Mapping[str, DType]) -> dict[str, DType]:
    """For each buffer of a kernel the element type to declare: the widest vector that any access uses."""
    result: dict[str, DType] = {}

    def widen(name: str, dtype: DType) -> None:
        if name in elements:
            known = result.setdefault(name, elements[name])
            result[name] = dtype if lanes_of(dtype) > lanes_of(known) else known

    for e in expressions(kernel.body):
        if e.op == "fetch":
            widen(e.attr, e.dtype)
    for stmt in statements(kernel.body):
        if isinstance(stmt, Write):
            widen(stmt.target, stmt.value.dtype)
    return result


class Printer:
    """Prints one kernel; `bound` says how each of its buffers is declared."""

    def __init__(self, kernel: Kernel, bound: Mapping[str, Bound]) -> None:
        self.kernel, self.bound = kernel, bound
        self.shared = {a.name for a in kernel.shared}

    def statement(self, stmt: Stmt, indent: str) -> list[str]:
        match stmt:
            case Let():
                return [f"{indent}let {stmt.name} = {self.text(stmt.value)};"]
            case Var():
                return [f"{indent}var {stmt.name}: {type_name(stmt.value.dtype)} = {self.text(stmt.value)};"]
            case Assign():
                return [f"{indent}{stmt.name} = {self.text(stmt.value)};"]
            case For():
                name, step = stmt.name, f"{stmt.name}++" if stmt.step == 1 else f"{stmt.name} += {stmt.step}"
                head = f"for (var {name} = {self.text(stmt.start)}; {name} < {self.text(stmt.stop)}; {step}) {{"
                return [indent + head, *self.block(stmt.body, indent + "  "), indent + "}"]
            case If():
                head = f"if ({self.text(stmt.condition)}) {{"
                return [indent + head, *self.block(stmt.body, indent + "  "), indent + "}"]
            case Write():
                return [f"{indent}{self.place(stmt.target, stmt.address, stmt.value.dtype)} = {self.text(stmt.value)};"]
            case Barrier():
                return [f"{indent}workgroupBarrier();"]

    def block(self, body: Sequence[Stmt], indent: str) -> list[str]:
        return [line for stmt in body for line in self.statement(stmt, indent)]

    def place(self, buffer: str, address: Expr, dtype: DType) -> str:
        """An element of a buffer; a scalar of a buffer declared as vectors is one lane."""
        if buffer in self.shared:
            return f"{buffer}[{self.text(address)}]"
        bound = self.bound[buffer]
        lanes = lanes_of(bound.element)
        if lanes_of(dtype) == lanes:
            return f"b{bound.slot}[{self.text(address)}]"
        if address.op == "const":
            return f"b{bound.slot}[{address.attr // lanes}][{address.attr % lanes}]"
        where = self.text(address)
        return f"b{bound.slot}[u32({where}) / {lanes}u][u32({where}) % {lanes}u]"

    def text(self, e: Expr) -> str:
        match e.op:
            case "const":
                return literal(e)
            case "var":
                return str(e.attr)
            case "fetch":
                return self.place(e.attr, e.args[0], e.dtype)
            case "lane":
                return f"{self.text(e.args[0])}.{'xyzw'[e.args[1].attr]}"
            case "vec":
                return f"{type_name(e.dtype)}({', '.join(self.text(a) for a in e.args)})"
        return self.operator(e, [self.text(a) for a in e.args])

    def operator(self, e: Expr, args: list[str]) -> str:
        op, dtype = e.op, e.args[0].dtype
        scalar = dtype.kind
        if dtype is F32X2:
            return double_float(op, args)
        if op in _INFIX and dtype is not U32X2:
            return f"({args[0]} {_INFIX[op]} {args[1]})"
        if op in _LOGIC:
            return f"({args[0]} {_LOGIC[op][dtype is BOOL]} {args[1]})"
        if op in _COMPARE:
            return self.comparison(op, dtype, args)
        if op == "select":
            return f"select({args[2]}, {args[1]}, {args[0]})"
        if op == "cast":
            return conversion(args[0], dtype, e.dtype)
        if op == "bitcast":
            return f"bitcast<{type_name(e.dtype)}>({args[0]})"
        if op == "neg":
            return f"(-{args[0]})" if dtype is not U32 else f"(0u - {args[0]})"
        if op == "not":
            return f"(!{args[0]})" if dtype is BOOL else f"(~{args[0]})"
        if op in ("div", "rem") and scalar != "float":
            return integer_division(op, e, args)
        if op == "div":
            return f"({args[0]} / {args[1]})"
        if op in ("shl", "shr"):
            return self.shift(op, dtype, e.args[1], args)
        return call(op, dtype, args)

    def comparison(self, op: str, dtype: DType, args: list[str]) -> str:
        if dtype is U32X2:
            equal = f"all({args[0]} == {args[1]})"
            return equal if op == "eq" else f"!{equal}"
        if dtype is not F32:
            return f"({args[0]} {_COMPARE[op]} {args[1]})"
        return f"(!eq_f32({args[0]}, {args[1]}))" if op == "ne" else f"{op}_f32({args[0]}, {args[1]})"

    def shift(self, op: str, dtype: DType, amount: Expr, args: list[str]) -> str:
        sign = "<<" if op == "shl" else ">>"
        count = args[1] if amount.dtype is U32 else f"u32({args[1]})"
        if amount.op == "const" and 0 <= amount.attr < 32:
            return f"({args[0]} {sign} {amount.attr}u)"
        return f"{op}_{type_name(dtype)}({args[0]}, {count})"


def double_float(op: str, args: list[str]) -> str:
    """An operator of double-floats: a function of the prelude."""
    if op == "ne":
        return f"!eq_f32x2({', '.join(args)})"
    return f"{op}({args[0]})" if op == "to_f64" or op.startswith("f32x2to") else f"{op}_f32x2({', '.join(args)})"


def integer_division(op: str, e: Expr, args: list[str]) -> str:
    """Truncating division; a constant divisor other than 0 and -1 needs no guard."""
    if e.args[1].op == "const" and e.args[1].attr not in (0, -1):
        return f"({args[0]} {'/' if op == 'div' else '%'} {args[1]})"
    return f"{op}_{type_name(e.args[0].dtype)}({args[0]}, {args[1]})"


def call(op: str, dtype: DType, args: list[str]) -> str:
    """An operator as a call of a builtin or of a function of the prelude."""
    inner = ", ".join(args)
    if op == "isnan":
        return f"is_nan({inner})"
    if op == "isinf":
        return f"is_inf({inner})"
    if op == "pair":
        return f"vec2<u32>({inner})"
    if op in ("lo", "hi"):
        return f"{args[0]}.{'x' if op == 'lo' else 'y'}"
    if op == "mod" and dtype is U32:
        return f"rem_u32({inner})"
    if op == "floordiv" and dtype is U32:
        return f"div_u32({inner})"
    if op == "floordiv" and dtype is F32:
        return f"floor({args[0]} / {args[1]})"
    if op in ("floordiv", "mod") and dtype is I32:
        return f"{op}_i32({inner})"
    if dtype is F32 and op in _HELPED_F32:
        return f"{op}_f32({inner})"
    if op in _BUILTIN:
        return f"{_BUILTIN[op]}({inner})"
    return f"{op}({inner})"


def conversion(text: str, source: DType, target: DType) -> str:
    """A cast between machine types."""
    if target is BOOL:
        return f"({text} != {'0.0' if source is F32 else '0u' if source is U32 else '0'})"
    if source is F32 and target in (I32, U32):
        return f"f32_to_{target.name}({text})"
    if source is BOOL:
        one, nil = {"f32": ("1.0", "0.0"), "i32": ("1", "0"), "u32": ("1u", "0u")}[target.name]
        return f"select({nil}, {one}, {text})"
    return f"{type_name(target)}({text})"


def literal(e: Expr) -> str:
    """A constant; values that are not finite are hidden from the compilers' constant folding."""
    value, dtype = e.attr, e.dtype
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype is U32X2:
        return f"vec2<u32>({value & 0xFFFFFFFF}u, {value >> 32}u)"
    if dtype is U32:
        return f"{value}u"
    if dtype is I32:
        return str(value) if value > -(1 << 31) else "(-2147483647 - 1)"
    if dtype is F32X2:
        return double_literal(value)
    if math.isnan(value):
        return "bitcast<f32>(nan_bits)"
    if math.isinf(value):
        return "bitcast<f32>(inf_bits)" if value > 0 else "(-bitcast<f32>(inf_bits))"
    text = repr(float(value))
    text = text if any(c in text for c in ".e") else text + ".0"
    return f"({text}f)" if value < 0 or math.copysign(1, value) < 0 else f"{text}f"


def double_literal(value: float) -> str:
    """A constant as the sum of two f32; one beyond their range as infinity."""
    with np.errstate(all="ignore"):
        first = np.float32(value)
        second = np.float32(value - float(first)) if np.isfinite(first) else np.float32(0)
    return f"vec2<f32>({', '.join(literal(const(part, F32)) for part in (first, second))})"


def _one_per_slot(bound: Mapping[str, Bound]) -> dict[str, Bound]:
    """Buffers that share a slot share its declaration: the widest."""
    widest: dict[int, Bound] = {}
    for b in bound.values():
        known = widest.setdefault(b.slot, b)
        widest[b.slot] = b if lanes_of(b.element) > lanes_of(known.element) else known
    return {name: widest[b.slot] for name, b in bound.items()}


def print_kernel(
    kernel: Kernel, bound: Mapping[str, Bound], nodes: Sequence[str], uniforms: Sequence[str], uniform_slot: int
) -> tuple[str, tuple[Declaration, ...]]:
    """The WGSL text of a kernel and its declarations by slot."""
    bound = _one_per_slot(bound)
    printer = Printer(kernel, bound)
    lines = printer.block(kernel.body, "  ")
    declarations = [
        Declaration(b.slot, "storage", b.access, f"array<{type_name(b.element)}>")
        for b in sorted(set(bound.values()), key=lambda b: b.slot)
    ]
    if uniforms:
        declarations.append(
            Declaration(uniform_slot, "uniform", "uniform", "Uniforms", tuple((f, "i32") for f in uniforms))
        )
    shared = [f"var<workgroup> {a.name}: array<{type_name(a.dtype)}, {a.count}>;" for a in kernel.shared]
    size = ", ".join(map(str, kernel.workgroup_size))
    text = [
        *(f"// {escape_name(n)}" for n in nodes[:32]),
        f"// {kernel.schedule}",
        *(print_declaration(d) for d in declarations),
        *shared,
        *need(lines),
        "",
        f"@compute @workgroup_size({size})",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {",
        *lines,
        "}",
        "",
    ]
    return "\n".join(text), tuple(declarations)
