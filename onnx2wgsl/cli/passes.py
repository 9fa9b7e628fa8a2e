"""Show and write what each pass made."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx2wgsl.errors import CompileError, escape_name
from onnx2wgsl.ir.kernel import KernelProgram
from onnx2wgsl.ir.program import Program
from onnx2wgsl.ir.text import print_kernels, print_program

from .output import print_table, spell_statistics

if TYPE_CHECKING:
    from onnx2wgsl.compiler import PassTrace


def render(program: object) -> str:
    """Return the text form of what a pass made: a model, a tensor program, kernels, or a later level's own text."""
    if isinstance(program, Program):
        return print_program(program)
    return print_kernels(program) if isinstance(program, KernelProgram) else str(program)


def dump_into(folder: Path) -> Callable[[PassTrace], None]:
    """Return a callback that writes one numbered file a pass: .onnx for models, .txt for all else."""
    numbers: Counter[str] = Counter()

    def write(trace: PassTrace) -> None:
        import onnx_ir

        target = folder if trace.entry == "main" else folder / safe_file_name(trace.entry)
        stem = f"{numbers[trace.entry]:02}-{trace.name}"
        numbers[trace.entry] += 1
        try:
            target.mkdir(parents=True, exist_ok=True)
            if isinstance(trace.program, onnx_ir.Model):
                onnx_ir.save(trace.program, target / f"{stem}.onnx")
            else:
                (target / f"{stem}.txt").write_text(render(trace.program), encoding="utf-8")
        except OSError as error:
            raise CompileError(f"{escape_name(target)} cannot be written: {error.strerror}.") from error

    return write


def safe_file_name(name: str) -> str:
    """Return a stranger's name as a file name that stays in its folder."""
    kept = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:60]
    return kept if kept == name else f"{kept}-{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:8]}"


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
