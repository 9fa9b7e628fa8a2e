"""Errors and the escaping of names."""

from __future__ import annotations

import pickle

import pytest

from onnx2wgsl.errors import CompileError, Gap, Onnx2WgslError, UnsupportedError, escape_name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("conv_1/weight:0", "conv_1/weight:0"),
        ("a\nb\x1b[31m", "a\\x0ab\\x1b[31m"),
        ("\u202ename\u2028", "\\u202ename\\u2028"),
        ("C:\\path", "C:\\\\path"),
        ("größe 数", "größe 数"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_names_are_printable_on_one_line(name: str, shown: str) -> None:
    assert escape_name(name) == shown


def test_long_names_lose_their_middle() -> None:
    shown = escape_name("a" * 500 + "z" * 500)
    assert len(shown) == 120
    assert shown.startswith("aaa")
    assert shown.endswith("zzz")


def test_unsupported_lists_every_gap_and_survives_pickling() -> None:
    gaps = [Gap("n\n1", "StringSplit", "strings have no form on a GPU"), Gap("", "Foo", "unknown operator")]
    error = pickle.loads(pickle.dumps(UnsupportedError(gaps)))
    assert isinstance(error, CompileError)
    assert isinstance(error, Onnx2WgslError)
    assert error.gaps == tuple(gaps)
    assert str(error) == ("StringSplit (node n\\x0a1): strings have no form on a GPU\nFoo: unknown operator")
