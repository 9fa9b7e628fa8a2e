"""Sweeps the tiles of contractions on the device: python bench/gemm_sweep.py [--small] [--only NAME]… [--json FILE]

Every workload is compiled by the passes of the compiler up to the schedule, then timed with each tile: first all shapes
of a workgroup and of a thread, then other depths and unrollings of the best ones. A figure is the mean of many
dispatches in one pass, by timestamp queries; every result is compared with the interpreter's. A reference kernel runs
between the workloads: if its time moves, the clock moved, and the figures are not comparable.
"""

from __future__ import annotations

import argparse
import json
import math
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir
import wgpu
from onnx import helper, numpy_helper
from wgpu.backends.wgpu_native import lib

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from onnx2wgsl.codegen.axes import Contraction
from onnx2wgsl.codegen.contraction import contraction, register_kernel, tile_kernel
from onnx2wgsl.codegen.heuristics import SLICED_TILES, Tile, cpu_tile, gpu_tile
from onnx2wgsl.ir.interp import interpret
from onnx2wgsl.ir.kernel import Kernel, KernelProgram, KernelStep
from onnx2wgsl.ir.plan import Entry
from onnx2wgsl.ir.program import Nest, Program
from onnx2wgsl.passes.lower_ops import lower_model
from onnx2wgsl.passes.pipeline import Options, passes

Array = np.ndarray[Any, Any]
Made = tuple[onnx.ModelProto, dict[str, Array]]
CONVS = {
    "conv1 7x7/2": (3, 64, 224, 7, 2),
    "layer1 1x1": (64, 256, 56, 1, 1),
    "layer1 3x3": (64, 64, 56, 3, 1),
    "layer2 3x3": (128, 128, 28, 3, 1),
    "layer3 1x1": (1024, 256, 14, 1, 1),
    "layer3 3x3": (256, 256, 14, 3, 1),
    "layer4 3x3": (512, 512, 7, 3, 1),
}
PRODUCTS = ("4096x4096x4096", "1024x1024x1024", "128x768x768", "128x3072x768", "128x768x3072", "512x768x768")
SMALL_PRODUCTS = ("128x128x64", "37x45x24")
SMALL_CONVS = {"3x3": (12, 16, 9, 3, 1), "7x7/2": (3, 8, 16, 7, 2)}


@dataclass(frozen=True)
class Workload:
    """A contraction, its inputs and expected result, and the operations that it takes."""

    name: str
    nest: Nest
    c: Contraction
    program: Program
    feeds: dict[str, Array]
    expected: Array

    @property
    def operations(self) -> int:
        c = self.c
        return 2 * c.batches * c.left.size * c.right.size * self.reduced

    @property
    def reduced(self) -> int:
        return int(np.prod([a.size for a in self.c.step.axes], dtype=np.int64))


@dataclass(frozen=True)
class Result:
    workload: str
    schedule: str
    microseconds: float
    tflops: float
    error: float
    compile_seconds: float


def product_model(shape: str) -> Made:
    """M×N×K with a constant right operand and a bias."""
    m, n, k = map(int, shape.split("x"))
    x, w = normal(m, k), normal(k, n) / np.sqrt(np.float32(k))
    return model("Gemm", x, [w, normal(n)], {})


def conv_model(channels: int, outputs: int, size: int, kernel: int, stride: int) -> Made:
    w = normal(outputs, channels, kernel, kernel) / np.sqrt(np.float32(channels * kernel * kernel))
    attrs = {"strides": [stride] * 2, "pads": [kernel // 2] * 4}
    return model("Conv", normal(1, channels, size, size), [w, normal(outputs)], attrs)


def normal(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape, dtype=np.float32)


def model(op: str, x: Array, constants: Sequence[Array], attrs: dict[str, Any]) -> Made:
    """One operator followed by Relu."""
    values = [numpy_helper.from_array(c, f"c{k}") for k, c in enumerate(constants)]
    nodes = [
        helper.make_node(op, ["x", *(v.name for v in values)], ["s"], **attrs),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    port = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)
    graph = helper.make_graph(nodes, op, [port], [onnx.ValueInfoProto(name="y")], values)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made), {"x": x}


def workload(name: str, made: Made) -> Workload:
    """Runs the passes before the schedule; the program must be one contraction then."""
    proto, feeds = made
    program = lower_model(onnx_ir.from_proto(proto))
    expected = interpret(program, feeds)["y"]
    pipeline = passes(Options())
    names = [p.name for p in pipeline]
    for step in pipeline[names.index("lower-ops") + 1 : names.index("schedule")]:
        program = step.run(program).program
    (nest,) = program.nodes
    assert isinstance(nest, Nest)
    c = contraction(nest, program.tensors)
    assert c is not None
    return Workload(name, nest, c, program, feeds, expected)


def tiles(c: Contraction) -> Iterator[Tile]:
    """Shapes of workgroups and threads at one depth, with and without prefetch."""
    for rows, columns in ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32), (16, 64), (16, 32)):
        if rows > 2 * max(c.left.size, 16) or columns > 2 * max(c.right.size, 32):
            continue
        for shape in ((8, 8), (8, 4), (4, 8), (4, 4)):
            for prefetch in (False, True):
                tile = Tile(rows, columns, 16, *shape, 16, prefetch)
                if 32 <= tile.threads <= 256:
                    yield tile


