"""float64 in pairs of f32 against NumPy's float64: interpreted after each pass, and on the GPU."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx2wgsl
from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.builder import Builder, arg_best, max_of, min_of, product_of, sum_of
from onnx2wgsl.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.program import Port
from tests.tensor_programs import device, elementwise, everywhere, finished, on_gpu

Array = np.ndarray[Any, Any]
COUNT = 4000
EDGES = np.array([
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1 / 3, -1e-10, 1 + 2.0**-40, 1 - 2.0**-41, 2.0**24 + 0.5,
    8388607.5, 2.0**24 + 1.5, 2.0**31, -(2.0**31), 2.0**40 + 0.5, 1e15, 1e20, -1e20, 3e38, -3e38, np.inf,
    -np.inf, np.nan,
])  # fmt: skip


def rounded(x: Array) -> Array:
    """What two f32 hold of float64 values."""
    with np.errstate(all="ignore"):
        first = x.astype(np.float32).astype(np.float64)
        return np.where(np.isfinite(first), first + (x - first).astype(np.float32), first)


def spread(lo: float, hi: float, seed: int, count: int = COUNT) -> Array:
    """Values of both signs, by magnitude, that two f32 hold."""
    rng = np.random.default_rng(seed)
    return rounded(rng.choice([-1.0, 1.0], count) * 10.0 ** rng.uniform(lo, hi, count))


def off(got: Array, want: Array, size: Array | None = None) -> float:
    """The largest error relative to the result, or to `size`; infinite where the two are not finite in the same way."""
    with np.errstate(all="ignore"):
        error = np.abs(got - want) / np.abs(want if size is None else size)
    error = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0.0, error)
    return float(np.max(np.where(np.isnan(error), np.inf, error)))


EXACT: dict[str, Callable[..., Array]] = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "round": np.round,
    "trunc": np.trunc, "isnan": np.isnan, "isinf": np.isinf,
}  # fmt: skip
BINARY: dict[str, Callable[..., Array]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
CHOSEN: dict[str, Callable[..., Array]] = {
    "min": np.minimum, "max": np.maximum, "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


def operands() -> tuple[Array, Array]:
    """Edge values with each other, values near each other, and values of all magnitudes."""
    a, b = (np.array(v) for v in zip(*((x, y) for x in EDGES for y in EDGES), strict=True))
    x, y = spread(-9, 9, 0), spread(-9, 9, 1)
    near = rounded(x * (1 + np.random.default_rng(2).integers(-9, 9, x.size) * 2.0**-45))
    return np.concatenate([rounded(a), x, x]), np.concatenate([rounded(b), y, near])


def test_operators() -> None:
    a, b = operands()
    functions: dict[str, Callable[..., Expr]] = {n: lambda x, _, n=n: ex.op(n, x) for n in EXACT}
    functions |= {n: lambda x, y, n=n: ex.op(n, x, y) for n in (*BINARY, *CHOSEN)}
    functions["sqrt"] = lambda x, _: ex.op("sqrt", x)
    functions["select"] = lambda x, y: ex.select(x < y, x - y, y)
    program = elementwise(functions, {"a": (F64, a.size), "b": (F64, b.size)})
    with np.errstate(all="ignore"):
        exact = {n: f(a) for n, f in EXACT.items()} | {n: f(a, b) for n, f in CHOSEN.items()}
        close = {n: f(a, b) for n, f in BINARY.items()} | {"sqrt": np.sqrt(a), "select": np.where(a < b, a - b, b)}
    for where, outputs in everywhere(program, {"a": a, "b": b}):
        for name, want in exact.items():
            assert np.array_equal(outputs[name], want, equal_nan=want.dtype.kind == "f"), f"{name} {where}"
        for name, want in close.items():
            with np.errstate(all="ignore"):
                limit = np.where(np.abs(want) > 3.4028235e38, np.copysign(np.inf, want), want)
            full = ~(np.abs(want) < 1e-24) | (want == 0)
            assert off(outputs[name][full], (limit if where == "GPU" else want)[full]) < 1e-12, f"{name} {where}"


def test_remainders() -> None:
    x, y = spread(-5, 9, 3), spread(-5, 4, 4)
    a = np.concatenate([x, [5.0, -5.0, 5.0, -5.0, np.inf, 1.0, np.nan, 7.5, -6.0]])
    b = np.concatenate([y, [np.inf, np.inf, -np.inf, -np.inf, 2.0, 0.0, 1.0, 2.5, 3.0]])
    functions = {n: lambda p, q, n=n: ex.op(n, p, q) for n in ("rem", "mod", "floordiv")}
    program = elementwise(functions, {"a": (F64, a.size), "b": (F64, b.size)})
    with np.errstate(all="ignore"):
        wanted = {"rem": np.fmod(a, b), "mod": np.mod(a, b)}
        size = np.maximum(np.abs(a), np.abs(b))
    outputs = on_gpu(program, {"a": a, "b": b})
    for name, want in wanted.items():
        got = outputs[name]
        finite = np.isfinite(want)
        assert np.array_equal(got[~finite], want[~finite], equal_nan=True), name
        assert off(got[finite], want[finite], size[finite]) < 1e-12, name
        assert np.all(np.abs(got[finite]) < np.abs(b[finite])) or name == "mod"


UNIT = np.random.default_rng(5).uniform(-1, 1, COUNT)
FUNCTIONS: dict[str, tuple[Array, Callable[..., Array], float]] = {
    "exp": (UNIT * 54, np.exp, 1e-13),
    "log": (np.abs(spread(-24, 38, 6)), np.log, 1e-13),
    "log near 1": (1 + spread(-6, -0.4, 7), np.log, 1e-13),
    "sin": (UNIT * 10, np.sin, 1e-13),
    "cos": (UNIT * 10, np.cos, 1e-13),
    "tan": (UNIT * 1.5, np.tan, 1e-13),
    "sinh": (spread(-8, 1.9, 8), np.sinh, 1e-13),
    "cosh": (spread(-8, 1.9, 9), np.cosh, 1e-13),
    "tanh": (spread(-8, 1.5, 10), np.tanh, 1e-13),
    "asinh": (spread(-8, 30, 11), np.arcsinh, 1e-13),
    "acosh": (1 + np.abs(spread(-5, 30, 12)), np.arccosh, 1e-13),
    "atanh": (UNIT, np.arctanh, 1e-13),
    "asin": (UNIT, np.arcsin, 1e-13),
    "acos": (UNIT, np.arccos, 1e-13),
    "atan": (spread(-8, 20, 13), np.arctan, 1e-13),
    "sqrt": (np.abs(spread(-24, 38, 14)), np.sqrt, 1e-13),
    "erf": (UNIT * 6.5, np.vectorize(math.erf), 1e-12),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    x, function, tolerance = FUNCTIONS[name]
    x = rounded(np.concatenate([x, [0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]]))
    program = elementwise({"y": lambda v: ex.op(name.split()[0], v)}, {"x": (F64, x.size)})
    with np.errstate(all="ignore"):
        want = function(x)
    assert off(on_gpu(program, {"x": x})["y"], want) < tolerance


def test_powers() -> None:
    base = np.concatenate([np.abs(spread(-2, 2, 15)), spread(-2, 2, 16), np.repeat(EDGES, EDGES.size)])
    exponent = np.concatenate([rounded(UNIT * 10), np.round(UNIT * 9), np.tile(EDGES, EDGES.size)])
    exponent[-(EDGES.size**2) :][np.abs(exponent[-(EDGES.size**2) :]) > 1e6] = 2.0
    program = elementwise({"y": lambda a, b: ex.op("pow", a, b)}, {"a": (F64, base.size), "b": (F64, base.size)})
    with np.errstate(all="ignore"):
        want = np.power(base, exponent)
        kept = np.isnan(want) | np.isinf(want) | (want == 0) | ((np.abs(want) > 1e-24) & (np.abs(want) < 3e38))
    got = on_gpu(program, {"a": base, "b": exponent})["y"]
    assert off(got[kept], want[kept]) < 1e-12


TYPES = (I8, I16, I32, I64, U8, U16, U32, U64, BOOL, F16, BF16, F32)


@pytest.mark.parametrize("target", TYPES, ids=str)
def test_casts_from(target: DType) -> None:
    whole = np.array([s * 2.0**k + d for k in (7, 8, 15, 16, 31, 32) for s in (1, -1) for d in (-1, -0.5, 0, 0.5, 1)])
    ties = 1 + np.array([2.0**-11, 2.0**-11 + 2.0**-40, 2.0**-11 - 2.0**-40, 3 * 2.0**-11, 2.0**-8])
    large = np.array([2.0**62 + 2.0**20, -(2.0**62), 2.0**63, -(2.0**63), 2.0**64 - 2.0**20, 2.0**64, 1e30])
    x = rounded(np.concatenate([EDGES, whole, ties, large, spread(-3, 18, 17, 500)]))
    program = elementwise({"y": lambda v: ex.cast(v, target)}, {"x": (F64, x.size)})
    with np.errstate(all="ignore"):
        if target.is_float or target is BOOL:
            want = x.astype(target.numpy)
        else:
            cut = [0 if math.isnan(v) else max(target.lo, min(target.hi, int(np.clip(v, -1e30, 1e30)))) for v in x]
            want = np.array(cut, object).astype(target.numpy)
    for where, outputs in everywhere(program, {"x": x}):
        got = outputs["y"]
        if target.is_float:
            got, want = got.astype(np.float32), want.astype(np.float32)
        bad = np.flatnonzero(~((got == want) | ((got != got) & (want != want))))
        assert not bad.size, f"{where}: {[(x[k], got[k], want[k]) for k in bad[:3]]}"


@pytest.mark.parametrize("source", TYPES, ids=str)
def test_casts_to(source: DType) -> None:
    rng = np.random.default_rng(18)
    if source.is_integer:
        words = rng.integers(0, 1 << 64, 300, np.uint64) >> rng.integers(0, 64, 300).astype(np.uint64)
        x = np.concatenate([words.astype(source.numpy), np.array([source.lo, source.hi, 0, 1], source.numpy)])
    else:
        x = spread(-3, 3, 19, 300).astype(source.numpy)
    program = elementwise({"y": lambda v: ex.cast(v, F64)}, {"x": (source, x.size)})
    want = x.astype(np.float64)
    for where, outputs in everywhere(program, {"x": x}):
        assert off(outputs["y"], want) < (2e-14 if source.bits == 64 else 1e-300), where


def test_bytes() -> None:
    """Conversion from and to all kinds of bytes, and data that is only moved, bit for bit."""
    rng = np.random.default_rng(20)
    x = np.concatenate([
        EDGES, [5e-324, 1e-310, -1e-200, 1e200, -1e308, 1e-45, 3.4028235677973366e38, 3.4028235e38],
        rng.integers(0, 1 << 64, 500, np.uint64).view(np.float64), rng.standard_normal(500),
    ])  # fmt: skip
    functions = {
        "moved": lambda v, b: v,
        "chosen": lambda v, b: ex.select(ex.op("isnan", v), ex.const(7.5, F64), v),
        "computed": lambda v, b: v + 0.0,
        "words": lambda v, b: ex.bitcast(v, I64),
        "float": lambda v, b: ex.bitcast(b, F64),
        "isinf": lambda v, b: ex.op("isinf", v),
        "true": lambda v, b: ex.cast(v, BOOL),
    }
    program = elementwise(functions, {"x": (F64, x.size), "b": (I64, x.size)})
    outputs = on_gpu(program, {"x": x, "b": x.view(np.int64)})
    for name in ("moved", "words", "float"):
        assert np.array_equal(outputs[name].view(np.uint64), x.view(np.uint64)), name
    assert np.array_equal(outputs["chosen"], np.where(np.isnan(x), 7.5, x))
    assert np.array_equal(outputs["isinf"], np.isinf(x))
    assert np.array_equal(outputs["true"], x != 0)
    with np.errstate(all="ignore"):
        want = rounded(x)
        full = np.abs(want) > 1e-25
        assert off(outputs["computed"][full], want[full]) < 2e-15
        assert np.all(np.abs(outputs["computed"] - want)[~full & ~np.isnan(x)] <= 2.0**-125)


def test_reductions() -> None:
    rows, width = 6, 700
    x = spread(-3, 3, 21, rows * width).reshape(rows, width)
    x[2] = -x[3]
    small = rounded(1 + spread(-3, -2, 22, rows * width).reshape(rows, width))
    builder = Builder()
    a, b = builder.tensor(F64, x.shape, "x"), builder.tensor(F64, small.shape, "s")
    outputs = []
    for name, monoid, source in (
        ("sum", sum_of(F64), a), ("product", product_of(F64), b), ("min", min_of(F64), a), ("max", max_of(F64), a),
    ):  # fmt: skip
        (made,) = builder.reduce((rows,), (width,), monoid, lambda i, r, s=source: s[i[0], r[0]])
        outputs.append(Port(name, made.name))
    best = builder.reduce(
        (rows,), (width,), arg_best(F64, True, False, width),
        lambda i, r: (a[i[0], r[0]], ex.index_value(r[0], I32)), lambda value, at, *_: ex.cast(at, I64),
    )[0]  # fmt: skip
    gram = builder.contract((rows, rows), (width,), lambda i, r: (a[i[0], r[0]], a[i[1], r[0]]))
    outputs += [Port("best", best.name), Port("gram", gram.name)]
    program = finished(builder, [a, b], outputs)
    for where, got in everywhere(program, {"x": x, "s": small}):
        assert off(got["sum"], x.sum(1), np.abs(x).sum(1)) < 1e-13, where
        assert off(got["product"], small.prod(1)) < 1e-11, where
        assert np.array_equal(got["min"], x.min(1)), where
        assert np.array_equal(got["max"], x.max(1)), where
        assert np.array_equal(got["best"], x.argmax(1)), where
        assert off(got["gram"], x @ x.T, np.abs(x) @ np.abs(x.T)) < 1e-13, where


MODEL = """<ir_version: 8, opset_import: ["": 18]>
m (double[4, 8] x, double[8, 5] w) => (double[4, 5] y, double[8, 8] z) {
  p = MatMul(x, w)
  y = Softmax(p)
  n = Sqrt(x)
  z = Concat<axis=0>(n, x)
}"""


def test_model() -> None:
    """Parts of a concat, of which one is only moved."""
    rng = np.random.default_rng(23)
    x, w = rng.uniform(0, 1, (4, 8)), rng.standard_normal((8, 5))
    artifact = onnx2wgsl.compile(onnx.parser.parse_model(MODEL))
    with onnx2wgsl.Session(artifact, device=device()) as session:
        got = session.run({"x": x, "w": w})
    power = np.exp(x @ w)
    assert off(got["y"], power / power.sum(1, keepdims=True)) < 1e-13
    assert off(got["z"], np.concatenate([np.sqrt(x), x])) < 1e-13
    assert np.array_equal(got["z"][4:], x)


def test_in_f32() -> None:
    x, w = np.full((4, 8), 0.3), np.ones((8, 5))
    warning = "The model computes in float64, and f64='f32' computes that in float32: results have 7 digits, not 16."
    with pytest.warns(UserWarning, match=re.escape(warning)):
        artifact = onnx2wgsl.compile(onnx.parser.parse_model(MODEL), f64="f32")
    assert not any("add_f32x2" in k.wgsl for k in artifact.plan.kernels)
    with onnx2wgsl.Session(artifact, device=device()) as session:
        got = session.run({"x": x, "w": w})
    assert 1e-12 < off(got["z"][:4], np.sqrt(x)) < 1e-6
    assert np.array_equal(got["z"][4:], x)
    assert off(got["y"], np.full((4, 5), 0.2)) < 1e-6
