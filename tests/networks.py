"""Whole networks to test with: the onnx package's `light` models, the same graphs with random weights, an encoder.

The light models' weights are constants and their outputs nearly uniform: they test loading and folding. The randomised
ones test arithmetic. Their weights are scaled so that activations neither vanish nor explode, and their logits so that
the softmax does not saturate; at a smaller size, pooling windows, reshapes and the first dense layer are fitted to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import numpy_helper
from onnxscript import GraphBuilder, OpBuilder

LIGHT_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
LIGHT_SIZE = 224
LIGHT_NAMES = tuple(sorted(path.stem.removeprefix("light_") for path in LIGHT_FOLDER.glob("light_*.onnx")))

_LOGITS_DEVIATION = 2.0


@dataclass(frozen=True)
class Network:
    """A model with inputs to run it on, and its outputs where they are known beforehand."""

    model: onnx.ModelProto
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray] | None = None


def light(name: str) -> Network:
    """Return a light model as published, with the input and output that the onnx package tests it with."""
    path = LIGHT_FOLDER / f"light_{name}.onnx"
    model = onnx.load(path)
    value = _data_input(model)
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    count = int(np.prod(shape))
    expected = onnx.load_tensor(str(path.with_name(f"light_{name}_output_0.pb")))
    return Network(
        model,
        {value.name: (np.arange(count).reshape(shape) / count).astype(np.float32)},
        {model.graph.output[0].name: numpy_helper.to_array(expected)},
    )


def randomised(name: str, size: int = LIGHT_SIZE, seed: int = 0) -> Network:
    """Return a light graph with random weights for images of `size` by `size`, and a random image."""
    rng = np.random.default_rng(seed)
    model = onnx.load(LIGHT_FOLDER / f"light_{name}.onnx")
    shapes = _drop_generated_weights(model)
    value = _data_input(model)
    if size != LIGHT_SIZE:
        _fit_to_size(model, value, shapes, size)
    _add_random_weights(model, shapes, rng)
    del model.graph.value_info[:]
    image = rng.standard_normal((1, 3, size, size)).astype(np.float32)
    _tame_logits(model, {value.name: image})
    return Network(onnx.shape_inference.infer_shapes(model), {value.name: image})


def _data_input(model: onnx.ModelProto) -> onnx.ValueInfoProto:
    initializers = {tensor.name for tensor in model.graph.initializer}
    return next(value for value in model.graph.input if value.name not in initializers)


def _drop_generated_weights(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Remove every float weight, initializer or ConstantOfShape, and return their shapes by name."""
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    generated = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    shapes = {node.output[0]: tuple(numpy_helper.to_array(tensors[node.input[0]]).tolist()) for node in generated}
    dropped = {node.input[0] for node in generated}
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            shapes[tensor.name] = tuple(tensor.dims)
            dropped.add(tensor.name)
    for node in generated:
        graph.node.remove(node)
    kept_tensors = [tensor for tensor in graph.initializer if tensor.name not in dropped]
    kept_inputs = [value for value in graph.input if value.name not in tensors]
    del graph.initializer[:], graph.input[:]
    graph.initializer.extend(kept_tensors)
    graph.input.extend(kept_inputs)
    used = {name for node in graph.node for name in node.input}
    return {name: shape for name, shape in shapes.items() if name in used}


def _fit_to_size(model: onnx.ModelProto, value: onnx.ValueInfoProto, shapes: dict, size: int) -> None:
    for dim in value.type.tensor_type.shape.dim[2:]:
        dim.dim_value = size
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT64 and len(tensor.dims) == 1:
            tensor.CopyFrom(numpy_helper.from_array(_fit_shape(numpy_helper.to_array(tensor), size), tensor.name))
    last_pool = [node for node in model.graph.node if node.op_type == "AveragePool"][-1:]
    for attribute in (attribute for node in last_pool for attribute in node.attribute):
        if attribute.name == "kernel_shape" and min(attribute.ints) >= 7:
            attribute.ints[:] = [_fit_extent(extent, size) for extent in attribute.ints]
    _fit_dense(model, shapes)


def _fit_extent(extent: int, size: int) -> int:
    return max(extent * size // LIGHT_SIZE, 1)


def _fit_shape(shape: np.ndarray, size: int) -> np.ndarray:
    if len(shape) == 2:
        return np.array([shape[0], -1], np.int64)
    return np.array([*shape[:-2], *(_fit_extent(int(extent), size) for extent in shape[-2:])], np.int64)


def _fit_dense(model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]]) -> None:
    """Give the first dense layer the number of columns that it now meets."""
    dense = next((node for node in model.graph.node if node.op_type == "Gemm"), None)
    if dense is None or dense.input[1] not in shapes:
        return
    sized = onnx.ModelProto()
    sized.CopyFrom(model)
    sized.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()
    )
    inferred = onnx.shape_inference.infer_shapes(sized, data_prop=True)
    known = {value.name: value.type.tensor_type.shape.dim for value in inferred.graph.value_info}
    shapes[dense.input[1]] = (shapes[dense.input[1]][0], known[dense.input[0]][1].dim_value)


