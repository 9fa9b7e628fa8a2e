from __future__ import annotations

import gc
import threading

import ml_dtypes
import numpy as np
import pytest
import wgpu

from onnx2wgsl.artifact import Artifact, Golden, load
from onnx2wgsl.errors import ArtifactError, InputError
from onnx2wgsl.ir.plan import Buffer, Entry, ParamField, Requires
from onnx2wgsl.runtime.session import Session
from tests.runtime import plans

X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def add():
    with Session(Artifact.create(plans.add_plan())) as session:
        yield session


def test_adds(add):
    result = add.run({"x": X, "y": X * 10})
    assert list(result) == ["sum"]
    assert result["sum"].dtype == np.float32
    assert result["sum"].flags.c_contiguous
    assert result["sum"].flags.writeable
    np.testing.assert_array_equal(result["sum"], X * 11)


def test_accepts_arrays_that_are_not_contiguous(add):
    transposed = np.arange(6, dtype=np.float32).reshape(3, 2).T
    np.testing.assert_array_equal(add.run({"x": transposed, "y": X})["sum"], transposed + X)


def test_results_of_earlier_runs_stay(add):
    first = add.run({"x": X, "y": X})["sum"]
    add.run({"x": X * 7, "y": X})
    np.testing.assert_array_equal(first, X * 2)


def test_replay_equals_eager_over_many_runs_with_changing_inputs():
    artifact = plans.chain_artifact()
    generator = np.random.default_rng(0)
    with Session(artifact) as replay, Session(artifact, mode="eager", device=replay.device) as eager:
        for index in range(200):
            x = (generator.standard_normal(64) * 10.0 ** generator.integers(-30, 15)).astype(np.float32)
            one, other = replay.run({"x": x})["z"], eager.run({"x": x})["z"]
            assert one.tobytes() == other.tobytes(), index
        again = np.ones(64, np.float32)
        assert replay.run({"x": again})["z"].tobytes() == eager.run({"x": again})["z"].tobytes()


def test_chain_uses_weights_uniforms_and_arenas():
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    with Session(plans.chain_artifact(), steps_per_submission=1) as session:
        np.testing.assert_allclose(session.run({"x": x})["z"], plans.chain_of(x), rtol=1e-6)


