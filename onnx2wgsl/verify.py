"""Check an artifact against a reference: ONNX Runtime, or the interpreter in float64 where that refuses the model.

`verify_artifact` compares outputs and finds whether replays give the same bits; `bisection.py` finds the pass that is
to blame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from .artifact import Artifact
from .errors import CompileError, escape_name
from .ir.dtypes import BY_NAME
from .ir.interp import interpret
from .ir.plan import Port
from .ir.program import Program
from .runtime.session import Session

Array = np.ndarray[Any, Any]
Runner = Callable[[Mapping[str, Array]], dict[str, Array]]

DEFAULT_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Difference:
    """How far one output is from the reference; `relative` is to the largest magnitude of the reference."""

    output: str
    absolute: float
    relative: float
    passed: bool
    problem: str = ""


@dataclass(frozen=True)
class Verification:
    """The differences of the worst run, output by output, and whether repeated runs gave the same bits."""

    reference: str
    runs: int
    differences: tuple[Difference, ...]
    repeatable: bool

    @property
    def passed(self) -> bool:
        return self.repeatable and all(difference.passed for difference in self.differences)


def random_inputs(ports: Iterable[Port], seed: int) -> dict[str, Array]:
    """Return inputs of the ports' types: normal floats, coin flips, and integers so small that they may be indices."""
    rng = np.random.default_rng(seed)
    inputs: dict[str, Array] = {}
    for port in ports:
        dtype = BY_NAME[port.dtype]
        if dtype.is_bool:
            array: Array = rng.integers(0, 2, port.shape).astype(bool)
        elif dtype.is_float:
            array = rng.standard_normal(port.shape).astype(dtype.numpy)
        else:
            array = rng.integers(0, 2, port.shape).astype(dtype.numpy)
        inputs[port.name] = array
    return inputs


def reference_of(
    model: str | Path | onnx.ModelProto, program: Callable[[], Program], bound: Mapping[str, Any]
) -> tuple[str, Runner]:
    """Return the name of the reference for `model` and a function that runs it.

    `program` makes the first tensor program, and is called only where ONNX Runtime refuses the model.
    """
    try:
        return "ONNX Runtime on the CPU", run_in_onnxruntime(model, bound)
    except Refused as refusal:
        first = program()
        return (
            f"the interpreter in float64, since ONNX Runtime refused the model ({refusal})",
            lambda inputs: interpret(first, inputs, wide=True),
        )


class Refused(Exception):
    """ONNX Runtime does not take the model."""


def run_in_onnxruntime(model: str | Path | onnx.ModelProto, bound: Mapping[str, Any]) -> Runner:
    """Return a function that runs the model with ONNX Runtime on the CPU; raises `Refused` where it cannot."""
    try:
        import onnxruntime
    except ImportError:
        raise CompileError(
            "Verification compares with ONNX Runtime, which is not installed: pip install 'onnx2wgsl[verify]'."
        ) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    try:
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise Refused(escape_name(error, 200)) from error
    inputs = {value.name: value for value in session.get_inputs()}
    constants = {name: _as_declared(inputs[name].type, value) for name, value in bound.items() if name in inputs}
    names = [value.name for value in session.get_outputs()]

    def run(values: Mapping[str, Array]) -> dict[str, Array]:
        given = {name: array for name, array in values.items() if name in inputs}
        return dict(zip(names, session.run(names, given | constants), strict=True))

    return run


def _as_declared(declared: str, value: Any) -> Array:
    names = {"tensor(float)": "float32", "tensor(double)": "float64"}
    name = names.get(declared, declared.removeprefix("tensor(").removesuffix(")"))
    return np.asarray(value, np.dtype(name))


def compare(actual: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float) -> tuple[Difference, ...]:
    """Compare outputs by name: floats relative to the largest magnitude, all else exactly."""
    return tuple(_compare(name, actual.get(name), reference, tolerance) for name, reference in expected.items())


def _compare(name: str, actual: Any, expected: Any, tolerance: float) -> Difference:
    if actual is None or expected is None:
        same = actual is None and expected is None
        return Difference(name, 0.0, 0.0, same, "" if same else "one side has no value")
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return Difference(name, np.inf, np.inf, False, f"shape {list(actual.shape)}, expected {list(expected.shape)}")
    if actual.dtype.kind in "biu" and expected.dtype.kind in "biu":
        wrong = int(np.count_nonzero(actual != expected))
        gap = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max(initial=0.0)
        return Difference(name, float(gap), wrong / max(actual.size, 1), not wrong, f"{wrong} differ" if wrong else "")
    return _compare_floats(name, actual.astype(np.float64), expected.astype(np.float64), tolerance)


def _compare_floats(name: str, actual: Array, expected: Array, tolerance: float) -> Difference:
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        gaps = np.where(same, 0.0, np.abs(actual - expected))
    if not np.isfinite(gaps).all():
        count = int(np.count_nonzero(~np.isfinite(gaps)))
        return Difference(name, np.inf, np.inf, False, f"{count} are infinite or NaN on one side only")
    absolute = float(gaps.max(initial=0.0))
    finite = np.abs(expected[np.isfinite(expected)])
    relative = absolute / (float(finite.max(initial=0.0)) or 1.0)
    return Difference(name, absolute, relative, relative <= tolerance)


def verify_artifact(
    artifact: Artifact,
    reference: tuple[str, Runner],
    inputs: Sequence[Mapping[str, Array]],
    tolerance: float = DEFAULT_TOLERANCE,
) -> Verification:
    """Run the artifact on each of `inputs`, the first once more at the end, and compare with the reference."""
    name, expected = reference
    worst: dict[str, Difference] = {}
    with Session(artifact) as session:
        results = [session.run(values) for values in inputs]
        repeated = session.run(inputs[0])
    for values, outputs in zip(inputs, results, strict=True):
        for difference in compare(outputs, expected(values), tolerance):
            if difference.output not in worst or difference.relative > worst[difference.output].relative:
                worst[difference.output] = difference
    repeatable = all(np.asarray(results[0][key]).tobytes() == np.asarray(repeated[key]).tobytes() for key in repeated)
    return Verification(name, len(inputs), tuple(worst.values()), repeatable)
