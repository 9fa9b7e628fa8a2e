"""What commands print: tables and lines for people, JSON for programs; a stranger's name cannot forge any of it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from onnx2wgsl.errors import escape_name

_LONGEST_CELL = 400
_UNBOUNDED = 100_000
"""The width of tables that no terminal shows: their lines are not broken."""


class OnProgress(Protocol):
    """What the compiler and the runtime call: what is being done, how many are done, and how many there are."""

    def __call__(self, what: str, done: int, total: int) -> None: ...


def print_lines(text: str, error: bool = False) -> None:
    """Print text line by line, with control characters escaped."""
    stream = sys.stderr if error else sys.stdout
    for line in text.split("\n"):
        shown = "".join(character if character.isprintable() else escape_name(character) for character in line)
        print(shown, file=stream)


def print_json(value: Any) -> None:
    """Print one JSON document; numbers that JSON lacks become strings."""
    print(json.dumps(_finite(value), indent=2, ensure_ascii=True))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(element) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table, below a blank line and its title if it has one; a column named `>…` is aligned to the right."""
    table = Table(show_edge=False, pad_edge=False, box=None)
    for column in columns:
        table.add_column(Text(column.lstrip(">"), style="bold"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        table.add_row(*(Text(escape_name(cell, _LONGEST_CELL)) for cell in row))
    if title:
        print_lines(f"\n{title}")
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(table)
        return
    console.width = _UNBOUNDED
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def spell_bytes(count: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    size, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"


def spell_statistics(statistics: Any) -> str:
    """Return a pass's statistics as `name value` pairs."""
    return ", ".join(f"{name} {value}" for name, value in dict(statistics).items())


@contextmanager
def progress_bar() -> Iterator[OnProgress | None]:
    """Show a progress bar on a terminal; elsewhere there is none, and the callback is None."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def on_progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=escape_name(what, 40), completed=done, total=total)

        yield on_progress
