"""The session: an artifact's entry on a device, and the public calls on it."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from onnx2wgsl.artifact import Artifact
from onnx2wgsl.errors import ArtifactError, DeviceLostError, InputError, escape_name
from onnx2wgsl.ir.dtypes import BY_NAME, from_numpy
from onnx2wgsl.ir.plan import ParamField, Port, Variant

from .create import in_words, is_device_lost, quiet_about_loss
from .device import AdapterInfo, Gpu, choose_variants, open_gpu
from .io import array_from_bytes, bytes_of_array, check_names, check_type, dtype_of, host_array
from .policy import DeviceTensorPolicy
from .profile import Profile, profile_entry
from .program import Copy, Program, Progress
from .readback import Source
from .self_test import SelfTest, run_self_test
from .states import States
from .tensors import DeviceTensor, Owner, slice_to_lengths

T = TypeVar("T")

Array = np.ndarray[Any, Any]


class Session:
    """One entry of an artifact, ready to run; a context manager that closes itself.

    `mode` is "replay" (everything prebuilt, one pass) or "eager" (every bind group anew, each dispatch in a pass of its
    own); both give the same bits. The caller may bring a wgpu `adapter`, or a `device` whose features and limits meet
    the entry's. After a loss of the device the session is rebuilt and the run repeated once, unless `rebuild_on_lost`
    is False. `steps_per_submission` cuts long runs into several submissions. `on_progress` is called with "bytes" or
    "pipelines", how many are done, and how many there are.

    Calls from several threads queue. Raises DeviceError where no device can run the entry.
    """

    def __init__(
        self,
        artifact: Artifact,
        entry: str = "main",
        mode: str = "replay",
        adapter: Any = None,
        device: Any = None,
        rebuild_on_lost: bool = True,
        *,
        steps_per_submission: int | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        if mode not in ("replay", "eager"):
            raise InputError(f"There is no mode '{escape_name(mode)}': expected replay or eager.")
        _check_artifact(artifact)
        self.artifact = artifact
        self.entry = artifact.plan.entry(entry)
        self.mode = mode
        self._adapter = adapter or (None if device is None else device.adapter)
        self._rebuild_on_lost = rebuild_on_lost
        self._steps_per_submission = steps_per_submission
        self._progress = on_progress
        self._inputs = {port.name: port for port in self.entry.inputs}
        self._outputs = {port.name: port for port in self.entry.outputs}
        self._uniform = next((buffer.name for buffer in self.entry.buffers if buffer.kind == "uniform"), "")
        self._states = States(self.entry)
        self._owner = Owner()
        self._baseline_only = False
        self._lock = threading.RLock()
        with quiet_about_loss():
            self._gpu = open_gpu(artifact.plan, self.entry, adapter, device)
            self._program = self._build(self._gpu)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def device(self) -> Any:
        """The wgpu device, for another session on it; after a loss it is another one."""
        return self._gpu.device

    @property
    def adapter(self) -> AdapterInfo:
        """The adapter in words."""
        return self._gpu.info

    @property
    def inputs(self) -> tuple[Port, ...]:
        """The inputs in the model's order, states included."""
        return self.entry.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs in the model's order, those that feed states included."""
        return self.entry.outputs

    @property
    def variants(self) -> dict[str, Variant]:
        """The variant that is used for each step, by the step's name."""
        return {dispatch.step.name: dispatch.variant for dispatch in self._program.dispatches}

    def run(
        self, inputs: Mapping[str, Any], outputs: Collection[str] | None = None, keep: Collection[str] = ()
    ) -> dict[str, Any]:
        """Run the entry once and return its outputs by name, in the model's order.

        `inputs` maps names to NumPy arrays (or scalars) and device tensors of exactly the port's dtype and shape.
        States need not be given. `outputs` names what to return (default: all that feed no state); those in `keep`
        come as device tensors that stay valid over later runs, all others as C-contiguous arrays.

        Raises InputError before anything is written, DeviceLostError if the device was lost and the run could not be
        repeated, and DeviceError for all else that fails on the device.
        """
        with self._exclusively("running"):
            names = self._wanted(outputs, keep)
            values = self._checked(inputs)
            return self._repeated_after_loss(lambda: self._run(values, names, frozenset(keep)), values)

    def tensor(self, value: Any, dtype: Any = None, shape: Sequence[int] | None = None) -> DeviceTensor:
        """A device tensor with the elements of a NumPy array, or over the caller's own wgpu buffer.

        A buffer needs `dtype` and `shape`, the usages STORAGE, COPY_DST and COPY_SRC, and a size that is that of the
        tensor rounded up to 4 bytes.
        """
        with self._exclusively("making a device tensor"):
            if isinstance(value, np.ndarray | np.generic):
                return self._repeated_after_loss(lambda: self._tensor_of_array(np.asarray(value)))
            return self._tensor_of_buffer(value, dtype, shape)

    def get_state(self, name: str) -> Array:
        """A copy of the state that feeds the input `name`; a growing state is cut to its length."""
        with self._exclusively("reading a state"):
            return self._repeated_after_loss(lambda: self._states.get(self._program, name))

    def set_state(self, name: str, value: Any) -> None:
        """Give the state that feeds the input `name` the value of an array or a device tensor."""
        with self._exclusively("setting a state"):
            self._repeated_after_loss(lambda: self._states.set(self._program, name, value), {name: value})

    def reset_states(self) -> None:
        """Make all states zero, and growing ones empty."""
        with self._exclusively("resetting the states"):
            self._repeated_after_loss(lambda: self._states.reset(self._program))

    def warmup(self) -> None:
        """Run the kernels once, so that the driver has compiled them all; states keep their values."""
        with self._exclusively("warming up"):
            self._repeated_after_loss(self._warmup)

    def profile(self, runs: int = 3) -> Profile:
        """Time each step, over inputs of zeros: the best of `runs`, in microseconds.

        It has a program of its own for this, so states and kept outputs are not touched.
        """
        with self._exclusively("profiling"):
            return profile_entry(self.artifact, self.entry, self._gpu, self._adapter, runs)

    def self_test(self, runs: int = 3) -> SelfTest:
        """Run the artifact's golden inputs several times on this device and compare; resets the states.

        Where a preferred variant is wrong here and the baseline right, the session goes on with the baseline. Raises
        ArtifactError if the artifact has no golden inputs.
        """
        with self._exclusively("testing"):
            return run_self_test(self, runs)

    def use_baseline(self) -> None:
        """Take the baseline variant of every step; states go back to what was last read, set or reset."""
        with self._exclusively("building the baseline"):
            self._baseline_only = True
            self._replace_program(self._gpu)

    def close(self) -> None:
        """Free the memory on the device; device tensors of this session become unusable. A second call does nothing."""
        with self._lock, quiet_about_loss():
            if not self._owner.closed:
                self._owner.closed = True
                self._program.destroy()

    @contextmanager
    def _exclusively(self, doing: str) -> Iterator[None]:
        with self._lock, quiet_about_loss():
            if self._owner.closed:
                raise InputError("This session is closed.")
            with in_words(doing, self._gpu.info.name):
                yield

    def _warmup(self) -> None:
        program = self._program
        in_place = [buffer for buffer in self.entry.buffers if buffer.kind == "state"]
        kept = [program.gpu.device.queue.read_buffer(program.own[buffer.name]) for buffer in in_place]
        program.bind(program.own)
        fence = [Source(program.own[port.buffer], 0, 4) for port in self.entry.outputs if port.buffer][:1]
        program.execute(self.mode == "eager", self._steps_per_submission, downloads=fence)
        for buffer, data in zip(in_place, kept, strict=True):
            program.write(buffer.name, data)

    def _build(self, gpu: Gpu) -> Program:
        variants = choose_variants(self.artifact.plan, self.entry, gpu)
        if self._baseline_only:
            variants = tuple(step.variants[-1] for step in self.entry.steps)
        with in_words("building the session", gpu.info.name):
            return Program(self.artifact, self.entry, gpu, variants, self._progress)

    def _replace_program(self, gpu: Gpu) -> None:
        program = self._build(gpu)
        self._states.restore(program)
        self._program.destroy()
        self._gpu, self._program = gpu, program

    def _repeated_after_loss(self, action: Callable[[], T], values: Mapping[str, Any] = MappingProxyType({})) -> T:
        try:
            return action()
        except Exception as error:
            if not is_device_lost(error):
                raise
            self._rebuild(error, values)
            return action()

    def _rebuild(self, error: Exception, values: Mapping[str, Any]) -> None:
        lost = f"The device {self._gpu.info.name} was lost"
        if not self._rebuild_on_lost:
            raise DeviceLostError(f"{lost}. The session was made with rebuild_on_lost=False.") from error
        stale = sorted(self._states.stale)
        self._replace_program(open_gpu(self.artifact.plan, self.entry, self._adapter))
        tensors = [name for name, value in values.items() if isinstance(value, DeviceTensor)]
        if tensors:
            raise DeviceLostError(
                f"{lost}, and with it the device tensor in the input '{escape_name(tensors[0])}'. "
                "The session was rebuilt on a new device; make the tensor again."
            ) from error
        if stale:
            raise DeviceLostError(
                f"{lost}, and with it the state '{escape_name(stale[0])}'. The session was rebuilt; its states have "
                "the values that were last read, set or reset."
            ) from error

    def _wanted(self, outputs: Collection[str] | None, keep: Collection[str]) -> list[str]:
        for what, names in (("outputs", outputs), ("keep", keep)):
            if isinstance(names, str):
                raise InputError(f"Expected a list of names in {what}, but got the string '{escape_name(names)}'.")
            if names is not None and not isinstance(names, Iterable):
                raise InputError(f"Expected a list of names in {what}, but got {escape_name(names)}.")
        check_names("output", (*(outputs or ()), *keep), self._outputs)
        if outputs is None:
            outputs = [name for name in self._outputs if name not in self._states.output_names]
        return [name for name in self._outputs if name in outputs or name in keep]

    def _checked(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(inputs, Mapping):
            raise InputError(f"Expected a dictionary of inputs by name, but got a {type(inputs).__name__}.")
        required = [name for name in self._inputs if name not in self._states]
        check_names("input", inputs, self._inputs, self.entry.bound, required)
        values: dict[str, Any] = {}
        for name, value in inputs.items():
            port = self._inputs[name]
            if name in self._states:
                self._states.check(self._program, name, value)
                values[name] = value
            elif isinstance(value, DeviceTensor):
                value.check_usable(name, self.device)
                check_type(port, value.dtype, value.shape)
                values[name] = value
            else:
                values[name] = host_array(port, value)
        return values

    def _run(self, values: Mapping[str, Any], names: Sequence[str], keep: Collection[str]) -> dict[str, Any]:
        program = self._program
        for name, value in values.items():
            if name in self._states:
                self._states.set(program, name, value)
        self._states.check_room()
        self._feed(program, values)
        self._write_params(program, values)
        kept = {name: self._kept_buffer(program, self._outputs[name]) for name in names if name in keep}
        ports = [self._outputs[name] for name in names]
        fetched = [port for port in ports if port.name not in keep and port.buffer is not None]
        sized = [length for port in ports for length in port.lengths]
        downloads = [Source(program.bound(port.buffer), 0, -(-port.size // 4) * 4) for port in fetched if port.buffer]
        downloads += [Source(program.bound(length.buffer), length.offset, 4) for length in sized]
        data = program.execute(
            self.mode == "eager",
            self._steps_per_submission,
            [*self._states.copies(program), *(copy for _, copy in kept.values() if copy)],
            downloads,
        )
        self._states.advance()
        contents = {port.name: content for port, content in zip(fetched, data, strict=False)}
        extents = iter([struct.unpack("<i", content)[0] for content in data[len(fetched) :]])
        results: dict[str, Any] = {}
        for port in ports:
            lengths = tuple((length.axis, next(extents)) for length in port.lengths)
            if port.name in kept:
                results[port.name] = self._keep(program, port, kept[port.name][0], lengths)
            else:
                array = array_from_bytes(contents.get(port.name, b""), BY_NAME[port.dtype], port.shape)
                results[port.name] = slice_to_lengths(array, lengths)
        return results

    def _feed(self, program: Program, values: Mapping[str, Any]) -> None:
        fed = {self._inputs[name].buffer: value for name, value in values.items() if name not in self._states}
        buffers = {
            name: value.buffer if isinstance(value, DeviceTensor) else program.own[name]
            for name, value in fed.items()
            if name is not None
        }
        program.bind(buffers)
        for name, value in fed.items():
            if name is not None and not isinstance(value, DeviceTensor):
                program.write(name, bytes_of_array(value, dtype_of(value)))

    def _write_params(self, program: Program, values: Mapping[str, Any]) -> None:
        for param in self.entry.params:
            if param.source == "state":
                value: Any = self._states.length(param.name)
            else:
                given = values[param.name]
                value = (given.numpy() if isinstance(given, DeviceTensor) else given).reshape(()).item()
            program.write(self._uniform, _param_bytes(param, value), param.offset)

    def _kept_buffer(self, program: Program, port: Port) -> tuple[Any, Copy | None]:
        """The buffer to hand out for a kept output, and the copy that fills it where the run writes another."""
        if port.buffer is None:
            return None, None
        buffer = program.bound(port.buffer)
        if not self._in_place(port):
            return buffer, None
        size = -(-port.size // 4) * 4
        fresh = self._gpu.create_buffer(port.name, size, DeviceTensorPolicy.TENSOR)
        return fresh, Copy(buffer, fresh, size)

    def _in_place(self, port: Port) -> bool:
        return any(buffer.name == port.buffer and buffer.kind == "state" for buffer in self.entry.buffers)

    def _keep(self, program: Program, port: Port, buffer: Any, lengths: tuple[tuple[int, int], ...]) -> DeviceTensor:
        if port.buffer is not None and not self._in_place(port):
            program.renew(port.buffer)
        return DeviceTensor(self.device, buffer, BY_NAME[port.dtype], port.shape, self._owner, lengths)

    def _tensor_of_array(self, array: Array) -> DeviceTensor:
        dtype = dtype_of(array)
        data = bytes_of_array(array, dtype)
        buffer = None
        if data.size:
            buffer = self._gpu.create_buffer("tensor", data.size, DeviceTensorPolicy.TENSOR)
            self.device.queue.write_buffer(buffer, 0, data)
        return DeviceTensor(self.device, buffer, dtype, array.shape, self._owner)

    def _tensor_of_buffer(self, buffer: Any, dtype: Any, shape: Sequence[int] | None) -> DeviceTensor:
        if not hasattr(buffer, "usage") or dtype is None or shape is None:
            raise InputError("Expected a NumPy array, or a wgpu buffer with dtype and shape.")
        element = from_numpy(np.dtype(dtype))
        size = -(-int(np.prod(shape)) * element.bits // 32) * 4
        if buffer.size != size or buffer.usage & DeviceTensorPolicy.TENSOR != DeviceTensorPolicy.TENSOR:
            raise InputError(
                f"For {element.name}{list(shape)}, expected a buffer of {size} bytes with the usages STORAGE, COPY_DST "
                f"and COPY_SRC, but got {buffer.size} bytes with usage {buffer.usage:#x}."
            )
        return DeviceTensor(self.device, buffer, element, tuple(shape), self._owner)


def _param_bytes(param: ParamField, value: Any) -> bytes:
    """The four bytes of a uniform field; integers keep their low 32 bits."""
    if param.type == "f32":
        return struct.pack("<f", value)
    return struct.pack("<I", int(value) & 0xFFFFFFFF)


def _check_artifact(value: object) -> None:
    if not isinstance(value, Artifact):
        kind = type(value).__name__
        raise ArtifactError(f"Expected an artifact, as compile and load give it, but got a {kind}.")
