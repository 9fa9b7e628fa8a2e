"""Contractions on the real device, every schedule, against the interpreter in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import helper, numpy_helper

import onnx2wgsl
from onnx2wgsl.codegen.contraction import contraction, tile_kernel
from onnx2wgsl.codegen.heuristics import GPU_TILES, SLICED_TILES, Tile
from onnx2wgsl.ir.interp import interpret
from onnx2wgsl.ir.program import Nest
from onnx2wgsl.passes.fuse import Fuse
from onnx2wgsl.passes.lower_ops import lower_model
from onnx2wgsl.passes.pack_constants import PackConstants

Array = np.ndarray[Any, Any]


class Net:
    """A model under construction: inputs are random, constants become initializers."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.feeds: dict[str, Array] = {}
        self.values: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []

    def array(self, shape: Sequence[int]) -> Array:
        return self.rng.standard_normal(tuple(shape)).astype(np.float32)

    def input(self, *shape: int) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self.array(shape)
        return name

    def constant(self, *shape: int, array: Array | None = None) -> str:
        name = f"c{len(self.values)}"
        self.values.append(numpy_helper.from_array(self.array(shape) if array is None else array, name))
        return name

    def op(self, kind: str, *inputs: str, **attrs: Any) -> str:
        name = f"y{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attrs))
        return name

    def model(self, *outputs: str) -> onnx.ModelProto:
        ports = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in self.feeds.items()
        ]
        graph = helper.make_graph(self.nodes, "g", ports, [onnx.ValueInfoProto(name=o) for o in outputs], self.values)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        return onnx.shape_inference.infer_shapes(made)


def check(
    net: Net, *outputs: str, schedules: Sequence[str] = ("registers", "tiles"), tolerance: float = 1e-4
) -> str:
    """Runs the preferred and the baseline variants, twice each, and compares; returns the text of the kernels."""
    model = net.model(*outputs)
    expected = interpret(lower_model(onnx_ir.from_proto(model)), net.feeds, wide=True)
    artifact = onnx2wgsl.compile(model)
    texts = "".join(k.wgsl for k in artifact.plan.kernels)
    assert all(f"// {s}:" in texts for s in schedules), texts
    with onnx2wgsl.Session(artifact) as session:
        for baseline in (False, True):
            if baseline:
                session.use_baseline()
            first, second = session.run(net.feeds), session.run(net.feeds)
            for name, value in expected.items():
                assert first[name].tobytes() == second[name].tobytes()
                np.testing.assert_allclose(first[name], value, rtol=tolerance, atol=tolerance * np.abs(value).max())
    return texts


SIZES = (3, 5, 17, 33, 64, 130)


@pytest.mark.parametrize("seed", range(12))
def test_products_of_random_shapes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m, n = (int(rng.choice(SIZES)) for _ in range(2))
    k = int(rng.choice((*SIZES, 2)))
    flip_a, flip_b, constant = (int(rng.integers(2)) for _ in range(3))
    net = Net(seed)
    a = net.input(*((k, m) if flip_a else (m, k)))
    b = (net.constant if constant else net.input)(*((n, k) if flip_b else (k, n)))
    c = net.constant(n)
    check(net, net.op("Relu", net.op("Gemm", a, b, c, transA=flip_a, transB=flip_b, alpha=0.5)))


