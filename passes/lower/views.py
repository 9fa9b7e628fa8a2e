"""Views: operators that move elements. Each is a map whose body is one load, free once it is inlined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor
from onnx2wgsl.ir.dtypes import I32, I64
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index

from .registry import Context, lower

Indices = tuple[Index, ...]


def view(c: Context, x: Tensor, shape: Sequence[int], where: Callable[[Indices], Sequence[Index]]) -> Tensor:
    """`result[i] = x[where(i)]`."""
    return c.map(shape, lambda *i: x[tuple(where(i))])


def reshape_to(c: Context, x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in row-major order under another shape."""
    shape = tuple(shape)
    if shape == x.shape:
        return x
    return view(c, x, shape, lambda i: ix.unflatten(ix.flatten(i, shape), x.shape))


def axes_of(c: Context, position: int, rank: int) -> list[int] | None:
    """Normalised axes of an attribute `axes` (before opset 13) or of an input, or None where both are absent."""
    given = c.attr("axes") if c.attr("axes") is not None else c.ints(position) if c.optional(position) else None
    if given is None:
        return None
    result = [c.axis(a, rank) for a in given]
    if len(set(result)) != len(result):
        raise c.refuse(f"axes {given} name an axis twice")
    return result


@lower("Reshape")
def reshape(c: Context) -> Tensor:
    """A size of 0 copies the input's (unless `allowzero`), one size of -1 is what is left."""
    x = c[0]
    given = [int(s) for s in c.attr("shape")] if c.attr("shape") is not None else c.ints(1)
    sizes = list(given)
    for k, size in enumerate(given):
        if size == 0 and not c.attr("allowzero", 0):
            if k >= x.rank:
                raise c.refuse(f"shape {given} copies dimension {k} of {x.type}, which has none")
            sizes[k] = x.shape[k]
    if sizes.count(-1) > 1 or any(s < -1 for s in sizes):
        raise c.refuse(f"shape {given} is not valid")
    if -1 in sizes:
        rest = prod(s for s in sizes if s != -1)
        if rest == 0 or x.type.count % rest:
            raise c.refuse(f"{x.type} cannot be reshaped to {given}")
        sizes[sizes.index(-1)] = x.type.count // rest
    if prod(sizes) != x.type.count:
        raise c.refuse(f"{x.type} cannot be reshaped to {given}")
    return reshape_to(c, x, sizes)


@lower("Flatten")
def flatten(c: Context) -> Tensor:
    x = c[0]
    axis = c.attr("axis", 1)
    if not -x.rank <= axis <= x.rank:
        raise c.refuse(f"axis {axis} is out of range for rank {x.rank}")
    axis += x.rank if axis < 0 else 0
    return reshape_to(c, x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


@lower("Transpose")
def transpose(c: Context) -> Tensor:
    x = c[0]
    perm = c.attr("perm", list(reversed(range(x.rank))))
    if sorted(perm) != list(range(x.rank)):
        raise c.refuse(f"perm {perm} is not a permutation of the axes of {x.type}")
    return view(c, x, [x.shape[p] for p in perm], lambda i: [i[perm.index(k)] for k in range(x.rank)])


@lower("Squeeze")
def squeeze(c: Context) -> Tensor:
    x = c[0]
    found = axes_of(c, 1, x.rank)
    dropped = [k for k, s in enumerate(x.shape) if s == 1] if found is None else found
    if any(x.shape[k] != 1 for k in dropped):
        raise c.refuse(f"axes {dropped} of {x.type} are not all of size 1")
    kept = [k for k in range(x.rank) if k not in dropped]
    return view(
        c,
        x,
        [x.shape[k] for k in kept],
        lambda i: [i[kept.index(k)] if k in kept else ix.constant(0) for k in range(x.rank)],
    )


@lower("Unsqueeze")
def unsqueeze(c: Context) -> Tensor:
    x = c[0]
    given = c.attr("axes") if c.attr("axes") is not None else c.ints(1)
    rank = x.rank + len(given)
    added = axes_of(c, 1, rank) or []
    kept = [k for k in range(rank) if k not in added]
    return view(
        c, x, [1 if k in added else x.shape[kept.index(k)] for k in range(rank)], lambda i: [i[k] for k in kept]
    )


def strided(c: Context, x: Tensor, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int]) -> Tensor:
    """`result[i] = x[starts + steps · i]`."""
    if tuple(shape) == x.shape and not any(starts) and all(s == 1 for s in steps):
        return x
    return view(c, x, shape, lambda i: [v * step + start for v, start, step in zip(i, starts, steps, strict=True)])


