"""Views, gathers, scatters and selections on the interpreter, against NumPy and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import helper, numpy_helper

from onnx2wgsl.errors import UnsupportedError
from onnx2wgsl.ir.interp import interpret
from onnx2wgsl.passes.lower_ops import lower_model
from tests.lowering import check, lowered, one_node

Array = np.ndarray[Any, Any]
INT64_MAX, INT64_MIN = (1 << 63) - 1, -(1 << 63)


class Chain:
    """A growing chain of views and what NumPy makes of it."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.source = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        self.array = self.source
        self.name = "x"

    def constant(self, values: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, np.int64), name))
        return name

    def add(self, op: str, result: Array, *inputs: str, **attrs: Any) -> None:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [self.name, *inputs], [name], **attrs))
        self.name, self.array = name, result

    def run(self) -> Array:
        graph = helper.make_graph(
            self.nodes,
            "chain",
            [helper.make_tensor_value_info("x", onnx.TensorProto.INT32, self.source.shape)],
            [helper.make_tensor_value_info(self.name, onnx.TensorProto.INT32, None)],
            self.constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        result: Array = interpret(lower_model(onnx_ir.from_proto(model)), {"x": self.source})[self.name]
        return result


def reshape(c: Chain) -> None:
    factors = []
    rest = c.array.size
    while rest > 1 and len(factors) < 4:
        options = [d for d in range(1, rest + 1) if rest % d == 0]
        factors.append(int(c.rng.choice(options)))
        rest //= factors[-1]
    shape = [*factors, rest] if c.array.size else list(c.array.shape)
    given = list(shape)
    if shape and c.array.size and c.rng.random() < 0.5:
        given[int(c.rng.integers(len(shape)))] = -1
    c.add("Reshape", c.array.reshape(shape), c.constant(given))


def transpose(c: Chain) -> None:
    perm = c.rng.permutation(c.array.ndim).tolist()
    c.add("Transpose", c.array.transpose(perm), perm=perm)


def slicing(c: Chain) -> None:
    starts, ends, steps, cut = [], [], [], []
    for size in c.array.shape:
        step = int(c.rng.choice([1, 1, 2, 3, -1, -2]))
        start = int(c.rng.integers(0, size))
        end = int(c.rng.integers(start + 1, size + 1)) if step > 0 else int(c.rng.integers(-1, start + 1))
        if c.rng.random() < 0.3:
            end = INT64_MAX if step > 0 else INT64_MIN
        given = end - size if -1 <= end < 0 and step < 0 else end
        stop = None if end in (INT64_MAX, INT64_MIN, -1) else end
        starts.append(start), ends.append(given - 1 if given == -1 and step < 0 else given), steps.append(step)
        cut.append(slice(start, stop, step))
    result = c.array[tuple(cut)]
    if not result.size:
        return
    axes = c.constant(list(range(c.array.ndim)))
    c.add("Slice", result, c.constant(starts), c.constant(ends), axes, c.constant(steps))


def expand(c: Chain) -> None:
    shape = [int(c.rng.integers(1, 4)) if s == 1 else s for s in c.array.shape]
    if c.rng.random() < 0.3:
        shape = [2, *shape]
    c.add("Expand", np.broadcast_to(c.array, shape), c.constant(shape))


def tile(c: Chain) -> None:
    repeats = c.rng.integers(1, 3, c.array.ndim).tolist()
    c.add("Tile", np.tile(c.array, repeats), c.constant(repeats))


def pad(c: Chain) -> None:
    mode = str(c.rng.choice(["constant", "edge", "wrap", "reflect"]))
    low, high = c.rng.integers(0, 3, c.array.ndim), c.rng.integers(0, 3, c.array.ndim)
    if mode in ("reflect", "wrap"):
        low, high = np.minimum(low, np.array(c.array.shape) - 1), np.minimum(high, np.array(c.array.shape) - 1)
    result = np.pad(c.array, list(zip(low.tolist(), high.tolist(), strict=True)), mode=mode)  # type: ignore[call-overload]
    c.add("Pad", result, c.constant([*low, *high]), mode=mode)


def unsqueeze(c: Chain) -> None:
    axis = int(c.rng.integers(c.array.ndim + 1))
    c.add("Unsqueeze", np.expand_dims(c.array, axis), c.constant([axis]))


def squeeze(c: Chain) -> None:
    axes = [k for k, s in enumerate(c.array.shape) if s == 1]
    if axes:
        c.add("Squeeze", c.array.squeeze(tuple(axes)), c.constant(axes))


def gather(c: Chain) -> None:
    axis = int(c.rng.integers(c.array.ndim))
    size = c.array.shape[axis]
    indices = c.rng.integers(-size, size, int(c.rng.integers(1, 4)))
    c.add("Gather", np.take(c.array, indices, axis), c.constant(indices), axis=axis)


def concat(c: Chain) -> None:
    axis = int(c.rng.integers(c.array.ndim))
    c.add("Concat", np.concatenate([c.array, c.array], axis), c.name, axis=axis)


STEPS: list[Callable[[Chain], None]] = [
    reshape, reshape, transpose, transpose, slicing, expand, tile, pad, unsqueeze, squeeze, gather, concat,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(60))
def test_random_chains(seed: int) -> None:
    """Each seed is twenty chains of up to eight views."""
    rng = np.random.default_rng(seed)
    for _ in range(20):
        chain = Chain(rng, tuple(int(s) for s in rng.choice([1, 2, 3, 4, 6], int(rng.integers(1, 5)))))
        for _ in range(8):
            step = STEPS[int(rng.integers(len(STEPS)))]
            if chain.array.ndim == 0 and step not in (reshape, unsqueeze, expand):
                continue
            before = len(chain.nodes), chain.array, chain.name, len(chain.constants)
            step(chain)
            if chain.array.size > 2000 or chain.array.ndim > 6:
                del chain.nodes[before[0] :], chain.constants[before[3] :]
                chain.array, chain.name = before[1], before[2]
        if chain.nodes:
            np.testing.assert_array_equal(chain.run(), chain.array, str([n.op_type for n in chain.nodes]))


def ints(rng: np.random.Generator, lo: int, hi: int, *shape: int) -> Array:
    return rng.integers(lo, hi, shape).astype(np.int64)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("constant", [(), (1,)])
def test_gathers(seed: int, constant: tuple[int, ...]) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    axis = int(rng.integers(-3, 3))
    size = x.shape[axis]
    check("Gather", [x, ints(rng, -size, size, 2, 3)], {"axis": axis}, constant=constant)
    shape = [int(rng.integers(1, s + 1)) for s in x.shape]
    check("GatherElements", [x, ints(rng, -size, size, *shape)], {"axis": axis}, constant=constant)
    check("GatherND", [x, ints(rng, -3, 3, 6, 2)], constant=constant)
    check("GatherND", [x, ints(rng, -4, 4, 3, 2, 1)], {"batch_dims": 1}, constant=constant)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("constant", [(), (1,)])
def test_scatters(reduction: str, constant: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(reduction))
    x = rng.standard_normal((4, 5)).astype(np.float32)
    attrs = {"reduction": reduction}
    for axis in (0, 1, -1):
        indices = np.stack([rng.permutation(4)[:3] for _ in range(4)], 1).astype(np.int64) - 2
        if axis:
            indices = indices.T.copy()
        updates = rng.standard_normal(indices.shape).astype(np.float32)
        check("ScatterElements", [x, indices, updates], {"axis": axis, **attrs}, opset=18, constant=constant)
    rows = np.array([[2], [-4], [3]], np.int64)
    updates = rng.standard_normal((3, 5)).astype(np.float32)
    check("ScatterND", [x, rows, updates], attrs, opset=18, constant=constant)
    if reduction != "none":
        check("ScatterND", [x, rows // 2, updates], attrs, opset=18, constant=constant)


def test_the_last_of_several_updates_wins() -> None:
    x, updates = np.zeros(4, np.int32), np.arange(1, 6, dtype=np.int32)
    indices = np.array([1, 3, 1, 3, 1], np.int64)
    for op, shaped in (("ScatterElements", indices), ("ScatterND", indices[:, None])):
        for constant in ((), (1,)):
            model, feeds = one_node(op, [x, shaped, updates], constant=constant)
            assert interpret(lowered(model), feeds)["y0"].tolist() == [0, 5, 0, 4]


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("n", "k"), [(7, 3), (256, 256), (300, 16), (300, 1), (400, 40)])
def test_top_k(n: int, k: int, largest: int) -> None:
    rng = np.random.default_rng(n + k)
    x = rng.integers(0, 40, (2, n, 3)).astype(np.float32)
    given = np.array([k], np.int64)
    attrs = {"axis": 1, "largest": largest}
    model, feeds = one_node("TopK", [x, given], attrs, outputs=2, constant=(1,))
    got = interpret(lowered(model), feeds)
    order = np.argsort(-x if largest else x, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(got["y1"], order)
    np.testing.assert_array_equal(got["y0"], np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("shape", [(2,), (3, 5), (17,), (4, 4, 4), (1000,), (2, 1)])
def test_non_zero(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(shape[0])
    for density in (0.0, 0.4, 1.0):
        x = (rng.random(shape) < density).astype(np.float32)
        model, feeds = one_node("NonZero", [x])
        np.testing.assert_array_equal(interpret(lowered(model), feeds)["y0"], np.stack(x.nonzero()))


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("sort", [0, 1])
def test_unique(axis: int | None, sort: int) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 2 if axis is not None else 5, (6, 4)).astype(np.float32)
    attrs: dict[str, Any] = {"sorted": sort} | ({} if axis is None else {"axis": axis})
    check("Unique", [x], attrs, outputs=4)


def two_nodes(second: str, **attrs: Any) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """NonZero, whose result has a length, and a reader of it."""
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["n"]), helper.make_node(second, ["n"], ["y"], **attrs)],
        "two",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT64, None)],
    )
    x = np.array([[1, 0, 2, 0], [0, 0, 0, 3], [4, 5, 0, 0]], np.float32)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10), {"x": x}


