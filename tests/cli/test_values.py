"""The values of command-line options."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import typer

from onnx2wgsl.cli.values import (
    read_constant,
    read_entries,
    read_image_inputs,
    read_integer,
    read_pairs,
    read_shape,
    read_states,
)


def test_pairs_split_at_the_last_equals_sign() -> None:
    assert read_pairs("--dim", ["a=b=3", "n:0=1"], read_integer) == {"a=b": 3, "n:0": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch", "--dim wants NAME=VALUE, but got 'batch'."),
        ("=1", "--dim wants NAME=VALUE, but got '=1'."),
        ("batch=one", "--dim wants an integer, but got 'one'."),
    ],
)
def test_wrong_pairs_are_refused(text: str, message: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        read_pairs("--dim", [text], read_integer)
    assert str(caught.value) == message


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="names batch twice"):
        read_pairs("--dim", ["batch=1", "batch=2"], read_integer)


def test_shapes() -> None:
    assert read_shape("--shape", "1,3,224,224") == [1, 3, 224, 224]
    assert read_shape("--shape", "") == []


def test_constants(tmp_path: Path) -> None:
    assert read_constant("--bind", "16000") == 16000
    assert read_constant("--bind", "0.5,1") == [0.5, 1]
    assert read_constant("--bind", "true") is True
    np.save(tmp_path / "axes.npy", np.array([1, 2]))
    np.testing.assert_array_equal(read_constant("--bind", str(tmp_path / "axes.npy")), [1, 2])
    with pytest.raises(typer.BadParameter, match=r"wants a number, a list of numbers or a \.npy file"):
        read_constant("--bind", "many")


def test_states_keep_their_capacity() -> None:
    assert read_states(["past=present", "k=k_out,capacity=128"]) == {"past": "present", "k": "k_out,capacity=128"}


def test_entries() -> None:
    assert read_entries(["decode:seq=1,batch=2"]) == {"decode": {"dims": {"seq": 1, "batch": 2}}}


def test_image_inputs() -> None:
    text = "x:size=224x192,mean=0.5/0.4/0.3,deviation=0.2,layout=NCHW"
    expected = {"size": [224, 192], "mean": [0.5, 0.4, 0.3], "deviation": 0.2, "layout": "NCHW"}
    assert read_image_inputs([text]) == {"x": expected}