def slice_bounds(start: int, end: int, step: int, size: int) -> tuple[int, int]:
    """First position and number of elements of a slice, clamped as ONNX says."""
    lowest, highest = (0, size) if step > 0 else (-1, size - 1)
    start, end = (v + size if v < 0 else v for v in (start, end))
    start = min(max(start, 0), highest)
    end = min(max(end, lowest), highest)
    return start, max(0, -((start - end) // step) if step > 0 else -((end - start) // -step))


@lower("Slice")
def slice_(c: Context) -> Tensor:
    x = c[0]
    if c.attr("starts") is not None:
        starts, ends, axes, steps = c.attr("starts"), c.attr("ends"), c.attr("axes"), None
    else:
        starts, ends = c.ints(1), c.ints(2)
        axes = c.ints(3) if c.optional(3) is not None else None
        steps = c.ints(4) if c.optional(4) is not None else None
    axes = list(range(len(starts))) if axes is None else [c.axis(a, x.rank) for a in axes]
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or len(set(axes)) != len(axes):
        raise c.refuse(f"starts {starts}, ends {ends}, axes {axes} and steps {steps} do not fit together")
    if 0 in steps:
        raise c.refuse("a step of 0 has no meaning")
    first, stride, shape = [0] * x.rank, [1] * x.rank, list(x.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        first[axis], shape[axis] = slice_bounds(start, end, step, x.shape[axis])
        stride[axis] = step
    return strided(c, x, first, stride, shape)


def split_at(c: Context, x: Tensor, axis: int, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Consecutive parts of the given sizes."""
    if sum(sizes) != x.shape[axis] or any(s < 0 for s in sizes):
        raise c.refuse(f"parts {list(sizes)} do not add up to axis {axis} of {x.type}")
    result, offset = [], 0
    for size in sizes:
        starts = [offset if k == axis else 0 for k in range(x.rank)]
        result.append(strided(c, x, starts, [1] * x.rank, [size if k == axis else s for k, s in enumerate(x.shape)]))
        offset += size
    return tuple(result)


@lower("Split")
def split(c: Context) -> tuple[Tensor, ...]:
    x = c[0]
    axis = c.axis(c.attr("axis", 0), x.rank)
    count = c.attr("num_outputs", c.output_count)
    if c.attr("split") is not None:
        sizes = c.attr("split")
    elif c.optional(1) is not None:
        sizes = c.ints(1)
    else:
        chunk = -(-x.shape[axis] // count)
        sizes = [max(0, min(chunk, x.shape[axis] - k * chunk)) for k in range(count)]
    if len(sizes) != c.output_count:
        raise c.refuse(f"{len(sizes)} parts for {c.output_count} outputs")
    return split_at(c, x, axis, sizes)


def concat_of(c: Context, parts: Sequence[Tensor], axis: int) -> Tensor:
    """Joins tensors that differ only along `axis`."""
    first = parts[0]
    axis = c.axis(axis, first.rank)
    for p in parts:
        if p.dtype is not first.dtype or p.rank != first.rank:
            raise c.refuse(f"{first.type} and {p.type} cannot be concatenated")
        if p.shape[:axis] + p.shape[axis + 1 :] != first.shape[:axis] + first.shape[axis + 1 :]:
            raise c.refuse(f"{first.type} and {p.type} cannot be concatenated along axis {axis}")
    return first if len(parts) == 1 else c.builder.concat(parts, axis)


@lower("Concat")
def concat(c: Context) -> Tensor:
    return concat_of(c, [c[k] for k in range(len(c.inputs))], c.attr("axis", 1 if c.version < 4 else 0))


@lower("Expand")
def expand(c: Context) -> Tensor:
    x, target = c[0], c.ints(1)
    rank = max(x.rank, len(target))
    own = [1] * (rank - x.rank) + list(x.shape)
    other = [1] * (rank - len(target)) + target
    if any(a != b and 1 not in (a, b) for a, b in zip(own, other, strict=True)):
        raise c.refuse(f"{x.type} does not broadcast with {target}")
    shape = tuple(b if a == 1 else a for a, b in zip(own, other, strict=True))
    return x if shape == x.shape else c.map(shape, x.at)


@lower("Tile")
def tile_1(c: Context) -> Tensor:
    """The first version repeats one axis, both given as inputs."""
    x, count, axis = c[0], c.ints(1)[0], c.axis(c.ints(2)[0], c[0].rank)
    return tiled(c, x, [count if k == axis else 1 for k in range(x.rank)])


@lower("Tile", since=6)
def tile(c: Context) -> Tensor:
    return tiled(c, c[0], c.ints(1))


def tiled(c: Context, x: Tensor, repeats: Sequence[int]) -> Tensor:
    if len(repeats) != x.rank or any(r < 0 for r in repeats):
        raise c.refuse(f"repeats {list(repeats)} do not fit {x.type}")
    shape = [s * r for s, r in zip(x.shape, repeats, strict=True)]
    return view(c, x, shape, lambda i: [v % s if s else v for v, s in zip(i, x.shape, strict=True)])


@lower("Pad")
def pad_1(c: Context) -> Tensor:
    pads = c.attr("pads") if c.attr("pads") is not None else c.attr("paddings")
    return padded(c, c[0], pads, ex.const(c.attr("value", 0.0), c[0].dtype))


@lower("Pad", since=11)
def pad(c: Context) -> Tensor:
    x, pads = c[0], c.ints(1)
    axes = [c.axis(a, x.rank) for a in c.ints(3)] if c.optional(3) is not None else list(range(x.rank))
    if len(pads) != 2 * len(axes) or len(set(axes)) != len(axes):
        raise c.refuse(f"pads {pads} do not fit axes {axes} of {x.type}")
    full = [0] * (2 * x.rank)
    for k, axis in enumerate(axes):
        full[axis], full[x.rank + axis] = pads[k], pads[len(axes) + k]
    given = c.optional(2)
    value = ex.zero(x.dtype) if given is None else given[(0,) * given.rank]
    return padded(c, x, full, value)


def padded(c: Context, x: Tensor, pads: Sequence[int], value: Expr) -> Tensor:
    """`pads` are the elements added before each axis, then after each; negative ones cut."""
    if len(pads) != 2 * x.rank:
        raise c.refuse(f"pads {list(pads)} do not fit {x.type}")
    before, after = pads[: x.rank], pads[x.rank :]
    shape = [s + b + a for s, b, a in zip(x.shape, before, after, strict=True)]
    if any(s < 0 for s in shape):
        raise c.refuse(f"pads {list(pads)} cut more than {x.type} has")
    mode = c.attr("mode", "constant")
    if mode == "constant":
        return c.map(shape, lambda *i: guarded(x, [v - b for v, b in zip(i, before, strict=True)], value))
    if mode not in _MAPPED:
        raise c.refuse(f"Pad mode {mode} is not known")
    if any(not s and t for s, t in zip(x.shape, shape, strict=True)):
        raise c.refuse(f"an empty axis of {x.type} cannot be padded by mode {mode}")
    mapped = _MAPPED[mode]
    return view(c, x, shape, lambda i: [mapped(v - b, s) for v, b, s in zip(i, before, x.shape, strict=True)])


def guarded(x: Tensor, where: Sequence[Index], outside: Expr) -> Expr:
    """`x[where]` inside of the tensor, else `outside`."""
    inside = ex.TRUE
    for i, size in zip(where, x.shape, strict=True):
        inside = inside & ex.in_range(i, 0, size)
    return outside if inside == ex.FALSE else ex.select(inside, x[tuple(where)], outside)


def clamped(i: Index, size: int) -> Index:
    """The nearest index that lies inside of an axis."""
    if i.lo >= 0 and i.hi < size:
        return i
    value = ex.index_value(i, I32)
    value = ex.op("max", value, ex.const(0, I32)) if i.lo < 0 else value
    value = ex.op("min", value, ex.const(size - 1, I32)) if i.hi >= size else value
    return ix.value_index(value, 0, size - 1)


def _reflect(i: Index, size: int) -> Index:
    """Mirrors at the first and last element, which are not repeated."""
    if i.lo >= 0 and i.hi < size:
        return i
    if size == 1:
        return ix.constant(0)
    period = 2 * (size - 1)
    phase = i % period
    if phase.hi < size:
        return phase
    value = ex.op("min", ex.index_value(phase, I32), ex.index_value(period - phase, I32))
    return ix.value_index(value, 0, size - 1)


def _wrap(i: Index, size: int) -> Index:
    return i % size


_MAPPED = {"edge": clamped, "reflect": _reflect, "wrap": _wrap}


def _blocks(c: Context) -> tuple[int, bool]:
    mode, size = c.attr("mode", "DCR"), c.attr("blocksize")
    if mode not in ("DCR", "CRD") or size < 1:
        raise c.refuse(f"mode {mode} with block size {size} is not known")
    return size, mode == "DCR"


@lower("DepthToSpace")
def depth_to_space(c: Context) -> Tensor:
    """Channels are (block row, block column, channel) for DCR and (channel, block row, block column) for CRD."""
    x = c[0]
    b, depth_first = _blocks(c)
    n, channels, *space = _ranked(c, x)
    if channels % (b * b):
        raise c.refuse(f"the channels of {x.type} are not a multiple of {b * b}")
    depth = channels // (b * b)

    def where(i: Indices) -> list[Index]:
        inner = (i[2] % b) * b + i[3] % b
        channel = inner * depth + i[1] if depth_first else i[1] * (b * b) + inner
        return [i[0], channel, i[2] // b, i[3] // b]

    return view(c, x, (n, depth, space[0] * b, space[1] * b), where)


@lower("SpaceToDepth")
def space_to_depth(c: Context) -> Tensor:
    x = c[0]
    b, depth_first = _blocks(c)
    n, depth, h, w = _ranked(c, x)
    if h % b or w % b:
        raise c.refuse(f"height and width of {x.type} are not multiples of {b}")

    def where(i: Indices) -> list[Index]:
        block, channel = (i[1] // depth, i[1] % depth) if depth_first else (i[1] % (b * b), i[1] // (b * b))
        return [i[0], channel, i[2] * b + block // b, i[3] * b + block % b]

    return view(c, x, (n, depth * b * b, h // b, w // b), where)


def _ranked(c: Context, x: Tensor) -> tuple[int, int, int, int]:
    if x.rank != 4:
        raise c.refuse(f"an input of rank 4 is needed, got {x.type}")
    return x.shape[0], x.shape[1], x.shape[2], x.shape[3]


@lower("ReverseSequence")
def reverse_sequence(c: Context) -> Tensor:
    """Reverses the first `sequence_lens[batch]` elements along the time axis."""
    x, lengths = c[0], c[1]
    time, batch = c.axis(c.attr("time_axis", 0), x.rank), c.axis(c.attr("batch_axis", 1), x.rank)
    size = x.shape[time]

    def where(i: Indices) -> list[Index]:
        length = ex.assume(ex.cast(lengths[i[batch]], I64), 0, size)
        position = ex.index_value(i[time], I64)
        mirrored = ex.select(position < length, length - 1 - position, position)
        return [ix.value_index(mirrored, 0, size - 1) if k == time else v for k, v in enumerate(i)]

    return view(c, x, x.shape, where)


@lower("CenterCropPad")
def center_crop_pad(c: Context) -> Tensor:
    """Crops or pads each axis to its target size around the centre; an odd element counts at the end."""
    x, target = c[0], c.ints(1)
    axes = [c.axis(a, x.rank) for a in c.attr("axes", list(range(x.rank)))]
    if len(axes) != len(target):
        raise c.refuse(f"shape {target} does not fit axes {axes}")
    shape, offset = list(x.shape), [0] * x.rank
    for axis, size in zip(axes, target, strict=True):
        extra = x.shape[axis] - size
        shape[axis], offset[axis] = size, extra // 2 if extra >= 0 else -(-extra // 2)
    return c.map(shape, lambda *i: guarded(x, [v + o for v, o in zip(i, offset, strict=True)], ex.zero(x.dtype)))
