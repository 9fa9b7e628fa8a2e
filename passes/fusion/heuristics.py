"""Thresholds of fusion: they decide speed, never correctness."""

from __future__ import annotations

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.expr import Expr

STORAGE_SLOTS = 8
LARGEST_NEST = 400
"""Distinct expression nodes of a nest above which nothing more is inlined into it: compilers slow down."""

DEEPEST_EXPRESSION = 100
"""Nesting above which nothing more is inlined into an expression: parsers of WGSL have limits of their own."""

CHEAP = 8
"""Cost up to which a map is computed again for each of several readers."""

FREE = frozenset(
    {
        "const",
        "load",
        "index",
        "acc",
        "leaf",
        "assume",
        "select",
        "and",
        "or",
        "not",
        "le",
        "lt",
        "cast",
        "exact",
        "bitcast",
        "lo",
        "hi",
    }
)
DEAR = frozenset(
    {
        "exp",
        "log",
        "pow",
        "erf",
        "tanh",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "asin",
        "acos",
        "atan",
    }
)


def cost(e: Expr) -> int:
    """Arithmetic of one evaluation: 1 per simple operator, 8 per transcendental, 4 per division or square root."""
    total = 0
    for node in ex.walk(e):
        if node.op in FREE:
            continue
        total += 8 if node.op in DEAR else 4 if node.op in ("div", "sqrt", "rem", "mod", "floordiv") else 1
    return total


def is_large(loaded: int, made: int) -> bool:
    """Whether loading a tensor of `loaded` elements weighs in a map that makes `made`: no bias, no few bytes."""
    return loaded * 8 > made and loaded >= 4096


def may_repeat(arithmetic: int, large_loads: int, readers: int, multiplicity: float) -> bool:
    """Whether a map may be computed again by each reader, `multiplicity` times per element in the worst of them."""
    if arithmetic == 0 and large_loads <= 1:
        return True
    if readers == 1:
        return multiplicity <= 1 or (arithmetic * (multiplicity - 1) <= 2 * CHEAP and large_loads <= 1)
    limit = 2 * CHEAP if readers == 2 else CHEAP
    return large_loads <= 1 and arithmetic <= limit and multiplicity <= 2


def may_feed_contraction(arithmetic: int, loads: int, large_loads: int, multiplicity: float) -> bool:
    """Whether a map may be computed inside of a contraction's operand."""
    if loads > 6 or large_loads > 1:
        return False
    return arithmetic == 0 or (arithmetic <= CHEAP and multiplicity <= 16)


def rows_are_long(rows: int, longest: int) -> bool:
    """Few long rows: one workgroup each would leave the device idle."""
    return rows < 8 and longest > 65536
