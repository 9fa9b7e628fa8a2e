"""LSTM, GRU and RNN against CPU ONNX Runtime, on the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnx2wgsl.ir.program import Nest, Scan
from tests.lowering import check, lowered, one_node

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
T, B, N, H = 5, 3, 4, 6


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return (0.5 * rng.standard_normal(shape)).astype(np.float32)


def operands(rng: np.random.Generator, op: str, direction: str, parts: str) -> list[np.ndarray[Any, Any] | None]:
    """X, W, R and those of B, L (lengths), H, C, P (peepholes) that `parts` names."""
    d, g = 2 if direction == "bidirectional" else 1, GATES[op]
    shapes = (T, B, N), (d, g * H, N), (d, g * H, H)
    inputs: list[np.ndarray[Any, Any] | None] = [normal(rng, *s) for s in shapes]
    optional = {
        "B": normal(rng, d, 2 * g * H),
        "L": np.array([3, 5, 1], np.int32),
        "H": normal(rng, d, B, H),
        "C": normal(rng, d, B, H),
        "P": normal(rng, d, 3 * H),
    }
    names = "BLHCP" if op == "LSTM" else "BLH"
    return inputs + [optional[n] if n in parts else None for n in names]


@pytest.mark.parametrize("parts", ["", "B", "BH", "BL", "BLHC", "BLHCP"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_recurrent(op: str, direction: str, parts: str) -> None:
    rng = np.random.default_rng(0)
    attrs = {"hidden_size": H, "direction": direction}
    check(op, operands(rng, op, direction, parts), attrs, outputs=3 if op == "LSTM" else 2)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("parts", ["", "B", "BLH"])
def test_gru_resets_after_its_product(direction: str, parts: str) -> None:
    rng = np.random.default_rng(0)
    attrs = {"hidden_size": H, "direction": direction, "linear_before_reset": 1}
    check("GRU", operands(rng, "GRU", direction, parts), attrs, outputs=2)


def given(names: list[str], alpha: list[float] | None = None, beta: list[float] | None = None) -> dict[str, Any]:
    attrs = {"activations": names, "activation_alpha": alpha, "activation_beta": beta}
    return {n: v for n, v in attrs.items() if v}


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("RNN", given(["Affine", "LeakyRelu"], [0.5, 0.1], [0.25])),
        ("RNN", given(["ScaledTanh", "HardSigmoid"], [0.5, 0.3], [0.25, 0.4])),
        ("RNN", given(["Softsign", "Softplus"])),
        ("RNN", given(["ThresholdedRelu", "Elu"], [0.1, 0.7])),
        ("GRU", given(["HardSigmoid", "Relu", "Sigmoid", "Tanh"], [0.3], [0.4])),
        ("LSTM", given(["Sigmoid", "Softsign", "Relu"] * 2)),
        ("LSTM", {"clip": 0.2}),
        ("GRU", {"clip": 0.2}),
        ("RNN", {"clip": 0.2}),
        ("LSTM", {"input_forget": 1}),
    ],
)
def test_attributes(op: str, attrs: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    inputs = operands(rng, op, "bidirectional", "BLHC")
    check(op, inputs, {"hidden_size": H, "direction": "bidirectional", **attrs}, outputs=3 if op == "LSTM" else 2)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_layout(op: str, direction: str) -> None:
    """ONNX Runtime has no batch-first layout: its results are the time-first ones transposed."""
    from onnx2wgsl.ir.interp import interpret
    from tests.lowering import agree, reference

    rng = np.random.default_rng(0)
    inputs = operands(rng, op, direction, "BLHC")
    attrs = {"hidden_size": H, "direction": direction}
    outputs = 3 if op == "LSTM" else 2
    expected = reference(*one_node(op, inputs, attrs, outputs=outputs))
    for k in (0, 5, 6)[: outputs]:
        value = inputs[k]
        assert value is not None
        inputs[k] = value.swapaxes(0, 1).copy()
    model, feeds = one_node(op, inputs, {**attrs, "layout": 1}, outputs=outputs)
    got = interpret(lowered(model), feeds)
    agree(got["y0"], expected[0].transpose(2, 0, 1, 3))
    for k in range(1, outputs):
        agree(got[f"y{k}"], expected[k].swapaxes(0, 1))


def test_half_keeps_its_state_in_single() -> None:
    rng = np.random.default_rng(0)
    inputs = [None if x is None else x.astype(np.float16) for x in operands(rng, "LSTM", "forward", "BH")]
    model, _ = one_node("LSTM", inputs, {"hidden_size": H}, outputs=3)
    program = lowered(model)
    (scan,) = (n for n in program.nodes if isinstance(n, Scan))
    assert [str(program.tensors[c.arg]) for c in scan.carried] == ["f32[1, 3, 6]"] * 2
    assert [str(program.tensors[p.tensor].dtype) for p in program.outputs] == ["f16"] * 3


@pytest.mark.parametrize(
    ("op", "attrs", "nests"), [("LSTM", {}, 1), ("GRU", {}, 2), ("GRU", {"linear_before_reset": 1}, 1)]
)
def test_a_step_is_few_nests(op: str, attrs: dict[str, Any], nests: int) -> None:
    rng = np.random.default_rng(0)
    model, _ = one_node(op, operands(rng, op, "forward", "B"), {"hidden_size": H, **attrs})
    projection, scan = lowered(model).nodes
    assert isinstance(projection, Nest)
    assert isinstance(scan, Scan)
    assert len(scan.body) == nests
