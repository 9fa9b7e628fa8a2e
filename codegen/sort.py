"""The kernels of the opaque template *sort* (see `ir/opaque.py`): one dispatch a stage of a bitonic network.

A thread compares the pair of positions that its number stands for, through the values that they point to, and swaps
them in place. Block and distance of the stage are uniforms, so that all stages share one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.dtypes import BOOL, I32
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.kernel import Kernel, KernelStep
from onnx2wgsl.ir.opaque import network
from onnx2wgsl.ir.program import Opaque, TensorType

from .emitter import Emitter
from .grid import define_thread, fold_grid
from .storage import root

THREADS = 64


def sort_steps(node: Opaque, tensors: Mapping[str, TensorType]) -> list[KernelStep]:
    """The dispatches of a sort: the positions in order, then the stages."""
    rows, size = tensors[node.writes[0]].shape
    start = _start(node, tensors, rows, size)
    places = root(tensors, node.writes[0])
    steps = [KernelStep((start,), (), (places,), node.nodes)]
    stage = _stage(node, tensors, rows, size)
    for block, distance in network(size):
        uniforms = (("block", block), ("distance", distance))
        steps.append(KernelStep((stage,), (root(tensors, node.reads[0]),), (places,), node.nodes, uniforms))
    return steps


def _start(node: Opaque, tensors: Mapping[str, TensorType], rows: int, size: int) -> Kernel:
    emitter = Emitter(tensors)
    total = rows * size
    grid = fold_grid(-(-total // THREADS))
    define_thread(emitter, grid, THREADS)
    position = ix.var("gid", total)
    with emitter.when(ex.machine("lt", (ex.variable("gid", I32), ex.const(total, I32)), BOOL)):
        value = emitter.index(position % size)
        emitter.store(node.writes[0], (position // size, position % size), value)
    return Kernel(f"sort start: {rows} rows of {size}", (THREADS, 1, 1), grid, emitter.body)


def _stage(node: Opaque, tensors: Mapping[str, TensorType], rows: int, size: int) -> Kernel:
    emitter = Emitter(tensors)
    emitter.bind("u.block", "u.distance")
    total = rows * (size // 2)
    grid = fold_grid(-(-total // THREADS))
    define_thread(emitter, grid, THREADS)
    thread = ix.var("gid", total)
    row, pair = thread // (size // 2), emitter.index(thread % (size // 2))
    distance = ex.variable("u.distance", I32)
    twice = _product(distance, ex.const(2, I32))
    near = _sum(_product(_binary("div", pair, distance), twice), _binary("rem", pair, distance))
    low = ix.index(ix.Value(emitter.let(near), 0, size - 1))
    high = ix.index(ix.Value(emitter.let(_sum(near, distance)), 0, size - 1))
    places = node.writes[0]
    with emitter.when(ex.machine("lt", (ex.variable("gid", I32), ex.const(total, I32)), BOOL)):
        a, b = (emitter.let(v) for v in emitter.values(*(ex.load(places, I32, (row, i)) for i in (low, high))))
        (first,) = emitter.values(_comes_first(node, tensors, row, a, b))
        upward = ex.machine("ne", (ex.machine("and", (near, ex.variable("u.block", I32)), I32), ex.const(0, I32)), BOOL)
        with emitter.when(ex.machine("eq", (first, upward), BOOL)):
            emitter.store(places, (row, low), b)
            emitter.store(places, (row, high), a)
    return Kernel(f"sort stage: {rows} rows of {size}", (THREADS, 1, 1), grid, emitter.body)


def _comes_first(node: Opaque, tensors: Mapping[str, TensorType], row: ix.Index, a: Expr, b: Expr) -> Expr:
    """Whether position a comes before position b: by value, then by position; positions beyond the row come last."""
    n = tensors[node.reads[0]].shape[1]
    (before,) = (e for name, e in node.exprs if name == "before")
    dtype = next(e.dtype for e in ex.walk(before) if e.op == "leaf")

    def value(position: Expr) -> Expr:
        inside = ix.index(ix.Value(ex.op("min", position, ex.const(n - 1, I32)), 0, n - 1))
        return ex.load(node.reads[0], dtype, (row, inside))

    def ordered(left: Expr, right: Expr) -> Expr:
        leaves = {("a", 0): value(left), ("b", 0): value(right)}
        return ex.rewrite(before, lambda e: leaves[e.attr] if e.op == "leaf" else None)

    inside = (a < n) & (b < n)
    by_value = ordered(a, b) | (~ordered(b, a) & (a < b))
    return (inside & by_value) | (~inside & (a < b))


def _binary(op: str, a: Expr, b: Expr) -> Expr:
    return ex.machine(op, (a, b), I32)


def _sum(a: Expr, b: Expr) -> Expr:
    return _binary("add", a, b)


def _product(a: Expr, b: Expr) -> Expr:
    return _binary("mul", a, b)
