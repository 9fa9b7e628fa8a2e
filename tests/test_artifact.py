from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnx2wgsl.artifact import Artifact, MemoryWeights, load
from onnx2wgsl.errors import ArtifactError
from onnx2wgsl.ir.plan import CHUNK_BYTES, SHARD_BYTES
from onnx2wgsl.runtime.session import Session
from tests.runtime import plans


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def large_artifact(words: int) -> Artifact:
    plan = plans.copy_plan("f32", 4)
    return Artifact.create(plan, [np.arange(words, dtype=np.uint32)])


def test_saves_and_loads(tmp_path):
    artifact = plans.chain_artifact(golden=plans.golden_for_add())
    artifact.save(tmp_path / "out")
    assert sorted(files(tmp_path / "out")) == [
        "golden.npz",
        "kernels/add.wgsl",
        "kernels/scale.wgsl",
        "kernels/square.wgsl",
        "plan.json",
        "weights-00001-of-00001.bin",
    ]
    loaded = load(tmp_path / "out")
    assert (loaded.plan, loaded.id) == (artifact.plan, artifact.id)
    assert list(loaded.golden.inputs) == ["x", "y"]
    np.testing.assert_array_equal(loaded.golden.outputs["sum"], artifact.golden.outputs["sum"])
    assert list(loaded.weights.chunks()) == list(artifact.weights.chunks())
    with Session(loaded) as session:
        x = np.ones(64, np.float32)
        np.testing.assert_allclose(session.run({"x": x})["z"], plans.chain_of(x), rtol=1e-6)


def test_the_same_input_gives_the_same_bytes(tmp_path):
    for name in ("one", "other"):
        plans.chain_artifact(golden=plans.golden_for_add()).save(tmp_path / name)
    assert files(tmp_path / "one") == files(tmp_path / "other")
    load(tmp_path / "one").save(tmp_path / "other")
    assert files(tmp_path / "one") == files(tmp_path / "other")


def test_weights_are_cut_into_shards_and_chunks(tmp_path):
    size = SHARD_BYTES + CHUNK_BYTES + 8
    artifact = large_artifact(size // 4)
    assert [(shard.file, shard.size, len(shard.chunks)) for shard in artifact.plan.shards] == [
        ("weights-00001-of-00002.bin", SHARD_BYTES, 4),
        ("weights-00002-of-00002.bin", CHUNK_BYTES + 8, 2),
    ]
    artifact.save(tmp_path / "out")
    assert b"".join(load(tmp_path / "out").weights.chunks()) == np.arange(size // 4, dtype=np.uint32).tobytes()


def test_memory_weights_join_blobs_into_chunks():
    blobs = [b"ab", np.array([1, 2], "<u2"), b"", bytes(CHUNK_BYTES), np.array(7, np.float32)]
    chunks = list(MemoryWeights(blobs).chunks())
    assert [len(chunk) for chunk in chunks] == [CHUNK_BYTES, 10]
    assert b"".join(chunks) == b"ab\1\0\2\0" + bytes(CHUNK_BYTES) + np.float32(7).tobytes()


def test_a_damaged_weight_never_reaches_the_device(tmp_path):
    plans.chain_artifact().save(tmp_path / "out")
    shard = tmp_path / "out" / "weights-00001-of-00001.bin"
    content = bytearray(shard.read_bytes())
    content[40] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ArtifactError) as error:
        Session(load(tmp_path / "out"))
    assert str(error.value) == (
        "weights-00001-of-00001.bin is damaged: the SHA-256 of chunk 0 differs from the one in plan.json."
    )
    shard.write_bytes(content[:-4])
    with pytest.raises(ArtifactError) as error:
        load(tmp_path / "out")
    assert str(error.value) == "weights-00001-of-00001.bin is damaged: expected 264 bytes, but it has 260."
    shard.unlink()
    with pytest.raises(ArtifactError) as error:
        load(tmp_path / "out")
    assert str(error.value) == "weights-00001-of-00001.bin is missing from the artifact."


def edit(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "kernels/add.wgsl",
            b"b0[i] + b1[i]",
            b"b0[i] - b1[i]",
            "kernels/add.wgsl is not the text that plan.json was made with: its SHA-256 differs.",
        ),
        ("golden.npz", b"PK", b"PQ", "golden.npz is damaged: its SHA-256 differs from the one in plan.json."),
        (
            "plan.json",
            b'"buffer": "x", "offset": 0',
            b'"buffer": "x", "offset": 4',
            "entry main, step add_0, kernel add: slot 0 has offset 4, which is no multiple of 256.",
        ),
        (
            "plan.json",
            b'{"slot": 1, "kind": "storage", "access": "read", "buffer": "weights"',
            b'{"slot": 7, "kind": "storage", "access": "read", "buffer": "weights"',
            "entry main, step add_0, kernel add: it binds slots [0, 2, 7], but add declares slots [0, 1, 2].",
        ),
    ],
)
def test_tampering_is_refused(tmp_path, file, old, new, message):
    plans.chain_artifact(golden=plans.golden_for_add()).save(tmp_path / "out")
    edit(tmp_path / "out" / file, old, new)
    with pytest.raises(ArtifactError) as error:
        load(tmp_path / "out")
    assert str(error.value) == message


