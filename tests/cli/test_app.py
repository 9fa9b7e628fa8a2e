"""The command line as a whole: exit codes and errors in words."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from onnx2wgsl.cli import main

MODEL = """
<ir_version: 10, opset_import: ["" : 17]>
sum (float[2, 3] x, float[3] y) => (float[2, 3] z) { s = Add (x, y) z = Relu (s) }
"""


@dataclass(frozen=True)
class Outcome:
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object) -> Outcome:
    """Run the command line in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["onnx2wgsl", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Outcome(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "sum.onnx"
    onnx.save(parser.parse_model(MODEL), path)
    return path


@pytest.fixture(scope="module")
def artifact(model: Path) -> Path:
    outcome = run("compile", model, "-o", model.with_name("out"), "--json")
    assert outcome.returncode == 0, outcome.stderr
    assert len(json.loads(outcome.stdout)["id"]) == 64
    return model.with_name("out")


def test_the_module_is_the_command_line() -> None:
    command = [sys.executable, "-m", "onnx2wgsl", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("onnx2wgsl ")


def test_usage_errors_exit_with_2(model: Path) -> None:
    assert run("compile", model).returncode == 2
    assert run("compile", model, "-o", "out", "--dim", "batch").returncode == 2
    assert run("run", "no-such-folder").returncode == 2


def test_run_writes_outputs(artifact: Path, tmp_path: Path) -> None:
    x, y = np.arange(-3, 3, dtype=np.float32).reshape(2, 3), np.ones(3, np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "rest.npz", **{"in/y": y})
    result = tmp_path / "result.npz"
    outcome = run(
        "run", artifact, "--input", f"x={tmp_path / 'x.npy'}", "--inputs", tmp_path / "rest.npz", "--output", result
    )
    assert outcome.returncode == 0, outcome.stderr
    np.testing.assert_array_equal(np.load(result)["z"], np.maximum(x + y, 0))


def test_errors_are_words_and_exit_with_1(artifact: Path) -> None:
    outcome = run("run", artifact)
    assert outcome.returncode == 1
    assert outcome.stderr.splitlines()[-1] == "Error: Missing inputs: 'x', 'y'."
    assert "Traceback" not in outcome.stderr


def test_verify_and_bisect(model: Path) -> None:
    outcome = run("verify", model, "--bisect", "--json")
    assert outcome.returncode == 0, outcome.stderr
    report = json.loads(outcome.stdout)
    assert report["passed"]
    assert report["reference"] == "ONNX Runtime on the CPU"
    assert report["suspect"] is None


def test_check_lists_gaps(model: Path, tmp_path: Path) -> None:
    assert run("check", model).returncode == 0
    unknown = parser.parse_model(MODEL.replace("Relu", "NoSuchOperator"))
    onnx.save(unknown, tmp_path / "unknown.onnx")
    outcome = run("check", tmp_path / "unknown.onnx", "--json")
    assert outcome.returncode == 1
    assert [gap["op"] for gap in json.loads(outcome.stdout)["gaps"]] == ["NoSuchOperator"]


def test_inspect_shows_passes_and_steps(model: Path, artifact: Path) -> None:
    assert "lower-ops" in run("inspect", model).stdout
    assert "steps: 1" in run("inspect", artifact).stdout
    report = json.loads(run("inspect", artifact, "--json").stdout)
    assert [port["name"] for port in report["entries"][0]["inputs"]] == ["x", "y"]
