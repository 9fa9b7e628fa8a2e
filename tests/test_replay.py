"""Replay equals eager bit for bit on compiled models, over many runs with changing inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx2wgsl

from . import networks


def recurrent() -> tuple[onnx.ModelProto, dict[str, tuple[int, ...]]]:
    """An LSTM over 7 steps: its steps share kernels and differ in uniforms."""
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal(shape).astype(np.float32) * 0.3
        for name, shape in {"w": (2, 32, 5), "r": (2, 32, 8), "b": (2, 64)}.items()
    }
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=8, direction="bidirectional")
    graph = helper.make_graph(
        [node],
        "lstm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (7, 2, 5))],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "h", "c")],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), {"x": (7, 2, 5)}


def changed(inputs: Mapping[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        n: rng.standard_normal(v.shape).astype(v.dtype) if v.dtype.kind == "f" else rng.integers(0, 2, v.shape, v.dtype)
        for n, v in inputs.items()
    }


@pytest.mark.parametrize("memory", ["fast", "compact"])
@pytest.mark.parametrize("which", ["encoder", "recurrent"])
def test_replay_equals_eager(which: str, memory: str) -> None:
    if which == "encoder":
        net = networks.encoder(1, 8, hidden=32, heads=2, vocabulary=50)
        model, inputs = net.model, dict(net.inputs)
    else:
        model, shapes = recurrent()
        inputs = {n: np.zeros(s, np.float32) for n, s in shapes.items()}
    artifact = onnx2wgsl.compile(model, memory=memory)
    rng = np.random.default_rng(1)
    feeds = [changed(inputs, rng) for _ in range(4)]
    with onnx2wgsl.Session(artifact) as replay, onnx2wgsl.Session(artifact, mode="eager") as eager:
        expected = [eager.run(f) for f in feeds]
        for number in range(40):
            outputs = replay.run(feeds[number % 4])
            for name, value in expected[number % 4].items():
                np.testing.assert_array_equal(outputs[name], value, err_msg=f"run {number}, {name}")
    reference = networks.run_onnxruntime(model, feeds[0])
    for name, value in reference.items():
        assert networks.relative_error(expected[0][name], value) < 1e-4


def test_the_same_model_gives_the_same_bytes() -> None:
    from onnx2wgsl.ir.plan_json import print_plan

    net = networks.encoder(1, 8, hidden=32, heads=2, vocabulary=50)
    first = onnx2wgsl.compile(net.model)
    onnx2wgsl.compile(recurrent()[0])
    second = onnx2wgsl.compile(net.model)
    assert print_plan(first.plan) == print_plan(second.plan)
    assert [k.wgsl for k in first.plan.kernels] == [k.wgsl for k in second.plan.kernels]
    assert list(first.weights.chunks()) == list(second.weights.chunks())


def test_entries_share_weights_and_kernels() -> None:
    model = networks.encoder(1, 8, hidden=32, heads=2, vocabulary=50).model
    one = onnx2wgsl.compile(model)
    both = onnx2wgsl.compile(model, entries={"a": {}, "b": {}})
    assert [e.name for e in both.plan.entries] == ["a", "b"]
    assert len(both.plan.kernels) == len(one.plan.kernels)
    assert both.plan.weights == one.plan.weights
