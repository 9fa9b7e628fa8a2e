"""The first wrong pass and tensor are found at every level; a pass that breaks a rule is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import onnx2wgsl
from onnx2wgsl.bisection import bisect_passes
from onnx2wgsl.compiler import PassTrace, run_pipeline
from onnx2wgsl.errors import CompileError
from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.program import Nest, Program
from onnx2wgsl.passes.base import PassResult
from onnx2wgsl.passes.fuse import Fuse
from onnx2wgsl.verify import reference_of
from tests.cli.test_app import run

TEXT = """<ir_version: 10, opset_import: ["" : 17]>
g (float[4, 8] x) => (float[4, 8] y) { s = Softmax <axis = -1> (x) t = CumSum (s, one) y = Neg (t) }"""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    made = parser.parse_model(TEXT)
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "one"))
    return made


@pytest.fixture(scope="module")
def traces(model: onnx.ModelProto) -> list[PassTrace]:
    return run_pipeline(model)


INPUTS = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)}


def bisect(model: onnx.ModelProto, traces: list[PassTrace], artifact: Any = None) -> Any:
    def unused() -> Program:
        raise AssertionError("ONNX Runtime runs this model")

    return bisect_passes(traces, reference_of(model, unused, {}), INPUTS, artifact=artifact)


def with_wrong_store(program: Program) -> Program:
    """The same program, in which the last nest stores its values plus 1."""
    *others, last = program.nodes
    assert isinstance(last, Nest)
    stores = tuple(replace(s, value=s.value + ex.const(1.0, s.value.dtype)) for s in last.stores)
    return replace(program, nodes=(*others, replace(last, stores=stores)))


def test_nothing_is_found_where_all_agree(model: onnx.ModelProto, traces: list[PassTrace]) -> None:
    assert bisect(model, traces, onnx2wgsl.compile(model)) is None


@pytest.mark.parametrize("name", ["lower-ops", "place-concats", "legalize-types"])
def test_the_first_wrong_pass_and_its_tensor(name: str, model: onnx.ModelProto, traces: list[PassTrace]) -> None:
    first = [t.name for t in traces].index(name)
    changed = [
        replace(t, program=with_wrong_store(t.program)) if k >= first and isinstance(t.program, Program) else t
        for k, t in enumerate(traces)
    ]
    suspect = bisect(model, changed)
    assert (suspect.name, suspect.after) == (name, traces[first - 1].name)
    written = changed[first].program.nodes[-1].writes
    assert suspect.tensor in written
    assert suspect.differences[0].output == "y"


def test_what_only_a_device_computes_is_part_of_it(model: onnx.ModelProto, traces: list[PassTrace]) -> None:
    other = parser.parse_model(TEXT.replace("Neg", "Abs"))
    other.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "one"))
    suspect = bisect(model, traces, onnx2wgsl.compile(other))
    assert (suspect.name, suspect.after) == ("schedule to build-plan", "legalize-types")
    assert suspect.tensor is None  # each tensor by itself is right


def test_a_pass_that_breaks_a_rule_is_named(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Fuse, program: Program) -> PassResult[Program]:
        return PassResult(replace(program, nodes=program.nodes[1:]))

    monkeypatch.setattr(Fuse, "run", broken)
    with pytest.raises(CompileError) as error:
        onnx2wgsl.compile(model)
    start = "The pass fuse left a program that breaks a rule: defect in the compiler, please report it: expected "
    assert str(error.value).startswith(start)
    onnx2wgsl.compile(model, verify=False)  # nothing looks


def test_passes_are_dumped_up_to_the_one_that_fails(tmp_path: Path) -> None:
    onnx.save(parser.parse_model(TEXT.replace("Neg", "NoSuchOperator")), tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "one"))
    onnx.save(model, tmp_path / "m.onnx")
    outcome = run("compile", tmp_path / "m.onnx", "-o", tmp_path / "out", "--dump-passes", tmp_path / "passes")
    assert outcome.returncode == 1
    assert not (tmp_path / "out").exists()
    names = sorted(path.name for path in (tmp_path / "passes").iterdir())
    assert names == ["00-load-model.onnx", "01-fix-shapes.onnx", "02-fold-constants.onnx", "03-simplify.onnx"]
