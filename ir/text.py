"""The text forms of tensor programs (L1) and kernels (L2), printing. `parse.py` reads them back.

A program is a list of tensors, ports and nodes, a nest a block:

    tensor "x": f32[3, 4]
    tensor "y": f32[3]
    input "X" = "x"
    output "Y" = "y"
    nest (i0: 3) from "ReduceSum_0" {
      a0 = reduce (r0: 4) [0.0:f32 | add(a.0:f32, b.0:f32)]: "x"[i0, r0]
      store "y"[i0] = acc(a0):f32
    }

Indices are infix, expressions functional. A type follows what does not imply it. An expression that is used more than
once gets a name of its own, `%0 = …`, before the line that uses it first. Names of tensors, ports and nodes are quoted
as in JSON. A constant of at most 16 elements shows its values, a larger one a fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import expr as ex
from . import index as ix
from .dtypes import BOOL, DType
from .expr import Expr
from .index import Index
from .kernel import Assign, Barrier, For, If, Kernel, KernelProgram, KernelStep, Let, Stmt, Var, Write, roots
from .ops import OPS, result_dtype
from .program import (
    Attention,
    Axis,
    Contract,
    Guard,
    Nest,
    Node,
    Opaque,
    Port,
    Program,
    Reduce,
    Scan,
    Step,
    Store,
    TensorType,
)

MOST_VALUES = 16
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def print_program(program: Program) -> str:
    """The text of a tensor program; `parse_program` gives an equal program back."""
    lines = _header(program.tensors, program.constants, program.inputs, program.outputs)
    printer = Printer(program.tensors)
    for node in program.nodes:
        lines.extend(printer.node(node))
    return "\n".join(lines) + "\n"


def print_node(node: Node, tensors: Mapping[str, TensorType] | None = None) -> str:
    """The text of one node."""
    return "\n".join(Printer(tensors or {}).node(node))


def print_kernels(program: KernelProgram) -> str:
    """The text of a kernel program; `parse_kernels` gives an equal program back."""
    lines = _header(program.tensors, program.constants, program.inputs, program.outputs)
    for step in program.steps:
        lines.extend(_kernel_step(step))
    return "\n".join(lines) + "\n"


def print_kernel(kernel: Kernel) -> str:
    """The text of one kernel."""
    return "\n".join(_kernel(kernel))


def same_program(a: Program, b: Program) -> bool:
    """Whether two programs are equal, constants bit for bit."""
    parts = ("tensors", "inputs", "outputs", "nodes")
    return all(getattr(a, p) == getattr(b, p) for p in parts) and _same_constants(a.constants, b.constants)


def same_kernels(a: KernelProgram, b: KernelProgram) -> bool:
    """Whether two kernel programs are equal, constants bit for bit."""
    parts = ("tensors", "inputs", "outputs", "steps")
    return all(getattr(a, p) == getattr(b, p) for p in parts) and _same_constants(a.constants, b.constants)


def _same_constants(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    def same(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
        return (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())

    return a.keys() == b.keys() and all(same(np.asarray(a[n]), np.asarray(b[n])) for n in a)


def quoted(name: str) -> str:
    return json.dumps(name)


def names(items: Iterable[str]) -> str:
    return ", ".join(map(quoted, items))


def plain(name: str) -> str:
    """The name of an axis, step or variable: bare where it is an identifier."""
    return name if _PLAIN_NAME.fullmatch(name) and name not in ("value", "param") else quoted(name)


def fingerprint(value: np.ndarray[Any, Any]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=8).hexdigest()


def number(value: Any, dtype: DType) -> str:
    """A constant's value; floats in the shortest form that reads back exactly."""
    if dtype is BOOL:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))
    value = float(value)
    if math.isnan(value):
        return "+nan"
    if math.isinf(value):
        return "+inf" if value > 0 else "-inf"
    return repr(value)


def _header(
    tensors: Mapping[str, TensorType], constants: Mapping[str, Any], inputs: Sequence[Port], outputs: Sequence[Port]
) -> list[str]:
    lines = [f"tensor {quoted(n)}: {_type(t)}{_value(t, constants.get(n))}" for n, t in tensors.items()]
    lines.extend(f"input {quoted(p.name)} = {quoted(p.tensor)}" for p in inputs)
    lines.extend(f"output {quoted(p.name)} = {quoted(p.tensor)}" for p in outputs)
    return lines


