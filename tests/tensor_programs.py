"""Small tensor programs: made by hand, interpreted after each pass, and run on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from onnx2wgsl.artifact import Artifact
from onnx2wgsl.ir.builder import Builder, Tensor
from onnx2wgsl.ir.dtypes import DType
from onnx2wgsl.ir.expr import Expr
from onnx2wgsl.ir.interp import interpret
from onnx2wgsl.ir.plan import Plan
from onnx2wgsl.ir.program import Port, Program
from onnx2wgsl.ir.verify import verify
from onnx2wgsl.passes.base import Pass
from onnx2wgsl.passes.pipeline import Options, passes
from onnx2wgsl.runtime.session import Session

Array = np.ndarray[Any, Any]


def tensor_passes(options: Options | None = None) -> Sequence[Pass[Any, Any]]:
    """The passes that follow `lower-ops`."""
    everything = list(passes(options or Options()))
    return everything[[p.name for p in everything].index("lower-ops") + 1 :]


def stages(program: Program) -> Iterator[tuple[str, Program]]:
    """The program, and what it is after each pass that keeps it a tensor program; each is verified."""
    verify(program)
    yield "built", program
    for item in tensor_passes():
        result = item.run(program).program
        verify(result)
        if not isinstance(result, Program):
            return
        program = result
        yield item.name, program


def built(program: Program) -> Artifact:
    """The artifact of a tensor program."""
    options = Options()
    result: Any = program
    for item in tensor_passes(options):
        result = item.run(result).program
        verify(result)
    plan = Plan(
        producer="onnx2wgsl tests",
        source_sha256="0" * 64,
        buffers=options.weights.buffers,
        weights=tuple(options.weights.weights),
        kernels=options.kernels.finished(),
        entries=(result.entry,),
    )
    return Artifact.create(plan, options.weights.blobs())


def elementwise(functions: Mapping[str, Callable[..., Expr]], inputs: Mapping[str, tuple[DType, int]]) -> Program:
    """A program with an output for each function of the inputs' elements."""
    builder = Builder()
    given = {name: builder.tensor(dtype, (count,), name) for name, (dtype, count) in inputs.items()}
    outputs = []
    for name, function in functions.items():
        count = next(iter(inputs.values()))[1]
        made = builder.map((count,), lambda i, f=function: f(*(t[i] for t in given.values())), f"out.{name}")
        outputs.append(Port(name, made.name))
    return finished(builder, list(given.values()), outputs)


def finished(builder: Builder, inputs: Sequence[Tensor], outputs: Sequence[Port]) -> Program:
    """The builder's program with its ports and nodes."""
    program = builder.program
    program.inputs = tuple(Port(t.name, t.name) for t in inputs)
    program.outputs = tuple(outputs)
    program.nodes = tuple(builder.nodes)
    return program


@cache
def device() -> Any:
    """One device for all tests of a process; skips where there is no adapter."""
    wgpu = pytest.importorskip("wgpu")
    try:
        return wgpu.gpu.request_adapter_sync().request_device_sync()
    except (RuntimeError, AttributeError) as error:
        pytest.skip(f"no WebGPU adapter: {error}")


def on_gpu(program: Program, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Runs a tensor program on the adapter that the environment offers."""
    with Session(built(program), device=device()) as session:
        return dict(session.run(feeds))


def everywhere(
    program: Program, feeds: Mapping[str, Array], gpu: bool = True
) -> Iterator[tuple[str, dict[str, Array]]]:
    """The outputs by the interpreter after each pass, and on the GPU."""
    for name, stage in stages(program):
        yield name, interpret(stage, feeds)
    if gpu:
        yield "GPU", on_gpu(program, feeds)
