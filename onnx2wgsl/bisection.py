"""Find the first pass behind which a model no longer computes what the reference says, and the first wrong tensor.

Every level has a meaning of its own: models run in ONNX Runtime, tensor programs in the interpreter, and the plan, in
which the passes from `schedule` on end, on a device. Tensors keep their names from pass to pass, so that two stages can
be compared tensor by tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import onnx_ir

from .artifact import Artifact
from .ir.dtypes import F32, I32, U32
from .ir.interp import evaluate, interpret, valid_part
from .ir.plan import Plan
from .ir.program import Port, Program
from .passes.pipeline import Options, passes
from .runtime.session import Session
from .verify import DEFAULT_TOLERANCE, Array, Difference, Refused, Runner, compare, run_in_onnxruntime

_ON_DEVICE = "schedule to build-plan"
_AMPLIFIED = 100.0
"""How far two right orders of summation may lie apart, in the error of one of them."""
_TRIED = 64
"""How many tensors a program for a device may hand out at once."""
_NUMBER = re.compile(r"\.\d+$")
"""What `lower-ops` puts behind a model's names; the last tensor of a name is the model's, others lead to it."""


class Stage(Protocol):
    """What `bisect_passes` needs of a pass's trace."""

    @property
    def name(self) -> str: ...
    @property
    def program(self) -> object: ...


@dataclass(frozen=True)
class Suspect:
    """The first pass behind which outputs differ, with the differences.

    `after` is the last pass that was right, `tensor` the first tensor that differs, where both stages have it.
    """

    name: str
    after: str
    differences: tuple[Difference, ...]
    tensor: str | None = None


def bisect_passes(
    traces: Sequence[Stage],
    reference: tuple[str, Runner],
    inputs: Mapping[str, Array],
    tolerance: float = DEFAULT_TOLERANCE,
    bound: Mapping[str, Any] | None = None,
    artifact: Artifact | None = None,
) -> Suspect | None:
    """Run what each pass made and return the first that differs, or None if all agree with the reference.

    The last stage is the artifact on a device, if one is given. The tolerance is widened for a model that amplifies
    the rounding of its own operators.
    """
    expected = reference[1](inputs)
    before: Stage | None = None
    for trace in traces:
        outputs = _outputs(trace.program, inputs, bound or {})
        if outputs is None:
            continue
        if isinstance(trace.program, Program) and not (before and isinstance(before.program, Program)):
            tolerance = max(tolerance, _AMPLIFIED * _rounding(trace.program, inputs, outputs))
        wrong = _wrong(outputs, expected, tolerance)
        if wrong:
            tensor = None if before is None else _first_wrong(before.program, trace.program, inputs, bound, tolerance)
            return Suspect(trace.name, _name_of(before), wrong, tensor)
        before = trace
    if artifact is None:
        return None
    with Session(artifact) as session:
        wrong = _wrong(session.run(inputs), expected, tolerance)
    if not wrong:
        return None
    program = None if before is None else before.program
    tensor = _first_wrong_on_device(program, inputs, tolerance) if isinstance(program, Program) else None
    return Suspect(_ON_DEVICE, _name_of(before), wrong, tensor)


def _rounding(program: Program, inputs: Mapping[str, Array], outputs: Mapping[str, Any]) -> float:
    """How far rounding alone moves the outputs: some models subtract numbers that are almost equal."""
    exact = interpret(program, inputs, wide=True)
    found = [difference.relative for difference in compare(outputs, exact, 0.0)]
    return max((relative for relative in found if np.isfinite(relative)), default=0.0)


def _name_of(stage: Stage | None) -> str:
    return "the model as given" if stage is None else stage.name


def _wrong(actual: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float) -> tuple[Difference, ...]:
    return tuple(difference for difference in compare(actual, expected, tolerance) if not difference.passed)


def _outputs(program: object, inputs: Mapping[str, Array], bound: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a stage computes; None for a level that only a device runs, and for models that ONNX Runtime refuses."""
    if isinstance(program, Program):
        return interpret(program, inputs)
    if not isinstance(program, onnx_ir.Model):
        return None
    try:
        return run_in_onnxruntime(onnx_ir.to_proto(program), bound)(inputs)
    except Refused:
        return None


def _first_wrong(
    right: object, wrong: object, inputs: Mapping[str, Array], bound: Mapping[str, Any] | None, tolerance: float
) -> str | None:
    """The first tensor, in the order of the later stage, that differs between two stages which both have it."""
    expected, found = _tensors(right, inputs, bound or {}), _tensors(wrong, inputs, bound or {})
    last = {_NUMBER.sub("", name): name for name in found}
    for name, value in found.items():
        base = _NUMBER.sub("", name)
        known = expected.get(name, expected.get(base) if last[base] == name else None)
        if known is not None and not compare({"": value}, {"": known}, tolerance)[0].passed:
            return name
    return None


def _tensors(program: object, inputs: Mapping[str, Array], bound: Mapping[str, Any]) -> dict[str, Array]:
    """Every tensor of a stage by its name, in the order in which they are computed."""
    if isinstance(program, Program):
        env = evaluate(program, inputs)
        return {name: valid_part(program, env, name) for name in _computed(program) if name in env}
    if not isinstance(program, onnx_ir.Model):
        return {}
    model = program.clone()
    known = set(model.graph.outputs)
    inner = (o for node in model.graph for o in node.outputs if o.name and o not in known)
    model.graph.outputs.extend(o for o in inner if isinstance(o.type, onnx_ir.TensorType))
    order = [o.name or "" for node in model.graph for o in node.outputs]
    try:
        found = run_in_onnxruntime(onnx_ir.to_proto(model), bound)(inputs)
    except Refused:
        return {}
    return {name: found[name] for name in order if name in found}


def _computed(program: Program) -> Iterator[str]:
    for node in program.nodes:
        yield from node.writes


def _first_wrong_on_device(program: Program, inputs: Mapping[str, Array], tolerance: float) -> str | None:
    """The first tensor that a device computes otherwise than the interpreter, of those that a device can hand out."""
    types = program.tensors
    names = [n for n in _computed(program) if types[n].dtype in (F32, I32, U32) and types[n].place is None]
    names = [n for n in names if types[n].length is None and types[n].count]
    expected = evaluate(program, inputs)
    for start in range(0, len(names), _TRIED):
        chosen = names[start : start + _TRIED]
        ports = tuple(Port(f"{number}", name) for number, name in enumerate(chosen))
        with Session(_built(replace(program, outputs=ports).with_nodes(program.nodes))) as session:
            found = session.run(inputs)
        for port in ports:
            if not compare({"": found[port.name]}, {"": expected[port.tensor]}, tolerance)[0].passed:
                return port.tensor
    return None


def _built(program: Program) -> Artifact:
    """The artifact of a legalised tensor program."""
    options = Options()
    result: Any = program
    everything = list(passes(options))
    for step in everything[[p.name for p in everything].index("schedule") :]:
        result = step.run(result).program
    plan = Plan(
        producer="onnx2wgsl verify",
        source_sha256="0" * 64,
        buffers=options.weights.buffers,
        weights=tuple(options.weights.weights),
        kernels=options.kernels.finished(),
        entries=(result.entry,),
    )
    return Artifact.create(plan, options.weights.blobs())
