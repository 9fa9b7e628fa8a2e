"""Small models on which other WebGPU implementations were publicly reported wrong or refused; one function each.

A docstring says what went wrong elsewhere. The expected outputs come from ONNX Runtime on the CPU unless a case brings
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

INT64_LOWEST, INT64_HIGHEST = -(2**63), 2**63 - 1
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """A graph in ONNX's text form (its nodes only), its inputs and constants, and how close the outputs must be."""

    nodes: str
    inputs: Arrays
    outputs: str
    constants: Arrays = field(default_factory=dict)
    rtol: float = 0.0
    atol: float = 0.0
    opset: int = 17
    ir_version: int = 10
    expected: Callable[[Arrays], Arrays] | None = None

    def model(self) -> onnx.ModelProto:
        """Return the model; `outputs` lists names, each with `:type[shape]` where inference does not give them."""
        graph = onnx.parser.parse_graph(f"case () => () {{ {self.nodes} }}")
        graph.input.extend(_value_info(name, array) for name, array in self.inputs.items())
        graph.output.extend(_output(text) for text in self.outputs.split())
        graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in self.constants.items())
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=self.ir_version
        )
        return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _value_info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _output(text: str) -> onnx.ValueInfoProto:
    name, _, declared = text.partition(":")
    if not declared:
        return onnx.ValueInfoProto(name=name)
    element, _, dims = declared.rstrip("]").partition("[")
    return helper.make_tensor_value_info(
        name, onnx.TensorProto.DataType.Value(element.upper()), [int(dim) for dim in dims.split(",")]
    )


def f32(*values: object) -> np.ndarray:
    return np.array(values, np.float32)


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


CASES: dict[str, Callable[[], Case]] = {}


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    CASES[build.__name__] = build
    return build


@case
def convtranspose_f16_index_above_2048() -> Case:
    """Positions computed in f16: integers above 2048 are not all representable there."""
    rng = np.random.default_rng(1)
    return Case(
        "y = ConvTranspose <strides = [1, 2], pads = [0, 1, 0, 1]> (x, w)",
        {"x": rng.uniform(-1, 1, (1, 2, 1, 1500)).astype(np.float16)},
        "y",
        {"w": rng.uniform(-1, 1, (2, 2, 1, 4)).astype(np.float16)},
        rtol=5e-3,
        atol=5e-3,
    )


@case
def convtranspose_in_channels_5_and_7() -> Case:
    """The remainder loop of channels not divisible by the vector width added inputs without their weights."""
    return Case(
        """ya = ConvTranspose <strides = [2, 2], pads = [1, 0, 0, 1]> (a, wa)
           yb = ConvTranspose <strides = [1, 2], dilations = [2, 1]> (b, wb)""",
        {"a": normal(2, 1, 5, 4, 4), "b": normal(3, 1, 7, 4, 3)},
        "ya yb",
        {"wa": normal(4, 5, 3, 3, 3), "wb": normal(5, 7, 2, 2, 3)},
        rtol=1e-4,
        atol=1e-5,
    )


@case
def conv_auto_pad_same_with_stride() -> Case:
    """The padding at the head was computed by another formula than the output's size."""
    rng = np.random.default_rng(4)
    return Case(
        """upper = Conv <strides = [2, 3], auto_pad = "SAME_UPPER"> (x, w)
           lower = Conv <strides = [2, 3], auto_pad = "SAME_LOWER"> (x, w)""",
        {"x": rng.uniform(0, 1, (1, 3, 10, 7)).astype(np.float32)},
        "upper lower",
        {"w": rng.uniform(0, 1, (4, 3, 3, 4)).astype(np.float32)},
        rtol=1e-4,
        atol=1e-5,
    )


@case
def conv_group_dilation_asymmetric_pads() -> Case:
    """Missing bounds checks at the right and bottom edge read the neighbouring rows."""
    return Case(
        """c = Conv <group = 3, dilations = [2, 3], strides = [1, 2], pads = [0, 1, 3, 2]> (x, w, b)
           y = LeakyRelu <alpha = 0.1> (c)""",
        {"x": normal(5, 2, 6, 9, 11)},
        "y",
        {"w": normal(6, 12, 2, 3, 2), "b": normal(7, 12)},
        rtol=1e-4,
        atol=1e-5,
    )


