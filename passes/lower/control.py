"""Control flow: If, Loop and Scan.

A branch on a constant is taken at compile time; on data both branches are computed and their results selected. A loop
becomes one `Scan` node of the tensor program where its state keeps its shape; what does not depend on the step moves
out of it. Where the state changes its shape, or the step decides a shape, a short loop is unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor
from onnx2wgsl.ir.dtypes import BOOL, I32, I64
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index, Param
from onnx2wgsl.ir.program import Attention, Carried, Nest, Node, Scan, Stacked, all_nodes, nest_exprs

from .registry import Context, Refusal, lower
from .views import concat_of, guarded, strided

# Steps that a loop may have where each one is lowered by itself.
UNROLL_LIMIT = 64
# Steps of a loop, and elements of what it collects over its steps.
STEP_LIMIT = 1 << 16
ELEMENT_LIMIT = 1 << 28


def known(value: Any) -> bool:
    """Whether a lowered value is usable: a tensor, a sequence or an absent optional."""
    return value is None or isinstance(value, (Tensor, list))


@lower("If")
def if_(c: Context) -> tuple[Any, ...]:
    condition = c[0]
    if condition.type.count != 1:
        raise c.refuse(f"the condition is {condition.type}, not one value")
    then, otherwise = (_inner(c, f"{name}_branch", 0, c.output_count, c.output_count) for name in ("then", "else"))
    if condition.value is not None:
        return tuple(c.lower_graph(then if condition.value.reshape(-1)[0] else otherwise, []))
    yes, no = c.lower_graph(then, []), c.lower_graph(otherwise, [])
    return tuple(chosen(c, condition, a, b) for a, b in zip(yes, no, strict=True))


def _inner(c: Context, name: str, inputs: int, least: int, most: int | None = None) -> onnx_ir.Graph:
    """An inner graph; refuses one whose inputs, or outputs (`least` to `most`), do not fit its node."""
    graph: onnx_ir.Graph | None = c.attr(name)
    if graph is None:
        raise c.refuse(f"it has no {name}")
    found = len(graph.inputs), len(graph.outputs)
    if found[0] != inputs or found[1] < least or (most is not None and found[1] > most):
        raise c.refuse(f"its {name} with {found[0]} inputs and {found[1]} outputs does not fit the node")
    return graph


def chosen(c: Context, condition: Tensor, yes: Any, no: Any) -> Any:
    """The value of the branch that is taken; sizes that differ along one axis become a bound and a length."""
    if not known(yes) or not known(no):
        return yes if not known(yes) else no
    if isinstance(yes, list) and isinstance(no, list) and len(yes) == len(no):
        return [chosen(c, condition, a, b) for a, b in zip(yes, no, strict=True)]
    if not isinstance(yes, Tensor) or not isinstance(no, Tensor):
        if yes is None and no is None:
            return None
        raise c.refuse("its branches give sequences or optionals that differ, chosen by data")
    differ = [k for k, (a, b) in enumerate(zip(yes.shape, no.shape, strict=False)) if a != b]
    if yes.dtype is not no.dtype or yes.rank != no.rank or len(differ) > 1:
        raise c.refuse(f"its branches give {yes.type} and {no.type}, chosen by data")
    flag = condition[(0,) * condition.rank]
    if not differ:
        return c.map(yes.shape, lambda *i: ex.select(flag, yes[i], no[i]))
    axis = differ[0]
    shape = tuple(max(a, b) for a, b in zip(yes.shape, no.shape, strict=True))
    zero = ex.zero(yes.dtype)

    def value(*i: Index) -> Expr:
        return ex.select(flag, guarded(yes, i, zero), guarded(no, i, zero))

    sizes = ex.const(yes.shape[axis], I32), ex.const(no.shape[axis], I32)
    length = c.map((), lambda: ex.select(flag, *sizes))
    return c.builder.measured(c.map(shape, value), length, axis)


@dataclass
class Body:
    """One step of a loop, lowered on its own: its nodes, and the values of the body's outputs."""

    step: str
    trip: int
    nodes: list[Node] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)

    @property
    def position(self) -> Index:
        return ix.index(Param(self.step, 0, self.trip - 1))


