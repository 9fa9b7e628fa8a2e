from __future__ import annotations

import numpy as np
import pytest

from onnx2wgsl.artifact import Artifact
from onnx2wgsl.errors import InputError
from onnx2wgsl.ir.plan import Buffer, Entry, ParamField, State
from onnx2wgsl.runtime.session import Session
from tests.runtime import plans


def counter_artifact() -> Artifact:
    """present = past + step, f32[1]; past is fed by present."""
    past, by, present = plans.port("past", "f32", 1), plans.port("step", "f32", 1), plans.port("present", "f32", 1)
    bindings = [
        plans.binding(0, "read", "past", 4),
        plans.binding(1, "read", "step", 4),
        plans.binding(2, "read_write", "present", 4),
    ]
    buffers = (plans.buffer_of(past, "input"), plans.buffer_of(by, "input"), plans.buffer_of(present, "output"))
    steps = (plans.step("add_0", [plans.ADD], 1, bindings),)
    entry = Entry("main", buffers, (past, by), (present,), steps, states=(State("past", "present"),))
    return Artifact.create(plans.plan([plans.ADD], entry))


APPEND = plans.kernel(
    "append", [plans.read(0), plans.write(1), plans.uniform(("position", "u32"))], "b1[i * 4 + u.position] = b0[i];"
)


def growing_artifact() -> Artifact:
    """cache[:, length] = x; f32[2, 4] grows by one along axis 1, updated in place."""
    cache = plans.port("cache", "f32", 2, 4, buffer="cache")
    grown = plans.port("grown", "f32", 2, 4, buffer="cache")
    x = plans.port("x", "f32", 2)
    bindings = [
        plans.binding(0, "read", "x", 8),
        plans.binding(1, "read_write", "cache", 32),
        plans.binding(16, "uniform", "u", 16),
    ]
    entry = Entry(
        "main",
        (plans.buffer_of(cache, "state"), plans.buffer_of(x, "input"), Buffer("u", 16, "uniform")),
        (cache, x),
        (grown,),
        (plans.step("append_0", [APPEND], 2, bindings),),
        states=(State("cache", "grown", axis=1, growth=1, capacity=4),),
        params=(ParamField("cache", 0, "u32", "state"),),
        uniform_data=bytes(16),
    )
    return Artifact.create(plans.plan([APPEND], entry))


@pytest.fixture
def counter():
    with Session(counter_artifact()) as session:
        yield session


@pytest.fixture
def growing():
    with Session(growing_artifact()) as session:
        yield session


def one(value: float) -> np.ndarray:
    return np.array([value], np.float32)


def test_a_state_is_fed_by_the_run_before(counter):
    assert [counter.run({"step": one(2)}, outputs=["present"])["present"][0] for _ in range(3)] == [2, 4, 6]
    assert counter.run({"step": one(1)}) == {}
    np.testing.assert_array_equal(counter.get_state("past"), [7])


def test_states_are_set_and_reset(counter):
    counter.set_state("past", one(100))
    assert counter.run({"step": one(1)}, outputs=["present"])["present"] == [101]
    counter.reset_states()
    assert counter.run({"step": one(1)}, outputs=["present"])["present"] == [1]
    counter.set_state("past", counter.tensor(one(50)))
    assert counter.run({"step": one(1)}, outputs=["present"])["present"] == [51]
    assert counter.run({"step": one(1), "past": one(7)}, outputs=["present"])["present"] == [8]


def test_warmup_and_profile_leave_states_alone(counter, growing):
    counter.run({"step": one(2)})
    counter.warmup()
    counter.profile(runs=1)
    assert counter.get_state("past") == [2]
    growing.run({"x": np.float32([1, 2])})
    growing.warmup()
    np.testing.assert_array_equal(growing.get_state("cache"), [[1], [2]])


def test_a_kept_state_output_is_not_overwritten(counter):
    kept = [counter.run({"step": one(1)}, keep=["present"])["present"] for _ in range(3)]
    assert [tensor.numpy()[0] for tensor in kept] == [1, 2, 3]


def test_unknown_state(counter):
    with pytest.raises(InputError) as error:
        counter.get_state("pest")
    assert str(error.value) == "There is no state 'pest'. Did you mean 'past'?"


def test_a_growing_state_advances_until_it_is_full(growing):
    for position in range(4):
        growing.run({"x": np.float32([position, 10 + position])})
        assert growing.get_state("cache").shape == (2, position + 1)
    np.testing.assert_array_equal(growing.get_state("cache"), [[0, 1, 2, 3], [10, 11, 12, 13]])
    with pytest.raises(InputError) as error:
        growing.run({"x": np.float32([0, 0])})
    assert str(error.value) == (
        "The state 'cache' is full: it holds 4 of 4 positions, and a run adds 1. "
        "Reset it (reset_states), or compile with a larger capacity."
    )
    growing.reset_states()
    growing.run({"x": np.float32([5, 6])})
    np.testing.assert_array_equal(growing.get_state("cache"), [[5], [6]])


def test_a_growing_state_is_set_to_what_it_holds(growing):
    growing.set_state("cache", np.float32([[1, 2], [3, 4]]))
    kept = growing.run({"x": np.float32([8, 9])}, keep=["grown"])["grown"]
    np.testing.assert_array_equal(growing.get_state("cache"), [[1, 2, 8], [3, 4, 9]])
    growing.reset_states()
    np.testing.assert_array_equal(kept.numpy(), [[1, 2, 8, 0], [3, 4, 9, 0]])
    with pytest.raises(InputError) as error:
        growing.set_state("cache", np.zeros((2, 5), np.float32))
    assert str(error.value) == "The state 'cache' holds 4 positions, but 5 were given."
