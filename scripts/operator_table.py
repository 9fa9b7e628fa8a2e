"""Write the tables of docs/operators.md from the registry of lowerings and the ledger of node cases.

usage: python -m scripts.operator_table [--check]        (--check only says whether the page is up to date)
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

from onnx2wgsl.passes import lower_ops
from tests.nodes.cases import node_cases
from tests.nodes.harness import Result, read_ledger

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operators.md"
RIGHT = ("passed", "folded", "statistical")

REASONS: dict[str, str] = {
    "strings": r"STRING|of strings",
    "decoding of images": r"compressed images",
    "sparse tensors": r"sparse constant",
    "sequences and optionals that stay dynamic": r"Sequence\(|Optional\(|is not a tensor|sequences? |optional",
    "sizes and step counts without a bound": (
        r"must be known at compile time|no largest number of steps|at most \d+ are supported|by data|depends? on"
    ),
    "operators without a lowering": r"is not supported",
    "limits of the target": r"storage buffers|largest binding|one byte range|laid out along",
    "a node that contradicts its definition": r".",
}
"""The closed list: what a refusal is about, and how its reason reads. The first that fits counts."""


def reason_class(reason: str) -> str:
    """The entry of the closed list that a refusal's reason belongs to."""
    return next(name for name, pattern in REASONS.items() if re.search(pattern, reason))


def results_by_operator(ledger: dict[str, Result]) -> dict[str, Counter[str]]:
    """For each operator the statuses of the cases that have a node of it."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for name, case in node_cases().items():
        if name in ledger:
            for operator in {node.op_type for node in case.model.graph.node}:
                found[operator][ledger[name].status] += 1
    return found


def operator_tables(ledger: dict[str, Result]) -> str:
    """One table for each file of passes/lower."""
    results = results_by_operator(ledger)
    families: dict[str, dict[tuple[str, str], list[int]]] = defaultdict(lambda: defaultdict(list))
    for domain, name, since in lower_ops.registry.registered():
        function = lower_ops.registry.find(domain, name, since)
        assert function is not None
        families[function.__module__.rsplit(".", 1)[-1]][domain, name].append(since)
    lines: list[str] = []
    for family in sorted(families):
        lines += ["", f"### {family}", "", "| operator | from opset | cases right | refused |", "|---|---|---|---|"]
        for (domain, name), versions in sorted(families[family].items()):
            counts = results[name]
            right = sum(counts[status] for status in RIGHT)
            shown = f"{domain}::{name}" if domain else name
            lines.append(f"| {shown} | {', '.join(map(str, sorted(versions)))} | {right} | {counts['refused']} |")
    return "\n".join(lines[1:])


def reason_table(ledger: dict[str, Result]) -> str:
    """How many refused cases each entry of the closed list has."""
    counts = Counter(reason_class(result.reason) for result in ledger.values() if result.status == "refused")
    rows = [f"| {name} | {counts[name]} |" for name in REASONS]
    return "\n".join(["| reason | cases refused |", "|---|---|", *rows])


def summary(ledger: dict[str, Result]) -> str:
    counts = Counter(result.status for result in ledger.values())
    return f"{len(ledger)} cases: " + ", ".join(f"{counts[s]} {s}" for s in (*RIGHT, "refused")) + "."


def filled(page: str, ledger: dict[str, Result]) -> str:
    """The page with its generated parts made anew."""
    parts = {"reasons": reason_table(ledger), "summary": summary(ledger), "operators": operator_tables(ledger)}
    for name, text in parts.items():
        begin, end = f"<!-- {name}: made by scripts/operator_table.py -->", f"<!-- end of {name} -->"
        head, _, rest = page.partition(begin)
        _, _, tail = rest.partition(end)
        page = f"{head}{begin}\n\n{text}\n\n{end}{tail}"
    return page


def main() -> int:
    page = PAGE.read_text("utf-8")
    wanted = filled(page, read_ledger())
    if "--check" in sys.argv:
        return int(page != wanted)
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
