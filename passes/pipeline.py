"""The order of all passes, in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .assign_bindings import AssignBindings
from .base import Pass
from .build_plan import BuildPlan, KernelPool
from .fit_bindings import FitBindings
from .fix_shapes import FixShapes
from .fold_affine import FoldAffine
from .fold_constants import FoldConstants
from .fuse import Fuse
from .legalize_types import LegalizeTypes
from .load_model import LoadModel
from .lower_ops import LowerOps
from .merge_contractions import MergeContractions
from .narrow_int64 import NarrowInt64
from .pack_constants import PackConstants
from .place_concats import PlaceConcats
from .plan_memory import PlanMemory, WeightPool
from .schedule import Schedule
from .simplify import Simplify
from .split_float64 import SplitFloat64
from .split_int64 import SplitInt64
from .split_large import SplitLarge


@dataclass(frozen=True)
class Options:
    """What one entry is compiled with; the pools hold what the entries of an artifact share."""

    entry: str = "main"
    dims: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    bind: Mapping[str, Any] = field(default_factory=dict)
    states: tuple[tuple[str, str], ...] = ()
    from_: tuple[str, ...] = ()
    to: tuple[str, ...] = ()
    memory: str = "fast"
    f64: str = "f32x2"
    weights: WeightPool = field(default_factory=WeightPool)
    kernels: KernelPool = field(default_factory=KernelPool)


def passes(options: Options) -> Sequence[Pass[Any, Any]]:
    """All passes, from the model to the plan."""
    return [
        LoadModel(options.from_, options.to),
        FixShapes(options.dims, options.input_shapes, options.bind),
        FoldConstants(),
        Simplify(),
        LowerOps(),
        PlaceConcats(),
        Fuse(),
        FoldAffine(),
        Fuse(),
        MergeContractions(),
        PackConstants(),
        SplitLarge(),
        FitBindings(),
        NarrowInt64(),
        SplitInt64(),
        SplitFloat64(options.f64),
        LegalizeTypes(),
        Schedule(),
        PlanMemory(options.memory, options.weights),
        AssignBindings(),
        BuildPlan(options.entry, options.states, tuple(sorted(options.bind)), options.kernels),
    ]
