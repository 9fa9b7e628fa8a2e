"""Threads and workgroups: folding grids into three dimensions and spreading axes over threads."""

from __future__ import annotations

from collections.abc import Sequence

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.dtypes import I32, U32
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.program import Axis

from .emitter import Emitter

MAX_GROUPS = 65535


def product(sizes: Sequence[int]) -> int:
    n = 1
    for size in sizes:
        n *= size
    return n


def fold_grid(groups: int) -> tuple[int, int, int]:
    """A grid of at least `groups` workgroups within the limit of each dimension."""
    y = -(-groups // MAX_GROUPS)
    if y <= MAX_GROUPS:
        return (-(-groups // y), y, 1)
    z = -(-y // MAX_GROUPS)
    y = -(-y // z)
    return (-(-groups // (y * z)), y, z)


def group_index(grid: tuple[int, int, int]) -> Expr:
    """The number of the workgroup in a folded grid, as u32."""
    number = ex.variable("wid.x", U32)
    if grid[1] > 1:
        row = ex.variable("wid.y", U32)
        if grid[2] > 1:
            row = _plus(row, ex.variable("wid.z", U32), grid[1])
        number = _plus(number, row, grid[0])
    return number


def _plus(a: Expr, b: Expr, factor: int) -> Expr:
    return ex.machine("add", (a, ex.machine("mul", (b, ex.const(factor, U32)), U32)), U32)


def define_thread(emitter: Emitter, grid: tuple[int, int, int], size: int) -> None:
    """Binds `gid`, the number of the thread in the whole grid."""
    number = _plus(ex.variable("lid", U32), group_index(grid), size)
    emitter.let(ex.machine("cast", (number,), I32), "gid")


def spread(position: Index, axes: Sequence[Axis]) -> dict[str, Index]:
    """Each axis as a function of the row-major position in the space of all of them."""
    where = ix.unflatten(position, tuple(a.size for a in axes))
    return {a.name: i for a, i in zip(axes, where, strict=True)}
