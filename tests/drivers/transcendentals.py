"""One table of function, range and largest allowed error, and the sweep that measures it on the present driver.

    python -m tests.drivers.transcendentals     prints the measured figures as rows for docs/numerics.md
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.dtypes import F32
from tests.tensor_programs import elementwise, on_gpu

Array = np.ndarray[Any, Any]
SAMPLES = 20000
SMALLEST_NORMAL = 2.0**-126
LARGEST = 3.4e38


@dataclass(frozen=True)
class Row:
    """A function over an interval of its (first) operand; `most` is the largest error allowed, in ulp."""

    function: str
    lo: float
    hi: float
    most: float
    second: tuple[float, float] | None = None

    def __str__(self) -> str:
        return f"{self.function}[{self.lo:g}, {self.hi:g}]" + (f"^{self.second}" if self.second else "")


ROWS = (
    Row("exp", -87.3, 88.72, 2),
    Row("log", SMALLEST_NORMAL, LARGEST, 2),
    Row("log", 0.5, 2, 2),
    Row("tanh", -10, 10, 2),
    Row("tanh", -1e-3, 1e-3, 2),
    Row("tanh", -LARGEST, LARGEST, 2),
    Row("erf", -5, 5, 2),
    Row("sin", -3.2, 3.2, 3),
    Row("sin", -1e4, 1e4, 3),
    Row("sin", -LARGEST, LARGEST, 3),
    Row("cos", -3.2, 3.2, 3),
    Row("cos", -1e4, 1e4, 3),
    Row("cos", -LARGEST, LARGEST, 3),
    Row("tan", -1.5, 1.5, 4),
    Row("tan", -1e4, 1e4, 4),
    Row("tan", -LARGEST, LARGEST, 4),
    Row("sinh", -1, 1, 4),
    Row("sinh", -89.4, 89.4, 4),
    Row("cosh", -89.4, 89.4, 4),
    Row("asinh", -1, 1, 4),
    Row("asinh", -LARGEST, LARGEST, 4),
    Row("acosh", 1, 2, 4),
    Row("acosh", 1, LARGEST, 4),
    Row("atanh", -0.99999, 0.99999, 3),
    Row("asin", -1, 1, 3),
    Row("acos", -1, 1, 3),
    Row("atan", -1, 1, 3),
    Row("atan", -LARGEST, LARGEST, 3),
    Row("sqrt", 0, LARGEST, 1),
    Row("pow", 1e-3, 1e3, 2, (-10, 10)),
    Row("pow", 0.5, 2, 2, (-100, 100)),
    Row("pow", -100, 0, 2, (-9, 9)),
)

_REFERENCE: dict[str, Callable[..., Array]] = {
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "pow": np.power,
}  # fmt: skip


def reference(function: str, *args: Array) -> Array:
    """The value in float64 of arguments that are floats already."""
    with np.errstate(all="ignore"):
        made: Array = _REFERENCE.get(function, getattr(np, function, None))(*(a.astype(np.float64) for a in args))
    return made


def arguments(row: Row) -> tuple[Array, ...]:
    """Operands spread evenly, and by magnitude, over the row's interval, its ends among them."""
    rng = np.random.default_rng(11)
    lo, hi = row.lo, row.hi
    even = lo + (hi / 2 - lo / 2) * 2 * rng.random(SAMPLES // 2)
    top = max(abs(lo), abs(hi))
    scaled = np.exp(rng.uniform(math.log(1e-20 if lo <= 0 else lo), math.log(top), SAMPLES // 2))
    signs = rng.choice([-1.0, 1.0], SAMPLES // 2) if lo < 0 < hi else np.full(SAMPLES // 2, -1.0 if hi <= 0 else 1.0)
    x = np.concatenate([even, scaled * signs, [lo, hi]]).astype(np.float32)
    x = np.clip(x, np.float32(lo), np.float32(hi))
    if row.second is None:
        return (x,)
    y = rng.uniform(*row.second, x.size).astype(np.float32)
    return x, np.round(y) if lo < 0 else np.where(np.arange(x.size) % 3 == 0, np.round(y), y)


def errors(got: Array, exact: Array) -> Array:
    """Errors in ulp of the exact value. A result that is too small for a normal number may be zero."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float32)
        unit = np.spacing(np.maximum(np.abs(nearest), np.float32(SMALLEST_NORMAL))).astype(np.float64)
        error = np.abs(got.astype(np.float64) - exact) / unit
    flushed = (np.abs(exact) < SMALLEST_NORMAL) & (np.abs(got) <= SMALLEST_NORMAL)
    same = (got == nearest) | (np.isnan(got) & np.isnan(exact)) | flushed
    return np.where(same, np.minimum(np.nan_to_num(error), 0.5), np.nan_to_num(error, nan=np.inf))


def measure(row: Row) -> tuple[float, tuple[float, ...]]:
    """The largest error of a row, and where it is."""
    args = arguments(row)
    names = ["x", "y"][: len(args)]
    program = elementwise({"z": lambda *e: ex.op(row.function, *e)}, dict.fromkeys(names, (F32, args[0].size)))
    got = on_gpu(program, dict(zip(names, args, strict=True)))["z"]
    found = errors(got, reference(row.function, *args))
    worst = int(found.argmax())
    return float(found[worst]), (*(float(a[worst]) for a in args), float(got[worst]))


def main() -> None:
    for row in ROWS:
        second = f", exponents {row.second[0]:g} to {row.second[1]:g}" if row.second else ""
        worst, where = measure(row)
        print(f"| {row.function} | {row.lo:g} to {row.hi:g}{second} | {worst:.2f} | at {where} |", flush=True)


if __name__ == "__main__":
    main()
