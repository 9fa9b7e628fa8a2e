"""Bad input on the command line: one clear error, exit code 1, no traceback, and nothing half-written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx2wgsl.cli.arrays import save_arrays
from onnx2wgsl.runtime import device
from tests.cli.test_app import Outcome, run

Port = onnx.ValueInfoProto


def port(name: str, shape: list[Any] | None, dtype: int = TensorProto.FLOAT) -> Port:
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(
    operator: str, inputs: list[Port], constants: dict[str, list[int]] | None = None, domain: str = "", name: str = "n"
) -> onnx.ModelProto:
    """A model of one node that reads all inputs and constants."""
    tensors = [numpy_helper.from_array(np.array(v), k) for k, v in (constants or {}).items()]
    read = [*(i.name for i in inputs), *(t.name for t in tensors)]
    node = helper.make_node(operator, read, [f"{name}.out"], name=name, domain=domain)
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info(f"{name}.out")], tensors)
    imports = [helper.make_opsetid("", 21), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, ir_version=10, opset_imports=imports)


def with_external_data(location: str) -> onnx.ModelProto:
    made = model_of("Add", [port("x", [3])])
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value=location)
    made.graph.initializer.append(weights)
    made.graph.node[0].input.append("w")
    return made


def sequence(shape: list[Any] | None) -> Port:
    return helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, shape)


def optional(shape: list[Any]) -> Port:
    return helper.make_value_info("o", helper.make_optional_type_proto(helper.make_tensor_type_proto(1, shape)))


def refused(outcome: Outcome) -> str:
    """The one error that the command line printed; what wgpu says of the environment is not ours."""
    assert outcome.returncode == 1
    assert "Traceback" not in outcome.stderr
    start = outcome.stderr.index("Error: ")
    return outcome.stderr[start:].removesuffix("\n")


FINE = model_of("Relu", [port("x", [2, 3])])
BATCH = model_of("Relu", [port("x", ["batch", 3])])
GREAT = 1 << 40
BINDING = "above the target's largest binding of 134217728, and cannot be cut: it is no constant"

BAD_MODELS: dict[str, tuple[onnx.ModelProto | bytes, str]] = {
    "an operator of a stranger's": (
        model_of("Frob", [port("x", [1])], domain="my.ops"),
        "Error: Frob (node n): operator my.ops::Frob is not supported",
    ),
    "an unknown operator": (
        model_of("Frob", [port("x", [1])]),
        "Error: Frob (node n): operator Frob is not supported",
    ),
    "an unbound dim": (
        BATCH,
        'Error: These dimensions have no value:\n  dimension "batch" (input "x" axis 0): give --dim batch=…',
    ),
    "a truncated file": (
        FINE.SerializeToString()[:-5],
        'Error: "model.onnx" is not an ONNX model, or it is truncated.',
    ),
    "a file of another kind": (b"\x89PNG\r\n", 'Error: "model.onnx" is not an ONNX model, or it is truncated.'),
    "an empty file": (b"", 'Error: "model.onnx" is not an ONNX model: it holds no graph.'),
    "missing external data": (
        with_external_data("nowhere"),
        'Error: The initializer "w" has its data in "nowhere", and there is no such file beside the model.',
    ),
    "external data elsewhere": (
        with_external_data("../secret"),
        'Error: The initializer "w" has its data at "../secret"; only files under the model\'s folder are read.',
    ),
    "an enormous input": (
        model_of("Relu", [port("x", [GREAT, GREAT])]),
        (
            f'Error: The tensor "x" with shape [{GREAT}, {GREAT}] takes {4 * GREAT * GREAT} bytes, '
            "more than the bound of 17179869184."
        ),
    ),
    "an enormous intermediate": (
        model_of("Expand", [port("x", [1])], {"shape": [1 << 31, 1 << 31, 1 << 31]}),
        f"Error: binding: the tensor n.out.1 f32[2147483648, 2147483648, 2147483648] has {4 << 93} bytes, {BINDING}",
    ),
    "an enormous constant": (
        model_of("ConstantOfShape", [], {"shape": [GREAT, GREAT]}),
        f"Error: binding: the tensor n.out.1 f32[{GREAT}, {GREAT}] has {4 * GREAT * GREAT} bytes, {BINDING}",
    ),
    "a sequence with open dims": (
        model_of("SequenceAt", [sequence(["batch", 3]), port("i", [], TensorProto.INT64)]),
        "Error: input: graph input s is Sequence(Tensor(FLOAT)), which has no tensor on the GPU",
    ),
    "a sequence of any rank": (
        model_of("SequenceAt", [sequence(None), port("i", [], TensorProto.INT64)]),
        "Error: input: graph input s is Sequence(Tensor(FLOAT)), which has no tensor on the GPU",
    ),
    "an optional with open dims": (
        model_of("OptionalGetElement", [optional(["batch", 3])]),
        "Error: input: graph input o is Optional(Tensor(FLOAT)), which has no tensor on the GPU",
    ),
    "a sequence beside open dims": (
        model_of("SequenceInsert", [sequence(None), port("x", ["batch"])]),
        "Error: input: graph input s is Sequence(Tensor(FLOAT)), which has no tensor on the GPU",
    ),
    "strings with open dims": (
        model_of("Identity", [port("x", ["n"], TensorProto.STRING)]),
        "Error: input: graph input x is STRING, which has no tensor on the GPU",
    ),
}


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[onnx.ModelProto | bytes], None]:
    """Write a model to model.onnx in a fresh folder, where the test runs."""
    monkeypatch.chdir(tmp_path)

    def write(model: onnx.ModelProto | bytes) -> None:
        Path("model.onnx").write_bytes(model if isinstance(model, bytes) else model.SerializeToString())

    return write


@pytest.mark.parametrize("case", BAD_MODELS)
def test_bad_models(case: str, save: Callable[[Any], None]) -> None:
    model, text = BAD_MODELS[case]
    save(model)
    assert refused(run("compile", "model.onnx", "-o", "out")) == text
    assert sorted(p.name for p in Path().iterdir()) == ["model.onnx"]


BAD_OPTIONS: dict[tuple[str, ...], str] = {
    ("--target", "none"): "The option target is 'none', but this version has 'baseline'.",
    ("--memory", "none"): "The option memory is 'none', but this version has 'fast' and 'compact'.",
    ("--dim", "batch=-1"): 'The size of dimension "batch" must be an integer of 0 or more, got -1.',
    ("--dim", "batsh=1"): (
        'dims: no input has a dimension "batsh"; did you mean "batch"? The named dimensions are "batch".'
    ),
    ("--shape", "x=1,-4"): "The shape of 'x' in input_shapes must be a list of integers of 0 or more, got [1, -4].",
    ("--shape", "x=1,4"): 'The input "x" has size 3 at axis 1, the shape [1, 4] gives 4.',
    ("--shape", "y=1"): 'input_shapes: the model has no input "y". The inputs are "x".',
    ("--bind", "x=1,2"): 'The value bound to input "x" has shape [2], the model says [batch, 3].',
    ("--output-name", "nothing"): 'The graph has no tensor "nothing" to cut at; did you mean "n.out"?',
    ("--output-name", "n.out", "--to", "n.out"): (
        "The options outputs and to both say where the graph ends. Give one of them."
    ),
    ("--dim", "batch=1", "--state", "x=nothing"): 'states: the model has no output "nothing"; did you mean "n.out"?',
    ("--dim", "batch=1", "--state", "y=n.out"): 'states: the model has no input "y".',
    ("--dim", "batch=1", "-o", "model.onnx"): "model.onnx is not a folder, so no artifact is written there.",
    ("--dim", "batch=1", "-o", "."): ". is not an artifact (it holds model.onnx), so it is not replaced.",
}


@pytest.mark.parametrize("options", BAD_OPTIONS)
def test_bad_options(options: tuple[str, ...], save: Callable[[Any], None]) -> None:
    save(BATCH)
    assert refused(run("compile", "model.onnx", "-o", "out", *options)) == f"Error: {BAD_OPTIONS[options]}"
    assert sorted(p.name for p in Path().iterdir()) == ["model.onnx"]


def compiled(save: Callable[[Any], None], model: onnx.ModelProto = FINE) -> Path:
    save(model)
    outcome = run("compile", "model.onnx", "-o", "out")
    assert outcome.returncode == 0, outcome.stderr
    return Path("out")


BAD_INPUTS: dict[str, tuple[str, np.ndarray, str]] = {
    "dtype": (
        "x",
        np.zeros((2, 3)),
        (
            "Input 'x' has dtype float64, but the model takes float32. Nothing is cast silently: "
            "pass array.astype(numpy.float32)."
        ),
    ),
    "shape": (
        "x",
        np.zeros((2, 4), np.float32),
        (
            "Input 'x' has shape [2, 4], but this entry takes [2, 3]: dim 1 is 4 instead of 3. For this shape, compile "
            "with --shape x=2,4."
        ),
    ),
    "rank": (
        "x",
        np.zeros(6, np.float32),
        "Input 'x' has shape [6], but this entry takes [2, 3]: expected rank 2, but got 1.",
    ),
    "name": ("xs", np.zeros((2, 3), np.float32), "There is no input 'xs'. Did you mean 'x'?"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_bad_inputs(case: str, save: Callable[[Any], None]) -> None:
    compiled(save)
    name, array, text = BAD_INPUTS[case]
    np.save("a.npy", array)
    assert refused(run("run", "out", "--input", f"{name}=a.npy", "--output", "result.npz")) == f"Error: {text}"
    assert not list(Path().glob("*.npz"))


def test_outputs_that_cannot_be_written(save: Callable[[Any], None]) -> None:
    compiled(save)
    np.save("a.npy", np.zeros((2, 3), np.float32))
    text = refused(run("run", "out", "--input", "x=a.npy", "--output", "no/result.npz"))
    assert text == "Error: no/result.npz cannot be written: No such file or directory."


def test_a_damaged_artifact(save: Callable[[Any], None]) -> None:
    folder = compiled(save)
    (folder / "plan.json").write_text("{")
    assert refused(run("inspect", "out")).startswith("Error: plan.json is not JSON: ")
    (folder / "plan.json").unlink()
    assert refused(run("inspect", "out")) == "Error: out is no artifact: it has no plan.json."


# Adapters and devices


def test_no_adapter(save: Callable[[Any], None]) -> None:
    compiled(save)
    np.save("a.npy", np.zeros((2, 3), np.float32))
    environment = {**os.environ, "VK_DRIVER_FILES": "/nowhere.json", "WGPU_BACKEND_TYPE": "Vulkan"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-m", "onnx2wgsl", "run", "out", "--input", "x=a.npy"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert refused(Outcome(found.returncode, found.stdout, found.stderr)) == (
        "Error: No WebGPU adapter was found. Install a driver for Vulkan, Metal or Direct3D 12; on Linux without a "
        "GPU, Mesa's software driver (the package mesa-vulkan-drivers) will do."
    )


def requiring(folder: Path, requires: dict[str, Any]) -> None:
    """Let the artifact's entry need more."""
    plan = json.loads((folder / "plan.json").read_text())
    for key in ("requires", "baseline_requires"):
        plan["entries"][0][key] = requires
    (folder / "plan.json").write_text(json.dumps(plan))


