"""Whole networks against ONNX Runtime's WebGPU provider, in one run.

usage: python bench/compare.py [NET]… [--runs N] [--steps N]

A net is the name of a light model of the onnx package (random weights, 224×224) or encoderL@S (L layers, S tokens).
Wall time is upload, replay and read-back, the median of many; GPU time is the sum of the steps' timestamps. Results
are compared with ONNX Runtime on the CPU. Without ONNX Runtime's WebGPU build its column stays empty.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import onnx2wgsl
from onnx2wgsl.runtime.device import devices
from tests import networks

NETS = ("squeezenet", "shufflenet", "resnet50", "densenet121", "encoder6@128")


def network(name: str) -> networks.Network:
    """The network that a name of the command line stands for."""
    if name.startswith("encoder"):
        layers, _, tokens = name.removeprefix("encoder").partition("@")
        return networks.encoder(int(layers), int(tokens))
    return networks.randomised(name)


def median_ms(call: Callable[[], Any], runs: int) -> float:
    """The median time of a call in milliseconds, after three calls that do not count."""
    for _ in range(3):
        call()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def peer(model: Any, inputs: Mapping[str, np.ndarray], runs: int) -> tuple[float, float] | None:
    """Median wall time in ms and relative error of ONNX Runtime's WebGPU provider; None where it is not installed."""
    import onnxruntime

    if "WebGpuExecutionProvider" not in onnxruntime.get_available_providers():
        return None
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["WebGpuExecutionProvider"])
    outputs = dict(zip((o.name for o in session.get_outputs()), session.run(None, dict(inputs)), strict=True))
    return median_ms(lambda: session.run(None, dict(inputs)), runs), worst(model, inputs, outputs)


def worst(model: Any, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> float:
    """The largest relative error of any output against ONNX Runtime on the CPU."""
    expected = networks.run_onnxruntime(model, inputs)
    return max(networks.relative_error(outputs[name], value) for name, value in expected.items())


def measure(name: str, runs: int, steps: int) -> None:
    """Prints the figures of one network."""
    net = network(name)
    start = time.perf_counter()
    artifact = onnx2wgsl.compile(net.model)
    compiled = time.perf_counter() - start
    entry = artifact.plan.entries[0]
    memory = next(p.statistics for p in artifact.plan.passes if p.name == "plan-memory")
    start = time.perf_counter()
    with onnx2wgsl.Session(artifact) as session:
        outputs = session.run(net.inputs)
        first = time.perf_counter() - start
        error = worst(net.model, net.inputs, outputs)
        wall = median_ms(lambda: session.run(net.inputs), runs)
        profile = session.profile(5)
    gpu = sum(s.microseconds for s in profile.steps) / 1e3
    other = peer(net.model, net.inputs, runs)
    theirs = "" if other is None else f"; ORT {other[0]:.2f} ms, {other[0] / wall:.2f} times ours, error {other[1]:.1e}"
    print(
        f"{name}: {len(entry.steps)} dispatches, {len(artifact.plan.kernels)} kernels, compile {compiled:.1f} s, "
        f"load and first run {first * 1e3:.0f} ms, wall {wall:.2f} ms, GPU {gpu:.2f} ms ({profile.source}), "
        f"error {error:.1e}, arena {memory['arena'] / 1e6:.2f} MB, "
        f"largest live set {memory['largest_live_set'] / 1e6:.2f} MB{theirs}",
        flush=True,
    )
    for step in sorted(profile.steps, key=lambda s: -s.microseconds)[:steps]:
        print(f"  {step.microseconds:8.1f} us  {step.kernel}  grid {step.grid}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=NETS)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=0, help="print the N slowest steps of each network")
    options = parser.parse_args()
    print("; ".join(d.name for d in devices()))
    for name in options.nets:
        try:
            measure(name, options.runs, options.steps)
        except onnx2wgsl.Onnx2WgslError as error:
            print(f"{name}: {error}", flush=True)


if __name__ == "__main__":
    main()