@case
def conv_channels_multiple_of_3() -> Case:
    """A vectorised convolution took inputs of 6, 9 or 27 channels for vectors of four."""
    shapes = {"w0": (12, 9, 3, 3), "w1": (6, 12, 3, 3), "w2": (8, 6, 2, 2), "w3": (27, 8, 1, 1), "w4": (16, 27, 3, 3)}
    weights = {name: normal(49 + int(name[1]), *shape) / np.prod(shape[1:]) ** 0.5 for name, shape in shapes.items()}
    biases = {f"b{name[1]}": normal(60 + int(name[1]), shape[0]) for name, shape in shapes.items()}
    return Case(
        """c0 = Conv <pads = [1, 1, 1, 1]> (x, w0, b0)
           c1 = Conv <pads = [1, 1, 1, 1]> (c0, w1, b1)
           c2 = Conv (c1, w2, b2)
           c3 = Conv (c2, w3, b3)
           c4 = Conv <pads = [1, 1, 1, 1]> (c3, w4, b4)
           y = Tanh (c4)""",
        {"x": normal(59, 1, 9, 14, 13)},
        "y c0 c2",
        {name: array.astype(np.float32) for name, array in (weights | biases).items()},
        rtol=1e-4,
        atol=1e-4,
    )


@case
def rank_5_and_6_views() -> Case:
    """Strides beyond the fourth were read from a uniform array that breaks the 16-byte rule."""
    return Case(
        """t = Transpose <perm = [5, 3, 0, 4, 2, 1]> (x)
           s = Slice (t, starts, ends, axes, steps)
           y = Expand (s, shape)""",
        {"x": np.arange(240, dtype=np.float32).reshape(2, 3, 1, 4, 5, 2)},
        "y",
        {
            "starts": i64(1, 3, 0),
            "ends": i64(4, INT64_LOWEST, 2),
            "axes": i64(1, 3, 5),
            "steps": i64(2, -2, 1),
            "shape": i64(2, 2, 2, 2, 3, 2),
        },
    )


@case
def unsqueeze_scalar_axes() -> Case:
    """Some exporters give Unsqueeze's axes as a 0-d tensor; it means a list of one."""
    return Case(
        "u = Unsqueeze (x, axes)\ny = Add (u, u)",
        {"x": np.arange(6, dtype=np.float32).reshape(2, 3)},
        "y:float[2,1,3]",
        {"axes": np.array(1, np.int64)},
    )


@case
def scatternd_same_row_and_duplicates() -> Case:
    """Duplicates were told by the first index component only; real duplicates raced in a reduction."""
    return Case(
        """y = ScatterND (data, index, update)
           z = ScatterND <reduction = "add"> (data, duplicates, updates)
           w = ScatterND <reduction = "max"> (data, duplicates, updates)""",
        {
            "data": normal(12, 4, 6, 3),
            "index": np.array([[0, 0], [0, 1], [0, 5], [3, -1], [2, 2]], np.int64),
            "update": normal(13, 5, 3),
            "duplicates": np.array([[1], [1], [1], [-3], [0]], np.int64),
            "updates": np.random.default_rng(14).integers(-4, 5, (5, 6, 3)).astype(np.float32),
        },
        "y z w",
        rtol=1e-4,
        atol=1e-5,
        opset=18,
    )


@case
def pow_negative_base_zero_and_int64() -> Case:
    """pow as exp2(y * log2(x)): NaN for negative bases, 7² = 48.99998, 0⁰ undefined; integers must be exact."""
    return Case(
        "square = Pow (x, two)\np = Pow (x, e)\nip = Pow (i, j)",
        {
            "x": f32(-2000, -1.5, 0, 0, 7, -8, 2, -3, 9),
            "e": f32(2, 3, 0, 2, 2, 1 / 3, -1, -2, 0.5),
            "i": i64(-3, 7, 2, 10, -1),
            "j": i64(5, 2, 40, 10, 3),
        },
        "square p ip",
        {"two": np.float32(2).reshape(())},
        rtol=1e-5,
    )