def test_lengths_pass_through_views_and_mask_reductions() -> None:
    model, feeds = two_nodes("Transpose")
    np.testing.assert_array_equal(interpret(lowered(model), feeds)["y"], np.stack(feeds["x"].nonzero(), 1))
    model, feeds = two_nodes("ReduceMax", axes=[1], keepdims=0)
    np.testing.assert_array_equal(interpret(lowered(model), feeds)["y"], [2, 3])
    model, feeds = two_nodes("ReduceSum")
    assert interpret(lowered(model), feeds)["y"].item() == np.stack(feeds["x"].nonzero()).sum()


def test_what_needs_the_size_of_an_axis_with_a_length_is_refused() -> None:
    model, _ = two_nodes("Concat", axis=1)
    model.graph.node[1].input.append("n")
    with pytest.raises(UnsupportedError) as error:
        lowered(model)
    assert str(error.value) == "Concat (node Concat(y)): it joins tensors along an axis whose length depends on data"
    model, _ = two_nodes("Split", axis=1)
    model.graph.node[1].output.append("z")
    with pytest.raises(UnsupportedError) as error:
        lowered(model)
    reason = "it needs the size of an axis whose length depends on data"
    assert str(error.value) == f"Split (node Split(y, z)): {reason}"


REFUSED = [
    ("Reshape", [np.zeros((2, 3)), [4, 2]], {}, "f64[2, 3] cannot be reshaped to [4, 2]"),
    ("Transpose", [np.zeros((2, 3))], {"perm": [0, 0]}, "perm [0, 0] is not a permutation of the axes of f64[2, 3]"),
    ("Slice", [np.zeros(3), [0], [1], [0], [0]], {}, "a step of 0 has no meaning"),
    ("Squeeze", [np.zeros((2, 1)), [0]], {}, "axes [0] of f64[2, 1] are not all of size 1"),
    ("Expand", [np.zeros((2, 3)), [4, 3]], {}, "f64[2, 3] does not broadcast with [4, 3]"),
    ("Gather", [np.zeros(3), [5]], {}, "indices from 5 to 5 lie outside of axis 0 of f64[3]"),
    ("Split", [np.zeros(4), [1, 2]], {}, "parts [1, 2] do not add up to axis 0 of f64[4]"),
]


