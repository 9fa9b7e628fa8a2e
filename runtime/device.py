"""Adapters and devices: which there are, whether one can run an entry, and which variants of its kernels it takes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import wgpu

from onnx2wgsl.errors import DeviceError, escape_name
from onnx2wgsl.ir.plan import DEFAULT_LIMITS, Entry, Plan, Requires, Step, Variant

from .create import create_or_fail

_WGPU_FEATURES = {"subgroups": "subgroup"}
"""Features that wgpu-py calls otherwise than the specification."""

_LANGUAGE_FEATURES = frozenset(
    {"packed_4x8_integer_dot_product", "pointer_composite_access", "readonly_and_readwrite_storage_textures"}
)
"""What naga accepts; wgpu-py reports none."""

_IMPLIED_ENABLES = frozenset({"subgroups"})
"""Extensions that naga has without an `enable` line, and whose line it refuses."""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """An adapter in words: `kind` is cpu or gpu; features and limits have the specification's names."""

    name: str
    kind: str
    vendor: str
    architecture: str
    backend: str
    driver: str
    features: tuple[str, ...]
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device with what the runtime asks of it."""

    device: Any
    info: AdapterInfo

    def create(self, kind: str, label: str, **arguments: Any) -> Any:
        """An object of `kind` ("bind group layout" for `create_bind_group_layout`), or a DeviceError in words."""
        method = getattr(self.device, "create_" + kind.replace(" ", "_"))
        return create_or_fail(kind, label, lambda: method(label=escape_name(label), **arguments), self.info.name)

    def create_buffer(self, label: str, size: int, usage: int) -> Any:
        """A zeroed buffer of `size` bytes; OutOfMemoryError where the device has no room."""
        return create_or_fail(
            "buffer",
            label,
            lambda: self.device.create_buffer(label=escape_name(label), size=size, usage=usage),
            self.info.name,
            f"{size} bytes",
        )


def _choose(
    step: Step, baseline: Requires, info: AdapterInfo, features: Collection[str], limits: Mapping[str, int]
) -> Variant:
    for variant in step.variants[:-1]:
        needs = baseline.merge(variant.requires)
        if _prefers(variant, info) and not missing(needs, features, limits):
            return variant
    return step.variants[-1]


def _prefers(variant: Variant, info: AdapterInfo) -> bool:
    known = {"adapter": info.kind, "vendor": info.vendor, "architecture": info.architecture}
    return all(known.get(key, "").lower() == value.lower() for key, value in variant.prefer.items())


def _spec_features(features: Collection[str]) -> tuple[str, ...]:
    names = {ours: spec for spec, ours in _WGPU_FEATURES.items()}
    return tuple(sorted(names.get(name, name) for name in features))


def _spec_limits(limits: Mapping[str, int]) -> dict[str, int]:
    return {re.sub(r"-(\w)", lambda match: match[1].upper(), name): value for name, value in sorted(limits.items())}


def _wgpu_limit(name: str) -> str:
    return re.sub(r"([A-Z])", r"-\1", name).lower()
