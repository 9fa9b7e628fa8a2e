"""The text forms of tensor programs (L1) and kernels (L2), parsing; `text.py` prints them and describes the form.

Expressions and indices are built node by node, exactly as written: what is printed from a program reads back as an
equal program, whatever simplifications the builder functions would make of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from . import expr as ex
from . import index as ix
from .dtypes import BOOL, BY_NAME, U32X2, DType, vector
from .expr import Expr
from .index import Index
from .kernel import Assign, Barrier, For, If, Kernel, KernelProgram, KernelStep, Let, SharedArray, Stmt, Var, Write
from .ops import OPS, result_dtype
from .program import (
    Attention,
    Axis,
    Carried,
    Contract,
    Guard,
    Monoid,
    Nest,
    Node,
    Opaque,
    Place,
    Port,
    Program,
    Reduce,
    Scan,
    Stacked,
    Step,
    Store,
    TensorType,
)
from .text import fingerprint

T = TypeVar("T")
Array = np.ndarray[Any, Any]
_TOKEN = re.compile(
    r"""\s*(?:\#[^\n]*\s*)*(?:
    (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<let>%\d+)
  | (?P<number>\d+(?:\.(?!\.)\d*)?(?:e[+-]?\d+)?)
  | (?P<name>[A-Za-z_][A-Za-z0-9_.]*)
  | (?P<sign>\.\.|->|[-+*/%<>()\[\]{}:,=|])
  | (?P<end>\Z))""",
    re.VERBOSE,
)


class ParseError(Exception):
    """The text is not of the form that `text.py` prints; the message says where."""


class Parser:
    """A recursive descent over the tokens of a text; `indexed` says whether an element has indices or an address."""

    indexed = True

    def __init__(self, text: str, constants: Mapping[str, Array]) -> None:
        self.text, self.given = text, constants
        self.kinds: list[str] = []
        self.tokens: list[str] = []
        self.places: list[int] = []
        self._scan_tokens()
        self.at = 0
        self.tensors: dict[str, TensorType] = {}
        self.values: dict[str, Array] = {}
        self.sizes: dict[str, int] = {}
        self.lets: dict[str, Expr] = {}

    def _scan_tokens(self) -> None:
        position = 0
        while True:
            match = _TOKEN.match(self.text, position)
            if match is None:
                rest = self.text[position : position + 20]
                raise ParseError(f"line {self._line(position)}: expected a token, but got {rest!r}")
            kind = str(match.lastgroup)
            self.kinds.append(kind)
            self.tokens.append(match.group(kind))
            self.places.append(match.start(kind))
            if kind == "end":
                return
            position = match.end()

    def _line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def fail(self, expected: str) -> ParseError:
        got = "the end" if self.kinds[self.at] == "end" else repr(self.tokens[self.at])
        return ParseError(f"line {self._line(self.places[self.at])}: expected {expected}, but got {got}")

    @property
    def peek(self) -> str:
        return self.tokens[self.at]

    @property
    def kind(self) -> str:
        return self.kinds[self.at]

    def next(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def accept(self, token: str) -> bool:
        if self.kind == "string" or self.peek != token:
            return False
        self.at += 1
        return True

    def expect(self, *tokens: str) -> None:
        for token in tokens:
            if not self.accept(token):
                raise self.fail(repr(token))

    def of_kind(self, kind: str) -> str:
        if self.kind != kind:
            raise self.fail(f"a {kind}")
        return self.next()

    def string(self) -> str:
        return str(json.loads(self.of_kind("string")))

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        text = self.of_kind("number")
        if not text.isdigit():
            self.at -= 1
            raise self.fail("an integer")
        return sign * int(text)

    def name(self) -> str:
        return self.string() if self.kind == "string" else self.of_kind("name")

    def items(self, item: Callable[[], T], end: str | None = None) -> tuple[T, ...]:
        """Items with commas between them, up to and with the token `end`; without it, at least one."""
        if end is not None and self.accept(end):
            return ()
        found = [item()]
        while self.accept(","):
            found.append(item())
        if end is not None:
            self.expect(end)
        return tuple(found)

    def dtype(self) -> DType:
        name = self.of_kind("name")
        found = re.fullmatch(r"(\w+)x(\d)v", name)
        if found is not None and found[1] in BY_NAME:
            return vector(BY_NAME[found[1]], int(found[2]))
        if name not in BY_NAME:
            self.at -= 1
            raise self.fail("an element type")
        return BY_NAME[name]

    def header(self) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        while self.accept("tensor"):
            name = self.string()
            self.expect(":")
            self.tensors[name] = t = self.tensor_type()
            if self.accept("="):
                self.values[name] = self.constant(name, t)
        return self.ports("input"), self.ports("output")

    def ports(self, keyword: str) -> tuple[Port, ...]:
        found = []
        while self.accept(keyword):
            name = self.string()
            self.expect("=")
            found.append(Port(name, self.string()))
        return tuple(found)

    def tensor_type(self) -> TensorType:
        dtype = self.dtype()
        self.expect("[")
        shape = self.items(self.integer, "]")
        place, length, axis = None, None, 0
        if self.accept("in"):
            parent = self.string()
            self.expect("axis")
            at = self.integer()
            self.expect("offset")
            place = Place(parent, at, self.integer())
        if self.accept("length"):
            length = self.string()
            self.expect("axis")
            axis = self.integer()
        return TensorType(dtype, shape, length, place, axis)

    def constant(self, name: str, t: TensorType) -> Array:
        if self.accept("["):
            values = self.items(lambda: self.literal(t.dtype), "]")
            return np.asarray(values, object if t.dtype is U32X2 else None).astype(t.dtype.numpy).reshape(t.shape)
        self.expect("hash")
        digest = self.string()
        if name not in self.given:
            raise ParseError(f"expected a value for the constant {name!r}, but got only its hash {digest}")
        value = np.asarray(self.given[name])
        if fingerprint(value) != digest:
            raise ParseError(f"expected a value with the hash {digest} for {name!r}, but got {fingerprint(value)}")
        return value

    def literal(self, dtype: DType) -> int | float | bool:
        if dtype is BOOL:
            word = self.of_kind("name")
            return word == "true"
        negative = self.accept("-")
        if not negative:
            self.accept("+")
        if self.kind == "name":
            text = self.next()
            if text not in ("inf", "nan"):
                self.at -= 1
                raise self.fail("a number")
        else:
            text = self.of_kind("number")
        value = float(text) if dtype.is_float else int(text)
        return -value if negative else value

    def axes(self) -> tuple[Axis, ...]:
        self.expect("(")
        return self.items(self.axis, ")")

    def axis(self) -> Axis:
        name = self.name()
        self.expect(":")
        return Axis(name, self.integer())

    def nodes_from(self) -> tuple[str, ...]:
        return self.items(self.string) if self.accept("from") else ()

    def begin(self, axes: tuple[Axis, ...] = ()) -> None:
        self.lets, self.sizes = {}, {a.name: a.size for a in axes}

    def read_lets(self) -> None:
        while self.kind == "let":
            name = self.next()
            self.expect("=")
            self.lets[name] = self.expr()

    def expr(self) -> Expr:
        if self.kind == "let":
            name = self.next()
            if name not in self.lets:
                self.at -= 1
                raise self.fail("a name that is defined")
            return self.lets[name]
        if self.kind == "string":
            return self.element()
        if self.kind == "number" or self.peek in ("-", "+"):
            return self.number()
        word = self.of_kind("name")
        if word in ("true", "false"):
            return ex.const(word == "true", BOOL)
        if self.accept(":"):
            leaf = re.fullmatch(r"([ab])\.(\d+)", word)
            dtype = self.dtype()
            return ex.leaf(leaf[1], dtype, int(leaf[2])) if leaf else ex.variable(word, dtype)
        self.expect("(")
        return self.call(word)

    def call(self, word: str) -> Expr:
        if word == "index":
            i = self.index()
            self.expect(")")
            return ex.index_value(i, self.suffix())
        if word == "acc":
            step = self.name()
            component = self.integer() if self.accept(",") else 0
            self.expect(")")
            return ex.acc(step, self.suffix(), component)
        if word == "assume":
            x = self.expr()
            self.expect(",")
            lo = self.integer()
            self.expect(",")
            hi = self.integer()
            self.expect(")")
            return ex.assume(x, lo, hi)
        args = self.items(self.expr, ")")
        if self.accept(":"):
            return ex.machine(word, args, self.dtype())
        info = OPS.get(word)
        if info is None or info.result == "attr" or len(args) != info.arity:
            raise self.fail(f"a type after {word}(…)")
        return ex.machine(word, args, result_dtype(word, tuple(a.dtype for a in args), None))

    def number(self) -> Expr:
        start = self.at
        while self.peek in ("-", "+"):
            self.at += 1
        self.at += 1
        dtype = self.suffix()
        after, self.at = self.at, start
        value = self.literal(dtype)
        self.at = after
        return ex.const(value, dtype)

    def element(self) -> Expr:
        """A load of a tensor, or a fetch where the index is an expression."""
        name = self.string()
        self.expect("[")
        if self.indexed:
            where = self.items(self.index, "]")
            implied = name in self.tensors and self.peek != ":"
            dtype = self.tensors[name].dtype if implied else self.suffix()
            return ex.load(name, dtype, where)
        address = self.expr()
        self.expect("]")
        return ex.fetch(name, self.suffix(), address)

    def suffix(self) -> DType:
        self.expect(":")
        return self.dtype()

    def index(self) -> Index:
        terms: dict[ix.Atom, int] = {}
        constant, sign = 0, -1 if self.accept("-") else 1
        while True:
            factor = 1
            if self.kind == "number":
                factor = self.integer()
                if not self.accept("*"):
                    constant += sign * factor
                    factor = 0
            if factor:
                terms[self.atom()] = sign * factor
            if self.accept("+"):
                sign = 1
            elif self.accept("-"):
                sign = -1
            else:
                return Index(terms, constant)

    def atom(self) -> ix.Atom:
        if self.accept("("):
            num = self.index()
            kind = ix.Div if self.accept("/") else ix.Mod
            if kind is ix.Mod:
                self.expect("%")
            den = self.integer()
            self.expect(")")
            return kind(num, den)
        bare = self.kind == "name"
        name = self.name()
        if bare and name in ("value", "param"):
            self.expect("(")
            of: Any = self.expr() if name == "value" else self.string()
            self.expect(",")
            lo = self.integer()
            self.expect(",")
            hi = self.integer()
            self.expect(")")
            return ix.Value(of, lo, hi) if name == "value" else ix.Param(of, lo, hi)
        if self.accept("<"):
            size = self.integer()
            self.expect(">")
            return ix.Var(name, size)
        if name not in self.sizes:
            self.at -= 1
            raise self.fail("an axis in scope")
        return ix.Var(name, self.sizes[name])


class ProgramParser(Parser):
    """Level L1."""

    def program(self) -> Program:
        inputs, outputs = self.header()
        nodes = []
        while self.kind != "end":
            nodes.append(self.node())
        return Program(self.tensors, self.values, inputs, outputs, tuple(nodes))

    def node(self) -> Node:
        readers: dict[str, Callable[[], Node]] = {
            "nest": self.nest,
            "scan": self.scan,
            "guard": self.guard,
            "attention": self.attention,
            "opaque": self.opaque,
        }
        if self.kind != "name" or self.peek not in readers:
            raise self.fail("nest, scan, guard, attention or opaque")
        return readers[self.next()]()

    def block(self) -> tuple[Node, ...]:
        found = []
        while not self.accept("}"):
            found.append(self.node())
        return tuple(found)

    def nest(self) -> Nest:
        space = self.axes()
        nodes = self.nodes_from()
        self.begin(space)
        self.expect("{")
        steps: list[Step] = []
        stores: list[Store] = []
        while True:
            self.read_lets()
            if self.accept("}"):
                return Nest(space, tuple(steps), tuple(stores), nodes)
            if self.accept("store"):
                stores.append(self.store())
            else:
                steps.append(self.step())

    def step(self) -> Step:
        name = self.name()
        self.expect("=")
        if self.accept("contract"):
            dtype = self.dtype()
            axes = self.axes()
            outer = self.enter(axes)
            self.expect(":")
            lhs = self.expr()
            self.expect(",")
            made: Step = Contract(name, axes, lhs, self.expr(), dtype)
        else:
            self.expect("reduce")
            axes = self.axes()
            outer = self.enter(axes)
            self.expect("[")
            identity = self.items(self.expr)
            self.expect("|")
            combine = self.items(self.expr, "]")
            self.expect(":")
            made = Reduce(name, axes, Monoid(identity, combine), self.items(self.expr))
        self.sizes = outer
        return made

    def enter(self, axes: tuple[Axis, ...]) -> dict[str, int]:
        outer, self.sizes = self.sizes, self.sizes | {a.name: a.size for a in axes}
        return outer

    def store(self) -> Store:
        axes = self.axes() if self.peek == "(" else ()
        outer = self.enter(axes)
        domain: tuple[tuple[str, int, int], ...] = ()
        if self.accept("where"):
            domain = self.items(self.interval)
            self.expect(":")
        tensor = self.string()
        self.expect("[")
        index = self.items(self.index, "]")
        self.expect("=")
        value = self.expr()
        self.sizes = outer
        return Store(tensor, axes, index, value, domain)

    def interval(self) -> tuple[str, int, int]:
        name = self.name()
        self.expect("in")
        lo = self.integer()
        self.expect("..")
        return name, lo, self.integer()

    def arrows(self, count: int) -> tuple[str, ...]:
        found = [self.string()]
        for _ in range(count - 1):
            self.expect("->")
            found.append(self.string())
        return tuple(found)

    def scan(self) -> Scan:
        step = self.string()
        self.expect("trip")
        trip = self.integer()
        cond = self.string() if self.accept("while") else None
        nodes = self.nodes_from()
        self.begin()
        self.expect("{")
        carried, stacked = [], []
        while self.accept("carry"):
            carried.append(Carried(*self.arrows(4)))
        while self.accept("stack"):
            value, result = self.arrows(2)
            self.expect("axis")
            axis = self.integer()
            self.expect("at")
            stacked.append(Stacked(value, result, axis, self.index()))
        return Scan(step, trip, tuple(carried), tuple(stacked), self.block(), cond, nodes)

    def guard(self) -> Guard:
        flag = self.string()
        nodes = self.nodes_from()
        self.expect("{")
        results = []
        while self.accept("result"):
            result = self.string()
            self.expect("=")
            yes = self.string()
            self.expect(",")
            results.append((result, yes, self.string()))
        self.expect("then", "{")
        body = self.block()
        self.expect("else", "{")
        otherwise = self.block()
        self.expect("}")
        return Guard(flag, body, otherwise, tuple(results), nodes)

    def attention(self) -> Attention:
        space = self.axes()
        own: list[Axis] = []
        for keyword in ("key", "inner", "value"):
            self.expect(keyword)
            own.extend(self.axes())
        if len(own) != 3:
            raise self.fail("one axis each of key, inner and value")
        nodes = self.nodes_from()
        self.begin((*space, *own))
        self.expect("{")
        parts: list[Expr] = []
        for keyword in ("q", "k", "v", "score"):
            self.read_lets()
            self.expect(keyword, "=")
            parts.append(self.expr())
        self.read_lets()
        self.expect("store")
        store = self.store()
        self.expect("}")
        q, k, v, score = parts
        return Attention(space, own[0], own[1], own[2], q, k, v, score, store, nodes)

    def opaque(self) -> Opaque:
        template = self.string()
        nodes = self.nodes_from()
        self.begin()
        self.expect("{")
        params, exprs = [], []
        while self.accept("param"):
            name = self.string()
            self.expect("=")
            params.append((name, self.json()))
        self.read_lets()
        while self.accept("expr"):
            name = self.string()
            self.expect("=")
            exprs.append((name, self.expr()))
            self.read_lets()
        reads = self.items(self.string) if self.accept("reads") else ()
        writes = self.items(self.string) if self.accept("writes") else ()
        self.expect("}")
        return Opaque(template, tuple(params), tuple(exprs), reads, writes, nodes)

    def json(self) -> Any:
        value, end = json.JSONDecoder().raw_decode(self.text, self.places[self.at])
        while self.places[self.at] < end:
            self.at += 1
        return _decode_param(value)


def _decode_param(value: Any) -> Any:
    if isinstance(value, dict):
        return BY_NAME[value["dtype"]]
    return tuple(map(_decode_param, value)) if isinstance(value, list) else value


class KernelParser(Parser):
    """Level L2."""

    indexed = False

    def program(self) -> KernelProgram:
        inputs, outputs = self.header()
        steps = []
        while self.kind != "end":
            self.expect("dispatch")
            steps.append(self.dispatch())
        values: dict[str, object] = dict(self.values)
        return KernelProgram(self.tensors, values, inputs, outputs, tuple(steps))

    def dispatch(self) -> KernelStep:
        stencil = self.accept("stencil")
        nodes = self.nodes_from()
        self.expect("{")
        reads = self.items(self.string) if self.accept("reads") else ()
        writes = self.items(self.string) if self.accept("writes") else ()
        uniforms, rename, variants = [], {}, []
        while self.accept("uniform"):
            name = self.string()
            self.expect("=")
            uniforms.append((name, self.integer()))
        while self.accept("rename"):
            name = self.string()
            self.expect("=")
            rename[name] = self.string()
        while self.accept("kernel"):
            variants.append(self.kernel())
        self.expect("}")
        return KernelStep(tuple(variants), reads, writes, nodes, tuple(uniforms), rename, stencil)

    def triple(self) -> tuple[int, int, int]:
        self.expect("(")
        found = self.items(self.integer, ")")
        if len(found) != 3:
            raise self.fail("three sizes")
        return found[0], found[1], found[2]

    def kernel(self) -> Kernel:
        schedule = self.string()
        self.expect("size")
        size = self.triple()
        self.expect("grid")
        grid = self.triple()
        prefer, shared = [], []
        while self.accept("prefer"):
            key = self.string()
            self.expect("=")
            prefer.append((key, self.string()))
        self.expect("{")
        while self.accept("shared"):
            name = self.name()
            self.expect(":")
            dtype = self.dtype()
            self.expect("[")
            shared.append(SharedArray(name, dtype, self.integer()))
            self.expect("]")
        return Kernel(schedule, size, grid, self.statements(), tuple(shared), tuple(prefer))

    def statements(self) -> tuple[Stmt, ...]:
        found: list[Stmt] = []
        while True:
            self.lets = {}
            self.read_lets()
            if self.accept("}"):
                return tuple(found)
            found.append(self.statement())

    def statement(self) -> Stmt:
        if self.kind == "string":
            target = self.string()
            self.expect("[")
            address = self.expr()
            self.expect("]", "=")
            return Write(target, address, self.expr())
        word = self.of_kind("name")
        if word == "barrier":
            return Barrier()
        if word == "if":
            condition = self.expr()
            self.expect("{")
            return If(condition, self.statements())
        if word == "for":
            name = self.of_kind("name")
            self.expect("=")
            start = self.expr()
            self.expect("to")
            stop = self.expr()
            step = self.integer() if self.accept("step") else 1
            self.expect("{")
            return For(name, start, stop, step, self.statements())
        name = self.of_kind("name") if word in ("let", "var") else word
        self.expect("=")
        value = self.expr()
        if word == "let":
            return Let(name, value)
        return Var(name, value) if word == "var" else Assign(name, value)


def parse_program(text: str, constants: Mapping[str, Array] | None = None) -> Program:
    """Reads a tensor program; `constants` give the values of which the text shows only a hash."""
    return ProgramParser(text, constants or {}).program()


def parse_kernels(text: str, constants: Mapping[str, Array] | None = None) -> KernelProgram:
    """Reads a kernel program; `constants` give the values of which the text shows only a hash."""
    return KernelParser(text, constants or {}).program()
