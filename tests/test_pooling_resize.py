"""Pooling, resizing and sampling against CPU ONNX Runtime, on the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnx2wgsl.ir.expr import loads
from onnx2wgsl.ir.interp import interpret
from onnx2wgsl.ir.program import Nest
from tests.lowering import agree, check, lowered, one_node, reference


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float32)


def windows(rng: np.random.Generator, rank: int, dilated: bool = True) -> dict[str, Any]:
    kernel = rng.integers(1, 4, rank)
    attrs: dict[str, Any] = {"kernel_shape": kernel.tolist(), "strides": rng.integers(1, 4, rank).tolist()}
    mode = str(rng.choice(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    if mode == "NOTSET":
        attrs["pads"] = [int(rng.integers(k)) for k in (*kernel, *kernel)]
        attrs["ceil_mode"] = int(rng.integers(0, 2))
    else:
        attrs["auto_pad"] = mode
    if mode.startswith("SAME"):
        # ONNX Runtime refuses the negative padding of strides beyond the kernel in MaxPool.
        attrs["strides"] = np.minimum(attrs["strides"], kernel).tolist()
    if dilated and not mode.startswith("SAME"):
        attrs["dilations"] = rng.integers(1, 3, rank).tolist()
    return attrs


@pytest.mark.parametrize("seed", range(40))
def test_max_pool(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    x = normal(rng, 2, 2, *rng.integers(6, 10, rank))
    outputs = int(rng.integers(1, 3))
    attrs = windows(rng, rank)
    if outputs == 2:
        x = rng.integers(-3, 3, x.shape).astype(np.float32)
        attrs["storage_order"] = int(rng.integers(0, 2))
    check("MaxPool", [x], attrs, outputs=outputs)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_max_pool_of_bytes(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max + 1, (1, 2, 6, 7)).astype(dtype)
    check("MaxPool", [x], {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1]})


@pytest.mark.parametrize("seed", range(40))
def test_average_pool(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    attrs = {"count_include_pad": int(rng.integers(0, 2)), **windows(rng, rank)}
    check("AveragePool", [normal(rng, 2, 2, *rng.integers(6, 10, rank))], attrs)


@pytest.mark.parametrize("seed", range(12))
def test_lp_pool(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    attrs = {"p": int(rng.integers(1, 4)), **windows(rng, rank)}
    check("LpPool", [normal(rng, 2, 2, *rng.integers(6, 10, rank))], attrs)


@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global_pool(op: str) -> None:
    check(op, [normal(np.random.default_rng(0), 2, 3, 4, 5)])


@pytest.mark.parametrize("shape", [None, [1, 2, 7, 9]])
def test_max_unpool(shape: list[int] | None) -> None:
    """Indices are those of the natural output, 6 × 8 here, which lies in the corner of a larger `output_shape`."""
    rng = np.random.default_rng(0)
    x, best = normal(rng, 1, 2, 3, 4), np.zeros((1, 2, 3, 4), np.int64)
    expected = np.zeros(shape or [1, 2, 6, 8], np.float32)
    for at in np.ndindex(2, 3, 4):
        row, column = 2 * at[1] + int(rng.integers(2)), 2 * at[2] + int(rng.integers(2))
        best[0][at] = (at[0] * 6 + row) * 8 + column
        expected[0, at[0], row, column] = x[0][at]
    inputs = [x, best] + ([np.array(shape, np.int64)] if shape else [])
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    model, feeds = one_node("MaxUnpool", inputs, attrs, constant=[2] if shape else [])
    agree(interpret(lowered(model), feeds)["y0"], expected)


def test_max_roi_pool() -> None:
    rng = np.random.default_rng(0)
    rois = np.array([[0, 0, 0, 5, 5], [1, 2, 1, 7, 6], [0, 3, 3, 3, 4], [1, -2, 0, 12, 3]], np.float32)
    check("MaxRoiPool", [normal(rng, 2, 2, 8, 9), rois], {"pooled_shape": [2, 3], "spatial_scale": 0.75})


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [1, 2, 3])
def test_roi_align(mode: str, transform: str, ratio: int) -> None:
    rng = np.random.default_rng(0)
    rois = rng.uniform(-2, 14, (5, 4)).astype(np.float32)
    rois[:, 2:] = rois[:, :2] + rng.uniform(0.1, 8, (5, 2)).astype(np.float32)
    attrs = {
        "mode": mode, "coordinate_transformation_mode": transform, "sampling_ratio": ratio,
        "output_height": 2, "output_width": 3, "spatial_scale": 0.75,
    }  # fmt: skip
    check("RoiAlign", [normal(rng, 2, 3, 8, 9), rois, np.array([0, 1, 1, 0, 1])], attrs, opset=16)


TRANSFORMS = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("sizes", [[1, 2, 8, 12], [1, 2, 5, 9], [1, 2, 2, 3], [1, 2, 1, 7], [1, 2, 12, 4]])
def test_resize_nearest(transform: str, nearest: str, sizes: list[int]) -> None:
    rng = np.random.default_rng(0)
    attrs = {"mode": "nearest", "nearest_mode": nearest, "coordinate_transformation_mode": transform}
    check("Resize", [normal(rng, 1, 2, 4, 6), None, None, np.array(sizes)], attrs, constant=[3])


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 3], [1, 1, 0.6, 1.4], [1, 1, 0.3, 1], [1, 1, 1.7, 0.5]])
def test_resize_interpolated(transform: str, mode: str, scales: list[float]) -> None:
    if transform == "align_corners" and scales[2] % 1:
        pytest.skip("ONNX Runtime divides by the rounded length, ONNX's own results by the fractional one")
    rng = np.random.default_rng(0)
    attrs = {"mode": mode, "coordinate_transformation_mode": transform}
    check("Resize", [normal(rng, 1, 2, 5, 7), None, np.array(scales, np.float32)], attrs, constant=[2], atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [[1, 1, 1.4, 2.4], [1, 1, 0.1, 1]])
def test_sizes_by_scale_round_in_single_precision(mode: str, scales: list[float]) -> None:
    x = normal(np.random.default_rng(0), 1, 2, 5, 8)
    check("Resize", [x, None, np.array(scales, np.float32)], {"mode": mode}, constant=[2], atol=1e-4)


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("sizes", [[1, 2, 3, 4], [1, 2, 4, 15], [1, 2, 12, 3]])
def test_resize_antialias(exclude: int, mode: str, sizes: list[int]) -> None:
    rng = np.random.default_rng(0)
    attrs = {"mode": mode, "antialias": 1, "exclude_outside": exclude}
    check("Resize", [normal(rng, 1, 2, 9, 11), None, None, np.array(sizes)], attrs, constant=[3], atol=1e-4)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("sizes", [[1, 2, 9, 11], [1, 2, 3, 4]])
def test_resize_of_integers(dtype: Any, antialias: int, sizes: list[int]) -> None:
    """Within one of ONNX Runtime, which truncates 111.99999 to 111 and rounds after each axis when it antialiases."""
    if antialias and dtype is np.int8:
        pytest.skip("ONNX Runtime saturates int8 as if it were unsigned")
    x = np.random.default_rng(0).integers(0, 128, (1, 2, 6, 7)).astype(dtype)
    attrs = {"mode": "linear", "antialias": antialias}
    model, feeds = one_node("Resize", [x, None, None, np.array(sizes)], attrs, constant=[3])
    difference = interpret(lowered(model), feeds)["y0"].astype(int) - reference(model, feeds)[0]
    assert abs(difference).max() <= 1
    assert (difference != 0).mean() < (0.25 if antialias else 0.02)


def test_resize_of_equal_integers_keeps_them() -> None:
    x, sizes = np.full((1, 1, 6, 7), 113, np.uint8), np.array([1, 1, 13, 11])
    model, feeds = one_node("Resize", [x, None, None, sizes], {"mode": "linear"}, constant=[3])
    assert (interpret(lowered(model), feeds)["y0"] == 113).all()


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_resize_crop(mode: str) -> None:
    rng = np.random.default_rng(0)
    roi = np.array([0, 0, 0.2, -0.3, 1, 1, 0.9, 1.2], np.float32)
    attrs = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5}
    check("Resize", [normal(rng, 1, 2, 6, 7), roi, None, np.array([1, 2, 5, 9])], attrs, constant=[1, 3], atol=1e-4)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_resize_keeps_aspect_ratio(policy: str) -> None:
    rng = np.random.default_rng(0)
    attrs = {"mode": "linear", "axes": [3, 2], "keep_aspect_ratio_policy": policy}
    check("Resize", [normal(rng, 1, 2, 6, 7), None, None, np.array([9, 5])], attrs, constant=[3])


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [[1, 1, 2, 3], [1, 1, 1.6, 2.4]])
@pytest.mark.parametrize(("op", "opset"), [("Upsample", 9), ("Resize", 10)])
def test_upsample(op: str, opset: int, mode: str, scales: list[float]) -> None:
    rng = np.random.default_rng(0)
    check(op, [normal(rng, 1, 2, 5, 4), np.array(scales, np.float32)], {"mode": mode}, opset=opset, constant=[1])


def test_resize_by_a_whole_factor_is_a_view() -> None:
    sizes = np.array([1, 2, 8, 18])
    attrs = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    model, _ = one_node("Resize", [np.zeros((1, 2, 4, 6), np.float32), None, None, sizes], attrs, constant=[3])
    (nest,) = lowered(model).nodes
    assert isinstance(nest, Nest)
    (load,) = loads(nest.stores[0].value)
    assert repr(load.index) == "(0, i1, (i2 / 2), (i3 / 3))"


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("rank", [2, 3])
def test_grid_sample(mode: str, padding: str, align: int, rank: int) -> None:
    if mode == "cubic" and rank == 3:
        pytest.skip("ONNX Runtime has no cubic sampling of volumes")
    rng = np.random.default_rng(0)
    x = normal(rng, 2, 3, *(4, 5, 3)[:rank])
    grid = rng.uniform(-1.6, 1.6, (2, *(3, 4, 2)[:rank], rank)).astype(np.float32)
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
    check("GridSample", [x, grid], attrs, opset=20, atol=1e-4)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [[2, 3, 4, 5], [2, 3, 4, 5, 6]])
def test_affine_grid(align: int, size: list[int]) -> None:
    rng = np.random.default_rng(0)
    rank = len(size) - 2
    theta = normal(rng, 2, rank, rank + 1)
    check("AffineGrid", [theta, np.array(size)], {"align_corners": align}, opset=20, constant=[1])


@pytest.mark.parametrize("seed", range(6))
def test_col2im(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 3))
    image, block = rng.integers(6, 9, rank), rng.integers(1, 4, rank)
    attrs = {
        "strides": rng.integers(1, 3, rank).tolist(),
        "dilations": rng.integers(1, 3, rank).tolist(),
        "pads": rng.integers(0, 2, 2 * rank).tolist(),
    }
    pads = np.array(attrs["pads"])
    extent = (block - 1) * attrs["dilations"] + 1
    count = ((image + pads[:rank] + pads[rank:] - extent) // attrs["strides"] + 1).prod()
    x = normal(rng, 2, int(block.prod()) * 3, int(count))
    check("Col2Im", [x, image.astype(np.int64), block.astype(np.int64)], attrs, constant=[1, 2])


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("length", [None, 5, 10])
def test_dft(inverse: int, parts: int, length: int | None) -> None:
    rng = np.random.default_rng(0)
    inputs = [normal(rng, 2, 7, 3, parts), None if length is None else np.array(length), np.array(1)]
    check("DFT", inputs, {"inverse": inverse}, opset=20, constant=[1, 2] if length else [2])


def test_dft_onesided() -> None:
    x = normal(np.random.default_rng(0), 2, 7, 1)
    check("DFT", [x], {"onesided": 1, "axis": 1}, opset=17)


@pytest.mark.parametrize("inverse", [0, 1])
def test_long_transforms_read_one_period(inverse: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx2wgsl.passes.lower import spectral

    monkeypatch.setattr(spectral, "TABLE_LIMIT", 0)
    x = normal(np.random.default_rng(0), 2, 12, 2)
    program = check("DFT", [x], {"inverse": inverse, "axis": 1}, opset=17)
    assert max(v.size for v in program.constants.values()) == 24


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
def test_stft(onesided: int, windowed: bool) -> None:
    rng = np.random.default_rng(0)
    window = normal(rng, 8) if windowed else None
    inputs = [normal(rng, 2, 30, 1), np.array(5), window, np.array(8)]
    check("STFT", inputs, {"onesided": onesided}, opset=17, constant=[1, 3])
