"""Identify files by their content with Magika, compiled to WebGPU: the demo behind `make demo`.

usage: identify_files.py [FILE …]

Without arguments it looks at a handful of this repository's files and at a PNG and a gzip that it makes. The model has
fixed steps: compile once, then replay the same plan for every file.
"""

from __future__ import annotations

import gzip
import json
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

import onnx2wgsl

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / ".cache" / "models"
SAMPLES = ("README.md", "Makefile", "pyproject.toml", "onnx2wgsl/errors.py", "scripts/setup.sh", "ir/plan.schema.json")


@dataclass(frozen=True)
class Answer:
    """A label, how sure the model is, and the time of one replay with upload and read-back, in milliseconds."""

    label: str
    probability: float
    milliseconds: float


def features(content: bytes, config: Mapping[str, Any]) -> np.ndarray:
    """Return Magika's input: the stripped first and last bytes, padded with a token that is no byte; int32[1, n]."""
    padding, block = config["padding_token"], config["block_size"]
    head = content[:block].lstrip()[: config["beg_size"]]
    tail = content[-block:].rstrip()[-config["end_size"] :]
    tokens = np.full(config["beg_size"] + config["end_size"], padding, np.int32)
    tokens[: len(head)] = list(head)
    tokens[len(tokens) - len(tail) :] = list(tail)
    return tokens[np.newaxis]


def identify(session: onnx2wgsl.Session, content: bytes, config: Mapping[str, Any]) -> Answer:
    """Classify some content; where Magika would not trust its model, the generic label that it falls back to."""
    tokens = features(content, config)
    if tokens[0, config["min_file_size_for_dl"] - 1] == config["padding_token"]:
        return Answer("too short to tell", 1.0, 0.0)
    start = time.perf_counter()
    outputs = session.run({"bytes": tokens})
    elapsed = (time.perf_counter() - start) * 1000
    scores = outputs["target_label"][0]
    label, score = config["target_labels_space"][int(scores.argmax())], float(scores.max())
    threshold = config["thresholds"].get(label, config["medium_confidence_threshold"])
    name = config["overwrite_map"].get(label, label) if score >= threshold else f"unsure (perhaps {label})"
    return Answer(name, score, elapsed)


def small_png() -> bytes:
    """Return a PNG of 64 by 64 pixels with a gradient."""
    rows = b"".join(b"\0" + bytes(value for x in range(64) for value in (4 * x, 4 * y, 128)) for y in range(64))
    header = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def contents(paths: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the named files, or the samples where none are named."""
    for path in paths:
        yield path, Path(path).read_bytes()
    if paths:
        return
    for path in SAMPLES:
        yield path, (ROOT / path).read_bytes()
    yield "(a PNG made here)", small_png()
    yield "(a gzip made here)", gzip.compress((ROOT / "LICENSE").read_bytes(), mtime=0)


def print_passes(console: Console, artifact: onnx2wgsl.Artifact) -> None:
    table = Table("pass", "statistics", title="What the compiler did", box=None, title_justify="left")
    for record in artifact.plan.passes:
        table.add_row(record.name, ", ".join(f"{name} {value}" for name, value in record.statistics.items()))
    console.print(table)


def print_answers(console: Console, answers: Mapping[str, Answer]) -> None:
    table = Table("file", "label", title="What the model says", box=None, title_justify="left")
    table.add_column("probability", justify="right")
    table.add_column("ms per replay", justify="right")
    for name, answer in answers.items():
        table.add_row(Text(name), Text(answer.label), f"{answer.probability:.1%}", f"{answer.milliseconds:.2f}")
    console.print(table)


def main() -> None:
    subprocess.run(
        [sys.executable, ROOT / "scripts" / "get_models.py", "magika"], check=True, stdout=subprocess.DEVNULL
    )
    config = json.loads((MODELS / "magika.config.json").read_text(encoding="utf-8"))
    console = Console(highlight=False)

    start = time.perf_counter()
    artifact = onnx2wgsl.compile(MODELS / "magika.onnx", input_shapes={"bytes": [1, 2048]})
    console.print(
        f"Compiled magika.onnx in {time.perf_counter() - start:.1f} s: {len(artifact.plan.kernels)} kernels.\n"
    )
    print_passes(console, artifact)

    with onnx2wgsl.Session(artifact) as session:
        console.print(f"\nReplaying on {session.adapter.name} ({session.adapter.backend}).\n")
        session.warmup()
        print_answers(console, {name: identify(session, content, config) for name, content in contents(sys.argv[1:])})


if __name__ == "__main__":
    try:
        main()
    except onnx2wgsl.Onnx2WgslError as error:
        sys.exit(f"Error: {error}")
