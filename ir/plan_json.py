"""The text form of a capture plan: `plan.json`, for people and programs, the same bytes for the same plan.

Fields at their default are left out, unknown fields are ignored. A kernel's text is a file of its own; the plan holds
its SHA-256. `plan.schema.json` is the published schema.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from onnx2wgsl.errors import ArtifactError, escape_name

from .plan import FORMAT_VERSION, Entry, Kernel, Plan

_LINE_LENGTH = 160
_MARKUP = re.compile("<(?=[/!])")


def kernel_file(kernel_id: str) -> str:
    """Where a kernel's text lies in the artifact's folder."""
    return f"kernels/{kernel_id}.wgsl"


def print_plan(plan: Plan) -> bytes:
    """The bytes of `plan.json`: ASCII, and harmless inside of a page, where only `</` and `<!` mean something."""
    document = {"format_version": plan.format_version} | _encode(plan)
    return _MARKUP.sub(r"\\u003c", _pretty(document) + "\n").encode("ascii")


def print_entry(entry: Entry) -> str:
    """An entry as it stands in `plan.json`."""
    return _pretty(_encode(entry)) + "\n"


def parse_plan(text: bytes, read_kernel: Callable[[str], str]) -> Plan:
    """The plan in `text`; `read_kernel` gives a kernel file's text by its name in the artifact.

    Raises ArtifactError for another major version, what the schema refuses, and a kernel whose hash differs. The rest
    is up to `verify_plan`.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"plan.json is not JSON: {error}") from error
    _check_version(document)
    _check_schema(document)
    kernels = [kernel | {"wgsl": _read_checked(kernel, read_kernel)} for kernel in document["kernels"]]
    plan: Plan = _decode(Plan, document | {"kernels": kernels})
    return plan


@cache
def plan_schema() -> dict[str, Any]:
    """The JSON schema of `plan.json`."""
    schema: dict[str, Any] = json.loads(Path(__file__).with_name("plan.schema.json").read_text("utf-8"))
    return schema


def _check_version(document: Any) -> None:
    version = document.get("format_version") if isinstance(document, dict) else None
    if not isinstance(version, str):
        raise ArtifactError("plan.json has no format_version, so this is no onnx2wgsl artifact.")
    major = FORMAT_VERSION.split(".")[0]
    if version.split(".")[0] != major:
        raise ArtifactError(
            f"This artifact has format version {escape_name(version)}, but this runtime reads versions {major}.x. "
            "Compile the model again, or use the version of onnx2wgsl that made it."
        )


def _check_schema(document: Any) -> None:
    validator = jsonschema.Draft202012Validator(plan_schema())
    error = jsonschema.exceptions.best_match(validator.iter_errors(document))
    if error is not None:
        raise ArtifactError(f"plan.json is malformed at {escape_name(error.json_path)}: {escape_name(error.message)}")


def _read_checked(kernel: Mapping[str, Any], read_kernel: Callable[[str], str]) -> str:
    name = kernel_file(kernel["id"])
    text = read_kernel(name)
    if _sha256(text) != kernel["sha256"]:
        raise ArtifactError(f"{name} is not the text that plan.json was made with: its SHA-256 differs.")
    return text


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _encode(value: Any) -> Any:
    if isinstance(value, Kernel):
        return _encode_fields(value, skip="wgsl") | {"sha256": _sha256(value.wgsl)}
    if dataclasses.is_dataclass(value):
        return _encode_fields(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {key: _encode(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    return value


def _encode_fields(value: Any, skip: str = "") -> dict[str, Any]:
    fields = [field for field in dataclasses.fields(value) if field.name != skip]
    return {
        field.name: _encode(getattr(value, field.name))
        for field in fields
        if getattr(value, field.name) != _default(field)
    }


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if callable(field.default_factory) else field.default


def _decode(expected: Any, value: Any) -> Any:
    """`value`, which the schema has checked, as the type `expected`."""
    if dataclasses.is_dataclass(expected) and isinstance(expected, type):
        hints = _hints(expected)
        return expected(**{name: _decode(hints[name], item) for name, item in value.items() if name in hints})
    if expected is bytes:
        return bytes.fromhex(value)
    if expected is int:
        return int(value)  # JSON has one type of number, and 4.0 is an integer there
    arguments = typing.get_args(expected)
    origin = typing.get_origin(expected)
    if origin is types.UnionType and value is not None:
        return _decode(arguments[0], value)
    if origin is tuple and arguments[-1] is Ellipsis:
        return tuple(_decode(arguments[0], item) for item in value)
    if origin is tuple:
        return tuple(_decode(argument, item) for argument, item in zip(arguments, value, strict=True))
    if origin is Mapping:
        return {key: _decode(arguments[1], item) for key, item in value.items()}
    return value


@cache
def _hints(expected: type) -> dict[str, Any]:
    return typing.get_type_hints(expected)


def _pretty(value: Any, indent: int = 0) -> str:
    """JSON in which whatever fits stands on one line."""
    flat = json.dumps(value, allow_nan=False)
    if len(flat) + indent <= _LINE_LENGTH or not isinstance(value, dict | list) or not value:
        return flat
    inner = " " * (indent + 1)
    if isinstance(value, list):
        items = [_pretty(item, indent + 1) for item in value]
        brackets = "[]"
    else:
        items = [f"{json.dumps(key)}: {_pretty(item, indent + 1)}" for key, item in value.items()]
        brackets = "{}"
    return brackets[0] + "\n" + ",\n".join(inner + item for item in items) + "\n" + " " * indent + brackets[1]
