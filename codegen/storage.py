"""How a tensor lies in its buffer: the one place where a multi-index becomes an address.

Elements are row-major in the outermost parent of a placed tensor. A type that WGSL can store is one array element;
narrower types are packed into u32 words, lowest bits first, as ONNX has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.dtypes import BOOL, F32, F32X2, F64, I32, I64, U32, U32X2, U64, DType
from onnx2wgsl.ir.index import Index
from onnx2wgsl.ir.program import TensorType

_WORDS = (F32, I32, U32, U32X2, F32X2)
_WHOLE: Mapping[DType, DType] = {**{t: t for t in _WORDS}, I64: U32X2, U64: U32X2, F64: U32X2}


@dataclass(frozen=True)
class Storage:
    """`element` is the WGSL array's element; `per_word` how many tensor elements one element holds."""

    element: DType
    per_word: int


def storage_of(dtype: DType) -> Storage:
    """The storage of a type; KeyError never: narrow types are packed words."""
    if dtype in _WHOLE:
        return Storage(_WHOLE[dtype], 1)
    if dtype.bits > 32:
        raise ValueError(f"{dtype} has no storage on the GPU; legalize-types must remove it")
    return Storage(U32, 32 // dtype.bits)


def root(tensors: Mapping[str, TensorType], name: str) -> str:
    """The outermost parent of a placed tensor; the tensor itself where it is not placed."""
    while (place := tensors[name].place) is not None:
        name = place.parent
    return name


def address(tensors: Mapping[str, TensorType], name: str, indices: Sequence[Index]) -> Index:
    """The row-major element position in the root's buffer."""
    where = list(indices)
    while (place := tensors[name].place) is not None:
        where[place.axis] = where[place.axis] + place.offset
        name = place.parent
    return ix.flatten(where, tensors[name].shape)


def byte_size(t: TensorType) -> int:
    """Bytes of a tensor's elements in its buffer, rounded up to a multiple of 4."""
    bits = t.count * (8 if t.dtype is BOOL else t.dtype.bits)
    return -(-bits // 32) * 4
