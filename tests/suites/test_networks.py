"""Whole networks against ONNX Runtime on the CPU: the largest difference, relative to the output's largest magnitude.

The Vulkan driver is the one that the environment selects; scripts/run_tests.py runs this once for each software
driver: in a quick run the networks with the driver's mark, in a full one all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx2wgsl
from scripts.get_models import MODELS, fetch
from tests.networks import BUILDERS, relative_error, run_onnxruntime

DATA = Path(__file__).resolve().parent.parent / "data"
TOLERANCE = 1e-3

BOTH = ("encoder_2_64", "magika", "mtcnn_onet", "translit_decoder_step")
LAVAPIPE = (
    *("light_squeezenet", "shufflenet_224", "densenet121_64", "inception_v1_64", "inception_v2_64", "vgg19_64"),
    *("encoder_2_128", "encoder_6_64", "ppocrv6_det_tiny", "ppocrv6_rec_tiny", "basic_pitch", "hibari_g2p_int8"),
)
SWIFTSHADER = (
    *("squeezenet_224", "resnet50_64", "bvlc_alexnet_64", "zfnet512_64", "encoder_6_128"),
    *("ppocr_cls", "hibari_g2p_fp32", "silero_vad_16k_seq", "translit_encoder_gru"),
)
"""Every network of the quick run is in one of the lists; the marks select them, and a full run takes all of them."""


def in_suite(names: Mapping[str, object]) -> list[object]:
    """Return the names as test parameters with the marks of the drivers that a quick run takes them on."""
    drivers = ((pytest.mark.lavapipe, (*BOTH, *LAVAPIPE)), (pytest.mark.swiftshader, (*BOTH, *SWIFTSHADER)))
    return [pytest.param(name, marks=[mark for mark, taken in drivers if name in taken]) for name in names]


def run_compiled(
    model: onnx.ModelProto | Path, inputs: Mapping[str, np.ndarray], **options: object
) -> dict[str, np.ndarray]:
    """Compile and replay twice; both replays must give the same bits."""
    artifact = onnx2wgsl.compile(model, **options)
    with onnx2wgsl.Session(artifact) as session:
        first = session.run(inputs)
        second = session.run(inputs)
    for name, array in first.items():
        assert array.tobytes() == second[name].tobytes(), f"{name} differs between two replays"
    return first


def check(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert list(actual) == list(expected)
    for name, reference in expected.items():
        assert actual[name].dtype == reference.dtype
        assert actual[name].shape == reference.shape
        if reference.dtype.kind != "f":
            np.testing.assert_array_equal(actual[name], reference)
        else:
            assert relative_error(actual[name], reference) < TOLERANCE, name


@pytest.mark.parametrize("name", in_suite(BUILDERS))
def test_built_network(name: str) -> None:
    network = BUILDERS[name]()
    actual = run_compiled(network.model, network.inputs)
    check(actual, run_onnxruntime(network.model, network.inputs))
    if network.outputs is not None:
        check(actual, network.outputs)


@pytest.mark.parametrize("name", in_suite(MODELS))
def test_published_model(name: str) -> None:
    path = fetch(name)
    with np.load(DATA / f"{name}.npz") as stored:
        arrays = dict(stored)
    inputs = {key.removeprefix("in/"): array for key, array in arrays.items() if key.startswith("in/")}
    actual = run_compiled(path, inputs, input_shapes={key: array.shape for key, array in inputs.items()})
    check(actual, run_onnxruntime(path, inputs))
    for index, (output, array) in enumerate(actual.items()):
        if f"out/{index}" in arrays:
            check({output: array}, {output: arrays[f"out/{index}"]})
        if f"top/{index}" in arrays:
            np.testing.assert_array_equal(array.argmax(axis=-1), arrays[f"top/{index}"])
