"""Convolutions and matrix products against CPU ONNX Runtime, on the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnx2wgsl.errors import UnsupportedError
from onnx2wgsl.ir.program import Contract, Nest, Reduce
from tests.lowering import check, lowered, one_node


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float32)


def random_windows(rng: np.random.Generator, rank: int) -> dict[str, Any]:
    attrs: dict[str, Any] = {
        "strides": rng.integers(1, 4, rank).tolist(),
        "dilations": rng.integers(1, 3, rank).tolist(),
    }
    mode = rng.choice(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
    if mode == "NOTSET":
        attrs["pads"] = rng.integers(0, 3, 2 * rank).tolist()
    else:
        attrs["auto_pad"] = str(mode)
    if mode.startswith("SAME"):
        attrs["dilations"] = [1] * rank
    return attrs


@pytest.mark.parametrize("seed", range(40))
def test_conv(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    groups = int(rng.choice([1, 1, 2, 3]))
    inputs, outputs = groups * int(rng.integers(1, 4)), groups * int(rng.integers(1, 4))
    kernel = rng.integers(1, 4, rank).tolist()
    x = normal(rng, int(rng.integers(1, 3)), inputs, *rng.integers(5, 9, rank))
    w = normal(rng, outputs, inputs // groups, *kernel)
    bias = normal(rng, outputs) if rng.random() < 0.5 else None
    check("Conv", [x, w, bias][: 3 if bias is not None else 2], {"group": groups, **random_windows(rng, rank)})


@pytest.mark.parametrize("seed", range(60))
def test_conv_transpose(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    groups = int(rng.choice([1, 1, 2]))
    inputs, outputs = groups * int(rng.integers(1, 4)), groups * int(rng.integers(1, 4))
    strides = rng.integers(1, 4, rank)
    attrs: dict[str, Any] = {"group": groups, "strides": strides.tolist()}
    kernel = strides * rng.integers(1, 3, rank) if rng.random() < 0.4 else rng.integers(1, 5, rank)
    attrs["dilations"] = (np.ones(rank, int) if rng.random() < 0.6 else rng.integers(1, 3, rank)).tolist()
    attrs["output_padding"] = rng.integers(0, strides).tolist()
    extent = (kernel - 1) * np.array(attrs["dilations"]) + 1
    attrs["pads"] = [int(rng.integers(0, e)) for e in (*extent, *extent)] if rng.random() < 0.6 else [0] * (2 * rank)
    x = normal(rng, int(rng.integers(1, 3)), inputs, *rng.integers(4, 7, rank))
    w = normal(rng, inputs, outputs // groups, *kernel)
    check("ConvTranspose", [x, w, normal(rng, outputs)], attrs)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "NOTSET"])
@pytest.mark.parametrize("shape", [None, [8, 11], [9, 10]])
def test_conv_transpose_output_shape(mode: str, shape: list[int] | None) -> None:
    rng = np.random.default_rng(3)
    attrs: dict[str, Any] = {"strides": [2, 3], "auto_pad": mode}
    if shape:
        attrs["output_shape"] = shape
    check("ConvTranspose", [normal(rng, 1, 2, 4, 3), normal(rng, 2, 3, 3, 4)], attrs)


def test_conv_transpose_of_equal_phases_is_one_contraction() -> None:
    rng = np.random.default_rng(0)
    attrs = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    model, _ = one_node("ConvTranspose", [normal(rng, 1, 3, 5, 5), normal(rng, 3, 4, 4, 4)], attrs)
    (nest,) = lowered(model).nodes
    assert isinstance(nest, Nest)
    assert [type(s) for s in nest.steps] == [Contract]
    assert [a.size for a in nest.steps[0].axes] == [3, 2, 2]


def test_conv_transpose_sums_only_the_taps_of_each_phase() -> None:
    rng = np.random.default_rng(0)
    model, _ = one_node("ConvTranspose", [normal(rng, 1, 3, 5), normal(rng, 3, 4, 3)], {"strides": [2]})
    (nest,) = lowered(model).nodes
    assert isinstance(nest, Nest)
    assert [[a.size for a in s.axes] for s in nest.steps] == [[3, 2], [3]]


def test_depthwise_is_a_reduction() -> None:
    rng = np.random.default_rng(0)
    model, _ = one_node("Conv", [normal(rng, 1, 4, 6, 6), normal(rng, 4, 1, 3, 3)], {"group": 4})
    (nest,) = lowered(model).nodes
    assert isinstance(nest, Nest)
    assert [type(s) for s in nest.steps] == [Reduce]


def test_conv_of_equal_weights() -> None:
    rng = np.random.default_rng(0)
    check("Conv", [normal(rng, 2, 3, 6, 6), np.full((4, 3, 3, 3), 0.25, np.float32)], {"pads": [1] * 4}, constant=[1])


def test_conv_half_accumulates_in_single() -> None:
    x, w = np.full((1, 4096, 1), 0.5, np.float16), np.full((1, 4096, 1), 0.25, np.float16)
    w[0, 0] = 0.5
    check("Conv", [x, w], {}, opset=22)


@pytest.mark.parametrize("seed", range(12))
def test_conv_integer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = int(rng.choice([1, 2]))
    x = rng.integers(0, 256, (1, 2 * groups, 6, 5)).astype(np.uint8)
    w = rng.integers(0, 256, (2 * groups, 2, 3, 2)).astype(np.uint8)
    zeros = [np.array(rng.integers(0, 256), np.uint8), np.array(rng.integers(0, 256), np.uint8)]
    check("ConvInteger", [x, w, *zeros], {"group": groups, "pads": rng.integers(0, 2, 4).tolist()})


@pytest.mark.parametrize("per_channel", [False, True])
def test_qlinear_conv(per_channel: bool) -> None:
    rng = np.random.default_rng(5)
    x = rng.integers(0, 256, (2, 3, 6, 5)).astype(np.uint8)
    # Seven bits: on CPUs without 8-bit dot products, ONNX Runtime saturates sums of two products to 16 bits.
    w = rng.integers(-64, 64, (4, 3, 3, 2)).astype(np.int8)
    w_scale = rng.uniform(0.01, 0.02, 4 if per_channel else ()).astype(np.float32)
    w_zero = np.zeros(4 if per_channel else (), np.int8)
    scale, zero = np.array(0.02, np.float32), np.array(121, np.uint8)
    bias = rng.integers(-500, 500, 4).astype(np.int32)
    inputs = [x, scale, zero, w, w_scale, w_zero, np.array(0.3, np.float32), zero, bias]
    check("QLinearConv", inputs, {"pads": [1, 0, 1, 1]}, constant=[3, 4, 5])


@pytest.mark.parametrize("flip_a", [0, 1])
@pytest.mark.parametrize("flip_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (), (1,), (5,), (1, 5), (3, 1), (3, 5)])
def test_gemm(flip_a: int, flip_b: int, bias: tuple[int, ...] | None) -> None:
    rng = np.random.default_rng(1)
    a, b = normal(rng, *((4, 3) if flip_a else (3, 4))), normal(rng, *((5, 4) if flip_b else (4, 5)))
    inputs = [a, b] + ([] if bias is None else [normal(rng, *bias)])
    check("Gemm", inputs, {"alpha": 0.5, "beta": 2.0, "transA": flip_a, "transB": flip_b})


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4,), (4,)),
        ((4,), (4, 3)),
        ((2, 4), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((3, 1), (1, 4)),
        ((3, 0), (0, 4)),
    ],
)
def test_matmul(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    check("MatMul", [normal(rng, *left), normal(rng, *right)])


@pytest.mark.parametrize("seed", range(8))
def test_deform_conv(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups, offsets = int(rng.choice([1, 2])), int(rng.choice([1, 2]))
    x, w = normal(rng, 2, 4, 6, 5), normal(rng, 4, 4 // groups, 3, 2)
    attrs = {"group": groups, "offset_group": offsets, "pads": [1, 0, 1, 1], "strides": [1, 2]}
    offset = normal(rng, 2, offsets * 12, 6, 3) * 2
    mask = normal(rng, 2, offsets * 6, 6, 3) if rng.random() < 0.5 else None
    check("DeformConv", [x, w, offset, normal(rng, 4), mask][: 5 if mask is not None else 4], attrs, opset=22)


def test_kernel_of_other_rank_is_refused() -> None:
    rng = np.random.default_rng(0)
    model, _ = one_node("Conv", [normal(rng, 1, 3, 5, 5), normal(rng, 2, 2, 3, 3)], {"group": 1})
    with pytest.raises(UnsupportedError, match="do not agree for group 1"):
        lowered(model)
