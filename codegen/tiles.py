"""What the schedules of a contraction share: loading blocks of an operand as vectors, and storing a tile.

Rows and columns are counted in groups of four. A block of an operand is 4 free elements by some reduced ones, and
always comes as one vector along the free axis per reduced element. Where memory is contiguous along the reduced axis
instead, four vectors are loaded along it and transposed in registers. Elements beyond the edges are loaded (WebGPU
keeps such loads harmless) and never stored; beyond the end of the reduced axis they must be zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.dtypes import BOOL, F32, F32X2, I32, U32, U32X2
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.kernel import Barrier, SharedArray, Write
from onnx2wgsl.ir.program import Axis, Nest, Store, TensorType, unique

from .axes import Contraction, Operand
from .grid import spread
from .loops import domain_condition
from .storage import address, root, storage_of
from .vectors import (
    LANE,
    LANES,
    VectorEmitter,
    assemble,
    element,
    failures,
    is_vector,
    multiply_add,
    splat,
    vector_base,
)

Env = Mapping[str, Index]
ALONG_FREE, ALONG_DEPTH = "free", "depth"


@dataclass(frozen=True)
class Source:
    """An operand with the direction in which its memory is read; `scattered` if that gives no vectors."""

    operand: Operand
    direction: str
    scattered: bool
    depth: int
    inner: tuple[Axis, ...]

    def at(self, env: Env, free: Index, depth: Index) -> Expr:
        """The operand's value at a free and a reduced position."""
        where = {**env, **spread(free, self.operand.free), **spread(depth, self.inner)}
        return self.operand.value.substitute(where)


