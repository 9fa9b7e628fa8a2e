"""Sliding windows: the geometry that convolutions and pooling share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index, IndexLike, index

from .registry import Context


@dataclass(frozen=True)
class Window:
    """One spatial axis: `out` windows of `kernel` taps over `size` elements with `before` and `after` padded ones."""

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    out: int

    @property
    def extent(self) -> int:
        """How many elements a window spans."""
        return (self.kernel - 1) * self.dilation + 1

    def position(self, o: IndexLike, k: IndexLike) -> Index:
        """Where tap `k` of window `o` lies; negative or beyond the size in the padding."""
        return index(o) * self.stride + index(k) * self.dilation - self.before


def positions(windows: Sequence[Window], o: Sequence[Index], k: Sequence[Index]) -> tuple[tuple[Index, ...], Expr]:
    """The input position of each axis, and the condition that none lies in the padding."""
    found = tuple(w.position(oi, ki) for w, oi, ki in zip(windows, o, k, strict=True))
    inside = ex.TRUE
    for w, p in zip(windows, found, strict=True):
        inside = inside & ex.in_range(p, 0, w.size)
    return found, inside


def per_axis(c: Context, name: str, rank: int, default: int) -> list[int]:
    """An attribute with one integer per spatial axis."""
    values = c.attr(name) or [default] * rank
    if len(values) != rank:
        raise c.refuse(f"attribute {name} has {len(values)} values for {rank} spatial axes")
    return [int(v) for v in values]


def auto_pad(c: Context) -> str:
    """The padding mode: NOTSET, VALID, SAME_UPPER or SAME_LOWER."""
    mode = str(c.attr("auto_pad", "NOTSET") or "NOTSET")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise c.refuse(f"auto_pad {mode} is not a padding mode")
    return mode


def pads(c: Context, rank: int) -> list[tuple[int, int]]:
    """The explicit padding before and after each spatial axis."""
    values = c.attr("pads") or [0] * (2 * rank)
    if len(values) != 2 * rank:
        raise c.refuse(f"attribute pads has {len(values)} values for {rank} spatial axes")
    return [(int(values[k]), int(values[k + rank])) for k in range(rank)]


def sliding_windows(
    c: Context, sizes: Sequence[int], kernel: Sequence[int], ceil: bool = False, crop: bool = False
) -> tuple[Window, ...]:
    """Windows by the attributes strides, dilations, pads and auto_pad; `ceil` lets the last one overhang.

    Where a stride exceeds the kernel, SAME would pad by a negative amount: `crop` takes it so (as pooling does).
    """
    rank = len(sizes)
    if len(kernel) != rank:
        raise c.refuse(f"a kernel of {len(kernel)} axes does not fit {rank} spatial axes")
    strides, dilations = per_axis(c, "strides", rank, 1), per_axis(c, "dilations", rank, 1)
    for name, values in (("kernel", kernel), ("strides", strides), ("dilations", dilations)):
        if any(v < 1 for v in values):
            raise c.refuse(f"{name} {list(values)} must be positive")
    mode, explicit = auto_pad(c), pads(c, rank)
    return tuple(
        _window(size, k, s, d, mode, p, ceil, crop)
        for size, k, s, d, p in zip(sizes, kernel, strides, dilations, explicit, strict=True)
    )


def _window(
    size: int, kernel: int, stride: int, dilation: int, mode: str, explicit: tuple[int, int], ceil: bool, crop: bool
) -> Window:
    extent = (kernel - 1) * dilation + 1
    before, after = explicit if mode == "NOTSET" else (0, 0)
    if mode.startswith("SAME"):
        out = -(-size // stride)
        total = (out - 1) * stride + extent - size
        total = total if crop else max(total, 0)
        before = int(total / 2) if mode == "SAME_UPPER" else int((total + 1) / 2)
        return Window(size, kernel, stride, dilation, before, total - before, out)
    room = size + before + after - extent
    out = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (out - 1) * stride >= size + before:
        out -= 1
    return Window(size, kernel, stride, dilation, before, after, max(out, 0))
