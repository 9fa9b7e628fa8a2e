"""The cache of bind groups."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from onnx2wgsl.ir.plan import Step


class BindGroupCache:
    """Bind groups by the whole layout signature and the identities of what they bind.

    An entry holds its buffers, so that an identity is not given to another buffer while it is a key. A step keeps its
    latest groups only: kept outputs would pile up otherwise.
    """

    PER_STEP = 4

    def __init__(self) -> None:
        self._groups: dict[str, OrderedDict[tuple[object, ...], tuple[Any, Sequence[Any]]]] = {}

    def get(self, step: Step, buffers: Sequence[Any], make: Callable[[], Any]) -> Any:
        """The bind group of `step` over `buffers` (one for each binding), made by `make` if there is none yet."""
        resources = zip(step.bindings, buffers, strict=True)
        key = (step.signature, *((b.slot, id(buffer), b.offset, b.size) for b, buffer in resources))
        groups = self._groups.setdefault(step.name, OrderedDict())
        if key not in groups:
            groups[key] = (make(), buffers)
        groups.move_to_end(key)
        while len(groups) > self.PER_STEP:
            groups.popitem(last=False)
        return groups[key][0]
