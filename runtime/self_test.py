"""The self-test: the artifact's golden inputs on the user's own device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx2wgsl.artifact import Golden
from onnx2wgsl.errors import ArtifactError
from onnx2wgsl.ir.dtypes import BY_NAME, DType
from onnx2wgsl.ir.plan import Port

from .io import array_of_bits

if TYPE_CHECKING:
    from .session import Session

_TOLERANCES = {"f64": 1e-9, "f32": 1e-3, "f16": 1e-2, "bf16": 4e-2}
"""Largest difference as a part of the expected output's largest magnitude; all other dtypes are compared exactly."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Whether the outputs were right, with which variants ("preferred" or "baseline"), and the largest difference of
    each output as a part of its largest magnitude (for exact types, the part of the elements that differ).
    """

    passed: bool
    variants: str
    differences: Mapping[str, float]


def run_self_test(session: Session, runs: int) -> SelfTest:
    """Run the golden inputs `runs` times; if that is wrong and there are other variants, with the baseline too."""
    golden = session.artifact.golden
    if golden is None:
        raise ArtifactError("This artifact has no golden.npz, so it cannot test itself.")
    kind = "baseline" if _is_baseline(session) else "preferred"
    passed, differences = _compare(session, golden, runs)
    if not passed and kind == "preferred":
        session.use_baseline()
        kind = "baseline"
        passed, differences = _compare(session, golden, runs)
    session.reset_states()
    return SelfTest(passed, kind, differences)


def _is_baseline(session: Session) -> bool:
    chosen = session.variants
    return all(chosen[step.name] is step.variants[-1] for step in session.entry.steps)


def _compare(session: Session, golden: Golden, runs: int) -> tuple[bool, dict[str, float]]:
    inputs = _typed(session.inputs, golden.inputs)
    expected = _typed(session.outputs, golden.outputs)
    dtypes = {port.name: BY_NAME[port.dtype] for port in session.outputs}
    differences = dict.fromkeys(expected, 0.0)
    for _ in range(max(runs, 1)):
        session.reset_states()
        actual = session.run(inputs, outputs=list(expected))
        for name, array in expected.items():
            differences[name] = max(differences[name], _difference(actual[name], array, dtypes[name]))
    allowed = {name: _TOLERANCES.get(dtypes[name].name, 0.0) for name in expected}
    return all(differences[name] <= allowed[name] for name in expected), differences


def _typed(ports: tuple[Port, ...], arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    dtypes = {port.name: BY_NAME[port.dtype] for port in ports}
    return {name: array_of_bits(array, dtypes[name]) for name, array in arrays.items() if name in dtypes}


def _difference(actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], dtype: DType) -> float:
    if actual.shape != expected.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    if dtype.name not in _TOLERANCES:
        return float(np.mean(actual != expected))
    got, want = actual.astype(np.float64), expected.astype(np.float64)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    finite = np.isfinite(want)
    if not np.all(same | (finite & np.isfinite(got))):
        return float("inf")
    scale = max(float(np.max(np.abs(want), initial=0.0, where=finite)), 1e-6)
    return float(np.max(np.where(same, 0.0, np.abs(np.where(same, 0.0, got) - np.where(same, 0.0, want))))) / scale
