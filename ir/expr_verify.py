"""Types of expression nodes: what the verifiers of L1 and L2 share."""

from __future__ import annotations

from onnx2wgsl.errors import Onnx2WgslError

from . import expr as ex
from . import index as ix
from .dtypes import BOOL, F32, F32X2, I32, U32, U32X2, DType
from .expr import Expr
from .index import Index
from .ops import OPS, result_dtype

_FLOAT = frozenset({
    "pow", "atan2", "floor", "ceil", "round", "trunc", "sqrt", "exp", "log", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "isnan", "isinf",
})  # fmt: skip
_BITS = frozenset({"and", "or", "xor", "not"})
_SHIFTS = frozenset({"shl", "shr"})
_FIXED: dict[str, tuple[DType, ...]] = {
    "mulhi": (U32, U32),
    "pair": (U32, U32),
    "lo": (U32X2,),
    "hi": (U32X2,),
    **dict.fromkeys(("shl64", "shr64", "sar64"), (U32X2, U32)),
    **dict.fromkeys(("add64", "sub64", "mul64", "udiv64", "urem64", "sdiv64", "srem64"), (U32X2, U32X2)),
    **dict.fromkeys(("u64tof32", "s64tof32"), (U32X2,)),
    **dict.fromkeys(("f32tou64", "f32tos64"), (F32,)),
    **{name: (F32,) for name in OPS if name.startswith("to_")},
    **{name: (U32,) for name in OPS if name.startswith("from_")},
    "from_f64": (U32X2,),
    "to_f64": (F32X2,),
    "f32tof32x2": (F32,),
    "s32tof32x2": (I32,),
    "u32tof32x2": (U32,),
    **dict.fromkeys(("s64tof32x2", "u64tof32x2"), (U32X2,)),
    **{name: (F32X2,) for name in OPS if name.startswith("f32x2to")},
}
LEAVES = frozenset({"const", "load", "index", "acc", "leaf", "assume", "var", "fetch"})


class VerificationError(Onnx2WgslError):
    """A program breaks a rule of its level: a defect of the compiler, never of the model."""

    def __init__(self, expected: str, got: str, text: str) -> None:
        super().__init__(f"defect in the compiler, please report it: expected {expected}, but got {got}, in\n{text}")


def mistyped(e: Expr) -> tuple[str, str] | None:
    """What was expected of the types of a node and its operands and what was found, or None where they agree."""
    if e.op in LEAVES:
        return _mistyped_leaf(e)
    info = OPS.get(e.op)
    if info is None:
        return "a known operator", e.op
    types = tuple(a.dtype for a in e.args)
    got = f"{e.op}({', '.join(map(str, types))}): {e.dtype}"
    if len(types) != info.arity:
        return f"{info.arity} operands of {e.op}", got
    wanted = _operand_types(e.op, types)
    if wanted is not None:
        return wanted, got
    if info.result != "attr" and result_dtype(e.op, types, None) is not e.dtype:
        return f"the result {result_dtype(e.op, types, None)}", got
    if e.op == "bitcast" and (e.dtype.bits != types[0].bits or BOOL in (e.dtype, types[0])):
        return "a bitcast between types of one width", got
    return None


def _mistyped_leaf(e: Expr) -> tuple[str, str] | None:
    if e.op == "index" and not e.dtype.is_integer:
        return "an index as a value of an integer type", str(e.dtype)
    if e.op == "assume" and not (e.args[0].dtype is e.dtype and e.dtype.is_integer and e.attr[0] <= e.attr[1]):
        return "an assumed interval of an integer", f"{e.args[0].dtype} in {e.attr}"
    for i in e.index:
        for value in ex.index_exprs(i):
            if not value.dtype.is_integer and value.dtype is not U32X2:
                return "an integer as an index", str(value.dtype)
    return None


def _operand_types(op: str, types: tuple[DType, ...]) -> str | None:
    """What an operator wants of its operands, where it does not have it."""
    if op in _FIXED:
        return None if types == _FIXED[op] else f"operands ({', '.join(map(str, _FIXED[op]))})"
    if op == "select":
        return None if types[0] is BOOL and types[1] is types[2] else "a bool and two operands of one type"
    if op in _SHIFTS:
        return None if all(t.is_integer for t in types) else "integers"
    if any(t is not types[0] for t in types):
        return "operands of one type"
    if op in _FLOAT and not types[0].is_float:
        return "floats"
    if op in _BITS and not (types[0].is_integer or types[0] in (BOOL, U32X2)):
        return "integers or bools"
    return None


def variables(i: Index) -> list[ix.Var]:
    """The loop variables of an index outside of its data-dependent values."""
    found: list[ix.Var] = []
    for atom, _ in i.terms:
        if isinstance(atom, ix.Var):
            found.append(atom)
        elif isinstance(atom, (ix.Div, ix.Mod)):
            found.extend(variables(atom.num))
    return found
