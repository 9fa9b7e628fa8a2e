"""Ranges of indices under restrictions: intervals of axes, and comparisons of indices that guard a branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from . import expr as ex
from . import index as ix
from .expr import Expr
from .index import Index

Interval = tuple[int, int]
Terms = tuple[tuple[ix.Atom, int], ...]
_MOST_VISITS = 5000


def interval(i: Index, axes: Mapping[str, Interval]) -> Interval:
    """Inclusive bounds of an index where some axes are restricted to (inclusive) intervals."""
    lo = hi = i.const
    for atom, c in i.terms:
        a, b = _atom(atom, axes)
        lo, hi = (lo + c * a, hi + c * b) if c > 0 else (lo + c * b, hi + c * a)
    return lo, hi


def _atom(atom: ix.Atom, axes: Mapping[str, Interval]) -> Interval:
    match atom:
        case ix.Var():
            return axes.get(atom.name, (atom.lo, atom.hi))
        case ix.Div():
            lo, hi = interval(atom.num, axes)
            return lo // atom.den, hi // atom.den
        case ix.Mod():
            lo, hi = interval(atom.num, axes)
            if lo // atom.den == hi // atom.den:
                return lo % atom.den, hi % atom.den
    return atom.lo, atom.hi


@dataclass(frozen=True)
class Facts:
    """What is known where a branch is taken: intervals of axes, and of sums of terms without their constant."""

    axes: Mapping[str, Interval]
    sums: Mapping[Terms, Interval] = field(default_factory=dict)

    def bounds(self, i: Index) -> Interval:
        """Inclusive bounds of an index; lo > hi where the branch is never taken."""
        lo, hi = interval(i, self.axes)
        terms, sign = _normal(i)
        if terms in self.sums:
            a, b = self.sums[terms]
            a, b = (a, b) if sign > 0 else (-b, -a)
            lo, hi = max(lo, a + i.const), min(hi, b + i.const)
        return lo, hi

    def given(self, condition: Expr, holds: bool) -> Facts:
        """The facts where a condition holds, or does not; conditions other than comparisons of indices add nothing."""
        axes, sums = dict(self.axes), dict(self.sums)
        for difference in _differences(condition, holds):
            terms, sign = _normal(difference)
            lo, hi = sums.get(terms, (-(1 << 62), 1 << 62))
            new = (max(lo, -difference.const), hi) if sign > 0 else (lo, min(hi, difference.const))
            sums[terms] = new
            var, c = terms[0]
            if len(terms) == 1 and isinstance(var, ix.Var):
                a, b = axes.get(var.name, (var.lo, var.hi))
                axes[var.name] = (max(a, -(-new[0] // c)), min(b, new[1] // c))
        return Facts(axes, sums)


def _normal(i: Index) -> tuple[Terms, int]:
    """The terms of an index with a positive first factor, and the sign that was taken out."""
    if not i.terms or i.terms[0][1] > 0:
        return i.terms, 1
    return tuple((a, -c) for a, c in i.terms), -1


def _differences(condition: Expr, holds: bool) -> Iterator[Index]:
    """Indices that are not negative where a condition holds (or does not)."""
    if condition.op == "not":
        yield from _differences(condition.args[0], not holds)
    elif condition.op in ("and", "or") and (condition.op == "and") == holds:
        for part in condition.args:
            yield from _differences(part, holds)
    elif condition.op in ("le", "lt", "eq"):
        a, b = (_as_index(x) for x in condition.args)
        if a is None or b is None or (a - b).is_const:
            return
        if condition.op == "eq":
            yield from (b - a, a - b) if holds else ()
            return
        strict = condition.op == "lt"
        yield b - a - strict if holds else a - b - (not strict)


def _as_index(x: Expr) -> Index | None:
    if x.op == "index":
        return x.index[0]
    return ix.constant(int(x.attr)) if x.op == "const" and x.dtype.is_integer else None


def strict_nodes(root: Expr) -> set[bytes]:
    """The nodes that are evaluated whatever branches are taken."""
    seen: set[bytes] = set()
    stack = [root]
    while stack:
        e = stack.pop()
        if e.key not in seen:
            seen.add(e.key)
            stack.extend(e.args[:1] if e.op == "select" else ex.children(e))
    return seen


def guarded_loads(root: Expr, axes: Mapping[str, Interval]) -> Iterator[tuple[Expr, Facts]]:
    """Each load below a root with the facts of each way that leads to it; gives up on very entangled expressions."""
    seen: set[tuple[bytes, int]] = set()
    start = Facts(axes)
    kept = [start]
    stack = [(root, start)]
    while stack and len(seen) < _MOST_VISITS:
        e, facts = stack.pop()
        if (e.key, id(facts)) in seen:
            continue
        seen.add((e.key, id(facts)))
        if e.op == "load":
            yield e, facts
        if e.op != "select":
            stack.extend((c, facts) for c in ex.children(e))
            continue
        branches = [facts.given(e.args[0], True), facts.given(e.args[0], False)]
        kept.extend(branches)
        stack.append((e.args[0], facts))
        stack.extend(zip(e.args[1:], branches, strict=True))
