"""The application: its commands, and errors in words."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import onnx2wgsl
from onnx2wgsl.errors import Onnx2WgslError, escape_name

from .compiling import check_command, compile_command
from .inspecting import devices_command, inspect_command
from .output import print_lines
from .running import run_command, verify_command

app = typer.Typer(
    name="onnx2wgsl",
    help="Compile ONNX models to WebGPU ahead of time, and run them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("compile")(compile_command)
app.command("check")(check_command)
app.command("run")(run_command)
app.command("verify")(verify_command)
app.command("inspect")(inspect_command)
app.command("devices")(devices_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_lines(f"onnx2wgsl {onnx2wgsl.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    del version


def main() -> None:
    """Run the command line: exit 0 on success, 1 on an error, a gap or a difference, 2 on wrong usage."""
    try:
        app()
    except Onnx2WgslError as error:
        print_lines(f"Error: {error}", error=True)
        sys.exit(1)
    except OSError as error:
        where = "" if error.filename is None else f"{escape_name(error.filename)}: "
        print_lines(f"Error: {where}{error.strerror or escape_name(error)}.", error=True)
        sys.exit(1)
