"""Arrays in files: the .npz conventions of the command line, and types that NumPy cannot store."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import typer

from onnx2wgsl.errors import InputError, escape_name
from onnx2wgsl.ir.dtypes import BY_NAME
from onnx2wgsl.ir.plan import Port

Array = np.ndarray[Any, Any]


def load_inputs(path: Path, names: Collection[str]) -> dict[str, Array]:
    """Return the inputs in a .npz file, whose keys are names or `in/NAME`; `out/INDEX` is left out."""
    inputs: dict[str, Array] = {}
    for key, array in _load_npz("--inputs", path).items():
        if key in names:
            inputs[key] = array
        elif key.startswith("in/"):
            inputs[key.removeprefix("in/")] = array
        elif not key.startswith("out/"):
            inputs[key] = array
    return inputs


def _load_npz(option: str, path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            if isinstance(stored, np.lib.npyio.NpzFile):
                return dict(stored)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{option}: {escape_name(path)} cannot be read: {error}") from None
    raise typer.BadParameter(f"{option}: {escape_name(path)} is not a .npz file.")


def from_storage(arrays: Mapping[str, Array], ports: Collection[Port]) -> dict[str, Array]:
    """Return the arrays as the ports' types, where a file could hold only the bits of one."""
    types = {port.name: BY_NAME[port.dtype].numpy for port in ports}
    return {name: _from_bits(array, types[name]) if name in types else array for name, array in arrays.items()}


def _from_bits(array: Array, dtype: np.dtype[Any]) -> Array:
    stored_as_bits = dtype.isbuiltin != 1 and array.dtype.kind in "Vu" and array.dtype.itemsize == dtype.itemsize
    return array.view(dtype) if stored_as_bits else array


def to_storage(array: Array) -> Array:
    """Return the array, or its bits as unsigned integers where NumPy's files do not know its type."""
    if array.dtype.isbuiltin == 1:
        return array
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays into a .npz file under their names, which may be any text: whole or not at all."""
    try:
        staged = path.with_name(f".{path.name}.part")
        with zipfile.ZipFile(staged, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, to_storage(array), allow_pickle=False)
        staged.replace(path)
    except OSError as error:
        raise InputError(f"{escape_name(path)} cannot be written: {error.strerror}.") from error


def describe(array: Array) -> str:
    """Return dtype, shape and the first few elements in words."""
    flat = array.reshape(-1)
    shown = ", ".join(f"{value:.6g}" if array.dtype.kind == "f" else str(value) for value in flat[:6].tolist())
    return f"{array.dtype}{list(array.shape)}  [{shown}{', …' if flat.size > 6 else ''}]"
