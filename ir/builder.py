"""Building tensor programs: handles for tensors, and `map`, `reduce`, `contract` for lowerings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from . import expr as ex
from .dtypes import BF16, BOOL, F16, F32, I8, I32, U8, DType, from_numpy
from .expr import Expr
from .index import Index, IndexLike
from .lengths import LengthError, mask_steps
from .program import Axis, Contract, Monoid, Nest, Node, Program, Reduce, Store, TensorType

Shape = tuple[int, ...]


class Tensor:
    """A handle on a tensor of a program under construction: `t[i, j]` is a load, `t.at(i, j, k)` broadcasts."""

    def __init__(self, builder: Builder, name: str) -> None:
        self.builder, self.name = builder, name

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"

    @property
    def type(self) -> TensorType:
        return self.builder.program.tensors[self.name]

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    @property
    def value(self) -> np.ndarray[Any, Any] | None:
        """The value of a constant, else None."""
        return self.builder.program.constants.get(self.name)

    def __getitem__(self, indices: IndexLike | tuple[IndexLike, ...]) -> Expr:
        """Loads one element; one index per dimension (`t[()]` for a scalar)."""
        parts = indices if isinstance(indices, tuple) else (indices,)
        if len(parts) != self.rank:
            raise ValueError(f"{self!r} needs {self.rank} indices, got {len(parts)}")
        uniform = self.builder.uniform_value(self.name)
        if uniform is not None:
            return uniform
        return ex.load(self.name, self.dtype, parts)

    def at(self, *indices: IndexLike) -> Expr:
        """Loads with NumPy broadcasting: `indices` are those of the result, whose rank is at least this tensor's."""
        own = indices[len(indices) - self.rank :] if self.rank else ()
        return self[tuple(i if size != 1 else 0 for i, size in zip(own, self.shape, strict=True))]


