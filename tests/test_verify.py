"""What the verifiers of L1 and L2 refuse, and in which words."""

from __future__ import annotations

import pytest

from onnx2wgsl.ir.parse import parse_kernels, parse_program
from onnx2wgsl.ir.verify import VerificationError, verify

HEAD = """
tensor "x": f32[4, 6]
tensor "n": i64[4]
tensor "s": f32[]
tensor "flag": bool[]
tensor "y": f32[4, 6]
tensor "z": f32[4]
input "x" = "x"
input "n" = "n"
input "s" = "s"
input "flag" = "flag"
output "z" = "z"
"""
ROWS = """
nest (i: 4) {
  a0 = reduce (r: 6) [0.0:f32 | add(a.0:f32, b.0:f32)]: "x"[i, r]
  store "z"[i] = acc(a0):f32
}
"""


def refusal(text: str) -> str:
    with pytest.raises(VerificationError) as caught:
        verify(parse_program(HEAD + text))
    message = str(caught.value)
    assert message.startswith("defect in the compiler, please report it: expected ")
    return message.split("report it: ", 1)[1].split(", in\n", 1)[0]


def test_a_sound_program_passes() -> None:
    verify(parse_program(HEAD + ROWS))


def test_the_message_shows_the_node() -> None:
    with pytest.raises(VerificationError) as caught:
        verify(parse_program(HEAD + 'nest (i: 4) from "Add_0" {\n  store "z"[i] = "x"[i, 6]\n}'))
    assert str(caught.value) == (
        "defect in the compiler, please report it: expected an index of 'x' in 0..5, but got 6 in 6..6, in\n"
        'nest (i: 4) from "Add_0" {\n  store "z"[i] = "x"[i, 6]\n}'
    )


