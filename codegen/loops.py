"""Schedules without tiles: a thread per point of the space, and a workgroup per row.

*threads*: each thread computes one point of the space, runs the steps as loops, and loops over each store's own axes.
It needs no workgroup memory, so it serves every nest and every adapter.
*rows*: each workgroup computes one point of the space; its threads share the elements of each reduction and combine
their partial states in a tree in workgroup memory. For long reductions over few points.
*words*: each thread computes one word of a packed tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.dtypes import BOOL, I32, U32, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.kernel import Barrier, Kernel, SharedArray, Write
from onnx2wgsl.ir.program import Axis, Contract, Monoid, Nest, Reduce, Store, TensorType

from .emitter import Emitter, pack
from .grid import define_thread, fold_grid, group_index, product, spread
from .storage import address, root, storage_of

THREADS = 64
Accs = dict[tuple[str, int], Expr]
Env = Mapping[str, Index]


def bound_expr(e: Expr, env: Env, accs: Accs) -> Expr:
    """An expression with loop axes replaced by indices over kernel variables, and accumulators by their names."""
    e = e.substitute(env)
    return ex.rewrite(e, lambda n: accs.get(n.attr) if n.op == "acc" else None) if accs else e


def threads_kernel(nest: Nest, tensors: Mapping[str, TensorType]) -> Kernel:
    """One thread per point of the space."""
    emitter = Emitter(tensors)
    total = product([a.size for a in nest.space])
    grid = fold_grid(-(-total // THREADS))
    define_thread(emitter, grid, THREADS)
    env = spread(ix.var("gid", total), nest.space)
    guard = _inside("gid", total, THREADS, grid)
    with emitter.when(guard):
        accs = _serial_steps(emitter, nest, env)
        for store in nest.stores:
            _serial_store(emitter, store, env, accs)
    return Kernel(f"threads: {total} points", (THREADS, 1, 1), grid, emitter.body)


def _inside(name: str, total: int, size: int, grid: tuple[int, int, int]) -> Expr:
    if product(grid) * size == total:
        return ex.TRUE
    return ex.machine("lt", (ex.variable(name, I32), ex.const(total, I32)), BOOL)


def _serial_steps(emitter: Emitter, nest: Nest, env: Env) -> Accs:
    accs: Accs = {}
    for step in nest.steps:
        state = [emitter.var(e, "a") for e in identity(step)]
        _loop_axes(emitter, list(step.axes), dict(env), partial(_accumulate, emitter, step, state, accs))
        for k, var in enumerate(state):
            accs[step.name, k] = emitter.freeze(var)
    return accs


def identity(step: Reduce | Contract) -> tuple[Expr, ...]:
    """The first state of a step."""
    return (ex.zero(step.dtype),) if isinstance(step, Contract) else step.monoid.identity


def _loop_axes(emitter: Emitter, axes: list[Axis], env: Env, body: Callable[[Env], None]) -> None:
    if not axes:
        body(env)
        return
    name = emitter.fresh("r")
    with emitter.loop(name, 0, axes[0].size):
        _loop_axes(emitter, axes[1:], {**env, axes[0].name: ix.var(name, axes[0].size)}, body)


def _accumulate(emitter: Emitter, step: Reduce | Contract, state: list[Expr], accs: Accs, env: Env) -> None:
    if isinstance(step, Contract):
        lhs, rhs = (bound_expr(e, env, accs) for e in (step.lhs, step.rhs))
        (value,) = emitter.values(ex.cast(lhs, step.dtype) * ex.cast(rhs, step.dtype))
        emitter.assign(state[0], ex.machine("add", (state[0], value), step.dtype))
        return
    values = emitter.values(*(bound_expr(e, env, accs) for e in step.body))
    combine(emitter, step.monoid, state, values)


def combine(emitter: Emitter, monoid: Monoid, state: Sequence[Expr], values: Sequence[Expr]) -> None:
    """state = state ∘ values; with several components all results are computed before any is assigned."""
    leaves = {("a", k): v for k, v in enumerate(state)}
    leaves |= {("b", k): v for k, v in enumerate(_named(emitter, values))}
    results = emitter.values(*(
        ex.rewrite(e, lambda n: leaves[n.attr] if n.op == "leaf" else None) for e in monoid.combine
    ))  # fmt: skip
    if len(results) > 1:
        results = [emitter.let(r) for r in results]
    for var, value in zip(state, results, strict=True):
        emitter.assign(var, value)


def _named(emitter: Emitter, values: Sequence[Expr]) -> list[Expr]:
    return [v if v.op in ("var", "const") else emitter.let(v) for v in values]


def _serial_store(emitter: Emitter, store: Store, env: Env, accs: Accs) -> None:
    def write(inner: Env) -> None:
        condition = domain_condition(store, inner)
        if condition == ex.FALSE:
            return
        (flag,) = emitter.values(condition)
        with emitter.when(flag):
            (value,) = emitter.values(bound_expr(store.value, inner, accs))
            emitter.store(store.tensor, tuple(i.substitute(inner) for i in store.index), value)

    _loop_axes(emitter, list(store.axes), dict(env), write)


def domain_condition(store: Store, env: Env) -> Expr:
    """Whether a point lies in the store's domain."""
    condition = ex.TRUE
    for name, lo, hi in store.domain:
        condition = condition & ex.in_range(env[name], lo, hi)
    return condition


