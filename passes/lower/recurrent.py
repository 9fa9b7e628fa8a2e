"""LSTM, GRU and RNN as scans.

The products with the inputs do not depend on the state: they are one contraction over all steps, before the scan. A
step is then one nest over (direction, batch, unit) that sums each gate's product with the state and computes the new
state; only a GRU that resets before its product needs two. Both directions run in the same step: direction is an axis,
and step s of the backward one works on time T−1−s, or length−1−s in a sequence of its own length. Beyond the end of a
sequence the state stays as it is, and the outputs are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, compute_type, product_step
from onnx2wgsl.ir.dtypes import I32
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.program import Axis, Carried, Contract, Node, Reduce, Scan, Stacked, Store

from .registry import Context, lower

Indices = tuple[Index, ...]
Steps = tuple["Contract | Reduce", ...]


# Activations: (default alpha, default beta, function); None where the function has no such parameter.
def _softplus(x: Expr) -> Expr:
    return ex.op("max", x, ex.zero(x.dtype)) + ex.op("log", 1.0 + ex.op("exp", -ex.op("abs", x)))


def _sigmoid(x: Expr) -> Expr:
    return 1.0 / (1.0 + ex.op("exp", -x))


def _clamp(x: Expr, lo: float, hi: float) -> Expr:
    return ex.op("min", ex.op("max", x, ex.const(lo, x.dtype)), ex.const(hi, x.dtype))


Activation = Callable[[Expr, float, float], Expr]
ACTIVATIONS: dict[str, tuple[float | None, float | None, Activation]] = {
    "relu": (None, None, lambda x, _a, _b: ex.op("max", x, ex.zero(x.dtype))),
    "tanh": (None, None, lambda x, _a, _b: ex.op("tanh", x)),
    "sigmoid": (None, None, lambda x, _a, _b: _sigmoid(x)),
    "affine": (1.0, 0.0, lambda x, a, b: x * a + b),
    "leakyrelu": (0.01, None, lambda x, a, _b: ex.select(x < 0.0, x * a, x)),
    "thresholdedrelu": (1.0, None, lambda x, a, _b: ex.select(x >= a, x, 0.0)),
    "scaledtanh": (1.0, 1.0, lambda x, a, b: ex.op("tanh", x * b) * a),
    "hardsigmoid": (0.2, 0.5, lambda x, a, b: _clamp(x * a + b, 0.0, 1.0)),
    "elu": (1.0, None, lambda x, a, _b: ex.select(x < 0.0, (ex.op("exp", x) - 1.0) * a, x)),
    "softsign": (None, None, lambda x, _a, _b: x / (1.0 + ex.op("abs", x))),
    "softplus": (None, None, lambda x, _a, _b: _softplus(x)),
}


@dataclass(frozen=True)
class Chosen:
    """An activation with its parameters."""

    name: str
    alpha: float
    beta: float

    def __call__(self, x: Expr) -> Expr:
        return ACTIVATIONS[self.name][2](x, self.alpha, self.beta)


def activations(c: Context, defaults: Sequence[str], directions: int) -> list[list[Chosen]]:
    """The activations of each direction; alphas and betas go, in order, to those that have such a parameter."""
    names = [str(n).lower() for n in c.attr("activations") or list(defaults) * directions]
    if len(names) != len(defaults) * directions or any(n not in ACTIVATIONS for n in names):
        raise c.refuse(f"activations {names} are not {len(defaults)} known functions per direction")
    alphas, betas = list(c.attr("activation_alpha") or []), list(c.attr("activation_beta") or [])
    chosen = []
    for name in names:
        alpha, beta, _ = ACTIVATIONS[name]
        alpha = alphas.pop(0) if alpha is not None and alphas else alpha
        beta = betas.pop(0) if beta is not None and betas else beta
        chosen.append(Chosen(name, float(alpha or 0.0), float(beta or 0.0)))
    return [chosen[k * len(defaults) : (k + 1) * len(defaults)] for k in range(directions)]


class Layer:
    """What the three operators share: sizes, projection, time, the scan around a cell, and the outputs."""

    def __init__(self, c: Context, gates: int, defaults: Sequence[str]) -> None:
        self.c, self.gates = c, gates
        self.x, self.w, self.r = c[0], c[1], c[2]
        self.bias, self.lengths = c.optional(3), c.optional(4)
        self.batch_first = bool(c.attr("layout", 0))
        direction = str(c.attr("direction", "forward"))
        if direction not in ("forward", "reverse", "bidirectional"):
            raise c.refuse(f"direction {direction} is not known")
        self.backward = direction == "reverse"
        self.directions = 2 if direction == "bidirectional" else 1
        if self.x.rank != 3 or self.w.rank != 3 or self.r.rank != 3:
            raise c.refuse(f"{c.op} needs X, W and R of rank 3, got {self.x.type}, {self.w.type}, {self.r.type}")
        outer = self.x.shape[:2]
        self.trip, self.batch = reversed(outer) if self.batch_first else outer
        self.size = self.r.shape[2]
        expected = (self.directions, gates * self.size)
        if self.w.shape != (*expected, self.x.shape[2]) or self.r.shape != (*expected, self.size):
            raise c.refuse(f"W {self.w.type} and R {self.r.type} do not fit X {self.x.type} and {direction}")
        known = None if self.lengths is None else self.lengths.value
        if known is not None and (known == self.trip).all():
            self.lengths = None
        self.dtype = compute_type(self.x.dtype)
        self.functions = activations(c, defaults, self.directions)
        self.step = c.builder.fresh("step")
        self.now = ix.index(ix.Param(self.step, 0, max(self.trip - 1, 0)))
        self.clip = c.attr("clip", None)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.directions, self.batch, self.size

    def initial(self, position: int) -> Tensor:
        """An initial state as [direction, batch, unit] in the type that the cell computes in."""
        given = self.c.optional(position)
        if given is None:
            return self.c.constant(np.zeros(self.shape, self.dtype.numpy))
        swap = self.batch_first
        if given.shape != ((self.batch, self.directions, self.size) if swap else self.shape):
            raise self.c.refuse(f"an initial state of {given.type} does not fit {list(self.shape)}")
        if not swap and given.dtype is self.dtype:
            return given
        return self.c.map(self.shape, lambda d, b, u: ex.cast(given[(b, d, u) if swap else (d, b, u)], self.dtype))

    def projection(self, recurrent_bias: Sequence[int]) -> Tensor:
        """`X · Wᵀ + Wb` for all steps as [time, batch, direction, gate · unit], with `Rb` for some of the gates."""

        def operands(i: Indices, r: Indices) -> tuple[Expr, Expr]:
            t, b, d, j = i
            return ex.cast(self.x[(b, t, *r) if self.batch_first else (t, b, *r)], self.dtype), ex.cast(
                self.w[(d, j, *r)], self.dtype
            )

        def finish(total: Expr, _t: Index, _b: Index, d: Index, j: Index) -> Expr:
            if self.bias is None:
                return total
            both = self.recurrent_bias(d, j)
            if len(recurrent_bias) < self.gates:
                gate = ex.index_value(j // self.size, I32)
                held = ex.FALSE
                for g in recurrent_bias:
                    held = held | gate.equals(g)
                both = ex.select(held, both, 0.0)
            return total + ex.cast(self.bias[d, j], self.dtype) + both

        shape = (self.trip, self.batch, self.directions, self.gates * self.size)
        return self.c.contract(shape, self.x.shape[2:], operands, finish)

    def recurrent_bias(self, d: Index, j: Index) -> Expr:
        assert self.bias is not None
        return ex.cast(self.bias[d, j + self.gates * self.size], self.dtype)

    def product(self, name: str, state: Callable[[Index], Expr], d: Index, gate: int, u: Index) -> tuple[Steps, Expr]:
        """The step that sums `state(k) · R[d, gate · size + u, k]` over the units k."""
        k = Axis("r0", self.size)
        row = ex.cast(self.r[d, u + gate * self.size, k.var], self.dtype)
        return product_step(name, (k,), state(k.var), row, self.dtype)

    def length(self, b: Index) -> Expr:
        assert self.lengths is not None
        return ex.assume(ex.cast(self.lengths[b], I32), 0, self.trip)

    def mirrored(self, d: Index, b: Index, at: Index) -> Index:
        """The time of step `at`, and as well the step of time `at`, in direction d."""
        if self.directions == 1 and not self.backward:
            return at
        flipped = self.trip - 1 - at
        if self.directions == 1 and self.lengths is None:
            return flipped
        back = ex.index_value(flipped, I32)
        if self.lengths is not None:
            back = ex.op("max", self.length(b) - 1 - ex.index_value(at, I32), ex.zero(I32))
        forward = ex.index_value(at, I32)
        taken = back if self.directions == 1 else ex.select(ex.index_value(d, I32) < 1, forward, back)
        return ix.value_index(taken, 0, max(self.trip - 1, 0))

    def inside(self, b: Index, at: Index) -> Expr:
        """Whether time or step `at` lies inside of the sequence."""
        if self.lengths is None:
            return ex.TRUE
        return ex.index_value(at, I32) < self.length(b)

    def activate(self, position: int, d: Index, x: Expr, clipped: bool = True) -> Expr:
        """The activation of each direction at `position`, its input clipped."""
        if self.clip and clipped:
            x = _clamp(x, -float(self.clip), float(self.clip))
        functions = [f[position] for f in self.functions]
        value = functions[0](x)
        if len(functions) == 1 or functions[0] == functions[1]:
            return value
        return ex.select(ex.index_value(d, I32) < 1, value, functions[1](x))

    def space(self) -> tuple[Axis, Axis, Axis]:
        d, b, u = (Axis(f"i{k}", size) for k, size in enumerate(self.shape))
        return d, b, u

    def state(self) -> Tensor:
        return self.c.builder.tensor(self.dtype, self.shape)

    def emit(self, steps: Sequence[Contract | Reduce], values: Sequence[tuple[Tensor, Expr]]) -> None:
        """A nest over (direction, batch, unit)."""
        space = self.space()
        at = tuple(a.var for a in space)
        self.c.builder.emit(space, steps, [Store(t.name, (), at, v) for t, v in values])

    def kept(self, b: Index, new: Expr, old: Expr) -> Expr:
        """The new state, or the old one beyond the end of the sequence."""
        return ex.select(self.inside(b, self.now), new, old)

    def scan(
        self, states: Sequence[tuple[Tensor, Tensor, Tensor]], cell: Callable[[], None]
    ) -> tuple[Tensor | None, ...]:
        """Runs the nests that `cell` emits; `states` are (initial, read, written), the hidden one first.

        Returns Y and the final states, in the types and layout of the operator's outputs.
        """
        builder = self.c.builder
        outer, builder.nodes = builder.nodes, []
        cell()
        body, builder.nodes = builder.nodes, outer
        finals = [builder.tensor(self.dtype, self.shape) for _ in states]
        carried = [
            Carried(initial.name, read.name, written.name, final.name)
            for (initial, read, written), final in zip(states, finals, strict=True)
        ]
        stacked: list[Stacked] = []
        stack = None
        straight = self.directions == 1 and self.lengths is None
        if self.c.wants(0):
            stack = builder.tensor(self.dtype, (self.trip, *self.shape))
            index = self.mirrored(ix.constant(0), ix.constant(0), self.now) if straight else self.now
            stacked.append(Stacked(states[0][2].name, stack.name, 0, index))
        self._append(carried, stacked, body)
        hidden = None if stack is None else self._outputs(stack, straight)
        return (hidden, *(self._final(f) for f in finals))

    def _append(self, carried: Sequence[Carried], stacked: Sequence[Stacked], body: Sequence[Node]) -> None:
        builder = self.c.builder
        builder.append(
            Scan(self.step, self.trip, tuple(carried), tuple(stacked), tuple(body), None, builder.provenance)
        )

    def _outputs(self, stack: Tensor, straight: bool) -> Tensor:
        """Y from the states stacked by step: ordered by time, zero beyond the end of each sequence."""
        if straight and not self.batch_first and self.dtype is self.x.dtype:
            return stack
        sizes = (self.trip, self.directions, self.batch, self.size)
        shape = (sizes[2], sizes[0], sizes[1], sizes[3]) if self.batch_first else sizes

        def value(*i: Index) -> Expr:
            t, d, b, u = (i[1], i[2], i[0], i[3]) if self.batch_first else i
            step = t if straight else self.mirrored(d, b, t)
            return ex.select(self.inside(b, t), ex.cast(stack[step, d, b, u], self.x.dtype), 0.0)

        return self.c.map(shape, value)

    def _final(self, state: Tensor) -> Tensor:
        if not self.batch_first and self.dtype is self.x.dtype:
            return state
        swap = self.batch_first
        shape = (self.batch, self.directions, self.size) if swap else self.shape
        return self.c.map(shape, lambda a, b, u: ex.cast(state[(b, a, u) if swap else (a, b, u)], self.x.dtype))


@lower("RNN")
def rnn(c: Context) -> tuple[Tensor | None, ...]:
    """`H = f(X·Wᵀ + H·Rᵀ + Wb + Rb)`."""
    layer = Layer(c, 1, ["Tanh"])
    inputs = layer.projection([0])
    first, read, written = layer.initial(5), layer.state(), layer.state()

    def cell() -> None:
        d, b, u = (a.var for a in layer.space())
        steps, total = layer.product("a0", lambda k: read[d, b, k], d, 0, u)
        sum_ = total + inputs[layer.mirrored(d, b, layer.now), b, d, u]
        layer.emit(steps, [(written, layer.kept(b, layer.activate(0, d, sum_), read[d, b, u]))])

    return layer.scan([(first, read, written)], cell)


@lower("GRU")
def gru(c: Context) -> tuple[Tensor | None, ...]:
    """`H = (1 − z) ⊙ g + z ⊙ H`, the gates in the order z, r, h."""
    layer = Layer(c, 3, ["Sigmoid", "Tanh"])
    after = bool(c.attr("linear_before_reset", 0))
    inputs = layer.projection([0, 1] if after else [0, 1, 2])
    first, read, written = layer.initial(5), layer.state(), layer.state()

    def gate_input(d: Index, b: Index, gate: int, u: Index) -> Expr:
        return inputs[layer.mirrored(d, b, layer.now), b, d, u + gate * layer.size]

    def gate(name: str, d: Index, b: Index, number: int, u: Index) -> tuple[Steps, Expr]:
        steps, total = layer.product(name, lambda k: read[d, b, k], d, number, u)
        return steps, layer.activate(0, d, total + gate_input(d, b, number, u))

    def blend(b: Index, d: Index, u: Index, z: Expr, candidate: Expr) -> Expr:
        old = read[d, b, u]
        return layer.kept(b, (1.0 - z) * candidate + z * old, old)

    def cell_after() -> None:
        """The reset gate scales the product: one nest."""
        d, b, u = (a.var for a in layer.space())
        z_steps, z = gate("a0", d, b, 0, u)
        r_steps, r = gate("a1", d, b, 1, u)
        h_steps, h = layer.product("a2", lambda k: read[d, b, k], d, 2, u)
        if layer.bias is not None:
            h = h + layer.recurrent_bias(d, u + 2 * layer.size)
        candidate = layer.activate(1, d, gate_input(d, b, 2, u) + r * h)
        layer.emit((*z_steps, *r_steps, *h_steps), [(written, blend(b, d, u, z, candidate))])

    def cell_before() -> None:
        """The reset gate scales the state, which the product then sums over: two nests."""
        d, b, u = (a.var for a in layer.space())
        scaled, kept = layer.state(), layer.state()
        z_steps, z = gate("a0", d, b, 0, u)
        r_steps, r = gate("a1", d, b, 1, u)
        layer.emit((*z_steps, *r_steps), [(kept, z), (scaled, r * read[d, b, u])])
        steps, total = layer.product("a0", lambda k: scaled[d, b, k], d, 2, u)
        candidate = layer.activate(1, d, total + gate_input(d, b, 2, u))
        layer.emit(steps, [(written, blend(b, d, u, kept[d, b, u], candidate))])

    return layer.scan([(first, read, written)], cell_after if after else cell_before)


@lower("LSTM")
def lstm(c: Context) -> tuple[Tensor | None, ...]:
    """`C = f ⊙ C + i ⊙ g`, `H = o ⊙ h(C)`; the gates in the order i, o, f, c, the peepholes in i, o, f.

    `clip` bounds the sums of the gates; as in ONNX Runtime, it does not bound the cell.
    """
    layer = Layer(c, 4, ["Sigmoid", "Tanh", "Tanh"])
    inputs = layer.projection([0, 1, 2, 3])
    peephole = c.optional(7)
    coupled = bool(c.attr("input_forget", 0))
    first, read, written = layer.initial(5), layer.state(), layer.state()
    first_cell, read_cell, written_cell = layer.initial(6), layer.state(), layer.state()

    def cell() -> None:
        d, b, u = (a.var for a in layer.space())
        steps: list[Contract | Reduce] = []
        sums = []
        for number in range(4):
            made, total = layer.product(f"a{number}", lambda k: read[d, b, k], d, number, u)
            steps.extend(made)
            sums.append(total + inputs[layer.mirrored(d, b, layer.now), b, d, u + number * layer.size])

        def seen(number: int, memory: Expr) -> Expr:
            if peephole is None:
                return sums[number]
            return sums[number] + ex.cast(peephole[d, u + number * layer.size], layer.dtype) * memory

        old = read_cell[d, b, u]
        i = layer.activate(0, d, seen(0, old))
        f = 1.0 - i if coupled else layer.activate(0, d, seen(2, old))
        memory = f * old + i * layer.activate(1, d, sums[3])
        o = layer.activate(0, d, seen(1, memory))
        hidden = o * layer.activate(2, d, memory, clipped=False)
        values = [(written, layer.kept(b, hidden, read[d, b, u])), (written_cell, layer.kept(b, memory, old))]
        layer.emit(steps, values)

    return layer.scan([(first, read, written), (first_cell, read_cell, written_cell)], cell)