@pytest.mark.parametrize(
    ("nest", "message"),
    [
        # Scopes.
        ('nest (i: 4) { store "z"[i] = "x"[i, j<6>] }', "expected an axis in scope, but got j of size 6"),
        ('nest (i: 4) { store "z"[i] = "x"[i<3>, 0] }', "expected i of size 4, but got i of size 3"),
        (
            'nest (i: 4) { store "z"[i] = acc(a0):f32 }',
            "expected the result of an earlier step, but got acc('a0', 0): f32",
        ),
        ('nest (i: 4, i: 1) { store "z"[i] = 0.0:f32 }', "expected axes of different names, but got two named i"),
        ('nest (i: 4, j: 0) { store "z"[i] = 0.0:f32 }', "expected axes of positive size, but got j: 0"),
        ('nest (i: 4) { store "z"[i] = t:f32 }', "expected an expression over tensors and axes, but got var"),
        ('nest (i: 4) { store "z"[i] = a.0:f32 }', "expected a component of a monoid's state, but got a.0: f32"),
        # Types.
        ('nest (i: 4) { store "z"[i] = 1:i32 }', "expected 'z' as f32, but got i32"),
        ('nest (i: 4) { store "z"[i] = "x"[i, 0]:f16 }', "expected 'x' as f32, but got f16"),
        (
            'nest (i: 4) { store "z"[i] = add("x"[i, 0], 1:i32) }',
            "expected operands of one type, but got add(f32, i32): f32",
        ),
        (
            'nest (i: 4) { store "z"[i] = select("x"[i, 0], 1.0:f32, 2.0:f32) }',
            "expected a bool and two operands of one type, but got select(f32, f32, f32): f32",
        ),
        (
            'nest (i: 4) { store "z"[i] = lt("x"[i, 0], 1.0:f32):f32 }',
            "expected the result bool, but got lt(f32, f32): f32",
        ),
        ('nest (i: 4) { store "z"[i] = frob(1.0:f32):f32 }', "expected a known operator, but got frob"),
        (
            'nest (i: 4) { store "z"[i] = exp(1.0:f32, 2.0:f32):f32 }',
            "expected 1 operands of exp, but got exp(f32, f32): f32",
        ),
        ('nest (i: 4) { store "z"[i] = cast(exp(1:i32)):f32 }', "expected floats, but got exp(i32): i32"),
        (
            'nest (i: 4) { store "z"[i] = bitcast("n"[i]):f32 }',
            "expected a bitcast between types of one width, but got bitcast(i64): f32",
        ),
        ('nest (i: 4) { store "z"[i] = "x"[value("s"[], 0, 3), 0] }', "expected an integer as an index, but got f32"),
        (
            'nest (i: 4) { a0 = reduce (r: 6) [0:i32 | add(a.0:f32, b.0:f32)]: "x"[i, r] store "z"[i] = acc(a0):f32 }',
            "expected one type per component in identity, combine and body, but got i32 | f32 | f32",
        ),
        (
            'nest (i: 4) { a0 = contract f32 (r: 6): "x"[i, r], "x"[0, 0] store "z"[i] = acc(a0):f32 }',
            "expected every contracted axis in both operands, but got r in one",
        ),
        (
            'nest (i: 4) { a0 = contract i32 (r: 6): "x"[i, r], "x"[i, r] store "z"[i] = cast(acc(a0):i32):f32 }',
            "expected a contraction of floats or of integers, but got f32 · f32 in i32",
        ),
        # Ranks and bounds.
        ('nest (i: 4) { store "z"[i] = "x"[i] }', "expected 2 indices of 'x', but got 1"),
        ('nest (i: 4) { store "z"[i + 1] = 0.0:f32 }', "expected an index of 'z' in 0..3, but got i + 1 in 1..4"),
        ('nest (i: 4) { store "z"[i] = "x"[i, 2*i] }', "expected an index of 'x' in 0..5, but got 2*i in 0..6"),
        (
            'nest (i: 4) { store "z"[i] = "x"[value("n"[i], 0, 4), 0] }',
            "expected an index of 'x' in 0..3, but got value(n[i], 0, 4) in 0..4",
        ),
        (
            'nest (i: 4) { store "z"[i] = select(le(2:i32, index(i):i32), "x"[i + 2, 0], 0.0:f32) }',
            "expected an index of 'x' in 0..3, but got i + 2 in 4..5 under its guards",
        ),
        (
            'nest (i: 4) { store "z"[i] = select(lt(index(i):i32, 2:i32), 0.0:f32, "x"[2*i, 0]) }',
            "expected an index of 'x' in 0..3, but got 2*i in 4..6 under its guards",
        ),
        # Single assignment.
        ('nest (i: 4) { store "t"[i] = 0.0:f32 }', "expected a declared tensor, but got 't'"),
        ('nest (i: 4) { store "z"[i] = "y"[i, 0] }', "expected a tensor whose value is known here, but got 'y'"),
        (
            'nest (i: 4) { store "z"[i] = 0.0:f32 } nest (i: 4) { store "z"[i] = 0.0:f32 }',
            "expected stores that do not overlap, but got two stores of 'z'",
        ),
        (
            ('nest (i: 2) { store "z"[i] = 0.0:f32 } nest (i: 4) { store "y"[i, 0] = "z"[i] } '
            'nest (i: 2) { store "z"[i + 2] = 0.0:f32 }'),
            "expected a tensor whose value is known here, but got 'z'",
        ),
        ('nest (i: 4) { store "s"[] = 0.0:f32 }', "expected a tensor that nothing else writes, but got 's'"),
        (
            'nest (i: 4) { store "z"[i] = 0.0:f32 store "z"[3 - i] = 1.0:f32 }',
            "expected stores that do not overlap, but got two stores of 'z'",
        ),
        (
            'nest (i: 4, j: 6) { store "z"[i] = "x"[i, j] }',
            "expected every element to be written once, but got 'z' written again along j",
        ),
        ('nest (i: 3) { store "z"[i] = 0.0:f32 }', "expected all 4 elements of 'z' to be written, but got 3"),
        (
            'nest (i: 4) { store where i in 0..3: "z"[i] = 0.0:f32 }',
            "expected all 4 elements of 'z' to be written, but got 3",
        ),
        (
            'nest (i: 4) { store where i in 0..5: "z"[i] = 0.0:f32 }',
            "expected a part of an axis in scope as domain, but got i in 0..5",
        ),
        ("", "expected a tensor whose value is known here, but got 'z'"),
        # Loops and branches.
        (
            'scan "t" trip 4 { stack "s" -> "z" axis 0 at param("t", 0, 3) + 1 }',
            "expected a position of 'z' in 0..3, but got param(t, 0, 3) + 1",
        ),
        (
            'scan "t" trip 4 { nest (i: 1) { store "y"[0, 0] = "x"[param("t", 0, 2), 0] } }',
            "expected the step t in 0..3, but got 0..2",
        ),
        (
            'scan "t" trip 4 { carry "s" -> "flag" -> "s" -> "z" }',
            "expected a carried value of one type, but got f32[], bool[], f32[], f32[4]",
        ),
        ('guard "s" { then { } else { } }', "expected one bool as the condition 's', but got f32[]"),
        ('guard "flag" { result "z" = "s", "s" then { } else { } }', "expected 'z': f32[4], but got 's': f32[]"),
    ],
)
def test_nodes(nest: str, message: str) -> None:
    assert refusal(nest) == message


