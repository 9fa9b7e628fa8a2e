"""Losses of classifiers: NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx2wgsl.ir import expr as ex
from onnx2wgsl.ir import index as ix
from onnx2wgsl.ir.builder import Tensor, compute_type, sum_of
from onnx2wgsl.ir.dtypes import I32, DType
from onnx2wgsl.ir.expr import Expr

from .reductions import Rows
from .registry import Context, lower
from .softmax import softmax_of

Finish = Callable[[Expr], Expr]


def likelihood_loss(c: Context, logs: Tensor, target: Tensor, weight: Tensor | None, result: Tensor) -> Tensor:
    """`-w[t] · logs[n, t, …]` with the class t of each target, 0 for the class `ignore_index`; summed or averaged.

    The average divides by the sum of the weights of what is not ignored. `result` gives the type of the loss.
    """
    mode = c.attr("reduction", "mean")
    if mode not in ("none", "sum", "mean"):
        raise c.refuse(f"{c.op} has reduction none, sum or mean, got {mode!r}")
    if logs.rank < 2 or target.shape != (logs.shape[0], *logs.shape[2:]):
        raise c.refuse(f"{c.op} of {logs.type}: targets of {target.type} do not fit")
    ignored, classes, compute = c.attr("ignore_index"), logs.shape[1], compute_type(result.dtype)
    if weight is not None and weight.shape != (classes,):
        raise c.refuse(f"{c.op} needs a weight for each of {classes} classes, got {weight.type}")

    def kept(value: Expr, t: Expr) -> Expr:
        return value if ignored is None else ex.select(t.equals(int(ignored)), ex.zero(compute), value)

    def class_index(t: Expr) -> ix.Index:
        return ix.value_index(ex.assume(ex.cast(t, I32), 0, classes - 1), 0, classes - 1)

    def share(*i: ix.Index) -> Expr:
        t = target[i]
        return kept(ex.one(compute) if weight is None else ex.cast(weight[class_index(t)], compute), t)

    def loss(*i: ix.Index) -> Expr:
        t = target[i]
        own = class_index(t)
        value = -ex.cast(logs[(i[0], own, *i[1:])], compute)
        return kept(value if weight is None else value * ex.cast(weight[own], compute), t)

    if mode == "none":
        return c.map(target.shape, lambda *i: ex.cast(loss(*i), result.dtype))
    if mode == "mean" and weight is None and ignored is None:
        count = target.type.count
        return total(c, target.shape, compute, loss, lambda acc: ex.cast(acc / count, result.dtype))
    if mode == "sum":
        return total(c, target.shape, compute, loss, lambda acc: ex.cast(acc, result.dtype))
    weights = total(c, target.shape, compute, share, lambda acc: acc)
    return total(c, target.shape, compute, loss, lambda acc: ex.cast(acc / weights[()], result.dtype))


def total(c: Context, over: Sequence[int], dtype: DType, body: Callable[..., Expr], finish: Finish) -> Tensor:
    """The sum over all targets, as a scalar."""
    return c.reduce((), over, sum_of(dtype), lambda _, r: body(*r), lambda acc, *_: finish(acc))[0]


@lower("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood_loss(c: Context) -> Tensor:
    return likelihood_loss(c, c[0], c[1], c.optional(2), c[0])


@lower("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy_loss(c: Context) -> tuple[Tensor, ...]:
    """The likelihood loss of `log softmax` over the classes, which is a result too."""
    scores = c[0]
    if scores.rank < 2:
        raise c.refuse(f"SoftmaxCrossEntropyLoss needs [batch, classes, …], got {scores.type}")
    logs = softmax_of(c, scores, Rows(scores.shape, (1,)), log=True, wide=True)
    loss = likelihood_loss(c, logs, c[1], c.optional(2), scores)
    if not c.wants(1):
        return (loss,)
    return loss, c.map(scores.shape, lambda *i: ex.cast(logs[i], scores.dtype))
