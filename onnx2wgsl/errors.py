"""Every error this package raises on purpose, and the escaping of strangers' names for display.

A message is one or more plain sentences that a person can act on. Names that come from a model or an artifact
(nodes, tensors, dims, files) may hold any character; whatever puts one into a message, a comment or a terminal
passes it through `escape_name` first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = [
    "ArtifactError",
    "CompileError",
    "DeviceError",
    "DeviceLostError",
    "Gap",
    "InputError",
    "Onnx2WgslError",
    "OutOfMemoryError",
    "UnsupportedError",
    "escape_name",
]

_LONGEST_NAME = 120
_ELLIPSIS = "…"


def escape_name(name: object, longest: int = _LONGEST_NAME) -> str:
    """Return `name` as printable text on one line, at most `longest` characters long.

    Control characters (ESC and newlines among them), surrogates, and characters that reorder or hide text are
    written as escapes; a backslash is doubled, so that two names never look alike. A longer name loses its middle,
    since the ends of a node's name tell most.
    """
    text = "".join(_escape_character(character) for character in str(name))
    if len(text) <= longest:
        return text
    kept = max(longest - len(_ELLIPSIS), 0)
    head = (kept + 1) // 2
    tail = kept - head
    return text[:head] + _ELLIPSIS + (text[-tail:] if tail else "")


def _escape_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


class Onnx2WgslError(Exception):
    """Base of all errors raised on purpose; anything else that escapes is a defect."""


class CompileError(Onnx2WgslError):
    """The model cannot be compiled as asked: invalid, undetermined shapes, a contradictory option."""


@dataclass(frozen=True)
class Gap:
    """One thing in a model that has no lowering: the node's name, its operator, and why."""

    node: str
    op: str
    reason: str

    def __str__(self) -> str:
        where = f" (node {escape_name(self.node)})" if self.node else ""
        return f"{escape_name(self.op)}{where}: {self.reason}"


class UnsupportedError(CompileError):
    """The model needs something this compiler does not do; `gaps` lists all of them."""

    gaps: tuple[Gap, ...]

    def __init__(self, gaps: Iterable[Gap]) -> None:
        self.gaps = tuple(gaps)
        super().__init__("\n".join(str(gap) for gap in self.gaps))

    def __reduce__(self) -> tuple[type[UnsupportedError], tuple[tuple[Gap, ...]]]:
        return (type(self), (self.gaps,))


class ArtifactError(Onnx2WgslError):
    """An artifact is damaged, inconsistent, of another major version, or unusable here."""


class InputError(Onnx2WgslError):
    """What the caller passed to a session does not fit the artifact."""


class DeviceError(Onnx2WgslError):
    """No adapter, a missing feature or limit, or a failure to create something on the device."""


class DeviceLostError(DeviceError):
    """The device was lost, and the run could not be repeated on a new one."""


class OutOfMemoryError(DeviceError):
    """The device has no memory left for a resource."""
