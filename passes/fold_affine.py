"""fold-affine (L1): chains of multiplications and additions by constants become one of each.

`((x · a + b) · c + d)`, the batch normalisation and scale of many convolutional networks, is `x · (a·c) + (b·c + d)`,
whose factors are computed at compile time. Besides the arithmetic it saves bindings, which is what stops such maps from
fusing into their neighbours. Only chains with constants of several elements are rewritten: with single numbers nothing
is gained, and masks that add and subtract the largest finite number keep their exact form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.program import Nest, Program
from onnx2wgsl.ir.rewrite import Rewriter

from .base import Pass, PassResult
from .pack_constants import Packer


@dataclass(frozen=True)
class FoldAffine(Pass[Program, Program]):
    """`most` bounds the elements of a computed constant; no kernel comes to bind more than `storage_slots` buffers."""

    most: int = 65536
    storage_slots: int = 8
    name: ClassVar[str] = "fold-affine"

    def run(self, program: Program) -> PassResult[Program]:
        packer = Packer(program, self.most, 1)
        folder = _Affine(packer.is_constant)
        nodes = []
        for node in program.nodes:
            made = folder.node(node)
            if isinstance(made, Nest) and made != node:
                steps = tuple(packer.step(made, s) for s in made.steps)
                made = replace(made, steps=steps, stores=tuple(packer.store(made, s) for s in made.stores))
                made = made if packer.slots(made) <= max(packer.slots(node), self.storage_slots) else node
            nodes.append(made)
        result = replace(program, tensors=packer.tensors, constants=packer.constants).with_nodes(nodes)
        return PassResult(result, folder.chains > 0, {"chains": folder.chains})


@dataclass(frozen=True)
class _Chain:
    """x · factor + offset; `links` counts the operators that it stands for."""

    x: Expr
    factor: Expr
    offset: Expr
    links: int

    @property
    def value(self) -> Expr:
        return self.x * self.factor + self.offset


class _Affine(Rewriter):
    def __init__(self, is_constant: Callable[[Expr], bool]) -> None:
        super().__init__()
        self.is_constant = is_constant
        self.known: dict[bytes, _Chain] = {}
        self.chains = 0

    def visit(self, e: Expr, args: tuple[Expr, ...]) -> Expr:
        if e.op in ("load", "index", "acc", "leaf", "const", "assume"):
            return e
        made = super().visit(e, args)
        chain = self.chain(made)
        if chain is None:
            return made
        self.known[made.key] = chain
        if chain.links < 3 or len(ex.loads(chain.factor, chain.offset)) < 2:
            return made
        self.chains += 1
        self.known[chain.value.key] = chain
        return chain.value

    def chain(self, e: Expr) -> _Chain | None:
        """An expression as one more link of the chain of its operand, where the other operand is constant."""
        if e.op not in ("add", "sub", "mul") or not e.dtype.is_float:
            return None
        left, right = e.args
        if self.is_plain(right):
            inner = self.known.get(left.key) or self.start(left)
            return _Chain(inner.x, *_linked(e.op, inner, right), inner.links + 1)
        if self.is_plain(left):
            inner = self.known.get(right.key) or self.start(right)
            if e.op == "sub":
                return _Chain(inner.x, -inner.factor, left - inner.offset, inner.links + 1)
            return _Chain(inner.x, *_linked(e.op, inner, left), inner.links + 1)
        return None

    def start(self, x: Expr) -> _Chain:
        return _Chain(x, ex.one(x.dtype), ex.zero(x.dtype), 0)

    def is_plain(self, e: Expr) -> bool:
        return e.op == "const" or self.is_constant(e)


def _linked(op: str, chain: _Chain, c: Expr) -> tuple[Expr, Expr]:
    if op == "mul":
        return chain.factor * c, chain.offset * c
    return chain.factor, chain.offset + c if op == "add" else chain.offset - c
