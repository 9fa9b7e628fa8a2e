"""States: inputs that are fed by an output of the run before."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnx2wgsl.errors import InputError, escape_name
from onnx2wgsl.ir.dtypes import BY_NAME
from onnx2wgsl.ir.plan import Entry, Port, State

from .io import array_from_bytes, bytes_of_array, check_names, check_type, host_array
from .program import Copy, Program
from .tensors import DeviceTensor, slice_to_lengths


class States:
    """The states of a session, on whichever program it has at the moment.

    The host copy of a state is what was last read, set or reset; it goes stale with the next run. After the device was
    lost, the host copies are all that is left.
    """

    def __init__(self, entry: Entry) -> None:
        inputs = {port.name: port for port in entry.inputs}
        outputs = {port.name: port for port in entry.outputs}
        self._states = {state.name_in: state for state in entry.states}
        self._inputs = {state.name_in: inputs[state.name_in] for state in entry.states}
        self._outputs = {state.name_in: outputs[state.name_out] for state in entry.states}
        self.output_names = frozenset(state.name_out for state in entry.states)
        self._lengths = {state.name_in: 0 for state in entry.states if state.axis is not None}
        self._saved: dict[str, np.ndarray[Any, Any] | None] = {}
        self.stale: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._states

    def length(self, name: str) -> int:
        """The number of positions that the growing state `name` holds."""
        return self._lengths[name]

    def get(self, program: Program, name: str) -> np.ndarray[Any, Any]:
        """A copy of the state; a growing one is cut to its length."""
        port = self._port(name)
        data = b"" if port.buffer is None else program.gpu.device.queue.read_buffer(program.own[port.buffer])
        array = slice_to_lengths(array_from_bytes(data, BY_NAME[port.dtype], port.shape), self._valid(name))
        self._save(name, array.copy())
        return array

    def set(self, program: Program, name: str, value: Any) -> None:
        """Give the state a value: an array, of up to its capacity if it grows, or a device tensor of its full shape."""
        self.check(program, name, value)
        port = self._inputs[name]
        if isinstance(value, DeviceTensor):
            self._set_from_tensor(program, port, value)
            return
        array = self._padded(name, value)
        axis = self._states[name].axis
        if axis is not None:
            self._lengths[name] = value.shape[axis]
        if port.buffer is not None:
            program.write(port.buffer, bytes_of_array(array, BY_NAME[port.dtype]))
        self._save(name, np.array(value))

    def check(self, program: Program, name: str, value: Any) -> None:
        """Raise InputError unless `set` takes the value."""
        port = self._port(name)
        if isinstance(value, DeviceTensor):
            value.check_usable(name, program.gpu.device)
            check_type(port, value.dtype, value.shape)
        else:
            self._padded(name, value)

    def reset(self, program: Program) -> None:
        """Make all states zero, and growing ones empty."""
        encoder = program.gpu.create("command encoder", "")
        for name, port in self._inputs.items():
            if port.buffer is not None:
                encoder.clear_buffer(program.own[port.buffer])
            self._save(name, None)
        self._lengths = dict.fromkeys(self._lengths, 0)
        program.gpu.device.queue.submit([encoder.finish()])

    def check_room(self) -> None:
        """Raise InputError if a growing state cannot take another run."""
        for name, length in self._lengths.items():
            state = self._states[name]
            if length + state.growth > state.capacity:
                raise InputError(
                    f"The state '{escape_name(name)}' is full: it holds {length} of {state.capacity} positions, and a "
                    f"run adds {state.growth}. Reset it (reset_states), or compile with a larger capacity."
                )

    def copies(self, program: Program) -> list[Copy]:
        """What a run copies for the next one."""
        pairs = [(self._outputs[name], port) for name, port in self._inputs.items()]
        return [
            Copy(program.bound(source.buffer), program.own[target.buffer], -(-target.size // 4) * 4)
            for source, target in pairs
            if source.buffer is not None and target.buffer is not None and source.buffer != target.buffer
        ]

    def advance(self) -> None:
        """Note that a run went by."""
        self.stale.update(self._states)
        for name in self._lengths:
            self._lengths[name] += self._states[name].growth

    def restore(self, program: Program) -> None:
        """Put the host copies into a new program; states without one are zero there."""
        self._lengths = dict.fromkeys(self._lengths, 0)
        for name, value in self._saved.items():
            if value is not None:
                self.set(program, name, value)
        self.stale.clear()

    def _port(self, name: str) -> Port:
        check_names("state", [name], self._states)
        return self._inputs[name]

    def _save(self, name: str, value: np.ndarray[Any, Any] | None) -> None:
        self._saved[name] = value
        self.stale.discard(name)

    def _valid(self, name: str) -> tuple[tuple[int, int], ...]:
        axis = self._states[name].axis
        return () if axis is None else ((axis, self._lengths[name]),)

    def _padded(self, name: str, value: Any) -> np.ndarray[Any, Any]:
        port, state = self._inputs[name], self._states[name]
        axis = state.axis
        if axis is None:
            return host_array(port, value)
        length = self._checked_length(state, value)
        shape = (*port.shape[:axis], length, *port.shape[axis + 1 :])
        check_type(port, value.dtype, (*value.shape[:axis], port.shape[axis], *value.shape[axis + 1 :]))
        padding = np.zeros((*shape[:axis], state.capacity - length, *shape[axis + 1 :]), value.dtype)
        return np.concatenate([value, padding], axis)

    def _checked_length(self, state: State, value: Any) -> int:
        axis = state.axis or 0
        name = f"The state '{escape_name(state.name_in)}'"
        if not isinstance(value, np.ndarray) or value.ndim <= axis:
            raise InputError(f"{name} takes a NumPy array of rank {len(self._inputs[state.name_in].shape)}.")
        if value.shape[axis] > state.capacity:
            raise InputError(f"{name} holds {state.capacity} positions, but {value.shape[axis]} were given.")
        return int(value.shape[axis])

    def _set_from_tensor(self, program: Program, port: Port, tensor: DeviceTensor) -> None:
        if port.buffer is not None:
            encoder = program.gpu.create("command encoder", "")
            encoder.copy_buffer_to_buffer(tensor.buffer, 0, program.own[port.buffer], 0, -(-port.size // 4) * 4)
            program.gpu.device.queue.submit([encoder.finish()])
        if port.name in self._lengths:
            self._lengths[port.name] = self._states[port.name].capacity
        self.stale.add(port.name)
