"""Integers of every width against Python's own, over their whole range: interpreted after each pass, and on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Builder, arg_best, max_of, min_of, product_of, sum_of
from onnx2wgsl.ir.dtypes import BF16, BOOL, F16, F32, I8, I16, I32, I64, U8, U16, U32, U64, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.ops import OPS
from onnx2wgsl.ir.program import Port
from tests.tensor_programs import elementwise, everywhere, finished

INTEGERS = (I8, I16, I32, I64, U8, U16, U32, U64)
Array = np.ndarray[Any, Any]


def wrapped(value: int, dtype: DType) -> int:
    low = value & ((1 << dtype.bits) - 1)
    return low - (1 << dtype.bits) if dtype.kind == "int" and low > dtype.hi else low


def truncated(a: int, b: int) -> int:
    if b == 0:
        return 0
    size = abs(a) // abs(b)
    return size if (a < 0) == (b < 0) else -size


def shifted(a: int, n: int, dtype: DType, left: bool) -> int:
    count = n & ((1 << 64) - 1)
    if left:
        return a << count if count < dtype.bits else 0
    return a >> min(count, dtype.bits)


REFERENCE: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": truncated,
    "rem": lambda a, b: a - truncated(a, b) * b if b else 0,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
SHIFTS: dict[str, Callable[[int, int, DType], int]] = {
    "shl": lambda a, b, d: shifted(a, b, d, True),
    "shr": lambda a, b, d: shifted(a, b, d, False),
}
UNARY: dict[str, Callable[[int], int]] = {
    "not": lambda a: ~a,
    "neg": lambda a: -a,
    "abs": abs,
    "sign": lambda a: (a > 0) - (a < 0),
}
COMPARISONS = {"eq", "ne", "lt", "le"}


def samples(dtype: DType, seed: int = 0, count: int = 600) -> tuple[Array, Array]:
    """Pairs of edge values, of values near each other, of a value and a shift count, and of random values."""
    rng = np.random.default_rng(seed)
    edges = {dtype.lo, dtype.lo + 1, dtype.hi, dtype.hi - 1, 0, 1, 2, 3, 7, 10, -1, -2, -3, -7, 1 << (dtype.bits - 1)}
    for power in (4, 7, 8, 15, 16, 31, 32, 33, 47, 63):
        edges.update(s * (1 << power) + k for s in (1, -1) for k in (-1, 0, 1))
    ends = sorted(e for e in edges if dtype.lo <= e <= dtype.hi)
    pairs = [(a, b) for a in ends for b in ends]
    pairs = [pairs[k] for k in rng.permutation(len(pairs))[: 2 * count]]
    widths = rng.integers(1, dtype.bits + 1, (count, 2))
    words = rng.integers(0, 1 << 64, (count, 2), np.uint64)
    pairs += [
        tuple(wrapped(int(w) >> int(64 - k), dtype) * (-1 if int(w) & 1 and dtype.kind == "int" else 1) for w, k in row)
        for row in zip(words, widths, strict=True)
        for row in [list(zip(*row, strict=True))]
    ]
    pairs += [(wrapped(int(w), dtype), int(n)) for w, n in zip(words[:, 0], rng.integers(0, 70, count), strict=True)]
    pairs += [(wrapped(int(w), dtype), wrapped(int(w) + int(k), dtype)) for w, k in rng.integers(-2, 3, (count, 2))]
    a, b = (np.array([wrapped(p[k], dtype) for p in pairs], object).astype(dtype.numpy) for k in (0, 1))
    return a, b


def reference(name: str, a: int, b: int, dtype: DType) -> int:
    """The value of an operator by Python's integers, wrapped to the type."""
    if name in COMPARISONS:
        return REFERENCE[name](a, b)
    if name in SHIFTS:
        return wrapped(SHIFTS[name](a, b, dtype), dtype)
    if name == "popcount":
        return (a & ((1 << dtype.bits) - 1)).bit_count()
    return wrapped(UNARY[name](a) if name in UNARY else REFERENCE[name](a, b), dtype)


