"""Schedules of contractions: tiles in registers, with and without workgroup memory.

*registers*: each thread computes a few rows by a few vectors of columns straight from storage buffers, with the reduced
axis a loop. Its text is short and it needs no workgroup memory, which is what software drivers want.
*tiles*: a workgroup loads a tile of either operand into workgroup memory, both as vectors along their free axes, so
that the inner loop reads nothing but vectors; each thread adds outer products to its named accumulators. The next tile
may be fetched into registers while the current one is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.dtypes import BOOL, F32, I32, U32, DType, vector
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.kernel import Barrier, Kernel, SharedArray, Write
from onnx2wgsl.ir.program import Axis, Nest, TensorType

from . import heuristics
from .axes import Contraction, Operand, classify
from .grid import define_thread, fold_grid, group_index, product, spread
from .heuristics import Tile
from .tiles import ALONG_DEPTH, Accumulators, Env, Source, bind_index, is_contiguous_in_depth, load_block, source
from .vectors import LANES, VectorEmitter

Tensors = Mapping[str, TensorType]
THREADS = 64


def contraction_kernels(nest: Nest, tensors: Tensors) -> tuple[Kernel, ...] | None:
    """The schedules of a nest that is one contraction of matrices: for CPU adapters, then for all."""
    c = contraction(nest, tensors)
    if c is None:
        return None
    depth = product([a.size for a in c.step.axes])
    shape = heuristics.cpu_tile(c.batches, c.left.size, c.right.size, depth)
    flat = c.flattened()
    outer = product([a.size for a in flat.outer])
    tile = heuristics.gpu_tile(c.batches, c.left.size, c.right.size, lambda depth: outer * -(-flat.depth // depth))
    tiles = tile_kernel(nest, flat, tensors, tile)
    if depth > heuristics.THREAD_ITERATIONS:
        return (tiles,)
    return replace(register_kernel(nest, c, tensors, shape), prefer=(("adapter", "cpu"),)), tiles


def contraction(nest: Nest, tensors: Tensors) -> Contraction | None:
    """The product of matrices that a nest computes; None also for a product with a vector, which is a reduction."""
    c = classify(nest, tensors)
    if c is None or c.step.dtype not in (F32, I32, U32):
        return None
    return c if min(c.left.size, c.right.size) > 1 else None


def _operands(c: Contraction) -> tuple[Operand, Operand]:
    """The operands in the type that the product is accumulated in."""
    left, right = (replace(o, value=ex.cast(o.value, c.step.dtype)) for o in (c.left, c.right))
    return left, right


def register_kernel(nest: Nest, c: Contraction, tensors: Tensors, shape: tuple[int, int]) -> Kernel:
    """Each thread computes `shape` elements of the product; a shape of fewer than 4 rows holds all of them."""
    emitter = VectorEmitter(tensors)
    rows, columns = shape
    left, right = (source(c, o, tensors) for o in _operands(c))
    count = LANES if ALONG_DEPTH in (left.direction, right.direction) else 1
    counts = (c.batches, -(-c.left.size // rows), -(-c.right.size // columns))
    total = product(counts)
    grid = fold_grid(-(-total // THREADS))
    define_thread(emitter, grid, THREADS)
    whole = product(grid) * THREADS == total
    inside = ex.TRUE if whole else ex.machine("lt", (ex.variable("gid", I32), ex.const(total, I32)), BOOL)
    with emitter.when(inside):
        batch, row, column = _bound(emitter, ix.var("gid", total), counts)
        env = spread(batch, c.batch)
        row_groups = _groups(emitter, row, -(-rows // LANES), c.left.size)
        column_groups = _groups(emitter, column, columns // LANES, c.right.size)
        sums = Accumulators(emitter, c, row_groups, column_groups)

        def step(inner: Env, block: Index) -> None:
            depth = block * count
            lefts = [load_block(emitter, left, inner, g, depth, count, False) for g in row_groups]
            rights = [load_block(emitter, right, inner, g, depth, count, False) for g in column_groups]
            for k in range(count):
                sums.add([v[k] for v in lefts], [v[k] for v in rights])

        _loops(emitter, c.outer, c.depth // count, env, step)
        sums.store(nest, env, (c.left.size % rows > 0, c.right.size % columns > 0), ex.TRUE)
    return Kernel(f"registers: {rows}x{columns} a thread, {total} threads", (THREADS, 1, 1), grid, emitter.body)


def _bound(emitter: VectorEmitter, position: Index, counts: tuple[int, int, int]) -> list[Index]:
    """Batch, row tile and column tile of a position, each under a name."""
    parts = ix.unflatten(position, counts)
    return [bind_index(emitter, p, n, prefix) for p, n, prefix in zip(parts, counts, "zrc", strict=True)]


def _groups(emitter: VectorEmitter, tile: Index, count: int, size: int) -> list[Index]:
    """The groups of four that a thread's tile consists of."""
    return [bind_index(emitter, tile * count + g, -(-size // LANES), "g") for g in range(count)]


def _loops(
    emitter: VectorEmitter, outer: tuple[Axis, ...], blocks: int, env: Env, body: Callable[[Env, Index], None]
) -> None:
    """Loops over the outer axes and the blocks of the inner one, one inside the other."""
    name = emitter.fresh("k")
    if not outer:
        with emitter.loop(name, 0, blocks):
            body(env, ix.var(name, blocks))
        return
    with emitter.loop(name, 0, outer[0].size):
        _loops(emitter, outer[1:], blocks, {**env, outer[0].name: ix.var(name, outer[0].size)}, body)


def tile_kernel(nest: Nest, c: Contraction, tensors: Tensors, tile: Tile) -> Kernel:
    """A workgroup computes `tile` of the product through workgroup memory."""
    emitter = VectorEmitter(tensors)
    counts = (c.batches, -(-c.left.size // tile.rows), -(-c.right.size // tile.columns))
    total = product(counts)
    grid = fold_grid(total)
    emitter.let(ex.machine("cast", (group_index(grid),), I32), "wg")
    emitter.let(ex.machine("cast", (ex.variable("lid", U32),), I32), "tid")
    whole = product(grid) == total
    inside = ex.TRUE if whole else ex.machine("lt", (ex.variable("wg", I32), ex.const(total, I32)), BOOL)
    batch, row, column = _bound(emitter, ix.var("wg", total), counts)
    env = spread(batch, c.batch)
    wide, high = tile.columns // tile.thread_columns, tile.rows // tile.thread_rows
    thread = ix.var("tid", tile.threads * tile.slices)
    part, tid = (bind_index(emitter, p, n, "s") for p, n in zip(*_slices(thread, tile), strict=True))
    tx, ty = (bind_index(emitter, p, n, "p") for p, n in ((tid % wide, wide), (tid // wide, high)))
    operands = _operands(c)
    left = Staged(emitter, "sa", tile.rows, tile, row, source(c, operands[0], tensors), (part, tid))
    right = Staged(emitter, "sb", tile.columns, tile, column, source(c, operands[1], tensors), (part, tid))
    lefts = [ty + g * high for g in range(tile.thread_rows // LANES)]
    rights = [tx + g * wide for g in range(tile.thread_columns // LANES)]
    sums = Accumulators(emitter, c, [left.group(g) for g in lefts], [right.group(g) for g in rights])

    def multiply() -> None:
        def step(k: Index) -> None:
            sums.add([left.fetch(k, g) for g in lefts], [right.fetch(k, g) for g in rights])

        _unrolled(emitter, tile, step)

    blocks = -(-c.depth // tile.depth)
    if tile.prefetch:
        _prefetching(emitter, c.outer, blocks, env, (left, right), multiply)
        if tile.slices > 1:
            sums.add_slices(left.array, thread, part, tile.slices, tile.threads)
            inside = _both(inside, ex.machine("eq", (emitter.index(part), ex.const(0, I32)), BOOL))
    else:

        def body(inner: Env, block: Index) -> None:
            for staged in (left, right):
                staged.write(staged.load(inner, block))
            emitter.append(Barrier())
            multiply()
            emitter.append(Barrier())

        _loops(emitter, c.outer, blocks, env, body)
    sums.store(nest, env, (c.left.size % tile.rows > 0, c.right.size % tile.columns > 0), inside)
    return Kernel(f"tiles: {tile}", (tile.threads * tile.slices, 1, 1), grid, emitter.body, (left.array, right.array))


def _slices(thread: Index, tile: Tile) -> tuple[tuple[Index, Index], tuple[int, int]]:
    """The slice of a thread and its number in the slice, with their sizes."""
    return (thread // tile.threads, thread % tile.threads), (tile.slices, tile.threads)


def _both(a: Expr, b: Expr) -> Expr:
    return b if a == ex.TRUE else ex.machine("and", (a, b), BOOL)


def _unrolled(emitter: VectorEmitter, tile: Tile, step: Callable[[Index], None]) -> None:
    """The reduced elements of one tile, `unroll` at a time."""
    if tile.unroll == tile.depth:
        for k in range(tile.depth):
            step(ix.constant(k))
        return
    name = emitter.fresh("k")
    with emitter.loop(name, 0, tile.depth, tile.unroll):
        for k in range(tile.unroll):
            step(ix.var(name, tile.depth) + k)


def _prefetching(
    emitter: VectorEmitter,
    outer: tuple[Axis, ...],
    blocks: int,
    env: Env,
    sides: tuple[Staged, Staged],
    multiply: Callable[[], None],
) -> None:
    """One loop over all tiles of a slice; each is written from registers that the turn before has filled."""
    sizes = (*(a.size for a in outer), blocks)
    part, slices = sides[0].part, sides[0].tile.slices
    turns = product(sizes) // slices

    def loads(position: Index) -> list[Expr]:
        digits = [bind_index(emitter, p, n, "o") for p, n in zip(ix.unflatten(position, sizes), sizes, strict=True)]
        inner = {**env, **{a.name: d for a, d in zip(outer, digits, strict=False)}}
        return [v for s in sides for v in s.load(inner, digits[-1])]

    held = [emitter.var(value, "n") for value in loads(part)]
    split = len(sides[0].places) * sides[0].step
    name = emitter.fresh("k")
    with emitter.loop(name, 0, turns):
        sides[0].write(held[:split])
        sides[1].write(held[split:])
        emitter.append(Barrier())
        if turns > 1:
            following = ex.machine("lt", (ex.variable(name, I32), ex.const(turns - 1, I32)), BOOL)
            with emitter.when(following):
                after = bind_index(emitter, (ix.var(name, turns) + 1) * slices + part, turns * slices, "k")
                for register, value in zip(held, loads(after), strict=True):
                    emitter.assign(register, value)
        multiply()
        emitter.append(Barrier())


class Staged:
    """A tile of one operand in workgroup memory: for each reduced element the vectors of `width` free elements.

    A thread loads `units` of it: vectors along the free axis, or blocks of four along the reduced axis. Where memory is
    contiguous along the reduced axis, neighbouring threads load neighbours along it.
    """

    def __init__(
        self,
        emitter: VectorEmitter,
        name: str,
        width: int,
        tile: Tile,
        position: Index,
        s: Source,
        thread: tuple[Index, Index],
    ) -> None:
        self.emitter, self.name, self.tile, self.position, self.source = emitter, name, tile, position, s
        self.part, self.tid = thread
        self.across = width // LANES
        self.step = LANES if s.direction == ALONG_DEPTH else 1
        deep = tile.depth // self.step
        self.units = self.across * deep
        depth_first = s.direction == ALONG_DEPTH or (s.scattered and is_contiguous_in_depth(s, emitter.tensors))
        self.places: list[tuple[Index, Index, Index]] = []
        for turn in range(-(-self.units // tile.threads)):
            unit = self.tid + turn * tile.threads
            within, k = (unit // deep, unit % deep) if depth_first else (unit % self.across, unit // self.across)
            self.places.append((within, self.group(within), k * self.step))

    @property
    def dtype(self) -> DType:
        return vector(self.source.operand.value.dtype, LANES)

    @property
    def array(self) -> SharedArray:
        return SharedArray(self.name, self.dtype, self.tile.depth * self.across * self.tile.slices)

    def cell(self, k: Index, within: Index) -> Expr:
        """The address of a vector in this slice's share of workgroup memory."""
        return self.emitter.index((self.part * self.tile.depth + k) * self.across + within)

    def group(self, within: Index) -> Index:
        """The group of the whole operand that is `within` the tile."""
        size = -(-self.source.operand.size // LANES)
        return bind_index(self.emitter, self.position * self.across + within, size, "g")

    def load(self, env: Env, block: Index) -> list[Expr]:
        """The vectors that this thread loads."""
        guarded = self.source.depth % self.tile.depth > 0
        result = []
        for _, group, k in self.places:
            depth = block * self.tile.depth + k
            result += load_block(self.emitter, self.source, env, group, depth, self.step, guarded)
        return result

    def write(self, values: Sequence[Expr]) -> None:
        """Puts the loaded vectors into workgroup memory."""
        rest = list(values)
        for turn, (within, _, k) in enumerate(self.places):
            with self.emitter.when(self.has_unit(turn)):
                for j in range(self.step):
                    self.emitter.append(Write(self.name, self.cell(k + j, within), rest.pop(0)))

    def has_unit(self, turn: int) -> Expr:
        left = self.units - turn * self.tile.threads
        if left >= self.tile.threads:
            return ex.TRUE
        return ex.machine("lt", (self.emitter.index(self.tid), ex.const(left, I32)), BOOL)

    def fetch(self, k: Index, within: Index) -> Expr:
        """A vector of the tile, under a name."""
        return self.emitter.let(ex.fetch(self.name, self.dtype, self.cell(k, within)))
