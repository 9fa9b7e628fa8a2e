"""If, Loop, Scan and sequences on the interpreter, against CPU ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx2wgsl.errors import UnsupportedError
from onnx2wgsl.ir.interp import interpret
from onnx2wgsl.ir.program import Scan
from tests.lowering import agree, lowered, reference
from tests.test_bad_models import model, port
from tests.test_l0_passes import node

Array = np.ndarray[Any, Any]
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


def constants(**values: Any) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()]


def body(nodes: Sequence[onnx.NodeProto], states: int, outputs: Sequence[str], **values: Any) -> onnx.GraphProto:
    """A loop body with the inputs i, c and s0, s1, …"""
    inputs = [port("i", [], INT64), port("c", [], BOOL), *(port(f"s{k}", None) for k in range(states))]
    made = [port(outputs[0], None, BOOL), *(port(o, None) for o in outputs[1:])]
    return helper.make_graph(list(nodes), "body", inputs, made, constants(**values))


def run(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
    program = lowered(proto)
    got = interpret(program, feeds)
    for output, expected in zip(proto.graph.output, reference(proto, feeds), strict=True):
        agree(got[output.name], expected)


def looped(
    graph: onnx.GraphProto, outputs: Sequence[str], inputs: Sequence[str] = ("m", "go", "x"), **values: Any
) -> Any:
    loop = helper.make_node("Loop", list(inputs), list(outputs), name="loop", body=graph)
    given = {"m": np.int64(5), "go": np.asarray(True)} | values
    ports = [port("x", [3]), *([port("go", [], BOOL)] if values.get("go", True) is None else [])]
    kept = {k: v for k, v in given.items() if v is not None}
    return model([loop], ports, list(outputs), constants(**kept))


X = np.array([1.0, -2.0, 0.5], np.float32)


def test_a_loop_with_a_fixed_state_is_one_scan() -> None:
    steps = [node("Add", "s0 w", "t"), node("Mul", "t t", "collected"), node("Identity", "c", "d")]
    proto = looped(body(steps, 1, ["d", "t", "collected"], w=np.float32(0.5)), ["y", "z"])
    run(proto, {"x": X})
    (scan,) = [n for n in lowered(proto).nodes if isinstance(n, Scan)]
    assert scan.trip == 5


def test_what_does_not_depend_on_the_step_moves_out() -> None:
    steps = [node("Exp", "x", "e"), node("Add", "s0 e", "t"), node("Identity", "c", "d")]
    proto = looped(body(steps, 1, ["d", "t"]), ["y"])
    run(proto, {"x": X})
    (scan,) = [n for n in lowered(proto).nodes if isinstance(n, Scan)]
    assert len(scan.body) == 1


def test_the_step_selects_a_row() -> None:
    steps = [node("Gather", "x i", "r", axis=0), node("Add", "s0 r", "t"), node("Identity", "c", "d")]
    run(looped(body(steps, 1, ["d", "t", "r"]), ["y", "z"], m=np.int64(3)), {"x": X})


def test_a_condition_on_data_ends_a_loop_early() -> None:
    steps = [
        node("Add", "s0 w", "t"),
        node("ReduceSum", "t", "sum", keepdims=0),
        node("Less", "sum limit", "d"),
    ]
    graph = body(steps, 1, ["d", "t", "sum"], w=np.float32(1), limit=np.float32(7))
    for first in (X, X - 100, X + 100):
        run(looped(graph, ["y", "z"]), {"x": first})


@pytest.mark.parametrize("go", [True, False])
def test_a_first_condition_on_data(go: bool) -> None:
    steps = [node("Add", "s0 w", "t"), node("Identity", "c", "d")]
    proto = looped(body(steps, 1, ["d", "t", "t"], w=np.float32(1)), ["y", "z"], go=None)
    feeds = {"x": X, "go": np.asarray(go)}
    got = interpret(lowered(proto), feeds)
    assert got["z"].shape == ((5 if go else 0), 3)
    np.testing.assert_array_equal(got["y"], X + 5 if go else X)


def test_no_steps() -> None:
    steps = [node("Add", "s0 w", "t"), node("Identity", "c", "d")]
    proto = looped(body(steps, 1, ["d", "t", "t"], w=np.float32(1)), ["y", "z"], m=np.int64(0))
    got = interpret(lowered(proto), {"x": X})
    assert got["z"].shape == (0, 3)
    np.testing.assert_array_equal(got["y"], X)


def test_a_growing_state_is_unrolled() -> None:
    steps = [node("Concat", "s0 s0", "t", axis=0), node("Identity", "c", "d")]
    run(looped(body(steps, 1, ["d", "t"]), ["y"], m=np.int64(4)), {"x": X})


def test_loops_that_are_refused() -> None:
    steps = [node("Add", "s0 s0", "t"), node("Identity", "c", "d")]
    graph = body(steps, 1, ["d", "t"])
    reasons = {
        "it has no largest number of steps, only a condition": looped(graph, ["y"], ("", "go", "x"), m=None),
        "its largest number of steps is 1000000; at most 65536 are supported": looped(graph, ["y"], m=np.int64(10**6)),
    }
    growing = body([node("Concat", "s0 s0", "t", axis=0), node("Identity", "c", "d")], 1, ["d", "t"])
    reasons["its state changes from f32[3] to f32[6] in a step"] = looped(growing, ["y"], m=np.int64(100))
    for reason, proto in reasons.items():
        with pytest.raises(UnsupportedError) as error:
            lowered(proto)
        assert error.value.gaps[0].reason == reason


def branch(op: str, out: str = "r") -> onnx.GraphProto:
    return helper.make_graph([node(op, "x", out)], op, [], [port(out, None)])


@pytest.mark.parametrize("flag", [True, False])
def test_if_on_data_selects(flag: bool) -> None:
    chosen = helper.make_node("If", ["f"], ["y"], then_branch=branch("Neg"), else_branch=branch("Exp"))
    run(model([chosen], [port("f", [], BOOL), port("x", [3])]), {"f": np.asarray(flag), "x": X})


@pytest.mark.parametrize("flag", [True, False])
def test_branches_of_two_sizes_have_a_length(flag: bool) -> None:
    double = helper.make_graph([node("Concat", "x x", "r", axis=0)], "double", [], [port("r", None)])
    chosen = helper.make_node("If", ["f"], ["y"], then_branch=double, else_branch=branch("Exp"))
    run(model([chosen], [port("f", [], BOOL), port("x", [3])]), {"f": np.asarray(flag), "x": X})


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_scan(axis: int, reverse: int) -> None:
    step = helper.make_graph(
        [node("Add", "s v", "t"), node("Mul", "t v", "o")],
        "step",
        [port("s", [4]), port("v", [4])],
        [port("t", [4]), port("o", [4])],
    )
    attrs = {
        "scan_input_axes": [axis],
        "scan_input_directions": [reverse],
        "scan_output_axes": [axis],
        "scan_output_directions": [reverse],
    }
    scan = helper.make_node("Scan", ["a", "b"], ["y", "z"], body=step, num_scan_inputs=1, **attrs)
    b = np.random.default_rng(0).standard_normal((4, 6) if axis else (6, 4)).astype(np.float32)
    run(model([scan], [port("a", [4]), port("b", b.shape)], ["y", "z"]), {"a": np.zeros(4, np.float32), "b": b})


def test_sequences_are_resolved_at_compile_time() -> None:
    nodes = [
        node("SplitToSequence", "x two", "s", axis=0),
        node("SequenceAt", "s one", "last"),
        node("SequenceInsert", "s last zero", "longer"),
        node("SequenceErase", "longer one", "shorter"),
        node("SequenceLength", "shorter", "n"),
        node("ConcatFromSequence", "shorter", "y", axis=0),
    ]
    values = constants(two=np.int64(2), one=np.int64(1), zero=np.int64(0))
    proto = model(nodes, [port("x", [3])], ["y"], values)
    proto.graph.output.append(port("n", [], INT64))
    run(proto, {"x": X})
