"""Index algebra: affine sums with floor division and modulo, normalised on construction.

An `Index` is `const + Σ coefficient · atom`. Atoms are loop variables, floor quotients and remainders of indices by
positive constants, values that come from data, and parameters of a run. Every atom has an inclusive value range, and
division and modulo are simplified by ranges and divisibility, so that chains of reshapes, transposes and slices
cancel out. Division rounds to minus infinity, and the remainder has the sign of the divisor (which is positive).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from math import gcd
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from .expr import Expr


def digest(*parts: Any) -> bytes:
    """A structural fingerprint that does not depend on the process."""
    text = b"\0".join([part if type(part) is bytes else repr(part).encode() for part in parts])
    return hashlib.blake2b(text, digest_size=12).digest()


class Atom:
    """Base of the indivisible parts of an index; `lo` and `hi` bound its value, inclusively."""

    __slots__ = ("free", "hi", "key", "lo")
    lo: int
    hi: int
    key: bytes
    free: frozenset[str]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)


class Var(Atom):
    """A loop axis that runs from 0 to size - 1."""

    __slots__ = ("name", "size")

    def __init__(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self.lo, self.hi = 0, max(size - 1, 0)
        self.key = digest("var", name, size)
        self.free = frozenset((name,))

    def __repr__(self) -> str:
        return self.name


class Div(Atom):
    """Floor quotient of an index by a positive constant."""

    __slots__ = ("den", "num")

    def __init__(self, num: Index, den: int) -> None:
        self.num, self.den = num, den
        self.lo, self.hi = num.lo // den, num.hi // den
        self.key = digest("div", num.key, den)
        self.free = num.free

    def __repr__(self) -> str:
        return f"({self.num} / {self.den})"


class Mod(Atom):
    """Remainder of an index by a positive constant, in [0, constant)."""

    __slots__ = ("den", "num")

    def __init__(self, num: Index, den: int) -> None:
        self.num, self.den = num, den
        self.lo, self.hi = 0, den - 1
        self.key = digest("mod", num.key, den)
        self.free = num.free

    def __repr__(self) -> str:
        return f"({self.num} % {self.den})"


class Value(Atom):
    """An index that comes from data: an integer expression whose value lies in [lo, hi]."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr, lo: int, hi: int) -> None:
        self.expr, self.lo, self.hi = expr, lo, hi
        self.key = digest("value", expr.key, lo, hi)
        self.free = expr.free

    def __repr__(self) -> str:
        return f"value({self.expr!r}, {self.lo}, {self.hi})"


class Param(Atom):
    """A value that changes between runs or steps of a scan: a position, a valid length."""

    __slots__ = ("name",)

    def __init__(self, name: str, lo: int, hi: int) -> None:
        self.name, self.lo, self.hi = name, lo, hi
        self.key = digest("param", name, lo, hi)
        self.free = frozenset()

    def __repr__(self) -> str:
        return f"param({self.name}, {self.lo}, {self.hi})"


IndexLike = Union["Index", Atom, int]


_NOTHING: frozenset[str] = frozenset()


def _order_of_term(term: tuple[Atom, int]) -> tuple[int, Any]:
    atom = term[0]
    return (0, atom.name) if isinstance(atom, Var) else (1, atom.key)


