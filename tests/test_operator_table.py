"""docs/operators.md is what the registry and the ledger say, and every refusal is on its closed list."""

from __future__ import annotations

from scripts.operator_table import PAGE, REASONS, filled, reason_class
from tests.nodes.harness import read_ledger


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text("utf-8")
    assert page == filled(page, read_ledger()), "run python -m scripts.operator_table"


def test_reasons_are_told_apart() -> None:
    samples = {
        "input: graph input x is STRING, which has no tensor on the GPU": "strings",
        "ImageDecoder: decoding compressed images is left to the application": "decoding of images",
        "output: graph output seq is not a tensor": "sequences and optionals that stay dynamic",
        "Dropout: input 2 (t) must be known at compile time": "sizes and step counts without a bound",
        "Frob: operator Frob is not supported": "operators without a lowering",
        "kernel: one kernel needs 9 storage buffers, the target allows 8": "limits of the target",
        "Gemm: Gemm needs matrices, got f32[1] and f32[1]": "a node that contradicts its definition",
    }
    assert {text: reason_class(text) for text in samples} == samples


def test_no_case_is_refused_as_contradictory() -> None:
    refused = [r.reason for r in read_ledger().values() if r.status == "refused"]
    assert {reason_class(reason) for reason in refused} <= set(list(REASONS)[:-1])
