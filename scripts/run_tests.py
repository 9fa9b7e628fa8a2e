"""Run the test suites one after the other and print how long each took.

usage: run_tests.py [--full] [SUITE …]

The first suite that fails ends the run; the table is printed all the same. Every suite that needs a device gets one
software driver through VK_DRIVER_FILES. --full runs every network on both drivers, and the tests marked `full`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from drivers import driver_environment

ROOT = Path(__file__).resolve().parent.parent
CHECKED = ["onnx2wgsl", "ir", "passes", "codegen", "runtime", "scripts", "tests", "examples", "bench"]


@dataclass(frozen=True)
class Suite:
    """A named list of commands; `driver` is the software driver they see, if they need one."""

    name: str
    commands: Sequence[Sequence[str]]
    driver: str | None = None


@dataclass(frozen=True)
class Outcome:
    name: str
    seconds: float
    returncode: int
    passed: int
    failed: int
    skipped: int


def module(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


def pytest(full: bool, *arguments: str) -> list[str]:
    chosen = [] if full else ["-m", "not full"]
    return module("pytest", "-q", *chosen, *arguments)


def suites(full: bool) -> list[Suite]:
    def on_driver(name: str) -> list[str]:
        chosen = [] if full else ["-m", name]
        return module("pytest", "-q", "-n", "2", *chosen, "tests/suites/test_networks.py")

    checked = [folder for folder in CHECKED if (ROOT / folder).is_dir()]
    return [
        Suite("lint", [module("ruff", "check", "--quiet", *checked), module("mypy", "-p", "onnx2wgsl")]),
        Suite("core", [pytest(full, "-n", "2", "--ignore=tests/suites", "tests")], "lavapipe"),
        Suite("nodes", [pytest(full, "tests/suites/test_nodes.py")], "lavapipe"),
        Suite("networks-lavapipe", [on_driver("lavapipe")], "lavapipe"),
        Suite("networks-swiftshader", [on_driver("swiftshader"), pytest(full, "tests/cases")], "swiftshader"),
    ]


def count(word: str, summary: str) -> int:
    found = re.search(rf"(\d+) {word}", summary)
    return int(found[1]) if found else 0


def run_command(command: Sequence[str], environment: dict[str, str] | None) -> tuple[int, str]:
    """Run one command, passing its output on, and return its exit code and pytest's closing line."""
    summary = ""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if re.search(r"\d+ (passed|failed|errors?|skipped).* in [\d.]+s", line):
            summary = line
    return process.wait(), summary


def run_suite(suite: Suite) -> Outcome:
    print(f"\n== {suite.name}", flush=True)
    start = time.perf_counter()
    passed = failed = skipped = returncode = 0
    environment = driver_environment(suite.driver) if suite.driver else None
    for command in suite.commands:
        returncode, summary = run_command(command, environment)
        passed += count("passed", summary)
        failed += count("failed", summary) + count("error", summary)
        skipped += count("skipped", summary)
        if returncode:
            break
    return Outcome(suite.name, time.perf_counter() - start, returncode, passed, failed, skipped)


def report(outcomes: Sequence[Outcome]) -> None:
    print(f"\n{'suite':<24}{'seconds':>9}{'passed':>8}{'failed':>8}{'skipped':>9}")
    for outcome in outcomes:
        mark = "" if outcome.returncode == 0 else f"   FAILED (exit {outcome.returncode})"
        print(
            f"{outcome.name:<24}{outcome.seconds:>9.1f}{outcome.passed:>8}{outcome.failed:>8}{outcome.skipped:>9}{mark}"
        )
    print(f"{'total':<24}{sum(outcome.seconds for outcome in outcomes):>9.1f}\n")
    passed, failed, skipped = (sum(getattr(o, name) for o in outcomes) for name in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="also the tests marked `full`")
    parser.add_argument("suite", nargs="*", help="only these suites")
    arguments = parser.parse_args()

    known = {suite.name: suite for suite in suites(arguments.full)}
    unknown = [name for name in arguments.suite if name not in known]
    if unknown:
        parser.error(f"unknown suite {', '.join(unknown)}; there are {', '.join(known)}")
    outcomes: list[Outcome] = []
    for suite in [known[name] for name in arguments.suite] or known.values():
        outcomes.append(run_suite(suite))
        if outcomes[-1].returncode:
            break
    report(outcomes)
    return next((outcome.returncode for outcome in outcomes if outcome.returncode), 0)


if __name__ == "__main__":
    sys.exit(main())
