"""The driver: runs the pipeline for each entry and puts the artifact together."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir

import onnx2wgsl
from onnx2wgsl.artifact import Artifact
from onnx2wgsl.errors import CompileError, Gap, UnsupportedError, escape_name
from onnx2wgsl.ir import expr
from onnx2wgsl.ir.kernel import KernelProgram
from onnx2wgsl.ir.plan import PassRecord, Plan
from onnx2wgsl.ir.program import Program
from onnx2wgsl.passes.build_plan import BuiltEntry, KernelPool
from onnx2wgsl.passes.pipeline import Options, passes
from onnx2wgsl.passes.plan_memory import WeightPool

OnProgress = Callable[[str, int, int], None]
_CHOICES = {
    "precision": ("model",),
    "int64": ("split",),
    "f64": ("f32x2",),
    "memory": ("fast", "compact"),
    "target": ("baseline",),
}


@dataclass(frozen=True)
class CompileOptions:
    """The options of `compile`, which documents them."""

    dims: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    bind: Mapping[str, Any] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[str, Mapping[str, Any]] | None = None
    target: str = "baseline"
    precision: str = "model"
    int64: str = "split"
    f64: str = "f32x2"
    memory: str = "fast"
    outputs: Sequence[str] | None = None
    from_: Sequence[str] | None = None
    to: Sequence[str] | None = None
    functions: Sequence[Any] = ()
    image_inputs: Mapping[str, Any] | None = None
    schedule: Any = None

    def check(self) -> None:
        """Raises CompileError for an option or a value that this version does not have."""
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise CompileError(
                    f"The option {name} is {escape_name(value)!r}, but this version has {' and '.join(map(repr, allowed))}."
                )
        for name in ("functions", "image_inputs", "schedule"):
            if getattr(self, name):
                raise CompileError(f"The option {name} is not available in this version. Leave it out.")
        for name in (*(v for v in self.states.values() if "," in v),):
            raise CompileError(
                f"The state {escape_name(name)!r} asks for a capacity, but growing states are not available in this version."
            )

    def for_entry(self, name: str, weights: WeightPool, kernels: KernelPool) -> Options:
        """The pipeline's options for one entry; what the entry says comes before what is said for all."""
        own = dict((self.entries or {}).get(name, {}))
        unknown = set(own) - {"dims", "input_shapes", "bind"}
        if unknown:
            raise CompileError(
                f"The entry {escape_name(name)!r} has the option {escape_name(min(unknown))!r}; entries take dims, input_shapes and bind."
            )
        return Options(
            entry=name,
            dims={**self.dims, **own.get("dims", {})},
            input_shapes={**self.input_shapes, **own.get("input_shapes", {})},
            bind={**self.bind, **own.get("bind", {})},
            states=tuple(self.states.items()),
            from_=tuple(self.from_ or ()),
            to=tuple(self.to or self.outputs or ()),
            memory=self.memory,
            weights=weights,
            kernels=kernels,
        )


@dataclass(frozen=True)
class PassTrace:
    """What one pass made of the program. `level` is L0 (model), L1 (tensors), L2 (kernels) or L3 (plan)."""

    name: str
    level: str
    program: Any
    options: Mapping[str, Any]
    statistics: Mapping[str, Any]
    refusals: tuple[str, ...]
    seconds: float
    changed: bool