def source(c: Contraction, operand: Operand, tensors: Mapping[str, TensorType]) -> Source:
    """Finds the direction by a probe: four lanes along the free axis, else along the reduced one."""
    free, depth = ix.var("free", operand.size), ix.var("depth", c.depth)
    wide_free = ix.var("free4", -(-operand.size // LANES)) * LANES + LANE
    result = Source(operand, ALONG_FREE, False, c.depth, c.inner)
    failed = failures(result.at({}, wide_free, depth), tensors)
    if failed and c.depth % LANES == 0:
        wide_depth = ix.var("depth4", c.depth // LANES) * LANES + LANE
        if failures(result.at({}, free, wide_depth), tensors) < failed:
            return replace(result, direction=ALONG_DEPTH)
    return replace(result, scattered=failed > 0)


def is_contiguous_in_depth(s: Source, tensors: Mapping[str, TensorType]) -> bool:
    """Whether neighbours along the reduced axis are neighbours in memory."""
    value = s.at({}, ix.var("free", s.operand.size), ix.var("depth", s.depth))
    return any(address(tensors, e.attr, e.index).coefficient("depth") == 1 for e in ex.loads(value))


def bind_index(emitter: VectorEmitter, value: Index, size: int, prefix: str) -> Index:
    """A name for an index that lies in [0, size) wherever it matters."""
    if value.is_const or value.as_var is not None:
        return value
    memo = emitter.scopes[-1].memo
    key = ix.digest("name", value.key, size)
    if key not in memo:
        name = emitter.fresh(prefix)
        memo[key] = emitter.let(emitter.index(value), name)
    return ix.var(memo[key].attr, size)


def load_block(
    emitter: VectorEmitter, s: Source, env: Env, group: Index, depth: Index, count: int, guarded: bool
) -> list[Expr]:
    """The vectors of free group `group` at reduced positions `depth` to `depth + count - 1`."""
    if s.direction == ALONG_FREE:
        free = group * LANES + LANE
        return emitter.vectors(*(_within(s.at(env, free, depth + k), depth + k, s, guarded) for k in range(count)))
    live = min(LANES, s.operand.size)
    loaded = []
    for r in range(live):
        value = s.at(env, group * LANES + r, depth + LANE)
        loaded.extend(emitter.vectors(_within(value, depth, s, guarded)))
    named = [v if v.op in ("var", "vec") else emitter.let(v) for v in loaded]
    named += [named[0]] * (LANES - live)
    return [assemble([element(v, k) for v in named]) for k in range(count)]


def _within(value: Expr, depth: Index, s: Source, guarded: bool) -> Expr:
    return ex.select(ex.in_range(depth, 0, s.depth), value, ex.zero(value.dtype)) if guarded else value


class Accumulators:
    """A thread's part of the product: `groups` of rows and of columns, one named vector along the columns per row."""

    def __init__(self, emitter: VectorEmitter, c: Contraction, rows: Sequence[Index], columns: Sequence[Index]) -> None:
        self.emitter, self.c, self.rows, self.columns = emitter, c, rows, columns
        self.live = min(LANES, c.left.size)
        zero = splat(ex.zero(c.step.dtype))
        places = product(range(len(rows)), range(self.live), range(len(columns)))
        self.names = {place: emitter.var(zero, "c") for place in places}

    def add(self, left: Sequence[Expr], right: Sequence[Expr]) -> None:
        """Adds one outer product: a vector of rows and of columns for each group."""
        right = [b if b.op == "var" else self.emitter.let(b) for b in right]
        for (g, r, h), total in self.names.items():
            self.emitter.assign(total, multiply_add(splat(element(left[g], r)), right[h], total))

    def add_slices(self, array: SharedArray, thread: Index, part: Index, slices: int, threads: int) -> None:
        """Adds the sums of all slices into those of the first, halving the slices through workgroup memory.

        The threads of the upper half write their sums where the threads of the lower half, which have the same numbers
        within their slices, find them; a round needs as many cells as the array has at least.
        """
        emitter, dtype = self.emitter, array.dtype
        half = slices // 2
        while half:
            count = half * threads
            if count * len(self.names) > array.count:
                raise ValueError(f"{count * len(self.names)} sums do not fit into {array.count} cells")
            upper = ex.machine("le", (ex.const(half, I32), emitter.index(part)), BOOL)
            active = ex.machine("lt", (emitter.index(part), ex.const(2 * half, I32)), BOOL)
            with emitter.when(ex.machine("and", (upper, active), BOOL)):
                for k, total in enumerate(self.names.values()):
                    emitter.append(Write(array.name, emitter.index(thread + (k - 1) * count), total))
            emitter.append(Barrier())
            with emitter.when(ex.machine("lt", (emitter.index(part), ex.const(half, I32)), BOOL)):
                for k, total in enumerate(self.names.values()):
                    other = ex.fetch(array.name, dtype, emitter.index(thread + k * count))
                    emitter.assign(total, ex.machine("add", (total, other), dtype))
            emitter.append(Barrier())
            half //= 2

    def store(self, nest: Nest, env: Env, edges: tuple[bool, bool], inside: Expr) -> None:
        """Runs the stores of the nest; `edges` says whether rows and columns may lie beyond the product."""
        for name in (v.attr for v in self.names.values()):
            self.emitter.volatile.discard(name)
            self.emitter.bind_wide(name)
        vectors = vector_targets(self.c, nest, self.emitter.tensors)
        with self.emitter.when(inside):
            for (g, r, h), total in self.names.items():
                row, group = self.rows[g] * LANES + r, self.columns[h]
                exists = self.before(row, self.c.left.size, edges[0])
                if exists == ex.FALSE:
                    continue
                with self.emitter.when(exists):
                    self.store_group(nest, env, row, group, total, edges[1], vectors)

    def before(self, position: Index, size: int, edge: bool) -> Expr:
        """Whether a position lies in the product; its range does not tell, since tiles reach beyond."""
        if not edge or position.is_const:
            return ex.TRUE if not edge or position.const < size else ex.FALSE
        return ex.machine("lt", (self.emitter.index(position), ex.const(size, I32)), BOOL)

    def store_group(
        self, nest: Nest, env: Env, row: Index, group: Index, total: Expr, edge: bool, vectors: set[str]
    ) -> None:
        c, emitter = self.c, self.emitter
        where = {**env, **spread(row, c.left.free), **spread(group * LANES + LANE, c.right.free)}
        ragged = c.right.size % LANES > 0
        acc = ex.variable(total.attr, c.step.dtype)
        exists = self.before(group * LANES, c.right.size, edge and not ragged)
        if exists == ex.FALSE:
            return
        with emitter.when(exists):
            for store in nest.stores:
                value = ex.rewrite_tree(store.value, {}, lambda e: acc if e.op == "acc" else None, where)
                indices = tuple(i.substitute(where) for i in store.index)
                domain = domain_condition(store, where)
                if domain == ex.FALSE:
                    continue
                if root(emitter.tensors, store.tensor) in vectors:
                    base = vector_base(address(emitter.tensors, store.tensor, indices))
                    assert base is not None
                    with emitter.when(emitter.values(domain)[0]):
                        emitter.store_vector(store.tensor, base, emitter.vectors(value)[0])
                else:
                    limits = [self.before(group * LANES + k, c.right.size, edge and ragged) for k in range(LANES)]
                    store_lanes(emitter, Store(store.tensor, (), indices, value), domain, limits)


def store_lanes(emitter: VectorEmitter, store: Store, domain: Expr, limits: Sequence[Expr]) -> None:
    """Stores lane by lane: each where its limit (an L2 condition) and the domain hold."""
    whole = None if store.value.dtype in (U32X2, F32X2) else emitter.vectors(store.value)[0]
    if whole is not None and whole.op not in ("var", "vec"):
        whole = emitter.let(whole)
    for lane, limit in enumerate(limits):
        inside = emitter.at_lane(domain, lane)
        if ex.FALSE in (limit, inside):
            continue
        with emitter.when(limit), emitter.when(emitter.values(inside)[0]):
            value = emitter.values(emitter.at_lane(store.value, lane))[0] if whole is None else element(whole, lane)
            indices = tuple(i.substitute({"lane": ix.constant(lane)}) for i in store.index)
            emitter.store(store.tensor, indices, value)


def vector_targets(c: Contraction, nest: Nest, tensors: Mapping[str, TensorType]) -> set[str]:
    """The buffers that every store writes as whole vectors; one that is written both ways would race."""
    columns = ix.var("column4", -(-c.right.size // LANES)) * LANES + LANE
    where = {**spread(ix.var("batch", c.batches), c.batch), **spread(ix.var("row", c.left.size), c.left.free)}
    where |= spread(columns, c.right.free)
    scalar: set[str] = set()
    for store in nest.stores:
        position = address(tensors, store.tensor, tuple(i.substitute(where) for i in store.index))
        plain = storage_of(tensors[store.tensor].dtype).element in (F32, I32, U32)
        ragged = c.right.size % LANES or "lane" in domain_condition(store, where).free
        if ragged or not plain or not is_vector(tensors, store.tensor, position):
            scalar.add(root(tensors, store.tensor))
    return set(unique(root(tensors, s.tensor) for s in nest.stores)) - scalar
