"""The commands `compile` and `check`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

import onnx2wgsl
from onnx2wgsl.artifact import Artifact
from onnx2wgsl.ir.plan import Entry

from . import options as opt
from .output import print_json, print_lines, print_table, progress_bar, spell_bytes
from .passes import dump_into


def compile_command(
    model: opt.Model,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="where the artifact goes")],
    dim: opt.Dims = [],
    shape: opt.Shapes = [],
    bind: opt.Binds = [],
    state: opt.States = [],
    entry: opt.Entries = [],
    image_input: opt.Images = [],
    output_name: opt.Outputs = [],
    from_: opt.From = [],
    to: opt.To = [],
    target: opt.Target = None,
    precision: opt.Precision = None,
    memory: opt.Memory = None,
    int64: opt.Int64 = None,
    f64: opt.F64 = None,
    dump: Annotated[Path | None, typer.Option("--dump-passes", metavar="DIR", help="write what each pass made")] = None,
    as_json: opt.Json = False,
) -> None:
    """Compile MODEL into an artifact: a folder with a plan, kernels and weights."""
    chosen = opt.compile_options(
        dims=dim,
        shapes=shape,
        binds=bind,
        states=state,
        entries=entry,
        images=image_input,
        outputs=output_name,
        from_=from_,
        to=to,
        target=target,
        precision=precision,
        memory=memory,
        int64=int64,
        f64=f64,
    )
    start = time.perf_counter()
    with progress_bar() as on_progress:
        on_pass = None if dump is None else dump_into(dump)
        artifact = onnx2wgsl.compile(model, **chosen, on_progress=on_progress, on_pass=on_pass)
        artifact.save(output)
    report = _report(artifact, output, time.perf_counter() - start)
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def _report(artifact: Artifact, folder: Path, seconds: float) -> dict[str, Any]:
    return {
        "id": artifact.id,
        "path": str(folder),
        "seconds": round(seconds, 3),
        "kernels": len(artifact.plan.kernels),
        "weight_bytes": sum(buffer.size for buffer in artifact.plan.buffers),
        "entries": [_entry_report(entry) for entry in artifact.plan.entries],
    }


def _entry_report(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "dispatches": sum(step.op == "dispatch" for step in entry.steps),
        "inputs": {port.name: [port.dtype, list(port.shape)] for port in entry.inputs},
        "outputs": {port.name: [port.dtype, list(port.shape)] for port in entry.outputs},
        "working_bytes": sum(buffer.size for buffer in entry.buffers),
    }


def _print_report(report: dict[str, Any]) -> None:
    print_lines(f"{report['path']}: {report['kernels']} kernels, {spell_bytes(report['weight_bytes'])} of weights")
    print_table(
        ["entry", ">dispatches", ">working memory", "inputs", "outputs"],
        [
            (
                entry["name"],
                entry["dispatches"],
                spell_bytes(entry["working_bytes"]),
                _spell_ports(entry["inputs"]),
                _spell_ports(entry["outputs"]),
            )
            for entry in report["entries"]
        ],
    )
    print_lines(f"id {report['id']}  ({report['seconds']:.1f} s)")


def _spell_ports(ports: dict[str, Any]) -> str:
    return ", ".join(f"{name} {dtype}{shape}" for name, (dtype, shape) in ports.items())


def check_command(
    model: opt.Model,
    dim: opt.Dims = [],
    shape: opt.Shapes = [],
    bind: opt.Binds = [],
    as_json: opt.Json = False,
) -> None:
    """List all that keeps MODEL from being compiled, at once."""
    from onnx2wgsl import compiler

    gaps = compiler.check(model, **opt.compile_options(dims=dim, shapes=shape, binds=bind))
    if as_json:
        print_json({"gaps": [{"node": gap.node, "op": gap.op, "reason": gap.reason} for gap in gaps]})
    elif gaps:
        print_table(["operator", "node", "reason"], [(gap.op, gap.node, gap.reason) for gap in gaps])
    else:
        print_lines("No gaps: every node has a lowering.")
    if gaps:
        raise typer.Exit(1)
