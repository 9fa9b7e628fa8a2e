"""Scalar expressions: simplification, ranges, rewriting and guards, on random expressions against NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.bijection import at_dimensions, invert
from onnx2wgsl.ir.bounds import Facts, guarded_loads
from onnx2wgsl.ir.dtypes import BOOL, F32, I8, I32, I64, U32, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.ops import OPS, cast_array
from onnx2wgsl.ir.program import Axis
from onnx2wgsl.passes.narrow_int64 import Facts as Ranges

Array = np.ndarray[Any, Any]
BINARY = ("add", "sub", "mul", "min", "max", "div", "rem", "floordiv", "mod", "and", "or", "xor", "shl", "shr")
UNARY = ("neg", "abs", "sign", "not")
SIZES = {"i": 6, "j": 4}
POINTS = list(itertools.product(*(range(s) for s in SIZES.values())))


class Both:
    """An expression as the builder functions simplify it, and its values at all points by NumPy."""

    def __init__(self, expr: Expr, values: Array) -> None:
        self.expr, self.values = expr, values


def random_index(rng: np.random.Generator) -> tuple[ix.Index, Array]:
    i, j = (ix.var(n, s) for n, s in SIZES.items())
    p, q, r = (int(c) for c in rng.integers(-3, 4, 3))
    made = i * p + j * q + r
    values = np.array([p * a + q * b + r for a, b in POINTS])
    for _ in range(int(rng.integers(0, 2))):
        den = int(rng.integers(1, 7))
        made, values = (made // den, values // den) if rng.integers(2) else (made % den, values % den)
    return made, values


def leaf(rng: np.random.Generator, dtype: DType) -> Both:
    if rng.integers(3) == 0:
        wide = int(rng.choice([0, 1, -1, 2, 3, 7, 100, dtype.hi, dtype.lo]))
        e = ex.const(wide, dtype)
        return Both(e, np.full(len(POINTS), e.attr, dtype.numpy))
    made, values = random_index(rng)
    if dtype.kind == "uint":
        made, values = made % 9, values % 9
    return Both(ex.index_value(made, dtype), values.astype(dtype.numpy))


def random_value(rng: np.random.Generator, dtype: DType, depth: int) -> Both:
    """An integer expression of a type."""
    if depth == 0:
        return leaf(rng, dtype)
    kind = rng.integers(8)
    a = random_value(rng, dtype, depth - 1)
    with np.errstate(all="ignore"):
        if kind == 0:
            name = str(rng.choice(UNARY))
            return Both(ex.op(name, a.expr), OPS[name].numpy(a.values))
        if kind == 1:
            source = (I32, I64, I8, U32)[int(rng.integers(4))]
            x = random_value(rng, source, depth - 1)
            return Both(ex.cast(x.expr, dtype), cast_array(x.values, dtype))
        b = random_value(rng, dtype, depth - 1)
        if kind == 2:
            c = random_condition(rng, depth - 1)
            return Both(ex.select(c.expr, a.expr, b.expr), np.where(c.values, a.values, b.values))
        name = str(rng.choice(BINARY))
        return Both(ex.op(name, a.expr, b.expr), OPS[name].numpy(a.values, b.values))


def random_condition(rng: np.random.Generator, depth: int) -> Both:
    dtype = (I32, I64)[int(rng.integers(2))]
    a, b = random_value(rng, dtype, max(depth - 1, 0)), random_value(rng, dtype, max(depth - 1, 0))
    name = str(rng.choice(["lt", "le", "eq", "ne"]))
    made = Both(ex.op(name, a.expr, b.expr), OPS[name].numpy(a.values, b.values))
    if depth and rng.integers(2):
        other = random_condition(rng, depth - 1)
        join = str(rng.choice(["and", "or", "xor"]))
        made = Both(ex.op(join, made.expr, other.expr), OPS[join].numpy(made.values, other.values))
    return Both(~made.expr, ~made.values) if rng.integers(3) == 0 else made


def evaluate(root: Expr, point: dict[str, int]) -> Any:
    """The value of an expression at a point, node by node."""
    found: dict[bytes, Any] = {}
    for e in ex.walk(root):
        args = [found[a.key] for a in e.args]
        with np.errstate(all="ignore"):
            if e.op == "const":
                found[e.key] = np.asarray(e.attr, e.dtype.numpy)
            elif e.op == "index":
                found[e.key] = np.asarray(position(e.index[0], point)).astype(e.dtype.numpy)
            elif e.op == "cast":
                found[e.key] = cast_array(args[0], e.dtype)
            else:
                found[e.key] = np.asarray(OPS[e.op].numpy(*args))
    return found[root.key][()]


def position(i: ix.Index, point: dict[str, int]) -> int:
    total = i.const
    for atom, c in i.terms:
        match atom:
            case ix.Var():
                total += c * point[atom.name]
            case ix.Div():
                total += c * (position(atom.num, point) // atom.den)
            case ix.Mod():
                total += c * (position(atom.num, point) % atom.den)
    return total


def at(point: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(SIZES, point, strict=True))


@pytest.mark.parametrize("seed", range(200))
def test_simplification_keeps_values_and_ranges_hold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = (I32, I64, I8, U32)[seed % 4]
    made = random_value(rng, dtype, 4)
    (lo, hi), (low, high) = ex.value_range(made.expr), Ranges().range(made.expr)
    for k in rng.integers(0, len(POINTS), 6):
        got = evaluate(made.expr, at(POINTS[k]))
        assert got == made.values[k], (made.expr, POINTS[k])
    assert lo <= int(made.values.min()), made.expr
    assert int(made.values.max()) <= hi, made.expr
    assert low <= int(made.values.min()), made.expr
    assert int(made.values.max()) <= high, made.expr


@pytest.mark.parametrize("seed", range(200))
def test_substitution_and_rewriting(seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = random_value(rng, I64, 4).expr
    assert ex.rewrite(made, lambda e: None) == made
    env = {"i": ix.var("j", 4) + 1, "j": ix.var("i", 6) // 2}
    moved = made.substitute(env)
    for a, b in POINTS[::5]:
        outer = {n: position(i, {"i": a, "j": b}) for n, i in env.items()}
        assert evaluate(moved, {"i": a, "j": b}) == evaluate(made, outer), (made, moved)


@pytest.mark.parametrize("seed", range(120))
def test_guards_bound_what_they_guard(seed: int) -> None:
    """Wherever the guards of a load hold, its index lies within the bounds that they are seen to give."""
    rng = np.random.default_rng(seed)
    made, values = random_index(rng)
    condition = random_condition(rng, 2)
    load = ex.load("x", F32, (made,))
    other = ex.const(0.0, F32)
    for holds in (True, False):
        root = ex.select(condition.expr, *((load, other) if holds else (other, load)))
        for e, facts in guarded_loads(root, {}):
            lo, hi = facts.bounds(e.index[0])
            taken = values[condition.values == holds]
            assert taken.size == 0 or (lo <= taken.min() and taken.max() <= hi), root


def test_guards_of_windows() -> None:
    """The guard of a padded convolution proves its index."""
    i, k = ix.var("i", 10), ix.var("k", 3)
    where = i * 2 + k - 1
    load = ex.load("x", F32, (where,))
    ((_, facts),) = guarded_loads(ex.select(ex.in_range(where, 0, 20), load, 0.0), {})
    assert where.lo == -1
    assert where.hi == 19
    assert facts.bounds(where) == (0, 19)
    assert facts.bounds(where + 1) == (1, 20)
    assert Facts({"i": (2, 3)}).bounds(where) == (3, 7)


@pytest.mark.parametrize("seed", range(120))
def test_inverted_maps_go_back(seed: int) -> None:
    """A reshape and permutation of axes is inverted; what is inverted is a bijection."""
    rng = np.random.default_rng(seed)
    axes = tuple(Axis(f"i{k}", int(s)) for k, s in enumerate(rng.choice([1, 2, 3, 4, 6], 3)))
    current, shape = tuple(a.var for a in axes), tuple(a.size for a in axes)
    for _ in range(int(rng.integers(1, 4))):
        if rng.integers(2):
            order = rng.permutation(len(shape))
            current, shape = tuple(current[k] for k in order), tuple(shape[k] for k in order)
            continue
        total = int(np.prod(shape))
        divisors = [d for d in range(1, total + 1) if total % d == 0]
        first = int(rng.choice(divisors))
        second = int(rng.choice([d for d in divisors if (total // first) % d == 0]))
        new = (first, second, total // first // second)
        current, shape = ix.unflatten(ix.flatten(current, shape), new), new
    inverse = invert(current, shape, axes)
    points = itertools.product(*(range(a.size) for a in axes))
    reached = set()
    for point in points:
        named = {a.name: p for a, p in zip(axes, point, strict=True)}
        target = tuple(position(i, named) for i in current)
        reached.add(target)
        if inverse is not None:
            back = at_dimensions(inverse, [ix.constant(t) for t in target])
            assert [back[a.name].const for a in axes] == list(point), (current, shape)
    assert len(reached) == int(np.prod(shape))


def test_identities_that_hold() -> None:
    x, y = ex.load("x", F32, ()), ex.load("i", I32, ())
    assert x * 1.0 is x
    assert x / 1.0 is x
    assert (x + 0.0) is not x  # -0 + 0 is 0
    assert y + 0 is y
    assert ex.op("neg", ex.op("neg", x)) is x
    assert ex.select(ex.TRUE, x, ex.const(1.0, F32)) is x
    flag = ex.load("b", BOOL, ())
    assert (flag & ex.TRUE) is flag
    assert (flag | ex.TRUE) is ex.TRUE
    assert (ex.index_value(ix.var("i", 5), I32) < 5) is ex.TRUE
    assert ex.const(300, I8).attr == 44


def test_operands_of_two_types_are_refused() -> None:
    with pytest.raises(TypeError, match="operator add needs operands of one type, got f32, i32"):
        ex.op("add", ex.const(1.0, F32), ex.const(1, I32))
    with pytest.raises(ValueError, match="operator add takes 2 operands, got 1"):
        ex.op("add", ex.const(1.0, F32))
