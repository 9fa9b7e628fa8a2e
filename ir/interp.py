"""The meaning of tensor programs: a NumPy interpreter.

Each expression is evaluated on the grid of the axes that it uses, and no more: an axis is an `arange` laid along its
own dimension, and NumPy broadcasts. A contraction is a gather of each operand on its own grid and one matmul. Nests
whose grids would exceed `BLOCK` elements are cut along their longest axis. With `wide` set, floats compute in float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from . import index as ix
from .attention import as_nests
from .dtypes import BOOL, F64, U32X2, DType
from .expr import Expr, walk
from .index import Index
from .opaque import TEMPLATES
from .ops import OPS, cast_array
from .program import (
    Attention,
    Axis,
    Contract,
    Guard,
    Monoid,
    Nest,
    Node,
    Opaque,
    Program,
    Reduce,
    Scan,
    Store,
)

Array = Any
BLOCK = 1 << 24


def interpret(program: Program, inputs: Mapping[str, Array], wide: bool = False) -> dict[str, Array]:
    """Runs a program; `inputs` and the result are keyed by the names of the graph's inputs and outputs."""
    env = evaluate(program, inputs, wide)
    result = {}
    for port in program.outputs:
        result[port.name] = valid_part(program, env, port.tensor)
    return result


def valid_part(program: Program, env: Mapping[str, Array], name: str) -> Array:
    """The value of a tensor, cut to its length where it has one."""
    t = program.tensors[name]
    if t.length is None:
        return env[name]
    where = [slice(None)] * len(t.shape)
    where[t.length_axis] = slice(0, int(env[t.length]))
    return env[name][tuple(where)]


def evaluate(program: Program, inputs: Mapping[str, Array], wide: bool = False) -> dict[str, Array]:
    """Runs a program and returns every tensor by its name."""
    machine = _Machine(program, wide)
    for name, value in program.constants.items():
        machine.env[name] = machine.widen(np.asarray(value))
    for port in program.inputs:
        if port.tensor in machine.env and port.name not in inputs:
            continue
        machine.env[port.tensor] = machine.widen(np.asarray(inputs[port.name]))
    machine.run(program.nodes)
    return machine.env


