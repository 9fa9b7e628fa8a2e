"""Read one line of text from an image with PP-OCRv6's tiny recogniser, compiled to WebGPU.

usage: read_text.py [IMAGE | --text TEXT]

Without an image it renders TEXT with Pillow and reads that. The plan is compiled for one width; narrower lines are
padded on the right, wider ones are shrunk to fit.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
from PIL import Image, ImageDraw, ImageFont

import onnx2wgsl

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / ".cache" / "models" / "ppocrv6_rec_tiny.onnx"
HEIGHT, WIDTH = 48, 320
BLANK = 0


def render(text: str) -> Image.Image:
    """Return an image of black text on white."""
    font = ImageFont.load_default(size=30)
    left, top, right, bottom = font.getbbox(text)
    image = Image.new("RGB", (round(right - left) + 20, round(bottom - top) + 16), "white")
    ImageDraw.Draw(image).text((10 - left, 8 - top), text, fill="black", font=font)
    return image


def prepare(image: Image.Image) -> np.ndarray:
    """Return the recogniser's input: BGR scaled to [-1, 1], resized to the model's height, padded; f32[1, 3, h, w]."""
    width = min(max(round(image.width * HEIGHT / image.height), 1), WIDTH)
    pixels = np.asarray(image.convert("RGB").resize((width, HEIGHT), Image.Resampling.BILINEAR), np.float32)
    padded = np.zeros((1, 3, HEIGHT, WIDTH), np.float32)
    padded[0, :, :, :width] = (pixels[:, :, ::-1] / 127.5 - 1.0).transpose(2, 0, 1)
    return padded


def characters(model: Path) -> list[str]:
    """Return the recogniser's alphabet by class, from the model's own metadata; class 0 is CTC's blank."""
    metadata = {entry.key: entry.value for entry in onnx.load(model, load_external_data=False).metadata_props}
    return ["", *metadata["character"].split("\n"), " "]


def decode(probabilities: np.ndarray, alphabet: list[str]) -> tuple[str, float]:
    """Decode greedily: drop repeats, then blanks. Returns the text and the mean probability of its characters."""
    classes = probabilities.argmax(axis=-1)
    fresh = np.concatenate([[True], classes[1:] != classes[:-1]]) & (classes != BLANK)
    text = "".join(alphabet[index] for index in classes[fresh])
    return text, float(probabilities.max(axis=-1)[fresh].mean()) if fresh.any() else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", nargs="?", type=Path)
    parser.add_argument("--text", default="Hello, WebGPU 2026!")
    arguments = parser.parse_args()

    fetch = [sys.executable, ROOT / "scripts" / "get_models.py", MODEL.stem]
    subprocess.run(fetch, check=True, stdout=subprocess.DEVNULL)
    image = Image.open(arguments.image) if arguments.image else render(arguments.text)

    start = time.perf_counter()
    artifact = onnx2wgsl.compile(MODEL, input_shapes={"x": [1, 3, HEIGHT, WIDTH]})
    print(f"Compiled {MODEL.name} in {time.perf_counter() - start:.1f} s.")
    with onnx2wgsl.Session(artifact) as session:
        session.warmup()
        start = time.perf_counter()
        (probabilities,) = session.run({"x": prepare(image)}).values()
        elapsed = (time.perf_counter() - start) * 1000
        text, confidence = decode(probabilities[0], characters(MODEL))
        print(f"{text!r} ({confidence:.1%} sure, {elapsed:.1f} ms on {session.adapter.name})")


if __name__ == "__main__":
    try:
        main()
    except onnx2wgsl.Onnx2WgslError as error:
        sys.exit(f"Error: {error}")