@pytest.mark.parametrize(
    ("requires", "lacks"),
    [
        ({"features": ["no-such-feature"]}, "the feature no-such-feature"),
        ({"limits": {"maxBindGroups": 1 << 30}}, "maxBindGroups 1073741824 (it has {maxBindGroups})"),
    ],
)
def test_an_adapter_that_lacks_something(requires: dict[str, Any], lacks: str, save: Callable[[Any], None]) -> None:
    requiring(compiled(save), requires)
    np.save("a.npy", np.zeros((2, 3), np.float32))
    info = device.adapter_info(device.request_adapter())
    assert refused(run("run", "out", "--input", "x=a.npy")) == (
        f"Error: The adapter {info.name} cannot run the entry 'main': it lacks {lacks.format(**info.limits)}. "
        "Compile with --target baseline, or use another adapter (`onnx2wgsl devices` lists them)."
    )


class _Barren:
    """An adapter whose devices are nothing."""

    def __init__(self, adapter: Any) -> None:
        self.info, self.features, self.limits = adapter.info, adapter.features, adapter.limits

    def request_device_sync(self, **options: Any) -> None:
        return None


def test_a_device_that_is_none(save: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(save)
    np.save("a.npy", np.zeros((2, 3), np.float32))
    adapter = _Barren(device.request_adapter())
    monkeypatch.setattr(device, "request_adapter", lambda: adapter)
    name = device.adapter_info(adapter).name
    assert refused(run("run", "out", "--input", "x=a.npy")) == (
        f"Error: Could not create device on {name}: the driver returned nothing. It needs the default limits."
    )


# Names

HOSTILE = [
    "a\nb",
    "*/ fn main() {",
    "</script><script>alert(1)</script>",
    "\x1b[31mred\x1b[0m",
    "../../etc/passwd",
    "n" * 10_000,
    "file",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_harmless_wherever_they_land(name: str, save: Callable[[Any], None]) -> None:
    model = model_of("Relu", [port(name, [2, 3])], name=name)
    folder = compiled(save, model)
    again = run("compile", "model.onnx", "-o", "out", "--dump-passes", "passes")
    inspected = [run("inspect", "out"), run("inspect", "model.onnx"), run("inspect", "model.onnx", "--pass", "fuse")]
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    save_arrays(Path("in.npz"), {f"in/{name}": x})
    ran = run("run", "out", "--inputs", "in.npz", "--output", "result.npz")
    for outcome in (again, *inspected, ran):
        assert outcome.returncode == 0, outcome.stderr
        assert all(line.isprintable() for line in outcome.stdout.split("\n"))
    with np.load("result.npz") as result:
        np.testing.assert_array_equal(result[f"{name}.out"], np.maximum(x, 0))
    written = [p for p in (*folder.rglob("*"), *Path("passes").rglob("*")) if p.is_file()]
    assert all(len(p.name) < 100 and p.name.isprintable() for p in written)
    assert sorted(p.name for p in Path().iterdir()) == ["in.npz", "model.onnx", "out", "passes", "result.npz"]
    (kernel,) = (folder / "kernels").iterdir()
    comments = [line for line in kernel.read_text().split("\n") if line.startswith("//")]
    assert all(len(line) < 200 and line.isprintable() for line in comments)
    assert kernel.read_text().count("fn main(") == 1 + sum(line.count("fn main(") for line in comments)
    assert "</" not in (folder / "plan.json").read_text()
    assert json.loads((folder / "plan.json").read_text())["entries"][0]["inputs"][0]["name"] == name
