"""Index algebra against Python's integers."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
import pytest

from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.index import Div, Index, Mod, Var

Point = dict[str, int]


def value(i: Index, point: Point) -> int:
    """What an index is worth at a point, by Python's own floor division."""
    total = i.const
    for atom, factor in i.terms:
        match atom:
            case Var():
                total += factor * point[atom.name]
            case Div():
                total += factor * (value(atom.num, point) // atom.den)
            case Mod():
                total += factor * (value(atom.num, point) % atom.den)
    return total


def random_index(rng: np.random.Generator, variables: list[Index], depth: int) -> tuple[Index, str]:
    """An index made by the algebra, and the same as a Python expression over the variables' names."""
    kind = rng.integers(6) if depth else 0
    if kind == 0:
        k = int(rng.integers(len(variables)))
        return variables[k], f"v{k}"
    left, text = random_index(rng, variables, depth - 1)
    if kind == 1:
        right, other = random_index(rng, variables, depth - 1)
        return left + right, f"({text} + {other})"
    n = int(rng.integers(-7, 8))
    if kind == 2:
        return left + n, f"({text} + {n})"
    if kind == 3:
        return left * n, f"({text} * {n})"
    n = int(rng.choice([1, 2, 3, 4, 5, 6, 8, 12, 16]))
    return (left // n, f"({text} // {n})") if kind == 4 else (left % n, f"({text} % {n})")


@pytest.mark.parametrize("seed", range(400))
def test_arithmetic(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(s) for s in rng.choice([1, 2, 3, 4, 5, 6, 8, 12], 3)]
    variables = [ix.var(f"v{k}", s) for k, s in enumerate(sizes)]
    made, text = random_index(rng, variables, 5)
    code = compile(text, "index", "eval")
    points = list(itertools.product(*(range(s) for s in sizes)))
    for point in points:
        named = {f"v{k}": v for k, v in enumerate(point)}
        expected = eval(code, {}, named)
        assert value(made, named) == expected, (text, made)
        assert made.lo <= expected <= made.hi, (text, made)


@pytest.mark.parametrize("seed", range(300))
def test_substitution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(s) for s in rng.choice([2, 3, 4, 6, 8], 3)]
    variables = [ix.var(f"v{k}", s) for k, s in enumerate(sizes)]
    made, _ = random_index(rng, variables, 4)
    inner = [ix.var(f"w{k}", 24) for k in range(2)]
    # Every variable becomes an index that stays within its range.
    env = {f"v{k}": random_index(rng, inner, 3)[0] % s for k, s in enumerate(sizes)}
    replaced = made.substitute(env)
    for _ in range(40):
        point = {f"w{k}": int(rng.integers(24)) for k in range(2)}
        outer = {name: value(i, point) for name, i in env.items()}
        assert value(replaced, point | outer) == value(made, outer), (made, env, replaced)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (4, 1, 5), (2, 3, 4), (7, 2, 1, 3), ()])
def test_unflatten_undoes_flatten(shape: tuple[int, ...]) -> None:
    variables = tuple(ix.var(f"v{k}", s) for k, s in enumerate(shape))
    assert ix.unflatten(ix.flatten(variables, shape), shape) == variables


@pytest.mark.parametrize("seed", range(60))
def test_reshapes_cancel(seed: int) -> None:
    """A chain of reshapes that returns to its first shape is the identity, without any division left."""
    rng = np.random.default_rng(seed)
    primes = [int(p) for p in rng.choice([2, 2, 3, 5], 4)]

    def grouped() -> tuple[int, ...]:
        cuts = sorted(rng.choice(range(1, 4), int(rng.integers(0, 4)), replace=False).tolist())
        return tuple(prod(primes[a:b]) for a, b in zip([0, *cuts], [*cuts, 4], strict=True))

    first = grouped()
    variables = tuple(ix.var(f"v{k}", s) for k, s in enumerate(first))
    current, shape = variables, first
    for _ in range(4):
        following = grouped()
        current = ix.unflatten(ix.flatten(current, shape), following)
        shape = following
    assert ix.unflatten(ix.flatten(current, shape), first) == variables


def test_splits_of_transposes_are_affine() -> None:
    """The heads of attention: reshape, transpose, reshape back leaves no division where sizes divide."""
    b, s, h = ix.var("b", 2), ix.var("s", 5), ix.var("h", 12)
    head, inner = h // 4, h % 4
    assert head * 4 + inner == h
    assert ix.unflatten(ix.flatten((b, s, head, inner), (2, 5, 3, 4)), (2, 5, 12)) == (b, s, h)


def test_division_needs_a_positive_divisor() -> None:
    with pytest.raises(ValueError, match="index division needs a positive divisor, got 0"):
        ix.var("v", 4) // 0
    with pytest.raises(ValueError, match="index remainder needs a positive divisor, got -2"):
        ix.var("v", 4) % -2


def test_sizes_of_one_are_constants() -> None:
    assert ix.var("v", 1) == ix.constant(0)
    assert (ix.var("v", 8) // 8) == ix.constant(0)
    assert (ix.var("v", 8) % 8) == ix.var("v", 8)
