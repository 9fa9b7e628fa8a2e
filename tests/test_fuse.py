"""Fusion: layers spelled in small operators become one nest; whatever is fused computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Builder, Tensor, max_of, sum_of
from onnx2wgsl.ir.dtypes import F32, I32, I64
from onnx2wgsl.ir.interp import interpret
from onnx2wgsl.ir.program import Contract, Nest, Port, Program
from onnx2wgsl.ir.verify import verify
from onnx2wgsl.passes.fuse import Fuse
from onnx2wgsl.passes.lower_ops import lower_model
from onnx2wgsl.passes.place_concats import PlaceConcats
from tests.tensor_programs import finished

Array = np.ndarray[Any, Any]


def fused(program: Program) -> Program:
    verify(program)
    placed = PlaceConcats().run(program).program
    verify(placed)
    result = Fuse().run(placed).program
    verify(result)
    return result


def same_results(before: Program, after: Program, feeds: dict[str, Array], rtol: float = 1e-5) -> None:
    expected, got = interpret(before, feeds), interpret(after, feeds)
    for name, want in expected.items():
        np.testing.assert_allclose(got[name], want, rtol=rtol, atol=rtol)


def layer(nodes: list[tuple[Any, ...]], shape: tuple[int, ...], weights: dict[str, Array]) -> tuple[Program, Program]:
    """A graph of nodes (operator, inputs, output, attributes) from x to y, lowered and fused."""
    made = [
        helper.make_node(op, inputs.split(), outputs.split(), **(attrs[0] if attrs else {}))
        for op, inputs, outputs, *attrs in nodes
    ]
    graph = helper.make_graph(
        made, "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, n) for n, v in weights.items()],
    )  # fmt: skip
    program = lower_model(onnx_ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])))
    after = fused(program)
    same_results(program, after, {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)})
    return program, after


def floats(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_layer_normalisation_is_one_nest() -> None:
    last = {"axes": [-1]}
    before, after = layer(
        [
            ("ReduceMean", "x", "m", last), ("Sub", "x m", "c"), ("Mul", "c c", "q"), ("ReduceMean", "q", "v", last),
            ("Add", "v eps", "w"), ("Sqrt", "w", "d"), ("Div", "c d", "n"), ("Mul", "n gamma", "g"),
            ("Add", "g beta", "y"),
        ],
        (6, 40),
        {"eps": np.float32(1e-5), "gamma": floats(40), "beta": floats(40)},
    )  # fmt: skip
    assert len(before.nodes) == 9
    (nest,) = after.nodes
    assert isinstance(nest, Nest)
    assert len(nest.steps) == 2
    assert len(nest.stores) == 1


def test_softmax_is_one_nest() -> None:
    last = {"axes": [-1], "keepdims": 1}
    _, after = layer(
        [
            ("ReduceMax", "x", "m", last), ("Sub", "x m", "s"), ("Exp", "s", "e"),
            ("ReduceSum", "e axis", "t"), ("Div", "e t", "y"),
        ],
        (6, 40),
        {"axis": np.array([-1])},
    )  # fmt: skip
    (nest,) = after.nodes
    assert isinstance(nest, Nest)
    assert len(nest.steps) == 2


def test_root_mean_square_normalisation_is_one_nest() -> None:
    _, after = layer(
        [
            ("Pow", "x two", "q"), ("ReduceMean", "q", "m", {"axes": [-1]}), ("Add", "m eps", "a"), ("Sqrt", "a", "r"),
            ("Div", "x r", "n"), ("Mul", "n gamma", "y"),
        ],
        (6, 40),
        {"two": np.float32(2), "eps": np.float32(1e-6), "gamma": floats(40)},
    )  # fmt: skip
    assert len(after.nodes) == 1


GELU = [
    ("Div", "h root", "a"), ("Erf", "a", "e"), ("Add", "e one", "f"), ("Mul", "h f", "g"), ("Mul", "g half", "y"),
]  # fmt: skip
GELU_WEIGHTS = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}


def test_gelu_is_an_epilogue() -> None:
    weights = {"w": floats(16, 24), "b": floats(24), **GELU_WEIGHTS}
    _, after = layer([("MatMul", "x w", "p"), ("Add", "p b", "h"), *GELU], (5, 16), weights)
    (nest,) = after.nodes
    assert isinstance(nest, Nest)
    assert [type(s) for s in nest.steps] == [Contract]
    assert len(nest.stores) == 1


def test_a_residual_is_an_epilogue() -> None:
    weights = {"w": floats(16, 16), "b": floats(16)}
    _, after = layer([("MatMul", "x w", "p"), ("Add", "p b", "h"), ("Add", "h x", "y")], (5, 16), weights)
    assert len(after.nodes) == 1


def test_a_residual_that_is_normalised_is_two_nests() -> None:
    weights = {"w": floats(16, 16), "gamma": floats(16), "beta": floats(16)}
    _, after = layer(
        [("MatMul", "x w", "p"), ("Add", "p x", "h"), ("LayerNormalization", "h gamma beta", "y")], (5, 16), weights
    )
    assert len(after.nodes) == 2


def test_views_cost_nothing() -> None:
    _, after = layer(
        [
            ("Reshape", "x heads", "a"), ("Transpose", "a", "b", {"perm": [1, 0, 2]}), ("Relu", "b", "c"),
            ("Transpose", "c", "d", {"perm": [1, 0, 2]}), ("Reshape", "d flat", "y"),
        ],
        (6, 12),
        {"heads": np.array([6, 3, 4]), "flat": np.array([6, 12])},
    )  # fmt: skip
    (nest,) = after.nodes
    assert isinstance(nest, Nest)
    (store,) = nest.stores
    assert all(i.as_var is not None for e in ex.loads(store.value) for i in e.index)


def test_parts_of_a_concatenation_are_placed() -> None:
    _, after = layer(
        [
            ("Split", "x", "p q", {"axis": 1}), ("Exp", "p", "a"), ("Sin", "q", "b"),
            ("Concat", "b a", "c", {"axis": 1}), ("Softmax", "c", "y"),
        ],
        (4, 6),
        {},
    )  # fmt: skip
    assert sum(t.place is not None for t in after.tensors.values()) == 2
    assert len(after.nodes) == 3


# Random programs.

View = Callable[[np.random.Generator, Builder, Tensor, Array], tuple[Tensor, Array]]


def reshape(rng: np.random.Generator, b: Builder, t: Tensor, a: Array) -> tuple[Tensor, Array]:
    total = a.size
    first = int(rng.choice([d for d in range(1, total + 1) if total % d == 0]))
    second = int(rng.choice([d for d in range(1, total // first + 1) if total // first % d == 0]))
    shape = (first, second, total // first // second)[: int(rng.integers(1, 4))]
    shape = (*shape[:-1], total // int(np.prod(shape[:-1])))
    made = b.map(shape, lambda *i: t[ix.unflatten(ix.flatten(i, shape), t.shape)])
    return made, a.reshape(shape)


def transpose(rng: np.random.Generator, b: Builder, t: Tensor, a: Array) -> tuple[Tensor, Array]:
    perm = [int(k) for k in rng.permutation(a.ndim)]
    back = np.argsort(perm)
    return b.map([a.shape[k] for k in perm], lambda *i: t[tuple(i[k] for k in back)]), a.transpose(perm)


def cut(rng: np.random.Generator, b: Builder, t: Tensor, a: Array) -> tuple[Tensor, Array]:
    axis = int(rng.integers(a.ndim))
    n = a.shape[axis]
    start, step = int(rng.integers(n)), int(rng.choice([1, 1, 2, -1, -2]))
    count = len(range(start, n, step)) if step > 0 else len(range(start, -1, step))
    shape = [*a.shape[:axis], count, *a.shape[axis + 1 :]]
    made = b.map(shape, lambda *i: t[(*i[:axis], i[axis] * step + start, *i[axis + 1 :])])
    return made, np.take(a, [start + k * step for k in range(count)], axis)


def expand(rng: np.random.Generator, b: Builder, t: Tensor, a: Array) -> tuple[Tensor, Array]:
    n = int(rng.integers(1, 4))
    return b.map((n, *a.shape), lambda _, *i: t[i]), np.broadcast_to(a, (n, *a.shape))


def pad(rng: np.random.Generator, b: Builder, t: Tensor, a: Array) -> tuple[Tensor, Array]:
    axis = int(rng.integers(a.ndim))
    before, after = (int(k) for k in rng.integers(0, 3, 2))
    n = a.shape[axis]

    def value(*i: ix.Index) -> ex.Expr:
        where = i[axis] - before
        return ex.select(ex.in_range(where, 0, n), t[(*i[:axis], where, *i[axis + 1 :])], ex.const(-1.0, F32))

    width = [(before, after) if k == axis else (0, 0) for k in range(a.ndim)]
    shape = [n + before + after if k == axis else s for k, s in enumerate(a.shape)]
    return b.map(shape, value), np.pad(a, width, constant_values=-1)


def join(rng: np.random.Generator, b: Builder, t: Tensor, a: Array) -> tuple[Tensor, Array]:
    axis = int(rng.integers(a.ndim))
    parts, arrays = [t], [a]
    for _ in range(int(rng.integers(1, 3))):
        other, array = cut(rng, b, t, a) if rng.integers(2) else arithmetic(rng, b, t, a)
        if array.shape[:axis] + array.shape[axis + 1 :] == a.shape[:axis] + a.shape[axis + 1 :]:
            parts.append(other)
            arrays.append(array)
    return b.concat(parts, axis), np.concatenate(arrays, axis)


def gather(rng: np.random.Generator, b: Builder, t: Tensor, a: Array) -> tuple[Tensor, Array]:
    axis = int(rng.integers(a.ndim))
    n = a.shape[axis]
    ids = rng.integers(-n, n, int(rng.integers(1, 6)))
    table = b.constant(ids)

    def value(*i: ix.Index) -> ex.Expr:
        raw = ex.assume(table[i[axis]], -n, n - 1)
        where = ix.value_index(ex.select(raw < 0, raw + n, raw), 0, n - 1)
        return t[(*i[:axis], where, *i[axis + 1 :])]

    shape = [*a.shape[:axis], ids.size, *a.shape[axis + 1 :]]
    return b.map(shape, value), np.take(a, ids, axis)


def arithmetic(rng: np.random.Generator, b: Builder, t: Tensor, a: Array) -> tuple[Tensor, Array]:
    c = float(np.float32(rng.uniform(-1, 1)))
    return b.map(a.shape, lambda *i: t[i] * c + 0.5), a * np.float32(c) + np.float32(0.5)


def soften(rng: np.random.Generator, b: Builder, t: Tensor, a: Array) -> tuple[Tensor, Array]:
    """A map of the element and of a reduction of its row."""
    outer, n = a.shape[:-1], a.shape[-1]
    largest = bool(rng.integers(2))
    (row,) = b.reduce(outer, (n,), (max_of if largest else sum_of)(F32), lambda i, r: t[(*i, *r)])
    made = b.map(a.shape, lambda *i: t[i] - row[i[:-1]])
    reduced = a.max(-1, keepdims=True) if largest else a.sum(-1, keepdims=True)
    return made, (a - reduced).astype(np.float32)


def product(rng: np.random.Generator, b: Builder, t: Tensor, a: Array) -> tuple[Tensor, Array]:
    n, m = a.shape[-1], int(rng.integers(1, 6))
    weight = (rng.standard_normal((n, m)) / n).astype(np.float32)
    w = b.constant(weight)
    made = b.contract((*a.shape[:-1], m), (n,), lambda i, r: (t[(*i[:-1], *r)], w[r[0], i[-1]]))
    return made, a @ weight


VIEWS: tuple[View, ...] = (reshape, transpose, cut, expand, pad, join, gather)
EVERYTHING: tuple[View, ...] = (*VIEWS, arithmetic, soften, product)


def random_program(
    seed: int, choices: tuple[View, ...], length: int
) -> tuple[Program, dict[str, Array], dict[str, Array]]:
    """A chain of operations (and readers of what lies on it), its input, and what NumPy makes of it."""
    rng = np.random.default_rng(seed)
    builder = Builder()
    shape = tuple(int(s) for s in rng.choice([1, 2, 3, 4, 6], int(rng.integers(1, 4))))
    array = rng.standard_normal(shape).astype(np.float32)
    x = builder.tensor(F32, shape, "x")
    chain: list[tuple[Tensor, Array]] = [(x, array)]
    for _ in range(length):
        t, a = chain[-1] if rng.integers(4) else chain[int(rng.integers(len(chain)))]
        made, value = choices[int(rng.integers(len(choices)))](rng, builder, t, a)
        if 0 < value.size <= 3000 and value.ndim <= 5:
            chain.append((made, value))
    wanted = {len(chain) - 1, int(rng.integers(len(chain)))} - {0} or {0}
    outputs, expected = [], {}
    for k in sorted(wanted):
        t, a = chain[k]
        copy = builder.map(a.shape, lambda *i, t=t: t[i] + 0.0)
        outputs.append(Port(f"y{k}", copy.name))
        expected[f"y{k}"] = a
    program = finished(builder, [x], outputs)
    needed = live(program)
    program.nodes = tuple(n for n in program.nodes if set(n.writes) & needed)
    return program.with_nodes(program.nodes), {"x": array}, expected


def live(program: Program) -> set[str]:
    needed = {p.tensor for p in program.outputs}
    for node in reversed(program.nodes):
        if set(node.writes) & needed:
            needed.update(node.reads)
    return needed


def check(seed: int, choices: tuple[View, ...], length: int) -> None:
    program, feeds, expected = random_program(seed, choices, length)
    after = fused(program)
    assert len(after.nodes) <= len(program.nodes)
    for stage in (program, after):
        got = interpret(stage, feeds)
        for name, want in expected.items():
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("block", range(10))
def test_random_chains_of_views(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        check(seed, VIEWS, 6)


@pytest.mark.parametrize("block", range(10))
def test_random_programs(block: int) -> None:
    for seed in range(1000 + block * 15, 1000 + block * 15 + 15):
        check(seed, EVERYTHING, 8)


@pytest.mark.full
@pytest.mark.parametrize("block", range(50))
def test_many_random_programs(block: int) -> None:
    for seed in range(10000 + block * 40, 10000 + block * 40 + 40):
        check(seed, EVERYTHING, 10)


def test_types_of_samples_are_used() -> None:
    """Fusion moves integers as it moves floats."""
    builder = Builder()
    x = builder.tensor(I64, (4, 3), "x")
    low = builder.map((4, 3), lambda i, j: ex.cast(x[i, j], I32))
    (total,) = builder.reduce((4,), (3,), sum_of(I32), lambda i, r: low[i[0], r[0]])
    made = builder.map((4, 3), lambda i, j: ex.cast(low[i, j] + total[i], I64))
    program = finished(builder, [x], [Port("y", made.name)])
    after = fused(program)
    same_results(program, after, {"x": np.arange(12).reshape(4, 3) - 6})
    assert len(after.nodes) == 1