def same_type(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype is b.dtype and a.shape == b.shape


def lower_body(c: Context, graph: onnx_ir.Graph, trip: int, arguments: Any) -> Body:
    """Lowers a body for a step that is not known yet; `arguments(position)` makes its inputs."""
    builder = c.builder
    body = Body(builder.fresh("step"), trip)
    outer, before = builder.nodes, len(c.gaps)
    builder.nodes = body.nodes
    try:
        body.results = c.lower_graph(graph, arguments(body.position))
    finally:
        builder.nodes = outer
    if len(c.gaps) > before or not all(isinstance(r, Tensor) and r.type.length is None for r in body.results):
        reasons = "; ".join(f"{g.op}: {g.reason}" for g in c.gaps[before:]) or "its state is no tensor of one size"
        del c.gaps[before:]
        raise c.refuse(f"its body cannot be lowered: {reasons}")
    return body


def own(c: Context, body: Body, value: Tensor) -> Tensor:
    """A tensor that the body itself writes, with this value."""
    if any(value.name in node.writes for node in body.nodes):
        return value
    outer, c.builder.nodes = c.builder.nodes, body.nodes
    try:
        return c.map(value.shape, lambda *i: value[i])
    finally:
        c.builder.nodes = outer


def hoisted(body: Body, arguments: Sequence[str]) -> list[Node]:
    """The nodes of a body that do not depend on the step or the state."""
    changing = set(arguments)
    outside: list[Node] = []
    for node in body.nodes:
        fixed = isinstance(node, Nest) and not _reads_step(node, body.step) and changing.isdisjoint(node.reads)
        if fixed:
            outside.append(node)
        else:
            changing.update(node.writes)
    return outside


def needed(nodes: Sequence[Node], wanted: set[str]) -> list[Node]:
    """The nodes that the wanted tensors depend on."""
    used, kept = set(wanted), []
    for node in reversed(nodes):
        if not used.isdisjoint(node.writes):
            used.update(node.reads)
            kept.append(node)
    return kept[::-1]


def _reads_step(node: Node, step: str) -> bool:
    """Whether an index of the node, or of a node inside of it, contains the step."""
    found: list[Index] = []
    for inner in all_nodes([node]):
        if isinstance(inner, Attention) or not isinstance(inner, Nest):
            return True
        found += [i for e in ex.walk(*nest_exprs(inner)) for i in e.index]
        found += [i for s in inner.stores for i in s.index]
    return any(_contains(i, step) for i in found)


def _contains(i: Index, step: str) -> bool:
    for atom, _ in i.terms:
        if isinstance(atom, Param) and atom.name == step:
            return True
        if isinstance(atom, (ix.Div, ix.Mod)) and _contains(atom.num, step):
            return True
    return False


def emit_scan(
    c: Context,
    body: Body,
    carried: Sequence[tuple[Tensor, Tensor, Tensor]],
    stacked: Sequence[tuple[Tensor, int, Index]],
    condition: Tensor | None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Appends the `Scan`; `carried` are (initial, argument, next), `stacked` are (value, axis, position)."""
    builder = c.builder
    nexts = [own(c, body, n) for _, _, n in carried]
    values = [own(c, body, v) for v, _, _ in stacked]
    results = [builder.tensor(init.dtype, init.shape) for init, _, _ in carried]
    collected = []
    for value, (_, axis, _) in zip(values, stacked, strict=True):
        shape = (*value.shape[:axis], body.trip, *value.shape[axis:])
        tensor = builder.tensor(value.dtype, shape)
        if tensor.type.count > ELEMENT_LIMIT:
            raise c.refuse(f"it collects {tensor.type}, more than {ELEMENT_LIMIT} elements")
        collected.append(tensor)
    keep = {n.name for n in nexts} | {v.name for v in values}
    flag = None if condition is None else own(c, body, condition)
    keep |= set() if flag is None else {flag.name}
    outside = hoisted(body, [a.name for _, a, _ in carried])
    moved = [n for n in outside if keep.isdisjoint(n.writes)]
    rest = needed([n for n in body.nodes if not any(n is m for m in moved)], keep)
    builder.nodes.extend(moved)
    builder.append(
        Scan(
            body.step,
            body.trip,
            tuple(
                Carried(i.name, a.name, n.name, r.name) for (i, a, _), n, r in zip(carried, nexts, results, strict=True)
            ),
            tuple(
                Stacked(v.name, t.name, axis, at)
                for v, t, (_, axis, at) in zip(values, collected, stacked, strict=True)
                if t.type.count
            ),
            tuple(rest),
            None if flag is None else flag.name,
            builder.provenance,
        )
    )
    return results, collected


@lower("Loop")
def loop(c: Context) -> tuple[Any, ...]:
    """`for (i = 0; i < trip && condition; i++) condition, state, collected[i] = body(i, condition, state)`."""
    initial = list(c.inputs[2:])
    body = _inner(c, "body", 2 + len(initial), 1 + max(len(initial), c.output_count))
    trip = _trip(c)
    start = c.optional(1)
    if start is not None and start.value is not None:
        trip = trip if start.value.reshape(-1)[0] else 0
        start = None
    if trip == 0:
        return (*initial, *_empty_collected(c, body, initial))
    try:
        return tuple(_scanned_loop(c, body, initial, trip, start))
    except Refusal as refusal:
        if trip > UNROLL_LIMIT:
            raise
        state, collected = _unrolled_loop(c, body, initial, trip, refusal)
    if start is None:
        return (*state, *collected)
    flag = start[(0,) * start.rank]
    length = c.map((), lambda: ex.select(flag, *(ex.const(s, I32) for s in (steps_of(collected), 0))))
    return (
        *(chosen(c, start, s, i) for s, i in zip(state, initial, strict=True)),
        *(c.builder.measured(t, length, 0) for t in collected),
    )


def steps_of(collected: Sequence[Tensor]) -> int:
    return collected[0].shape[0] if collected else 0


def _trip(c: Context) -> int:
    count = c.optional(0)
    if count is None:
        raise c.refuse("it has no largest number of steps, only a condition")
    trip = max(int(c.value(0).reshape(-1)[0]), 0)
    if trip > STEP_LIMIT:
        raise c.refuse(f"its largest number of steps is {trip}; at most {STEP_LIMIT} are supported")
    return trip


def _empty_collected(c: Context, body: onnx_ir.Graph, initial: Sequence[Any]) -> list[Any]:
    """What a loop without steps collects: nothing, in the shape of one step's value."""
    if len(body.outputs) == 1 + len(initial):
        return []
    flag = c.constant(np.asarray(True))
    found = lower_body(c, body, 1, lambda _: [c.constant(np.asarray(0, np.int64)), flag, *initial])
    values = found.results[1 + len(initial) :]
    return [c.builder.tensor(v.dtype, (0, *v.shape)) for v in values]


def _scanned_loop(
    c: Context, graph: onnx_ir.Graph, initial: Sequence[Any], trip: int, start: Tensor | None
) -> list[Any]:
    if not all(isinstance(v, Tensor) and v.type.length is None for v in initial):
        raise c.refuse("its state holds sequences, or tensors of a size that depends on data")
    builder = c.builder
    arguments = [builder.tensor(v.dtype, v.shape) for v in initial]
    flag = c.constant(np.asarray(True))

    def inputs(position: Index) -> list[Any]:
        number = c.map((), lambda: ex.index_value(position, I64))
        return [number, flag, *arguments]

    body = lower_body(c, graph, trip, inputs)
    count = len(initial)
    condition, nexts, values = body.results[0], body.results[1 : 1 + count], body.results[1 + count :]
    for old, new in zip(initial, nexts, strict=True):
        if not same_type(old, new):
            raise c.refuse(f"its state changes from {old.type} to {new.type} in a step")
    always = condition.value is not None and bool(condition.value.reshape(-1)[0])
    if condition.value is not None and not always:
        raise c.refuse("it ends after its first step")
    ends = None if always else condition
    carried = list(zip(initial, arguments, nexts, strict=True))
    counts = values and (ends is not None or start is not None)
    if counts:
        carried.append(_counter(c, body))
    if ends is not None and ends.rank:
        ends = _scalar(c, body, ends)
    stacked = [(v, 0, body.position) for v in values]
    results, collected = emit_scan(c, body, carried, stacked, ends)
    if start is not None:
        results = [chosen(c, start, r, i) for r, (i, _, _) in zip(results, carried, strict=True)]
    if counts:
        length = results.pop()
        collected = [builder.measured(t, length, 0) for t in collected]
    return [*results, *collected]


def _counter(c: Context, body: Body) -> tuple[Tensor, Tensor, Tensor]:
    """A state that counts the steps."""
    initial, argument = c.constant(np.asarray(0, np.int32)), c.builder.tensor(I32, ())
    outer, c.builder.nodes = c.builder.nodes, body.nodes
    try:
        return initial, argument, c.map((), lambda: argument[()] + 1)
    finally:
        c.builder.nodes = outer


def _scalar(c: Context, body: Body, value: Tensor) -> Tensor:
    outer, c.builder.nodes = c.builder.nodes, body.nodes
    try:
        return c.map((), lambda: value[(0,) * value.rank])
    finally:
        c.builder.nodes = outer


def _unrolled_loop(
    c: Context, graph: onnx_ir.Graph, initial: Sequence[Any], trip: int, reason: Refusal
) -> tuple[list[Any], list[Tensor]]:
    """Every step lowered by itself, the condition known at compile time after each."""
    state, collected = list(initial), []
    flag = c.constant(np.asarray(True))
    for step in range(trip):
        before = len(c.gaps)
        results = c.lower_graph(graph, [c.constant(np.asarray(step, np.int64)), flag, *state])
        condition = results[0]
        if len(c.gaps) > before or not all(known(r) for r in results):
            del c.gaps[before:]
            raise reason
        if not isinstance(condition, Tensor) or condition.value is None:
            raise c.refuse(f"{reason.reason}; and its condition depends on data")
        state = results[1 : 1 + len(initial)]
        collected.append(results[1 + len(initial) :])
        if not condition.value.reshape(-1)[0]:
            break
    stacked = []
    for parts in zip(*collected, strict=True):
        if not all(same_type(p, parts[0]) for p in parts):
            raise c.refuse("what it collects changes its type from step to step")
        stacked.append(stack(c, list(parts), 0))
    return state, stacked


def stack(c: Context, parts: Sequence[Tensor], axis: int) -> Tensor:
    """Joins tensors along a new axis."""

    def expanded(p: Tensor) -> Tensor:
        shape = (*p.shape[:axis], 1, *p.shape[axis:])
        return c.map(shape, lambda *i: p[(*i[:axis], *i[axis + 1 :])])

    return concat_of(c, [expanded(p) for p in parts], axis)


def _list(c: Context, name: str, count: int, default: int) -> list[int]:
    return list(c.attr(name) or [default] * count)


@lower("Scan", since=9)
def scan(c: Context) -> tuple[Any, ...]:
    """Steps through axes of the scan inputs; the body's other outputs are stacked along new axes."""
    count = c.attr("num_scan_inputs")
    values = [c[k] for k in range(len(c.inputs))]
    if not 0 < count <= len(values):
        raise c.refuse(f"{count} scan inputs do not fit {len(values)} inputs")
    states, inputs = values[: len(values) - count], values[len(values) - count :]
    axes = [c.axis(a, x.rank) for a, x in zip(_list(c, "scan_input_axes", count, 0), inputs, strict=True)]
    reverse = _list(c, "scan_input_directions", count, 0)
    outputs = c.output_count - len(states)
    stacks = _list(c, "scan_output_axes", outputs, 0), _list(c, "scan_output_directions", outputs, 0)
    return tuple(_scan(c, states, inputs, (axes, reverse), stacks))


def _scan(
    c: Context,
    states: Sequence[Tensor],
    inputs: Sequence[Tensor],
    sources: tuple[list[int], list[int]],
    stacks: tuple[list[int], list[int]],
) -> list[Any]:
    trips = {x.shape[a] for x, a in zip(inputs, sources[0], strict=True)}
    if len(trips) != 1:
        raise c.refuse(f"its scan inputs have {sorted(trips)} steps")
    trip = trips.pop()
    arguments = [c.builder.tensor(s.dtype, s.shape) for s in states]
    graph = _inner(c, "body", len(states) + len(inputs), len(states) + len(stacks[0]), len(states) + len(stacks[0]))

    def slices(position: Index) -> list[Any]:
        made = list(arguments)
        for x, axis, backwards in zip(inputs, *sources, strict=True):
            at = trip - 1 - position if backwards else position

            def value(*i: Index, x: Tensor = x, axis: int = axis, at: Index = at) -> Expr:
                return x[(*i[:axis], at, *i[axis:])]

            made.append(c.map((*x.shape[:axis], *x.shape[axis + 1 :]), value))
        return made

    body = lower_body(c, graph, max(trip, 1), slices)
    nexts, values = body.results[: len(states)], body.results[len(states) :]
    ranked = [a + v.rank + 1 if a < 0 else a for a, v in zip(stacks[0], values, strict=True)]
    if trip == 0:
        shapes = [(*v.shape[:a], 0, *v.shape[a:]) for v, a in zip(values, ranked, strict=True)]
        return [*states, *(c.builder.tensor(v.dtype, s) for v, s in zip(values, shapes, strict=True))]
    for old, new in zip(states, nexts, strict=True):
        if not same_type(old, new):
            raise c.refuse(f"its state changes from {old.type} to {new.type} in a step")
    stacked = [
        (v, a, trip - 1 - body.position if backwards else body.position)
        for v, a, backwards in zip(values, ranked, stacks[1], strict=True)
    ]
    results, collected = emit_scan(c, body, list(zip(states, arguments, nexts, strict=True)), stacked, None)
    return [*results, *collected]


@lower("Scan", since=8)
def scan_8(c: Context) -> tuple[Any, ...]:
    """The first version has a batch axis in front of every state and scan input: each element is scanned by itself."""
    if c.optional(0) is not None:
        raise c.refuse("sequence lengths of the first version of Scan are not supported")
    count = c.attr("num_scan_inputs")
    values = [c[k] for k in range(1, len(c.inputs))]
    states = len(values) - count
    outputs = c.output_count - states
    sources = [0] * count, _list(c, "directions", count, 0)
    batches = values[0].shape[0]
    if not 0 < batches <= UNROLL_LIMIT:
        raise c.refuse(f"a batch of {batches} is not supported by the first version of Scan")
    parts = []
    for b in range(batches):
        own_values = [_element(c, v, b) for v in values]
        parts.append(_scan(c, own_values[:states], own_values[states:], sources, ([0] * outputs, [0] * outputs)))
    return tuple(stack(c, column, 0) for column in zip(*parts, strict=True))


def _element(c: Context, x: Tensor, b: int) -> Tensor:
    return c.map(x.shape[1:], lambda *i: x[(b, *i)])


def items(c: Context, position: int) -> list[Tensor]:
    """An input that is a sequence."""
    value = c.inputs[position]
    if not isinstance(value, list):
        raise c.refuse(f"input {position} is not a sequence")
    return value


def place(c: Context, position: int, count: int) -> int:
    """A position in a sequence of `count` elements."""
    value = int(c.value(position).reshape(-1)[0])
    if not -count <= value < max(count, 1):
        raise c.refuse(f"position {value} lies outside of a sequence of {count}")
    return value + count if value < 0 else value


@lower("SequenceEmpty", since=11)
def sequence_empty(c: Context) -> list[Tensor]:
    del c
    return []


@lower("SequenceConstruct", since=11)
def sequence_construct(c: Context) -> list[Tensor]:
    return [c[k] for k in range(len(c.inputs))]


@lower("SequenceAt", since=11)
def sequence_at(c: Context) -> Tensor:
    found = items(c, 0)
    if not found:
        raise c.refuse("a sequence without elements has none to take")
    return found[place(c, 1, len(found))]


@lower("SequenceInsert", since=11)
def sequence_insert(c: Context) -> list[Tensor]:
    found = list(items(c, 0))
    where = len(found) if c.optional(2) is None else place(c, 2, len(found) + 1)
    if c.optional(2) is not None and int(c.value(2).reshape(-1)[0]) < 0:
        where -= 1
    return [*found[:where], c[1], *found[where:]]


@lower("SequenceErase", since=11)
def sequence_erase(c: Context) -> list[Tensor]:
    found = list(items(c, 0))
    if not found:
        raise c.refuse("a sequence without elements has none to erase")
    del found[len(found) - 1 if c.optional(1) is None else place(c, 1, len(found))]
    return found


@lower("SequenceLength", since=11)
def sequence_length(c: Context) -> Tensor:
    return c.constant(np.asarray(len(items(c, 0)), np.int64))


@lower("SplitToSequence", since=11)
def split_to_sequence(c: Context) -> list[Tensor]:
    """Parts of one size (a scalar `split`), of given sizes, or of single elements, whose axis may go."""
    x = c[0]
    axis = c.axis(c.attr("axis", 0), x.rank)
    size = x.shape[axis]
    if c.optional(1) is None:
        sizes = [1] * size
    elif c[1].rank:
        sizes = c.ints(1)
    else:
        width = c.ints(1)[0]
        if width < 1:
            raise c.refuse(f"parts of size {width} are not possible")
        sizes = [min(width, size - k) for k in range(0, size, width)]
    if sum(sizes) != size or len(sizes) > 4096:
        raise c.refuse(f"{len(sizes)} parts of a total of {sum(sizes)} do not fit axis {axis} of {x.type}")
    drop = c.optional(1) is None and not c.attr("keepdims", 1)
    parts, offset = [], 0
    for part in sizes:
        starts = [offset if k == axis else 0 for k in range(x.rank)]
        shape = [part if k == axis else s for k, s in enumerate(x.shape)]
        parts.append(_taken(c, x, axis, offset) if drop else strided(c, x, starts, [1] * x.rank, shape))
        offset += part
    return parts


def _taken(c: Context, x: Tensor, axis: int, at: int) -> Tensor:
    return c.map((*x.shape[:axis], *x.shape[axis + 1 :]), lambda *i: x[(*i[:axis], ix.constant(at), *i[axis:])])


@lower("ConcatFromSequence", since=11)
def concat_from_sequence(c: Context) -> Tensor:
    parts, axis = items(c, 0), c.attr("axis")
    if not parts:
        raise c.refuse("a sequence without elements cannot be concatenated")
    if not c.attr("new_axis", 0):
        return concat_of(c, parts, axis)
    if not all(same_type(p, parts[0]) for p in parts):
        raise c.refuse("its elements differ in type")
    return stack(c, parts, c.axis(axis, parts[0].rank + 1))


@lower("Optional", since=15)
def optional(c: Context) -> Any:
    return c.inputs[0] if c.inputs else None


@lower("OptionalGetElement", since=15)
def optional_get_element(c: Context) -> Any:
    if c.inputs[0] is None:
        raise c.refuse("an optional without value has no element")
    return c.inputs[0]


@lower("OptionalHasElement", since=15)
def optional_has_element(c: Context) -> Tensor:
    return c.constant(np.asarray(bool(c.inputs) and c.inputs[0] is not None, BOOL.numpy))