@case
def layernorm_f16_statistics_in_f32() -> Case:
    """A layer norm in small f16 operators: squared differences pass 65504 where nothing keeps them in f32."""
    rng = np.random.default_rng(15)
    x = rng.standard_normal((1, 4, 64)).astype(np.float16)
    x[:, :, 7] = 800.0
    x[:, 2, 9] = -500.0
    gain, bias = rng.uniform(0.5, 1.5, 64).astype(np.float16), rng.uniform(-1, 1, 64).astype(np.float16)

    def expected(inputs: Arrays) -> Arrays:
        data = inputs["x"].astype(np.float64)
        centred = data - data.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return {"y": (centred / deviation * gain + bias).astype(np.float16)}

    return Case(
        """mean = ReduceMean <axes = [-1]> (x)
           centred = Sub (x, mean)
           squared = Pow (centred, two)
           variance = ReduceMean <axes = [-1]> (squared)
           shifted = Add (variance, epsilon)
           deviation = Sqrt (shifted)
           normal = Div (centred, deviation)
           scaled = Mul (normal, gain)
           y = Add (scaled, bias)""",
        {"x": x},
        "y",
        {
            "two": np.array(2, np.float16),
            "epsilon": np.array(1e-5, np.float16),
            "gain": gain,
            "bias": bias,
        },
        rtol=1e-2,
        atol=1e-2,
        opset=13,
        expected=expected,
    )


@case
def rmsnorm_f16_keeps_f32_island() -> Case:
    """The casts to f32 around a norm are semantics; sums of squares overflow f16 where they are folded away."""
    rng = np.random.default_rng(16)
    return Case(
        """wide = Cast <to = 1> (x)
           squared = Pow (wide, two)
           mean = ReduceMean <axes = [-1]> (squared)
           shifted = Add (mean, epsilon)
           root = Sqrt (shifted)
           normal = Div (wide, root)
           narrow = Cast <to = 10> (normal)
           y = Mul (narrow, gain)""",
        {"x": (rng.standard_normal((2, 3, 128)) * 400).astype(np.float16)},
        "y",
        {
            "two": np.array(2, np.float32),
            "epsilon": np.array(1e-6, np.float32),
            "gain": rng.uniform(0.5, 1.5, 128).astype(np.float16),
        },
        rtol=5e-3,
        atol=5e-3,
    )


@case
def instancenorm_short_rows() -> Case:
    """Rows of two elements: the grid was computed from the size over the vector width, most outputs stayed zero."""
    return Case(
        "y = InstanceNormalization <epsilon = 1e-5> (x, scale, bias)",
        {"x": normal(18, 2, 80, 2)},
        "y",
        {"scale": normal(19, 80), "bias": normal(20, 80)},
        rtol=1e-3,
        atol=1e-4,
    )


@case
def maxpool_ceil_mode_negative_values() -> Case:
    """ceil_mode was refused, and a zero from the padding won over negative elements."""
    return Case(
        """a = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1> (x)
           b = MaxPool <kernel_shape = [2, 2], strides = [2, 3], ceil_mode = 1> (x)
           c, indices = MaxPool <kernel_shape = [2, 3], dilations = [2, 1], strides = [1, 1]> (x)""",
        {"x": -np.random.default_rng(21).uniform(1, 9, (1, 2, 7, 8)).astype(np.float32)},
        "a b c indices",
        opset=12,
    )


@case
def where_and_add_broadcast_last_dim_6() -> Case:
    """The vector count was taken from a condition of one element; a last dim of 6 mixed lanes."""
    a = np.arange(24, dtype=np.float32).reshape(4, 6)
    return Case(
        "y1 = Where (c1, a, b)\ny2 = Where (c2, b, s)\ny3 = Add (a, s1)\ny4 = Sub (b, column)",
        {"a": a, "b": -a[:1], "c1": np.array([True]), "c2": np.array([[True], [False], [False], [True]])},
        "y1 y2 y3 y4",
        {"s": np.array(0.5, np.float32), "s1": f32(1), "column": np.arange(5, dtype=np.float32).reshape(5, 1)},
    )


