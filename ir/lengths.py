"""Axes whose length depends on data: how a length passes from the tensors a nest reads to those it writes.

A tensor whose type names a length holds unspecified elements beyond it. A nest that reads such an axis by one of its
own axes masks reductions and contractions over it, and passes the length on to the axis of its result. Any other
way of reading the axis (shifted, reshaped, by an index from data) would need the length itself, and is an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import expr as ex
from .dtypes import I32
from .expr import Expr
from .program import Axis, Contract, Program, Reduce, Step, Store


class LengthError(Exception):
    """An axis whose length depends on data is used in a way that is not supported."""


def axis_lengths(program: Program, *roots: Expr) -> dict[str, tuple[str, int]]:
    """The loop variables that run over an axis with a length, each with the length's tensor and the axis' bound."""
    found: dict[str, tuple[str, int]] = {}
    for e in ex.loads(*roots):
        t = program.tensors[e.attr]
        if t.length is None:
            continue
        var = e.index[t.length_axis].as_var
        if var is None or var.size != t.shape[t.length_axis]:
            raise LengthError("it needs the size of an axis whose length depends on data")
        if found.setdefault(var.name, (t.length, var.size)) != (t.length, var.size):
            raise LengthError("it combines two axes whose lengths depend on data")
    return found


def _condition(lengths: dict[str, tuple[str, int]], axes: Sequence[Axis]) -> Expr:
    """Whether the point lies within the lengths of the axes that are reduced."""
    inside = ex.TRUE
    for axis in axes:
        if axis.name in lengths:
            inside = inside & (ex.index_value(axis.var, I32) < ex.load(lengths[axis.name][0], I32, ()))
    return inside


def mask_steps(
    program: Program, space: Sequence[Axis], steps: Sequence[Step], stores: Sequence[Store]
) -> tuple[tuple[Step, ...], dict[str, tuple[str, int]]]:
    """The steps with elements beyond a length left out, and (length, axis) of each stored tensor that gets one."""
    outer: dict[str, tuple[str, int]] = {}
    masked: list[Step] = []
    for step in steps:
        lengths = axis_lengths(program, *step.exprs)
        names = {a.name for a in space}
        outer.update({name: found for name, found in lengths.items() if name in names})
        masked.append(_mask(program, step) if any(a.name in lengths for a in step.axes) else step)
    results: dict[str, tuple[str, int]] = {}
    for store in stores:
        for name, (length, _) in (outer | axis_lengths(program, store.value)).items():
            axis = next((k for k, i in enumerate(store.index) if i.as_var is not None and i.as_var.name == name), None)
            if axis is None or results.setdefault(store.tensor, (length, axis)) != (length, axis):
                raise LengthError("its result would have more than one axis whose length depends on data")
    return tuple(masked), results


def _mask(program: Program, step: Step) -> Step:
    if isinstance(step, Contract):
        sides = (step.lhs, step.rhs)
        inside = [_condition(axis_lengths(program, e), step.axes) for e in sides]
        lhs, rhs = (ex.select(i, e, ex.zero(e.dtype)) for i, e in zip(inside, sides, strict=True))
        return Contract(step.name, step.axes, lhs, rhs, step.dtype)
    valid = _condition(axis_lengths(program, *step.body), step.axes)
    body = tuple(ex.select(valid, e, i) for e, i in zip(step.body, step.monoid.identity, strict=True))
    return Reduce(step.name, step.axes, step.monoid, body)
