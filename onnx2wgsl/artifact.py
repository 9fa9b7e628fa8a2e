"""The artifact: a capture plan, its kernels and the bytes of its weights, in memory or as a folder.

    plan.json                            the plan; its SHA-256 is the artifact's id
    kernels/<id>.wgsl                    the text of each kernel
    weights-00001-of-0000N.bin           shards of at most 16 MiB, hashed in chunks of 4 MiB
    golden.npz                           optional: inputs and expected outputs for a self-test

Weights are a stream of bytes in GPU layout. They are produced chunk by chunk and never held twice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from onnx2wgsl.errors import ArtifactError, escape_name
from onnx2wgsl.ir.plan import CHUNK_BYTES, SHARD_BYTES, Plan, Shard
from onnx2wgsl.ir.plan_json import kernel_file, parse_plan, print_plan
from onnx2wgsl.ir.plan_verify import verify_plan

__all__ = ["Artifact", "Golden", "MemoryWeights", "ShardFiles", "WeightSource", "load"]

PLAN_FILE = "plan.json"
GOLDEN_FILE = "golden.npz"


class WeightSource(Protocol):
    """Where the bytes of the weights come from."""

    def chunks(self) -> Iterator[bytes]:
        """The stream in pieces of 4 MiB (the last may be shorter), each as verified as the source can."""
        ...


@dataclass(frozen=True)
class MemoryWeights:
    """Weights in memory: bytes or arrays in the order of the stream, which are not copied as a whole."""

    blobs: Sequence[bytes | np.ndarray[Any, Any]] = ()

    def chunks(self) -> Iterator[bytes]:
        """The stream in pieces of 4 MiB; the last may be shorter."""
        pending = bytearray()
        for blob in self.blobs:
            view = _bytes_of(blob)
            while len(view):
                taken = view[: CHUNK_BYTES - len(pending)]
                pending += taken
                view = view[len(taken) :]
                if len(pending) == CHUNK_BYTES:
                    yield bytes(pending)
                    pending.clear()
        if pending:
            yield bytes(pending)


@dataclass(frozen=True)
class ShardFiles:
    """Weights in the shards of an artifact's folder."""

    folder: Path
    shards: tuple[Shard, ...]

    def chunks(self) -> Iterator[bytes]:
        """The stream in pieces of 4 MiB; ArtifactError where one is short or its SHA-256 is not the plan's."""
        for shard in self.shards:
            with _inside(self.folder, shard.file).open("rb") as file:
                for index, expected in enumerate(shard.chunks):
                    chunk = file.read(min(CHUNK_BYTES, shard.size - index * CHUNK_BYTES))
                    if hashlib.sha256(chunk).hexdigest() != expected:
                        raise ArtifactError(
                            f"{shard.file} is damaged: the SHA-256 of chunk {index} differs from the one in plan.json."
                        )
                    yield chunk