def compile(  # noqa: A001
    model: str | Path | onnx.ModelProto | onnx_ir.Model,
    *,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    bind: Mapping[str, Any] | None = None,
    states: Mapping[str, str] | None = None,
    entries: Mapping[str, Mapping[str, Any]] | None = None,
    target: str = "baseline",
    precision: str = "model",
    int64: str = "split",
    f64: str = "f32x2",
    memory: str = "fast",
    outputs: Sequence[str] | None = None,
    from_: Sequence[str] | None = None,
    to: Sequence[str] | None = None,
    functions: Sequence[Any] = (),
    image_inputs: Mapping[str, Any] | None = None,
    schedule: Any = None,
    on_progress: OnProgress | None = None,
) -> Artifact:
    """Compiles an ONNX model into an artifact.

    `dims` fixes named dims, `input_shapes` whole inputs, `bind` turns inputs into constants of their own dtype.
    `states` maps an input to the output of the run before that feeds it. `entries` compiles several plans over one set
    of weights, each with dims, input_shapes and bind of its own. `outputs` keeps only these; `from_` and `to` cut the
    graph at tensors. `memory` is "fast" (a few arenas) or "compact" (one). `on_progress(what, done, total)` is called
    after each pass. Raises CompileError, and UnsupportedError with all gaps.
    """
    options = CompileOptions(
        dims or {}, input_shapes or {}, bind or {}, states or {}, entries, target, precision, int64, f64, memory,
        outputs, from_, to, functions, image_inputs, schedule,
    )  # fmt: skip
    options.check()
    names = list(entries or ("main",))
    weights, kernels = WeightPool(), KernelPool()
    built: list[BuiltEntry] = []
    records: list[PassRecord] = []
    source = _source_hash(model)
    for name in names:
        traces = _run(model, options.for_entry(name, weights, kernels), None, on_progress, keep=False)
        built.append(traces[-1].program)
        if not records:
            records = [PassRecord(t.name, jsonable(t.options), jsonable(t.statistics)) for t in traces]
    plan = Plan(
        producer=f"onnx2wgsl {onnx2wgsl.__version__}",
        source_sha256=source,
        buffers=weights.buffers,
        weights=tuple(weights.weights),
        kernels=kernels.finished(),
        entries=tuple(b.entry for b in built),
        passes=tuple(records),
    )
    return Artifact.create(plan, weights.blobs())


def run_pipeline(
    model: Any, options: CompileOptions | None = None, until: str | None = None, on_progress: OnProgress | None = None
) -> list[PassTrace]:
    """Runs the passes for the first entry, up to and with the pass `until`, and returns what each made."""
    options = options or CompileOptions()
    options.check()
    name = next(iter(options.entries or ("main",)))
    chosen = options.for_entry(name, WeightPool(), KernelPool())
    known = [p.name for p in passes(chosen)]
    if until is not None and until not in known:
        raise CompileError(f"There is no pass {escape_name(until)!r}. The passes are: {', '.join(known)}.")
    return _run(model, chosen, until, on_progress, keep=True)


def check(model: Any, **options: Any) -> list[Gap]:
    """Everything that keeps a model from being compiled with these options of `compile`; empty if nothing does."""
    try:
        run_pipeline(model, CompileOptions(**options))
    except UnsupportedError as error:
        return list(error.gaps)
    return []


def _run(
    model: Any, options: Options, until: str | None, on_progress: OnProgress | None, keep: bool
) -> list[PassTrace]:
    expr.clear_cache()
    traces: list[PassTrace] = []
    program: Any = model
    pipeline = passes(options)
    for number, step in enumerate(pipeline):
        start = time.perf_counter()
        step.requires(program)
        result = step.run(program)
        step.ensures(result.program)
        program = result.program
        seconds = time.perf_counter() - start
        kept = _snapshot(program) if keep else program if number == len(pipeline) - 1 else None
        traces.append(
            PassTrace(
                step.name,
                level_of(program),
                kept,
                step.options,
                result.statistics,
                result.refusals,
                seconds,
                result.changed,
            )
        )
        if on_progress is not None:
            on_progress(step.name, number + 1, len(pipeline))
        if step.name == until:
            break
    return traces


def _snapshot(program: Any) -> Any:
    """What a trace keeps: a copy where later passes change the program in place."""
    return program.clone() if isinstance(program, onnx_ir.Model) else program


def level_of(program: object) -> str:
    """The level of the IR that a program is of."""
    if isinstance(program, onnx_ir.Model):
        return "L0"
    if isinstance(program, Program):
        return "L1"
    return "L2" if isinstance(program, KernelProgram) else "L3"


def jsonable(value: Any) -> Any:
    """A value of an option or a statistic as JSON has it; an array as its type and shape."""
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}" if value.size > 16 else jsonable(value.tolist())
    if isinstance(value, np.generic):
        return jsonable(value.item())
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _source_hash(model: Any) -> str:
    """SHA-256 of the model file, or of the serialised model."""
    if isinstance(model, (str, Path)):
        try:
            return hashlib.sha256(Path(model).read_bytes()).hexdigest()
        except OSError:
            return "0" * 64
    proto = onnx_ir.to_proto(model) if isinstance(model, onnx_ir.Model) else model
    if not isinstance(proto, onnx.ModelProto):
        return "0" * 64
    return hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()


__all__ = ["CompileOptions", "PassTrace", "check", "compile", "level_of", "run_pipeline"]
