"""What changed between opset versions, and where the meaning of an operator is easily missed: values, interpreted."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from onnx2wgsl.errors import UnsupportedError
from onnx2wgsl.ir.interp import interpret

from .lowering import lowered, one_node

F = np.float32
INF, NAN = np.inf, np.nan


def run(op: str, *inputs: Any, opset: int = 21, outputs: int = 1, constant: tuple[int, ...] = (), **attrs: Any) -> Any:
    """The outputs of one node (the output itself where there is one)."""
    arrays = [None if x is None else np.asarray(x) for x in inputs]
    model, feeds = one_node(op, arrays, attrs, opset=opset, outputs=outputs, constant=constant)
    got = interpret(lowered(model), feeds)
    values = [got[f"y{k}"] for k in range(outputs)]
    return values[0] if outputs == 1 else values


def same(got: Any, expected: Any, dtype: Any = None) -> None:
    expected = np.asarray(expected, got.dtype if dtype is None else dtype)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=1e-5, atol=1e-6)


def f32(*values: Any) -> np.ndarray[Any, Any]:
    return np.asarray(values, F)


# Versions


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax_flattens_before_13(op: str) -> None:
    x = np.arange(8, dtype=F).reshape(2, 2, 2) / 4
    e = np.exp(x)
    old, new = e / e.sum((1, 2), keepdims=True), e / e.sum(2, keepdims=True)
    finish = np.log if op == "LogSoftmax" else (lambda v: v)
    same(run(op, x, opset=11), finish(old))
    same(run(op, x, opset=13), finish(new))
    same(run(op, x, opset=11, axis=2), finish(new))
    same(run(op, x, opset=13, axis=0), finish(e / e.sum(0)))


def test_hardmax_flattens_before_13() -> None:
    x = f32([[1, 3], [3, 2]]).reshape(1, 2, 2)
    same(run("Hardmax", x, opset=11), f32([[0, 1], [0, 0]]).reshape(1, 2, 2))
    same(run("Hardmax", x, opset=13), f32([[0, 1], [1, 0]]).reshape(1, 2, 2))


def test_softmax_before_13_may_normalise_nothing() -> None:
    same(run("Softmax", f32([1, 2]).reshape(2), opset=11, axis=1), [1, 1])


def test_clip_bounds_are_attributes_before_11() -> None:
    x = f32(-5, 0, 5, INF, -INF)
    largest = np.finfo(F).max
    same(run("Clip", x, opset=6, min=-1.0, max=2.0), [-1, 0, 2, 2, -1])
    same(run("Clip", x, opset=6), f32(-5, 0, 5, largest, -largest))
    same(run("Clip", x, F(-1), F(2), opset=11), [-1, 0, 2, 2, -1])
    same(run("Clip", x, None, F(2), opset=11), f32(-5, 0, 2, 2, -INF))


def test_reductions_take_axes_as_an_input_later() -> None:
    x = np.arange(6, dtype=F).reshape(2, 3)
    same(run("ReduceSum", x, opset=11, axes=[0], keepdims=0), [3, 5, 7])
    same(run("ReduceSum", x, np.int64([0]), opset=13, constant=(1,), keepdims=0), [3, 5, 7])
    same(run("ReduceMean", x, opset=13, axes=[-1]), [[1], [4]])
    same(run("ReduceMean", x, np.int64([-1]), opset=18, constant=(1,)), [[1], [4]])


def test_reductions_without_axes() -> None:
    x, none = f32([1, -2], [3, 4]), np.zeros(0, np.int64)
    same(run("ReduceSum", x, opset=11, keepdims=0), 6)
    same(run("ReduceSum", x, none, opset=13, constant=(1,)), [[6]])
    same(run("ReduceSum", x, none, opset=13, constant=(1,), noop_with_empty_axes=1), x)
    same(run("ReduceL1", x, none, opset=18, constant=(1,), noop_with_empty_axes=1), np.abs(x))


def test_batch_normalization_counts_its_outputs() -> None:
    x, one, zero = np.arange(8, dtype=F).reshape(2, 2, 2), np.ones(2, F), np.zeros(2, F)
    same(run("BatchNormalization", x, one, zero, zero, one, opset=9, epsilon=0.0), x)
    same(run("BatchNormalization", x, one, zero, zero, one, opset=15, epsilon=0.0), x)
    mean, variance = x.mean((0, 2)), x.var((0, 2))
    y, new_mean, new_variance = run(
        "BatchNormalization", x, one, zero, zero, one, opset=15, outputs=3, training_mode=1, momentum=0.75, epsilon=0.0
    )
    same(y, (x - mean[:, None]) / np.sqrt(variance)[:, None])
    same(new_mean, 0.25 * mean)
    same(new_variance, 0.75 + 0.25 * variance)
    with pytest.raises(UnsupportedError, match="further outputs in training"):
        run("BatchNormalization", x, one, zero, zero, one, opset=9, outputs=3)


def test_batch_normalization_7_per_element() -> None:
    x, p = np.arange(8, dtype=F).reshape(2, 2, 2), np.arange(4, dtype=F).reshape(2, 2)
    ones = np.ones((2, 2), F)
    same(run("BatchNormalization", x, ones, p, p, ones, opset=7, spatial=0, epsilon=0.0), x)


def test_group_normalization_scales_per_group_in_18() -> None:
    x = np.random.default_rng(0).normal(size=(1, 4, 3)).astype(F)
    y = x.reshape(1, 2, 6)
    y = ((y - y.mean(2, keepdims=True)) / np.sqrt(y.var(2, keepdims=True) + 1e-5)).reshape(1, 4, 3)
    scale, bias = f32(2, 3), f32(-1, 1)
    expected = y * scale.repeat(2)[:, None] + bias.repeat(2)[:, None]
    same(run("GroupNormalization", x, scale, bias, opset=18, num_groups=2), expected)
    same(run("GroupNormalization", x, scale.repeat(2), bias.repeat(2), opset=21, num_groups=2), expected)
    with pytest.raises(UnsupportedError, match=r"scale and bias of \[4\]"):
        run("GroupNormalization", x, scale, bias, opset=21, num_groups=2)


def test_dropout_modes() -> None:
    x = f32(1, 2, 3)
    y, mask = run("Dropout", x, opset=7, outputs=2, ratio=0.5)
    same(y, x)
    same(mask, [1, 1, 1], F)
    y, mask = run("Dropout", x, opset=10, outputs=2)
    same(mask, [True] * 3, np.bool_)
    same(run("Dropout", x, F(0.5), np.bool_(False), opset=13, constant=(2,)), x)
    same(run("Dropout", x, F(0.0), np.bool_(True), opset=13, constant=(2,)), x)
    y, mask = run("Dropout", np.ones(4096, F), F(0.25), np.bool_(True), opset=13, outputs=2, constant=(2,))
    same(y, np.where(mask, 1 / 0.75, 0), F)
    assert abs(mask.mean() - 0.75) < 0.03


def test_dropout_mode_must_be_known() -> None:
    with pytest.raises(UnsupportedError, match="must be known at compile time"):
        run("Dropout", f32(1), F(0.5), np.bool_(True), opset=13)


def test_shape_takes_bounds_from_15() -> None:
    x = np.zeros((2, 3, 4), F)
    same(run("Shape", x, opset=13), [2, 3, 4], np.int64)
    same(run("Shape", x, opset=15, start=-2), [3, 4], np.int64)
    same(run("Shape", x, opset=15, start=1, end=-1), [3], np.int64)
    same(run("Shape", x, opset=15, start=2, end=1), [], np.int64)


@pytest.mark.parametrize("opset", [7, 8, 13])
def test_variadic_operators(opset: int) -> None:
    a, b, one = f32(1, 5), f32(4, 2), f32(3) if opset > 7 else f32(3, 3)
    same(run("Max", a, b, one, opset=opset), [4, 5])
    same(run("Min", a, b, one, opset=opset), [1, 2])
    same(run("Sum", a, b, one, opset=opset), [8, 10])
    same(run("Mean", a, b, opset=opset), [2.5, 3.5])
    same(run("Sum", a, opset=opset), a)


def test_pow_takes_two_types_from_12() -> None:
    same(run("Pow", f32(2, 3), f32(3, 2), opset=7), [8, 9])
    same(run("Pow", f32(2, 9), np.int64([-2, 2]), opset=15), [0.25, 81])
    same(run("Pow", np.int32([2, 9, 4]), f32(3, 0.5, -0.5), opset=15), [8, 3, 0], np.int32)


def test_arg_max_last_index_from_12() -> None:
    x = f32([2, 2, 1], [NAN, 0, NAN])
    same(run("ArgMax", x, opset=11, axis=1, keepdims=0), [0, 0], np.int64)
    same(run("ArgMax", x, opset=13, axis=1, keepdims=0, select_last_index=1), [1, 2], np.int64)
    same(run("ArgMin", x, opset=13, axis=0), [[1, 1, 1]], np.int64)


def test_quantize_linear_versions() -> None:
    x = f32([-1000, 0.5, 1.5], [2.5, 300, NAN])
    same(run("QuantizeLinear", x, F(1), opset=10), [[0, 0, 2], [2, 255, 0]], np.uint8)
    same(run("QuantizeLinear", x, f32(1, 10), np.int8([0, -1]), opset=13, axis=0), [[-128, 0, 2], [-1, 29, 0]], np.int8)
    blocks = f32([1, 2], [1, 100])
    got = run("QuantizeLinear", x, blocks, opset=21, axis=1, block_size=2, output_dtype=onnx.TensorProto.INT16)
    same(got, [[-1000, 0, 1], [2, 300, 0]], np.int16)


def test_dequantize_linear_blocks() -> None:
    x, scale = np.int8([[1, 2, 3, 4]]), f32([2, 3])
    same(run("DequantizeLinear", x, scale, opset=21, axis=1, block_size=2), [[2, 4, 9, 12]], F)
    same(run("DequantizeLinear", np.int32([100]), F(0.5), opset=10), [50], F)


def test_cast_saturates_float8_by_default() -> None:
    x, e4 = f32(1000, -INF, NAN, 1), onnx.TensorProto.FLOAT8E4M3FN
    same(run("Cast", x, opset=19, to=e4), [448, -448, NAN, 1], ml_dtypes.float8_e4m3fn)
    same(run("Cast", x, opset=19, to=e4, saturate=0), [NAN, NAN, NAN, 1], ml_dtypes.float8_e4m3fn)


# Traps


def test_integer_division_and_remainder() -> None:
    a, b = np.int32([7, -7, 7, -7, 5, -(2**31)]), np.int32([2, 2, -2, -2, 0, -1])
    same(run("Div", a, b), [3, -3, -3, 3, 0, -(2**31)], np.int32)
    same(run("Mod", a, b), [1, 1, -1, -1, 0, 0], np.int32)
    same(run("Mod", a, b, fmod=1), [1, -1, 1, -1, 0, 0], np.int32)
    same(run("Mod", f32(5.5, -5.5), f32(2, 2), fmod=1), [1.5, -1.5])


def test_integer_powers() -> None:
    base, exponent = np.int32([0, 1, -1, -1, 2, 2, 3, 0, 7]), np.int32([0, -5, -3, 64, 31, 40, -1, -2, 11])
    same(run("Pow", base, exponent, opset=15), [1, 1, -1, 1, -(2**31), 0, 0, 0, 1977326743], np.int32)
    wide = run("Pow", np.int64([3, -2]), np.int64([39, 63]), opset=15)
    assert wide.tolist() == [3**39, -(2**63)]
    assert run("Pow", np.int64([3]), np.int64([39]), opset=15, constant=(1,)).tolist() == [3**39]


def test_shifts_by_the_width() -> None:
    x, n = np.uint8([1, 255, 128]), np.uint8([7, 8, 200])
    same(run("BitShift", x, n, direction="LEFT"), [128, 0, 0], np.uint8)
    same(run("BitShift", x, n, direction="RIGHT"), [0, 0, 0], np.uint8)


def test_round_to_even_and_sign_of_nan() -> None:
    same(run("Round", f32(0.5, 1.5, 2.5, -0.5, -1.5)), [0, 2, 2, 0, -2])
    same(run("Sign", f32(-3, 0, NAN)), [-1, 0, NAN])


def test_extrema_with_nan() -> None:
    same(run("Max", f32(1, NAN), f32(NAN, 2)), [NAN, NAN])
    same(run("Clip", f32(NAN, 5), F(0), F(1)), [NAN, 1])
    same(run("ReduceMin", f32(1, NAN), opset=13), [NAN])
    same(run("Relu", f32(NAN, -1)), [NAN, 0])


def test_clip_with_crossing_bounds() -> None:
    same(run("Clip", f32(-9, 1, 9), F(3), F(2)), [2, 2, 2])


def test_softmax_of_infinities() -> None:
    same(run("Softmax", f32([-INF, -INF], [-INF, 0])), [[NAN, NAN], [0, 1]])
    same(run("LogSoftmax", f32([1000, 0])), [[0, -1000]])
    same(run("Softmax", np.zeros((2, 0), F)), np.zeros((2, 0)), F)


def test_log_sum_exp_of_infinities() -> None:
    x = f32([-INF, -INF], [INF, 1], [1000, 1000])
    same(run("ReduceLogSumExp", x, opset=13, axes=[1], keepdims=0), [-INF, INF, 1000 + np.log(2)])


def test_empty_reductions() -> None:
    x = np.zeros((2, 0), F)
    for op, value in {"Sum": 0, "Prod": 1, "Max": -INF, "Min": INF, "Mean": NAN, "LogSum": -INF, "L2": 0}.items():
        same(run(f"Reduce{op}", x, opset=13 - 2 * (op == "Sum"), axes=[1], keepdims=0), [value, value])
    same(run("ReduceMax", np.zeros((0,), np.int32), opset=13, keepdims=0), -(2**31), np.int32)
    with pytest.raises(UnsupportedError, match="over an empty axis"):
        run("ArgMax", x, axis=1)


def test_reductions_of_small_floats_accumulate_in_f32() -> None:
    x = np.full(4096, 1, np.float16)
    x[0] = 2048
    same(run("ReduceSum", x, opset=11, keepdims=0), 6144 - 1, np.float16)
    same(run("ReduceMean", np.full(4096, 60000, np.float16), opset=13, keepdims=0), 60000, np.float16)


def test_activations_far_from_zero() -> None:
    x = f32(-200, -20, 20, 200)
    same(run("Softplus", x), [0, np.log1p(np.exp(-20.0)), 20, 200])
    assert run("Softplus", f32(-20))[0] == pytest.approx(np.log1p(np.exp(-20.0)), rel=1e-5)
    same(run("Mish", x, opset=22), x * np.tanh(np.log1p(np.exp(np.minimum(x, 80).astype(float)))))
    same(run("Sigmoid", x), 1 / (1 + np.exp(-x.astype(float))))
    same(run("Elu", x), [-1, np.expm1(-20.0), 20, 200])


def test_casts_of_floats_to_integers() -> None:
    x = f32(1.9, -1.9, NAN, 3e9, -3e9)
    same(run("Cast", x, to=onnx.TensorProto.INT32), [1, -1, 0, 2**31 - 1, -(2**31)], np.int32)
    same(run("Cast", np.int32([300, -1]), to=onnx.TensorProto.UINT8), [44, 255], np.uint8)
    same(run("Cast", f32(0, -0.0, NAN, 0.1), to=onnx.TensorProto.BOOL), [False, False, True, True], np.bool_)


def test_normalisations_of_constant_rows() -> None:
    x = np.full((2, 4), 1e4, F)
    same(run("LayerNormalization", x, np.ones(4, F), opset=17), np.zeros((2, 4)))
    same(run("LpNormalization", np.zeros((2, 4), F)), np.zeros((2, 4)))


def test_losses_that_ignore_a_class() -> None:
    logs, target = np.log(f32([0.5, 0.5], [0.25, 0.75])), np.int64([0, -1])
    same(run("NegativeLogLikelihoodLoss", logs, target, opset=13, ignore_index=-1), np.log(2))
    same(run("NegativeLogLikelihoodLoss", logs, target, opset=13, ignore_index=-1, reduction="none"), [np.log(2), 0])


@pytest.mark.parametrize("size", [1, 5, 128, 129, 5000])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative_sums(size: int, exclusive: int, reverse: int) -> None:
    x = np.random.default_rng(size).integers(-9, 9, (2, size)).astype(np.int32)
    flipped = x[:, ::-1] if reverse else x
    expected = flipped.cumsum(1) - exclusive * flipped
    expected = expected[:, ::-1] if reverse else expected
    same(run("CumSum", x, np.int64(1), constant=(1,), exclusive=exclusive, reverse=reverse), expected, np.int32)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_determinants(size: int) -> None:
    x = np.random.default_rng(size).normal(size=(3, size, size)).astype(F)
    x[0, 0, 0] = 0
    np.testing.assert_allclose(run("Det", x, opset=22), np.linalg.det(x.astype(float)), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik",
        "ij,kj,k->i",
        "bii->b",
        "...ij,...jk->...ik",
        "ij,ij->",
        "ab,bc,cd,de->ae",
        "ij->ji",
        "i,j",
        "bij,i->b",
    ],
)
def test_einsum(equation: str) -> None:
    rng = np.random.default_rng(1)
    sizes = {x: 2 + k for k, x in enumerate("abcdeijk")} | {"b": 3}
    shapes = [
        [*([1, 3] if "..." in t else []), *(sizes[x] for x in t if x.isalpha())]
        for t in equation.split("->")[0].split(",")
    ]
    operands = [rng.normal(size=s).astype(F) for s in shapes]
    np.testing.assert_allclose(
        run("Einsum", *operands, equation=equation), np.einsum(equation, *operands), rtol=1e-4, atol=1e-5
    )


def test_ranges() -> None:
    args = (np.int64(10), np.int64(4), np.int64(-2))
    same(run("Range", *args, constant=(0, 1, 2)), [10, 8, 6], np.int64)
    same(run("Range", F(1), F(1), F(0.5), constant=(0, 1, 2)), [], F)
    with pytest.raises(UnsupportedError, match=r"input 1 \(x1\) must be known"):
        run("Range", *args, constant=(0, 2))


def test_random_numbers_have_the_right_moments() -> None:
    normal = run("RandomNormalLike", np.zeros((64, 256), F), mean=1.0, scale=2.0)
    assert (normal.mean(), normal.std()) == (pytest.approx(1, abs=0.06), pytest.approx(2, abs=0.06))
    uniform = run("RandomUniformLike", np.zeros((64, 256), F), low=-1.0, high=3.0, seed=7.0)
    assert -1 < uniform.min() < -0.9 < 2.9 < uniform.max() < 3
    assert uniform.mean() == pytest.approx(1, abs=0.03)
    assert abs(np.corrcoef(uniform[:, :-1].ravel(), uniform[:, 1:].ravel())[0, 1]) < 0.03
    draws = run("Multinomial", np.log(f32([0.1, 0.2, 0.7])), sample_size=8192)
    np.testing.assert_allclose(np.bincount(draws[0], minlength=3) / 8192, [0.1, 0.2, 0.7], atol=0.02)
    assert run("Bernoulli", np.full(8192, 0.3, F)).mean() == pytest.approx(0.3, abs=0.02)


def test_constants_in_all_forms() -> None:
    forms = {"value_float": 1.5, "value_floats": [1.0, 2.0], "value_int": 3, "value_ints": [4, 5]}
    for name, value in forms.items():
        expected = np.asarray(value, np.int64 if "int" in name else F)
        same(run("Constant", **{name: value}), expected)