def _type(t: TensorType) -> str:
    text = str(t)
    if t.place is not None:
        text += f" in {quoted(t.place.parent)} axis {t.place.axis} offset {t.place.offset}"
    if t.length is not None:
        text += f" length {quoted(t.length)} axis {t.length_axis}"
    return text


def _value(t: TensorType, value: Any) -> str:
    if value is None:
        return ""
    array = np.asarray(value)
    if array.size <= MOST_VALUES:
        texts = [number(v, t.dtype) for v in array.reshape(-1)]
        back = [float(x) if t.dtype.is_float else v for x, v in zip(texts, array.reshape(-1), strict=True)]
        if np.asarray(back).astype(array.dtype).tobytes() == array.tobytes():
            return f" = [{', '.join(texts)}]"
    return f" = hash {quoted(fingerprint(array))}"


def _axes(axes: Iterable[Axis]) -> str:
    return "(" + ", ".join(f"{plain(a.name)}: {a.size}" for a in axes) + ")"


def _from(nodes: Sequence[str]) -> str:
    return f" from {names(nodes)}" if nodes else ""


class Printer:
    """Prints nodes; `sizes` are the axes in scope, `shared` the names of expressions that are used more than once."""

    def __init__(self, tensors: Mapping[str, TensorType]) -> None:
        self.tensors = tensors
        self.sizes: dict[str, int] = {}
        self.shared: dict[bytes, str] = {}
        self.repeated: set[bytes] = set()

    def node(self, node: Node) -> list[str]:
        match node:
            case Nest():
                return self.nest(node)
            case Scan():
                return self.scan(node)
            case Guard():
                return self.guard(node)
            case Attention():
                return self.attention(node)
            case Opaque():
                return self.opaque(node)

    def begin(self, exprs: Sequence[Expr], axes: Iterable[Axis] = ()) -> None:
        """Starts a block: counts the uses of the expressions in it."""
        uses: Counter[bytes] = Counter(e.key for e in exprs)
        for e in ex.walk(*exprs):
            uses.update(c.key for c in ex.children(e))
        self.repeated = {e.key for e in ex.walk(*exprs) if uses[e.key] > 1 and _worth_a_name(e)}
        self.shared = {}
        self.sizes = {a.name: a.size for a in axes}

    def nest(self, nest: Nest) -> list[str]:
        monoids = [e for s in nest.steps if isinstance(s, Reduce) for e in (*s.monoid.identity, *s.monoid.combine)]
        self.begin([*monoids, *_nest_roots(nest)], nest.space)
        lines = [f"nest {_axes(nest.space)}{_from(nest.nodes)} {{"]
        for step in nest.steps:
            lines.extend(self.step(step))
        for store in nest.stores:
            lines.extend(self.store(store))
        return [*lines, "}"]

    def step(self, step: Step) -> list[str]:
        exprs = step.exprs if isinstance(step, Contract) else (*step.monoid.identity, *step.monoid.combine, *step.body)
        lets = self.lets(exprs)
        outer, self.sizes = self.sizes, self.sizes | {a.name: a.size for a in step.axes}
        head = f"  {plain(step.name)} = "
        if isinstance(step, Contract):
            text = f"contract {step.dtype} {_axes(step.axes)}: {self.expr(step.lhs)}, {self.expr(step.rhs)}"
        else:
            monoid = f"[{self.exprs(step.monoid.identity)} | {self.exprs(step.monoid.combine)}]"
            text = f"reduce {_axes(step.axes)} {monoid}: {self.exprs(step.body)}"
        self.sizes = outer
        return [*lets, head + text]

    def store(self, store: Store) -> list[str]:
        inside = [e for i in store.index for e in ex.index_exprs(i)]
        lets = self.lets((store.value, *inside))
        outer, self.sizes = self.sizes, self.sizes | {a.name: a.size for a in store.axes}
        axes = f"{_axes(store.axes)} " if store.axes else ""
        where = ", ".join(f"{plain(n)} in {lo}..{hi}" for n, lo, hi in store.domain)
        where = f"where {where}: " if where else ""
        target = f"{quoted(store.tensor)}[{', '.join(map(self.index, store.index))}]"
        text = f"  store {axes}{where}{target} = {self.expr(store.value)}"
        self.sizes = outer
        return [*lets, text]

    def scan(self, scan: Scan) -> list[str]:
        cond = f" while {quoted(scan.cond)}" if scan.cond is not None else ""
        lines = [f"scan {quoted(scan.step)} trip {scan.trip}{cond}{_from(scan.nodes)} {{"]
        self.begin(())
        lines.extend(f"  carry {' -> '.join(map(quoted, (c.init, c.arg, c.next, c.result)))}" for c in scan.carried)
        for s in scan.stacked:
            lines += [f"  stack {quoted(s.value)} -> {quoted(s.result)} axis {s.axis} at {self.index(s.index)}"]
        return [*lines, *self.body(scan.body, "  "), "}"]

    def guard(self, guard: Guard) -> list[str]:
        lines = [f"guard {quoted(guard.flag)}{_from(guard.nodes)} {{"]
        lines.extend(f"  result {quoted(r)} = {quoted(a)}, {quoted(b)}" for r, a, b in guard.results)
        then = ["  then {", *self.body(guard.body, "    "), "  }"]
        return [*lines, *then, "  else {", *self.body(guard.otherwise, "    "), "  }", "}"]

    def body(self, nodes: Iterable[Node], indent: str) -> Iterator[str]:
        for node in nodes:
            for line in self.node(node):
                yield indent + line

    def attention(self, node: Attention) -> list[str]:
        parts = {"q": node.q, "k": node.k, "v": node.v, "score": node.score}
        own = (node.key, node.inner, node.value_axis)
        inside = [e for i in node.store.index for e in ex.index_exprs(i)]
        self.begin([*parts.values(), node.store.value, *inside], (*node.space, *own))
        axes = f"{_axes(node.space)} key {_axes(own[:1])} inner {_axes(own[1:2])} value {_axes(own[2:])}"
        lines = [f"attention {axes}{_from(node.nodes)} {{"]
        for name, e in parts.items():
            lines.extend(self.lets((e,)))
            lines.append(f"  {name} = {self.expr(e)}")
        return [*lines, *self.store(node.store), "}"]

    def opaque(self, node: Opaque) -> list[str]:
        self.begin([e for _, e in node.exprs])
        lines = [f"opaque {quoted(node.template)}{_from(node.nodes)} {{"]
        lines.extend(f"  param {quoted(n)} = {json.dumps(encode_param(v))}" for n, v in node.params)
        for name, e in node.exprs:
            lines.extend(self.lets((e,)))
            lines.append(f"  expr {quoted(name)} = {self.expr(e)}")
        lines.extend([f"  reads {names(node.reads)}"] if node.reads else [])
        lines.extend([f"  writes {names(node.writes)}"] if node.writes else [])
        return [*lines, "}"]

    def lets(self, exprs: Sequence[Expr], indent: str = "  ") -> list[str]:
        """Lines that name the shared expressions below `exprs` which have no name yet."""
        lines = []
        for e in ex.walk(*exprs):
            if e.key in self.repeated and e.key not in self.shared:
                text = self.expr(e)
                self.shared[e.key] = name = f"%{len(self.shared)}"
                lines.append(f"{indent}{name} = {text}")
        return lines

    def exprs(self, exprs: Iterable[Expr]) -> str:
        return ", ".join(map(self.expr, exprs))

    def expr(self, e: Expr) -> str:
        if e.key in self.shared:
            return self.shared[e.key]
        match e.op:
            case "const":
                return number(e.attr, e.dtype) + ("" if e.dtype is BOOL else f":{e.dtype}")
            case "load":
                declared = self.tensors.get(e.attr)
                suffix = "" if declared is not None and declared.dtype is e.dtype else f":{e.dtype}"
                return f"{quoted(e.attr)}[{', '.join(map(self.index, e.index))}]{suffix}"
            case "index":
                return f"index({self.index(e.index[0])}):{e.dtype}"
            case "acc":
                step, component = e.attr
                return f"acc({plain(step)}{f', {component}' if component else ''}):{e.dtype}"
            case "leaf":
                return f"{e.attr[0]}.{e.attr[1]}:{e.dtype}"
            case "assume":
                return f"assume({self.expr(e.args[0])}, {e.attr[0]}, {e.attr[1]})"
            case "var":
                return f"{e.attr}:{e.dtype}"
            case "fetch":
                return f"{quoted(e.attr)}[{self.expr(e.args[0])}]:{e.dtype}"
        return f"{e.op}({self.exprs(e.args)}){'' if is_implied(e.op, e.args, e.dtype) else f':{e.dtype}'}"

    def index(self, i: Index) -> str:
        text = ""
        for atom, c in i.terms:
            factor = "" if abs(c) == 1 else f"{abs(c)}*"
            sign = (" - " if c < 0 else " + ") if text else ("-" if c < 0 else "")
            text += f"{sign}{factor}{self.atom(atom)}"
        if not text:
            return str(i.const)
        return text + (f" {'-' if i.const < 0 else '+'} {abs(i.const)}" if i.const else "")

    def atom(self, atom: ix.Atom) -> str:
        match atom:
            case ix.Var():
                return plain(atom.name) + ("" if self.sizes.get(atom.name) == atom.size else f"<{atom.size}>")
            case ix.Div():
                return f"({self.index(atom.num)} / {atom.den})"
            case ix.Mod():
                return f"({self.index(atom.num)} % {atom.den})"
            case ix.Value():
                return f"value({self.expr(atom.expr)}, {atom.lo}, {atom.hi})"
            case ix.Param():
                return f"param({quoted(atom.name)}, {atom.lo}, {atom.hi})"
        raise TypeError(atom)


