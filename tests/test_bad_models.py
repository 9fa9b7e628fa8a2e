"""Models and options that cannot be compiled: every message is asserted as a person reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx2wgsl.errors import CompileError, UnsupportedError
from onnx2wgsl.passes.fix_shapes import FixShapes
from onnx2wgsl.passes.load_model import LoadModel
from onnx2wgsl.passes.lower_ops import lower_model

Dims = Sequence[int | str | None] | None


def port(name: str, shape: Dims, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str] = ("y",),
    constants: Sequence[onnx.TensorProto] = (),
    **options: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "g", list(inputs), [port(o, None) for o in outputs], list(constants))
    options.setdefault("opset_imports", [helper.make_opsetid("", 21)])
    return helper.make_model(graph, ir_version=10, **options)


def relu(x: str = "x", y: str = "y", **options: Any) -> onnx.NodeProto:
    return helper.make_node("Relu", [x], [y], **options)


def message(call: Callable[[], Any]) -> str:
    with pytest.raises(CompileError) as error:
        call()
    return str(error.value)


def load(source: Any, **options: Any) -> onnx_ir.Model:
    return LoadModel(**options).run(source).program


def refusal(source: Any, **options: Any) -> str:
    return message(lambda: load(source, **options))


# Files


def test_files_that_are_no_models(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    assert refusal(path) == f'There is no file "{path}".'
    assert refusal(tmp_path) == f'"{tmp_path}" is a folder; a model is one .onnx file.'
    good = model([relu()], [port("x", [1])]).SerializeToString()
    for content in (b"hello world", good[:-9], b"\x89PNG\r\n\x1a\n"):
        path.write_bytes(content)
        assert refusal(path) == f'"{path}" is not an ONNX model, or it is truncated.'
    for content in (b"", b"\x0a\x03abc"):
        path.write_bytes(content)
        assert refusal(str(path)) == f'"{path}" is not an ONNX model: it holds no graph.'
    assert refusal(3) == "A model is a path, an onnx.ModelProto or an onnx_ir.Model, got int."


def test_every_truncation_is_refused_or_valid(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.arange(6, dtype=np.float32), "w")
    good = model(
        [helper.make_node("Add", ["x", "w"], ["y"])], [port("x", [6])], constants=[weights]
    ).SerializeToString()
    path = tmp_path / "m.onnx"
    for end in range(len(good)):
        path.write_bytes(good[:end])
        message(lambda: load(path))


def test_random_bytes_never_escape_as_other_errors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    good = bytearray(model([relu(name="n")], [port("x", ["batch", 4])]).SerializeToString())
    path = tmp_path / "m.onnx"
    for _ in range(1500):
        changed = bytearray(good)
        for _ in range(int(rng.integers(1, 4))):
            changed[int(rng.integers(len(changed)))] = int(rng.integers(256))
        path.write_bytes(bytes(changed))
        try:
            lower_model(FixShapes({"batch": 1}).run(load(path)).program)
        except CompileError:
            continue


def test_versions() -> None:
    newest = onnx.defs.onnx_opset_version()
    late = model([relu()], [port("x", [1])], opset_imports=[helper.make_opsetid("", 99)])
    assert refusal(late) == f"The model uses operator set 99; this compiler knows 1 to {newest}."
    late = model([relu()], [port("x", [1])])
    late.ir_version = 99
    known = onnx.IR_VERSION
    assert refusal(late) == f"The model has IR version 99; the newest one known to this compiler is {known}."
    assert load(model([relu()], [port("x", [1])], opset_imports=[helper.make_opsetid("", 6)])).opset_imports[""] == 6


# Graphs


def test_graphs_that_are_not_valid() -> None:
    x = [port("x", [1])]
    text = 'The Relu node "r" reads "input", which nothing makes; did you mean "inputs"?'
    assert refusal(model([relu("input", name="r")], [port("inputs", [1])])) == text
    assert refusal(model([relu("q", name="r")], x)) == 'The Relu node "r" reads "q", which nothing makes.'
    assert refusal(model([relu(), relu()], x)) == 'The tensor "y" is written twice.'
    assert refusal(model([relu(y="x")], x, ["x"])) == 'The tensor "x" is written twice.'
    assert refusal(model([relu()], x, ["z"])) == 'The graph\'s output "z" is made by no node.'
    loop = [relu("z", "y", name="a"), relu("y", "z", name="b")]
    assert refusal(model(loop, x)) == 'The node "a" depends on its own result.'
    text = 'The Relu node "r" is not valid: Unrecognized attribute: foo for operator Relu'
    assert refusal(model([relu(name="r", foo=1)], x)) == text
    many = helper.make_node("Relu", ["x", "x"], ["y"], name="r")
    assert refusal(model([many], x)).startswith(
        'The Relu node "r" is not valid: Node(r) with schema(::Relu:14) has input'
    )


def test_nodes_in_any_order_are_sorted() -> None:
    found = load(model([relu("a", "y"), helper.make_node("Neg", ["x"], ["a"])], [port("x", [1])]))
    assert [n.op_type for n in found.graph] == ["Neg", "Relu"]


def test_an_operator_without_lowering_is_a_gap_that_names_the_node() -> None:
    unknown = model([helper.make_node("Nope", ["x"], ["y"], name="n", domain="my.ops")], [port("x", [1])])
    with pytest.raises(UnsupportedError) as error:
        lower_model(load(unknown))
    assert str(error.value) == "Nope (node n): operator my.ops::Nope is not supported"


# Sizes


def tensor(dims: Sequence[int], data: bytes = b"") -> onnx.TensorProto:
    result = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims)
    if data:
        result.raw_data = data
    return result


def with_weights(weights: onnx.TensorProto) -> onnx.ModelProto:
    return model([helper.make_node("Add", ["x", "w"], ["y"])], [port("x", [1])], constants=[weights])


def test_sizes() -> None:
    text = 'The tensor "x" with shape [1099511627776, 1099511627776] takes 4835703278458516698824704 bytes, '
    assert refusal(model([relu()], [port("x", [1 << 40, 1 << 40])])) == text + "more than the bound of 17179869184."
    text = 'The initializer "w" with shape [65536, 65536] takes 17179869184 bytes, more than the bound of 1000.'
    assert refusal(with_weights(tensor([1 << 16, 1 << 16])), memory_limit=1000) == text
    text = 'The initializer "w" has a negative size in its shape [-3].'
    assert refusal(with_weights(tensor([-3]))) == text
    text = 'The initializer "w" has 12 bytes of data, its shape [5] needs 20.'
    assert refusal(with_weights(tensor([5], bytes(12)))) == text
    several = model(
        [helper.make_node("Add", ["w", "v"], ["y"])],
        [],
        constants=[numpy_helper.from_array(np.zeros(200, np.float32), n) for n in "wv"],
    )
    assert refusal(several, memory_limit=1000) == "The model's tensors take 1600 bytes, more than the bound of 1000."


def test_a_negative_size_of_an_input_is_an_open_one() -> None:
    loaded = load(model([relu()], [port("x", [-1, 3])]))
    assert FixShapes(input_shapes={"x": [2, 3]}).run(loaded).program.graph.inputs[0].shape == onnx_ir.Shape([2, 3])


# External data


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("../secret", 'has its data at "../secret"; only files under the model\'s folder are read.'),
        ("a/../../secret", 'has its data at "a/../../secret"; only files under the model\'s folder are read.'),
        ("..\\secret", 'has its data at "..\\\\secret"; only files under the model\'s folder are read.'),
        ("/etc/passwd", 'has its data at "/etc/passwd"; only files under the model\'s folder are read.'),
        ("", 'has its data at ""; only files under the model\'s folder are read.'),
        ("a\0b", 'has its data at "a\\x00b"; only files under the model\'s folder are read.'),
        ("link", 'has its data at "link", a link out of the model\'s folder, which is not followed.'),
        ("folder/inner", 'has its data at "folder/inner", a link out of the model\'s folder, which is not followed.'),
        ("missing", 'has its data in "missing", and there is no such file beside the model.'),
        ("short", 'ends at byte 12 of "short", which has 8 bytes: it is truncated.'),
    ],
)
def test_external_data(tmp_path: Path, location: str, reason: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(12))
    (tmp_path / "inner").write_bytes(bytes(12))
    (folder / "short").write_bytes(bytes(8))
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path)
    weights = tensor([3])
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    path = folder / "m.onnx"
    path.write_bytes(with_weights(weights).SerializeToString())
    assert refusal(path) == f'The initializer "w" {reason}'


def test_external_data_beside_the_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(np.arange(5, dtype=np.float32).tobytes())
    weights = tensor([3])
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "data"), ("offset", "8"), ("length", "12")):
        weights.external_data.add(key=key, value=value)
    proto = with_weights(weights)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    value = load(path).graph.initializers["w"].const_value
    assert value is not None
    assert value.numpy().tolist() == [2, 3, 4]
    assert refusal(proto) == 'The initializer "w" lies in the file "data"; compile the model by its path.'
    proto.graph.initializer[0].external_data[1].value = "x"
    path.write_bytes(proto.SerializeToString())
    assert refusal(path) == 'The initializer "w" has an offset or a length that is not a number.'


# Functions


def function(name: str, callee: str, domain: str) -> onnx.FunctionProto:
    """A function that calls another one twice."""
    nodes = [
        helper.make_node(callee, ["a"], ["t"], domain=domain),
        helper.make_node(callee, ["t"], ["b"], domain=domain),
    ]
    return helper.make_function(
        "d", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 21), helper.make_opsetid("d", 1)]
    )


def calling(name: str, functions: Sequence[onnx.FunctionProto]) -> onnx.ModelProto:
    node = helper.make_node(name, ["x"], ["y"], domain="d")
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("d", 1)]
    return model([node], [port("x", [1])], functions=list(functions), opset_imports=imports)


def test_functions() -> None:
    assert [n.op_type for n in load(calling("f", [function("f", "Relu", "")])).graph] == ["Relu", "Relu"]
    assert refusal(calling("f", [function("f", "f", "d")])) == 'The function "f" calls itself.'
    chain = [function("f0", "Relu", ""), *(function(f"f{k}", f"f{k - 1}", "d") for k in range(1, 40))]
    start = time.perf_counter()
    text = "The model has 1099511627776 nodes once its functions are inlined, more than 1000000."
    assert refusal(calling("f39", chain)) == text
    assert time.perf_counter() - start < 5


# Cuts


def test_cuts() -> None:
    nodes = [relu("x", "a"), helper.make_node("Neg", ["a"], ["b"]), helper.make_node("Abs", ["b"], ["y"])]
    chain = model(nodes, [port("x", [4])])
    assert [n.op_type for n in load(chain, from_=("a",), to=("b",)).graph] == ["Neg"]
    assert [n.op_type for n in load(chain, to=("a",)).graph] == ["Relu"]
    found = load(chain, from_=("b",)).graph
    assert ([v.name for v in found.inputs], [v.name for v in found.outputs]) == (["b"], ["y"])
    text = 'The graph has no tensor "layer" to cut at.'
    assert refusal(chain, from_=("layer",)) == text


# Shapes


def two() -> onnx_ir.Model:
    inputs = [port("x", ["batch", 3, None, "h*2"]), port("m", ["batch", "sequence"])]
    return load(model([helper.make_node("Add", ["x", "m"], ["y"])], inputs))


def fixed(**options: Any) -> str:
    return message(lambda: FixShapes(**options).run(two()))


def test_open_dimensions_are_all_named_with_the_flag_to_give() -> None:
    assert fixed() == (
        "These dimensions have no value:\n"
        '  input "x" [batch, 3, ?, h*2] has unnamed open dimensions: give --shape "x=batch,3,…,h*2"\n'
        '  dimension "batch" (input "x" axis 0, "m" axis 0): give --dim batch=…\n'
        '  dimension "h*2" (input "x" axis 3): give --dim h=…\n'
        '  dimension "sequence" (input "m" axis 1): give --dim sequence=…'
    )
    # A whole shape also fixes the names in it for other inputs.
    assert fixed(input_shapes={"x": [1, 3, 2, 2]}) == (
        'These dimensions have no value:\n  dimension "sequence" (input "m" axis 1): give --dim sequence=…'
    )


def test_wrong_options() -> None:
    names = 'The named dimensions are "batch", "h", "h*2", "sequence".'
    text = f'dims: no input has a dimension "btach"; did you mean "batch"? {names}'
    assert fixed(dims={"btach": 1}) == text
    text = 'input_shapes: the model has no input "mm"; did you mean "m"? The inputs are "x", "m".'
    assert fixed(input_shapes={"mm": [1]}) == text
    text = 'The input "x" has rank 4 [batch, 3, ?, h*2], the shape [1, 3, 2] has rank 3.'
    assert fixed(input_shapes={"x": [1, 3, 2]}) == text
    text = 'The input "x" has size 3 at axis 1, the shape [1, 4, 2, 2] gives 4.'
    assert fixed(input_shapes={"x": [1, 4, 2, 2]}) == text
    text = 'The input "x" has dimension "batch" at axis 0: its shape gives 1, dims gives 2.'
    assert fixed(dims={"batch": 2}, input_shapes={"x": [1, 3, 2, 2]}) == text
    for value in (-1, True, "a"):
        text = f'The size of dimension "batch" must be an integer of 0 or more, got {value}.'
        assert fixed(dims={"batch": value}) == text


def test_bound_values() -> None:
    text = 'The value bound to input "m" has shape [2], the model says [batch, sequence].'
    assert fixed(bind={"m": [1, 2]}) == text
    assert fixed(bind={"m": "a"}) == 'The value bound to input "m" is not a tensor of numbers; f32 is needed.'
    small = load(model([relu()], [port("x", [1], TensorProto.INT8)]))
    for value, kind in (([300], "int64"), ([1.5], "float64")):
        text = message(lambda value=value: FixShapes(bind={"x": value}).run(small))  # type: ignore[misc]
        assert text == f'The value bound to input "x" has elements that i8 cannot hold (it is {kind}).'
    bound = FixShapes(bind={"x": 7}).run(small).program.graph
    value = bound.initializers["x"].const_value
    assert value is not None
    assert (value.numpy().dtype, value.numpy().tolist(), len(bound.inputs)) == (np.int8, [7], 0)


# Names

HOSTILE = [
    "a\nb",
    "*/ fn main() {",
    "</script><script>alert(1)</script>",
    "\x1b[31mred\x1b[0m",
    "n" * 10_000,
    "\u202edrow",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_one_printable_line(name: str) -> None:
    broken = model([relu("q", name, name=name)], [port("x", [1])], [name])
    unnamed = load(model([relu(name, "y")], [port(name, [name, None])]))
    texts = [refusal(broken), *message(lambda: FixShapes().run(unnamed)).split("\n")]
    texts += message(lambda: FixShapes({name: 1, name + "!": 2}).run(unnamed)).split("\n")
    for text in texts:
        assert text.isprintable()
        assert len(text) < 1200


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_compile(name: str) -> None:
    fine = load(model([relu(name, f"{name}.out", name=name)], [port(name, [name, 3])], [f"{name}.out"]))
    program = lower_model(FixShapes({name: 2}).run(fine).program)
    assert [p.name for p in program.inputs] == [name]
    assert [p.name for p in program.outputs] == [f"{name}.out"]
