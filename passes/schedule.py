"""schedule (L1 → L2): every nest becomes a dispatch with one or more schedules.

A map gets a thread per element; a packed tensor a thread per word; a reduction a thread per result, and besides, where
it is long and there are few results, a workgroup per result. Schedules without workgroup memory come first and are
preferred by CPU adapters, whose compilers are slow on workgroup arrays. Scans are laid out step by step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from onnx2wgsl.codegen import heuristics
from onnx2wgsl.codegen.contraction import contraction_kernels
from onnx2wgsl.codegen.grid import product
from onnx2wgsl.codegen.loops import is_packed_map, rows_kernel, threads_kernel, words_kernel
from onnx2wgsl.codegen.sort import sort_steps
from onnx2wgsl.codegen.storage import root, storage_of
from onnx2wgsl.errors import Gap, UnsupportedError
from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.attention import as_nests
from onnx2wgsl.ir.dtypes import I32
from onnx2wgsl.ir.kernel import Kernel, KernelProgram, KernelStep
from onnx2wgsl.ir.program import (
    Attention,
    Axis,
    Guard,
    Nest,
    Node,
    Opaque,
    Program,
    Reduce,
    Scan,
    Store,
    TensorType,
    nest_exprs,
    unique,
)
from onnx2wgsl.ir.rewrite import Rewriter

from .base import Pass, PassResult

# The kernels of each opaque template; their meaning is in `ir/opaque.py`.
TEMPLATES = {"sort": sort_steps}


@dataclass(frozen=True)
class Schedule(Pass[Program, KernelProgram]):
    name: ClassVar[str] = "schedule"

    def run(self, program: Program) -> PassResult[KernelProgram]:
        layout = _Layout(dict(program.tensors))
        for node in program.nodes:
            layout.node(node)
        result = KernelProgram(
            layout.tensors, dict(program.constants), program.inputs, program.outputs, tuple(layout.steps)
        )
        return PassResult(result, True, {"dispatches": len(layout.steps), "schedules": layout.counts()})


@dataclass
class _Layout:
    tensors: dict[str, TensorType]
    steps: list[KernelStep] = field(default_factory=list)
    rename: dict[str, str] = field(default_factory=dict)
    uniforms: tuple[tuple[str, int], ...] = ()
    known: dict[tuple[Any, ...], tuple[Kernel, ...]] = field(default_factory=dict)
    parts: dict[int, list[_Part]] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        result: dict[str, int] = {}
        for step in self.steps:
            kind = step.variants[-1].schedule.split(":")[0]
            result[kind] = result.get(kind, 0) + 1
        return dict(sorted(result.items()))

    def node(self, node: Node) -> None:
        match node:
            case Nest():
                self.nest(node)
            case Scan():
                self.scan(node)
            case Guard():
                self.guard(node)
            case Attention():
                nests, made = as_nests(node, self.tensors)
                self.tensors.update(made)
                for nest in nests:
                    self.nest(nest)
            case Opaque():
                self.opaque(node)

    def guard(self, guard: Guard) -> None:
        """Both branches, and then the results of the one that the flag chooses: branches have no side effects."""
        for node in (*guard.body, *guard.otherwise):
            self.node(node)
        flag = ex.load(guard.flag, self.tensors[guard.flag].dtype, [0] * len(self.tensors[guard.flag].shape))
        chosen = ~flag.equals(0)
        for result, yes, no in guard.results:
            axes = tuple(Axis(f"i{k}", s) for k, s in enumerate(self.tensors[result].shape))
            i = tuple(a.var for a in axes)
            value = ex.select(chosen, *(ex.load(t, self.tensors[t].dtype, i) for t in (yes, no)))
            self.nest(Nest(axes, (), (Store(result, (), i, value),), guard.nodes))

    def opaque(self, node: Opaque) -> None:
        """The dispatches of a template, on the tensors of this step of a scan."""
        for step in TEMPLATES[node.template](node, self.tensors):
            names = {n: self.rename[n] for n in (*step.reads, *step.writes) if n in self.rename}
            self.steps.append(replace(step, rename=names))

    def nest(self, nest: Nest) -> None:
        """One dispatch per nest; a nest without steps gives one per group of stores over the same space."""
        if id(nest) not in self.parts:
            self.parts[id(nest)] = [self.part(p) for p in split_stores(reduced_once(nest))]
        for part in self.parts[id(nest)]:
            self.dispatch(part)

    def part(self, nest: Nest) -> _Part:
        """A nest with its schedules, which nests that are equal but for the names of their tensors share."""
        _refuse_endless(nest)
        names, renamed, types = canonical(nest, self.tensors)
        key = (renamed, tuple(types.items()))
        if key not in self.known:
            self.known[key] = schedules(renamed, types)
        roots = {names[n]: n for n in names if self.tensors[n].place is None}
        reads = unique(root(types, r) for r in renamed.reads)
        writes = unique(root(types, w) for w in renamed.writes)
        return _Part(nest, self.known[key], reads, writes, roots)

    def dispatch(self, part: _Part) -> None:
        used = params(part.nest)
        uniforms = tuple((n, v) for n, v in self.uniforms if n in used)
        rename = {c: self.rename.get(n, n) for c, n in part.roots.items() if c in part.reads or c in part.writes}
        stencil = bool(part.nest.steps)
        step = KernelStep(part.variants, part.reads, part.writes, part.nest.nodes, uniforms, rename, stencil)
        self.steps.append(step)

    def scan(self, scan: Scan) -> None:
        """The body's dispatches once per step; carried tensors alternate between two buffers."""
        if scan.cond is not None:
            raise UnsupportedError([Gap(", ".join(scan.nodes), "Loop", "a loop that ends on data is not supported")])
        body = [*stacked_body(scan, self.tensors)]
        if any(isinstance(n, Scan) for n in body):
            raise UnsupportedError([Gap(", ".join(scan.nodes), "Loop", "a loop inside a loop is not supported")])
        written = {w for n in body for w in n.writes}
        outer, current = dict(self.rename), {c.arg: c.init for c in scan.carried}
        for step in range(scan.trip):
            last = step == scan.trip - 1
            following = {}
            for k, c in enumerate(scan.carried):
                target = c.result if last else f"{c.result}.{step % 2}"
                self.tensors.setdefault(target, self.tensors[c.result])
                following[c.next] = (k, c, target)
            self.rename = {**outer, **{a: outer.get(t, t) for a, t in current.items()}}
            self.rename.update({n: target for n, (_, c, target) in following.items() if n in written})
            self.uniforms = ((scan.step, step),)
            for node in body:
                self.node(node)
            current = {c.arg: self.carry(c, following[c.next][2], written) for c in scan.carried}
        self.rename, self.uniforms = outer, ()
        for c in scan.carried:
            if current[c.arg] != c.result:
                self.copy(current[c.arg], c.result, scan.nodes)

    def carry(self, c: Any, target: str, written: set[str]) -> str:
        """The tensor that holds a carried value after a step."""
        return target if c.next in written and self.rename.get(c.next) == target else self.rename.get(c.next, c.next)

    def copy(self, source: str, target: str, nodes: tuple[str, ...]) -> None:
        t = self.tensors[target]
        axes = tuple(Axis(f"i{k}", s) for k, s in enumerate(t.shape))
        i = tuple(a.var for a in axes)
        value = ex.load(source, self.tensors[source].dtype, i)
        self.nest(Nest(axes, (), (Store(target, (), i, value),), nodes))