@case
def binary_rank_mismatch() -> Case:
    """Counting shared trailing dims up to the output's rank underflowed an unsigned subtraction."""
    return Case(
        "y1 = Add (a, b)\ny2 = Add (c, d)\ny3 = Mul (s, s)\ny4 = Mul (b, s)",
        {
            "a": normal(23, 2, 4),
            "b": normal(24, 1, 1, 2, 4),
            "c": normal(25, 8),
            "d": normal(26, 1, 8),
            "s": np.array(3.0, np.float32),
        },
        "y1 y2 y3 y4",
        rtol=1e-4,
        atol=1e-5,
    )


@case
def expand_bool_and_both_ways() -> Case:
    """Packed bools broke at odd lengths; Expand broadcasts both ways; two targets of one input shared a shader."""
    return Case(
        """y1 = Expand (m, s1)
           y2 = Gather <axis = 1> (m, index)
           y3 = Expand (x, s2)
           y4 = Expand (x, s3)
           y5 = Expand (x, s4)""",
        {"m": np.array([[True, False, True]]), "x": np.arange(3, dtype=np.float32).reshape(3, 1)},
        "y1 y2 y3 y4 y5",
        {"s1": i64(5, 3), "index": i64(2, 0, 0, -1, 1), "s2": i64(1), "s3": i64(2, 1, 6), "s4": i64(3, 4)},
    )


@case
def concat_of_32_and_split_into_12() -> Case:
    """More inputs or outputs than a stage has storage buffers."""
    parts = {f"i{k}": (np.arange(6, dtype=np.float32) + 100 * k).reshape(2, 3) for k in range(32)}
    pieces = [f"p{k}" for k in range(12)]
    return Case(
        f"""all = Concat <axis = -1> ({", ".join(parts)})
            {", ".join(pieces)} = Split <axis = 1> (big)
            reversed = Concat <axis = 0> ({", ".join(reversed(pieces))})""",
        parts | {"big": np.arange(24, dtype=np.float32).reshape(2, 12)},
        "all reversed",
        opset=13,
    )


@case
def rows_over_65535() -> Case:
    """One workgroup a row passes the limit of groups in one dimension."""
    return Case(
        """softmax = Softmax <axis = -1> (x)
           sum = ReduceSum <keepdims = 0> (x, axes)
           norm = LayerNormalization <axis = -1> (x, gain)""",
        {"x": normal(26, 70000, 8)},
        "softmax sum norm",
        {"axes": i64(1), "gain": np.ones(8, np.float32)},
        rtol=1e-3,
        atol=1e-4,
    )


@case
def matmul_broadcast_batches() -> Case:
    """Stacks of matrices broadcast like NumPy's, vectors included."""
    return Case(
        """y1 = MatMul (a, b)
           y2 = MatMul (c, d)
           y3 = MatMul (c, v)
           y4 = MatMul (v, d)
           y5 = MatMul (u, u)""",
        {
            "a": normal(28, 1, 5, 24),
            "b": normal(29, 24, 10),
            "c": normal(30, 2, 1, 3, 4),
            "d": normal(31, 5, 4, 2),
            "v": normal(32, 4),
            "u": normal(33, 3),
        },
        "y1 y2 y3 y4 y5",
        rtol=1e-4,
        atol=1e-5,
    )


@case
def softmax_before_opset_13() -> Case:
    """Before opset 13 Softmax flattens to two dimensions at its axis, 1 by default."""
    return Case(
        """y1 = Softmax (x)
           y2 = Softmax <axis = 2> (x)
           y3 = Softmax <axis = 0> (x)
           y4 = LogSoftmax <axis = 1> (x)""",
        {"x": normal(30, 2, 3, 4)},
        "y1 y2 y3 y4",
        rtol=1e-4,
        atol=1e-5,
        opset=11,
        ir_version=7,
    )


