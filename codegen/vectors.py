"""Four lanes at once: expressions over the axis `lane` become WGSL vectors.

A load whose address is `4·base + lane` reads a vector; one whose address has no lane reads a scalar that all lanes
share; any other is put together from four scalar loads. Operators that WGSL has on vectors work on all lanes, the rest
lane by lane. Names in `wide` are vectors already (the accumulators of a tile).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.dtypes import BY_NAME, F32, F32X2, I32, U32, U32X2, DType, vector
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.kernel import Write
from onnx2wgsl.ir.program import TensorType

from .emitter import Emitter, unpack
from .storage import address, root, storage_of

LANES = 4
LANE = ix.var("lane", LANES)
_NATIVE = {"add": (F32, I32, U32), "sub": (F32, I32, U32), "mul": (F32, I32, U32), "div": (F32,), "neg": (F32, I32)}


def splat(value: Expr) -> Expr:
    """All lanes of one value."""
    return ex.machine("vec", (value,), vector(value.dtype, LANES))


def assemble(lanes: Sequence[Expr]) -> Expr:
    """A vector of four values."""
    if all(x == lanes[0] for x in lanes):
        return splat(lanes[0])
    return ex.machine("vec", tuple(lanes), vector(lanes[0].dtype, LANES))


def element(value: Expr, lane: int) -> Expr:
    """One lane of a vector."""
    if value.op == "vec":
        return value.args[lane if len(value.args) > 1 else 0]
    return ex.machine("lane", (value, ex.const(lane, I32)), _scalar(value.dtype))


def _scalar(dtype: DType) -> DType:
    return BY_NAME[dtype.name[:-1].rsplit("x", 1)[0]]


def multiply_add(a: Expr, b: Expr, total: Expr) -> Expr:
    """a · b + total; fused where floats are."""
    if total.dtype.is_float:
        return ex.machine("fma", (a, b, total), total.dtype)
    return ex.machine("add", (total, ex.machine("mul", (a, b), total.dtype)), total.dtype)


def vector_base(where: Index) -> Index | None:
    """`base` where an address is 4·base + lane."""
    if where.coefficient("lane") != 1:
        return None
    rest = where - LANE
    if "lane" in rest.free or rest.const % LANES or any(c % LANES for _, c in rest.terms):
        return None
    return Index({atom: c // LANES for atom, c in rest.terms}, rest.const // LANES)


def is_vector(tensors: Mapping[str, TensorType], name: str, where: Index) -> bool:
    """Whether four lanes of a tensor at an address are one vector or lie in whole words."""
    if vector_base(where) is None:
        return False
    t = tensors[name]
    return storage_of(t.dtype).per_word > 1 or _readable(tensors, name)


def _readable(tensors: Mapping[str, TensorType], name: str) -> bool:
    """Whether a buffer may be declared as an array of vectors: its last vector must not be cut off."""
    whole = tensors[root(tensors, name)]
    return whole.count % LANES == 0 and storage_of(whole.dtype).element in (F32, I32, U32)


def failures(e: Expr, tensors: Mapping[str, TensorType]) -> int:
    """How many loads of an expression are put together from single elements."""
    count = 0
    for load in ex.loads(e):
        if "lane" in load.free:
            where = address(tensors, load.attr, load.index)
            count += "lane" in where.free and not is_vector(tensors, load.attr, where)
    return count


class VectorEmitter(Emitter):
    """An emitter that also names vectors, each in the outermost scope that binds its variables."""

    def __init__(self, tensors: Mapping[str, TensorType]) -> None:
        super().__init__(tensors)
        self.wide: set[str] = set()

    def bind_wide(self, name: str) -> None:
        """Makes a vector, and its lanes by their names, known in the current scope."""
        self.wide.add(name)
        self.bind(name, *(f"{name}.{c}" for c in "xyzw"))

    def varies(self, e: Expr) -> bool:
        return "lane" in e.free or not self.wide.isdisjoint(e.free)

    def at_lane(self, e: Expr, lane: int) -> Expr:
        """The L1 expression of one lane."""

        def narrow(node: Expr) -> Expr | None:
            known = node.op == "var" and node.attr in self.wide
            return ex.variable(f"{node.attr}.{'xyzw'[lane]}", node.dtype) if known else None

        return ex.rewrite_tree(e, {}, narrow, {"lane": ix.constant(lane)}) if self.varies(e) else e

    def vectors(self, *roots: Expr) -> list[Expr]:
        """Emits L1 expressions as vectors."""
        self.uses = Counter(child.key for node in ex.walk(*roots) for child in ex.children(node))
        return [self.vector(r) for r in roots]

    def vector(self, e: Expr) -> Expr:
        if e.op == "assume":
            return self.vector(e.args[0])
        if not self.varies(e):
            return splat(self.value(e))
        level = self.level(e.free - {"lane"})
        key = b"vector" + e.key
        found = self.scopes[level].memo.get(key)
        if found is not None:
            return found
        built = self.build_vector(e, level)
        if built.op == "var" or not self.volatile.isdisjoint(e.free):
            return built
        if level < self.depth or self.uses[e.key] > 1 or e.op == "load":
            built = self.named_vector(level, built)
            self.scopes[level].memo[key] = built
        return built

    def named_vector(self, level: int, built: Expr) -> Expr:
        """A name for a vector, unless it is put together from names."""
        whole = built.op == "vec" and all(a.op in ("var", "const") for a in built.args)
        return built if whole else self.name_at(level, built)

    def build_vector(self, e: Expr, level: int) -> Expr:
        if e.op == "var":
            return ex.variable(e.attr, vector(e.dtype, LANES))
        if e.op == "load":
            return self.vector_load(e, level)
        if e.op == "index" or any(x.dtype in (U32X2, F32X2) for x in (e, *e.args)):
            return assemble([self.value(self.at_lane(e, lane)) for lane in range(LANES)])
        if e.op == "select" and not self.varies(e.args[0]):
            branches = (self.vector(e.args[1]), self.vector(e.args[2]))
            return ex.machine("select", (self.value(e.args[0]), *branches), vector(e.dtype, LANES))
        if e.dtype in _NATIVE.get(e.op, ()):
            return ex.machine(e.op, tuple(self.vector(a) for a in e.args), vector(e.dtype, LANES))
        args = [self.named_lanes(a, level) if self.varies(a) else [self.value(a)] * LANES for a in e.args]
        return assemble([ex.machine(e.op, tuple(a[lane] for a in args), e.dtype) for lane in range(LANES)])

    def named_lanes(self, e: Expr, level: int) -> list[Expr]:
        value = self.vector(e)
        if value.op != "var":
            value = self.named_vector(level, value)
        return [element(value, lane) for lane in range(LANES)]

    def vector_load(self, e: Expr, level: int) -> Expr:
        stored = self.tensors[e.attr].dtype
        where = address(self.tensors, e.attr, e.index)
        buffer = root(self.tensors, e.attr)
        if "lane" not in where.free:
            return splat(self.fetch(buffer, stored, where, e.dtype))
        base = vector_base(where)
        if base is None or not is_vector(self.tensors, e.attr, where):
            return assemble([self.value(self.at_lane(e, lane)) for lane in range(LANES)])
        storage = storage_of(stored)
        if storage.per_word == 1:
            return ex.fetch(buffer, vector(storage.element, LANES), self.index(base))
        return self.unpacked(buffer, stored, base * LANES, e.dtype, level)

    def unpacked(self, buffer: str, stored: DType, first: Index, dtype: DType, level: int) -> Expr:
        """Four elements of a packed tensor from the words that hold them."""
        per_word = storage_of(stored).per_word
        words: dict[Index, Expr] = {}
        lanes = []
        for lane in range(LANES):
            place = first // per_word + lane // per_word if per_word < LANES else first // per_word
            if place not in words:
                words[place] = self.name_at(level, ex.fetch(buffer, U32, self.index(place)))
            offset = ix.constant(lane % per_word) if per_word <= LANES else first % per_word + lane
            shift = self.index(offset * (32 // per_word))
            amount = ex.const(shift.attr, U32) if shift.op == "const" else ex.machine("cast", (shift,), U32)
            bits = words[place] if amount == ex.const(0, U32) else ex.machine("shr", (words[place], amount), U32)
            lanes.append(self.name_at(level, unpack(bits, stored, dtype)))
        return assemble(lanes)

    def store_vector(self, tensor: str, base: Index, value: Expr) -> None:
        """Writes four consecutive elements."""
        self.append(Write(root(self.tensors, tensor), self.index(base), value))
