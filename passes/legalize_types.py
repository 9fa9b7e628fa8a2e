"""legalize-types: after it, expressions hold only what WGSL computes with: f32, i32, u32, bool, pairs of these.

Integers narrower than 32 bits compute in 32 with the wrap-around of their own width; narrow floats compute in f32 and
are rounded where the program casts to them. Graph inputs, graph outputs and constants stay packed as ONNX has them; an
intermediate is stored widened, since two threads that write parts of one word race. A packed output is written by a map
over whole words; where the nest that makes it is not such a map, it is made widened first and packed by a map.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.builder import axes
from onnx2wgsl.ir.dtypes import BOOL, F32, F32X2, F64, I32, I64, U32, U32X2, U64, DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.program import Contract, Nest, Node, Program, Step, Store, TensorType, all_nodes, nest_exprs
from onnx2wgsl.ir.rewrite import Rewriter

from .base import Pass, PassResult

MACHINE = (F32, I32, U32, BOOL, U32X2, F32X2)
WORDS = (I64, U64, F64)
_WRAPS = frozenset({"add", "sub", "mul", "neg", "shl", "not", "abs", "div", "floordiv", "pow", "sign"})


def machine_type(dtype: DType) -> DType:
    """The type that values of a type are computed in."""
    if dtype in MACHINE:
        return dtype
    if dtype.is_float:
        return F32
    return I32 if dtype.kind == "int" else U32


def stored_type(dtype: DType) -> DType:
    """The type that an intermediate of a type is stored in."""
    return U32 if dtype is BOOL else dtype if dtype in WORDS else machine_type(dtype)


@dataclass(frozen=True)
class LegalizeTypes(Pass[Program, Program]):
    name: ClassVar[str] = "legalize-types"

    def run(self, program: Program) -> PassResult[Program]:
        ports = {p.tensor for p in (*program.inputs, *program.outputs)}
        keep = ports | set(program.constants)
        tensors = {n: t if n in keep else replace(t, dtype=stored_type(t.dtype)) for n, t in program.tensors.items()}
        rewriter = Legalize(tensors)
        nodes: list[Node] = []
        for node in program.nodes:
            nodes.extend(_unpacked(rewriter.node(node), tensors))
        widened = sum(t.dtype is not program.tensors[n].dtype for n, t in tensors.items() if n in program.tensors)
        result = replace(program, tensors=tensors, nodes=tuple(nodes))
        return PassResult(result, True, {"widened": widened})

    def ensures(self, program: Program) -> None:
        for node in all_nodes(program.nodes):
            if isinstance(node, Nest):
                for e in ex.walk(*nest_exprs(node)):
                    if e.dtype not in MACHINE:
                        raise AssertionError(f"legalize-types left {e.dtype} in {', '.join(node.nodes)}: {e!r}"[:400])


def _unpacked(node: Node, tensors: dict[str, TensorType]) -> list[Node]:
    """A nest whose stores are all legal, followed by maps that pack what it had to write widened."""
    if not isinstance(node, Nest):
        return [node]
    packed = [s for s in node.stores if (d := tensors[s.tensor].dtype) not in MACHINE + WORDS or d is BOOL]
    if not packed or _is_word_map(node, tensors):
        return [node]
    rename: dict[str, str] = {}
    for s in packed:
        wide = f"{s.tensor}.wide"
        rename[s.tensor] = wide
        tensors[wide] = replace(tensors[s.tensor], dtype=stored_type(tensors[s.tensor].dtype))
    stores = tuple(
        replace(s, tensor=rename[s.tensor], value=ex.cast(s.value, tensors[rename[s.tensor]].dtype))
        if s.tensor in rename
        else s
        for s in node.stores
    )
    return [replace(node, stores=stores), *(_pack(n, wide, tensors, node.nodes) for n, wide in rename.items())]


def _is_word_map(node: Nest, tensors: dict[str, TensorType]) -> bool:
    from onnx2wgsl.codegen.loops import is_packed_map

    return is_packed_map(node, tensors)


def _pack(name: str, wide: str, tensors: dict[str, TensorType], nodes: tuple[str, ...]) -> Nest:
    space = axes("i", tensors[name].shape)
    i = tuple(a.var for a in space)
    return Nest(space, (), (Store(name, (), i, ex.load(wide, tensors[wide].dtype, i)),), nodes)


class Legalize(Rewriter):
    def __init__(self, tensors: dict[str, TensorType]) -> None:
        super().__init__()
        self.tensors = tensors

    def store(self, store: Store) -> Store:
        made = super().store(store)
        stored = self.tensors[store.tensor].dtype
        return replace(made, value=ex.cast(made.value, stored)) if stored in (U32, I32, F32) else made

    def step(self, step: Step) -> Step:
        made = super().step(step)
        return replace(made, dtype=machine_type(made.dtype)) if isinstance(made, Contract) else made

    def visit(self, e: Expr, args: tuple[Expr, ...]) -> Expr:
        dtype = machine_type(e.dtype)
        match e.op:
            case "load":
                where = self.indices(e.index)
                return ~ex.load(e.attr, U32, where).equals(0) if e.dtype is BOOL else ex.load(e.attr, dtype, where)
            case "index":
                return ex.index_value(self.index(e.index[0]), dtype)
            case "const":
                return ex.const(e.attr, dtype)
            case "acc":
                return ex.acc(e.attr[0], dtype, e.attr[1])
            case "leaf":
                return ex.leaf(e.attr[0], dtype, e.attr[1])
            case "assume":
                return ex.assume(args[0], *e.attr)
            case "exact":
                return wrap(args[0], e.dtype)
            case "cast":
                return self.cast(e, args[0])
            case "bitcast":
                return from_bits(to_bits(args[0], e.args[0].dtype), e.dtype)
        if e.op == "sign" and dtype is U32:
            return ex.op("min", args[0], ex.one(U32))
        if e.op == "popcount" and dtype is I32:
            return ex.bitcast(ex.op("popcount", to_bits(args[0], e.dtype)), I32)
        made = ex.op(e.op, *args)
        if e.dtype in MACHINE or made.dtype is BOOL:
            return made
        return wrap(made, e.dtype) if e.op in _WRAPS or (e.dtype.is_float and e.op != "select") else made


    def cast(self, e: Expr, x: Expr) -> Expr:
        """A cast; the rounding between two operators of a chain in a narrow float is left out, as in a fused kernel."""
        source = e.args[0]
        if e.dtype is F32 and source.dtype.is_float and source.op == "cast" and source.args[0].dtype is F32:
            return self.memo[source.args[0].key]
        return cast(x, source.dtype, e.dtype)


def wrap(x: Expr, dtype: DType) -> Expr:
    """A machine value reduced to a narrow type: the low bits of an integer, the nearest value of a float."""
    if dtype in MACHINE:
        return x
    if dtype.is_float:
        return ex.op(f"from_{dtype.name}", ex.op(f"to_{dtype.name}", x))
    if dtype.kind == "uint":
        return ex.op("and", x, ex.const(dtype.hi, U32))
    shift = ex.const(32 - dtype.bits, I32)
    return ex.op("shr", ex.op("shl", x, shift), shift)


def cast(x: Expr, source: DType, target: DType) -> Expr:
    """ONNX Cast between types whose values are held in their machine types."""
    if target is BOOL and source.is_float:
        return ~(ex.bitcast(x, U32) & 0x7FFFFFFF).equals(0)
    if target.is_float and source.kind == "uint":
        return wrap(float_of_unsigned(x, source.bits), target)
    if target in MACHINE and source in MACHINE:
        return ex.cast(x, target)
    machine = machine_type(target)
    if source.is_float and target.is_integer:
        inside = ex.cast(x, machine)
        return ex.op("min", ex.op("max", inside, ex.const(target.lo, machine)), ex.const(target.hi, machine))
    return wrap(ex.cast(x, machine), target)


def float_of_unsigned(x: Expr, bits: int) -> Expr:
    """The f32 nearest to a u32 of so many bits, by way of i32: SwiftShader rounds large u32 wrongly."""
    small = ex.cast(ex.cast(x, I32), F32)
    if bits < 32:
        return small
    half = ex.op("or", ex.op("shr", x, ex.one(U32)), x & 1)
    return ex.select(x <= 0x7FFFFFFF, small, ex.cast(ex.cast(half, I32), F32) * 2.0)


def to_bits(x: Expr, dtype: DType) -> Expr:
    """The bits of a value as u32."""
    if dtype.is_float and dtype is not F32:
        return ex.op(f"to_{dtype.name}", x)
    bits = ex.bitcast(x, U32)
    return bits if dtype.bits == 32 else ex.op("and", bits, ex.const((1 << dtype.bits) - 1, U32))


def from_bits(bits: Expr, dtype: DType) -> Expr:
    """The value of a type from its bits."""
    if dtype.is_float and dtype is not F32:
        return ex.op(f"from_{dtype.name}", bits)
    machine = machine_type(dtype)
    value = ex.bitcast(bits, machine)
    return value if dtype.bits == 32 else wrap(value, dtype)
