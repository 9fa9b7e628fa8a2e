"""Advisory thresholds: they decide speed, never correctness."""

from __future__ import annotations


def row_threads(points: int, longest: int) -> int | None:
    """Threads per row for a nest of `points` rows whose longest reduction has `longest` elements; None: one each."""
    if longest < 32 or points >= 65536 and longest < 256:
        return None
    for size in (256, 128, 64):
        if longest >= 2 * size:
            return size
    return 32