def test_weights_of_several_chunks_arrive_whole():
    words = np.arange(6 << 20, dtype=np.uint32)
    half = words.nbytes // 2
    entry_plan = plans.copy_plan("u32", 4)
    entry = entry_plan.entries[0]
    sizes = [plans.binding(0, "read", "weights", 16, half - 8 & ~255), plans.binding(1, "read_write", "y", 16)]
    entry = type(entry)("main", entry.buffers[1:], (), entry.outputs, (plans.step("copy_0", [plans.COPY], 4, sizes),))
    plan = plans.plan(
        [plans.COPY],
        entry,
        buffers=(plans.Buffer("weights", words.nbytes, "weights"),),
        weights=(
            plans.Weight("low", "u32", (len(words) // 2,), "weights", 0, half, half),
            plans.Weight("high", "u32", (len(words) // 2,), "weights", half, half, 0),
        ),
    )
    seen = []
    artifact = Artifact.create(plan, [words[: 1 << 20], words[1 << 20 :].tobytes()])
    with Session(artifact, on_progress=lambda *report: seen.append(report)) as session:
        start = (half - 8 & ~255) // 4 + len(words) // 2
        np.testing.assert_array_equal(session.run({})["y"], words[start : start + 4])
    assert [done for what, done, _ in seen if what == "bytes"] == [
        min(n * (4 << 20), words.nbytes) for n in range(1, 7)
    ]
    assert seen[-1] == ("pipelines", 1, 1)


def test_runs_from_threads_queue(add):
    wrong = []

    def work(factor):
        for _ in range(10):
            if not np.array_equal(add.run({"x": X * factor, "y": X})["sum"], X * (factor + 1)):
                wrong.append(factor)

    threads = [threading.Thread(target=work, args=(np.float32(factor),)) for factor in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_warmup_needs_no_inputs(add):
    add.warmup()
    tensor = add.tensor(X)
    add.run({"x": tensor, "y": tensor})
    tensor.dispose()
    add.warmup()
    tensor = add.tensor(X)
    add.run({"x": tensor, "y": tensor})
    tensor.dispose()
    np.testing.assert_array_equal(add.run({"x": X, "y": X})["sum"], X * 2)


def test_profile_names_steps_and_says_how_it_measured(add):
    profile = add.profile(runs=1)
    assert profile.source in ("timestamps", "wall clock")
    assert [(step.step, step.kernel, step.nodes, step.grid) for step in profile.steps] == [
        ("add_0", "add", ("/add_0",), (6, 1, 1))
    ]
    assert profile.steps[0].microseconds >= 0
    assert profile.chrome_trace()["traceEvents"][0]["args"]["nodes"] == ["/add_0"]


def test_takes_the_variant_that_its_adapter_prefers():
    with Session(Artifact.create(plans.add_plan((plans.WRONG_ADD, plans.ADD), prefer={"adapter": "cpu"}))) as session:
        expected = "wrong_add" if session.adapter.kind == "cpu" else "add"
        assert session.variants["add_0"].kernel == expected


def test_passes_over_a_variant_whose_needs_are_not_met():
    requires = Requires(features=("no-such-feature",))
    with Session(Artifact.create(plans.add_plan((plans.WRONG_ADD, plans.ADD), requires=requires))) as session:
        assert session.variants["add_0"].kernel == "add"


def test_a_param_is_written_before_each_run():
    x, factor, y = plans.port("x", "f32", 4), plans.port("factor", "f32", buffer=None), plans.port("y", "f32", 4)
    bindings = [
        plans.binding(0, "read", "x", 16),
        plans.binding(1, "read_write", "y", 16),
        plans.binding(16, "uniform", "u", 16),
    ]
    buffers = (plans.buffer_of(x, "input"), plans.buffer_of(y, "output"), Buffer("u", 16, "uniform"))
    steps = (plans.step("scale_0", [plans.SCALE], 4, bindings),)
    params = (ParamField("factor", 0, "f32"),)
    entry = Entry("main", buffers, (x, factor), (y,), steps, params=params, uniform_data=bytes(16))
    with Session(Artifact.create(plans.plan([plans.SCALE], entry))) as session:
        ones = np.ones(4, np.float32)
        for value in (np.float32(2), np.array(-3, np.float32), session.tensor(np.float32(4))):
            expected = value.numpy() if hasattr(value, "numpy") else value
            np.testing.assert_array_equal(session.run({"x": ones, "factor": value})["y"], ones * expected)


def test_sessions_on_one_device_do_not_disturb_each_other():
    artifact = plans.chain_artifact()
    wrong = []

    def work(session, x):
        for _ in range(20):
            if not np.allclose(session.run({"x": x})["z"], plans.chain_of(x), rtol=1e-5):
                wrong.append(x[0])

    with Session(artifact) as one, Session(artifact, device=one.device) as other:
        sessions = enumerate((one, other))
        threads = [threading.Thread(target=work, args=(s, np.full(64, n, np.float32))) for n, s in sessions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_golden_tensors_of_types_that_files_do_not_know(tmp_path):
    values = np.array([1, -2, 0.5, 3, 100], ml_dtypes.bfloat16)
    artifact = Artifact.create(plans.copy_plan("bf16", 5), golden=Golden({"x": values}, {"y": values}))
    artifact.save(tmp_path / "out")
    with Session(load(tmp_path / "out")) as session:
        assert session.self_test(runs=1).passed


def test_self_test_falls_back_to_the_baseline():
    plan = plans.add_plan((plans.WRONG_ADD, plans.ADD))
    with Session(Artifact.create(plan, golden=plans.golden_for_add())) as session:
        result = session.self_test(runs=2)
        assert (result.passed, result.variants, result.differences) == (True, "baseline", {"sum": 0.0})
        np.testing.assert_array_equal(session.run({"x": X, "y": X})["sum"], X * 2)


def test_self_test_that_fails_says_how_far_off():
    with Session(Artifact.create(plans.add_plan((plans.WRONG_ADD,)), golden=plans.golden_for_add())) as session:
        result = session.self_test(runs=1)
        assert (result.passed, result.variants, result.differences) == (False, "baseline", {"sum": 1.0})


def test_self_test_without_golden_inputs(add):
    with pytest.raises(ArtifactError) as error:
        add.self_test()
    assert str(error.value) == "This artifact has no golden.npz, so it cannot test itself."


def test_a_closed_session_refuses(add):
    kept = add.run({"x": X, "y": X}, keep=["sum"])["sum"]
    add.close()
    add.close()
    with pytest.raises(InputError) as error:
        add.run({"x": X, "y": X})
    assert str(error.value) == "This session is closed."
    with pytest.raises(InputError) as error:
        kept.numpy()
    assert str(error.value) == "This device tensor cannot be read: its session was closed."


def test_unknown_mode_and_entry():
    artifact = Artifact.create(plans.add_plan())
    with pytest.raises(InputError) as error:
        Session(artifact, mode="fast")
    assert str(error.value) == "There is no mode 'fast': expected replay or eager."
    with pytest.raises(ArtifactError) as refused:
        Session(artifact, entry="prefill")
    assert str(refused.value) == "This artifact has no entry 'prefill'. It has: main."


def test_sessions_leave_no_buffers_behind():
    def live():
        gc.collect()
        return wgpu.diagnostics.object_counts.get_dict()["Buffer"]["count"]

    before = live()
    with Session(Artifact.create(plans.add_plan())) as session:
        for _ in range(30):
            session.run({"x": X, "y": X}, keep=["sum"])["sum"].dispose()
        assert live() <= before + 4 + 5
    del session
    assert live() == before
