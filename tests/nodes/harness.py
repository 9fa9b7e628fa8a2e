"""Run the ONNX backend node cases and keep a ledger of their results.

usage: python -m tests.nodes.harness [--filter REGEX] [--jobs N] [--timeout SECONDS] [--show STATUS] [--update]

A case is `passed`; `folded` where its plan has no dispatch; `statistical` where its outputs are random and their shape,
dtype and distribution are right; `refused` where the compiler says that it does not support it; `wrong` where an output
is not the expected one; and a `crash` where anything else happens. --update writes the results into the ledger.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx.backend.test.case.test_case import TestCase

import onnx2wgsl

from .cases import bound_inputs, case_inputs, is_random, node_cases
from .compare import Mismatch, compare_distribution, compare_outputs
from .pool import Died, run_jobs

LEDGER = Path(__file__).with_name("ledger.json")
STATUSES = ("passed", "statistical", "folded", "refused", "wrong", "crash")
_LONGEST_REASON = 300


@dataclass(frozen=True)
class Result:
    """How one case ended, and why, where it did not pass."""

    status: str
    reason: str = ""

    def is_worse_than(self, other: Result) -> bool:
        return STATUSES.index(self.status) > STATUSES.index(other.status)


def run_case(name: str) -> Result:
    """Compile and run one case, and compare its outputs."""
    case = node_cases()[name]
    try:
        artifact, outputs = _compile_and_run(case)
    except onnx2wgsl.UnsupportedError as error:
        return Result("refused", _one_line(_reasons(error)))
    except Exception as error:
        return Result("crash", _one_line(f"{type(error).__name__}: {error}"))
    finally:
        gc.collect()
    random = is_random(case)
    try:
        (compare_distribution if random else compare_outputs)(case, outputs)
    except Mismatch as error:
        return Result("wrong", _one_line(str(error)))
    if random:
        return Result("statistical")
    return Result("passed" if _dispatches(artifact) else "folded")


def _compile_and_run(case: TestCase) -> tuple[onnx2wgsl.Artifact, Mapping[str, Any]]:
    inputs = case_inputs(case)
    bound = bound_inputs(case.model)
    artifact = onnx2wgsl.compile(case.model, bind={name: inputs[name] for name in inputs if name in bound})
    with onnx2wgsl.Session(artifact) as session:
        return artifact, session.run({name: value for name, value in inputs.items() if name not in bound})


def _dispatches(artifact: onnx2wgsl.Artifact) -> int:
    return sum(step.op == "dispatch" for entry in artifact.plan.entries for step in entry.steps)


def _reasons(error: onnx2wgsl.UnsupportedError) -> str:
    return "; ".join(dict.fromkeys(f"{gap.op}: {gap.reason}" for gap in error.gaps)) or str(error)


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"


def run_cases(
    names: Iterable[str], processes: int = 2, limit: float = 120.0, progress: bool = False
) -> dict[str, Result]:
    """Run the named cases in `processes` processes, and return their results in the order of names."""
    names = list(names)
    node_cases()
    results: dict[str, Result] = {}
    for name, outcome in run_jobs(run_case, names, processes, limit):
        results[name] = Result("crash", _one_line(outcome.reason)) if isinstance(outcome, Died) else outcome
        if progress and (len(results) % 20 == 0 or len(results) == len(names)):
            print(f"\r{len(results)} of {len(names)}", end="", file=sys.stderr, flush=True)
    if progress:
        print(file=sys.stderr)
    return {name: results[name] for name in sorted(results)}


def read_ledger(path: Path = LEDGER) -> dict[str, Result]:
    """Return the recorded results by case name; empty where there is no ledger yet."""
    if not path.exists():
        return {}
    return {name: Result(**fields) for name, fields in json.loads(path.read_text(encoding="utf-8")).items()}


def write_ledger(results: Mapping[str, Result], path: Path = LEDGER) -> None:
    """Write the results, one line a case, in the order of names, so that a change reads well as a diff."""
    lines = [
        f"  {json.dumps(name)}: {json.dumps(_fields(results[name]), ensure_ascii=False)}" for name in sorted(results)
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _fields(result: Result) -> dict[str, str]:
    return {"status": result.status} | ({"reason": result.reason} if result.reason else {})


def summary(results: Mapping[str, Result]) -> str:
    """Return the number of cases in each status, in words."""
    counts = Counter(result.status for result in results.values())
    return f"{len(results)} cases: " + ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])


def _print_changes(results: Mapping[str, Result], ledger: Mapping[str, Result]) -> None:
    for name, result in results.items():
        before = ledger[name].status if name in ledger else "new"
        if result.status != before:
            print(f"{before:>11} → {result.status:<11} {name}  {result.reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", metavar="REGEX", help="only cases whose name it finds")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="for one case")
    parser.add_argument("--show", action="append", default=[], choices=STATUSES, help="list the cases of this status")
    parser.add_argument("--update", action="store_true", help="write the results into the ledger")
    arguments = parser.parse_args()

    names = [name for name in node_cases() if re.search(arguments.filter, name)]
    start = time.perf_counter()
    results = run_cases(names, arguments.jobs, arguments.timeout, progress=sys.stderr.isatty())
    ledger = read_ledger()
    _print_changes(results, ledger)
    for name, result in results.items():
        if result.status in arguments.show:
            print(f"{result.status:<11} {name}  {result.reason}")
    print(f"{summary(results)} ({time.perf_counter() - start:.0f} s, onnx {onnx.__version__})")
    if arguments.update:
        kept = {name: result for name, result in ledger.items() if name in node_cases()}
        write_ledger(kept | results)
    return int(any(result.status in ("wrong", "crash") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