class Builder:
    """Accumulates a program. Nests over an empty space are dropped: their tensors have no elements."""

    def __init__(self) -> None:
        self.program = Program()
        self.nodes: list[Node] = []
        self.provenance: tuple[str, ...] = ()
        self.hint = "t"
        self.has_lengths = False
        self._uniform: dict[str, Expr | None] = {}
        self._counter = 0

    def uniform_value(self, name: str) -> Expr | None:
        """The expression of a constant all of whose elements are one value."""
        if name not in self._uniform:
            array = self.program.constants.get(name)
            found = None
            if array is not None and array.size and _is_one_value(array):
                found = ex.const(array[(0,) * array.ndim], self.program.tensors[name].dtype)
            self._uniform[name] = found
        return self._uniform[name]

    def fresh(self, hint: str = "") -> str:
        """A tensor name that is not in use."""
        while True:
            self._counter += 1
            name = f"{hint or self.hint}.{self._counter}"
            if name not in self.program.tensors:
                return name

    def tensor(self, dtype: DType, shape: Sequence[int], name: str | None = None) -> Tensor:
        """Declares a tensor; some node must write it, or it is an input."""
        name = self.fresh() if name is None else name
        self.program.tensors[name] = TensorType(dtype, tuple(int(s) for s in shape))
        return Tensor(self, name)

    def measured(self, tensor: Tensor, length: Tensor, axis: int) -> Tensor:
        """States that only the first `length` (a scalar i32 tensor) positions of an axis are valid."""
        self.program.tensors[tensor.name] = replace(tensor.type, length=length.name, length_axis=axis)
        self.has_lengths = True
        return tensor

    def constant(self, array: Any, name: str | None = None, dtype: DType | None = None) -> Tensor:
        """Declares a constant."""
        value = np.asarray(array)
        result = self.tensor(dtype or from_numpy(value.dtype), value.shape, name)
        self.program.constants[result.name] = value
        return result

    def map(self, shape: Sequence[int], function: Callable[..., Expr], name: str | None = None) -> Tensor:
        """`result[i…] = function(i…)`."""
        space = axes("i", shape)
        value = function(*(a.var for a in space))
        result = self.tensor(value.dtype, shape, name)
        self.emit(space, (), [Store(result.name, (), tuple(a.var for a in space), value)])
        return result

    def reduce(
        self,
        shape: Sequence[int],
        over: Sequence[int],
        monoid: Monoid,
        body: Callable[[tuple[Index, ...], tuple[Index, ...]], Expr | tuple[Expr, ...]],
        finish: Callable[..., Expr | tuple[Expr, ...]] | None = None,
    ) -> tuple[Tensor, ...]:
        """Reduces `body(i, r)` over the axes of sizes `over` for each point of `shape`.

        `finish(acc…, *i)` makes the results (default: the accumulators themselves).
        """
        space, inner = axes("i", shape), axes("r", over)
        i = tuple(a.var for a in space)
        values = body(i, tuple(a.var for a in inner))
        step = Reduce("a0", inner, monoid, values if isinstance(values, tuple) else (values,))
        if any(v.dtype is not d for v, d in zip(step.body, monoid.dtypes, strict=True)):
            raise TypeError(f"reduction of {[v.dtype for v in step.body]} with a monoid of {monoid.dtypes}")
        accs = tuple(ex.acc("a0", d, k) for k, d in enumerate(monoid.dtypes))
        if not all(over):
            return self._store_all(space, (), finish, monoid.identity, i)
        return self._store_all(space, (step,), finish, accs, i)

    def contract(
        self,
        shape: Sequence[int],
        over: Sequence[int],
        operands: Callable[[tuple[Index, ...], tuple[Index, ...]], tuple[Expr, Expr]],
        finish: Callable[..., Expr] | None = None,
        dtype: DType | None = None,
    ) -> Tensor:
        """`Σ_r lhs(i, r) · rhs(i, r)` for each point of `shape`, accumulated in `dtype` (default by the operands').

        The result has the operands' type unless `finish(acc, *i)` says otherwise. Without a reduced axis it is a map
        of the product.
        """
        space, inner = axes("i", shape), axes("r", over)
        i = tuple(a.var for a in space)
        lhs, rhs = operands(i, tuple(a.var for a in inner))
        result = (lambda a, *_: ex.cast(a, lhs.dtype)) if finish is None else finish
        steps, total = product_step("a0", inner, lhs, rhs, dtype or accumulator(lhs.dtype))
        return self._store_all(space, steps, result, (total,), i)[0]

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Joins tensors along an axis: one nest with a store per part, which `place-concats` looks for."""
        if any(p.type.length is not None and p.type.length_axis == axis for p in parts):
            raise LengthError("it joins tensors along an axis whose length depends on data")
        shape = list(parts[0].shape)
        shape[axis] = sum(p.shape[axis] for p in parts)
        result = self.tensor(parts[0].dtype, shape)
        stores, offset = [], 0
        for part in parts:
            own = axes("s", part.shape)
            i = tuple(a.var for a in own)
            where = (*i[:axis], i[axis] + offset, *i[axis + 1 :])
            if all(part.shape):
                stores.append(Store(result.name, own, where, part[i]))
            offset += part.shape[axis]
        if stores:
            self.emit((), (), stores)
        return result

    def _store_all(self, space: Any, steps: Any, finish: Any, accs: Any, i: Any) -> tuple[Tensor, ...]:
        made = accs if finish is None else finish(*accs, *i)
        values = made if isinstance(made, tuple) else (made,)
        results = tuple(self.tensor(v.dtype, [a.size for a in space]) for v in values)
        self.emit(space, steps, [Store(t.name, (), i, v) for t, v in zip(results, values, strict=True)])
        return results

    def emit(self, space: tuple[Axis, ...], steps: Sequence[Any], stores: Sequence[Store]) -> None:
        """Appends a nest, unless its space is empty."""
        if all(a.size for a in space):
            if self.has_lengths:
                steps, lengths = mask_steps(self.program, space, steps, stores)
                for name, (length, axis) in lengths.items():
                    self.program.tensors[name] = replace(self.program.tensors[name], length=length, length_axis=axis)
            self.nodes.append(Nest(space, tuple(steps), tuple(stores), self.provenance))

    def append(self, node: Node) -> None:
        self.nodes.append(node)


def _is_one_value(array: np.ndarray[Any, Any]) -> bool:
    """Whether all elements have the same bits; a broadcast of one element is told by its strides."""
    if array.size == 1 or not any(array.strides):
        return True
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, -1)
    return bool((raw == raw[0]).all())


def axes(prefix: str, sizes: Sequence[int]) -> tuple[Axis, ...]:
    """Canonically named axes of the given sizes."""
    return tuple(Axis(f"{prefix}{k}", int(size)) for k, size in enumerate(sizes))


def product_step(
    name: str, over: Sequence[Axis], lhs: Expr, rhs: Expr, dtype: DType
) -> tuple[tuple[Contract | Reduce, ...], Expr]:
    """The step that sums lhs · rhs over axes in `dtype` (none where nothing is left to sum), and its value.

    An axis that does not occur in both operands (one is a constant of one value) makes it a plain reduction.
    """
    if not all(a.size for a in over):
        return (), ex.zero(dtype)
    inner = tuple(a for a in over if a.size != 1)
    if not inner:
        return (), ex.cast(lhs, dtype) * ex.cast(rhs, dtype)
    total = ex.acc(name, dtype)
    if all(a.name in lhs.free and a.name in rhs.free for a in inner):
        return (Contract(name, inner, lhs, rhs, dtype),), total
    return (Reduce(name, inner, sum_of(dtype), (ex.cast(lhs, dtype) * ex.cast(rhs, dtype),)),), total


def accumulator(dtype: DType) -> DType:
    """The type that sums of products of a type are accumulated in."""
    if dtype in (F16, BF16):
        return F32
    return I32 if dtype in (I8, U8) else dtype


def _monoid(identity: Any, dtype: DType, op: str) -> Monoid:
    return Monoid((ex.const(identity, dtype),), (ex.op(op, ex.leaf("a", dtype), ex.leaf("b", dtype)),))


def sum_of(dtype: DType) -> Monoid:
    return _monoid(0, dtype, "add")


def product_of(dtype: DType) -> Monoid:
    return _monoid(1, dtype, "mul")


def max_of(dtype: DType) -> Monoid:
    return _monoid(lowest(dtype), dtype, "or" if dtype is BOOL else "max")


def min_of(dtype: DType) -> Monoid:
    return _monoid(highest(dtype), dtype, "and" if dtype is BOOL else "min")


def any_of() -> Monoid:
    return _monoid(False, BOOL, "or")


def lowest(dtype: DType) -> Any:
    """The identity of max: -inf of a float, the smallest integer."""
    return -np.inf if dtype.is_float else bool(0) if dtype is BOOL else dtype.lo


def highest(dtype: DType) -> Any:
    """The identity of min: +inf of a float, the largest integer."""
    return np.inf if dtype.is_float else bool(1) if dtype is BOOL else dtype.hi


def arg_best(dtype: DType, largest: bool, last: bool = False, size: int = 0) -> Monoid:
    """Monoid of (value, position as i32): the best value, ties to the first or the last position.

    NaN is better than any number, whichever end is sought, as in NumPy.
    """
    av, bv = ex.leaf("a", dtype, 0), ex.leaf("b", dtype, 0)
    ai, bi = ex.leaf("a", I32, 1), ex.leaf("b", I32, 1)
    better = bv > av if largest else bv < av
    nearer = bi > ai if last else bi < ai
    tied = bv.equals(av)
    if dtype.is_float:
        a_nan, b_nan = ex.op("isnan", av), ex.op("isnan", bv)
        better, tied = better | (b_nan & ~a_nan), tied | (a_nan & b_nan)
    take = better | (tied & nearer)
    worst = ex.const(lowest(dtype) if largest else highest(dtype), dtype)
    nowhere = ex.const(-1 if last else (size or 0x7FFFFFFF), I32)
    return Monoid((worst, nowhere), (ex.select(take, bv, av), ex.select(take, bi, ai)))


def compute_type(dtype: DType) -> DType:
    """The type that an elementwise chain of a type computes in."""
    return F32 if dtype in (F16, BF16) else dtype