class _Machine:
    def __init__(self, program: Program, wide: bool) -> None:
        self.program, self.wide = program, wide
        self.env: dict[str, Array] = _Env(self)
        self.params: dict[str, int] = {}

    def widen(self, array: Array) -> Array:
        floating = array.dtype.kind == "f" or (array.dtype.kind == "V" and "float" in array.dtype.name)
        return array.astype(np.float64) if self.wide and floating else array

    def numpy_dtype(self, dtype: DType) -> np.dtype[Any]:
        return F64.numpy if self.wide and dtype.is_float else dtype.numpy

    def run(self, nodes: Iterable[Node]) -> None:
        with np.errstate(all="ignore"):
            for node in nodes:
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
                        TEMPLATES[node.template](self, node)

    def attention(self, node: Attention) -> None:
        nests, tensors = as_nests(node, self.program.tensors)
        self.program = replace(self.program, tensors={**self.program.tensors, **tensors})
        for nest in nests:
            self.nest(nest)

    def target(self, name: str) -> Array:
        """The array that a store writes: a part of its parent where the tensor is placed."""
        if name not in self.env:
            t = self.program.tensors[name]
            if t.place is not None:
                where = [slice(None)] * len(t.shape)
                where[t.place.axis] = slice(t.place.offset, t.place.offset + t.shape[t.place.axis])
                self.env[name] = self.target(t.place.parent)[tuple(where)]
            else:
                self.env[name] = np.zeros(t.shape, self.numpy_dtype(t.dtype))
        return self.env[name]

    def nest(self, nest: Nest) -> None:
        for block in blocks(nest):
            accs: dict[tuple[str, int], tuple[Array, tuple[str, ...]]] = {}
            for step in nest.steps:
                grid = Grid(self, nest.space, block, accs)
                values = self.step(step, grid)
                for k, value in enumerate(values):
                    accs[step.name, k] = (value, tuple(a.name for a in nest.space))
            for store in nest.stores:
                self.store(store, Grid(self, nest.space, block, accs))

    def step(self, step: Reduce | Contract, grid: Grid) -> list[Array]:
        inner = grid.extend(step.axes)
        if isinstance(step, Contract):
            return [self.contract(step, grid, inner)]
        values = [np.asarray(inner.eval(b), self.numpy_dtype(d)) for b, d in zip(step.body, step.dtypes, strict=True)]
        rank, outer_rank = len(inner.axes), len(grid.axes)
        extents = np.broadcast_shapes(*((1,) * (rank - v.ndim) + v.shape for v in values))
        outer = extents[:outer_rank]
        shape = (*outer, *inner.shape[outer_rank:])
        state = [np.broadcast_to(v, shape).reshape(*outer, -1) for v in values]
        folded = zip(fold(self, step.monoid, state), step.dtypes, strict=True)
        return [np.broadcast_to(np.asarray(v, self.numpy_dtype(d)), grid.shape) for v, d in folded]

    def contract(self, step: Contract, grid: Grid, inner: Grid) -> Array:
        outer = [a.name for a in grid.axes]
        reduced = [a.name for a in step.axes]
        dtype = self.numpy_dtype(step.dtype)
        sides = []
        for operand in (step.lhs, step.rhs):
            used = [n for n in (*outer, *reduced) if n in operand.free]
            sides.append((inner.eval_on(operand, used).astype(dtype, copy=False), used))
        (lhs, lused), (rhs, rused) = sides
        both = [n for n in outer if n in lused and n in rused]
        rows = [n for n in outer if n in lused and n not in rused]
        columns = [n for n in outer if n in rused and n not in lused]
        size = {a.name: n for a, n in zip(inner.axes, inner.shape, strict=True)}
        left = _arrange(lhs, lused, (both, rows, reduced), size)
        right = _arrange(rhs, rused, (both, reduced, columns), size)
        product = np.matmul(left, right)
        result = product.reshape([size[n] for n in (*both, *rows, *columns)])
        order = [*both, *rows, *columns]
        missing = [n for n in outer if n not in order]
        result = result.reshape(result.shape + (1,) * len(missing))
        result = result.transpose([(order + missing).index(n) for n in outer])
        return np.broadcast_to(result, grid.shape)

    def store(self, store: Store, grid: Grid) -> None:
        inner = grid.extend(store.axes).restrict(store.domain)
        if inner is None:
            return
        target = self.target(store.tensor)
        value = held_as(inner.eval(store.value), target.dtype)
        where = tuple(inner.index(i) for i in store.index)
        shape = inner.shape
        if not where:
            target[...] = np.broadcast_to(value, shape).reshape(-1)[-1]
            return
        target[tuple(np.broadcast_to(w, shape) for w in where)] = np.broadcast_to(value, shape)

    def scan(self, scan: Scan) -> None:
        state = {c.arg: self.env[c.init] for c in scan.carried}
        for s in scan.stacked:
            self.target(s.result)
        for step in range(scan.trip):
            self.forget(scan.body)
            self.env.update(state)
            self.params[scan.step] = step
            self.run(scan.body)
            for s in scan.stacked:
                position = self.position(s.index)
                where = [slice(None)] * self.env[s.result].ndim
                where[s.axis] = position  # type: ignore[call-overload]
                self.env[s.result][tuple(where)] = self.env[s.value]
            state = {c.arg: self.env[c.next] for c in scan.carried}
            if scan.cond is not None and not bool(self.env[scan.cond]):
                break
        for c in scan.carried:
            self.env[c.result] = np.array(state[c.arg])

    def position(self, index: Index) -> int:
        return int(Grid(self, (), {}, {}).index(index).reshape(-1)[0])

    def forget(self, body: Sequence[Node]) -> None:
        for node in body:
            for name in node.writes:
                self.env.pop(name, None)

    def guard(self, guard: Guard) -> None:
        taken = bool(self.env[guard.flag].reshape(-1)[0])
        self.run(guard.body if taken else guard.otherwise)
        for result, yes, no in guard.results:
            self.env[result] = self.env[yes if taken else no]


class _Env(dict[str, Array]):
    """Tensors by name; a placed tensor that nothing has written is a view of its parent."""

    def __init__(self, machine: _Machine) -> None:
        super().__init__()
        self.machine = machine

    def __missing__(self, name: str) -> Array:
        return self.machine.target(name)


def _arrange(array: Array, used: list[str], groups: tuple[list[str], ...], size: Mapping[str, int]) -> Array:
    names = [n for group in groups for n in group]
    order = [used.index(n) for n in names]
    shape = [int(np.prod([size[n] for n in group], dtype=np.int64)) for group in groups]
    return np.ascontiguousarray(array.transpose(order)).reshape(shape)