def operator(name: str) -> Callable[[Expr, Expr], Expr]:
    return lambda *operands: ex.op(name, *operands[: OPS[name].arity])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_operators(dtype: DType) -> None:
    a, b = samples(dtype)
    names = (*REFERENCE, *SHIFTS, *UNARY, "popcount")
    functions = {name: operator(name) for name in names}
    functions["select"] = lambda a, b: ex.select(a < b, a + b, a ^ b)
    program = elementwise(functions, {"a": (dtype, a.size), "b": (dtype, b.size)})
    pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    for where, outputs in everywhere(program, {"a": a, "b": b}):
        for name in names:
            expected = [reference(name, x, y, dtype) for x, y in pairs]
            bad = [(*p, int(g), int(e)) for p, g, e in zip(pairs, outputs[name], expected, strict=True) if g != e]
            assert not bad, f"{name} {where}: {len(bad)} differ, (a, b, got, expected) {bad[:3]}"
        chosen = [wrapped(x + y, dtype) if x < y else x ^ y for x, y in pairs]
        assert outputs["select"].tolist() == chosen, where


@pytest.mark.parametrize("dtype", [I64, U64], ids=str)
def test_constant_operands(dtype: DType) -> None:
    a, _ = samples(dtype, 1)
    constants = [0, 1, 3, 10, 1 << 31, (1 << 32) + 5, dtype.hi, *((-1, -7, dtype.lo) if dtype is I64 else ())]
    binary = ["add", "sub", "mul", "div", "rem", "floordiv", "mod", "min", "lt", "eq"]
    for c in constants:
        functions = {n: lambda x, n=n, c=c: ex.op(n, x, ex.const(c, dtype)) for n in binary}
        program = elementwise(functions, {"a": (dtype, a.size)})
        for where, outputs in everywhere(program, {"a": a}, gpu=c in (0, 3, -7)):
            for name in binary:
                expected = [reference(name, int(x), c, dtype) for x in a]
                assert outputs[name].tolist() == expected, f"{name} by {c} {where}"


def cast_reference(values: Array, target: DType) -> Array:
    """ONNX Cast, by Python integers and NumPy's float conversions."""
    if target is BOOL:
        return values != 0
    if target.is_float:
        return values.astype(np.float32).astype(target.numpy)
    if values.dtype.kind in "iub":
        return np.array([wrapped(int(v), target) for v in values], object).astype(target.numpy)
    wide = values.astype(np.float64)
    whole = [0 if np.isnan(v) else max(target.lo, min(target.hi, int(np.clip(v, -1e30, 1e30)))) for v in wide]
    return np.array(whole, object).astype(target.numpy)


FLOATS = np.array(
    [0.0, -0.0, 0.4, 0.5, 0.99, -0.99, 1.5, -1.5, 127.5, 128, -128.9, -129, 255.9, 256, 32767.9, 32768, 65535.5, 65536,
     -32768.5, 2147483520, 2147483648, -2147483648, -2147483904, 4294967040, 4294967296, 2.0**53, 2.0**62, 2.0**63,
     -(2.0**63), -(2.0**64), 2.0**63 * (1 - 2.0**-24), 2.0**64, 2.0**64 * (1 - 2.0**-24), 1e30, -1e30, np.inf, -np.inf,
     np.nan, 1e-30, -5.0, 1e10, -1e10, 123456789.0],
    np.float32,
)  # fmt: skip


@pytest.mark.parametrize("source", [*INTEGERS, BOOL, F16, BF16, F32], ids=str)
def test_casts(source: DType) -> None:
    rng = np.random.default_rng(2)
    if source.is_float:
        spread = (rng.standard_normal(500) * 2.0 ** rng.integers(-10, 70, 500)).astype(np.float32)
        with np.errstate(all="ignore"):
            values = np.concatenate([FLOATS, spread]).astype(source.numpy)
    elif source is BOOL:
        values = rng.integers(0, 2, 64).astype(np.bool_)
    else:
        values = np.concatenate([samples(source, 3)[0], samples(source, 4, 50)[1]])
    targets = [t for t in (*INTEGERS, BOOL, F16, BF16, F32) if t is not source]
    program = elementwise({t.name: lambda x, t=t: ex.cast(x, t) for t in targets}, {"x": (source, values.size)})
    expected = {}
    for t in targets:
        with np.errstate(all="ignore"):
            expected[t.name] = cast_reference(values, t)
    for where, outputs in everywhere(program, {"x": values}):
        for t in targets:
            got, want = outputs[t.name], expected[t.name]
            same = got == want
            if t.is_float:
                same |= np.isnan(got.astype(np.float32)) & np.isnan(want.astype(np.float32))
            assert same.all(), f"{t} {where}: {[(values[k], got[k], want[k]) for k in np.flatnonzero(~same)[:4]]}"


