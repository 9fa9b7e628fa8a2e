"""The harness itself: the rule for bound inputs, the comparison, and the pool that outlives its workers."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from onnx import parser

from .cases import bound_inputs, case_outputs, is_random, node_cases
from .compare import Mismatch, check_count, compare_distribution, compare_outputs
from .pool import Died, run_jobs


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("test_add", set()),
        ("test_slice", {"starts", "ends", "axes", "steps"}),
        ("test_top_k", {"k"}),
        ("test_center_crop_pad_pad_expanded", {"shape"}),
        ("test_loop11", {"trip_count"}),
        ("test_layer_normalization_2d_axis0_expanded", set()),
    ],
)
def test_only_inputs_that_decide_shapes_are_bound(name: str, bound: set[str]) -> None:
    assert bound_inputs(node_cases()[name].model) == bound


def test_a_shape_is_not_its_tensor() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17]>
    g (float[2, 3] x, float[6] y, int64[2] s) => (float[2, 3] z, float[a, b] w) {
        shape = Shape (x) z = Reshape (y, shape)
        one = Constant <value_ints = [1]> () t = Mul (s, one) w = Expand (y, t) }
    """
    assert bound_inputs(parser.parse_model(text)) == {"s"}


def test_expected_outputs_agree_with_themselves() -> None:
    for case in node_cases().values():
        outputs = case_outputs(case)
        if not is_random(case):
            compare_outputs(case, outputs)


def test_mismatches_are_described() -> None:
    case = node_cases()["test_add"]
    (sum_,) = case_outputs(case).values()
    with pytest.raises(Mismatch, match="expected float32, got float64"):
        compare_outputs(case, {"sum": sum_.astype(np.float64)})
    changed = sum_.copy()
    changed[1, 2, 3] += 1
    with pytest.raises(Mismatch, match="sum: 1 of 60 elements differ, first at"):
        compare_outputs(case, {"sum": changed})


def test_random_outputs_are_checked_by_distribution() -> None:
    case = node_cases()["test_bernoulli"]
    compare_distribution(case, case_outputs(case))
    halves = {name: np.full_like(array, 0.5) for name, array in case_outputs(case).items()}
    with pytest.raises(Mismatch, match="a draw is neither 0 nor 1"):
        compare_distribution(case, halves)
    with pytest.raises(Mismatch, match="90 ones where 50 ± 5 are expected"):
        check_count(90, np.full(100, 0.5))


def _misbehave(job: str) -> str:
    if job == "dies":
        os._exit(3)
    if job == "hangs":
        time.sleep(60)
    return job.upper()


def test_a_dead_or_hanging_worker_costs_one_job() -> None:
    results = dict(run_jobs(_misbehave, ["a", "dies", "b", "hangs", "c"], processes=2, limit=1.0))
    assert results.pop("dies") == Died("the process ended with exit code 3")
    assert results.pop("hangs") == Died("no result within 1 s")
    assert results == {"a": "A", "b": "B", "c": "C"}
