from __future__ import annotations

import logging

import numpy as np
import pytest

from onnx2wgsl.artifact import Artifact
from onnx2wgsl.errors import DeviceError, DeviceLostError
from onnx2wgsl.runtime.create import create_or_fail
from onnx2wgsl.runtime.device import adapter_info, open_gpu, request_adapter
from onnx2wgsl.runtime.session import Session
from tests.runtime import plans
from tests.runtime.test_states import counter_artifact

X = np.ones((2, 3), np.float32)


def test_a_lost_device_is_replaced_and_the_run_repeated(caplog):
    with Session(plans.chain_artifact()) as session:
        x = np.arange(64, dtype=np.float32)
        expected = session.run({"x": x})["z"]
        for _ in range(2):
            before = session.device
            before.destroy()
            with caplog.at_level(logging.DEBUG, "wgpu"):
                np.testing.assert_array_equal(session.run({"x": x})["z"], expected)
            assert session.device is not before
    assert not [record for record in caplog.records if "lost" in record.getMessage().lower()]


def test_rebuilding_can_be_declined():
    with Session(Artifact.create(plans.add_plan()), rebuild_on_lost=False) as session:
        name = session.adapter.name
        session.device.destroy()
        for _ in range(2):
            with pytest.raises(DeviceLostError) as error:
                session.run({"x": X, "y": X})
            assert str(error.value) == f"The device {name} was lost. The session was made with rebuild_on_lost=False."


def test_a_device_tensor_is_lost_with_its_device():
    with Session(Artifact.create(plans.add_plan())) as session:
        tensor = session.tensor(X)
        name = session.adapter.name
        session.device.destroy()
        with pytest.raises(DeviceLostError) as error:
            session.run({"x": tensor, "y": X})
        assert str(error.value) == (
            f"The device {name} was lost, and with it the device tensor in the input 'x'. "
            "The session was rebuilt on a new device; make the tensor again."
        )
        with pytest.raises(DeviceLostError) as error:
            tensor.numpy()
        assert str(error.value) == f"The device {name} was lost while reading a device tensor."
        np.testing.assert_array_equal(session.run({"x": session.tensor(X), "y": X})["sum"], X * 2)


def test_a_state_that_was_read_survives():
    with Session(counter_artifact()) as session:
        session.run({"step": np.float32([2])})
        session.get_state("past")
        session.device.destroy()
        np.testing.assert_array_equal(session.run({"step": np.float32([3])}, outputs=["present"])["present"], [5])


def test_a_state_that_was_not_read_is_lost_and_says_so():
    with Session(counter_artifact()) as session:
        session.set_state("past", np.float32([10]))
        session.run({"step": np.float32([1])})
        name = session.adapter.name
        session.device.destroy()
        with pytest.raises(DeviceLostError) as error:
            session.run({"step": np.float32([1])})
        assert str(error.value) == (
            f"The device {name} was lost, and with it the state 'past'. The session was rebuilt; its states have the "
            "values that were last read, set or reset."
        )
        np.testing.assert_array_equal(session.get_state("past"), [10])


def test_loss_outside_of_a_run_is_survived_too():
    with Session(counter_artifact()) as session:
        session.set_state("past", np.float32([3]))
        for call in (
            lambda: session.tensor(X),
            lambda: session.set_state("past", np.float32([4])),
            lambda: session.get_state("past"),
            session.warmup,
        ):
            session.device.destroy()
            call()
        np.testing.assert_array_equal(session.get_state("past"), [4])
        session.device.destroy()
        session.reset_states()
        np.testing.assert_array_equal(session.get_state("past"), [0])


def test_nothing_null_is_used():
    with pytest.raises(DeviceError) as error:
        create_or_fail("compute pipeline", "k001_add", lambda: None, "GPU 1", "the feature shader-f16")
    assert str(error.value) == (
        "Could not create compute pipeline k001_add on GPU 1: the driver returned nothing. "
        "It needs the feature shader-f16."
    )


def test_a_kernel_that_does_not_compile_is_named():
    broken = plans.kernel("broken", plans.ADD.declarations, "b2[i] = missing_name;")
    with pytest.raises(DeviceError) as error:
        Session(Artifact.create(plans.add_plan((broken,))))
    message = str(error.value)
    assert message.startswith(f"Could not create shader module broken on {adapter_info(request_adapter()).name}: ")
    assert "missing_name" in message


def test_what_an_adapter_lacks_is_said():
    artifact = Artifact.create(plans.add_plan())
    requires = type(artifact.plan.requires)(
        features=("no-such-feature",), limits={"maxComputeInvocationsPerWorkgroup": 1 << 20}
    )
    plan = plans.plan([plans.ADD], artifact.plan.entries[0], requires=requires)
    with pytest.raises(DeviceError) as error:
        Session(Artifact.create(plan))
    info = adapter_info(request_adapter())
    has = info.limits["maxComputeInvocationsPerWorkgroup"]
    assert str(error.value) == (
        f"The adapter {info.name} cannot run the entry 'main': it lacks the feature no-such-feature, "
        f"maxComputeInvocationsPerWorkgroup 1048576 (it has {has}). "
        "Compile with --target baseline, or use another adapter (`onnx2wgsl devices` lists them)."
    )


def test_a_device_has_exactly_what_is_required():
    artifact = Artifact.create(plans.add_plan())
    gpu = open_gpu(artifact.plan, artifact.plan.entries[0])
    assert not gpu.device.features
    assert gpu.device.limits["max-storage-buffers-per-shader-stage"] == 8
    assert gpu.device.limits["max-compute-invocations-per-workgroup"] == 256


def test_a_device_of_the_callers_that_lacks_something():
    artifact = Artifact.create(plans.add_plan())
    device = open_gpu(artifact.plan, artifact.plan.entries[0]).device
    requires = type(artifact.plan.requires)(limits={"maxStorageBuffersPerShaderStage": 10})
    plan = plans.plan([plans.ADD], artifact.plan.entries[0], requires=requires)
    with pytest.raises(DeviceError) as error:
        Session(Artifact.create(plan), device=device)
    assert str(error.value) == (
        "The device that was given cannot run the entry 'main': it lacks maxStorageBuffersPerShaderStage 10 "
        "(it has 8). Compile with --target baseline, or use another adapter (`onnx2wgsl devices` lists them)."
    )
