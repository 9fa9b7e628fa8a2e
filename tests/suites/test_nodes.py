"""All ONNX backend node cases against the ledger: nothing wrong, nothing crashed, nothing worse than recorded."""

from __future__ import annotations

import pytest

from tests.nodes.cases import node_cases
from tests.nodes.harness import Result, read_ledger, run_cases, summary

LEDGER = read_ledger()


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    outcome = run_cases(node_cases(), processes=2)
    print(summary(outcome))
    return outcome


def test_ledger_lists_every_case() -> None:
    assert sorted(LEDGER) == list(node_cases())


@pytest.mark.parametrize("name", LEDGER)
def test_case_is_as_recorded(name: str, results: dict[str, Result]) -> None:
    result = results[name]
    assert result.status not in ("wrong", "crash"), result.reason
    assert not result.is_worse_than(LEDGER[name]), f"{result.status}: {result.reason}, recorded {LEDGER[name].status}"
