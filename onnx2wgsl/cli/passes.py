"""Show and write what each pass made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx2wgsl.ir.program import Program

from .output import print_table, spell_statistics

if TYPE_CHECKING:
    from onnx2wgsl.compiler import PassTrace


def render(program: object) -> str:
    """Return the text form of what a pass made: a model, a tensor program, or a later level's own text."""
    if not isinstance(program, Program):
        return str(program)
    from onnx2wgsl.ir.text import print_program

    return print_program(program)


def dump_passes(traces: Sequence[PassTrace], folder: Path) -> None:
    """Write one numbered file a pass: .onnx for models, .txt for all else."""
    import onnx_ir

    folder.mkdir(parents=True, exist_ok=True)
    for number, trace in enumerate(traces):
        stem = f"{number:02}-{trace.name}"
        if isinstance(trace.program, onnx_ir.Model):
            onnx_ir.save(trace.program, folder / f"{stem}.onnx")
        else:
            (folder / f"{stem}.txt").write_text(render(trace.program), encoding="utf-8")


def print_traces(traces: Sequence[PassTrace]) -> None:
    """Print a table of the passes and, below it, what they refused to do and why."""
    print_table(
        ["pass", "level", ">ms", "statistics"],
        [(t.name, t.level, f"{t.seconds * 1000:.0f}", spell_statistics(t.statistics)) for t in traces],
    )
    refusals = [(trace.name, str(refusal)) for trace in traces for refusal in trace.refusals]
    if refusals:
        print_table(["pass", "refused"], refusals, title=f"refusals: {len(refusals)}")


def traces_as_json(traces: Sequence[PassTrace]) -> list[dict[str, Any]]:
    """Return what `print_traces` shows, for programs."""
    return [
        {
            "name": trace.name,
            "level": str(trace.level),
            "seconds": trace.seconds,
            "statistics": dict(trace.statistics),
            "refusals": [str(refusal) for refusal in trace.refusals],
        }
        for trace in traces
    ]
