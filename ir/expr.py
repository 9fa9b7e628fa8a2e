"""Scalar expressions: frozen, hash-consed nodes over loads, index values, accumulators and constants.

An `Expr` is (op, dtype, args, index, attr). Besides the operators of `ops.py` there are the leaves

    const   attr: the value (int, float or bool)
    load    attr: tensor name; index: one index per dimension
    index   index: one index, as a value of an integer type
    acc     attr: (step, component), the result of an earlier step of the nest
    leaf    attr: (side, component), a component of the left ("a") or right ("b") state of a monoid

and `assume`, whose attr (lo, hi) states a fact about its argument. `select` is lazy: its branches are evaluated only
where they are taken, so a load under a guard may have an index that is out of bounds elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union

import numpy as np

from . import index as ix
from .dtypes import BOOL, I32, I64, DType
from .index import Index, IndexLike
from .ops import OPS, result_dtype

Number = int | float | bool
ExprLike = Union["Expr", Number]


class Expr:
    """One hash-consed node; build it with the functions of this module, never directly."""

    __slots__ = ("args", "attr", "below", "dtype", "free", "index", "key", "op", "size")
    op: str
    dtype: DType
    args: tuple[Expr, ...]
    index: tuple[Index, ...]
    attr: Any
    key: bytes
    free: frozenset[str]
    below: tuple[Expr, ...]
    size: int

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and self.key == other.key)

    def __repr__(self) -> str:
        if self.op == "const":
            return f"{self.attr!r}:{self.dtype}"
        if self.op == "load":
            return f"{self.attr}[{', '.join(map(repr, self.index))}]"
        parts = [*map(repr, self.args), *map(repr, self.index), *([repr(self.attr)] if self.attr is not None else [])]
        return f"{self.op}:{self.dtype}({', '.join(parts)})"

    def __add__(self, other: ExprLike) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return binary("div", other, self)

    def __neg__(self) -> Expr:
        return op("neg", self)

    def __and__(self, other: ExprLike) -> Expr:
        return binary("and", self, other)

    def __or__(self, other: ExprLike) -> Expr:
        return binary("or", self, other)

    def __xor__(self, other: ExprLike) -> Expr:
        return binary("xor", self, other)

    def __invert__(self) -> Expr:
        return op("not", self)

    def __lt__(self, other: ExprLike) -> Expr:
        return binary("lt", self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return binary("le", self, other)

    def __gt__(self, other: ExprLike) -> Expr:
        return binary("lt", other, self)

    def __ge__(self, other: ExprLike) -> Expr:
        return binary("le", other, self)

    def equals(self, other: ExprLike) -> Expr:
        return binary("eq", self, other)

    def cast(self, dtype: DType) -> Expr:
        return cast(self, dtype)

    def substitute(self, env: Mapping[str, Index], memo: dict[Any, Any] | None = None) -> Expr:
        """Replaces loop variables by indices, all at once."""
        if not any(name in env for name in self.free):
            return self
        memo = {} if memo is None else memo
        return rewrite_tree(self, memo, lambda _: None, env)


_NODES: dict[bytes, Expr] = {}


def clear_cache() -> None:
    """Forgets all interned nodes; expressions that are still held stay valid, since equality is structural."""
    _NODES.clear()


def _node(op_: str, dtype: DType, args: tuple[Expr, ...], indices: tuple[Index, ...], attr: Any) -> Expr:
    key = ix.digest(op_, dtype.name, attr, *(a.key for a in args), b"|", *(i.key for i in indices))
    found = _NODES.get(key)
    if found is not None:
        return found
    node = Expr()
    node.op, node.dtype, node.args, node.index, node.attr, node.key = op_, dtype, args, indices, attr, key
    parts = [a.free for a in args] + [i.free for i in indices] + ([frozenset((attr,))] if op_ == "var" else [])
    node.free = parts[0] if len(parts) == 1 else frozenset().union(*parts)
    node.size = 1 + sum(a.size for a in args)
    node.below = (*args, *(e for i in indices for e in index_exprs(i))) if indices else args
    _NODES[key] = node
    return node


def const(value: Any, dtype: DType) -> Expr:
    """A constant, rounded or wrapped to its type."""
    if isinstance(value, (bool, np.bool_)) or dtype is BOOL:
        return _node("const", dtype, (), (), bool(value) if dtype is BOOL else _plain(int(value), dtype))
    return _node("const", dtype, (), (), _plain(value, dtype))


def _plain(value: Any, dtype: DType) -> Number:
    if dtype.is_float:
        with np.errstate(all="ignore"):
            return float(np.asarray(value, np.float64).astype(dtype.numpy))
    wrapped = int(value) & ((1 << dtype.bits) - 1)
    return wrapped - (1 << dtype.bits) if dtype.kind == "int" and wrapped > dtype.hi else wrapped


TRUE = const(True, BOOL)
FALSE = const(False, BOOL)


def load(tensor: str, dtype: DType, indices: Sequence[IndexLike]) -> Expr:
    return _node("load", dtype, (), tuple(ix.index(i) for i in indices), tensor)


def index_value(value: IndexLike, dtype: DType = I64) -> Expr:
    """An index as a value of an integer type."""
    idx = ix.index(value)
    if idx.is_const:
        return const(idx.const, dtype)
    return _node("index", dtype, (), (idx,), None)


def acc(step: str, dtype: DType, component: int = 0) -> Expr:
    return _node("acc", dtype, (), (), (step, component))


def leaf(side: str, dtype: DType, component: int = 0) -> Expr:
    return _node("leaf", dtype, (), (), (side, component))


def variable(name: str, dtype: DType) -> Expr:
    """A named value of a kernel (level L2)."""
    return _node("var", dtype, (), (), name)


def fetch(buffer: str, dtype: DType, address: Expr) -> Expr:
    """Element `address` of a storage buffer or workgroup array of a kernel (level L2)."""
    return _node("fetch", dtype, (address,), (), buffer)


def machine(name: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """An operator node as it stands, without simplification (level L2)."""
    return _node(name, dtype, args, (), None)


def assume(x: Expr, lo: int, hi: int) -> Expr:
    """States that an integer expression lies in [lo, hi]."""
    if x.op == "const" or (x.op == "assume" and x.attr[0] >= lo and x.attr[1] <= hi):
        return x
    return _node("assume", x.dtype, (x,), (), (int(lo), int(hi)))


def cast(x: Expr, dtype: DType) -> Expr:
    if x.dtype is dtype:
        return x
    if x.op == "index" and dtype.is_integer and dtype.lo <= x.index[0].lo and x.index[0].hi <= dtype.hi:
        return index_value(x.index[0], dtype)
    return op("cast", x, dtype=dtype)


def bitcast(x: Expr, dtype: DType) -> Expr:
    return x if x.dtype is dtype else op("bitcast", x, dtype=dtype)


def select(condition: Expr, yes: ExprLike, no: ExprLike) -> Expr:
    """`yes` where the condition holds, else `no`; the branch not taken is not evaluated."""
    if not isinstance(yes, Expr):
        assert isinstance(no, Expr)
        yes = const(yes, no.dtype)
    if not isinstance(no, Expr):
        no = const(no, yes.dtype)
    return op("select", condition, yes, no)


def binary(name: str, a: ExprLike, b: ExprLike) -> Expr:
    """A two-operand operator; a Python number takes the other operand's type."""
    if not isinstance(a, Expr):
        assert isinstance(b, Expr)
        a = const(a, b.dtype)
    if not isinstance(b, Expr):
        b = const(b, a.dtype)
    return op(name, a, b)


