"""Read the values of command-line options: `NAME=VALUE` splits at the last `=`, since names may hold any character."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import typer

from onnx2wgsl.errors import escape_name

T = TypeVar("T")


def split_pair(option: str, text: str) -> tuple[str, str]:
    """Return name and value of `NAME=VALUE`, split at the last `=`."""
    name, separator, value = text.rpartition("=")
    if not separator or not name:
        raise typer.BadParameter(f"{option} wants NAME=VALUE, but got {escape_name(text)!r}.")
    return name, value


def read_pairs(option: str, texts: Iterable[str], read: Callable[[str, str], T]) -> dict[str, T]:
    """Return a dictionary of all `NAME=VALUE`; `read` turns the option's name and a value into the result."""
    pairs: dict[str, T] = {}
    for text in texts:
        name, value = split_pair(option, text)
        if name in pairs:
            raise typer.BadParameter(f"{option} names {escape_name(name)} twice.")
        pairs[name] = read(option, value)
    return pairs


def read_integer(option: str, text: str) -> int:
    """Return the integer that `text` spells."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{option} wants an integer, but got {escape_name(text)!r}.") from None


def read_shape(option: str, text: str) -> list[int]:
    """Return the extents of `1,3,224,224`; an empty text is the shape of a scalar."""
    return [read_integer(option, extent) for extent in text.split(",")] if text.strip() else []


def read_constant(option: str, text: str) -> Any:
    """Return what `--bind` gives: a number, true or false, a list of them, or the array in a .npy file."""
    if text.endswith(".npy"):
        return load_array(option, Path(text))
    values = [_read_number(option, part) for part in text.split(",")]
    return values if "," in text else values[0]


def _read_number(option: str, text: str) -> bool | int | float:
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        message = f"{option} wants a number, a list of numbers or a .npy file, but got {escape_name(text)!r}."
        raise typer.BadParameter(message) from None


def load_array(option: str, path: Path) -> np.ndarray[Any, Any]:
    """Return the array in a .npy file; pickled objects are refused."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{option}: {escape_name(path)} cannot be read: {error}") from None
    if not isinstance(array, np.ndarray):
        raise typer.BadParameter(f"{option}: {escape_name(path)} is not a .npy file.")
    return array


def read_states(texts: Iterable[str]) -> dict[str, str]:
    """Return input to output (with `,capacity=N` kept where given) of all `--state INPUT=OUTPUT[,capacity=N]`."""
    states: dict[str, str] = {}
    for text in texts:
        pair, marker, capacity = text.rpartition(",capacity=")
        if marker:
            read_integer("--state", capacity)
        name, output = split_pair("--state", pair if marker else text)
        states[name] = f"{output}{marker}{capacity}" if marker else output
    return states


def read_entries(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the entries of all `--entry NAME:dim=V,…`."""
    entries: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, separator, dims = text.partition(":")
        if not separator or not name:
            raise typer.BadParameter(f"--entry wants NAME:dim=V,…, but got {escape_name(text)!r}.")
        entries[name] = {"dims": read_pairs("--entry", dims.split(","), read_integer)}
    return entries


def read_image_inputs(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the image inputs of all `--image-input NAME:size=HxW,mean=a/b/c,deviation=a/b/c,layout=NCHW`."""
    inputs: dict[str, dict[str, Any]] = {}
    for text in texts:
        name, _, fields = text.rpartition(":")
        if not name:
            raise typer.BadParameter(f"--image-input wants NAME:size=HxW,…, but got {escape_name(text)!r}.")
        inputs[name] = read_pairs("--image-input", fields.split(","), _read_image_field)
    return inputs


def _read_image_field(option: str, text: str) -> Any:
    if text[:1].isalpha():
        return text
    if "x" in text:
        return [read_integer(option, extent) for extent in text.split("x")]
    numbers = [float(_read_number(option, part)) for part in text.split("/")]
    return numbers if len(numbers) > 1 else numbers[0]


def only_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, so that `compile` keeps its own defaults for all others."""
    return {name: value for name, value in options.items() if value is not None and value != {} and value != []}
