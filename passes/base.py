"""What a pass is: a frozen dataclass whose fields are its options, with `requires`, `run` and `ensures`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, TypeVar

P = TypeVar("P")
Q = TypeVar("Q")


@dataclass(frozen=True)
class PassResult(Generic[P]):
    """The new program, whether it differs, what the pass counted, and what it declined to do, each with a reason."""

    program: P
    changed: bool = True
    statistics: Mapping[str, Any] = field(default_factory=dict)
    refusals: tuple[str, ...] = ()


class Pass(Generic[P, Q]):
    """Base of all passes. `name` is kebab-case and equals the file's name."""

    name: ClassVar[str]

    def run(self, program: P) -> PassResult[Q]:
        raise NotImplementedError

    def requires(self, program: P) -> None:
        """Raises where the program is not what the pass expects."""

    def ensures(self, program: Q) -> None:
        """Raises where the result is not what the pass promises."""

    @property
    def options(self) -> dict[str, Any]:
        """The pass's fields by name, without what it shares with other runs (fields that do not print)."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.repr}  # type: ignore[arg-type]
