from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from onnx2wgsl.artifact import Artifact
from onnx2wgsl.errors import InputError
from onnx2wgsl.ir.dtypes import BY_NAME
from onnx2wgsl.ir.plan import Buffer, Entry, Length
from onnx2wgsl.runtime.io import array_from_bytes, bytes_of_array
from onnx2wgsl.runtime.session import Session
from tests.runtime import plans

X = np.arange(6, dtype=np.float32).reshape(2, 3)
VALUES = {
    "bool": np.array([True, False, True, True, False]),
    "i64": np.array([0, -1, 2**63 - 1, -(2**63), 2**32], np.int64),
    "u64": np.array([0, 2**64 - 1, 1, 2**63, 2**32], np.uint64),
    "f64": np.array([0.0, -0.0, 1e300, np.inf, np.nan]),
    "f16": np.array([0.1, -0.0, np.inf, 6e-8, 65504], np.float16),
    "bf16": np.array([0.1, -0.0, np.inf, 3e38, -1], ml_dtypes.bfloat16),
    "i8": np.array([-128, 127, 0, -1, 1], np.int8),
    "u16": np.array([0, 65535, 1, 2, 3], np.uint16),
    "f8e4m3fn": np.array([0.5, -1, 448, 0, 2], ml_dtypes.float8_e4m3fn),
    "i4": np.array([-8, 7, 0, -1, 3], ml_dtypes.int4),
    "u4": np.array([0, 15, 8, 1, 3], ml_dtypes.uint4),
    "i2": np.array([-2, 1, 0, -1, 1], ml_dtypes.int2),
    "u2": np.array([0, 3, 2, 1, 3], ml_dtypes.uint2),
    "f4e2m1": np.array([0.5, -6, 0, 1.5, -0.0], ml_dtypes.float4_e2m1fn),
}


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).view(np.uint8).tobytes()


@pytest.mark.parametrize("dtype", VALUES)
def test_bytes_round_trip(dtype):
    element, array = BY_NAME[dtype], VALUES[dtype]
    data = bytes_of_array(array, element)
    assert data.dtype == np.uint8
    assert len(data) % 4 == 0
    back = array_from_bytes(data, element, (5,))
    assert back.dtype == array.dtype
    assert back.tolist() == array.tolist() or bits(back) == bits(array)


def test_elements_below_a_byte_are_packed_from_the_lowest_bits():
    assert bytes_of_array(VALUES["i4"], BY_NAME["i4"]).tolist() == [0x78, 0xF0, 0x03, 0]
    assert bytes_of_array(VALUES["u2"], BY_NAME["u2"]).tolist() == [0b01101100, 0b11, 0, 0]


@pytest.mark.parametrize("dtype", ["bool", "i64", "f16", "bf16", "i4", "f64"])
def test_every_dtype_passes_through_a_device(dtype):
    array = VALUES[dtype]
    with Session(Artifact.create(plans.copy_plan(dtype, 5))) as session:
        back = session.run({"x": array})["y"]
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert bits(back) == bits(array)
        assert bits(session.tensor(array).numpy()) == bits(array)


def test_scalars_stay_arrays_of_rank_0():
    with Session(Artifact.create(plans.copy_plan("i64"))) as session:
        back = session.run({"x": np.int64(-5)})["y"]
        assert isinstance(back, np.ndarray)
        assert (back.shape, back.dtype, back.item()) == ((), np.int64, -5)


def test_tensors_without_elements_need_no_buffer():
    with Session(Artifact.create(plans.copy_plan("f32", 0, 3))) as session:
        empty = np.zeros((0, 3), np.float32)
        assert session.run({"x": empty})["y"].shape == (0, 3)
        kept = session.run({"x": session.tensor(empty)}, keep=["y"])["y"]
        assert (kept.numpy().shape, kept.buffer) == ((0, 3), None)
        kept.dispose()


def test_an_output_sized_by_data_is_sliced():
    x, y = plans.port("x", "f32", 4), plans.port("y", "f32", 4, lengths=(Length(0, "n", 256),))
    count = plans.kernel("count", [plans.read(0), plans.write(1), plans.write(2, "i32")], "b1[i] = b0[i]; b2[0] = 3;")
    bindings = [
        plans.binding(0, "read", "x", 16),
        plans.binding(1, "read_write", "y", 16),
        plans.binding(2, "read_write", "n", 4, 256),
    ]
    buffers = (plans.buffer_of(x, "input"), plans.buffer_of(y, "output"), Buffer("n", 260, "arena"))
    entry = Entry("main", buffers, (x,), (y,), (plans.step("count_0", [count], 4, bindings),))
    with Session(Artifact.create(plans.plan([count], entry))) as session:
        values = np.arange(4, dtype=np.float32)
        np.testing.assert_array_equal(session.run({"x": values})["y"], values[:3])
        kept = session.run({"x": values}, keep=["y"])["y"]
        assert (kept.shape, kept.length) == ((4,), 3)
        np.testing.assert_array_equal(kept.numpy(), values[:3])