def words_kernel(nest: Nest, tensors: Mapping[str, TensorType]) -> Kernel:
    """One thread per word of a packed tensor that a map writes in row-major order."""
    (store,) = nest.stores
    t = tensors[store.tensor]
    storage = storage_of(t.dtype)
    axes = (*nest.space, *store.axes)
    count = product([a.size for a in axes])
    total = -(-count // storage.per_word)
    emitter = Emitter(tensors)
    grid = fold_grid(-(-total // THREADS))
    define_thread(emitter, grid, THREADS)
    word = ix.var("gid", total)
    with emitter.when(_inside("gid", total, THREADS, grid)):
        packed: Expr | None = None
        for lane in range(storage.per_word):
            position = word * storage.per_word + lane
            value = bound_expr(store.value, spread(position, axes), {})
            value = ex.select(ex.in_range(position, 0, count), value, ex.zero(value.dtype))
            (emitted,) = emitter.values(value)
            bits = ex.machine("shl", (pack(emitted, t.dtype), ex.const(lane * (32 // storage.per_word), U32)), U32)
            packed = bits if packed is None else ex.machine("or", (packed, bits), U32)
        assert packed is not None
        emitter.append(Write(root(tensors, store.tensor), emitter.index(word), packed))
    return Kernel(f"words: {total} words of {storage.per_word} elements", (THREADS, 1, 1), grid, emitter.body)


def is_packed_map(nest: Nest, tensors: Mapping[str, TensorType]) -> bool:
    """Whether a nest is a map that writes a packed tensor in row-major order."""
    if nest.steps or len(nest.stores) != 1 or nest.stores[0].domain:
        return False
    store = nest.stores[0]
    axes = (*nest.space, *store.axes)
    flat = ix.flatten([a.var for a in axes], [a.size for a in axes])
    whole = product([a.size for a in axes]) == tensors[store.tensor].count
    return whole and address(tensors, store.tensor, store.index) == flat and tensors[store.tensor].place is None


def rows_kernel(nest: Nest, tensors: Mapping[str, TensorType], size: int) -> Kernel:
    """One workgroup of `size` threads (a power of two) per point of the space."""
    emitter = Emitter(tensors)
    total = product([a.size for a in nest.space])
    grid = fold_grid(total)
    emitter.let(ex.machine("cast", (group_index(grid),), I32), "row")
    emitter.let(ex.machine("cast", (ex.variable("lid", U32),), I32), "tid")
    env = spread(ix.var("row", total), nest.space)
    arrays: dict[tuple[DType, int], SharedArray] = {}
    accs: Accs = {}
    for step in nest.steps:
        _row_step(emitter, step, env, accs, size, arrays)
    for store in nest.stores:
        _row_store(emitter, store, env, accs, size, total, grid)
    return Kernel(
        f"rows: {total} rows of {size} threads", (size, 1, 1), grid, emitter.body, tuple(arrays.values())
    )


def _row_step(
    emitter: Emitter,
    step: Reduce | Contract,
    env: Env,
    accs: Accs,
    size: int,
    arrays: dict[tuple[DType, int], SharedArray],
) -> None:
    state = [emitter.var(e, "a") for e in identity(step)]
    count = product([a.size for a in step.axes])
    name = emitter.fresh("r")
    with emitter.loop(name, ex.variable("tid", I32), count, size):
        inner = {**env, **spread(ix.var(name, count), step.axes)}
        _accumulate(emitter, step, state, accs, inner)
    shared = [_array(arrays, s.dtype, k, size) for k, s in enumerate(state)]
    monoid = monoid_of(step)
    tid = ex.variable("tid", I32)
    _write_shared(emitter, shared, state, tid)
    stride = size // 2
    while stride:
        emitter.append(Barrier())
        near = ex.machine("lt", (tid, ex.const(stride, I32)), BOOL)
        with emitter.when(near):
            other = ex.machine("add", (tid, ex.const(stride, I32)), I32)
            combine(
                emitter, monoid, state, [ex.fetch(a.name, s.dtype, other) for a, s in zip(shared, state, strict=True)]
            )
            _write_shared(emitter, shared, state, tid)
        stride //= 2
    emitter.append(Barrier())
    for k, a in enumerate(shared):
        accs[step.name, k] = emitter.let(ex.fetch(a.name, state[k].dtype, ex.const(0, I32)))
    emitter.append(Barrier())


def _array(arrays: dict[tuple[DType, int], SharedArray], dtype: DType, k: int, size: int) -> SharedArray:
    key = (dtype, k)
    if key not in arrays:
        arrays[key] = SharedArray(f"s{len(arrays)}", dtype, size)
    return arrays[key]


def _write_shared(emitter: Emitter, shared: Sequence[SharedArray], state: Sequence[Expr], tid: Expr) -> None:
    for a, s in zip(shared, state, strict=True):
        emitter.append(Write(a.name, tid, s))


def monoid_of(step: Reduce | Contract) -> Monoid:
    """The monoid of a step; a contraction sums."""
    if isinstance(step, Reduce):
        return step.monoid
    return Monoid((ex.zero(step.dtype),), (ex.leaf("a", step.dtype) + ex.leaf("b", step.dtype),))


def _row_store(
    emitter: Emitter, store: Store, env: Env, accs: Accs, size: int, total: int, grid: tuple[int, int, int]
) -> None:
    inside = _inside("row", total, 1, grid)
    if not store.axes:
        first = ex.machine("eq", (ex.variable("tid", I32), ex.const(0, I32)), BOOL)
        with emitter.when(first if inside == ex.TRUE else ex.machine("and", (first, inside), BOOL)):
            _serial_store(emitter, store, env, accs)
        return
    count = product([a.size for a in store.axes])
    name = emitter.fresh("r")
    flat = Store(store.tensor, (), store.index, store.value, store.domain)
    with emitter.when(inside), emitter.loop(name, ex.variable("tid", I32), count, size):
        _serial_store(emitter, flat, {**env, **spread(ix.var(name, count), store.axes)}, accs)
