"""Arrays in files, among them types that NumPy cannot store."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from onnx2wgsl.cli.arrays import describe, from_storage, load_inputs, save_arrays, to_storage
from onnx2wgsl.ir.plan import Port


def test_keys_may_be_names_or_have_a_prefix(tmp_path: Path) -> None:
    path = tmp_path / "io.npz"
    np.savez(path, **{"x": np.zeros(1), "in/y": np.ones(2), "out/0": np.ones(3), "in/z": np.ones(4)})
    assert sorted(load_inputs(path, {"x", "y", "in/z"})) == ["in/z", "x", "y"]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_other_types_come_back_from_their_bits(tmp_path: Path, name: str) -> None:
    array = np.array([0, 1, -2, 3], np.float32).astype(np.dtype(getattr(ml_dtypes, name)))
    short = {"bfloat16": "bf16", "float8_e4m3fn": "f8e4m3fn", "int4": "i4"}[name]
    save_arrays(tmp_path / "x.npz", {"x": array})
    stored = load_inputs(tmp_path / "x.npz", {"x"})
    assert stored["x"].dtype.kind == "u"
    restored = from_storage(stored, [Port("x", short, (4,), None, 0)])["x"]
    assert restored.dtype == array.dtype
    assert to_storage(restored).tolist() == to_storage(array).tolist()


def test_description_is_short() -> None:
    assert describe(np.arange(10, dtype=np.int32)) == "int32[10]  [0, 1, 2, 3, 4, 5, …]"