@dataclass(frozen=True)
class _Part:
    """A nest, its schedules, the canonical names of what it reads and writes, and the tensors behind them."""

    nest: Nest
    variants: tuple[Kernel, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    roots: dict[str, str]


class _Rename(Rewriter):
    def __init__(self, names: Mapping[str, str]) -> None:
        super().__init__()
        self.names = names

    def load(self, e: ex.Expr) -> ex.Expr:
        return ex.load(self.names[e.attr], e.dtype, self.indices(e.index))

    def store(self, store: Store) -> Store:
        return replace(super().store(store), tensor=self.names[store.tensor])


def canonical(
    nest: Nest, tensors: Mapping[str, TensorType]
) -> tuple[dict[str, str], Nest, dict[str, TensorType]]:
    """A nest with its tensors renamed by their order: the names, the nest without provenance, the tensors' types."""
    names: dict[str, str] = {}
    for name in (*nest.reads, *nest.writes):
        while name not in names:
            names[name] = f"t{len(names)}"
            place = tensors[name].place
            name = name if place is None else place.parent
    types = {}
    for name, short in names.items():
        t = tensors[name]
        place = None if t.place is None else replace(t.place, parent=names[t.place.parent])
        types[short] = TensorType(t.dtype, t.shape, place=place)
    renamed = _Rename(names).node(nest)
    assert isinstance(renamed, Nest)
    return names, replace(renamed, nodes=()), types


def params(nest: Nest) -> set[str]:
    """The parameters that occur in a nest's indices."""
    found: set[str] = set()

    def visit(i: ix.Index) -> None:
        for atom, _ in i.terms:
            if isinstance(atom, ix.Param):
                found.add(atom.name)
            elif isinstance(atom, (ix.Div, ix.Mod)):
                visit(atom.num)

    for e in ex.walk(*nest_exprs(nest)):
        for i in e.index:
            visit(i)
    for store in nest.stores:
        for i in store.index:
            visit(i)
    return found


def stacked_body(scan: Scan, tensors: Mapping[str, TensorType]) -> list[Node]:
    """The body with an additional store into each stacked result, at the position of the step."""
    body = list(scan.body)
    for s in scan.stacked:
        writer = next((k for k, n in enumerate(body) if s.value in n.writes), None)
        node = body[writer] if writer is not None else None
        if isinstance(node, Nest):
            made = [st for st in node.stores if st.tensor == s.value]
            extra = [
                replace(st, tensor=s.result, index=(*st.index[: s.axis], s.index, *st.index[s.axis :])) for st in made
            ]
            body[writer] = replace(node, stores=(*node.stores, *extra))  # type: ignore[index]
            continue
        axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(tensors[s.value].shape))
        i = tuple(a.var for a in axes)
        value = ex.load(s.value, tensors[s.value].dtype, i)
        body.append(Nest(axes, (), (Store(s.result, (), (*i[: s.axis], s.index, *i[s.axis :]), value),), scan.nodes))
    return body


