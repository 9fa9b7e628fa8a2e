"""Advisory thresholds: they decide speed, never correctness."""

from __future__ import annotations

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
    into registers while the current one is used.
    """

    rows: int
    columns: int
    depth: int
    thread_rows: int
    thread_columns: int
    unroll: int
    prefetch: bool = False

    @property
    def threads(self) -> int:
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth}, {self.thread_rows}x{self.thread_columns} a thread"


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
FULL_GPU = 256


def gpu_tile(batches: int, rows: int, columns: int) -> Tile:
    """The largest tile that wastes little at the edges and still gives every processor of a GPU work."""
    best, best_cost = GPU_TILES[-1], float("inf")
    for tile in GPU_TILES:
        groups = batches * -(-rows // tile.rows) * -(-columns // tile.columns)
        computed = groups * tile.rows * tile.columns
        loads = 1 / tile.rows + 1 / tile.columns
        idle = max(1.0, FULL_GPU / groups)
        cost = computed * (1 + 16 * loads) * idle
        if cost < best_cost:
            best, best_cost = tile, cost
    return best


def cpu_tile(batches: int, rows: int, columns: int, depth: int) -> tuple[int, int]:
    """Rows and columns of the product that a thread computes on a CPU adapter.

    Every load is a gather there, so larger is faster, and slower to compile: the largest is for long products.
    """
    if rows <= 4:
        return rows, 8 if columns > 4 else 4
    elements = batches * rows * columns
    large = rows >= 32 and elements >= 1 << 15 and elements * depth >= 1 << 26
    return 16 if large else 8, 8 if columns > 4 else 4