def held_as(value: Array, dtype: Any) -> Array:
    """A value as a tensor holds it; words that are a float64's bytes stay as they are."""
    value = np.asarray(value)
    if value.dtype == np.uint64 and dtype == np.float64:
        return value.view(dtype)
    return value if value.dtype == dtype else value.astype(dtype)


def blocks(nest: Nest) -> list[dict[str, tuple[int, int]]]:
    """Intervals of the space axes that keep every grid of the nest below `BLOCK` elements."""
    space = 1
    for a in nest.space:
        space *= a.size
    inner = 1
    for s in nest.steps:
        if isinstance(s, Contract):
            inner = max(inner, _contract_factor(s, nest.space))
        else:
            inner = max(inner, int(np.prod([a.size for a in s.axes], dtype=np.int64)))
    for store in nest.stores:
        inner = max(inner, int(np.prod([a.size for a in store.axes], dtype=np.int64)))
    pieces = -(-space * inner // BLOCK)
    if pieces <= 1 or not nest.space:
        return [{}]
    longest = max(nest.space, key=lambda a: a.size)
    width = max(1, longest.size // min(pieces, longest.size))
    return [{longest.name: (lo, min(lo + width, longest.size))} for lo in range(0, longest.size, width)]


def _contract_factor(step: Contract, space: tuple[Axis, ...]) -> int:
    """How many times larger than the space the larger operand's grid is."""
    total = int(np.prod([a.size for a in space], dtype=np.int64)) or 1
    reduced = int(np.prod([a.size for a in step.axes], dtype=np.int64))
    grids = [
        reduced * int(np.prod([a.size for a in space if a.name in operand.free], dtype=np.int64))
        for operand in (step.lhs, step.rhs)
    ]
    return max(1, -(-max(grids) // total))


_UFUNC = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
}


def fold(machine: Any, monoid: Monoid, state: list[Array]) -> list[Array]:
    """Reduces the last axis of every component."""
    combine = monoid.combine[0]
    simple = len(state) == 1 and combine.op in _UFUNC and all(a.op == "leaf" for a in combine.args)
    if simple and (combine.op not in ("and", "or") or combine.dtype is BOOL):
        dtype = machine.numpy_dtype(monoid.dtypes[0])
        value = state[0]
        if dtype.itemsize < 4 and dtype.kind in "fV" and combine.op in ("add", "mul"):
            value = value.astype(np.float32)
        kwargs = {"dtype": value.dtype} if combine.op in ("add", "mul") and value.dtype != np.bool_ else {}
        initial = np.asarray(monoid.identity[0].attr).astype(value.dtype)
        if value.shape[-1] == 0:
            return [np.full(value.shape[:-1], initial, dtype)]
        ufunc = _UFUNC[combine.op]
        if value.dtype == np.bool_ and combine.op in ("add", "mul"):
            ufunc = np.logical_or if combine.op == "add" else np.logical_and
        return [ufunc.reduce(value, axis=-1, **kwargs).astype(dtype)]
    while state[0].shape[-1] > 1:
        n = state[0].shape[-1]
        half = n // 2
        even = [s[..., 0 : 2 * half : 2] for s in state]
        odd = [s[..., 1 : 2 * half : 2] for s in state]
        merged = _combine(machine, monoid, even, odd)
        state = [np.concatenate([m, s[..., 2 * half :]], axis=-1) for m, s in zip(merged, state, strict=True)]
    if state[0].shape[-1] == 0:
        return [
            np.full(s.shape[:-1], e.attr, machine.numpy_dtype(e.dtype))
            for s, e in zip(state, monoid.identity, strict=True)
        ]
    return [s[..., 0] for s in state]


def _combine(machine: Any, monoid: Monoid, a: list[Array], b: list[Array]) -> list[Array]:
    leaves = {("a", k): v for k, v in enumerate(a)} | {("b", k): v for k, v in enumerate(b)}
    grid = Grid(machine, (), {}, {}, leaves)
    shape = a[0].shape
    return [
        np.broadcast_to(np.asarray(grid.eval(e), machine.numpy_dtype(e.dtype)), shape) for e in monoid.combine
    ]


@dataclass
class Grid:
    """Axes (each with the interval that is evaluated), accumulators, and a memo of evaluated expressions."""

    machine: Any
    axes: tuple[Axis, ...]
    bounds: dict[str, tuple[int, int]]
    accs: Mapping[tuple[str, int], tuple[Array, tuple[str, ...]]]
    leaves: Mapping[tuple[str, int], Array] | None = None

    def __post_init__(self) -> None:
        self.memo: dict[bytes, Array] = {}
        self.positions: dict[str, int] = {a.name: k for k, a in enumerate(self.axes)}

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(hi - lo for lo, hi in (self.interval(a) for a in self.axes))

    def interval(self, axis: Axis) -> tuple[int, int]:
        return self.bounds.get(axis.name, (0, axis.size))

    def extend(self, axes: tuple[Axis, ...]) -> Grid:
        return Grid(self.machine, (*self.axes, *axes), self.bounds, self.accs, self.leaves)

    def restrict(self, domain: Iterable[tuple[str, int, int]]) -> Grid | None:
        """The grid inside of a store's domain, with the accumulators cut to it; None where nothing is left."""
        bounds = dict(self.bounds)
        accs = dict(self.accs)
        for name, lo, hi in domain:
            axis = self.axes[self.positions[name]]
            start, stop = self.interval(axis)
            new = (max(start, lo), min(stop, hi))
            if new[0] >= new[1]:
                return None
            bounds[name] = new
            for key, (value, names) in accs.items():
                if name in names:
                    cut = [slice(None)] * value.ndim
                    cut[names.index(name)] = slice(new[0] - start, new[1] - start)
                    accs[key] = (value[tuple(cut)], names)
        return Grid(self.machine, self.axes, bounds, accs, self.leaves)

    def eval_on(self, expr: Expr, used: list[str]) -> Array:
        """The value of an expression as an array over exactly the axes `used`."""
        value = np.asarray(self.eval(expr))
        value = value.reshape((1,) * (len(self.axes) - value.ndim) + value.shape)
        sizes = dict(zip((a.name for a in self.axes), self.shape, strict=True))
        value = np.broadcast_to(value, [sizes[a.name] if a.name in used else 1 for a in self.axes])
        return value.reshape([sizes[a.name] for a in self.axes if a.name in used])

    def eval(self, expr: Expr) -> Array:
        for node in walk(expr):
            if node.key not in self.memo:
                self.memo[node.key] = self.node(node)
        return self.memo[expr.key]

    def node(self, e: Expr) -> Array:
        match e.op:
            case "const":
                return np.asarray(e.attr).astype(self.machine.numpy_dtype(e.dtype))
            case "index":
                return self.index(e.index[0]).astype(e.dtype.numpy)
            case "load":
                return self.load(e)
            case "acc":
                return self.acc(e)
            case "leaf":
                assert self.leaves is not None
                return self.leaves[e.attr]
            case "assume":
                return self.memo[e.args[0].key]
            case "cast" if self.machine.wide and e.dtype.is_float:
                return cast_array(self.memo[e.args[0].key], F64)
            case "cast" | "bitcast":
                function = OPS[e.op].numpy
                return np.asarray(function(self.memo[e.args[0].key], e.dtype))
        return np.asarray(OPS[e.op].numpy(*(self.memo[a.key] for a in e.args)))

    def acc(self, e: Expr) -> Array:
        value, names = self.accs[e.attr]
        extra = len(self.axes) - len(names)
        return value.reshape(value.shape + (1,) * extra)

    def load(self, e: Expr) -> Array:
        array = self.machine.env[e.attr]
        if array.dtype == np.float64 and e.dtype is U32X2:
            array = array.view(np.uint64)
        if array.dtype != e.dtype.numpy and not (self.machine.wide and e.dtype.is_float):
            array = array.astype(e.dtype.numpy)
        if not e.index:
            return array[()]
        where = tuple(
            np.clip(self.index(i), 0, max(size - 1, 0)) for i, size in zip(e.index, array.shape, strict=True)
        )
        return array[where]

    def index(self, i: Index) -> Array:
        result: Array = np.asarray(i.const, np.int64)
        for atom, c in i.terms:
            result = result + self.atom(atom) * c
        return result

    def atom(self, atom: ix.Atom) -> Array:
        match atom:
            case ix.Var():
                k = self.positions[atom.name]
                lo, hi = self.interval(self.axes[k])
                shape = [1] * len(self.axes)
                shape[k] = hi - lo
                return np.arange(lo, hi, dtype=np.int64).reshape(shape)
            case ix.Div():
                return self.index(atom.num) // atom.den
            case ix.Mod():
                return self.index(atom.num) % atom.den
            case ix.Value():
                value = self.eval(atom.expr)
                return np.clip(np.asarray(value).astype(np.int64), atom.lo, atom.hi)
            case ix.Param():
                return np.asarray(self.machine.params[atom.name], np.int64)
        raise TypeError(atom)
