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


def devices() -> list[AdapterInfo]:
    """All adapters of this machine, in the order in which wgpu lists them."""
    return [adapter_info(adapter) for adapter in wgpu.gpu.enumerate_adapters_sync()]


def adapter_info(adapter: Any) -> AdapterInfo:
    """What is known about a wgpu adapter."""
    info = adapter.info
    return AdapterInfo(
        name=info["device"] or info["description"] or "an unnamed adapter",
        kind="cpu" if info["adapter_type"] == "CPU" else "gpu",
        vendor=info["vendor"],
        architecture=info["architecture"],
        backend=info["backend_type"],
        driver=info["description"],
        features=_spec_features(adapter.features),
        limits=_spec_limits(adapter.limits),
    )


def open_gpu(
    plan: Plan, entry: Entry, adapter: Any = None, device: Any = None, extra_features: tuple[str, ...] = ()
) -> Gpu:
    """A device that can run `entry`: the given one, or a new one of `adapter` (or of the best that there is).

    A new device has the features and limits that the entry's chosen variants need, and no others but `extra_features`.
    Raises DeviceError that says what is missing, what there is, and what to do.
    """
    requires = _baseline(plan, entry)
    if device is not None:
        features, limits = _spec_features(device.features), _spec_limits(device.limits)
        _check("The device that was given", entry, requires, features, limits)
        return Gpu(device, adapter_info(device.adapter))
    adapter = adapter or request_adapter()
    info = adapter_info(adapter)
    _check(f"The adapter {escape_name(info.name)}", entry, requires, info.features, info.limits)
    for step in entry.steps:
        requires = requires.merge(_choose(step, requires, info, info.features, info.limits).requires)
    wanted = [_WGPU_FEATURES.get(name, name) for name in (*requires.features, *extra_features)]
    exact = {_wgpu_limit(name): requires.limit(name) for name in DEFAULT_LIMITS}
    exact |= {_wgpu_limit(name): value for name, value in requires.limits.items() if name not in DEFAULT_LIMITS}
    needs = ", ".join((*wanted, *(f"{name} {value}" for name, value in requires.limits.items())))
    made = create_or_fail(
        "device",
        "",
        lambda: adapter.request_device_sync(required_features=wanted, required_limits=exact),
        info.name,
        needs or "the default limits",
    )
    return Gpu(made, info)


def request_adapter() -> Any:
    """The adapter that wgpu prefers; DeviceError if there is none."""
    try:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except Exception as error:
        raise DeviceError(_NO_ADAPTER) from error
    if adapter is None:
        raise DeviceError(_NO_ADAPTER)
    return adapter


def choose_variants(plan: Plan, entry: Entry, gpu: Gpu) -> tuple[Variant, ...]:
    """For each step the first variant whose needs the device meets and whose preference matches its adapter."""
    features, limits = _spec_features(gpu.device.features), _spec_limits(gpu.device.limits)
    baseline = _baseline(plan, entry)
    return tuple(_choose(step, baseline, gpu.info, features, limits) for step in entry.steps)


def enable_lines(extensions: tuple[str, ...]) -> str:
    """What naga wants before a kernel's text."""
    return "".join(f"enable {name};\n" for name in extensions if name not in _IMPLIED_ENABLES)


def missing(requires: Requires, features: Collection[str], limits: Mapping[str, int]) -> list[str]:
    """What `requires` asks for beyond `features` and `limits`, in words; empty if nothing is missing."""
    lacks = [f"the feature {escape_name(name)}" for name in requires.features if name not in features]
    for name, value in requires.limits.items():
        has = limits.get(name)
        enough = has is not None and (has <= value if name.startswith("min") else has >= value)
        if not enough:
            lacks.append(f"{escape_name(name)} {value} (it has {'none' if has is None else has})")
    unknown = [name for name in requires.wgsl_language_features if name not in _LANGUAGE_FEATURES]
    lacks += [f"the WGSL language feature {escape_name(name)}" for name in unknown]
    return lacks + [f"the subgroup matrix {escape_name(name)}" for name in requires.subgroup_matrix]


_NO_ADAPTER = (
    "No WebGPU adapter was found. Install a driver for Vulkan, Metal or Direct3D 12; "
    "on Linux without a GPU, Mesa's software driver (the package mesa-vulkan-drivers) will do."
)


def _baseline(plan: Plan, entry: Entry) -> Requires:
    return plan.requires.merge(entry.baseline_requires)


def _check(who: str, entry: Entry, requires: Requires, features: Collection[str], limits: Mapping[str, int]) -> None:
    lacks = missing(requires, features, limits)
    if lacks:
        raise DeviceError(
            f"{who} cannot run the entry '{escape_name(entry.name)}': it lacks {', '.join(lacks)}. "
            "Compile with --target baseline, or use another adapter (`onnx2wgsl devices` lists them)."
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