def _nest_roots(nest: Nest) -> list[Expr]:
    roots_ = [e for s in nest.steps for e in s.exprs]
    for store in nest.stores:
        roots_.extend((store.value, *(e for i in store.index for e in ex.index_exprs(i))))
    return roots_


def _worth_a_name(e: Expr) -> bool:
    if e.op in ("const", "acc", "leaf", "var"):
        return False
    return bool(e.args) or any(True for i in e.index for _ in ex.index_exprs(i))


def is_implied(op: str, args: Sequence[Expr], dtype: DType) -> bool:
    """Whether an operator and its operands say what type it gives."""
    info = OPS.get(op)
    return info is not None and info.result != "attr" and result_dtype(op, tuple(a.dtype for a in args), None) is dtype


def encode_param(value: Any) -> Any:
    """A template's parameter as JSON; tuples become lists, element types objects."""
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, (tuple, list)):
        return [encode_param(v) for v in value]
    return value


def _kernel_step(step: KernelStep) -> list[str]:
    lines = [f"dispatch{' stencil' if step.stencil else ''}{_from(step.nodes)} {{"]
    lines.extend([f"  reads {names(step.reads)}"] if step.reads else [])
    lines.extend([f"  writes {names(step.writes)}"] if step.writes else [])
    lines.extend(f"  uniform {quoted(n)} = {v}" for n, v in step.uniforms)
    lines.extend(f"  rename {quoted(a)} = {quoted(b)}" for a, b in step.rename.items())
    for kernel in step.variants:
        lines.extend("  " + line for line in _kernel(kernel))
    return [*lines, "}"]


