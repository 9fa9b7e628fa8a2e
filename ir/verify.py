"""The verifier of tensor programs (L1), which runs between all passes.

It checks that every tensor is declared, written once, in full (by one node, or in parts by several nests), and before
it is read; that expressions see only the axes and accumulators in scope; types; ranks; and that indices stay within
their tensors. A load in a branch of a `select` need not be provable: it is an error only where the comparisons that
guard it prove it to be out of bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any, NoReturn

import numpy as np

from . import expr as ex
from . import index as ix
from .bounds import Interval, guarded_loads, interval, strict_nodes
from .dtypes import BOOL, F32, F32X2, F64, I32, I64, U32, U32X2, U64, DType
from .expr import Expr
from .expr_verify import VerificationError, mistyped, variables
from .index import Index
from .kernel import KernelProgram
from .kernel_verify import verify_kernels
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
    all_nodes,
    nest_exprs,
)
from .text import print_node

__all__ = ["VerificationError", "verify", "verify_kernels", "verify_program"]

Accs = dict[tuple[str, int], DType]
_WELL_TYPED: set[bytes] = set()
_MOST_REMEMBERED = 1 << 20


def verify(program: object) -> None:
    """Checks a program of any level; other values pass."""
    if isinstance(program, Program):
        verify_program(program)
    elif isinstance(program, KernelProgram):
        verify_kernels(program)


def verify_program(program: Program) -> None:
    """Raises VerificationError where a tensor program breaks a rule."""
    if len(_WELL_TYPED) > _MOST_REMEMBERED:
        _WELL_TYPED.clear()
    _Verifier(program).run()


def machine_types(dtype: DType) -> tuple[DType, ...]:
    """The machine types that a legalised program may hold values of a type in."""
    if dtype in (I64, U64, F64):
        return (U32X2,)
    if dtype is F32X2:
        return (F32X2,)
    if dtype is BOOL:
        return (U32,)
    if dtype.is_float:
        return (F32,)
    return (I32,) if dtype.kind == "int" else (U32,)


@dataclass
class _Scope:
    """What an expression may use: axes by size, accumulators, restrictions of axes, the sides of a monoid's state."""

    sizes: Mapping[str, int]
    accs: Accs = field(default_factory=dict)
    domain: Mapping[str, Interval] = field(default_factory=dict)
    leaves: Sequence[DType] | None = None


