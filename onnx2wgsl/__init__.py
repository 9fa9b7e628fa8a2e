"""onnx2wgsl: an ahead-of-time compiler from ONNX to WebGPU.

    artifact = onnx2wgsl.compile("model.onnx", dims={"batch": 1})
    artifact.save("out/")
    with onnx2wgsl.Session(onnx2wgsl.load("out/")) as session:
        outputs = session.run({"x": array})

The public names are imported on first use, so that `import onnx2wgsl` alone stays quick and a machine that only
replays artifacts never imports the compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .errors import (
    ArtifactError,
    CompileError,
    DeviceError,
    DeviceLostError,
    Gap,
    InputError,
    Onnx2WgslError,
    OutOfMemoryError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from .artifact import Artifact, load
    from .compiler import compile  # noqa: A004
    from .runtime.session import Session

__version__ = "0.1.0"

__all__ = [
    "Artifact",
    "ArtifactError",
    "CompileError",
    "DeviceError",
    "DeviceLostError",
    "Gap",
    "InputError",
    "Onnx2WgslError",
    "OutOfMemoryError",
    "Session",
    "UnsupportedError",
    "__version__",
    "compile",
    "load",
]

_LAZY = {
    "Artifact": "onnx2wgsl.artifact",
    "load": "onnx2wgsl.artifact",
    "compile": "onnx2wgsl.compiler",
    "Session": "onnx2wgsl.runtime.session",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
