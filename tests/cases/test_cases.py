"""Each case of `models.py`, compiled and replayed, against its expected outputs."""

from __future__ import annotations

import numpy as np
import pytest

import onnx2wgsl
from tests.networks import run_onnxruntime

from .models import CASES


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]()
    model = case.model()
    expected = case.expected(case.inputs) if case.expected else run_onnxruntime(model, case.inputs)
    with onnx2wgsl.Session(onnx2wgsl.compile(model)) as session:
        actual = session.run(case.inputs)
    assert list(actual) == [value.name for value in model.graph.output]
    for output, reference in expected.items():
        assert actual[output].dtype == reference.dtype
        np.testing.assert_allclose(actual[output], reference, case.rtol, case.atol, err_msg=output)