@case
def slice_negative_step_and_sentinels() -> Case:
    """Reversed slices and the int64 sentinels: clamp in 64 bits first, then narrow."""
    slices = [
        (i64(-1), i64(INT64_LOWEST), i64(1), i64(-1)),
        (i64(-1), i64(-5), i64(1), i64(-1)),
        (i64(INT64_HIGHEST, 1), i64(INT64_LOWEST, INT64_HIGHEST), i64(0, 1), i64(-2, 3)),
        (i64(3), i64(3), i64(0), i64(1)),
    ]
    names = ("starts", "ends", "axes", "steps")
    return Case(
        "\n".join(f"y{k} = Slice (x, starts{k}, ends{k}, axes{k}, steps{k})" for k in range(len(slices))),
        {"x": np.arange(20, dtype=np.float32).reshape(4, 5)},
        "y0 y1 y2 y3",
        {f"{name}{k}": array for k, arrays in enumerate(slices) for name, array in zip(names, arrays, strict=True)},
    )


@case
def int64_attention_mask_chain() -> Case:
    """The mask and position prologue of a decoder is all int64; one operator off the list sent it to the CPU."""
    ids = np.array([[5, 9, 9, 2, 0, 0], [7, 1, 0, 0, 0, 0]], np.int64)
    return Case(
        """length = ReduceSum <keepdims = 1> (mask, axis_list)
           last = Sub (length, one)
           sums = CumSum (mask, axis)
           shifted = Sub (sums, one)
           masked = Equal (mask, zero)
           positions = Where (masked, one, shifted)
           range = Range (first, limit, step)
           ranges = Expand (range, shape)
           valid = LessOrEqual (ranges, last)
           valid_f32 = Cast <to = 1> (valid)
           last_i32 = Cast <to = 6> (last)
           embedded = Gather (table, ids)""",
        {"ids": ids, "mask": (ids != 0).astype(np.int64)},
        "last positions valid_f32 last_i32 embedded",
        {
            "axis_list": i64(1),
            "one": i64(1),
            "zero": i64(0),
            "axis": np.array(1, np.int64),
            "first": np.array(0, np.int64),
            "limit": np.array(6, np.int64),
            "step": np.array(1, np.int64),
            "shape": i64(2, 6),
            "table": normal(33, 10, 3),
        },
    )


@case
def cast_int64_edges() -> Case:
    """Casting the low word only: 2³² becomes False, floats lose the high word, floats saturate at 2³¹."""
    integers = i64(0, 1, -1, 2**32, -(2**33), 2**33 + 1, 2**24 + 1, 2**53 + 1, INT64_LOWEST, 2**31)
    return Case(
        """as_bool = Cast <to = 9> (i)
           as_f32 = Cast <to = 1> (i)
           as_i32 = Cast <to = 6> (i)
           from_f32 = Cast <to = 7> (f)
           to_i32 = Cast <to = 6> (g)
           f_bool = Cast <to = 9> (f)
           back = Cast <to = 7> (as_i32)""",
        {
            "i": integers,
            "f": f32(0.0, -0.75, 1.999, -1.999, 2147483648.0, -3e9, 1e15, 16777217.0, 0.5),
            "g": f32(2147483520.0, -2147483648.0, 3.7, -3.7),
        },
        "as_bool as_f32 as_i32 from_f32 to_i32 f_bool back",
    )


@case
def cast_uint8_bool_packed_tail() -> Case:
    """Bytes live four to a word: lengths of 7 and 5, concatenation off a word, zero extension of 200."""
    return Case(
        """u64 = Cast <to = 7> (u)
           uf = Cast <to = 1> (u)
           ub = Cast <to = 9> (u)
           bu = Cast <to = 2> (b)
           nb = Not (b)
           cat = Concat <axis = 0> (b, ub, nb)
           gathered = Gather <axis = 0> (u, index)""",
        {"u": np.array([0, 1, 127, 128, 200, 255, 3], np.uint8), "b": np.array([True, False, True, True, False])},
        "u64 uf bu cat gathered",
        {"index": i64(6, -3, 4)},
    )


