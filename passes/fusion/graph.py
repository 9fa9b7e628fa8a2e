"""A mutable view of a list of nodes for the fusion passes: producers, readers, reachability."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from onnx2wgsl.codegen.storage import root
from onnx2wgsl.ir.program import Nest, Node, TensorType


@dataclass
class Graph:
    """Nodes by number. `keep` are tensors that must be stored: graph outputs, and what outer bodies read."""

    tensors: Mapping[str, TensorType]
    keep: frozenset[str]
    nodes: dict[int, Node] = field(default_factory=dict)
    producers: dict[str, set[int]] = field(default_factory=dict)
    readers: dict[str, set[int]] = field(default_factory=dict)
    _next: int = 0

    @staticmethod
    def of(nodes: Iterable[Node], tensors: Mapping[str, TensorType], keep: Iterable[str]) -> Graph:
        graph = Graph(tensors, frozenset(keep))
        for node in nodes:
            graph.add(node)
        return graph

    def add(self, node: Node) -> int:
        number = self._next
        self._next += 1
        self.put(number, node)
        return number

    def put(self, number: int, node: Node) -> None:
        self.nodes[number] = node
        for t in self.written(node):
            self.producers.setdefault(t, set()).add(number)
        for t in node.reads:
            self.readers.setdefault(t, set()).add(number)

    def written(self, node: Node) -> Iterator[str]:
        """What a node writes: tensors, and the parents that placed ones are parts of."""
        for name in node.writes:
            yield name
            while (place := self.tensors[name].place) is not None:
                name = place.parent
                yield name

    def remove(self, number: int) -> Node:
        node = self.nodes.pop(number)
        for t in self.written(node):
            self.producers[t].discard(number)
        for t in node.reads:
            self.readers[t].discard(number)
        return node

    def replace(self, number: int, node: Node) -> None:
        self.remove(number)
        self.put(number, node)

    def nest(self, number: int) -> Nest | None:
        node = self.nodes.get(number)
        return node if isinstance(node, Nest) else None

    def writers(self, tensor: str) -> set[int]:
        """The nodes that a reader of a tensor depends on: a parent of placed parts has several."""
        return self.producers.get(tensor, set())

    def stored(self, tensor: str) -> bool:
        """Whether a tensor must exist in memory whoever reads it."""
        return tensor in self.keep or self.tensors[tensor].place is not None

    def slots(self, nest: Nest) -> int:
        """Storage buffers that a nest binds."""
        return len({root(self.tensors, t) for t in (*nest.reads, *nest.writes)})

    def inputs(self, number: int) -> Iterator[int]:
        for t in self.nodes[number].reads:
            yield from self.writers(t)

    def other_path(self, source: int, sink: int) -> bool:
        """Whether a path leads from `source` to `sink` through any other node."""
        stack = [n for n in self.inputs(sink) if n not in (source, sink)]
        seen = set(stack)
        while stack:
            for n in self.inputs(stack.pop()):
                if n == source:
                    return True
                if n not in seen and n != sink:
                    seen.add(n)
                    stack.append(n)
        return False

    def ordered(self) -> list[Node]:
        """The nodes such that each comes after what it reads, and else in the order of their numbers."""
        import heapq

        waiting = {n: len(set(self.inputs(n)) - {n}) for n in self.nodes}
        followers: dict[int, list[int]] = {}
        for n in self.nodes:
            for m in set(self.inputs(n)) - {n}:
                followers.setdefault(m, []).append(n)
        ready = [n for n, count in waiting.items() if not count]
        heapq.heapify(ready)
        result = []
        while ready:
            n = heapq.heappop(ready)
            result.append(self.nodes[n])
            for m in followers.get(n, ()):
                waiting[m] -= 1
                if not waiting[m]:
                    heapq.heappush(ready, m)
        if len(result) != len(self.nodes):
            raise AssertionError("fusion made a cycle")
        return result
