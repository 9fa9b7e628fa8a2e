"""Passes, text in and text out: `tests/passes/PASS.txt` holds cases, each a program and what the pass makes of it.

    python -m tests.test_passes     writes what the passes make now; review the difference
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onnx2wgsl.ir.parse import parse_program
from onnx2wgsl.ir.text import print_program
from onnx2wgsl.ir.verify import verify
from onnx2wgsl.passes.fuse import Fuse
from onnx2wgsl.passes.legalize_types import LegalizeTypes
from onnx2wgsl.passes.narrow_int64 import NarrowInt64
from onnx2wgsl.passes.place_concats import PlaceConcats
from onnx2wgsl.passes.split_int64 import SplitInt64

FOLDER = Path(__file__).parent / "passes"
PASSES = {p.name: p for p in (PlaceConcats(), Fuse(), NarrowInt64(), SplitInt64(), LegalizeTypes())}
_CASE = re.compile(r"^=== ([^\n]*)\n(.*?)^--->\n(.*?)(?=^===|\Z)", re.MULTILINE | re.DOTALL)


def cases(name: str) -> list[tuple[str, str, str]]:
    """The cases of a pass: title, program, expected text."""
    return [(m[1], m[2], m[3]) for m in _CASE.finditer((FOLDER / f"{name}.txt").read_text(encoding="utf-8"))]


def outcome(name: str, text: str) -> str:
    """The program that the pass makes, and its refusals as comments (fusion has too many)."""
    program = parse_program(text)
    verify(program)
    result = PASSES[name].run(program)
    verify(result.program)
    refusals = "" if name == "fuse" else "".join(f"# {r}\n" for r in result.refusals)
    return f"{print_program(result.program)}{refusals}\n"


ALL = [pytest.param(name, *case, id=f"{name}: {case[0]}") for name in PASSES for case in cases(name)]


@pytest.mark.parametrize(("name", "title", "before", "after"), ALL)
def test_text_in_text_out(name: str, title: str, before: str, after: str) -> None:
    assert outcome(name, before) == after, title


def main() -> None:
    for name in PASSES:
        texts = [f"=== {title}\n{before}--->\n{outcome(name, before)}" for title, before, _ in cases(name)]
        (FOLDER / f"{name}.txt").write_text("".join(texts), encoding="utf-8")


if __name__ == "__main__":
    main()
