"""Several worker processes that share one limit: started, given the same instant to begin, and asked what they recorded."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from time import monotonic_ns

from benchmarks.measure import Failed, environment
from benchmarks.worker import Order, Record

__all__ = ["Event", "fleet"]

Event = tuple[float, Callable[["list[subprocess.Popen[str]]"], object]]
"""Seconds after the beginning, and what happens then: a store that is killed, or a worker."""


def fleet(orders: Sequence[Order], *events: Event) -> tuple[int, list[Record | None]]:
    """Carry out each order in its own process. Returns the instant (ns) of the beginning, and a record for each.

    The record of a worker that was killed is None. Raises `Failed` for one that ends with an error.
    """
    workers = [_start(order) for order in orders]
    try:
        for worker in workers:
            _line(worker)
        begin = monotonic_ns() + 100_000_000
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{begin}\n")
            worker.stdin.flush()
        for after, event in sorted(events, key=_when):
            time.sleep(max(0.0, (begin - monotonic_ns()) / 1e9 + after))
            event(workers)
        longest = max(order.seconds for order in orders)
        return begin, [_record(worker, longest + 30) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()  # closes its pipes


def _start(order: Order) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.worker", json.dumps(asdict(order))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def _line(worker: subprocess.Popen[str]) -> None:
    assert worker.stdout is not None
    if worker.stdout.readline().strip() != "ready":
        assert worker.stderr is not None
        raise Failed((worker.stderr.read().strip().splitlines() or ["a worker did not begin"])[-1][:80])


def _record(worker: subprocess.Popen[str], timeout: float) -> Record | None:
    try:
        output, errors = worker.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Failed(f"a worker did not end within {timeout:g} s") from None
    if worker.returncode < 0:
        return None
    if worker.returncode:
        raise Failed((errors.strip().splitlines() or [f"exit code {worker.returncode}"])[-1][:80])
    return Record(**json.loads(output))


def _when(event: Event) -> float:
    return event[0]
