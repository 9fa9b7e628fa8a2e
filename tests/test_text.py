"""The text forms of L1 and L2: what is printed reads back equal, for every node case and for programs made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from onnx2wgsl.compiler import CompileOptions, run_pipeline
from onnx2wgsl.errors import Onnx2WgslError
from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Builder
from onnx2wgsl.ir.dtypes import BF16, BOOL, F32, I32, I64, U32, U32X2, U64, vector
from onnx2wgsl.ir.kernel import (
    Assign,
    Barrier,
    For,
    If,
    Kernel,
    KernelProgram,
    KernelStep,
    Let,
    SharedArray,
    Var,
    Write,
)
from onnx2wgsl.ir.parse import ParseError, parse_kernels, parse_program
from onnx2wgsl.ir.program import (
    Attention,
    Axis,
    Carried,
    Guard,
    Nest,
    Opaque,
    Place,
    Port,
    Program,
    Scan,
    Stacked,
    Store,
    TensorType,
)
from onnx2wgsl.ir.text import print_kernels, print_program, same_kernels, same_program
from tests.nodes.cases import bound_inputs, case_inputs, node_cases

CASES = sorted(node_cases())
QUICK = set(CASES[::60])


def round_trip(program: object) -> str:
    if isinstance(program, KernelProgram):
        text = print_kernels(program)
        again = parse_kernels(text, program.constants)
        assert same_kernels(program, again), text
        assert print_kernels(again) == text
        return text
    assert isinstance(program, Program)
    text = print_program(program)
    back = parse_program(text, program.constants)
    assert same_program(program, back), text
    assert print_program(back) == text
    return text


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.full) for n in CASES])
def test_node_cases_read_back(name: str) -> None:
    case = node_cases()[name]
    inputs = case_inputs(case)
    bound = bound_inputs(case.model)
    shapes = {n: list(np.shape(v)) for n, v in inputs.items() if n not in bound and hasattr(v, "shape")}
    options = CompileOptions(bind={n: inputs[n] for n in bound}, input_shapes=shapes)
    try:
        traces = run_pipeline(case.model, options, until="schedule")
    except Onnx2WgslError as error:
        pytest.skip(str(error))
    for trace in traces:
        if trace.level in ("L1", "L2"):
            round_trip(trace.program)


def test_the_form_of_a_nest() -> None:
    builder = Builder()
    builder.provenance = ('Soft"max',)
    x = builder.tensor(F32, (3, 4), "x\n")
    shifted = builder.constant(np.array([1.5, -0.0, np.inf, np.nan], np.float32), "c")
    made = builder.contract(
        (3,), (4,), lambda i, r: (x[i[0], r[0]], shifted[r[0]]), lambda a, i: ex.op("exp", a) / (ex.op("exp", a) + 1.0)
    )
    program = builder.program
    program.nodes = tuple(builder.nodes)
    program.inputs, program.outputs = (Port("in", "x\n"),), (Port("out", made.name),)
    assert round_trip(program) == """\