def refinements(tile: Tile) -> Iterator[Tile]:
    """Other depths and unrollings of a tile, within 16 KiB of workgroup memory."""
    for depth in (8, 16, 32):
        for unroll in (1, 4, 8, depth):
            made = replace(tile, depth=depth, unroll=unroll)
            if unroll <= depth and made != tile and 4 * depth * (tile.rows + tile.columns) <= 16384:
                yield made


class Bench:
    """Runs kernels of one device."""

    def __init__(self, runs: int) -> None:
        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
        self.info = adapter.info["device"]
        self.device = adapter.request_device_sync(required_features=["timestamp-query"])
        self.period = lib.wgpuQueueGetTimestampPeriod(self.device.queue._internal)
        self.runs = runs

    def measure(self, w: Workload, make: Callable[[], Kernel], label: str) -> Result:
        start = time.perf_counter()
        entry, text, weights = self.build(w, make())
        pipeline = self.device.create_compute_pipeline(
            layout="auto", compute={"module": self.device.create_shader_module(code=text), "entry_point": "main"}
        )
        seconds = time.perf_counter() - start
        buffers = self.buffers(w, entry, weights)
        (step,) = entry.steps
        entries = [
            {"binding": b.slot, "resource": {"buffer": buffers[b.buffer], "offset": b.offset, "size": b.size}}
            for b in step.bindings
        ]
        group = self.device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
        self.time(pipeline, group, step.variants[0].grid, 1)
        output = entry.outputs[0]
        raw = self.device.queue.read_buffer(buffers[output.buffer], 0, w.expected.nbytes)
        got = np.frombuffer(raw, np.float32).reshape(w.expected.shape)
        error = float(np.abs(got - w.expected).max() / np.abs(w.expected).max())
        best = min(self.time(pipeline, group, step.variants[0].grid, self.runs) for _ in range(2))
        for buffer in buffers.values():
            buffer.destroy()
        return Result(w.name, label, best, w.operations / best / 1e6, error, seconds)

    def build(self, w: Workload, kernel: Kernel) -> tuple[Entry, str, Options]:
        """The plan of a program that is one kernel."""
        options = Options()
        step = KernelStep((kernel,), w.nest.reads, w.nest.writes, (), stencil=True)
        program = w.program
        built: Any = KernelProgram(
            dict(program.tensors), dict(program.constants), program.inputs, program.outputs, (step,)
        )
        pipeline = passes(options)
        for p in pipeline[[p.name for p in pipeline].index("schedule") + 1 :]:
            built = p.run(built).program
        return built.entry, options.kernels.finished()[0].wgsl, options

    def buffers(self, w: Workload, entry: Entry, options: Options) -> dict[str, Any]:
        usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        planned = (*entry.buffers, *options.weights.buffers)
        made = {b.name: self.device.create_buffer(size=b.size, usage=usage) for b in planned}
        for port in entry.inputs:
            self.device.queue.write_buffer(made[port.buffer], 0, np.ascontiguousarray(w.feeds[port.name]))
        for weight, array in zip(options.weights.weights, options.weights.arrays, strict=True):
            self.device.queue.write_buffer(made[weight.buffer], weight.offset, np.ascontiguousarray(array))
        return made

    def time(self, pipeline: Any, group: Any, grid: tuple[int, int, int], runs: int) -> float:
        """Microseconds of one dispatch, the mean of `runs` in one pass."""
        queries = self.device.create_query_set(type="timestamp", count=2)
        usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
        resolved = self.device.create_buffer(size=16, usage=usage)
        encoder = self.device.create_command_encoder()
        writes = {"query_set": queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
        compute = encoder.begin_compute_pass(timestamp_writes=writes)
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        for _ in range(runs):
            compute.dispatch_workgroups(*grid)
        compute.end()
        encoder.resolve_query_set(queries, 0, 2, resolved, 0)
        self.device.queue.submit([encoder.finish()])
        begin, end = struct.unpack("<2Q", self.device.queue.read_buffer(resolved))
        resolved.destroy()
        return max(float(end - begin), 1.0) * float(self.period) / 1000 / runs


def label(tile: Tile) -> str:
    return f"{tile}, unroll {tile.unroll}{', prefetch' if tile.prefetch else ''}"


def sweep(bench: Bench, w: Workload, best: int) -> list[Result]:
    """All tiles, then the refinements of the best ones; the schedule that the heuristics choose is marked."""
    flat = w.c.flattened()
    tensors = w.program.tensors
    outer = math.prod(a.size for a in flat.outer)
    chosen = gpu_tile(w.c.batches, w.c.left.size, w.c.right.size, lambda depth: outer * -(-flat.depth // depth))
    found: dict[Tile, Result] = {}

    def run(tile: Tile) -> None:
        if tile not in found:
            found[tile] = bench.measure(w, lambda: tile_kernel(w.nest, flat, tensors, tile), label(tile))
            if found[tile].error > 1e-3:
                print(f"WRONG: {w.name}, {label(tile)}: {found[tile].error}", flush=True)

    sliced = [t for t in SLICED_TILES if outer * -(-flat.depth // t.depth) % t.slices == 0]
    for tile in (chosen, *sliced, *tiles(w.c)):
        run(tile)
    for tile in sorted(found, key=lambda t: found[t].microseconds)[:best]:
        for other in refinements(tile):
            run(other)
    shape = cpu_tile(w.c.batches, w.c.left.size, w.c.right.size, w.reduced)
    plain = bench.measure(w, lambda: register_kernel(w.nest, w.c, tensors, shape), "registers")
    ranked = sorted(found.values(), key=lambda r: r.microseconds)
    mark = replace(found[chosen], schedule=f"chosen: {label(chosen)}")
    return [*ranked, mark, plain]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="tiny workloads and few tiles, to try the script")
    parser.add_argument("--only", action="append", default=[], help="workloads whose name contains this")
    parser.add_argument("--runs", type=int, default=0, help="dispatches in a pass (default 50; 2 with --small)")
    parser.add_argument("--top", type=int, default=8, help="how many tiles to print for a workload")
    parser.add_argument("--refine", type=int, default=2, help="how many tiles to refine")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    options = parser.parse_args()
    products, convs = (SMALL_PRODUCTS, SMALL_CONVS) if options.small else (PRODUCTS, CONVS)
    jobs: list[tuple[str, Callable[[], Any]]] = [(s, lambda s=s: product_model(s)) for s in products]
    jobs += [(n, lambda a=a: conv_model(*a)) for n, a in convs.items()]
    bench = Bench(options.runs or (2 if options.small else 50))
    print(f"{bench.info}; {bench.runs} dispatches in a pass; seconds include emission and pipeline creation")
    reference = workload("reference", product_model("64x64x64" if options.small else "1024x1024x1024"))
    fixed = Tile(64, 64, 16, 4, 4, 16)
    results: list[Result] = []
    for name, make in jobs:
        if options.only and not any(o in name for o in options.only):
            continue
        w = workload(name, make())
        found = sweep(bench, w, 0 if options.small else options.refine)
        again = bench.measure(
            reference, lambda: tile_kernel(reference.nest, reference.c, reference.program.tensors, fixed), "reference"
        )
        print(f"\n{name}: {w.operations / 1e9:.3f} GFLOP; reference {again.microseconds:.1f} us")
        print(f"{'us':>10} {'TFLOP/s':>8} {'error':>8} {'s':>6}  schedule")
        for r in (*found[: options.top], *found[-2:]):
            print(f"{r.microseconds:10.1f} {r.tflops:8.3f} {r.error:8.1e} {r.compile_seconds:6.2f}  {r.schedule}")
        sys.stdout.flush()
        results += [*found, again]
        if options.json:
            options.json.write_text(json.dumps([vars(r) for r in results], indent=1))


if __name__ == "__main__":
    main()
