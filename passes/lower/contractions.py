"""Matrix products and convolutions: contractions over guarded index maps."""

from __future__ import annotations

from onnx2wgsl.ir.builder import Tensor

from .registry import Context, broadcast, lower


@lower("MatMul")
def matmul(c: Context) -> Tensor:
    """NumPy matmul: `Y[…, m, n] = Σ_k A[…, m, k] · B[…, k, n]`, a 1-D operand losing its axis."""
    a, b = c[0], c[1]
    if not a.rank or not b.rank:
        raise c.refuse(f"MatMul needs operands of rank 1 or more, got {a.type} and {b.type}")
    if a.shape[-1] != b.shape[max(b.rank - 2, 0)]:
        raise c.refuse(f"the inner sizes of {a.type} and {b.type} differ")
    batch = broadcast(c, a.shape[:-2], b.shape[:-2])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.rank > 1 else ()
    n = len(batch)

    def operands(i, r):  # type: ignore[no-untyped-def]
        m = i[n : n + len(rows)]
        right = (*r, *i[n + len(rows) :])
        return a.at(*i[:n], *m, *r), b.at(*i[:n], *right)

    return c.contract((*batch, *rows, *columns), (a.shape[-1],), operands)
