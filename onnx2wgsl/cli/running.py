"""The commands `run` and `verify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer

import onnx2wgsl
from onnx2wgsl.bisection import Suspect, bisect_passes
from onnx2wgsl.errors import escape_name
from onnx2wgsl.ir.program import Program
from onnx2wgsl.verify import (
    DEFAULT_TOLERANCE,
    Difference,
    Verification,
    random_inputs,
    reference_of,
    verify_artifact,
)

from . import options as opt
from .arrays import describe, from_storage, load_inputs, save_arrays
from .output import print_json, print_lines, print_table, progress_bar
from .values import load_array, read_pairs

InputFile = Annotated[Path | None, typer.Option("--inputs", metavar="FILE.npz", exists=True, dir_okay=False)]


def run_command(
    folder: opt.Folder,
    input_: Annotated[list[str], typer.Option("--input", metavar="NAME=FILE.npy", help="one input")] = [],
    inputs: InputFile = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE.npz", help="where the outputs go")] = None,
    entry: Annotated[str, typer.Option(help="which plan")] = "main",
    as_json: opt.Json = False,
) -> None:
    """Run the artifact in DIR once and print its outputs, or write them to a file."""
    artifact = onnx2wgsl.load(folder)
    ports = artifact.plan.entry(entry).inputs
    arrays = load_inputs(inputs, {port.name for port in ports}) if inputs else {}
    arrays |= read_pairs("--input", input_, lambda option, text: load_array(option, Path(text)))
    with progress_bar() as on_progress, onnx2wgsl.Session(artifact, entry, on_progress=on_progress) as session:
        outputs = session.run(from_storage(arrays, ports))
    if output is not None:
        save_arrays(output, outputs)
    if as_json:
        print_json({name: _as_json(array) for name, array in outputs.items()})
    else:
        print_table(["output", "value"], [(name, describe(array)) for name, array in outputs.items()])


def _as_json(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"dtype": array.dtype.name, "shape": list(array.shape)} | (
        {"data": array.tolist()} if array.size <= 64 else {}
    )


def verify_command(
    model: opt.Model,
    inputs: InputFile = None,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="how many random inputs")] = 3,
    bisect: Annotated[bool, typer.Option("--bisect", help="find the first pass that is wrong")] = False,
    tolerance: Annotated[float, typer.Option(help="relative to the output's largest magnitude")] = DEFAULT_TOLERANCE,
    dim: opt.Dims = [],
    shape: opt.Shapes = [],
    bind: opt.Binds = [],
    target: opt.Target = None,
    memory: opt.Memory = None,
    int64: opt.Int64 = None,
    f64: opt.F64 = None,
    as_json: opt.Json = False,
) -> None:
    """Compile MODEL, run it, and compare with ONNX Runtime on the CPU."""
    chosen = opt.compile_options(dims=dim, shapes=shape, binds=bind, target=target, memory=memory, int64=int64, f64=f64)
    with progress_bar() as on_progress:
        artifact = onnx2wgsl.compile(model, **chosen, on_progress=on_progress)
    ports = artifact.plan.entry("main").inputs
    if inputs is not None:
        given = [from_storage(load_inputs(inputs, {port.name for port in ports}), ports)]
    else:
        given = [random_inputs(ports, seed) for seed in range(runs)]
    bound = chosen.get("bind", {})
    reference = reference_of(model, lambda: _first_program(model, chosen), bound)
    verification = verify_artifact(artifact, reference, given, tolerance)
    suspect: Suspect | None = None
    if bisect:
        from onnx2wgsl import compiler

        traces = compiler.run_pipeline(model, compiler.CompileOptions(**chosen))
        suspect = bisect_passes(traces, reference, given[0], tolerance, bound, artifact)
    if as_json:
        print_json(_verification_as_json(verification, suspect, bisect))
    else:
        _print_verification(verification, suspect, bisect)
    if suspect or not verification.passed:
        raise typer.Exit(1)


def _first_program(model: Path, chosen: Mapping[str, Any]) -> Program:
    from onnx2wgsl import compiler

    traces = compiler.run_pipeline(model, compiler.CompileOptions(**chosen), until="lower-ops")
    return cast(Program, traces[-1].program)


def _verification_as_json(verification: Verification, suspect: Suspect | None, bisected: bool) -> dict[str, Any]:
    report: dict[str, Any] = asdict(verification) | {"passed": verification.passed}
    return report | ({"suspect": asdict(suspect) if suspect else None} if bisected else {})


def _print_verification(verification: Verification, suspect: Suspect | None, bisected: bool) -> None:
    print_lines(f"Reference: {verification.reference}. Runs: {verification.runs}.")
    _print_differences(verification.differences)
    if not verification.repeatable:
        print_lines("Two runs with the same inputs gave different bits.")
    if not bisected:
        return
    if suspect is None:
        print_lines("What every pass made agrees with the reference.")
        return
    where = f" The first tensor that differs is {escape_name(suspect.tensor)}." if suspect.tensor else ""
    print_lines(f"The first pass that differs is {suspect.name}; {suspect.after} is still right.{where}")
    _print_differences(suspect.differences)


def _print_differences(differences: Sequence[Difference]) -> None:
    print_table(
        ["output", ">largest difference", ">relative", "verdict"],
        [
            (d.output, f"{d.absolute:.3g}", f"{d.relative:.3g}", "right" if d.passed else f"WRONG {d.problem}")
            for d in differences
        ],
    )
