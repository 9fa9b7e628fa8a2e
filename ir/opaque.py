"""The templates of opaque nodes: what has no closed form, and its meaning in NumPy.

*sort*: reads `x[rows, n]`, writes `places[rows, p]` (i32, p a power of two, p >= n): in each row the positions of x in
order, ties by position; entries from n on are unspecified. The expression `before` says over the leaves a.0 and b.0
whether a comes strictly before b. Meaning and kernels run one bitonic network (K. Batcher, "Sorting networks and their
applications", 1968), so they agree element for element. The kernels are in `codegen/sort.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .program import Opaque

Array = Any


def network(size: int) -> Iterator[tuple[int, int]]:
    """The stages (block, distance) of a bitonic network over a power of two of elements."""
    block = 2
    while block <= size:
        distance = block // 2
        while distance:
            yield block, distance
            distance //= 2
        block *= 2


def sort(machine: Any, node: Opaque) -> None:
    """Runs a sort in the interpreter."""
    from .interp import Grid

    x = machine.env[node.reads[0]]
    places = machine.target(node.writes[0])
    rows, size = places.shape
    n = x.shape[1]
    (before,) = (e for name, e in node.exprs if name == "before")
    dtype = next(e.dtype for e in _leaves(before))
    values = x if machine.wide and dtype.is_float else x.astype(dtype.numpy, copy=False)
    order = np.broadcast_to(np.arange(size, dtype=np.int64), (rows, size)).copy()

    def first(a: Array, b: Array) -> Array:
        left, right = (np.take_along_axis(values, np.minimum(p, n - 1), 1) for p in (a, b))
        ahead = Grid(machine, (), {}, {}, {("a", 0): left, ("b", 0): right}).eval(before)
        behind = Grid(machine, (), {}, {}, {("a", 0): right, ("b", 0): left}).eval(before)
        inside = np.where((a < n) & (b < n), ahead | (~behind & (a < b)), a < b)
        return np.asarray(inside)

    pair = np.arange(size // 2)
    for block, distance in network(size):
        low = pair // distance * (2 * distance) + pair % distance
        a, b = order[:, low], order[:, low + distance]
        swap = first(a, b) == ((low & block) != 0)
        order[:, low], order[:, low + distance] = np.where(swap, b, a), np.where(swap, a, b)
    places[...] = order


def _leaves(e: Any) -> Iterator[Any]:
    from .expr import walk

    return (node for node in walk(e) if node.op == "leaf")


TEMPLATES: dict[str, Callable[[Any, Opaque], None]] = {"sort": sort}
