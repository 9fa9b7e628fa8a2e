"""From L1 expressions to L2 statements: every sub-expression goes to the outermost scope that binds its variables.

A scope is a point in the statement tree (the kernel, a loop) with the names that become known there. Emitting an
expression walks its graph once; loads, values used more than once, and values that an outer scope can already compute
get a name there, all else is printed in place. Partial addresses are hoisted the same way: the terms of an affine sum
are added up scope by scope, from the outermost in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.dtypes import BOOL, F32, F32X2, F64, I32, U32, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.kernel import Assign, For, If, Let, Stmt, Var, Write
from onnx2wgsl.ir.program import TensorType

from .storage import address, root, storage_of


@dataclass
class Scope:
    names: set[str]
    stmts: list[Stmt] = field(default_factory=list)
    memo: dict[bytes, Expr] = field(default_factory=dict)


class Emitter:
    """Builds the statements of one kernel."""

    def __init__(self, tensors: Mapping[str, TensorType]) -> None:
        self.tensors = tensors
        self.scopes: list[Scope] = [Scope(set())]
        self.volatile: set[str] = set()
        self.uses: Counter[bytes] = Counter()
        self.counter = 0

    @property
    def depth(self) -> int:
        return len(self.scopes) - 1

    @property
    def body(self) -> tuple[Stmt, ...]:
        return tuple(self.scopes[0].stmts)

    def fresh(self, prefix: str = "t") -> str:
        self.counter += 1
        return f"{prefix}{self.counter - 1}"

    def append(self, stmt: Stmt) -> None:
        self.scopes[-1].stmts.append(stmt)

    def bind(self, *names: str) -> None:
        """Makes names (defined by statements of the caller) known in the current scope."""
        self.scopes[-1].names.update(names)

    def let(self, value: Expr, name: str | None = None) -> Expr:
        """Names an L2 value in the current scope."""
        name = name or self.fresh()
        self.append(Let(name, value))
        self.bind(name)
        return ex.variable(name, value.dtype)

    def var(self, value: Expr, prefix: str = "v") -> Expr:
        """Declares a mutable variable; expressions over it are never moved or shared."""
        name = self.fresh(prefix)
        self.append(Var(name, value))
        self.bind(name)
        self.volatile.add(name)
        return ex.variable(name, value.dtype)

    def assign(self, target: Expr, value: Expr) -> None:
        self.append(Assign(target.attr, value))

    def freeze(self, target: Expr) -> Expr:
        """The current value of a mutable variable under a name of its own."""
        return self.let(target)

    @contextmanager
    def loop(self, name: str, start: Expr | int, stop: Expr | int, step: int = 1) -> Iterator[Expr]:
        """A loop whose variable is a scope of its own."""
        lower, upper = _i32(start), _i32(stop)
        self.scopes.append(Scope({name}))
        yield ex.variable(name, I32)
        scope = self.scopes.pop()
        self.append(For(name, lower, upper, step, tuple(scope.stmts)))

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """Statements under a condition (an L2 value); no condition where it always holds."""
        self.scopes.append(Scope(set()))
        yield
        scope = self.scopes.pop()
        if condition == ex.TRUE:
            self.scopes[-1].stmts.extend(scope.stmts)
        elif scope.stmts:
            self.append(If(condition, tuple(scope.stmts)))

    def level(self, free: Iterable[str]) -> int:
        """The outermost scope in which all the names are known."""
        pending = set(free)
        for depth, scope in enumerate(self.scopes):
            pending -= scope.names
            if not pending:
                return depth
        raise KeyError(f"names {sorted(pending)} are not bound in this kernel")

    def values(self, *roots: Expr) -> list[Expr]:
        """Emits L1 expressions; their leaves are bound variables."""
        self.uses = Counter()
        for node in ex.walk(*roots):
            for child in ex.children(node):
                self.uses[child.key] += 1
        return [self.value(r) for r in roots]

    def value(self, e: Expr) -> Expr:
        if e.op in ("const", "var"):
            return e
        if e.op == "assume":
            return self.value(e.args[0])
        level = self.level(e.free)
        found = self.scopes[level].memo.get(e.key)
        if found is not None:
            return found
        built = self.build(e)
        if built.op in ("const", "var") or not self.volatile.isdisjoint(e.free):
            return built
        if level < self.depth or self.uses[e.key] > 1 or e.op == "load":
            built = self.name_at(level, built)
            self.scopes[level].memo[e.key] = built
        return built

    def name_at(self, level: int, value: Expr) -> Expr:
        """Names a value in an outer scope."""
        scope = self.scopes[level]
        name = self.fresh()
        scope.stmts.append(Let(name, value))
        scope.names.add(name)
        return ex.variable(name, value.dtype)

    def build(self, e: Expr) -> Expr:
        match e.op:
            case "index":
                return self.converted(self.index(e.index[0]), e.dtype)
            case "load":
                return self.load(e)
            case "fetch":
                return e
        return ex.machine(e.op, tuple(self.value(a) for a in e.args), e.dtype)

    def converted(self, value: Expr, dtype: DType) -> Expr:
        return value if dtype is I32 else ex.machine("cast", (value,), dtype)

    def load(self, e: Expr) -> Expr:
        t = self.tensors[e.attr]
        where = address(self.tensors, e.attr, e.index)
        return self.fetch(root(self.tensors, e.attr), t.dtype, where, e.dtype)

    def fetch(self, buffer: str, stored: DType, where: Index, dtype: DType) -> Expr:
        """Loads element `where` and converts it from its storage to the machine type `dtype`."""
        storage = storage_of(stored)
        if storage.per_word == 1:
            return held(ex.fetch(buffer, storage.element, self.index(where)), stored, dtype)
        word = ex.fetch(buffer, U32, self.index(where // storage.per_word))
        shift = ex.machine("cast", (self.index((where % storage.per_word) * stored.bits),), U32)
        return unpack(ex.machine("shr", (word, shift), U32), stored, dtype)

    def store(self, tensor: str, indices: tuple[Index, ...], value: Expr) -> None:
        """Writes one element of a tensor whose type is stored whole."""
        where = address(self.tensors, tensor, indices)
        self.append(Write(root(self.tensors, tensor), self.index(where), value))

    def index(self, i: Index) -> Expr:
        """An index as an i32 value, its partial sums hoisted scope by scope."""
        by_level: dict[int, list[tuple[ix.Atom, int]]] = {}
        for atom, c in i.terms:
            by_level.setdefault(self.level(atom.free), []).append((atom, c))
        total: Expr | None = None
        levels = sorted(by_level)
        for level in levels:
            for atom, c in by_level[level]:
                total = self.plus(total, self.scaled(self.atom(atom), c))
            if level == levels[0] and i.const:
                total = self.plus(total, ex.const(i.const, I32))
            assert total is not None
            if level < self.depth and total.op not in ("var", "const"):
                total = self.named(level, total)
        return ex.const(i.const, I32) if total is None else total

    def named(self, level: int, value: Expr) -> Expr:
        memo = self.scopes[level].memo
        if value.key not in memo:
            memo[value.key] = self.name_at(level, value)
        return memo[value.key]

    def plus(self, a: Expr | None, b: Expr) -> Expr:
        return b if a is None else ex.machine("add", (a, b), I32)

    def scaled(self, value: Expr, factor: int) -> Expr:
        return value if factor == 1 else ex.machine("mul", (value, ex.const(factor, I32)), I32)

    def atom(self, atom: ix.Atom) -> Expr:
        level = self.level(atom.free)
        found = self.scopes[level].memo.get(atom.key)
        if found is not None:
            return found
        value = self.atom_value(atom)
        if value.op not in ("var", "const") and self.volatile.isdisjoint(atom.free):
            value = self.name_at(level, value)
            self.scopes[level].memo[atom.key] = value
        return value

    def atom_value(self, atom: ix.Atom) -> Expr:
        match atom:
            case ix.Var():
                return ex.variable(atom.name, I32)
            case ix.Param():
                return ex.variable("u." + uniform_field(atom.name), I32)
            case ix.Value():
                return self.converted_index(self.value(atom.expr))
            case ix.Div():
                shift = max(0, -(atom.num.lo // atom.den))
                quotient = self.quotient("div", atom.num + shift * atom.den, atom.den)
                return self.plus(quotient, ex.const(-shift, I32)) if shift else quotient
            case ix.Mod():
                shift = max(0, -(atom.num.lo // atom.den))
                return self.quotient("rem", atom.num + shift * atom.den, atom.den)
        raise TypeError(atom)

    def quotient(self, op: str, numerator: Index, den: int) -> Expr:
        return ex.machine(op, (self.index(numerator), ex.const(den, I32)), I32)

    def converted_index(self, value: Expr) -> Expr:
        return value if value.dtype is I32 else ex.machine("cast", (value,), I32)


def uniform_field(name: str) -> str:
    """The WGSL name of the uniform field of a parameter."""
    return re.sub(r"\W", "_", name)


def _i32(value: Expr | int) -> Expr:
    return ex.const(value, I32) if isinstance(value, int) else value


def held(element: Expr, stored: DType, dtype: DType) -> Expr:
    """An array element as a value; a template may compute with a float64 that is stored as its words."""
    if stored is not F64 or dtype not in (F32X2, F32):
        return element
    value = ex.machine("from_f64", (element,), F32X2)
    return value if dtype is F32X2 else ex.machine("f32x2tof32", (value,), F32)


def unpack(word: Expr, stored: DType, dtype: DType) -> Expr:
    """Converts the lowest bits of a shifted word to a machine type."""
    if stored.is_float:
        return ex.machine(f"from_{stored.name}", (word,), F32)
    bits = 8 if stored is BOOL else stored.bits
    if stored.kind == "int":
        up = ex.machine("bitcast", (ex.machine("shl", (word, ex.const(32 - bits, U32)), U32),), I32)
        value = ex.machine("shr", (up, ex.const(32 - bits, U32)), I32)
    else:
        value = ex.machine("and", (word, ex.const((1 << bits) - 1, U32)), U32)
    return value if value.dtype is dtype else ex.machine("cast", (value,), dtype)


def pack(value: Expr, stored: DType) -> Expr:
    """The bits of a machine value in the narrow type `stored`, in the lowest bits of a u32."""
    if stored.is_float:
        return ex.machine(f"to_{stored.name}", (value,), U32)
    bits = ex.machine("bitcast" if value.dtype is I32 else "cast", (value,), U32) if value.dtype is not U32 else value
    width = 8 if stored is BOOL else stored.bits
    return ex.machine("and", (bits, ex.const((1 << width) - 1, U32)), U32)
