"""Where fusion, folding and fitting meet: parts of concatenations, and kernels at the limit of bindings."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx2wgsl
from onnx2wgsl.codegen.storage import root
from onnx2wgsl.compiler import CompileOptions, run_pipeline
from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import sum_of
from onnx2wgsl.ir.dtypes import F32
from onnx2wgsl.ir.interp import interpret
from onnx2wgsl.ir.program import Axis, Nest, Port, Program, Reduce, Store, TensorType
from onnx2wgsl.ir.verify import verify
from onnx2wgsl.passes.fit_bindings import FitBindings


def model(nodes: list[onnx.NodeProto], x: Any, outputs: list[str], **constants: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [x],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def most_slots(program: Program) -> int:
    return max(len({root(program.tensors, t) for t in (*n.reads, *n.writes)}) for n in program.nodes)


def test_a_part_of_a_concatenation_is_not_taken_for_the_whole() -> None:
    nodes = [
        helper.make_node("Split", ["x", "sizes"], ["head", "rest"], axis=0),
        helper.make_node("ArgMin", ["rest"], ["least"], axis=1),
        helper.make_node("Concat", ["least", "least", "head"], ["b"], axis=0),
        helper.make_node("Concat", ["b", "b", "b"], ["y"], axis=2),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, [3, 1, 4])
    made = model(nodes, x, ["y"], sizes=np.array([1, 2], np.int64))
    run_pipeline(made, CompileOptions(), until="fit-bindings")


def test_folding_affine_chains_keeps_kernels_within_the_bindings() -> None:
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["n"]),
        helper.make_node("Ceil", ["n"], ["up"]),
        helper.make_node("Sigmoid", ["up"], ["s"]),
        helper.make_node("Gather", ["n", "where"], ["some"], axis=0),
        helper.make_node("Split", ["s", "sizes"], ["left", "right"], axis=0),
        helper.make_node("Expand", ["n", "shape"], ["wide"]),
        helper.make_node("Gelu", ["wide"], ["g"]),
    ]
    constants: dict[str, Any] = {"where": [3, -5, 0], "sizes": [3, 2], "shape": [5, 7, 2, 3]}
    affine = {name: np.arange(1, 4, dtype=np.float32) for name in ("scale", "bias")}
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 7, 1, 3])
    made = model(nodes, x, ["n", "up", "some", "left", "right", "g"], **constants, **affine)
    for trace in run_pipeline(made, CompileOptions(), until="fit-bindings"):
        if trace.level == "L1":
            assert most_slots(trace.program) <= 8, trace.name


def test_one_axis_name_may_have_two_sizes() -> None:
    sizes = {f"t{k}": 3 if k < 4 else 2 for k in range(9)}
    tensors = {"x": TensorType(F32, (4,)), "a": TensorType(F32, (3,)), "b": TensorType(F32, (2,))}
    tensors |= {name: TensorType(F32, (size,)) for name, size in sizes.items()}

    def product(size: int) -> ex.Expr:
        value = ex.one(F32)
        for name in (n for n, s in sizes.items() if s == size):
            value = value * ex.load(name, F32, (ix.var("s0", size),))
        return ex.acc("a0", F32) * value

    step = Reduce("a0", (Axis("r0", 4),), sum_of(F32), (ex.load("x", F32, (ix.var("r0", 4),)),))
    stores = tuple(Store(t, (Axis("s0", n),), (ix.var("s0", n),), product(n)) for t, n in (("a", 3), ("b", 2)))
    ports = tuple(Port(name, name) for name in ("x", *sizes))
    program = Program(tensors, {}, ports, (Port("a", "a"), Port("b", "b")), (Nest((), (step,), stores),))
    fitted = FitBindings().run(program).program
    verify(fitted)
    rng = np.random.default_rng(0)
    feeds = {p.name: rng.standard_normal(tensors[p.tensor].shape).astype(np.float32) for p in ports}
    for name, expected in interpret(program, feeds).items():
        np.testing.assert_allclose(interpret(fitted, feeds)[name], expected, rtol=1e-6)


def test_long_chains_become_several_kernels() -> None:
    names = ["x", *(f"t{k}" for k in range(400))]
    nodes = [helper.make_node("Add", [a, "x"], [b]) for a, b in pairwise(names)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])
    artifact = onnx2wgsl.compile(model(nodes, x, [names[-1]]), verify=False)
    assert len(artifact.plan.entries[0].steps) >= 4


def test_a_reduction_of_more_points_than_an_index_counts_is_refused() -> None:
    shape = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 1, 3))
    nodes = [helper.make_node("Expand", ["x", "s"], ["e"]), helper.make_node("ReduceSum", ["e"], ["y"], keepdims=0)]
    sizes = numpy_helper.from_array(np.array([10**5, 10**5, 3]), "s")
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [shape], [result], [sizes])
    huge = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(onnx2wgsl.UnsupportedError, match="a kernel would loop over 30000000000 points"):
        onnx2wgsl.compile(huge)
