"""Inverting index maps: permutations, reshapes, and every mixture of the two.

An index map sends loop axes to the dimensions of a tensor. It is inverted by digits: each dimension's index must be a
mixed-radix sum of digits, a digit being `(v / a) % b` of one axis v; and the digits of each axis must cover it. The
inverse is then one mixed-radix sum per axis, over digits of the dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from . import index as ix
from .index import Index
from .program import Axis


class Digit(NamedTuple):
    """`(axis / step) % size`."""

    axis: str
    step: int
    size: int


def as_digit(atom: ix.Atom, sizes: Mapping[str, int]) -> Digit | None:
    """An atom as a digit of one axis, or None."""
    match atom:
        case ix.Var():
            return Digit(atom.name, 1, sizes[atom.name]) if atom.name in sizes else None
        case ix.Div():
            inner = atom.num.as_var
            if inner is None or inner.name not in sizes or sizes[inner.name] % atom.den:
                return None
            return Digit(inner.name, atom.den, sizes[inner.name] // atom.den)
        case ix.Mod():
            if (inner := atom.num.as_var) is not None and inner.name in sizes and sizes[inner.name] % atom.den == 0:
                return Digit(inner.name, 1, atom.den)
            if len(atom.num.terms) == 1 and atom.num.const == 0 and atom.num.terms[0][1] == 1:
                outer = as_digit(atom.num.terms[0][0], sizes)
                if outer is not None and outer.size % atom.den == 0:
                    return Digit(outer.axis, outer.step, atom.den)
    return None


def invert(indices: Sequence[Index], shape: Sequence[int], axes: Sequence[Axis]) -> dict[str, Index] | None:
    """For the map axes → indices onto the whole of `shape`: each axis as an index over variables d0, d1, … (the
    dimensions), or None where the map is not seen to be a bijection."""
    sizes = {a.name: a.size for a in axes if a.size > 1}
    if _product(shape) != _product(a.size for a in axes):
        return None
    parts: dict[str, dict[int, tuple[int, Index]]] = {name: {} for name in sizes}
    for k, (i, size) in enumerate(zip(indices, shape, strict=True)):
        if i.const:
            return None
        position = ix.var(f"d{k}", size)
        step = 1
        for atom, c in sorted(i.terms, key=lambda term: term[1]):
            digit = as_digit(atom, sizes)
            if digit is None or c != step or digit.step in parts[digit.axis]:
                return None
            value = position // step
            step *= digit.size
            parts[digit.axis][digit.step] = (digit.size, value % digit.size if step < size else value)
        if step != size and not (step == 1 and size == 1):
            return None
    result: dict[str, Index] = {a.name: ix.constant(0) for a in axes}
    for name, digits in parts.items():
        step, total = 1, ix.constant(0)
        for at in sorted(digits):
            if at != step:
                return None
            size, value = digits[at]
            total = total + value * step
            step *= size
        if step != sizes[name]:
            return None
        result[name] = total
    return result


def _product(sizes: Iterable[int]) -> int:
    n = 1
    for size in sizes:
        n *= size
    return n


def at_dimensions(inverse: Mapping[str, Index], indices: Sequence[Index]) -> dict[str, Index]:
    """An inverse with its dimension variables replaced by indices."""
    env = {f"d{k}": i for k, i in enumerate(indices)}
    memo: dict[object, Index] = {}
    return {name: i.substitute(env, memo) for name, i in inverse.items()}