@pytest.fixture(scope="module")
def add():
    with Session(Artifact.create(plans.add_plan())) as session:
        yield session


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": X, "z": X}, "There is no input 'z'. The inputs are: 'x', 'y'."),
        ({"x": X, "yy": X}, "There is no input 'yy'. Did you mean 'y'?"),
        ({"x": X}, "Missing input: 'y'."),
        ({}, "Missing inputs: 'x', 'y'."),
        (
            {"x": X, "y": X.astype(np.float64)},
            (
                "Input 'y' has dtype float64, but the model takes float32. Nothing is cast silently: "
                "pass array.astype(numpy.float32)."
            ),
        ),
        (
            {"x": X, "y": X.T},
            (
                "Input 'y' has shape [3, 2], but this entry takes [2, 3]: dim 0 is 3 instead of 2, "
                "dim 1 is 2 instead of 3. For this shape, compile with --shape y=3,2."
            ),
        ),
        (
            {"x": X, "y": X[0]},
            "Input 'y' has shape [3], but this entry takes [2, 3]: expected rank 2, but got 1.",
        ),
        ({"x": X, "y": [1.0]}, "Input 'y' is a list, but expected a NumPy array or a device tensor."),
    ],
)
def test_input_errors(add, inputs, message):
    with pytest.raises(InputError) as error:
        add.run(inputs)
    assert str(error.value) == message


def test_output_errors(add):
    for arguments, message in (
        ({"outputs": ["some"]}, "There is no output 'some'. The outputs are: 'sum'."),
        ({"keep": ["sun"]}, "There is no output 'sun'. Did you mean 'sum'?"),
        ({"outputs": "sum"}, "Expected a list of names in outputs, but got the string 'sum'."),
    ):
        with pytest.raises(InputError) as error:
            add.run({"x": X, "y": X}, **arguments)
        assert str(error.value) == message


def test_a_bound_input_is_not_passed():
    plan = plans.add_plan()
    entry = plan.entries[0]
    entry = Entry("main", entry.buffers, entry.inputs, entry.outputs, entry.steps, bound=("rate",))
    with Session(Artifact.create(plans.plan([plans.ADD], entry))) as session, pytest.raises(InputError) as error:
        session.run({"x": X, "y": X, "rate": np.int64(16000)})
    assert str(error.value) == "Input 'rate' became a constant when the model was compiled, so it cannot be passed."


def test_names_are_escaped_in_errors(add):
    with pytest.raises(InputError) as error:
        add.run({"x": X, "y": X, "\x1b[31m": X})
    assert str(error.value) == r"There is no input '\x1b[31m'. The inputs are: 'x', 'y'."


def test_device_tensors_move_between_sessions_on_one_device():
    artifact = Artifact.create(plans.add_plan())
    with Session(artifact) as one, Session(artifact, device=one.device) as other:
        y = one.tensor(X)
        total = one.run({"x": y, "y": y}, keep=["sum"])["sum"]
        assert repr(total) == "DeviceTensor(f32[2, 3])"
        for _ in range(6):
            total = other.run({"x": total, "y": y}, keep=["sum"])["sum"]
        np.testing.assert_array_equal(total.numpy(), X * 8)
        np.testing.assert_array_equal(y.numpy(), X)
        np.testing.assert_array_equal(other.run({"x": X, "y": y})["sum"], X * 2)


def test_kept_outputs_stay_over_later_runs(add):
    kept = [add.run({"x": X * factor, "y": X}, keep=["sum"])["sum"] for factor in np.arange(8, dtype=np.float32)]
    for factor, tensor in enumerate(kept):
        np.testing.assert_array_equal(tensor.numpy(), X * (factor + 1))


def test_a_disposed_tensor_is_refused(add):
    tensor = add.tensor(X)
    tensor.dispose()
    tensor.dispose()
    with pytest.raises(InputError) as error:
        add.run({"x": tensor, "y": X})
    assert str(error.value) == "Input 'x' is a device tensor that cannot be used: it was disposed."
    with pytest.raises(InputError) as error:
        tensor.numpy()
    assert str(error.value) == "This device tensor cannot be read: it was disposed."


def test_a_tensor_on_another_device_is_refused(add):
    with Session(Artifact.create(plans.add_plan())) as other, pytest.raises(InputError) as error:
        add.run({"x": other.tensor(X), "y": X})
    assert str(error.value) == (
        "Input 'x' is a device tensor on another device than this session, or on one that was lost. "
        "Make both sessions with the same device (device=other.device)."
    )


def test_a_tensor_of_a_closed_session_is_refused(add):
    with Session(Artifact.create(plans.add_plan()), device=add.device) as other:
        tensor = other.tensor(X)
    with pytest.raises(InputError) as error:
        add.run({"x": tensor, "y": X})
    assert str(error.value) == "Input 'x' is a device tensor that cannot be used: its session was closed."


def test_the_callers_own_buffer(add):
    buffer = add.tensor(X).buffer
    tensor = add.tensor(buffer, np.float32, (2, 3))
    np.testing.assert_array_equal(add.run({"x": tensor, "y": X})["sum"], X * 2)
    with pytest.raises(InputError) as error:
        add.tensor(buffer, np.float32, (2, 4))
    assert str(error.value) == (
        "For f32[2, 4], expected a buffer of 32 bytes with the usages STORAGE, COPY_DST and COPY_SRC, "
        f"but got 24 bytes with usage {buffer.usage:#x}."
    )
    with pytest.raises(InputError) as error:
        add.tensor([1.0])
    assert str(error.value) == "Expected a NumPy array, or a wgpu buffer with dtype and shape."
