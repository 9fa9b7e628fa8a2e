"""The node kinds besides nests and scans: attention, guard, opaque; interpreted after each pass, and on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.builder import Builder, axes
from onnx2wgsl.ir.dtypes import BOOL, F32, I32, I64
from onnx2wgsl.ir.opaque import network
from onnx2wgsl.ir.program import Attention, Axis, Guard, Nest, Opaque, Port, Program, Store

from .tensor_programs import everywhere


def finished(builder: Builder, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Program:
    program = builder.program
    program.inputs = tuple(Port(n, n) for n in inputs)
    program.outputs = tuple(Port(n, n) for n in outputs)
    program.nodes = tuple(builder.nodes)
    return program


def test_attention_is_a_softmax_of_scores_times_values() -> None:
    heads, rows, keys, inner, width = 2, 5, 7, 4, 3
    b = Builder()
    shapes = {"q": (heads, rows, inner), "k": (heads, keys, inner), "v": (heads, keys, width)}
    q, k, v = (b.tensor(F32, shape, name) for name, shape in shapes.items())
    b.tensor(F32, (heads, rows, width), "y")
    space, key, depth, column = axes("i", (heads, rows)), Axis("k", keys), Axis("d", inner), Axis("c", width)
    h, r = (a.var for a in space)
    operands = (q[h, r, depth.var], k[h, key.var, depth.var], v[h, key.var, column.var])
    store = Store("y", (), (h, r, column.var), ex.acc("pv", F32))
    b.append(Attention(space, key, depth, column, *operands, ex.acc("qk", F32) * 0.5, store))
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(b.program.tensors[n].shape).astype(np.float32) for n in ("q", "k", "v")}
    scores = np.exp(0.5 * np.einsum("hri,hki->hrk", feeds["q"], feeds["k"], dtype=np.float64))
    expected = np.einsum("hrk,hkc->hrc", scores / scores.sum(-1, keepdims=True), feeds["v"])
    for stage, outputs in everywhere(finished(b, ("q", "k", "v"), ("y",)), feeds):
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-5, atol=1e-6, err_msg=stage)


@pytest.mark.parametrize("flag", [False, True])
def test_a_guard_gives_the_results_of_the_branch_that_its_flag_chooses(flag: bool) -> None:
    b = Builder()
    x, chosen = b.tensor(F32, (6,), "x"), b.tensor(BOOL, (), "flag")
    for name in ("yes", "no", "y"):
        b.tensor(F32, (6,), name)
    space = axes("i", (6,))
    i = space[0].var
    yes = Nest(space, (), (Store("yes", (), (i,), x[i] * 2.0),))
    no = Nest(space, (), (Store("no", (), (i,), x[i] - 1.0),))
    copied = b.tensor(BOOL, (), "copied")
    b.emit((), (), [Store("copied", (), (), chosen[()])])
    b.append(Guard(copied.name, (yes,), (no,), (("y", "yes", "no"),)))
    feeds = {"x": np.arange(6, dtype=np.float32), "flag": np.array(flag)}
    expected = feeds["x"] * 2 if flag else feeds["x"] - 1
    for stage, outputs in everywhere(finished(b, ("x", "flag"), ("y",)), feeds):
        np.testing.assert_array_equal(outputs["y"], expected, err_msg=stage)


@pytest.mark.parametrize("dtype", [F32, I64, I32])
def test_the_sort_template_orders_rows_with_ties_by_position(dtype) -> None:  # type: ignore[no-untyped-def]
    rows, n, size = 3, 37, 64
    b = Builder()
    b.tensor(dtype, (rows, n), "x")
    b.tensor(I32, (rows, size), "places")
    before = ex.leaf("a", dtype) < ex.leaf("b", dtype)
    b.append(Opaque("sort", (), (("before", before),), ("x",), ("places",)))
    rng = np.random.default_rng(1)
    x = rng.integers(-5, 5, (rows, n))
    x = (x * (1 << 40) if dtype is I64 else x).astype(dtype.numpy)
    for stage, outputs in everywhere(finished(b, ("x",), ("places",)), {"x": x}):
        np.testing.assert_array_equal(outputs["places"][:, :n], np.argsort(x, axis=1, kind="stable"), err_msg=stage)


def test_the_network_sorts_whatever_it_is_given() -> None:
    rng = np.random.default_rng(2)
    values = rng.integers(0, 9, 64)
    for block, distance in network(64):
        for low in range(64):
            if low & distance:
                continue
            high = low + distance
            if (values[low] > values[high]) == ((low & block) == 0):
                values[low], values[high] = values[high], values[low]
    assert (np.diff(values) >= 0).all()