class _Verifier:
    def __init__(self, program: Program) -> None:
        self.program, self.tensors = program, program.tensors
        self.done: set[str] = {p.tensor for p in program.inputs} | set(program.constants)
        self.writers: dict[str, Node] = {}
        self.parts: dict[str, list[str]] = {}
        self.points: dict[str, int] = {}
        self.in_parts: set[str] = set()
        self.stores: list[Store] = []
        self.node: Node | None = None
        self.params: dict[str, int] = {}

    def fail(self, expected: str, got: str) -> NoReturn:
        text = "the program's declarations" if self.node is None else print_node(self.node, self.tensors)
        raise VerificationError(expected, got, text)

    def run(self) -> None:
        self.declarations()
        self.find_writers()
        self.loaded = {e.dtype for n in all_nodes(self.program.nodes) for e in ex.loads(*_roots(n))}
        self.block(self.program.nodes)
        self.node = None
        self.ends()

    def declarations(self) -> None:
        for name, t in self.tensors.items():
            if t.place is not None:
                self.place(name, t)
            if t.length is not None:
                self.length(name, t)
        for name, value in self.program.constants.items():
            self.constant(name, np.asarray(value))
        for kind, ports in (("input", self.program.inputs), ("output", self.program.outputs)):
            self.ports(kind, ports)

    def ports(self, kind: str, ports: Sequence[Port]) -> None:
        names = [p.name for p in ports]
        for p in ports:
            self.declared(p.tensor)
            if names.count(p.name) > 1:
                self.fail(f"{kind}s of different names", f"two named {p.name!r}")

    def declared(self, name: str) -> TensorType:
        if name not in self.tensors:
            self.fail("a declared tensor", repr(name))
        return self.tensors[name]

    def place(self, name: str, t: TensorType) -> None:
        assert t.place is not None
        parent, axis = self.declared(t.place.parent), t.place.axis
        inside = len(parent.shape) == len(t.shape) and 0 <= axis < len(t.shape)
        inside = inside and all(k == axis or a == b for k, (a, b) in enumerate(zip(t.shape, parent.shape, strict=True)))
        inside = inside and 0 <= t.place.offset <= parent.shape[axis] - t.shape[axis]
        words = t.dtype is U32X2 and parent.dtype in (I64, U64)
        if not inside or not (words or parent.dtype is t.dtype):
            self.fail(f"a part of {t.place.parent!r}: {parent}", f"{name!r}: {t} at {t.place.offset} of axis {axis}")
        self.parts.setdefault(t.place.parent, []).append(name)

    def length(self, name: str, t: TensorType) -> None:
        assert t.length is not None
        length = self.declared(t.length)
        if length.dtype is not I32 or length.shape or not 0 <= t.length_axis < len(t.shape):
            self.fail(f"a scalar i32 as the length of an axis of {name!r}: {t}", f"{t.length!r}: {length}")

    def constant(self, name: str, value: np.ndarray[Any, Any]) -> None:
        t = self.declared(name)
        if value.dtype != t.dtype.numpy or value.shape != t.shape:
            self.fail(f"{name!r} to be {t}", f"a constant of {value.dtype}{list(value.shape)}")

    def find_writers(self) -> None:
        for node in all_nodes(self.program.nodes):
            self.node = node
            for name in node.writes:
                self.declared(name)
                shared = isinstance(node, Nest) and isinstance(self.writers.get(name), Nest)
                if name in self.done or (name in self.writers and not shared):
                    self.fail("a tensor that nothing else writes", repr(name))
                self.in_parts.update([name] if shared else [])
                self.writers[name] = node
        self.node = None

    def ready(self, name: str) -> bool:
        """Whether a tensor holds its value: what writes it, and all its parts, have run."""
        t = self.tensors[name]
        if t.count == 0:
            return True
        written = [p for p in self.parts.get(name, ()) if self.is_written(p)]
        if not all(map(self.ready, written)):
            return False
        if name in self.done:
            return True
        if written and name not in self.writers:
            return True
        return name not in self.writers and t.place is not None and self.ready(t.place.parent)

    def is_written(self, name: str) -> bool:
        return name in self.writers or any(map(self.is_written, self.parts.get(name, ())))

    def read(self, name: str) -> TensorType:
        t = self.declared(name)
        if not self.ready(name):
            self.fail("a tensor whose value is known here", repr(name))
        return t

    def block(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self.node = node
            match node:
                case Nest():
                    self.nest(node)
                case Scan():
                    self.scan(node)
                case Guard():
                    self.guard(node)
                case Attention():
                    self.attention(node)
                case Opaque():
                    self.opaque(node)
            self.node = node
            self.done.update(name for name in node.writes if self.writers[name] is node)

    def axes(self, outer: Mapping[str, int], axes: Sequence[Axis]) -> dict[str, int]:
        sizes = dict(outer)
        for a in axes:
            if a.size < 1:
                self.fail("axes of positive size", f"{a.name}: {a.size}")
            if a.name in sizes:
                self.fail("axes of different names", f"two named {a.name}")
            sizes[a.name] = a.size
        return sizes

    def nest(self, nest: Nest) -> None:
        space = self.axes({}, nest.space)
        accs: Accs = {}
        for step in nest.steps:
            self.step(step, space, accs)
            if (step.name, 0) in accs:
                self.fail("steps of different names", f"two named {step.name}")
            accs.update({(step.name, k): d for k, d in enumerate(step.dtypes)})
        for store in nest.stores:
            self.store(store, space, accs)
        self.apart(nest.stores)

    def step(self, step: Step, space: Mapping[str, int], accs: Accs) -> None:
        scope = _Scope(self.axes(space, step.axes), accs)
        for e in step.exprs:
            self.expr(e, scope)
        if isinstance(step, Reduce):
            self.monoid(step)
        else:
            self.contract(step)

    def contract(self, step: Contract) -> None:
        for a in step.axes:
            if a.name not in step.lhs.free or a.name not in step.rhs.free:
                self.fail("every contracted axis in both operands", f"{a.name} in one")
        kinds = {e.dtype.is_float for e in (step.lhs, step.rhs)} | {step.dtype.is_float}
        if len(kinds) > 1 or BOOL in (step.lhs.dtype, step.rhs.dtype, step.dtype):
            self.fail("a contraction of floats or of integers", f"{step.lhs.dtype} · {step.rhs.dtype} in {step.dtype}")

    def monoid(self, step: Reduce) -> None:
        monoid = step.monoid
        lists = (monoid.dtypes, tuple(e.dtype for e in monoid.combine), tuple(e.dtype for e in step.body))
        if any(kinds != lists[0] for kinds in lists):
            texts = " | ".join(", ".join(map(str, kinds)) for kinds in lists)
            self.fail("one type per component in identity, combine and body", texts)
        for e in monoid.identity:
            if e.op != "const":
                self.fail("constants as identities", e.op)
        scope = _Scope({}, leaves=monoid.dtypes)
        for e in monoid.combine:
            self.expr(e, scope)

    def store(self, store: Store, space: Mapping[str, int], accs: Accs) -> None:
        sizes = self.axes(space, store.axes)
        domain = self.domain(store, sizes)
        scope = _Scope(sizes, accs, domain)
        self.expr(store.value, scope)
        t = self.tensors[store.tensor]
        self.agrees(store.tensor, t.dtype, store.value.dtype)
        self.indices(store.tensor, t, store.index, scope, True)
        for e in (e for i in store.index for e in ex.index_exprs(i)):
            self.expr(e, scope)
        extents = {n: domain[n][1] - domain[n][0] + 1 if n in domain else size for n, size in sizes.items()}
        used = frozenset[str]().union(*(i.free for i in store.index))
        idle = [n for n, extent in extents.items() if extent > 1 and n not in used]
        if idle:
            self.fail("every element to be written once", f"{store.tensor!r} written again along {', '.join(idle)}")
        count = 1
        for extent in extents.values():
            count *= extent
        self.points[store.tensor] = self.points.get(store.tensor, 0) + count
        self.stores.extend([store] if store.tensor in self.in_parts else [])

    def domain(self, store: Store, sizes: Mapping[str, int]) -> dict[str, Interval]:
        found: dict[str, Interval] = {}
        for name, lo, hi in store.domain:
            if name not in sizes or not 0 <= lo < hi <= sizes[name]:
                self.fail("a part of an axis in scope as domain", f"{name} in {lo}..{hi}")
            found[name] = (lo, hi - 1)
        return found

    def apart(self, stores: Sequence[Store]) -> None:
        """Stores into one tensor must not overlap."""
        groups: dict[str, list[Store]] = {}
        for store in stores:
            groups.setdefault(store.tensor, []).append(store)
        for name, members in groups.items():
            boxes = [[interval(i, {n: (lo, hi - 1) for n, lo, hi in s.domain}) for i in s.index] for s in members]
            for k, (a, box) in enumerate(zip(members, boxes, strict=True)):
                for b, other in zip(members[:k], boxes[:k], strict=True):
                    if not (_disjoint(box, other) or _out_of_step(a.index, b.index)):
                        self.fail("stores that do not overlap", f"two stores of {name!r}")

    def agrees(self, name: str, declared: DType, dtype: DType) -> None:
        """A value's type is its tensor's, or the machine type that stands for it once nothing loads it as such."""
        legalised = declared not in self.loaded and dtype in machine_types(declared)
        if dtype is not declared and not legalised:
            self.fail(f"{name!r} as {declared}", str(dtype))

    def indices(
        self, name: str, t: TensorType, indices: Sequence[Index], scope: _Scope, strict: bool
    ) -> None:
        if len(indices) != len(t.shape):
            self.fail(f"{len(t.shape)} indices of {name!r}", str(len(indices)))
        for i, size in zip(indices, t.shape, strict=True):
            self.bound(i, scope)
            if not strict or _within(i.lo, i.hi, size):
                continue
            lo, hi = interval(i, scope.domain)
            if not _within(lo, hi, size):
                self.fail(f"an index of {name!r} in 0..{size - 1}", f"{i!r} in {lo}..{hi}")

    def bound(self, i: Index, scope: _Scope) -> None:
        for v in variables(i):
            if scope.sizes.get(v.name) != v.size:
                known = scope.sizes.get(v.name)
                expected = "an axis in scope" if known is None else f"{v.name} of size {known}"
                self.fail(expected, f"{v.name} of size {v.size}")
        for atom, _ in i.terms:
            if isinstance(atom, ix.Param) and atom.name in self.params and not _covers(atom, self.params[atom.name]):
                self.fail(f"the step {atom.name} in 0..{self.params[atom.name] - 1}", f"{atom.lo}..{atom.hi}")

    def expr(self, root: Expr, scope: _Scope) -> None:
        unproven = False
        strict = strict_nodes(root)
        for e in ex.walk(root):
            if e.key not in _WELL_TYPED:
                problem = mistyped(e)
                if problem is not None:
                    self.fail(*problem)
                _WELL_TYPED.add(e.key)
            match e.op:
                case "load":
                    t = self.read(e.attr)
                    self.agrees(e.attr, t.dtype, e.dtype)
                    self.indices(e.attr, t, e.index, scope, e.key in strict)
                    unproven |= not all(_within(i.lo, i.hi, n) for i, n in zip(e.index, t.shape, strict=True))
                case "index":
                    self.bound(e.index[0], scope)
                case "acc":
                    if scope.accs.get(e.attr) is not e.dtype:
                        self.fail("the result of an earlier step", f"acc{e.attr}: {e.dtype}")
                case "leaf":
                    self.leaf(e, scope)
                case "var" | "fetch":
                    self.fail("an expression over tensors and axes", e.op)
        if unproven:
            self.guarded(root, scope)

    def leaf(self, e: Expr, scope: _Scope) -> None:
        side, component = e.attr
        known = scope.leaves
        if side not in ("a", "b") or known is None or component >= len(known) or known[component] is not e.dtype:
            self.fail("a component of a monoid's state", f"{side}.{component}: {e.dtype}")

    def guarded(self, root: Expr, scope: _Scope) -> None:
        """Loads that the comparisons which guard them prove to be out of bounds."""
        for e, facts in guarded_loads(root, scope.domain):
            for i, size in zip(e.index, self.tensors[e.attr].shape, strict=True):
                lo, hi = facts.bounds(i)
                if lo <= hi and (hi < 0 or lo >= size):
                    self.fail(f"an index of {e.attr!r} in 0..{size - 1}", f"{i!r} in {lo}..{hi} under its guards")

    def scan(self, scan: Scan) -> None:
        if scan.trip < 0 or scan.step in self.params:
            self.fail("a trip count and a step name of its own", f"{scan.trip}, {scan.step!r}")
        outer = set(self.done)
        for c in scan.carried:
            self.read(c.init)
            kinds = [self.declared(t) for t in (c.init, c.arg, c.next, c.result)]
            if len({(t.shape, t.dtype) for t in kinds}) > 1:
                self.fail("a carried value of one type", ", ".join(map(str, kinds)))
        self.done.update(c.arg for c in scan.carried)
        self.params[scan.step] = scan.trip
        self.block(scan.body)
        self.node = scan
        for c in scan.carried:
            self.read(c.next)
        for s in scan.stacked:
            value, result = self.read(s.value), self.declared(s.result)
            self.bound(s.index, _Scope({}))
            shape = (*value.shape[: s.axis], result.shape[s.axis], *value.shape[s.axis :])
            if result.shape != shape or value.dtype is not result.dtype:
                self.fail(f"{s.result!r} to stack {value}", str(result))
            if scan.trip and not 0 <= s.index.lo <= s.index.hi < result.shape[s.axis]:
                self.fail(f"a position of {s.result!r} in 0..{result.shape[s.axis] - 1}", repr(s.index))
        if scan.cond is not None:
            self.flag(scan.cond)
        del self.params[scan.step]
        self.done = outer

    def flag(self, name: str) -> None:
        t = self.read(name)
        if t.count != 1 or t.dtype not in (BOOL, U32):
            self.fail(f"one bool as the condition {name!r}", str(t))

    def guard(self, guard: Guard) -> None:
        self.flag(guard.flag)
        outer = set(self.done)
        for body, side in ((guard.body, 1), (guard.otherwise, 2)):
            self.block(body)
            self.node = guard
            for result in guard.results:
                value, whole = self.read(result[side]), self.declared(result[0])
                if (value.shape, value.dtype) != (whole.shape, whole.dtype):
                    self.fail(f"{result[0]!r}: {whole}", f"{result[side]!r}: {value}")
            self.done = set(outer)

    def attention(self, node: Attention) -> None:
        space = self.axes({}, node.space)
        with_key = self.axes(space, (node.key,))
        self.expr(node.q, _Scope(self.axes(space, (node.inner,))))
        self.expr(node.k, _Scope(self.axes(with_key, (node.inner,))))
        self.expr(node.v, _Scope(self.axes(with_key, (node.value_axis,))))
        accs: Accs = {("qk", 0): node.score.dtype}
        self.expr(node.score, _Scope(with_key, accs))
        results: Accs = {("pv", 0): next((e.dtype for e in ex.walk(node.store.value) if e.op == "acc"), F32)}
        self.store(node.store, space if node.store.axes else self.axes(space, (node.value_axis,)), results)

    def opaque(self, node: Opaque) -> None:
        for name in node.reads:
            self.read(name)
        for _, root in node.exprs:
            for e in ex.walk(root):
                problem = mistyped(e)
                if problem is not None:
                    self.fail(*problem)

    def ends(self) -> None:
        for port in self.program.outputs:
            t = self.read(port.tensor)
            if t.length is not None:
                self.read(t.length)
        self.apart(self.stores)
        for name in self.points:
            self.whole(name)

    def whole(self, name: str) -> None:
        """A tensor that nests write is written in full, by its own stores and by its parts."""
        t = self.tensors[name]
        count = self.points[name] + sum(self.tensors[p].count for p in self.parts.get(name, ()) if self.is_written(p))
        if count != t.count:
            self.node = self.writers[name]
            self.fail(f"all {t.count} elements of {name!r} to be written", str(count))


def _roots(node: Node) -> Iterable[Expr]:
    match node:
        case Nest():
            return nest_exprs(node)
        case Attention():
            return node.q, node.k, node.v, node.score, node.store.value
        case Opaque():
            return [e for _, e in node.exprs]
    return ()


def _within(lo: int, hi: int, size: int) -> bool:
    return lo >= 0 and hi < size


def _covers(step: ix.Param, trip: int) -> bool:
    return step.lo <= 0 and step.hi >= trip - 1


def _disjoint(a: Sequence[Interval], b: Sequence[Interval]) -> bool:
    return any(x[1] < y[0] or y[1] < x[0] for x, y in zip(a, b, strict=True))


def _out_of_step(a: Sequence[Index], b: Sequence[Index]) -> bool:
    """Whether two stores interleave: along some dimension, their positions differ modulo a common stride."""
    for i, j in zip(a, b, strict=True):
        stride = gcd(*(c for _, c in (*i.terms, *j.terms)))
        if stride > 1 and (i.const - j.const) % stride:
            return True
    return False
