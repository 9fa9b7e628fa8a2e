"""L1, the tensor program: SSA over static-shaped tensors; all data, no closures.

Almost everything is one record, the loop nest. Its `space` is a set of parallel axes; `steps` are reductions and
contractions over further axes, in order, each visible to later expressions as `acc(name)`; `stores` write tensors,
each over the space and axes of its own. A program never flattens an index: loads and stores keep one per dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from . import index as ix
from .dtypes import DType
from .expr import Expr, loads
from .index import Index


class Axis(NamedTuple):
    """A loop axis over [0, size)."""

    name: str
    size: int

    @property
    def var(self) -> Index:
        return ix.var(self.name, self.size)


@dataclass(frozen=True)
class Place:
    """Where a tensor lives inside another: at `offset` along `axis` of `parent`."""

    parent: str
    axis: int
    offset: int


@dataclass(frozen=True)
class TensorType:
    """Type of a tensor: dtype and static shape; `length` names a scalar i32 tensor: the valid part of `length_axis`."""

    dtype: DType
    shape: tuple[int, ...]
    length: str | None = None
    place: Place | None = None
    length_axis: int = 0

    @property
    def count(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Monoid:
    """Tuple state with identities and a combine expression per component over the leaves `a.i` and `b.i`."""

    identity: tuple[Expr, ...]
    combine: tuple[Expr, ...]

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return tuple(e.dtype for e in self.identity)


@dataclass(frozen=True)
class Reduce:
    """Reduces `body` (one expression per component) over `axes` with a monoid."""

    name: str
    axes: tuple[Axis, ...]
    monoid: Monoid
    body: tuple[Expr, ...]

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return self.monoid.dtypes

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return self.body


@dataclass(frozen=True)
class Contract:
    """Sum over `axes` of lhs · rhs, accumulated in `dtype`; every axis occurs in both operands."""

    name: str
    axes: tuple[Axis, ...]
    lhs: Expr
    rhs: Expr
    dtype: DType

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return (self.dtype,)

    @property
    def exprs(self) -> tuple[Expr, ...]:
        return (self.lhs, self.rhs)


Step = Reduce | Contract


@dataclass(frozen=True)
class Store:
    """Writes `value` to `tensor[index]` for every point of the nest's space and of `axes`.

    `domain` restricts space axes by name to half-open intervals; without it the store covers the whole space.
    """

    tensor: str
    axes: tuple[Axis, ...]
    index: tuple[Index, ...]
    value: Expr
    domain: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class Nest:
    """The loop nest. `nodes` are the ONNX nodes that it implements."""

    space: tuple[Axis, ...]
    steps: tuple[Step, ...]
    stores: tuple[Store, ...]
    nodes: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return unique(e.attr for e in loads(*nest_exprs(self)))

    @property
    def writes(self) -> tuple[str, ...]:
        return unique(s.tensor for s in self.stores)


@dataclass(frozen=True)
class Carried:
    """A loop-carried tensor: starts as `init`, is read in the body as `arg`, written by the body as `next`."""

    init: str
    arg: str
    next: str
    result: str


@dataclass(frozen=True)
class Stacked:
    """A per-step value of the body, written to `result` at position `index` (an index over `step`) along `axis`."""

    value: str
    result: str
    axis: int
    index: Index


@dataclass(frozen=True)
class Scan:
    """A sequential loop of `trip` steps over a nested list of nodes, which reads `Param(step)` in indices.

    `cond` names a bool scalar tensor of the body that ends the loop early; results then keep their last values.
    """

    step: str
    trip: int
    carried: tuple[Carried, ...]
    stacked: tuple[Stacked, ...]
    body: tuple[Node, ...]
    cond: str | None = None
    nodes: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        inner = {w for n in self.body for w in n.writes} | {c.arg for c in self.carried}
        outer = [r for n in self.body for r in n.reads if r not in inner]
        later = [c.next for c in self.carried if c.next not in inner] + [
            s.value for s in self.stacked if s.value not in inner
        ]
        return unique([*(c.init for c in self.carried), *outer, *later])

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(c.result for c in self.carried) + tuple(s.result for s in self.stacked)


@dataclass(frozen=True)
class Guard:
    """Runs `body` where the bool scalar `flag` holds, else `otherwise`; `results` pick (result, then, else) tensors."""

    flag: str
    body: tuple[Node, ...]
    otherwise: tuple[Node, ...]
    results: tuple[tuple[str, str, str], ...]
    nodes: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        inner = {w for n in (*self.body, *self.otherwise) for w in n.writes}
        used = [r for n in (*self.body, *self.otherwise) for r in n.reads] + [
            t for _, a, b in self.results for t in (a, b)
        ]
        return unique([self.flag, *(r for r in used if r not in inner)])

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(r for r, _, _ in self.results)


@dataclass(frozen=True)
class Attention:
    """softmax(score(q·k)) · v per row of `space`, then `output` of it.

    `space` are the batch and query axes, `key` the axis that is normalised over, `inner` the axis of the first product,
    `value_axis` the free axis of v. `score` reads the product as acc("qk"), `output` reads the result as acc("pv").
    """

    space: tuple[Axis, ...]
    key: Axis
    inner: Axis
    value_axis: Axis
    q: Expr
    k: Expr
    v: Expr
    score: Expr
    store: Store
    nodes: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        return unique(e.attr for e in loads(self.q, self.k, self.v, self.score, self.store.value))

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.store.tensor,)


@dataclass(frozen=True)
class Opaque:
    """What has no closed form: a named template with parameters, expressions over declared leaves, reads and writes."""

    template: str
    params: tuple[tuple[str, Any], ...]
    exprs: tuple[tuple[str, Expr], ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    nodes: tuple[str, ...] = ()

    def param(self, name: str) -> Any:
        return dict(self.params)[name]


Node = Nest | Scan | Guard | Attention | Opaque


class Port(NamedTuple):
    """A graph input or output: its ONNX name and the tensor that holds it."""

    name: str
    tensor: str


@dataclass
class Program:
    """A tensor program; `constants` hold the values of tensors that no node writes and that are not inputs."""

    tensors: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    nodes: tuple[Node, ...] = ()

    def with_nodes(self, nodes: Iterable[Node]) -> Program:
        """The same program with other nodes, and without the tensors and constants that nothing uses any more."""
        kept = tuple(nodes)
        used = {p.tensor for p in (*self.inputs, *self.outputs)}
        for node in all_nodes(kept):
            used.update(node.reads, node.writes)
            if isinstance(node, Scan):
                used.update(t for c in node.carried for t in (c.init, c.arg, c.next, c.result))
                used.update(s.value for s in node.stacked)
                used.update([node.cond] if node.cond else [])
        for name in list(used):
            used.update(_supports(self.tensors, name))
        return replace(
            self,
            nodes=kept,
            tensors={n: t for n, t in self.tensors.items() if n in used},
            constants={n: v for n, v in self.constants.items() if n in used},
        )


def _supports(tensors: dict[str, TensorType], name: str) -> Iterator[str]:
    """Parents and lengths that a tensor's type refers to."""
    t = tensors[name]
    if t.length is not None:
        yield t.length
    while t.place is not None:
        yield t.place.parent
        t = tensors[t.place.parent]


def all_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes and, depth first, those of nested bodies."""
    for node in nodes:
        yield node
        if isinstance(node, Scan):
            yield from all_nodes(node.body)
        elif isinstance(node, Guard):
            yield from all_nodes((*node.body, *node.otherwise))


def nest_exprs(nest: Nest) -> tuple[Expr, ...]:
    """All root expressions of a nest, those inside of store indices included."""
    from .expr import index_exprs

    roots = [e for s in nest.steps for e in s.exprs] + [s.value for s in nest.stores]
    roots += [e for s in nest.stores for i in s.index for e in index_exprs(i)]
    return tuple(roots)


def unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
