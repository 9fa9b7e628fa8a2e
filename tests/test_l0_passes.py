"""The passes on ONNX models: each result is a valid model that ONNX Runtime runs with the same answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx2wgsl.passes.fix_shapes import FixShapes, evaluate_dim
from onnx2wgsl.passes.fold_constants import FoldConstants
from onnx2wgsl.passes.load_model import LoadModel
from onnx2wgsl.passes.simplify import Simplify
from tests.lowering import lowered, reference
from tests.test_bad_models import model, port

Array = np.ndarray[Any, Any]
Constants = Mapping[str, Any]


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str] = ("y",),
    constants: Constants | None = None,
) -> onnx.ModelProto:
    values = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    proto = model(nodes, inputs, outputs, values)
    return onnx.shape_inference.infer_shapes(proto)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"{op}.{outputs}", **attrs)


def passed(proto: onnx.ModelProto, *passes: Any) -> onnx.ModelProto:
    loaded = LoadModel().run(proto).program
    for step in passes:
        loaded = step.run(loaded).program
    result = onnx_ir.to_proto(loaded)
    onnx.checker.check_graph(result.graph, _context(result))
    return result


def _context(proto: onnx.ModelProto) -> Any:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = proto.ir_version
    context.opset_imports = {o.domain: o.version for o in proto.opset_import}
    return context


def ops(proto: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in proto.graph.node]


def same(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
    kept = {i.name: feeds[i.name] for i in after.graph.input}
    assert [o.name for o in before.graph.output] == [o.name for o in after.graph.output]
    for a, b in zip(reference(before, feeds), reference(after, kept), strict=True):
        np.testing.assert_array_equal(a, b)


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def test_shape_arithmetic_folds() -> None:
    proto = build(
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "b", axis=0),
            node("Unsqueeze", "b zeros", "bu"),
            node("Concat", "bu minus", "shape", axis=0),
            node("Reshape", "x shape", "y"),
        ],
        [port("x", ["n", 3, 4])],
        constants={"zero": np.int64(0), "zeros": np.array([0]), "minus": np.array([-1])},
    )
    after = passed(proto, FixShapes({"n": 2}), FoldConstants(), Simplify())
    assert ops(after) == ["Reshape"]
    assert [d.dim_value for d in after.graph.output[0].type.tensor_type.shape.dim] == [2, 12]
    same(proto, after, {"x": X})


def test_graph_outputs_that_are_constants_stay_outputs() -> None:
    proto = build([node("Shape", "x", "y"), node("Relu", "x", "z")], [port("x", [2, 3, 4])], ["y", "z"])
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    after = passed(proto, FoldConstants(), Simplify())
    assert sorted(ops(after)) == ["Constant", "Relu"]
    same(proto, after, {"x": X})


def test_large_results_stay_nodes_and_say_why() -> None:
    proto = build([node("Expand", "one shape", "e"), node("Add", "x e", "y")], [port("x", [100])], constants={
        "one": np.ones(1, np.float32), "shape": np.array([100])})  # fmt: skip
    result = FoldConstants(size_limit=50).run(LoadModel().run(proto).program)
    assert result.refusals == ("Expand.e: its constant result of 100 elements exceeds 50",)
    assert [n.op_type for n in result.program.graph] == ["Expand", "Add"]


def test_nodes_that_cannot_be_lowered_stay() -> None:
    unknown = helper.make_node("Nope", ["c"], ["u"], domain="my.ops")
    proto = model(
        [unknown, node("Add", "c c", "d"), node("Mul", "u d", "y")],
        [],
        constants=[numpy_helper.from_array(np.ones(2, np.float32), "c")],
    )
    result = FoldConstants().run(LoadModel().run(proto).program)
    assert [n.op_type for n in result.program.graph] == ["Nope", "Mul"]
    assert list(result.program.graph.initializers) == ["c", "d"]


def branches(**conditions: Any) -> onnx.ModelProto:
    """Two If nodes whose branches use the same inner names."""

    def branch(op: str) -> onnx.GraphProto:
        inner = numpy_helper.from_array(np.float32(2), "w")
        nodes = [node(op, "x w", "t"), node("Neg", "t", "r")]
        return helper.make_graph(nodes, op, [], [port("r", None)], [inner])

    nodes = [
        helper.make_node("If", ["c"], ["a"], name="first", then_branch=branch("Add"), else_branch=branch("Mul")),
        helper.make_node("If", ["d"], ["b"], name="second", then_branch=branch("Sub"), else_branch=branch("Div")),
        node("Concat", "a b", "y", axis=0),
    ]
    return build(nodes, [port("x", [2, 3, 4])], ["y", "b"], {k: np.asarray(v) for k, v in conditions.items()})


@pytest.mark.parametrize("c", [True, False])
@pytest.mark.parametrize("d", [True, False])
def test_branches_on_constants_are_resolved(c: bool, d: bool) -> None:
    proto = branches(c=c, d=d)
    after = passed(proto, FoldConstants(), Simplify())
    taken = ["Add" if c else "Mul", "Neg", "Sub" if d else "Div", "Neg", "Concat"]
    assert [o for o in ops(after) if o != "Identity"] == taken
    same(proto, after, {"x": X})


def test_identities_and_dropout_go() -> None:
    proto = build(
        [
            node("Identity", "x", "a"),
            node("Dropout", "a", "b"),
            node("Relu", "b", "c"),
            node("Identity", "c", "y"),
            node("Identity", "x", "z"),
            node("Neg", "x", "unused"),
        ],
        [port("x", [2, 3, 4])],
        ["y", "z"],
        {"dead": np.ones(3, np.float32)},
    )
    after = passed(proto, Simplify())
    assert sorted(ops(after)) == ["Identity", "Relu"]
    assert not after.graph.initializer
    same(proto, after, {"x": X})
    again = Simplify().run(LoadModel().run(after).program)
    assert not again.changed


def test_training_dropout_stays() -> None:
    constants = {"ratio": np.float32(0.5), "training": np.asarray(True)}
    proto = build([node("Dropout", "x ratio training", "y")], [port("x", [4])], constants=constants)
    assert ops(passed(proto, Simplify())) == ["Dropout"]


def test_one_value_may_be_several_outputs() -> None:
    nodes = [node("Relu", "x", "a"), node("Identity", "a", "y"), node("Identity", "a", "z")]
    proto = build(nodes, [port("x", [2, 3, 4])], ["y", "z"])
    after = passed(proto, FoldConstants(), Simplify())
    same(proto, after, {"x": X})


def test_bound_inputs_become_constants() -> None:
    proto = build([node("Reshape", "x s", "y")], [port("x", ["n", 4]), port("s", [2], TensorProto.INT64)])
    after = passed(proto, FixShapes({"n": 6}, bind={"s": [3, -1]}), FoldConstants())
    assert [i.name for i in after.graph.input] == ["x"]
    same(proto, after, {"x": X.reshape(6, 4), "s": np.array([3, -1])})


def test_an_initializer_that_is_an_input_becomes_a_constant_unless_bound() -> None:
    proto = build([node("Add", "x w", "y")], [port("x", [2]), port("w", [2])], constants={"w": np.ones(2, np.float32)})
    after = passed(proto, FixShapes())
    assert [i.name for i in after.graph.input] == ["x"]
    bound = passed(proto, FixShapes(bind={"w": [3.0, 4.0]}))
    assert reference(bound, {"x": np.zeros(2, np.float32)})[0].tolist() == [3, 4]


def test_one_name_for_two_sizes_takes_whole_shapes() -> None:
    proto = build([node("ReduceSum", "x", "y")], [port("x", ["d", "d"])])
    fixed = FixShapes(input_shapes={"x": [2, 3]}).run(LoadModel().run(proto).program).program
    assert fixed.graph.inputs[0].shape == onnx_ir.Shape([2, 3])


def test_symbolic_dimensions() -> None:
    known = {"past": 3, "n": 4}
    assert evaluate_dim("past + 1", known) == 4
    assert evaluate_dim("n * 2 // 3", known) == 2
    assert evaluate_dim("past + other", known) is None
    assert evaluate_dim("n // 0", known) is None
    assert evaluate_dim("__import__('os').system('true')", known) is None
    assert evaluate_dim("9" * 150 + " ** 9", known) is None


def test_every_value_is_annotated() -> None:
    proto = build([node("MatMul", "x w", "a"), node("Softmax", "a", "y")], [port("x", ["n", 4])], constants={
        "w": np.ones((4, 5), np.float32)})  # fmt: skip
    loaded = FixShapes({"n": 3}).run(LoadModel().run(proto).program).program
    result = FoldConstants().run(loaded)
    assert result.statistics["annotated"] == 2
    shapes = {o.name: o.shape for n in result.program.graph for o in n.outputs}
    assert shapes == {"a": onnx_ir.Shape([3, 5]), "y": onnx_ir.Shape([3, 5])}


def test_the_passes_leave_what_they_were_given_alone() -> None:
    proto = branches(c=True, d=False)
    before = proto.SerializeToString(deterministic=True)
    passed(proto, FixShapes(), FoldConstants(), Simplify())
    assert proto.SerializeToString(deterministic=True) == before


def test_a_folded_model_lowers_to_the_same_results() -> None:
    from onnx2wgsl.ir.interp import interpret

    proto = branches(c=True, d=False)
    after = passed(proto, FoldConstants(), Simplify())
    results = interpret(lowered(proto), {"x": X}), interpret(lowered(after), {"x": X})
    for name in ("y", "b"):
        np.testing.assert_array_equal(results[0][name], results[1][name])
