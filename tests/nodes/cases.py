"""The ONNX backend node cases, and the rule that says which of their inputs are bound at compile time.

An input is bound only if it decides a shape, a rank, a set of axes or a trip count: if it reaches, through the graph
and its sub-graphs, one of the operator inputs in `DECIDES_SHAPE`. A path ends at Shape and Size, which look at a
tensor's shape and never at its elements. All other inputs are passed to `run`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

DECIDES_SHAPE: dict[str, tuple[int, ...]] = {
    "AffineGrid": (1,),
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "Loop": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1),
    "NonMaxSuppression": (2,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    **{f"Reduce{kind}": (1,) for kind in _REDUCTIONS},
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}

RANDOM_OPERATORS = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}


@cache
def node_cases() -> dict[str, TestCase]:
    """Return all node cases by name, in the order of their names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    return {case.name: case for case in sorted(cases, key=lambda case: case.name)}


def case_inputs(case: TestCase) -> dict[str, Any]:
    """Return the case's inputs by name, as arrays (lists for sequences, None for an empty optional)."""
    values, _ = case.data_sets[0]
    return {value.name: as_array(data) for value, data in zip(case.model.graph.input, values, strict=True)}


def case_outputs(case: TestCase) -> dict[str, Any]:
    """Return the case's expected outputs by name, as arrays (lists for sequences)."""
    _, values = case.data_sets[0]
    return {value.name: as_array(data) for value, data in zip(case.model.graph.output, values, strict=True)}


def as_array(data: Any) -> Any:
    """Return one input or output as an array; types that NumPy lacks become `ml_dtypes` arrays."""
    if data is None:
        return None
    if isinstance(data, list | tuple):
        return [as_array(element) for element in data]
    if isinstance(data, onnx.TensorProto):
        return numpy_helper.to_array(data)
    return np.asarray(data)


def is_random(case: TestCase) -> bool:
    """Whether the case's outputs are drawn at random, so that only their distribution can be checked."""
    return any(_draws(node) for node in case.model.graph.node)


def _draws(node: onnx.NodeProto) -> bool:
    if node.op_type == "Dropout":
        return len(node.input) > 2 and bool(node.input[2])
    return node.op_type in RANDOM_OPERATORS


def bound_inputs(model: onnx.ModelProto) -> set[str]:
    """Return the names of the graph inputs that decide a shape, a rank, a set of axes or a trip count."""
    sources: dict[str, set[str]] = {}
    deciding: set[str] = set()
    _collect(model.graph, sources, deciding)
    reached: set[str] = set()
    pending = list(deciding)
    while pending:
        name = pending.pop()
        if name in reached:
            continue
        reached.add(name)
        pending.extend(sources.get(name, ()))
    tensors = {value.name for value in model.graph.input if value.type.HasField("tensor_type")}
    return reached & tensors


def _collect(graph: onnx.GraphProto, sources: dict[str, set[str]], deciding: set[str]) -> None:
    """Add what each value of `graph` is computed from to `sources`, and the values that decide to `deciding`."""
    for node in graph.node:
        deciding.update(
            node.input[position]
            for position in DECIDES_SHAPE.get(node.op_type, ())
            if position < len(node.input) and node.input[position]
        )
        if node.op_type in ("Shape", "Size"):
            continue
        for output in node.output:
            sources.setdefault(output, set()).update(name for name in node.input if name)
        for body in _bodies(node):
            _collect(body, sources, deciding)
            _link_body(node, body, sources)


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _link_body(node: onnx.NodeProto, body: onnx.GraphProto, sources: dict[str, set[str]]) -> None:
    """Say that a body's inputs come from the node's, and the node's outputs from the body's."""
    outer: Iterable[str] = node.input[-len(body.input) :] if body.input else ()
    for inner, name in zip(reversed(body.input), reversed(list(outer)), strict=False):
        sources.setdefault(inner.name, set()).add(name)
    for output in node.output:
        sources.setdefault(output, set()).update(value.name for value in body.output)
