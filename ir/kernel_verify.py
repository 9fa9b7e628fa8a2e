"""The verifier of kernel programs (L2).

Names are bound before they are used and once per scope, values have machine types, buffers are declared and only those
that a dispatch writes are written, sizes keep to the limits that every device has, and all threads of a workgroup meet
at each barrier.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from . import expr as ex
from .dtypes import BOOL, F16, F32, F32X2, I32, U32, U32X2, DType, vector
from .expr import Expr
from .expr_verify import VerificationError, mistyped
from .kernel import (
    Assign,
    Barrier,
    For,
    If,
    Kernel,
    KernelProgram,
    KernelStep,
    Let,
    Stmt,
    Var,
    Write,
    roots,
    statements,
)
from .ops import OPS
from .text import print_kernel

MOST_INVOCATIONS = 256
LARGEST_WORKGROUP = (256, 256, 64)
MOST_SHARED_BYTES = 16384
MOST_GROUPS = 65535
_NOT_WORD = re.compile(r"\W")
_MACHINE = (F32, F16, I32, U32, BOOL, U32X2, F32X2)
_ELEMENTS = {vector(m, lanes).name: m for m in _MACHINE for lanes in (2, 3, 4)}
_BUILTINS: Mapping[str, DType] = {
    "lid": U32,
    **{f"wid.{axis}": U32 for axis in "xyz"},
    **{f"gid.{axis}": U32 for axis in "xyz"},
}


def verify_kernels(program: KernelProgram) -> None:
    """Raises VerificationError where a kernel program breaks a rule."""
    seen: set[int] = set()
    for step in program.steps:
        _verify_step(program, step)
        for kernel in step.variants:
            if id(kernel) not in seen:
                seen.add(id(kernel))
                _KernelVerifier(program, step, kernel).run()


def _verify_step(program: KernelProgram, step: KernelStep) -> None:
    text = f"dispatch of {', '.join(step.nodes)}"
    for name in (*step.reads, *step.writes):
        if step.bound(name) not in program.tensors:
            raise VerificationError("a declared tensor", repr(step.bound(name)), text)
    if not step.variants:
        raise VerificationError("at least one kernel", "none", text)


_SCALARS = frozenset(m.name for m in _MACHINE)
_TYPES = _SCALARS | {vector(m, lanes).name for m in _MACHINE for lanes in (2, 3, 4)}


def is_machine(dtype: DType) -> bool:
    """Whether WGSL computes with a type: a machine type or a vector of one."""
    return dtype.name in _TYPES


@dataclass
class _Block:
    """Names by type, which of them can be assigned, and which are equal in all threads of a workgroup."""

    names: dict[str, DType] = field(default_factory=dict)
    mutable: set[str] = field(default_factory=set)
    uniform: set[str] = field(default_factory=set)


class _KernelVerifier:
    def __init__(self, program: KernelProgram, step: KernelStep, kernel: Kernel) -> None:
        self.program, self.step, self.kernel = program, step, kernel
        self.shared = {a.name: a for a in kernel.shared}
        uniforms = {f"u.{re.sub(_NOT_WORD, '_', name)}" for name, _ in step.uniforms}
        known = {**_BUILTINS, **dict.fromkeys(uniforms, I32)}
        self.blocks = [_Block(known, set(), {n for n in known if n.startswith(("u.", "wid."))})]
        self.assigned = {s.name for s in statements(kernel.body) if isinstance(s, Assign)}
        self.typed: set[bytes] = set()
        self.meets = any(isinstance(s, Barrier) for s in statements(kernel.body))

    def fail(self, expected: str, got: str) -> NoReturn:
        raise VerificationError(expected, got, print_kernel(self.kernel))

    def run(self) -> None:
        self.limits()
        self.block(self.kernel.body, _Block(), True)

    def limits(self) -> None:
        size, grid = self.kernel.workgroup_size, self.kernel.grid
        count = size[0] * size[1] * size[2]
        fits = all(1 <= s <= most for s, most in zip(size, LARGEST_WORKGROUP, strict=True))
        if not fits or count > MOST_INVOCATIONS:
            self.fail(f"a workgroup of 1 to {MOST_INVOCATIONS} threads", str(size))
        if min(grid) < 1 or max(grid) > MOST_GROUPS:
            self.fail(f"a grid of 1 to {MOST_GROUPS} groups an axis", str(grid))
        for a in self.kernel.shared:
            if a.count < 1 or not is_machine(a.dtype):
                self.fail("workgroup arrays of machine types", f"{a.name}: {a.dtype}[{a.count}]")
        used = sum(a.count * max(a.dtype.bits, 32) // 8 for a in self.kernel.shared)
        if used > MOST_SHARED_BYTES:
            self.fail(f"at most {MOST_SHARED_BYTES} bytes of workgroup memory", str(used))

    def lookup(self, name: str) -> DType | None:
        """The type of a name; a lane of a vector, as in `v.x`, has the vector's element."""
        found = next((b.names[name] for b in reversed(self.blocks) if name in b.names), None)
        if found is not None or "." not in name:
            return found
        whole = self.lookup(name.rpartition(".")[0])
        return None if whole is None else _ELEMENTS.get(whole.name)

    def bind(self, name: str, dtype: DType, mutable: bool, uniform: bool) -> None:
        block = self.blocks[-1]
        if name in block.names:
            self.fail("names bound once per scope", f"{name} again")
        block.names[name] = dtype
        block.mutable.update([name] if mutable else [])
        block.uniform.update([name] if uniform else [])

    def block(self, body: Iterable[Stmt], block: _Block, converged: bool) -> None:
        self.blocks.append(block)
        for stmt in body:
            self.statement(stmt, converged)
        self.blocks.pop()

    def statement(self, stmt: Stmt, converged: bool) -> None:
        for e in roots(stmt):
            self.expr(e)
        match stmt:
            case Let():
                self.bind(stmt.name, stmt.value.dtype, False, self.is_uniform(stmt.value))
            case Var():
                uniform = stmt.name not in self.assigned and self.is_uniform(stmt.value)
                self.bind(stmt.name, stmt.value.dtype, True, uniform)
            case Assign():
                self.assign(stmt)
            case Write():
                self.write(stmt)
            case For():
                self.loop(stmt, converged)
            case If():
                if stmt.condition.dtype is not BOOL:
                    self.fail("a bool as condition", str(stmt.condition.dtype))
                self.block(stmt.body, _Block(), converged and self.is_uniform(stmt.condition))
            case Barrier():
                if not converged:
                    self.fail("barriers that all threads of a workgroup reach", "one under a condition of a thread")

    def assign(self, stmt: Assign) -> None:
        known = self.lookup(stmt.name)
        if not any(stmt.name in b.mutable for b in self.blocks) or known is not stmt.value.dtype:
            self.fail("an assignment to a variable of its type", f"{stmt.name} = {stmt.value.dtype}")

    def write(self, stmt: Write) -> None:
        if not stmt.address.dtype.is_integer:
            self.fail("an integer as address", str(stmt.address.dtype))
        if stmt.target in self.shared:
            if self.shared[stmt.target].dtype is not stmt.value.dtype:
                self.fail(f"{self.shared[stmt.target].dtype} in {stmt.target}", str(stmt.value.dtype))
        elif stmt.target not in self.step.writes:
            self.fail("a write to a tensor that the dispatch writes", repr(stmt.target))

    def loop(self, stmt: For, converged: bool) -> None:
        if stmt.step < 1 or stmt.start.dtype is not I32 or stmt.stop.dtype is not I32:
            self.fail("a loop over i32 with a positive step", f"{stmt.start.dtype}, {stmt.stop.dtype}, {stmt.step}")
        same = self.is_uniform(stmt.start) and self.is_uniform(stmt.stop)
        inner = _Block({stmt.name: I32}, set(), {stmt.name} if same else set())
        self.block(stmt.body, inner, converged and same)

    def expr(self, root: Expr) -> None:
        stack, seen = [root], set[bytes]()
        while stack:
            e = stack.pop()
            if e.key in seen:
                continue
            seen.add(e.key)
            stack.extend(e.args)
            if e.op == "var":
                if self.lookup(e.attr) is not e.dtype:
                    self.fail(f"{e.attr} to be bound as {e.dtype}", str(self.lookup(e.attr)))
            elif e.key not in self.typed:
                self.typed.add(e.key)
                self.node(e)

    def node(self, e: Expr) -> None:
        if not is_machine(e.dtype):
            self.fail("a machine type", f"{e.dtype} of {e.op}")
        if e.op in ("load", "index", "acc", "leaf", "assume"):
            self.fail("an expression over names and buffers", e.op)
        if e.op == "fetch":
            self.fetch(e)
        elif e.op in OPS and e.dtype.name in _SCALARS and all(a.dtype.name in _SCALARS for a in e.args):
            problem = mistyped(e)
            if problem is not None:
                self.fail(*problem)

    def fetch(self, e: Expr) -> None:
        if not e.args[0].dtype.is_integer:
            self.fail("an integer as address", str(e.args[0].dtype))
        if e.attr in self.shared:
            if self.shared[e.attr].dtype is not e.dtype:
                self.fail(f"{self.shared[e.attr].dtype} from {e.attr}", str(e.dtype))
        elif e.attr not in self.step.reads and e.attr not in self.step.writes:
            self.fail("a fetch from a tensor that the dispatch reads", repr(e.attr))

    def is_uniform(self, root: Expr) -> bool:
        """Whether a value is known to be the same in all threads of a workgroup; asked only where these meet."""
        if not self.meets:
            return False
        for e in ex.walk(root):
            if e.op == "fetch" and e.attr in self.step.writes:
                return False
            if e.op == "var" and not any(e.attr in b.uniform for b in self.blocks):
                return False
        return True
