"""fuse (L1): fewer kernels, less memory traffic; can be run again, and stops when nothing changes.

1. *Views* go into every reader.
2. *Epilogue*: a map over a contraction's or reduction's result becomes a store of that nest.
3. *Maps* go into their readers, all or none, where computing them again costs less than storing them.
4. *Rows*: reductions and maps over the same rows become one nest.
5. *Operands*: cheap maps go into the operands of contractions.
6. *Absorb*: a map that a row nest reads, and others too, moves into that nest.

LayerNorm, softmax, RMS norm and GELU, spelled in small operators, become one nest or an epilogue by these rules alone.
Every rule that declines says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from onnx2wgsl.ir.program import Nest, Node, Program, Scan, TensorType

from .base import Pass, PassResult
from .fusion.epilogue import fuse_epilogue
from .fusion.graph import Graph
from .fusion.inline import inline_map, inline_views
from .fusion.rows import absorb, fuse_rows

Rule = Callable[[Graph, int, int], "str | None"]


@dataclass
class Log:
    """What each rule did, and why it declined."""

    done: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def note(self, rule: str, where: str, reason: str | None) -> bool:
        if reason is None:
            self.done[rule] = self.done.get(rule, 0) + 1
            return True
        self.refused[f"{rule} {where}"] = reason
        return False


@dataclass(frozen=True)
class Fuse(Pass[Program, Program]):
    name: ClassVar[str] = "fuse"

    def run(self, program: Program) -> PassResult[Program]:
        log = Log()
        nodes = fused(program.nodes, program.tensors, {p.tensor for p in program.outputs}, log)
        result = program.with_nodes(nodes)
        statistics = {"nodes_before": len(program.nodes), "nodes_after": len(result.nodes), **log.done}
        refusals = tuple(f"{where}: not fused, {reason}" for where, reason in log.refused.items())
        return PassResult(result, bool(log.done), statistics, refusals)


def fused(nodes: Iterable[Node], tensors: dict[str, TensorType], keep: set[str], log: Log) -> list[Node]:
    """Fuses a list of nodes, and first the bodies of its scans."""
    prepared = [_fuse_body(n, tensors, log) if isinstance(n, Scan) else n for n in nodes]
    graph = Graph.of(prepared, tensors, keep)
    changed = True
    while changed:
        changed = _forward(graph, "view", inline_views, log)
        changed |= _pairs(graph, "epilogue", fuse_epilogue, log)
        changed |= _forward(graph, "map", lambda g, n: inline_map(g, n, False), log)
        changed |= _pairs(graph, "rows", fuse_rows, log)
        if not changed:
            changed = _forward(graph, "operand", lambda g, n: inline_map(g, n, True), log)
        if not changed:
            changed = _pairs(graph, "absorb", absorb, log)
    return graph.ordered()


def _fuse_body(scan: Scan, tensors: dict[str, TensorType], log: Log) -> Scan:
    keep = {c.next for c in scan.carried} | {s.value for s in scan.stacked} | ({scan.cond} if scan.cond else set())
    return replace(scan, body=tuple(fused(scan.body, tensors, keep, log)))


def _forward(graph: Graph, rule: str, function: Callable[[Graph, int], str | None], log: Log) -> bool:
    """Applies a rule to every map, producers before readers."""
    changed = False
    order = {id(node): k for k, node in enumerate(graph.ordered())}
    for number in sorted(graph.nodes, key=lambda n: order[id(graph.nodes[n])]):
        nest = graph.nest(number)
        if nest is None or nest.steps or not any(graph.readers.get(t) for t in nest.writes):
            continue
        changed |= log.note(rule, nest.stores[0].tensor, function(graph, number))
    return changed


def _pairs(graph: Graph, rule: str, function: Rule, log: Log) -> bool:
    """Applies a rule to every nest and each of its readers, until the nest has no more to take."""
    changed = False
    for number in list(graph.nodes):
        again = True
        while again and number in graph.nodes:
            again = False
            node = graph.nodes[number]
            if not isinstance(node, Nest):
                break
            for tensor in node.writes:
                for reader in sorted(graph.readers.get(tensor, ())):
                    if reader != number and log.note(rule, tensor, function(graph, number, reader)):
                        again = changed = True
                        break
                if again:
                    break
    return changed
