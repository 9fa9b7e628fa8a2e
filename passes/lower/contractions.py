"""Matrix products: MatMul and Gemm as contractions."""

from __future__ import annotations

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir.builder import Tensor, accumulator
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.index import Index

from .registry import Context, broadcast, lower

Indices = tuple[Index, ...]


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

    def operands(i: Indices, r: Indices) -> tuple[Expr, Expr]:
        m = i[n : n + len(rows)]
        right = (*r, *i[n + len(rows) :])
        return a.at(*i[:n], *m, *r), b.at(*i[:n], *right)

    return c.contract((*batch, *rows, *columns), (a.shape[-1],), operands)


@lower("Gemm", since=7)
def gemm(c: Context) -> Tensor:
    """`Y = alpha · A' · B' + beta · C`, where a prime may transpose and C broadcasts to Y."""
    a, b, bias = c[0], c[1], c.optional(2)
    if a.rank != 2 or b.rank != 2:
        raise c.refuse(f"Gemm needs matrices, got {a.type} and {b.type}")
    flip_a, flip_b = bool(c.attr("transA", 0)), bool(c.attr("transB", 0))
    m, inner = reversed(a.shape) if flip_a else a.shape
    k, n = reversed(b.shape) if flip_b else b.shape
    if inner != k:
        raise c.refuse(f"the inner sizes of {a.type} and {b.type} differ")
    if bias is not None and broadcast(c, (m, n), bias.shape) != (m, n):
        raise c.refuse(f"C of {bias.type} does not broadcast to {[m, n]}")
    dtype = accumulator(a.dtype)
    factors = [c.attr(name, 1.0) for name in ("alpha", "beta")]
    if dtype.is_integer and any(f != int(f) for f in factors):
        raise c.refuse(f"alpha and beta of {factors} are not integers, as {a.type} is")
    alpha, beta = (ex.const(f, dtype) for f in factors)

    def operands(i: Indices, r: Indices) -> tuple[Expr, Expr]:
        left = a[r[0], i[0]] if flip_a else a[i[0], r[0]]
        return left, b[i[1], r[0]] if flip_b else b[r[0], i[1]]

    def finish(total: Expr, *i: Index) -> Expr:
        scaled = total * alpha
        if bias is not None and beta.attr:
            scaled = scaled + ex.cast(bias.at(*i), dtype) * beta
        return ex.cast(scaled, a.dtype)

    return c.contract((m, n), (k,), operands, finish)


@lower("Gemm", since=1)
def gemm_1(c: Context) -> Tensor:
    """Before opset 7 broadcasting C needed the attribute `broadcast`; the meaning is otherwise the same."""
    bias = c[2]
    if not c.attr("broadcast", 0) and bias.shape != _product_shape(c):
        raise c.refuse(f"C of {bias.type} has another shape than the product, and broadcast is not set")
    return gemm(c)


def _product_shape(c: Context) -> tuple[int, int]:
    a, b = c[0], c[1]
    return a.shape[1 if c.attr("transA", 0) else 0], b.shape[0 if c.attr("transB", 0) else 1]
