"""Nodes whose attributes, inner graphs or sizes make no sense, and what callers mistype: refused in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx2wgsl
from onnx2wgsl.errors import CompileError, Onnx2WgslError
from tests.test_bad_models import load, message, model, port, refusal, relu, tensor, with_weights

Node = onnx.NodeProto


def graph(nodes: list[Node], inputs: list[str], outputs: list[str]) -> onnx.GraphProto:
    return helper.make_graph(nodes, "inner", [port(n, None) for n in inputs], [port(n, None) for n in outputs])


def step(inputs: list[str], outputs: list[str]) -> onnx.GraphProto:
    nodes = [helper.make_node("Identity", ["x"], [o]) for o in outputs]
    return graph(nodes, inputs, outputs)


def node(op: str, inputs: list[str], **attributes: Any) -> Node:
    return helper.make_node(op, inputs, ["y"], name="n", **attributes)


ONE, TWO = step([], ["a"]), step([], ["a", "b"])
MALFORMED: dict[str, tuple[Node, list[int], str]] = {
    "no else": (node("If", ["flag"], then_branch=ONE), [1], "it has no else_branch"),
    "another number of results": (
        node("If", ["flag"], then_branch=ONE, else_branch=TWO),
        [1],
        "its else_branch with 0 inputs and 2 outputs does not fit the node",
    ),
    "a branch with inputs": (
        node("If", ["flag"], then_branch=step(["i"], ["a"]), else_branch=ONE),
        [1],
        "its then_branch with 1 inputs and 1 outputs does not fit the node",
    ),
    "a loop without its state": (
        node("Loop", ["three", "", "x"], body=step(["i", "go", "s"], ["a"])),
        [1],
        "its body with 3 inputs and 1 outputs does not fit the node",
    ),
    "scan inputs": (
        node("Scan", ["x"], num_scan_inputs=7, body=step(["e"], ["a"])),
        [1],
        "7 scan inputs do not fit 1 inputs",
    ),
    "stride": (node("MaxPool", ["x"], kernel_shape=[2], strides=[0]), [1, 1, 4], "strides [0] must be positive"),
    "kernel": (node("MaxPool", ["x"], kernel_shape=[0]), [1, 1, 4], "kernel [0] must be positive"),
    "gather": (node("Gather", ["x", "three"]), [], "f32[] has no axis to gather along"),
    "element type": (node("Cast", ["x"], to=99), [1], "element type 99 has no tensor on the GPU"),
    "many": (
        node("Range", ["zero", "many", "three"]),
        [1],
        "it has 333333333333334 elements; at most 268435456 are supported",
    ),
    "endless": (
        node("Range", ["zero_f", "endless", "one_f"]),
        [1],
        "it has inf elements; at most 268435456 are supported",
    ),
}
CONSTANTS: dict[str, Any] = {"three": 3, "zero": 0, "many": 10**15}
FLOATS = {"zero_f": 0.0, "one_f": 1.0, "endless": np.inf}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_nodes(case: str) -> None:
    made, shape, reason = MALFORMED[case]
    constants = [numpy_helper.from_array(np.array(v, np.int64), k) for k, v in CONSTANTS.items()]
    constants += [numpy_helper.from_array(np.array(v, np.float32), k) for k, v in FLOATS.items()]
    built = model([made], [port("x", shape), port("flag", [], TensorProto.BOOL)], constants=constants)
    assert message(lambda: onnx2wgsl.compile(built)).endswith(f": {reason}")


def test_constants_without_data() -> None:
    assert refusal(with_weights(tensor([3]))) == 'The initializer "w" has no data, its shape [3] needs 12 bytes.'
    assert load(with_weights(tensor([0]))).graph.initializers["w"].const_value is not None


def test_functions_of_another_operator_set() -> None:
    inner = [helper.make_node("Relu", ["a"], ["b"])]
    old = helper.make_function("d", "f", ["a"], ["b"], inner, [helper.make_opsetid("", 11)])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("d", 1)]
    call = helper.make_node("f", ["x"], ["y"], domain="d")
    text = refusal(model([call], [port("x", [1])], functions=[old], opset_imports=imports))
    assert text.startswith("The model's functions cannot be inlined: Opset mismatch")


def test_an_output_that_is_listed_twice_is_one() -> None:
    assert [v.name for v in load(model([relu()], [port("x", [1])], ["y", "y"])).graph.outputs] == ["y"]
    assert [v.name for v in load(model([relu()], [port("x", [1])]), to=("y", "y")).graph.outputs] == ["y"]


@pytest.mark.parametrize(
    "options",
    [
        {"dims": {3: 3}},
        {"states": {3: "y"}},
        {"outputs": [3]},
        {"from_": [None]},
        {"entries": {1: {}}},
        {"entries": {"a": {"dims": {1: 1}}}},
    ],
)
def test_names_are_strings(options: dict[str, Any]) -> None:
    built = model([relu()], [port("x", ["n"])])
    with pytest.raises(CompileError, match="which is not a string"):
        onnx2wgsl.compile(built, **options)


def test_ragged_values() -> None:
    built = model([relu()], [port("x", ["n", "m"])])
    text = message(lambda: onnx2wgsl.compile(built, bind={"x": [[1, 2], [3]]}))
    assert text == 'The value bound to input "x" has rows of different lengths.'


def test_what_a_session_is_given() -> None:
    with pytest.raises(Onnx2WgslError, match="Expected an artifact, as compile and load give it, but got a str"):
        onnx2wgsl.Session("out/")  # type: ignore[arg-type]
    session: Any = onnx2wgsl.Session(onnx2wgsl.compile(model([relu()], [port("x", [1])])))
    x = np.ones(1, np.float32)
    with session:
        for call in (
            lambda: session.run(None),
            lambda: session.run({1: x}),
            lambda: session.run({"x": x}, outputs=5),
            lambda: session.run({"x": x}, keep=[3]),
            lambda: session.get_state(None),
        ):
            with pytest.raises(Onnx2WgslError):
                call()