class Index:
    """An affine sum over atoms; immutable, normalised, hashable. `lo` and `hi` bound its value, inclusively.

    Fingerprint and free variables are computed when they are first asked for: most indices are steps on the way to one
    that is kept.
    """

    __slots__ = ("_free", "_key", "const", "hi", "lo", "terms")
    const: int
    terms: tuple[tuple[Atom, int], ...]
    _key: bytes | None
    _free: frozenset[str] | None

    def __init__(self, terms: Mapping[Atom, int], const: int) -> None:
        kept = []
        lo = hi = 0
        for atom, c in terms.items():
            if not c:
                continue
            low, high = atom.lo * c, atom.hi * c
            if low == high:
                const += low
                continue
            kept.append((atom, c))
            lo += min(low, high)
            hi += max(low, high)
        if len(kept) > 1:
            kept.sort(key=_order_of_term)
        self.terms, self.const, self.lo, self.hi = tuple(kept), const, const + lo, const + hi
        self._key = self._free = None

    @property
    def key(self) -> bytes:
        """A structural fingerprint."""
        if self._key is None:
            self._key = digest("index", self.const, *(part for a, c in self.terms for part in (a.key, c)))
        return self._key

    @property
    def free(self) -> frozenset[str]:
        """The loop variables that the index depends on."""
        if self._free is None:
            self._free = frozenset().union(*(a.free for a, _ in self.terms)) if self.terms else _NOTHING
        return self._free

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Index) and self.const == other.const and self.terms == other.terms)

    def __hash__(self) -> int:
        return hash((self.const, self.terms))

    def __repr__(self) -> str:
        parts = [f"{a!r}" if c == 1 else f"{c}*{a!r}" for a, c in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)

    @property
    def is_const(self) -> bool:
        return not self.terms

    @property
    def as_var(self) -> Var | None:
        """The variable, where the index is nothing else."""
        if self.const == 0 and len(self.terms) == 1 and self.terms[0][1] == 1 and isinstance(self.terms[0][0], Var):
            return self.terms[0][0]
        return None

    def coefficient(self, name: str) -> int:
        """The factor of a loop variable outside of any division or remainder."""
        return next((c for a, c in self.terms if isinstance(a, Var) and a.name == name), 0)

    def __add__(self, other: IndexLike) -> Index:
        if isinstance(other, int):
            return self if other == 0 else Index(dict(self.terms), self.const + other)
        right = index(other)
        if not right.terms:
            return self + right.const
        terms = dict(self.terms)
        for atom, c in right.terms:
            terms[atom] = terms.get(atom, 0) + c
        return Index(_recombine(terms), self.const + right.const)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: IndexLike) -> Index:
        return self + index(other) * -1

    def __rsub__(self, other: IndexLike) -> Index:
        return index(other) - self

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        if not self.terms:
            return constant(self.const * factor)
        return Index({a: c * factor for a, c in self.terms}, self.const * factor)

    __rmul__ = __mul__

    def __floordiv__(self, den: int) -> Index:
        return _floordiv(self, den)

    def __mod__(self, den: int) -> Index:
        return _mod(self, den)

    def substitute(self, env: Mapping[str, Index], memo: dict[Any, Any] | None = None) -> Index:
        """Replaces loop variables by indices, all at once."""
        if not any(name in env for name in self.free):
            return self
        memo = {} if memo is None else memo
        found: Index | None = memo.get(self)
        if found is not None:
            return found
        result = constant(self.const)
        for atom, c in self.terms:
            result = result + _substitute_atom(atom, env, memo) * c
        memo[self] = result
        return result


def _substitute_atom(atom: Atom, env: Mapping[str, Index], memo: dict[Any, Any]) -> Index:
    match atom:
        case Var():
            return env.get(atom.name) or index(atom)
        case Div():
            return atom.num.substitute(env, memo) // atom.den
        case Mod():
            return atom.num.substitute(env, memo) % atom.den
        case Value():
            return value_index(atom.expr.substitute(env, memo), atom.lo, atom.hi)
        case _:
            return index(atom)


def value_index(expr: Expr, lo: int, hi: int) -> Index:
    """An index whose value is an integer expression known to lie in [lo, hi]; plain where the expression is."""
    if expr.op == "const":
        return constant(int(expr.attr))
    if expr.op == "index" and lo <= expr.index[0].lo and expr.index[0].hi <= hi:
        return expr.index[0]
    return index(Value(expr, lo, hi))


def index(value: IndexLike) -> Index:
    """Converts an integer or an atom to an index."""
    if isinstance(value, Index):
        return value
    if isinstance(value, Atom):
        return Index({value: 1}, 0)
    return constant(int(value))


_CONSTANTS: dict[int, Index] = {}


def constant(value: int) -> Index:
    found = _CONSTANTS.get(value)
    if found is None:
        found = _CONSTANTS.setdefault(value, Index({}, value))
    return found


def var(name: str, size: int) -> Index:
    """The loop variable `name` of the range [0, size) as an index (the constant 0 where size is 1)."""
    return index(Var(name, size))