def reduced_once(nest: Nest) -> Nest:
    """A nest of reductions that computes each of them once: axes that no step uses become axes of the stores."""
    if not nest.steps or not all(isinstance(s, Reduce) for s in nest.steps):
        return nest
    used = frozenset().union(*(e.free for s in nest.steps for e in s.exprs))
    idle = tuple(a for a in nest.space if a.name not in used and a.size > 1)
    taken = {a.name for s in nest.stores for a in s.axes}
    if not idle or any(a.name in taken for a in idle):
        return nest
    space = tuple(a for a in nest.space if a not in idle)
    return replace(nest, space=space, stores=tuple(replace(s, axes=(*idle, *s.axes)) for s in nest.stores))


def split_stores(nest: Nest) -> list[Nest]:
    """A nest without steps as nests whose space holds the stores' own axes; equal spaces stay together."""
    if nest.steps:
        return [nest]
    groups: dict[Any, list[Store]] = {}
    for store in nest.stores:
        axes, env = [], {}
        bounds = {name: (lo, hi) for name, lo, hi in store.domain}
        for a in (*nest.space, *store.axes):
            lo, hi = bounds.get(a.name, (0, a.size))
            axes.append(Axis(a.name, hi - lo))
            env[a.name] = ix.var(a.name, hi - lo) + lo
        plain = Store(store.tensor, (), tuple(i.substitute(env) for i in store.index), store.value.substitute(env))
        groups.setdefault(tuple(axes), []).append(plain)
    return [Nest(axes, (), tuple(stores), nest.nodes) for axes, stores in groups.items()]


def schedules(nest: Nest, tensors: Mapping[str, TensorType]) -> tuple[Kernel, ...]:
    """The schedules of one nest, the one that every adapter can run last."""
    if any(storage_of(tensors[s.tensor].dtype).per_word > 1 for s in nest.stores):
        if not is_packed_map(nest, tensors):
            raise AssertionError(f"a packed tensor is written by a nest that is not a row-major map: {nest.stores}")
        return (words_kernel(nest, tensors),)
    product_kernels = contraction_kernels(nest, tensors)
    if product_kernels is not None:
        return product_kernels
    if not nest.steps:
        return (threads_kernel(nest, tensors),)
    points = product([a.size for a in nest.space])
    longest = max(product([a.size for a in s.axes]) for s in nest.steps)
    size = heuristics.row_threads(points, longest)
    if size is None:
        return (threads_kernel(nest, tensors),)
    rows = rows_kernel(nest, tensors, size)
    if iterations(nest) > heuristics.THREAD_ITERATIONS:
        return (rows,)
    return (replace(threads_kernel(nest, tensors), prefer=(("adapter", "cpu"),)), rows)


def _refuse_endless(nest: Nest) -> None:
    """Refuses a nest whose points are not numbered by an i32."""
    for part in (*nest.steps, *nest.stores):
        space, inner = (product([a.size for a in axes]) for axes in (nest.space, part.axes))
        if max(space, inner) > I32.hi:
            reason = f"a kernel would loop over {max(space, inner)} points, above the 2147483647 of an index"
            raise UnsupportedError([Gap(", ".join(nest.nodes), "kernel", reason)])


def iterations(nest: Nest) -> int:
    """Loop iterations of one thread that computes a point of the space alone."""
    return sum(product([a.size for a in part.axes]) for part in (*nest.steps, *nest.stores))