tensor "x\\n": f32[3, 4]
tensor "c": f32[4] = [1.5, -0.0, +inf, +nan]
tensor "t.1": f32[3]
input "in" = "x\\n"
output "out" = "t.1"
nest (i0: 3) from "Soft\\"max" {
  a0 = contract f32 (r0: 4): "x\\n"[i0, r0], "c"[r0]
  %0 = exp(acc(a0):f32)
  store "t.1"[i0] = div(%0, add(%0, 1.0:f32))
}
"""


def every_node() -> Program:
    """A program with every kind of node, index and type, whose meaning does not matter."""
    i, j, step = ix.var("i", 6), ix.var("the j", 4), ix.index(ix.Param("step/1", 0, 4))
    taken = ix.value_index(ex.load("ids", I64, (i,)), 0, 5)
    value = ex.load("x", F32, (taken, (i * 4 + j) // 3 % 4 - 1))
    masked = ex.select(ex.in_range(i * 2 - 3, 0, 6), value * value, ex.const(-np.inf, F32))
    casts = ex.cast(ex.assume(ex.load("ids", I64, (i,)), -5, 9), F32) + ex.cast(ex.index_value(i - j, I32), F32)
    space, own = (Axis("i", 6),), (Axis("the j", 4),)
    nest = Nest(
        space, (), (Store("y", own, (i, j + 2), masked + casts, (("i", 1, 5), ("the j", 0, 2))),), ("a", "b\u2028")
    )
    copy = Nest((), (), (Store("next", (), (), ex.load("arg", F32, ()) + ex.load("z", F32, (step,))),))
    scan = Scan(
        "step/1", 5, (Carried("init", "arg", "next", "last"),), (Stacked("next", "all", 0, -step + 4),), (copy,),
        "go on", ("Loop",),
    )  # fmt: skip
    guard = Guard("flag", (copy,), (nest, copy), (("r", "next", "arg"),), ("If",))
    key, inner, free = Axis("k", 7), Axis("d", 3), Axis("e", 2)
    attention = Attention(
        space, key, inner, free, ex.load("q", F32, (i, inner.var)), ex.load("k", F32, (key.var, inner.var)),
        ex.load("v", F32, (key.var, free.var)), ex.acc("qk", F32) * 0.5,
        Store("o", (free,), (i, free.var), ex.acc("pv", F32)), ("Attention",),
    )  # fmt: skip
    a, b = ex.leaf("a", F32), ex.leaf("b", F32)
    opaque = Opaque(
        "sort", (("axis", -1), ("sizes", (1, (2, 3))), ("type", BF16), ("name", "x"), ("flags", (True, None, 1.5))),
        (("less", (a < b) | (a < b + a < b)),), ("x", "y"), ("z",), ("Sort",),
    )  # fmt: skip
    tensors = {
        "x": TensorType(F32, (6, 4)),
        "ids": TensorType(I64, (6,), "n", None, 0),
        "n": TensorType(I32, ()),
        "y": TensorType(F32, (6, 6), None, Place("whole", 1, 3)),
        "pair": TensorType(U32X2, (2,)),
        "big": TensorType(U64, (17,)),
        "bits": TensorType(BOOL, (3,)),
        "half": TensorType(BF16, (2,)),
        "empty": TensorType(F32, (0, 3)),
    }
    constants = {
        "pair": np.array([2**64 - 1, 5], np.uint64),
        "big": np.arange(17, dtype=np.uint64),
        "bits": np.array([True, False, True]),
        "half": np.array([1.5, -2], BF16.numpy),
        "empty": np.zeros((0, 3), np.float32),
    }
    ports = (Port("X", "x"), Port("", "ids"))
    return Program(tensors, constants, ports, (Port("Y", "y"),), (nest, scan, guard, attention, opaque))


def test_every_kind_of_node_reads_back() -> None:
    text = round_trip(every_node())
    assert '    result "r"' not in text
    assert '  stack "next" -> "all" axis 0 at -param("step/1", 0, 4) + 4' in text
    assert 'tensor "y": f32[6, 6] in "whole" axis 1 offset 3' in text
    assert 'tensor "big": u64[17] = hash "' in text


def test_shared_expressions_are_printed_once() -> None:
    e = ex.load("x", F32, (ix.constant(0),))
    for _ in range(60):
        e = e * e + e
    nest = Nest((), (), (Store("y", (), (ix.constant(0),), e),))
    tensors = {"x": TensorType(F32, (1,)), "y": TensorType(F32, (1,))}
    text = round_trip(Program(tensors, {}, (Port("x", "x"),), (Port("y", "y"),), (nest,)))
    assert len(text) < 6000


def test_every_statement_reads_back() -> None:
    four = vector(F32, 4)
    tid, i = ex.variable("tid", I32), ex.variable("i", I32)
    total = ex.variable("total", F32)
    wide = ex.fetch("x", four, i)
    body = (
        Let("tid", ex.machine("cast", (ex.variable("lid", U32),), I32)),
        Var("total", ex.const(0.0, F32)),
        For("i", ex.const(0, I32), ex.const(8, I32), 2, (
            Let("w", wide),
            If(ex.machine("lt", (i, ex.const(3, I32)), BOOL), (
                Assign("total", total + ex.machine("lane", (wide, ex.const(2, I32)), F32)),
            )),
        )),
        Barrier(),
        Write("s0", tid, total),
        Write("y", tid, ex.machine("vec", (total, total, total, total), four)),
    )  # fmt: skip
    kernel = Kernel(
        "rows: 2 rows", (8, 4, 1), (2, 1, 1), body, (SharedArray("s0", F32, 64),), (("adapter", "cpu"), ("vendor", "x"))
    )
    step = KernelStep((kernel,), ("x",), ("y",), ("n",), (("u", 3), ("v", -1)), {"x": "z"}, True)
    tensors = {"x": TensorType(F32, (64,)), "y": TensorType(F32, (64,)), "z": TensorType(F32, (64,))}
    program = KernelProgram(tensors, {}, (Port("x", "x"),), (Port("y", "y"),), (step,))
    text = round_trip(program)
    assert text.split("\n", 6)[-1] == """\
  reads "x"
  writes "y"
  uniform "u" = 3
  uniform "v" = -1
  rename "x" = "z"
  kernel "rows: 2 rows" size (8, 4, 1) grid (2, 1, 1) prefer "adapter" = "cpu" prefer "vendor" = "x" {
    shared s0: f32[64]
    let tid = cast(lid:u32):i32
    var total = 0.0:f32
    for i = 0:i32 to 8:i32 step 2 {
      let w = "x"[i:i32]:f32x4v
      if lt(i:i32, 3:i32) {
        total = add(total:f32, lane("x"[i:i32]:f32x4v, 2:i32):f32)
      }
    }
    barrier
    s0[tid:i32] = total:f32
    "y"[tid:i32] = vec(total:f32, total:f32, total:f32, total:f32):f32x4v
  }
}
""".replace("    s0[", '    "s0"[')


def test_comments_and_layout_do_not_matter() -> None:
    text = '# a map\ntensor "x": f32[2] tensor "y": f32[2]\nnest (i: 2) { # copies\n store "y"[i] = "x"[1 - i] }'
    (nest,) = parse_program(text).nodes
    i = ix.var("i", 2)
    assert nest == Nest((Axis("i", 2),), (), (Store("y", (), (i,), ex.load("x", F32, (1 - i,))),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('tensor "x": f33[2]', "line 1: expected an element type, but got 'f33'"),
        ("nest (i: 2) {\n  store x[i] = 1.0:f32\n}", "line 2: expected a string, but got 'x'"),
        ('nest (i: 2) { store "y"[j] = 1.0:f32 }', "line 1: expected an axis in scope, but got 'j'"),
        ('nest (i: 2) { store "y"[i] = %3 }', "line 1: expected a name that is defined, but got '%3'"),
        ('nest () { store "y"[] = cast(1:i32) }', "line 1: expected a type after cast(…), but got '}'"),
        ("loop {}", "line 1: expected nest, scan, guard, attention or opaque, but got 'loop'"),
        ("nest (i: 2) {", "line 1: expected a name, but got the end"),
        ('tensor "c": f32[20] = hash "00"', "expected a value for the constant 'c', but got only its hash 00"),
        ("nest ?", "line 1: expected a token, but got ' ?'"),
    ],
)
def test_errors_say_where(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_program(text)
    assert str(caught.value) == message
