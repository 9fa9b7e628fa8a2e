"""Floats on the present driver: errors of transcendentals within the table, and what must be exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.dtypes import F32, I32, U32
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.ops import OPS, cast_array
from tests.drivers.transcendentals import ROWS, SMALLEST_NORMAL, Row, errors, measure, reference
from tests.tensor_programs import elementwise, on_gpu

Array = np.ndarray[Any, Any]
EDGES = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.0, -2.0, 2.5, -2.5, 3.0, -3.0, 0.49999997,
     8388607.5, -8388607.5, 8388608.0, 16777215.0, 16777216.0, 2147483520.0, 2147483648.0, -2147483648.0, -2147483904.0,
     4294967040.0, 4294967296.0, 1e10, -1e10, 3.4e38, -3.4e38, 3.4028235e38, 1e-36, -1e-36, 1e-30,
     -1e-30],
    np.float32,
)  # fmt: skip
DENORMAL = np.array([1e-40, -1e-40, 1e-45, -1e-45], np.float32)


def run(functions: dict[str, Callable[..., Expr]], *args: Array) -> dict[str, Array]:
    names = ["x", "y"][: len(args)]
    program = elementwise(functions, dict.fromkeys(names, (F32, args[0].size)))
    return on_gpu(program, dict(zip(names, args, strict=True)))


def pairs(values: Array) -> tuple[Array, Array]:
    return np.repeat(values, values.size), np.tile(values, values.size)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_errors_are_within_the_table(row: Row) -> None:
    worst, where = measure(row)
    assert worst <= row.most, where


@pytest.mark.parametrize("function", sorted({r.function for r in ROWS} - {"pow"}))
def test_edges_of_functions(function: str) -> None:
    got = run({"z": lambda x: ex.op(function, x)}, EDGES)["z"]
    exact = reference(function, EDGES)
    found = errors(got, exact)
    with np.errstate(over="ignore"):
        infinite = np.isinf(exact.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    np.testing.assert_array_equal(got[infinite], exact.astype(np.float32)[infinite])
    most = max(r.most for r in ROWS if r.function == function)
    assert (found[~infinite & ~np.isnan(exact)] <= most).all(), list(zip(EDGES, got, exact, found, strict=True))


def test_edges_of_pow() -> None:
    x, y = pairs(EDGES)
    got = run({"z": lambda x, y: ex.op("pow", x, y)}, x, y)["z"]
    exact = reference("pow", x, y)
    with np.errstate(over="ignore"):
        single = exact.astype(np.float32)
    plain = np.isfinite(single) & np.isfinite(exact)
    wrong = np.where(plain, errors(got, exact) > 2, ~((got == single) | (np.isnan(got) & np.isnan(single))))
    assert not wrong.any(), [(x[k], y[k], got[k], single[k]) for k in np.flatnonzero(wrong)[:5]]


def test_comparisons_see_nan_and_zeros() -> None:
    x, y = pairs(EDGES)
    got = run({n: lambda x, y, n=n: ex.op(n, x, y) for n in ("eq", "ne", "lt", "le")}, x, y)
    for name, values in got.items():
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(values, OPS[name].numpy(x, y), err_msg=name)


def test_extrema_propagate_nan() -> None:
    x, y = pairs(EDGES)
    got = run({n: lambda x, y, n=n: ex.op(n, x, y) for n in ("min", "max")}, x, y)
    np.testing.assert_array_equal(got["min"], np.minimum(x, y))
    np.testing.assert_array_equal(got["max"], np.maximum(x, y))


def test_rounding_and_signs_are_exact() -> None:
    rng = np.random.default_rng(3)
    x = np.concatenate([EDGES, rng.uniform(-9, 9, 2000), np.arange(-40, 40) / 4, rng.uniform(-1e7, 1e7, 2000)])
    x = x.astype(np.float32)
    names = ("floor", "ceil", "round", "trunc", "sign", "abs", "neg")
    got = run({n: lambda x, n=n: ex.op(n, x) for n in names}, x)
    for name in names:
        np.testing.assert_array_equal(got[name], OPS[name].numpy(x), err_msg=name)
    flags = run({n: lambda x, n=n: ex.op(n, x) for n in ("isnan", "isinf")}, x)
    np.testing.assert_array_equal(flags["isnan"], np.isnan(x))
    np.testing.assert_array_equal(flags["isinf"], np.isinf(x))


def test_negation_keeps_zeros_apart() -> None:
    got = run({"neg": lambda x: ex.op("neg", x), "abs": lambda x: ex.op("abs", x)}, EDGES[:2])
    np.testing.assert_array_equal(np.signbit(got["neg"]), [True, False])
    np.testing.assert_array_equal(np.signbit(got["abs"]), [False, False])


def test_casts_saturate() -> None:
    rng = np.random.default_rng(4)
    x = np.concatenate([EDGES, rng.uniform(-5e9, 5e9, 2000), rng.uniform(-300, 300, 2000)]).astype(np.float32)
    got = run({"i32": lambda x: ex.cast(x, I32), "u32": lambda x: ex.cast(x, U32)}, x)
    np.testing.assert_array_equal(got["i32"], cast_array(x, I32))
    np.testing.assert_array_equal(got["u32"], cast_array(x, U32))


def test_remainders_are_exact() -> None:
    rng = np.random.default_rng(5)
    x, y = pairs(EDGES)
    size = 2.0 ** rng.integers(-30, 60, (2, 4000))
    x, y = (
        np.concatenate([e, rng.standard_normal(4000) * s]).astype(np.float32) for e, s in zip((x, y), size, strict=True)
    )
    got = run({"rem": lambda x, y: ex.op("rem", x, y), "mod": lambda x, y: ex.op("mod", x, y)}, x, y)
    with np.errstate(all="ignore"):
        expected = {"rem": np.fmod(x, y), "mod": np.mod(x, y)}
    for name, want in expected.items():
        wrong = ~((got[name] == want) | (np.isnan(got[name]) & np.isnan(want)))
        assert not wrong.any(), (name, [(x[k], y[k], got[name][k], want[k]) for k in np.flatnonzero(wrong)[:5]])


def test_denormals_count_as_themselves_or_as_zero() -> None:
    """WGSL lets a device flush denormals; equality and truth compare bits and see them on every driver."""
    got = run({
        "eq": lambda x: ex.op("eq", x, ex.const(0.0, F32)),
        "twice": lambda x: x + x,
        "sign": lambda x: ex.op("sign", x),
        "log": lambda x: ex.op("log", ex.op("abs", x)),
    }, DENORMAL)  # fmt: skip
    assert all(t in (2 * d, 0.0) for t, d in zip(got["twice"], DENORMAL, strict=True))
    assert all(s in (np.sign(d), 0.0) for s, d in zip(got["sign"], DENORMAL, strict=True))
    assert (np.abs(got["twice"]) < SMALLEST_NORMAL).all()
    exact = np.log(np.abs(DENORMAL.astype(np.float64)))
    assert all(np.isneginf(g) or abs(g - e) < 1e-4 for g, e in zip(got["log"], exact, strict=True))
