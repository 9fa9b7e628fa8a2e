"""One-node models: lowered and interpreted on one side, run by CPU ONNX Runtime on the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import helper, numpy_helper

from onnx2wgsl.ir.interp import interpret
from onnx2wgsl.ir.program import Program
from onnx2wgsl.passes.lower_ops import lower_model

ort = pytest.importorskip("onnxruntime")
Array = np.ndarray[Any, Any]


def one_node(
    op: str,
    inputs: Sequence[Array | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    opset: int = 21,
    outputs: int = 1,
    constant: Sequence[int] = (),
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one node and its feeds; the inputs at the positions `constant` become initializers."""
    names = ["" if x is None else f"x{k}" for k, x in enumerate(inputs)]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, **(attrs or {}))
    feeds = {n: x for k, (n, x) in enumerate(zip(names, inputs, strict=True)) if x is not None and k not in constant}
    ports = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()
    ]
    values = [numpy_helper.from_array(inputs[k], names[k]) for k in constant if inputs[k] is not None]
    graph = helper.make_graph([node], op, ports, [onnx.ValueInfoProto(name=r) for r in results], values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model), feeds


def lowered(model: onnx.ModelProto) -> Program:
    return lower_model(onnx_ir.from_proto(model))


def reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def agree(got: Array, expected: Array, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, expected)
        return
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)


def check(
    op: str,
    inputs: Sequence[Array | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    opset: int = 21,
    outputs: int = 1,
    constant: Sequence[int] = (),
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> Program:
    """Compares the interpreted lowering of a node with ONNX Runtime, and returns the program."""
    model, feeds = one_node(op, inputs, attrs, opset=opset, outputs=outputs, constant=constant)
    program = lowered(model)
    got = interpret(program, feeds)
    for name, expected in zip((o.name for o in model.graph.output), reference(model, feeds), strict=True):
        agree(got[name], np.asarray(expected), rtol, atol)
    return program