@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (
            'tensor "c": i32[2] = [1, 2] tensor "p": i32[2] in "c" axis 0 offset 1',
            "expected a part of 'c': i32[2], but got 'p': i32[2] at 1 of axis 0",
        ),
        (
            'tensor "p": f32[2] length "s" axis 0',
            "expected a scalar i32 as the length of an axis of 'p': f32[2], but got 's': f32[]",
        ),
        ('tensor "p": f32[2] length "q" axis 0', "expected a declared tensor, but got 'q'"),
    ],
)
def test_declarations(declaration: str, message: str) -> None:
    head, ports = HEAD.split("input", 1)
    with pytest.raises(VerificationError) as caught:
        verify(parse_program(f"{head}{declaration}\ninput{ports}{ROWS}"))
    assert message in str(caught.value)


def placed(first: str, second: str, read: str) -> str:
    return f"""
tensor "x": f32[2]
tensor "all": f32[4]
tensor "p": f32[2] in "all" axis 0 offset 0
tensor "q": f32[2] in "all" axis 0 offset 2
tensor "z": f32[4]
input "x" = "x"
output "z" = "z"
{first}
{read}
{second}
"""


def test_readers_of_a_whole_wait_for_its_parts() -> None:
    p, q = (f'nest (i: 2) {{ store "{n}"[i] = "x"[i] }}' for n in "pq")
    read = 'nest (i: 4) { store "z"[i] = "all"[i] }'
    verify(parse_program(placed(p + q, "", read)))
    with pytest.raises(VerificationError, match="expected a tensor whose value is known here, but got 'all'"):
        verify(parse_program(placed(p, q, read)))
    with pytest.raises(VerificationError, match="expected all 4 elements of 'all' to be written, but got"):
        verify(parse_program(placed(p + 'nest (i: 1) { store "all"[i + 2] = "x"[i] }', "", read)))


def test_interleaved_stores_do_not_overlap() -> None:
    verify(parse_program(HEAD + 'nest (i: 2) { store "z"[2*i] = 0.0:f32 store "z"[2*i + 1] = 1.0:f32 }'))


def test_loads_under_a_guard_need_no_proof() -> None:
    guard = 'and(le(1:i32, index(i):i32), lt("s"[], 0.0:f32))'
    verify(parse_program(HEAD + f'nest (i: 4) {{ store "z"[i] = select({guard}, "x"[i - 1, 0], 0.0:f32) }}'))
    hidden = 'select(lt("s"[], 0.0:f32), "x"[i - 1, 0], 0.0:f32)'
    verify(parse_program(HEAD + f'nest (i: 4) {{ store "z"[i] = {hidden} }}'))


