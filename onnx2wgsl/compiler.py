"""The driver: runs the pipeline for each entry and puts the artifact together."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from onnx2wgsl.ir.verify import VerificationError
from onnx2wgsl.ir.verify import verify as verify_program
from onnx2wgsl.passes.build_plan import BuiltEntry, KernelPool
from onnx2wgsl.passes.pipeline import Options, passes
from onnx2wgsl.passes.plan_memory import WeightPool

OnProgress = Callable[[str, int, int], None]
OnPass = Callable[["PassTrace"], None]
_CHOICES = {
    "precision": ("model",),
    "int64": ("split",),
    "f64": ("f32x2", "f32"),
    "memory": ("fast", "compact"),
    "target": ("baseline",),
}
_OF_ENTRIES = ("dims", "input_shapes", "bind")


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
    verify: bool = True

    def check(self) -> None:
        """Raises CompileError for an option or a value that this version does not have."""
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                known = " and ".join(map(repr, allowed))
                raise CompileError(f"The option {name} is {_spelled(value)}, but this version has {known}.")
        for name in ("functions", "image_inputs", "schedule"):
            if getattr(self, name):
                raise CompileError(f"The option {name} is not available in this version. Leave it out.")
        for name in ("dims", "input_shapes", "bind", "states", "entries"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise CompileError(f"The option {name} wants a dictionary, but got {_spelled(value)}.")
            self._check_names(name, value or ())
        for name in ("outputs", "from_", "to"):
            value = getattr(self, name)
            if isinstance(value, str) or not isinstance(value, (Sequence, type(None))):
                raise CompileError(f"The option {name} wants a list of names, but got {_spelled(value)}.")
            self._check_names(name, value or ())
        if self.outputs and self.to:
            raise CompileError("The options outputs and to both say where the graph ends. Give one of them.")
        self._check_shapes("input_shapes", self.input_shapes)
        self._check_states()
        for name, own in (self.entries or {}).items():
            self._check_entry(name, own)

    def _check_names(self, option: str, names: Iterable[Any]) -> None:
        for name in names:
            if not isinstance(name, str):
                raise CompileError(f"The option {option} has the name {_spelled(name)}, which is not a string.")

    def _check_shapes(self, option: str, shapes: Mapping[str, Any]) -> None:
        for name, shape in shapes.items():
            sizes = list(shape) if isinstance(shape, (Sequence, np.ndarray)) and not isinstance(shape, str) else None
            if sizes is None or not all(_is_size(size) for size in sizes):
                label = f"The shape of {escape_name(name)!r} in {option}"
                raise CompileError(f"{label} must be a list of integers of 0 or more, got {_spelled(shape)}.")

    def _check_states(self) -> None:
        for name, output in self.states.items():
            if not isinstance(output, str):
                raise CompileError(f"The state {escape_name(name)!r} wants the name of an output.")
            if ",capacity=" in output:
                raise CompileError(
                    f"The state {escape_name(name)!r} asks for a capacity, but growing states are not available in "
                    "this version."
                )

    def _check_entry(self, name: str, own: Any) -> None:
        label = f"The entry {escape_name(name)!r}"
        if not isinstance(own, Mapping):
            raise CompileError(f"{label} wants a dictionary of dims, input_shapes and bind, but got {_spelled(own)}.")
        unknown = [key for key in own if key not in _OF_ENTRIES]
        if unknown:
            what = _spelled(unknown[0])
            raise CompileError(f"{label} has the option {what}; entries take dims, input_shapes and bind.")
        for key, value in own.items():
            if not isinstance(value, Mapping):
                raise CompileError(f"The option {key} of entry {escape_name(name)!r} wants a dictionary.")
            self._check_names(key, value)
        self._check_shapes(f"entry {escape_name(name)!r}", own.get("input_shapes", {}))

    def for_entry(self, name: str, weights: WeightPool, kernels: KernelPool) -> Options:
        """The pipeline's options for one entry; what the entry says comes before what is said for all."""
        own = (self.entries or {}).get(name, {})
        return Options(
            entry=name,
            dims={**self.dims, **own.get("dims", {})},
            input_shapes={**self.input_shapes, **own.get("input_shapes", {})},
            bind={**self.bind, **own.get("bind", {})},
            states=tuple(self.states.items()),
            from_=tuple(self.from_ or ()),
            to=tuple(self.to or self.outputs or ()),
            memory=self.memory,
            f64=self.f64,
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
    entry: str = "main"


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
    verify: bool = True,
    on_progress: OnProgress | None = None,
    on_pass: OnPass | None = None,
) -> Artifact:
    """Compiles an ONNX model into an artifact.

    `dims` fixes named dims, `input_shapes` whole inputs, `bind` turns inputs into constants of their own dtype.
    `states` maps an input to the output of the run before that feeds it. `entries` compiles several plans over one set
    of weights, each with dims, input_shapes and bind of its own. `outputs` keeps only these; `from_` and `to` cut the
    graph at tensors. `memory` is "fast" (a few arenas) or "compact" (one). `verify` checks the program between all
    passes. `on_progress(what, done, total)` and `on_pass(trace)` are called after each pass. Raises CompileError, and
    UnsupportedError with all gaps.
    """
    options = CompileOptions(
        dims or {}, input_shapes or {}, bind or {}, states or {}, entries, target, precision, int64, f64, memory,
        outputs, from_, to, functions, image_inputs, schedule, verify,
    )  # fmt: skip
    options.check()
    names = list(entries or ("main",))
    weights, kernels = WeightPool(), KernelPool()
    built: list[BuiltEntry] = []
    records: list[PassRecord] = []
    source = _source_hash(model)
    for name in names:
        made: list[PassRecord] = []
        for trace in _run(model, options.for_entry(name, weights, kernels), verify, on_progress):
            made.append(PassRecord(trace.name, jsonable(trace.options), jsonable(trace.statistics)))
            if on_pass is not None:
                on_pass(trace)
        built.append(trace.program)
        records = records or made
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
    traces: list[PassTrace] = []
    for trace in _run(model, chosen, options.verify, on_progress):
        traces.append(replace(trace, program=_snapshot(trace.program)))
        if trace.name == until:
            break
    return traces


def check(model: Any, **options: Any) -> list[Gap]:
    """Everything that keeps a model from being compiled with these options of `compile`; empty if nothing does."""
    try:
        run_pipeline(model, CompileOptions(**options))
    except UnsupportedError as error:
        return list(error.gaps)
    return []


def _run(model: Any, options: Options, verified: bool, on_progress: OnProgress | None) -> Iterator[PassTrace]:
    """Runs the passes one by one; a later one may change a model that was handed out in place."""
    expr.clear_cache()
    program: Any = model
    pipeline = passes(options)
    for number, step in enumerate(pipeline):
        start = time.perf_counter()
        step.requires(program)
        result = step.run(program)
        step.ensures(result.program)
        program = result.program
        seconds = time.perf_counter() - start
        if verified:
            _verify(step.name, program)
        if on_progress is not None:
            on_progress(step.name, number + 1, len(pipeline))
        level, refusals = level_of(program), result.refusals
        yield PassTrace(
            step.name, level, program, step.options, result.statistics, refusals, seconds, result.changed, options.entry
        )


def _verify(name: str, program: object) -> None:
    try:
        verify_program(program)
    except VerificationError as error:
        raise CompileError(f"The pass {name} left a program that breaks a rule: {error}") from error


def _is_size(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= 0


def _spelled(value: Any) -> str:
    """A value that a caller gave, in quotes where it is text."""
    return repr(escape_name(value)) if isinstance(value, str) else escape_name(value)


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