def test_nothing_outside_is_read(tmp_path):
    plans.chain_artifact().save(tmp_path / "out")
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(264))
    shard = tmp_path / "out" / "weights-00001-of-00001.bin"
    shard.unlink()
    shard.symlink_to(secret)
    with pytest.raises(ArtifactError) as error:
        load(tmp_path / "out")
    assert str(error.value) == ("weights-00001-of-00001.bin lies outside the artifact's folder, so it is not read.")
    edit(tmp_path / "out" / "plan.json", b'"weights-00001-of-00001.bin"', b'"../secret"')
    with pytest.raises(ArtifactError, match=r"^plan\.json is malformed at \$\.shards\[0\]\.file: "):
        load(tmp_path / "out")


def test_a_folder_without_a_plan_is_no_artifact(tmp_path):
    with pytest.raises(ArtifactError) as error:
        load(tmp_path)
    assert str(error.value) == f"{tmp_path} is no artifact: it has no plan.json."


class Interrupted(MemoryWeights):
    def chunks(self):
        yield next(super().chunks())
        raise KeyboardInterrupt


def test_an_interrupted_save_leaves_nothing_and_harms_nothing(tmp_path):
    artifact = large_artifact(2 * CHUNK_BYTES // 4)
    broken = Artifact(artifact.plan, Interrupted(artifact.weights.blobs))
    with pytest.raises(KeyboardInterrupt):
        broken.save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    plans.chain_artifact().save(tmp_path / "out")
    before = files(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        broken.save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert files(tmp_path / "out") == before


def test_an_artifact_is_replaced_as_a_whole(tmp_path):
    plans.chain_artifact(golden=plans.golden_for_add()).save(tmp_path / "out")
    Artifact.create(plans.add_plan()).save(tmp_path / "out")
    assert sorted(files(tmp_path / "out")) == ["kernels/add.wgsl", "plan.json"]
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    (tmp_path / "empty").mkdir()
    Artifact.create(plans.add_plan()).save(tmp_path / "empty")
    assert load(tmp_path / "empty").plan == plans.add_plan()


def test_what_is_no_artifact_is_not_replaced(tmp_path):
    artifact = Artifact.create(plans.add_plan())
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "cat.jpg").write_bytes(b"")
    with pytest.raises(ArtifactError) as error:
        artifact.save(photos)
    assert str(error.value) == f"{photos} is not an artifact (it holds cat.jpg), so it is not replaced."
    with pytest.raises(ArtifactError) as error:
        artifact.save(photos / "cat.jpg")
    assert str(error.value) == f"{photos / 'cat.jpg'} is not a folder, so no artifact is written there."
    (photos / "cat.jpg").unlink()
    (photos / "kernels").mkdir()
    with pytest.raises(ArtifactError) as error:
        artifact.save(photos)
    assert str(error.value) == f"{photos} is not an artifact (it has no plan.json), so it is not replaced."


def test_artifacts_of_format_1_0_are_still_read_and_run():
    artifact = load(Path(__file__).parent / "data" / "artifact-1.0")
    assert artifact.plan.format_version == "1.0"
    with Session(artifact) as session:
        x = np.linspace(-1, 1, 64, dtype=np.float32)
        np.testing.assert_allclose(session.run({"x": x})["z"], plans.chain_of(x), rtol=1e-6)