KERNEL_HEAD = 'tensor "x": f32[64]\ntensor "y": f32[64]\ninput "x" = "x"\noutput "y" = "y"\n'


def kernel(body: str, size: str = "(64, 1, 1)", grid: str = "(1, 1, 1)") -> str:
    return f'{KERNEL_HEAD}dispatch {{ reads "x" writes "y" kernel "k" size {size} grid {grid} {{ {body} }} }}'


TID = "let tid = cast(lid:u32):i32"


def test_sound_kernels_pass() -> None:
    exchange = '"s0"[tid:i32] = "x"[tid:i32]:f32 barrier "y"[tid:i32] = "s0"[0:i32]:f32'
    verify(parse_kernels(kernel(f"shared s0: f32[64] {TID} {exchange}")))
    verify(parse_kernels(kernel(f"{TID} for k = 0:i32 to 4:i32 {{ barrier }}")))
    verify(parse_kernels(kernel("if lt(wid.x:u32, 3:u32) { barrier }")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (kernel('"y"[0:i32] = t:f32'), "expected t to be bound as f32, but got None"),
        (kernel("if true { let t = 1:i32 } let s = t:i32"), "expected t to be bound as i32, but got None"),
        (kernel("let t = 1:i32 let t = 2:i32"), "expected names bound once per scope, but got t again"),
        (kernel("let t = 1:i32 t = 2:i32"), "expected an assignment to a variable of its type, but got t = i32"),
        (kernel("var t = 1:i32 t = 2.0:f32"), "expected an assignment to a variable of its type, but got t = f32"),
        (kernel("let t = 1:i64"), "expected a machine type, but got i64 of const"),
        (kernel("let t = add(1:i32, 1.0:f32)"), "expected operands of one type, but got add(i32, f32): i32"),
        (kernel('"x"[0:i32] = 1.0:f32'), "expected a write to a tensor that the dispatch writes, but got 'x'"),
        (kernel('let t = "q"[0:i32]:f32'), "expected a fetch from a tensor that the dispatch reads, but got 'q'"),
        (kernel('let t = "x"[0.0:f32]:f32'), "expected an integer as address, but got f32"),
        (kernel("if 1:i32 { }"), "expected a bool as condition, but got i32"),
        (kernel("", "(257, 1, 1)"), "expected a workgroup of 1 to 256 threads, but got (257, 1, 1)"),
        (kernel("", "(16, 32, 1)"), "expected a workgroup of 1 to 256 threads, but got (16, 32, 1)"),
        (
            kernel("", "(64, 1, 1)", "(65536, 1, 1)"),
            "expected a grid of 1 to 65535 groups an axis, but got (65536, 1, 1)",
        ),
        (kernel("shared s0: f32[4097]"), "expected at most 16384 bytes of workgroup memory, but got 16388"),
        (
            kernel(f"{TID} if lt(tid:i32, 3:i32) {{ barrier }}"),
            "expected barriers that all threads of a workgroup reach, but got one under a condition of a thread",
        ),
        (
            kernel(f"{TID} for k = tid:i32 to 8:i32 {{ barrier }}"),
            "expected barriers that all threads of a workgroup reach, but got one under a condition of a thread",
        ),
        (
            kernel('if lt("y"[0:i32]:f32, 0.0:f32) { barrier }'),
            "expected barriers that all threads of a workgroup reach, but got one under a condition of a thread",
        ),
    ],
)
def test_kernels(text: str, message: str) -> None:
    with pytest.raises(VerificationError) as caught:
        verify(parse_kernels(text))
    assert f"report it: {message}, in\n" in str(caught.value)


def test_other_values_pass() -> None:
    verify(None)