@pytest.mark.parametrize("dtype", [I64, U64], ids=str)
def test_reductions(dtype: DType) -> None:
    rows, width = 8, 37
    a = samples(dtype, 5)[0][: rows * width].reshape(rows, width)
    a[1, 5:9] = a[1].max()
    builder = Builder()
    x = builder.tensor(dtype, a.shape, "x")
    outputs = []
    for name, monoid in (
        ("sum", sum_of(dtype)), ("product", product_of(dtype)), ("min", min_of(dtype)), ("max", max_of(dtype)),
    ):  # fmt: skip
        (made,) = builder.reduce((rows,), (width,), monoid, lambda i, r: x[i[0], r[0]])
        outputs.append(Port(name, made.name))
    for name, largest, last in (("first", True, False), ("last", True, True), ("least", False, False)):
        made = builder.reduce(
            (rows,), (width,), arg_best(dtype, largest, last, width),
            lambda i, r: (x[i[0], r[0]], ex.index_value(r[0], I32)),
            lambda *results: ex.cast(results[1], I64),
        )[0]  # fmt: skip
        outputs.append(Port(name, made.name))
    total = builder.contract((rows, rows), (width,), lambda i, r: (x[i[0], r[0]], x[i[1], r[0]]))
    outputs.append(Port("gram", total.name))
    program = finished(builder, [x], outputs)
    lists = [[int(v) for v in row] for row in a]
    expected = {
        "sum": [wrapped(sum(row), dtype) for row in lists],
        "product": [wrapped(int(np.prod(np.array(row, object))), dtype) for row in lists],
        "min": [min(row) for row in lists],
        "max": [max(row) for row in lists],
        "first": [row.index(max(row)) for row in lists],
        "last": [width - 1 - row[::-1].index(max(row)) for row in lists],
        "least": [row.index(min(row)) for row in lists],
        "gram": [[wrapped(sum(p * q for p, q in zip(u, v, strict=True)), dtype) for v in lists] for u in lists],
    }
    for where, got in everywhere(program, {"x": a}):
        for name, want in expected.items():
            assert got[name].tolist() == want, f"{name} {where}"


@pytest.mark.parametrize("dtype", [I64, U64, I32, U8], ids=str)
def test_gather_by_data(dtype: DType) -> None:
    rng = np.random.default_rng(6)
    size = 41
    low = -size if dtype.kind == "int" else 0
    where = rng.integers(low, size, 300).astype(dtype.numpy)
    data = samples(I64, 7)[0][:size]
    builder = Builder()
    table, position = builder.tensor(I64, (size,), "table"), builder.tensor(dtype, where.shape, "where")

    def picked(i: ix.Index) -> Expr:
        raw = ex.assume(position[i], low, size - 1)
        at = ex.select(raw < 0, raw + size, raw) if low else raw
        return table[ix.value_index(at, 0, size - 1)]

    made = builder.map(where.shape, picked)
    program = finished(builder, [table, position], [Port("y", made.name)])
    for name, got in everywhere(program, {"table": data, "where": where}):
        np.testing.assert_array_equal(got["y"], data[where.astype(np.int64)], err_msg=name)


def test_narrowed_intermediates() -> None:
    """Chains whose ranges are known are computed in i32, at the edges of that range too."""
    a = samples(I32, 8)[0]
    n = a.size

    def chain(x: Expr) -> Expr:
        wide = ex.cast(x, I64)
        return (wide * 3 - 7) + ex.op("mod", wide, ex.const(1000, I64)) * ex.op("sign", wide)

    def small(x: Expr) -> Expr:
        kept = ex.op("max", ex.op("min", ex.cast(x, I64), ex.const(30000, I64)), ex.const(-30000, I64))
        return (
            ex.op("floordiv", kept * 70000, ex.const(-7, I64))
            + ex.op("rem", kept, ex.const(-13, I64))
            + ex.op("abs", kept)
        )

    program = elementwise({"chain": chain, "small": small, "flag": lambda x: chain(x) < 0}, {"x": (I32, n)})
    values = [int(v) for v in a]
    wide = [v * 3 - 7 + v % 1000 * ((v > 0) - (v < 0)) for v in values]
    kept = [max(min(v, 30000), -30000) for v in values]
    expected = [v * 70000 // -7 + v - truncated(v, -13) * -13 + abs(v) for v in kept]
    for where, got in everywhere(program, {"x": a}):
        assert got["chain"].tolist() == wide, where
        assert got["small"].tolist() == expected, where
        assert got["flag"].tolist() == [v < 0 for v in wide], where