def _add_random_weights(
    model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator
) -> None:
    roles = _weight_roles(model.graph)
    for name, shape in shapes.items():
        array = _random_weight(roles.get(name, ("Add", 1)), shape, rng).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))


def _weight_roles(graph: onnx.GraphProto) -> dict[str, tuple[str, int]]:
    """Return for each value the operator that reads it, and as which input, looking through reshapes."""
    roles: dict[str, tuple[str, int]] = {}
    for node in reversed(graph.node):
        for position, name in enumerate(node.input):
            through = node.op_type in ("Unsqueeze", "Reshape") and position == 0
            roles[name] = roles.get(node.output[0], ("", 0)) if through else (node.op_type, position)
    return roles


def _random_weight(role: tuple[str, int], shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    match role:
        case ("Conv" | "Gemm", 1):
            return rng.standard_normal(shape) * np.sqrt(2.0 / max(np.prod(shape[1:]), 1))
        case ("BatchNormalization", 1 | 4) | ("Mul", _):
            return rng.uniform(0.5, 1.5, shape)
        case _:
            return rng.standard_normal(shape) * 0.1


def _tame_logits(model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> None:
    """Scale the last weighted layer so that what the softmax sees has a moderate deviation."""
    layer = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm")][-1]
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    probe.graph.output.append(onnx.helper.make_tensor_value_info(layer.output[0], onnx.TensorProto.FLOAT, None))
    logits = run_onnxruntime(probe, inputs)[layer.output[0]]
    assert np.isfinite(logits).all()
    factor = _LOGITS_DEVIATION / float(logits.std())
    for tensor in model.graph.initializer:
        if tensor.name in layer.input:
            scaled = numpy_helper.to_array(tensor) * np.float32(factor)
            tensor.CopyFrom(numpy_helper.from_array(scaled, tensor.name))


def run_onnxruntime(model: onnx.ModelProto | Path, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a model on the CPU with ONNX Runtime and return its outputs by name."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


@dataclass(frozen=True)
class _Encoder:
    """The parts of a transformer encoder, spelled in the small operators that exporters write."""

    op: OpBuilder
    rng: np.random.Generator
    hidden: int
    heads: int

    def constant(self, array: np.ndarray | float, name: str) -> ir.Value:
        return self.op.initializer(ir.tensor(np.asarray(array)), name)

    def scalar(self, value: float, name: str) -> ir.Value:
        return self.constant(np.float32(value), name)

    def weight(self, name: str, *shape: int, scale: float | None = None) -> ir.Value:
        scale = shape[0] ** -0.5 if scale is None else scale
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32), name)

    def dense(self, x: ir.Value, name: str, rows: int, columns: int) -> ir.Value:
        product = self.op.MatMul(x, self.weight(f"{name}.weight", rows, columns))
        return self.op.Add(self.weight(f"{name}.bias", columns, scale=0.1), product)

    def layer_norm(self, x: ir.Value, name: str) -> ir.Value:
        op = self.op
        centred = op.Sub(x, op.ReduceMean(x, axes=[-1]))
        squared = op.Pow(centred, self.scalar(2.0, f"{name}.two"))
        variance = op.ReduceMean(squared, axes=[-1])
        deviation = op.Sqrt(op.Add(variance, self.scalar(1e-12, f"{name}.epsilon")))
        gain = self.constant(self.rng.uniform(0.5, 1.5, self.hidden).astype(np.float32), f"{name}.weight")
        return op.Add(op.Mul(op.Div(centred, deviation), gain), self.weight(f"{name}.bias", self.hidden, scale=0.1))

    def gelu(self, x: ir.Value, name: str) -> ir.Value:
        op = self.op
        erf = op.Erf(op.Div(x, self.scalar(2.0**0.5, f"{name}.root")))
        product = op.Mul(x, op.Add(erf, self.scalar(1.0, f"{name}.one")))
        return op.Mul(product, self.scalar(0.5, f"{name}.half"))

    def mask(self, attention_mask: ir.Value) -> ir.Value:
        op = self.op
        axis_1, axis_2 = self.constant(np.array([1]), "mask.axis_1"), self.constant(np.array([2]), "mask.axis_2")
        expanded = op.Unsqueeze(op.Unsqueeze(attention_mask, axis_1), axis_2)
        inverted = op.Sub(self.scalar(1.0, "mask.one"), op.Cast(expanded, to=onnx.TensorProto.FLOAT))
        return op.Mul(inverted, self.scalar(float(np.finfo(np.float32).min), "mask.lowest"))

    def split_heads(self, x: ir.Value, name: str, perm: list[int]) -> ir.Value:
        shape = self.constant(np.array([0, 0, self.heads, self.hidden // self.heads]), f"{name}.shape")
        return self.op.Transpose(self.op.Reshape(x, shape), perm=perm)

    def attention(self, x: ir.Value, mask: ir.Value, name: str) -> ir.Value:
        op, hidden = self.op, self.hidden
        query = self.split_heads(self.dense(x, f"{name}.query", hidden, hidden), f"{name}.query", [0, 2, 1, 3])
        key = self.split_heads(self.dense(x, f"{name}.key", hidden, hidden), f"{name}.key", [0, 2, 3, 1])
        value = self.split_heads(self.dense(x, f"{name}.value", hidden, hidden), f"{name}.value", [0, 2, 1, 3])
        scores = op.Div(op.MatMul(query, key), self.scalar((hidden // self.heads) ** 0.5, f"{name}.scale"))
        probabilities = op.Softmax(op.Add(scores, mask), axis=-1)
        context = op.Transpose(op.MatMul(probabilities, value), perm=[0, 2, 1, 3])
        merged = op.Reshape(context, self.constant(np.array([0, 0, hidden]), f"{name}.merged"))
        return self.dense(merged, f"{name}.output", hidden, hidden)

    def layer(self, x: ir.Value, mask: ir.Value, name: str) -> ir.Value:
        op, hidden = self.op, self.hidden
        attended = self.layer_norm(op.Add(self.attention(x, mask, f"{name}.attention"), x), f"{name}.norm_1")
        inner = self.gelu(self.dense(attended, f"{name}.inner", hidden, 4 * hidden), f"{name}.gelu")
        outer = self.dense(inner, f"{name}.outer", 4 * hidden, hidden)
        return self.layer_norm(op.Add(outer, attended), f"{name}.norm_2")

    def embeddings(self, input_ids: ir.Value, vocabulary: int, seq: int) -> ir.Value:
        op = self.op
        words = op.Gather(self.weight("embeddings.word", vocabulary, self.hidden, scale=1.0), input_ids)
        positions = self.weight("embeddings.position", seq, self.hidden, scale=1.0)
        index = self.constant(np.arange(seq)[np.newaxis], "embeddings.position_ids")
        return self.layer_norm(op.Add(words, op.Gather(positions, index)), "embeddings.norm")


def encoder(
    layers: int, seq: int, hidden: int = 384, heads: int = 12, vocabulary: int = 1000, batch: int = 1, seed: int = 0
) -> Network:
    """Return a BERT-like encoder with int64 `input_ids` and `attention_mask`, as exporters spell it at opset 17."""
    rng = np.random.default_rng(seed)
    ids, attention_mask = (
        ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([batch, seq]))
        for name in ("input_ids", "attention_mask")
    )
    graph = ir.Graph([ids, attention_mask], [], nodes=[], name="encoder", opset_imports={"": 17})
    parts = _Encoder(GraphBuilder(graph).op, rng, hidden, heads)
    x = parts.embeddings(ids, vocabulary, seq)
    mask = parts.mask(attention_mask)
    for index in range(layers):
        x = parts.layer(x, mask, f"layer_{index}")
    x.name = "last_hidden_state"
    x.type, x.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([batch, seq, hidden])
    graph.outputs.append(x)
    lengths = rng.integers(seq // 2, seq, (batch, 1))
    inputs = {
        "input_ids": rng.integers(0, vocabulary, (batch, seq)),
        "attention_mask": (np.arange(seq) < lengths).astype(np.int64),
    }
    return Network(ir.to_proto(ir.Model(graph, ir_version=9)), inputs)


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference over the largest magnitude of what is expected; infinite where one is NaN."""
    if actual.shape != expected.shape or np.isnan(actual).any():
        return float("inf")
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    return float(np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max(initial=0.0)) / scale


BUILDERS: dict[str, Callable[[], Network]] = {
    **{f"light_{name}": lambda name=name: light(name) for name in LIGHT_NAMES},
    **{f"{name}_64": lambda name=name: randomised(name, 64) for name in LIGHT_NAMES},
    **{f"{name}_{LIGHT_SIZE}": lambda name=name: randomised(name) for name in LIGHT_NAMES},
    **{
        f"encoder_{layers}_{seq}": lambda layers=layers, seq=seq: encoder(layers, seq)
        for layers in (2, 6)
        for seq in (64, 128)
    },
}
