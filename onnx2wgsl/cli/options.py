"""The options that several commands share, and what they mean to the compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .values import (
    only_given,
    read_constant,
    read_entries,
    read_image_inputs,
    read_integer,
    read_pairs,
    read_shape,
    read_states,
)

Model = Annotated[Path, typer.Argument(metavar="MODEL", exists=True, dir_okay=False, help="an .onnx file")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="a compiled artifact")]
Json = Annotated[bool, typer.Option("--json", help="print JSON for programs")]

Dims = Annotated[list[str], typer.Option("--dim", metavar="N=V", help="fix a named dim")]
Shapes = Annotated[list[str], typer.Option("--shape", metavar="I=1,3,224,224", help="fix the whole shape of an input")]
Binds = Annotated[
    list[str], typer.Option("--bind", metavar="I=V", help="make an input a constant: a number, a list, or a .npy file")
]
States = Annotated[
    list[str],
    typer.Option("--state", metavar="I=O[,capacity=N]", help="feed an input with an output of the run before"),
]
Entries = Annotated[
    list[str], typer.Option("--entry", metavar="NAME:dim=V,…", help="one of several plans over the same weights")
]
Images = Annotated[
    list[str], typer.Option("--image-input", metavar="NAME:size=HxW,…", help="an input that is fed from frames")
]
Outputs = Annotated[list[str], typer.Option("--output-name", metavar="O", help="keep only these outputs")]
From = Annotated[list[str], typer.Option("--from", metavar="T", help="cut the graph: these tensors become inputs")]
To = Annotated[list[str], typer.Option("--to", metavar="T", help="cut the graph: these tensors become outputs")]
Target = Annotated[str | None, typer.Option(metavar="baseline|FILE", help="what the device is assumed to offer")]
Precision = Annotated[str | None, typer.Option(metavar="model|f16", help="keep the model's float types, or convert")]
Memory = Annotated[str | None, typer.Option(metavar="fast|compact", help="how intermediates share memory")]
Int64 = Annotated[str | None, typer.Option(metavar="split|narrow", help="exact word pairs, or plain i32")]
F64 = Annotated[str | None, typer.Option(metavar="f32x2|f32", help="pairs of f32, or plain f32 (loses precision)")]


def compile_options(
    *,
    dims: list[str],
    shapes: list[str],
    binds: list[str],
    states: list[str] | None = None,
    entries: list[str] | None = None,
    images: list[str] | None = None,
    outputs: list[str] | None = None,
    from_: list[str] | None = None,
    to: list[str] | None = None,
    **plain: str | None,
) -> dict[str, Any]:
    """Return the keyword arguments of `onnx2wgsl.compile` for what was given on the command line."""
    return only_given(
        {
            "dims": read_pairs("--dim", dims, read_integer),
            "input_shapes": read_pairs("--shape", shapes, read_shape),
            "bind": read_pairs("--bind", binds, read_constant),
            "states": read_states(states or ()),
            "entries": read_entries(entries or ()),
            "image_inputs": read_image_inputs(images or ()),
            "outputs": outputs,
            "from_": from_,
            "to": to,
            **plain,
        }
    )