@case
def gemm_bias_shapes() -> Case:
    """Biases of shape [], [N], [M, 1] and [1, N] with sizes that no vector width divides."""
    return Case(
        """y1 = Gemm <alpha = 0.5, beta = 2.0> (a, b, c)
           y2 = Gemm <transA = 1> (at, b, cn)
           y3 = Gemm <transB = 1, beta = -1.0> (a, bt, cm)
           y4 = Gemm <transA = 1, transB = 1> (at, bt, c1n)
           y5 = Gemm <alpha = 3.0> (a, b)""",
        {"a": normal(38, 3, 5), "b": normal(39, 5, 6), "at": normal(40, 5, 3), "bt": normal(41, 6, 5)},
        "y1 y2 y3 y4 y5",
        {"c": np.array(1.5, np.float32), "cn": normal(42, 6), "cm": normal(43, 3, 1), "c1n": normal(44, 1, 6)},
        rtol=1e-4,
        atol=1e-5,
    )


@case
def clip_optional_bounds() -> Case:
    """A bound that is left out, or given at run time; integer types."""
    return Case(
        """y1 = Clip (x, , highest)
           y2 = Clip (x, lowest)
           y3 = Clip (x)
           y4 = Clip (half, h0, h1)
           y5 = Clip (i, i0, i1)""",
        {
            "x": f32(-3.5, -0.0, 0.25, 9.0, 1e30, -1e30),
            "half": np.array([-3.5, -0.0, 0.25, 9.0, np.inf, -np.inf], np.float16),
            "i": np.array([-7, 0, 300, 12], np.int32),
            "lowest": np.array(-1.0, np.float32),
        },
        "y1 y2 y3 y4 y5",
        {
            "highest": np.array(1, np.float32),
            "h0": np.array(0, np.float16),
            "h1": np.array(1, np.float16),
            "i0": np.array(0, np.int32),
            "i1": np.array(255, np.int32),
        },
    )


@case
def softmax_masked_rows() -> Case:
    """Masks of -inf and of the lowest float: no NaN may leak into good rows, a fully masked row is NaN."""
    mask = np.zeros((1, 1, 4, 5), np.float32)
    mask[..., 0, 3:] = -np.inf
    mask[..., 1, 1:] = -np.inf
    mask[..., 2, :] = np.finfo(np.float32).min
    mask[..., 3, :] = -np.inf
    return Case(
        "masked = Add (scores, mask)\ny = Softmax <axis = -1> (masked)",
        {"scores": normal(41, 1, 2, 4, 5) * 20, "mask": mask},
        "y",
        rtol=1e-4,
        atol=1e-5,
    )


@case
def reduce_integers_and_axes() -> Case:
    """Integer reductions done in float or missing; 0-d inputs; axes negative, empty, absent."""
    return Case(
        """y1 = ReduceSum <keepdims = 0> (a, last)
           y2 = ReduceMean <keepdims = 0> (b, last)
           y3 = ReduceMax <keepdims = 1> (b, first)
           y4 = ReduceMin <keepdims = 0> (b)
           y5 = ReduceSum <noop_with_empty_axes = 1> (a, none)
           y6 = ReduceSum (s)
           y7 = ReduceMax <keepdims = 0> (a, last)
           y8 = ReduceProd <keepdims = 0> (b, last)""",
        {
            "a": np.array([[2**33, -5, 7], [-(2**34), 1, 2147483647]], np.int64),
            "b": np.array([[-7, -3, -10], [5, 6, -1]], np.int32),
            "s": np.array(-4.5, np.float32),
        },
        "y1 y2 y3 y4 y5 y6 y7 y8",
        {"last": i64(-1), "first": i64(0), "none": i64()},
        opset=18,
    )


@case
def duplicate_and_passthrough_outputs() -> Case:
    """An input that is an output, a constant that is one, one tensor read twice, one value under two names."""
    return Case(
        """same = Identity (x)
           double = Add (x, x)
           constant = Identity (c)
           all = Concat <axis = 0> (x, x, double)
           again = Identity (double)""",
        {"x": np.arange(6, dtype=np.float32).reshape(2, 3)},
        "same double constant all again",
        {"c": f32(1.5, -2.0)},
    )