def _kernel(kernel: Kernel) -> list[str]:
    prefer = "".join(f" prefer {quoted(k)} = {quoted(v)}" for k, v in kernel.prefer)
    size, grid = (", ".join(map(str, s)) for s in (kernel.workgroup_size, kernel.grid))
    lines = [f"kernel {quoted(kernel.schedule)} size ({size}) grid ({grid}){prefer} {{"]
    lines.extend(f"  shared {plain(a.name)}: {a.dtype}[{a.count}]" for a in kernel.shared)
    printer = Printer({})
    for stmt in kernel.body:
        lines.extend(_statement(printer, stmt, "  "))
    return [*lines, "}"]


def _statement(printer: Printer, stmt: Stmt, indent: str) -> list[str]:
    printer.begin(roots(stmt))
    lines = printer.lets(roots(stmt), indent)
    match stmt:
        case Let():
            return [*lines, f"{indent}let {stmt.name} = {printer.expr(stmt.value)}"]
        case Var():
            return [*lines, f"{indent}var {stmt.name} = {printer.expr(stmt.value)}"]
        case Assign():
            return [*lines, f"{indent}{stmt.name} = {printer.expr(stmt.value)}"]
        case Write():
            target = f"{quoted(stmt.target)}[{printer.expr(stmt.address)}]"
            return [*lines, f"{indent}{target} = {printer.expr(stmt.value)}"]
        case Barrier():
            return [f"{indent}barrier"]
        case For():
            span = f"{printer.expr(stmt.start)} to {printer.expr(stmt.stop)}"
            step = f" step {stmt.step}" if stmt.step != 1 else ""
            head = f"{indent}for {stmt.name} = {span}{step} {{"
        case If():
            head = f"{indent}if {printer.expr(stmt.condition)} {{"
    inner = [line for s in stmt.body for line in _statement(printer, s, indent + "  ")]
    return [*lines, head, *inner, f"{indent}}}"]
