"""The order of all passes, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .assign_bindings import AssignBindings
from .base import Pass
from .build_plan import BuildPlan
from .fuse import Fuse
from .legalize_types import LegalizeTypes
from .merge_contractions import MergeContractions
from .narrow_int64 import NarrowInt64
from .place_concats import PlaceConcats
from .plan_memory import PlanMemory
from .schedule import Schedule
from .split_int64 import SplitInt64


@dataclass(frozen=True)
class Options:
    """Choices of a compilation that passes take as their options."""

    memory: str = "fast"
    entry: str = "main"
    states: tuple[tuple[str, str], ...] = ()
    bound: tuple[str, ...] = ()


def tensor_passes(options: Options) -> Sequence[Pass[Any, Any]]:
    """From the tensor program to the plan."""
    return [
        PlaceConcats(),
        Fuse(),
        MergeContractions(),
        NarrowInt64(),
        SplitInt64(),
        LegalizeTypes(),
        Schedule(),
        PlanMemory(options.memory),
        AssignBindings(),
        BuildPlan(options.entry, options.states, options.bound),
    ]
