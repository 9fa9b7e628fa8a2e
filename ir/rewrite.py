"""Rewriting every expression of a program: what the passes that change types share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from . import expr as ex
from . import index as ix
from .expr import Expr
from .index import Index
from .program import Attention, Contract, Guard, Monoid, Nest, Node, Opaque, Reduce, Scan, Step, Store

ExprMap = Callable[[Expr], Expr]


class Rewriter:
    """Maps expressions bottom-up with one memo; subclasses override `visit`, which sees operands already mapped.

    An index that comes from data is mapped by `as_index`, so that a pass may treat it unlike a value.
    """

    def __init__(self) -> None:
        self.memo: dict[bytes, Expr] = {}

    def visit(self, e: Expr, args: tuple[Expr, ...]) -> Expr:
        """The replacement of a node, given its mapped operands."""
        match e.op:
            case "load":
                return self.load(e)
            case "index":
                return ex.index_value(self.index(e.index[0]), e.dtype)
            case "assume":
                return ex.assume(args[0], *e.attr)
        return e if args == e.args else ex.apply(e.op, args, e.dtype)

    def load(self, e: Expr) -> Expr:
        """The replacement of a load."""
        return ex.load(e.attr, e.dtype, self.indices(e.index))

    def as_index(self, e: Expr) -> Expr:
        """The replacement of an expression that is used as an index."""
        return self(e)

    def __call__(self, root: Expr) -> Expr:
        stack = [root]
        while stack:
            e = stack[-1]
            if e.key in self.memo:
                stack.pop()
                continue
            pending = [a for a in e.args if a.key not in self.memo]
            if pending:
                stack.extend(pending)
                continue
            self.memo[e.key] = self.visit(e, tuple(self.memo[a.key] for a in e.args))
            stack.pop()
        return self.memo[root.key]

    def index(self, i: Index) -> Index:
        """An index with its data-dependent values mapped."""
        if not any(True for _ in ex.index_exprs(i)):
            return i
        result = ix.constant(i.const)
        for atom, c in i.terms:
            match atom:
                case ix.Value():
                    part = ix.value_index(self.as_index(atom.expr), atom.lo, atom.hi)
                case ix.Div():
                    part = self.index(atom.num) // atom.den
                case ix.Mod():
                    part = self.index(atom.num) % atom.den
                case _:
                    part = ix.index(atom)
            result = result + part * c
        return result

    def indices(self, indices: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(self.index(i) for i in indices)

    def step(self, step: Step) -> Step:
        if isinstance(step, Contract):
            return replace(step, lhs=self(step.lhs), rhs=self(step.rhs))
        monoid = Monoid(tuple(self(e) for e in step.monoid.identity), tuple(self(e) for e in step.monoid.combine))
        return Reduce(step.name, step.axes, monoid, tuple(self(e) for e in step.body))

    def store(self, store: Store) -> Store:
        return replace(store, index=self.indices(store.index), value=self(store.value))

    def node(self, node: Node) -> Node:
        match node:
            case Nest():
                steps = tuple(self.step(s) for s in node.steps)
                return replace(node, steps=steps, stores=tuple(self.store(s) for s in node.stores))
            case Scan():
                return replace(node, body=tuple(self.node(n) for n in node.body))
            case Guard():
                body = tuple(self.node(n) for n in node.body)
                return replace(node, body=body, otherwise=tuple(self.node(n) for n in node.otherwise))
            case Attention():
                q, k, v, score = (self(e) for e in (node.q, node.k, node.v, node.score))
                return replace(node, q=q, k=k, v=v, score=score, store=self.store(node.store))
            case Opaque():
                return replace(node, exprs=tuple((n, self(e)) for n, e in node.exprs))
