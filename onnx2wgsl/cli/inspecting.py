"""The commands `inspect` and `devices`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import onnx2wgsl
from onnx2wgsl.artifact import Artifact
from onnx2wgsl.ir.plan import Entry, Step
from onnx2wgsl.runtime.device import devices

from . import options as opt
from .output import print_json, print_lines, print_table, spell_bytes, spell_statistics
from .passes import print_traces, render, traces_as_json

_FEATURES = ("shader-f16", "subgroups", "timestamp-query")
"""What kernels and profiles can use of the many features of an adapter."""


def inspect_command(
    source: Annotated[Path, typer.Argument(metavar="MODEL|DIR", exists=True, help="a model, or a compiled artifact")],
    pass_name: Annotated[str | None, typer.Option("--pass", metavar="NAME", help="show what this pass makes")] = None,
    dim: opt.Dims = [],
    shape: opt.Shapes = [],
    bind: opt.Binds = [],
    target: opt.Target = None,
    as_json: opt.Json = False,
) -> None:
    """Show the passes over a model and what each refused, what one pass makes, or the plan in an artifact."""
    if source.is_dir():
        _inspect_artifact(onnx2wgsl.load(source), as_json)
        return
    from onnx2wgsl import compiler

    chosen = opt.compile_options(dims=dim, shapes=shape, binds=bind, target=target)
    traces = compiler.run_pipeline(source, compiler.CompileOptions(**chosen), until=pass_name)
    if as_json:
        print_json({"passes": traces_as_json(traces)})
    elif pass_name:
        print_lines(render(traces[-1].program))
    else:
        print_traces(traces)


def _inspect_artifact(artifact: Artifact, as_json: bool) -> None:
    if as_json:
        print_json(_artifact_as_json(artifact))
        return
    plan = artifact.plan
    print_lines(f"id {artifact.id}, made by {plan.producer}, format {plan.format_version}")
    print_lines(f"{len(plan.kernels)} kernels, {len(plan.weights)} weights of {spell_bytes(_weight_bytes(artifact))}")
    ran = [
        (record.name, spell_statistics(record.options), spell_statistics(record.statistics)) for record in plan.passes
    ]
    print_table(["pass", "options", "statistics"], ran, title="passes")
    for entry in plan.entries:
        _print_entry(entry)


def _print_entry(entry: Entry) -> None:
    ports = [("in", port) for port in entry.inputs] + [("out", port) for port in entry.outputs]
    print_table(
        ["port", "tensor", "dtype", "shape"],
        [(way, port.name, port.dtype, list(port.shape)) for way, port in ports],
        title=f"entry {entry.name}",
    )
    print_table(
        ["buffer", "kind", ">size"],
        [(buffer.name, buffer.kind, spell_bytes(buffer.size)) for buffer in entry.buffers],
        title="buffers",
    )
    print_table(
        ["step", "kernel", "grid", "ONNX nodes"],
        [(step.name, _kernels(step), _grid(step), _spell_nodes(step)) for step in entry.steps],
        title=f"steps: {len(entry.steps)}",
    )


def _spell_nodes(step: Step, most: int = 6) -> str:
    rest = len(step.nodes) - most
    return ", ".join(step.nodes[:most]) + (f" and {rest} more" if rest > 0 else "")


def _kernels(step: Step) -> str:
    return ", ".join(variant.kernel for variant in step.variants)


def _grid(step: Step) -> str:
    return "×".join(str(extent) for extent in step.variants[-1].grid) if step.variants else ""


def _weight_bytes(artifact: Artifact) -> int:
    return sum(buffer.size for buffer in artifact.plan.buffers)


def _artifact_as_json(artifact: Artifact) -> dict[str, Any]:
    plan = artifact.plan
    return {
        "id": artifact.id,
        "producer": plan.producer,
        "format_version": plan.format_version,
        "kernels": len(plan.kernels),
        "weight_bytes": _weight_bytes(artifact),
        "passes": [
            {"name": record.name, "options": dict(record.options), "statistics": dict(record.statistics)}
            for record in plan.passes
        ],
        "entries": [
            {
                "name": entry.name,
                "inputs": [{"name": p.name, "dtype": p.dtype, "shape": list(p.shape)} for p in entry.inputs],
                "outputs": [{"name": p.name, "dtype": p.dtype, "shape": list(p.shape)} for p in entry.outputs],
                "buffers": [{"name": b.name, "kind": b.kind, "size": b.size} for b in entry.buffers],
                "steps": [_step_as_json(step) for step in entry.steps],
            }
            for entry in plan.entries
        ],
    }


def _step_as_json(step: Step) -> dict[str, Any]:
    kernels: Sequence[str] = [variant.kernel for variant in step.variants]
    return {"name": step.name, "op": step.op, "kernels": kernels, "nodes": list(step.nodes)}


def _used(features: Sequence[str]) -> list[str]:
    return [feature for feature in features if feature in _FEATURES]


def devices_command(as_json: opt.Json = False) -> None:
    """List the adapters that wgpu finds here."""
    found = devices()
    if as_json:
        print_json([asdict(info) for info in found])
        return
    print_table(
        ["adapter", "kind", "backend", "driver", "features"],
        [(info.name, info.kind, info.backend, info.driver, ", ".join(_used(info.features))) for info in found],
    )
    if not found:
        print_lines(
            "No adapter was found. On Linux without a GPU, Mesa's software driver (mesa-vulkan-drivers) will do."
        )
        raise typer.Exit(1)