@dataclass(frozen=True)
class Golden:
    """Inputs and expected outputs of the first entry, as `run` takes and gives them."""

    inputs: Mapping[str, np.ndarray[Any, Any]]
    outputs: Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Artifact:
    """A verified plan with its weights. `Artifact.create` makes one in memory, `load` reads one from a folder."""

    plan: Plan
    weights: WeightSource
    golden: Golden | None = None

    @staticmethod
    def create(
        plan: Plan, weights: Sequence[bytes | np.ndarray[Any, Any]] = (), golden: Golden | None = None
    ) -> Artifact:
        """An artifact of `plan`, whose shards are computed here, and of the weights in the order of the stream.

        Raises ArtifactError if the plan is inconsistent.
        """
        source = MemoryWeights(weights)
        golden_sha256 = None if golden is None else hashlib.sha256(_golden_bytes(golden)).hexdigest()
        plan = dataclasses.replace(plan, shards=_shards_of(source), golden_sha256=golden_sha256)
        verify_plan(plan)
        return Artifact(plan, source, golden)

    @cached_property
    def id(self) -> str:
        """The SHA-256 (hex) of the bytes of `plan.json`."""
        return hashlib.sha256(print_plan(self.plan)).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the artifact into the folder `path`: whole or not at all.

        An artifact that is already there is replaced. Raises ArtifactError if `path` is a file, or a folder with
        anything else in it, or cannot be written.
        """
        target = Path(path)
        try:
            self._save(target)
        except OSError as error:
            raise ArtifactError(f"{escape_name(target)} cannot be written: {error.strerror}.") from error

    def _save(self, target: Path) -> None:
        _check_replaceable(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            new = staging / "new"
            new.mkdir()
            self._write(new)
            if target.exists():
                target.rename(staging / "old")
            try:
                new.rename(target)
            except BaseException:
                if (staging / "old").exists():
                    (staging / "old").rename(target)
                raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _write(self, folder: Path) -> None:
        (folder / "kernels").mkdir()
        for kernel in self.plan.kernels:
            (folder / kernel_file(kernel.id)).write_bytes(kernel.wgsl.encode("utf-8"))
        chunks = self.weights.chunks()
        for shard in self.plan.shards:
            with (folder / shard.file).open("wb") as file:
                for _ in shard.chunks:
                    file.write(next(chunks))
        if self.golden is not None:
            (folder / GOLDEN_FILE).write_bytes(_golden_bytes(self.golden))
        (folder / PLAN_FILE).write_bytes(print_plan(self.plan))


def load(path: str | os.PathLike[str]) -> Artifact:
    """Read the artifact in the folder `path`. The bytes of the weights are read, and checked, when they are used.

    Raises ArtifactError where the folder is no artifact, is of another major format version, or disagrees with itself.
    """
    folder = Path(path)
    if not (folder / PLAN_FILE).is_file():
        raise ArtifactError(f"{escape_name(folder)} is no artifact: it has no {PLAN_FILE}.")
    text = _inside(folder, PLAN_FILE).read_bytes()
    plan = parse_plan(text, lambda name: _read_text(folder, name))
    verify_plan(plan)
    for shard in plan.shards:
        size = _inside(folder, shard.file).stat().st_size
        if size != shard.size:
            raise ArtifactError(f"{shard.file} is damaged: expected {shard.size} bytes, but it has {size}.")
    artifact = Artifact(plan, ShardFiles(folder, plan.shards), _load_golden(folder, plan))
    # The id is that of the file, which a newer minor version may have written with more fields.
    artifact.__dict__["id"] = hashlib.sha256(text).hexdigest()
    return artifact


def _inside(folder: Path, name: str) -> Path:
    """The file `name` of the artifact; ArtifactError if it is missing or lies elsewhere, also by way of a link."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ArtifactError(f"{escape_name(name)} lies outside the artifact's folder, so it is not read.")
    if not path.is_file():
        raise ArtifactError(f"{escape_name(name)} is missing from the artifact.")
    return path


def _read_text(folder: Path, name: str) -> str:
    try:
        return _inside(folder, name).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{escape_name(name)} is not UTF-8 text.") from error


def _check_replaceable(target: Path) -> None:
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir() or target.is_symlink():
        raise ArtifactError(f"{escape_name(target)} is not a folder, so no artifact is written there.")
    names = {path.name for path in target.iterdir()}
    known = {PLAN_FILE, GOLDEN_FILE, "kernels"}
    others = sorted(name for name in names - known if not (name.startswith("weights-") and name.endswith(".bin")))
    if names and (PLAN_FILE not in names or others):
        what = f"it holds {escape_name(others[0])}" if others else f"it has no {PLAN_FILE}"
        raise ArtifactError(f"{escape_name(target)} is not an artifact ({what}), so it is not replaced.")


def _bytes_of(blob: bytes | np.ndarray[Any, Any]) -> memoryview:
    if isinstance(blob, np.ndarray):
        return np.ascontiguousarray(blob).reshape(-1).view(np.uint8).data
    return memoryview(blob)


def _shards_of(source: WeightSource) -> tuple[Shard, ...]:
    sizes_and_hashes = [(len(chunk), hashlib.sha256(chunk).hexdigest()) for chunk in source.chunks()]
    per_shard = SHARD_BYTES // CHUNK_BYTES
    groups = [sizes_and_hashes[start : start + per_shard] for start in range(0, len(sizes_and_hashes), per_shard)]
    return tuple(
        Shard(
            f"weights-{index:05}-of-{len(groups):05}.bin",
            sum(size for size, _ in group),
            tuple(digest for _, digest in group),
        )
        for index, group in enumerate(groups, 1)
    )


def _golden_bytes(golden: Golden) -> bytes:
    file = io.BytesIO()
    arrays: dict[str, Any] = {f"in/{name}": _storable(array) for name, array in golden.inputs.items()}
    arrays |= {f"out/{name}": _storable(array) for name, array in golden.outputs.items()}
    np.savez(file, **arrays)
    return file.getvalue()


def _storable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """NumPy's files know only NumPy's own types; others are written as their bits."""
    array = np.asarray(array)
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def _load_golden(folder: Path, plan: Plan) -> Golden | None:
    if plan.golden_sha256 is None:
        return None
    content = _inside(folder, GOLDEN_FILE).read_bytes()
    if hashlib.sha256(content).hexdigest() != plan.golden_sha256:
        raise ArtifactError(f"{GOLDEN_FILE} is damaged: its SHA-256 differs from the one in plan.json.")
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    inputs = {name.removeprefix("in/"): array for name, array in arrays.items() if name.startswith("in/")}
    outputs = {name.removeprefix("out/"): array for name, array in arrays.items() if name.startswith("out/")}
    return Golden(inputs, outputs)
