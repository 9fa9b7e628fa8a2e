"""A pool of forked processes for work that may hang or take its process down.

Each worker gets one job at a time. A worker that dies or exceeds the time limit is replaced and its job reported as
such; the run goes on. What a worker wrote to its standard error is kept only to explain its death.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import IO, Any

_CONTEXT = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Died:
    """What stands in for a result where the worker ended before it gave one."""

    reason: str


@dataclass
class _Worker:
    work: Callable[[str], Any]
    log: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    job: str | None = None
    deadline: float = 0.0

    def __post_init__(self) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_serve, args=(self.work, theirs, self.log.fileno()), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, job: str, limit: float) -> None:
        self.job, self.deadline = job, time.monotonic() + limit
        self.connection.send(job)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()
        self.log.close()

    def last_words(self) -> str:
        self.process.join(timeout=5)
        code = self.process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        self.log.seek(0)
        lines = [line for line in self.log.read().decode(errors="replace").splitlines() if line.strip()]
        told = next((line for line in lines if "panicked" in line), lines[-1] if lines else "")
        return f"the process ended with {how}" + (f": {told.strip()}" if told else "")


def _serve(work: Callable[[str], Any], connection: Connection, log: int) -> None:
    os.dup2(log, 2)
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(work(job))


def run_jobs(
    work: Callable[[str], Any], jobs: Sequence[str], processes: int, limit: float
) -> Iterator[tuple[str, Any]]:
    """Yield (job, result or `Died`) as they finish; `limit` is the time for one job in seconds."""
    pending = list(reversed(jobs))
    workers = [_Worker(work) for _ in range(min(processes, len(jobs)))]
    try:
        for worker in workers:
            worker.give(pending.pop(), limit)
        while busy := [worker for worker in workers if worker.job is not None]:
            ready = wait([worker.connection for worker in busy], timeout=0.5)
            for worker in busy:
                outcome = _outcome(worker, worker.connection in ready, limit)
                if outcome is None:
                    continue
                job = worker.job
                assert job is not None
                worker.job = None
                if isinstance(outcome[0], Died):
                    worker.end()
                    workers.remove(worker)
                    if pending:
                        worker = _Worker(work)
                        workers.append(worker)
                if pending:
                    worker.give(pending.pop(), limit)
                yield job, outcome[0]
    finally:
        for worker in workers:
            worker.end()


def _outcome(worker: _Worker, ready: bool, limit: float) -> tuple[Any] | None:
    if ready:
        try:
            return (worker.connection.recv(),)
        except (EOFError, ConnectionResetError):
            return (Died(worker.last_words()),)
    if time.monotonic() > worker.deadline:
        return (Died(f"no result within {limit:g} s"),)
    return None