@pytest.mark.parametrize(("op", "inputs", "attrs", "reason"), REFUSED)
def test_refusals(op: str, inputs: list[Any], attrs: dict[str, Any], reason: str) -> None:
    arrays = [np.asarray(x, np.float64 if k == 0 else np.int64) for k, x in enumerate(inputs)]
    names = [f"x{k}" for k in range(len(arrays))]
    outputs = ["y", "z"] if op == "Split" else ["y"]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, **attrs)],
        "g",
        [helper.make_tensor_value_info("x0", onnx.TensorProto.DOUBLE, arrays[0].shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(a, n) for a, n in zip(arrays[1:], names[1:], strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with pytest.raises(UnsupportedError) as error:
        lowered(model)
    assert error.value.gaps[0].reason == reason


def test_a_view_reads_one_element_for_each_it_writes() -> None:
    model, _ = one_node("Reshape", [np.zeros((2, 6), np.float32), np.array([3, 4], np.int64)], constant=(1,))
    (nest,) = lowered(model).nodes
    assert "(" not in repr(nest.stores[0].index)[1:-1]  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(8))
def test_non_max_suppression(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 30))
    corners = rng.random((2, n, 4)).astype(np.float32)
    scores = rng.random((2, 3, n)).astype(np.float32)
    most = np.array([int(rng.integers(1, 12))], np.int64)
    limits = [np.array([v], np.float32) for v in rng.random(2) * 0.6]
    attrs = {"center_point_box": seed % 2}
    check("NonMaxSuppression", [corners, scores, most, *limits], attrs, opset=11, constant=(2,))
