"""Advisory thresholds: they decide speed, never correctness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

THREAD_ITERATIONS = 60_000
"""Loop iterations of one thread above which a row is shared by a workgroup on every adapter. llvmpipe ends the loops of
an invocation after 65,535 iterations in all, without an error."""


def row_threads(points: int, longest: int) -> int | None:
    """Threads per row for a nest of `points` rows whose longest reduction has `longest` elements; None: one each."""
    if longest < 32 or (points >= 65536 and longest < 256):
        return None
    for size in (256, 128, 64):
        if longest >= 2 * size:
            return size
    return 32


@dataclass(frozen=True)
class Tile:
    """A workgroup computes rows × columns of a product, `depth` reduced elements at a time, a thread its share of them.

    `unroll` is how many of the `depth` steps are written out in the inner loop; with `prefetch` the next tile is loaded
    into registers while the current one is used. With several `slices` the workgroup is as many groups of threads that
    take turns at the blocks of reduced elements; at the end their sums are added in a tree.
    """

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int
    unroll: int
    prefetch: bool = False
    slices: int = 1

    @property
    def threads(self) -> int:
        """Threads of one slice."""
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)

    def __str__(self) -> str:
        slices = f", {self.slices} slices" if self.slices > 1 else ""
        return f"{self.rows}x{self.columns}x{self.depth}, {self.thread_rows}x{self.thread_columns} a thread{slices}"


GPU_TILES = (
    Tile(128, 128, 16, 8, 8, 16, True),
    Tile(128, 64, 16, 8, 8, 16, True),
    Tile(64, 64, 16, 8, 4, 16, True),
    Tile(64, 32, 16, 4, 4, 16, True),
    Tile(32, 32, 16, 4, 4, 16, True),
    Tile(16, 64, 16, 4, 4, 16, True),
    Tile(16, 32, 32, 4, 4, 16, True),
)
"""Tiles for GPUs, the largest first."""
SLICED_TILES = (
    Tile(32, 32, 16, 4, 4, 16, True, 4),
    Tile(16, 32, 16, 4, 4, 16, True, 4),
    Tile(32, 32, 16, 4, 4, 16, True, 2),
    Tile(16, 32, 16, 4, 4, 16, True, 2),
)
"""Tiles for products that are too small to occupy a GPU, but long."""
FULL_GPU = 256


def gpu_tile(batches: int, rows: int, columns: int, blocks_of: Callable[[int], int]) -> Tile:
    """The tile that wastes little at the edges and still gives every processor of a GPU work.

    `blocks_of(depth)` is how many blocks of reduced elements of that depth there are; a sliced tile must divide it.
    """
    plain = min(GPU_TILES, key=lambda t: _tile_cost(t, batches, rows, columns))
    if _groups(plain, batches, rows, columns) >= FULL_GPU:
        return plain
    for tile in SLICED_TILES:
        blocks = blocks_of(tile.depth)
        if blocks % tile.slices == 0 and blocks >= 4 * tile.slices and _fits(tile, rows):
            return tile
    return plain


def _groups(tile: Tile, batches: int, rows: int, columns: int) -> int:
    return batches * -(-rows // tile.rows) * -(-columns // tile.columns)


def _fits(tile: Tile, rows: int) -> bool:
    """Whether a tile's rows are not mostly beyond the product."""
    return rows > tile.rows // 2


def _tile_cost(tile: Tile, batches: int, rows: int, columns: int) -> float:
    groups = _groups(tile, batches, rows, columns)
    loads = 1 / tile.rows + 1 / tile.columns
    return groups * tile.rows * tile.columns * (1 + 16 * loads) * max(1.0, FULL_GPU / groups)


def cpu_tile(batches: int, rows: int, columns: int, depth: int) -> tuple[int, int]:
    """Rows and columns of the product that a thread computes on a CPU adapter.

    Every load is a gather there, so larger is faster, and slower to compile: the largest is for long products.
    """
    if rows <= 4:
        return rows, 8 if columns > 4 else 4
    elements = batches * rows * columns
    large = rows >= 32 and elements >= 1 << 15 and elements * depth >= 1 << 26
    return 16 if large else 8, 8 if columns > 4 else 4