def op(name: str, *args: Expr, dtype: DType | None = None) -> Expr:
    """Applies an operator of `ops.py`: folds constants and drops identities that hold for all values."""
    info = OPS[name]
    if len(args) != info.arity:
        raise ValueError(f"operator {name} takes {info.arity} operands, got {len(args)}")
    if name not in ("select", "shl", "shr", "pair", "shl64", "shr64", "sar64") and any(
        a.dtype is not args[0].dtype for a in args
    ):
        raise TypeError(f"operator {name} needs operands of one type, got {', '.join(str(a.dtype) for a in args)}")
    result = result_dtype(name, tuple(a.dtype for a in args), dtype)
    simple = _simplify(name, args, result)
    if simple is not None:
        return simple
    if all(a.op == "const" for a in args):
        return _fold(name, args, result)
    return _node(name, result, args, (), None)


def apply(name: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    """Rebuilds an operator node with other operands."""
    if name == "cast":
        return cast(args[0], dtype)
    return op(name, *args, dtype=dtype)


def _fold(name: str, args: tuple[Expr, ...], dtype: DType) -> Expr:
    values = [np.asarray(a.attr, a.dtype.numpy) for a in args]
    function = OPS[name].numpy
    with np.errstate(all="ignore"):
        result = function(values[0], dtype) if OPS[name].result == "attr" else function(*values)
    return const(np.asarray(result).reshape(())[()], dtype)


def _is(x: Expr, value: Number) -> bool:
    return x.op == "const" and not isinstance(x.attr, bool) and x.attr == value


def _simplify(name: str, args: tuple[Expr, ...], dtype: DType) -> Expr | None:
    a = args[0]
    if name == "select":
        if a.op == "const":
            return args[1] if a.attr else args[2]
        return args[1] if args[1] == args[2] else None
    if name in ("and", "or") and dtype is BOOL:
        for x, y in ((a, args[1]), (args[1], a)):
            if x.op == "const":
                return y if bool(x.attr) == (name == "and") else x
        return a if a == args[1] else None
    if name in ("lt", "le") and a.dtype.is_integer:
        return _compare_ranges(name, a, args[1])
    if name in ("add", "sub", "mul") and a.op == "index" and args[1].op in ("index", "const"):
        return _index_arithmetic(name, a, args[1])
    if name == "mul" and _is(args[1], 1):
        return a
    if name == "mul" and _is(a, 1):
        return args[1]
    if name == "div" and _is(args[1], 1):
        return a
    if dtype.is_integer and name in ("add", "sub") and _is(args[1], 0):
        return a
    if dtype.is_integer and name == "add" and _is(a, 0):
        return args[1]
    if name == "neg" and a.op == "neg":
        return a.args[0]
    if name == "not" and a.op == "not":
        return a.args[0]
    return None


def _index_arithmetic(name: str, a: Expr, b: Expr) -> Expr | None:
    """Sums of indices stay indices, as long as the type cannot overflow."""
    right = b.index[0] if b.op == "index" else ix.constant(int(b.attr))
    if name == "mul":
        if not right.is_const:
            return None
        result = a.index[0] * right.const
    else:
        result = a.index[0] + right if name == "add" else a.index[0] - right
    return index_value(result, a.dtype) if a.dtype.lo <= result.lo and result.hi <= a.dtype.hi else None


def _compare_ranges(name: str, a: Expr, b: Expr) -> Expr | None:
    (alo, ahi), (blo, bhi) = value_range(a), value_range(b)
    if name == "lt":
        return TRUE if ahi < blo else FALSE if alo >= bhi else None
    return TRUE if ahi <= blo else FALSE if alo > bhi else None


def value_range(x: Expr) -> tuple[int, int]:
    """Inclusive bounds of an integer expression, from constants, index ranges and stated facts."""
    dtype = x.dtype
    if x.op == "const":
        return int(x.attr), int(x.attr)
    if x.op == "index":
        return x.index[0].lo, x.index[0].hi
    if x.op == "assume":
        lo, hi = value_range(x.args[0])
        return max(lo, x.attr[0]), min(hi, x.attr[1])
    if not (dtype.is_integer or dtype is BOOL):
        return -(1 << 127), 1 << 127
    result = _operator_range(x)
    if result is None or result[0] < dtype.lo or result[1] > dtype.hi:
        return dtype.lo, dtype.hi
    return result


_RANGES: dict[bytes, tuple[int, int] | None] = {}


def _operator_range(x: Expr) -> tuple[int, int] | None:
    if x.op not in ("add", "sub", "mul", "min", "max", "select", "cast", "neg", "mod"):
        return None
    if x.key in _RANGES:
        return _RANGES[x.key]
    if len(_RANGES) > 1_000_000:
        _RANGES.clear()
    _RANGES[x.key] = result = _operator_range_of(x)
    return result


def _operator_range_of(x: Expr) -> tuple[int, int] | None:
    if x.op == "cast":
        source = x.args[0].dtype
        return value_range(x.args[0]) if source.is_integer or source is BOOL else None
    (alo, ahi) = value_range(x.args[-2 if len(x.args) > 1 else 0])
    if x.op == "neg":
        return -ahi, -alo
    (blo, bhi) = value_range(x.args[-1])
    match x.op:
        case "add":
            return alo + blo, ahi + bhi
        case "sub":
            return alo - bhi, ahi - blo
        case "mul":
            corners = (alo * blo, alo * bhi, ahi * blo, ahi * bhi)
            return min(corners), max(corners)
        case "min":
            return min(alo, blo), min(ahi, bhi)
        case "max":
            return max(alo, blo), max(ahi, bhi)
        case "select":
            return min(alo, blo), max(ahi, bhi)
        case _:
            return (0, bhi - 1) if blo > 0 else None


def in_range(value: IndexLike, lo: int, hi: int) -> Expr:
    """The condition lo <= value < hi, without the halves that always hold."""
    idx = ix.index(value)
    if idx.hi < lo or idx.lo >= hi:
        return FALSE
    condition = TRUE
    if idx.lo < lo:
        condition = condition & op("le", const(lo, I32), index_value(idx, I32))
    if idx.hi >= hi:
        condition = condition & op("lt", index_value(idx, I32), const(hi, I32))
    return condition


def children(x: Expr) -> tuple[Expr, ...]:
    """Operands, and the expressions inside of indices."""
    return x.below


def index_exprs(i: Index) -> Iterable[Expr]:
    """The expressions of the data-dependent values inside of an index."""
    for atom, _ in i.terms:
        if isinstance(atom, ix.Value):
            yield atom.expr
        elif isinstance(atom, (ix.Div, ix.Mod)):
            yield from index_exprs(atom.num)


def walk(*roots: Expr) -> Iterable[Expr]:
    """Every distinct node below the roots, operands before their users."""
    seen: set[bytes] = set()
    stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
            continue
        if node.key in seen:
            continue
        seen.add(node.key)
        if not node.below:
            yield node
            continue
        stack.append((node, True))
        stack.extend((e, False) for e in node.below if e.key not in seen)


def loads(*roots: Expr) -> list[Expr]:
    """The distinct loads below the roots."""
    return [e for e in walk(*roots) if e.op == "load"]


Rule = Callable[[Expr], Union["Expr", None]]


def rewrite(root: Expr, rule: Rule, memo: dict[Any, Any] | None = None) -> Expr:
    """Rebuilds an expression bottom-up; `rule` sees each rebuilt node and returns its replacement or None."""
    return rewrite_tree(root, {} if memo is None else memo, rule, {})


def rewrite_tree(root: Expr, memo: dict[Any, Any], rule: Rule, env: Mapping[str, Index]) -> Expr:
    """`rewrite` with a simultaneous substitution of loop variables; `memo` must belong to (rule, env)."""
    stack = [root]
    while stack:
        node = stack[-1]
        if node in memo:
            stack.pop()
            continue
        pending = [c for c in node.below if c not in memo]
        if pending:
            stack.extend(pending)
            continue
        rebuilt = _rebuild(node, memo, env)
        replaced = rule(rebuilt)
        memo[node] = rebuilt if replaced is None else replaced
        stack.pop()
    result: Expr = memo[root]
    return result


def _rebuild(node: Expr, memo: dict[Any, Any], env: Mapping[str, Index]) -> Expr:
    args = tuple(memo[a] for a in node.args)
    indices = tuple(_rebuild_index(i, memo, env) for i in node.index)
    if node.op == "index":
        return index_value(indices[0], node.dtype)
    if node.op in ("load", "const", "acc", "leaf", "var"):
        return node if indices == node.index else load(node.attr, node.dtype, indices)
    if all(a is b for a, b in zip(args, node.args, strict=True)):
        return node
    if node.op == "assume":
        return assume(args[0], *node.attr)
    return apply(node.op, args, node.dtype)


def _rebuild_index(i: Index, memo: dict[Any, Any], env: Mapping[str, Index]) -> Index:
    if not i.terms:
        return i
    has_value = any(True for _ in index_exprs(i))
    if not has_value and not any(name in env for name in i.free):
        return i
    result = ix.constant(i.const)
    for atom, c in i.terms:
        match atom:
            case ix.Var():
                part = env.get(atom.name) or ix.index(atom)
            case ix.Div():
                part = _rebuild_index(atom.num, memo, env) // atom.den
            case ix.Mod():
                part = _rebuild_index(atom.num, memo, env) % atom.den
            case ix.Value():
                part = ix.value_index(memo[atom.expr], atom.lo, atom.hi)
            case _:
                part = ix.index(atom)
        result = result + part * c
    return result


def zero(dtype: DType) -> Expr:
    return const(0, dtype)


def one(dtype: DType) -> Expr:
    return const(1, dtype)