def _recombine(terms: dict[Atom, int]) -> dict[Atom, int]:
    """Rewrites `k·c·(x / c) + k·(x % c)` as `k·x`, until nothing changes."""
    changed = any(isinstance(atom, Mod) for atom in terms)
    while changed:
        changed = False
        for atom, k in list(terms.items()):
            if not isinstance(atom, Mod) or not k:
                continue
            whole = _quotient_atom(atom)
            if whole is None or terms.get(whole, 0) != k * atom.den:
                continue
            del terms[atom], terms[whole]
            for a, c in atom.num.terms:
                terms[a] = terms.get(a, 0) + k * c
            if atom.num.const:
                terms[_Constant(atom.num.const)] = k
            changed = True
            break
    return terms


class _Constant(Atom):
    """A constant on its way through `_recombine`; `Index` folds it at once, since its range is one value."""

    __slots__ = ()

    def __init__(self, value: int) -> None:
        self.lo = self.hi = value
        self.key = digest("constant", value)
        self.free = frozenset()


def _quotient_atom(rest: Mod) -> Atom | None:
    """The atom that equals `rest.num / rest.den` as floor division would build it."""
    quotient = rest.num // rest.den
    if quotient.const == 0 and len(quotient.terms) == 1 and quotient.terms[0][1] == 1:
        return quotient.terms[0][0]
    return None


def _split(x: Index, den: int) -> tuple[Index, Index]:
    """x = den · quotient + rest, moving terms that are multiples of den, and whole multiples in the constant.

    A coefficient is never cut in two: quotient and remainder of one number must keep one numerator to cancel out.
    """
    quotient = {atom: c // den for atom, c in x.terms if c % den == 0}
    rest = {atom: c for atom, c in x.terms if c % den}
    return Index(quotient, x.const // den), Index(rest, x.const % den)


def _coarse(x: Index, den: int) -> tuple[int, Index, Index] | None:
    """Finds g > 1 dividing den with x = g · y + r and 0 <= r < g; then only y decides the quotient by den."""
    for g in sorted({gcd(c, den) for _, c in x.terms} - {1}, reverse=True):
        small = Index({a: c for a, c in x.terms if c % g}, x.const % g)
        if small.lo >= 0 and small.hi < g:
            return g, Index({a: c // g for a, c in x.terms if c % g == 0}, x.const // g), small
    return None


def _floordiv(x: Index, den: int) -> Index:
    if den <= 0:
        raise ValueError(f"index division needs a positive divisor, got {den}")
    if den == 1:
        return x
    if x.lo // den == x.hi // den:
        return constant(x.lo // den)
    quotient, rest = _split(x, den)
    if rest.lo // den == rest.hi // den:
        return quotient + rest.lo // den
    coarse = _coarse(rest, den)
    if coarse is not None:
        return quotient + coarse[1] // (den // coarse[0])
    if rest.const == 0 and len(rest.terms) == 1 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Div):
            return quotient + atom.num // (atom.den * den)
        if isinstance(atom, Mod) and atom.den % den == 0:
            return quotient + (atom.num // den) % (atom.den // den)
    return quotient + Index({Div(rest, den): 1}, 0)


def _mod(x: Index, den: int) -> Index:
    if den <= 0:
        raise ValueError(f"index remainder needs a positive divisor, got {den}")
    if den == 1:
        return constant(0)
    if x.lo // den == x.hi // den:
        return x - x.lo // den * den
    _, rest = _split(x, den)
    for atom, c in rest.terms:
        if isinstance(atom, Mod) and c * atom.den % den == 0:
            return (rest + (atom.num - index(atom)) * c) % den
    if rest.lo // den == rest.hi // den:
        return rest - rest.lo // den * den
    coarse = _coarse(rest, den)
    if coarse is not None:
        g, y, small = coarse
        return (y % (den // g)) * g + small
    return Index({Mod(rest, den): 1}, 0)


def flatten(indices: Iterable[IndexLike], shape: Iterable[int]) -> Index:
    """The row-major position of a multi-index in a tensor of the given shape."""
    result = constant(0)
    for i, size in zip(indices, shape, strict=True):
        result = result * size + index(i)
    return result


def unflatten(position: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    """The multi-index of a row-major position that lies inside a tensor of the given shape."""
    result: list[Index] = []
    for axis, size in enumerate(shape):
        step = 1
        for later in shape[axis + 1 :]:
            step *= later
        quotient = position // step if step else constant(0)
        result.append(quotient % size if axis and size else quotient)
    return tuple(result)
