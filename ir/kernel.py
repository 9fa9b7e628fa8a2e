"""L2, kernels: scheduled nests as a small statement tree over scalar expressions.

Expressions are those of `expr.py` without indices: their leaves are constants, `var` (a named value) and `fetch` (an
element of a storage buffer, named by its tensor, or of a workgroup array). Names are canonical, so that kernels that do
the same are equal as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .dtypes import DType
from .expr import Expr, walk
from .program import Port, TensorType


@dataclass(frozen=True)
class Let:
    """An immutable name for a value."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Var:
    """A mutable variable of a thread."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Assign:
    name: str
    value: Expr


@dataclass(frozen=True)
class For:
    """`for (var name = start; name < stop; name += step)`, all i32."""

    name: str
    start: Expr
    stop: Expr
    step: int
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class If:
    condition: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Write:
    """Writes an element of a storage buffer (a tensor's name) or a workgroup array."""

    target: str
    address: Expr
    value: Expr


@dataclass(frozen=True)
class Barrier:
    """All threads of the workgroup meet, and see each other's workgroup memory."""


Stmt = Let | Var | Assign | For | If | Write | Barrier


@dataclass(frozen=True)
class SharedArray:
    """An array in workgroup memory: `count` elements of a type."""

    name: str
    dtype: DType
    count: int


@dataclass(frozen=True)
class Kernel:
    """One schedule of a nest: workgroup size and grid (x, y, z), workgroup memory, statements.

    `uniforms` are fields (name, value) of type i32; `prefer` says which adapters the schedule is for; `schedule`
    describes it for people.
    """

    schedule: str
    workgroup_size: tuple[int, int, int]
    grid: tuple[int, int, int]
    body: tuple[Stmt, ...]
    shared: tuple[SharedArray, ...] = ()
    prefer: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class KernelStep:
    """One dispatch: its schedules in order of preference, the tensors that it reads and writes, per-dispatch uniforms.

    `rename` maps the tensor names in the kernels' text to the tensors bound in this dispatch.
    """

    variants: tuple[Kernel, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    uniforms: tuple[tuple[str, int], ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    stencil: bool = False

    def bound(self, name: str) -> str:
        return self.rename.get(name, name)


@dataclass
class KernelProgram:
    """A list of dispatches over tensors."""

    tensors: dict[str, TensorType]
    constants: dict[str, object]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    steps: tuple[KernelStep, ...]


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements, those of nested bodies included."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, (For, If)):
            yield from statements(stmt.body)


def roots(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions of one statement, without those of its body."""
    match stmt:
        case Let() | Var() | Assign():
            return (stmt.value,)
        case For():
            return (stmt.start, stmt.stop)
        case If():
            return (stmt.condition,)
        case Write():
            return (stmt.address, stmt.value)
    return ()


def expressions(body: Iterable[Stmt]) -> Iterator[Expr]:
    """Every distinct expression node of each statement."""
    for stmt in statements(body):
        yield from walk(*roots(stmt))


def accessed(kernel: Kernel) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The buffers that a kernel reads and writes, in order of first use, workgroup arrays left out."""
    local = {a.name for a in kernel.shared}
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for stmt in statements(kernel.body):
        for e in walk(*roots(stmt)):
            if e.op == "fetch" and e.attr not in local:
                reads[e.attr] = None
        if isinstance(stmt, Write) and stmt.target not in local:
            writes[stmt.target] = None
    return tuple(reads), tuple(writes)