@pytest.mark.parametrize("shape", [((1, 16), (16, 24)), ((24, 16), (16, 1)), ((16,), (16, 24))])
def test_a_product_with_a_vector_is_a_reduction(shape: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    net = Net(0)
    check(net, net.op("MatMul", net.input(*shape[0]), net.input(*shape[1])), schedules=("threads",))


@pytest.mark.parametrize(
    "shapes",
    [((2, 3, 17, 12), (2, 3, 12, 20)), ((5, 9, 8), (8, 12)), ((3, 1, 9, 7), (2, 7, 5)), ((4, 6), (3, 6, 10))],
)
def test_batches(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    net = Net(1)
    check(net, net.op("MatMul", net.input(*shapes[0]), net.input(*shapes[1])))


def test_attention_scores_with_transposed_heads() -> None:
    net = Net(2)
    heads = net.constant(array=np.array([2, 24, 4, 8]))
    q, k = (
        net.op("Transpose", net.op("Reshape", net.input(2, 24, 32), heads), perm=p)
        for p in ([0, 2, 1, 3], [0, 2, 3, 1])
    )
    check(net, net.op("MatMul", q, k))


CONVS: dict[str, Callable[[Net], str]] = {
    "pointwise": lambda n: n.op("Conv", n.input(2, 12, 6, 6), n.constant(20, 12, 1, 1), n.constant(20)),
    "pointwise, 49 positions": lambda n: n.op("Conv", n.input(1, 12, 7, 7), n.constant(20, 12, 1, 1)),
    "padded 3x3": lambda n: n.op("Conv", n.input(1, 17, 9, 8), n.constant(10, 17, 3, 3), n.constant(10), pads=[1] * 4),
    "first layer": lambda n: n.op("Conv", n.input(1, 3, 20, 20), n.constant(8, 3, 7, 7), pads=[3] * 4, strides=[2, 2]),
    "groups": lambda n: n.op("Conv", n.input(1, 12, 6, 7), n.constant(18, 4, 3, 3), group=3, pads=[1, 0, 1, 2]),
    "dilated": lambda n: n.op("Conv", n.input(1, 4, 11, 11), n.constant(6, 4, 3, 2), dilations=[2, 3], strides=[1, 2]),
    "weights as input": lambda n: n.op("Conv", n.input(1, 5, 8, 8), n.input(7, 5, 3, 3), pads=[1] * 4),
    "one axis": lambda n: n.op("Conv", n.input(2, 6, 33), n.constant(9, 6, 5), pads=[2, 2]),
    "transposed": lambda n: n.op("ConvTranspose", n.input(1, 8, 5, 5), n.constant(8, 6, 4, 4), strides=[2, 2]),
}


@pytest.mark.parametrize("name", CONVS)
def test_convolutions(name: str) -> None:
    net = Net(3)
    check(net, CONVS[name](net))


def test_residual_and_several_stores() -> None:
    net = Net(4)
    x = net.input(1, 16, 8, 8)
    summed = net.op("Add", net.op("Conv", x, net.constant(16, 16, 1, 1), net.constant(16)), x)
    check(net, net.op("Relu", summed), summed)


def test_batch_normalisation_is_folded_into_constants() -> None:
    net = Net(5)
    scale, shift, mean = (net.constant(10) for _ in range(3))
    variance = net.constant(array=np.abs(net.array([10])))
    x = net.op("Conv", net.input(1, 6, 8, 8), net.constant(10, 6, 3, 3))
    y = net.op("BatchNormalization", x, scale, shift, mean, variance)
    check(net, net.op("HardSwish", y))
    program = Fuse().run(lower_model(onnx_ir.from_proto(net.model(y)))).program
    packed = PackConstants().run(program)
    assert packed.statistics["packed"] == 1
    assert all(e.shape[-1] == 12 for n, e in packed.program.constants.items() if e.size > 100)


def test_integers() -> None:
    net = Net(6)
    net.feeds["a"] = net.rng.integers(0, 255, (19, 40)).astype(np.uint8)
    b = net.constant(array=net.rng.integers(-128, 127, (40, 24)).astype(np.int8))
    zero = net.constant(array=np.array(7, np.uint8))
    check(net, net.op("MatMulInteger", "a", b, zero))


def test_half_precision_operands() -> None:
    net = Net(7)
    net.feeds["a"] = net.array([9, 24]).astype(np.float16)
    b = net.constant(array=net.array([24, 16]).astype(np.float16))
    check(net, net.op("Cast", net.op("MatMul", "a", b), to=onnx.TensorProto.FLOAT), tolerance=1e-3)


def test_gathered_rows() -> None:
    net = Net(8)
    net.feeds["i"] = np.array([3, 0, 7, 7, 1, 2], np.int64)
    rows = net.op("Gather", net.constant(9, 16), "i")
    check(net, net.op("MatMul", rows, net.input(16, 20)))


OTHER_TILES = (Tile(64, 64, 8, 8, 8, 1), Tile(32, 64, 8, 4, 8, 4, True))


@pytest.mark.parametrize("tile", [*GPU_TILES, *SLICED_TILES, *OTHER_TILES], ids=str)
def test_tiles_keep_to_the_baseline_limits(tile: Tile) -> None:
    net = Net(9)
    program = lower_model(onnx_ir.from_proto(net.model(net.op("MatMul", net.input(200, 96), net.input(96, 136)))))
    nest = program.nodes[0]
    assert isinstance(nest, Nest)
    c = contraction(nest, program.tensors)
    assert c is not None
    kernel = tile_kernel(nest, c, program.tensors, tile)
    assert kernel.workgroup_size[0] <= 256
    assert sum(16 * a.count for a in kernel.shared) <= 16384


@pytest.mark.parametrize(("m", "k", "n"), [(20, 256, 24), (37, 512, 70), (9, 288, 40), (130, 320, 33), (16, 1024, 48)])
def test_long_products_of_few_elements_are_cut_into_slices(m: int, k: int, n: int) -> None:
    net = Net(m + k)
    bias = net.constant(n)
    product = net.op("MatMul", net.input(m, k), net.constant(k, n))
    assert " slices" in check(net, net.op("Relu", net.op("Add", product, bias)))


def test_a_convolution_of_many_channels_is_cut_into_slices() -> None:
    net = Net(77)
    conv = net.op("Conv", net.input(1, 64, 7, 7), net.constant(48, 64, 3, 3), pads=[1, 1, 1, 1])
    assert " slices" in check(net, conv)
