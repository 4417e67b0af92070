"""Worker processes that share one limit through a store, and what came of it, from the instants of their grants.

`together` starts a process for each `Order`, gives all of them the same instant to begin, and gathers what they recorded. Here stands
the worker too: ``python -m helpers.fleet ORDER`` reads an order as JSON, says ``ready``, waits for a line with that instant, and prints
a `Record`. It knows of no other worker.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from functools import partial
from time import monotonic_ns
from typing import Any

import aiorate
from aiorate.redis import RedisBudget, RedisLimiter
from helpers.local_store import Store

RATE = 1_000.0
SECOND = 1_000_000_000
Event = tuple[float, Callable[["list[subprocess.Popen[str]]"], object]]
"""Seconds after the beginning, and what happens then: a store that is killed, or a worker."""
_TURN = 64  # acquires of a task that may never suspend, before it lets the loop turn


@dataclass(frozen=True, slots=True)
class Order:
    """The work of one process."""

    url: str
    rate: float
    subject: str = "aiorate"
    """Or "budget": a `RedisBudget` of as many requests, and a thousand tokens for each, of which calls use half of what they reserve.

    Or "floor": a limiter with its part of the rate for each of ``processes`` processes, which share nothing.
    """
    options: dict[str, Any] = field(default_factory=dict)
    """Of the `RedisLimiter`."""
    tasks: int = 50
    permits: int = 1
    """Permits of each acquire."""
    seconds: float = 5.0
    """Seconds from the beginning to the end."""


@dataclass(frozen=True, slots=True)
class Record:
    """The instants (ns, of the clock that all processes of a machine share) of all permits, in order, and how often which error came."""

    grants: list[int]
    errors: dict[str, int]


@dataclass(frozen=True, slots=True)
class Shares:
    """The grants of all processes."""

    rate: float
    seconds: float
    begin: int
    grants: Sequence[Sequence[int]]
    """Of each process, those that were killed left out."""
    calls: int
    """Scripts that the store ran since it was last started."""
    errors: dict[str, int]

    @property
    def all(self) -> list[int]:
        """The instants of all grants, in order."""
        return sorted(instant for each in self.grants for instant in each)

    def fullest(self, seconds: float) -> float:
        """The fullest window of that length, divided by what the rate allows in it."""
        instants, window, most, first = self.all, round(seconds * SECOND), 0, 0
        for place, instant in enumerate(instants):
            while instants[first] <= instant - window:
                first += 1
            most = max(most, place - first + 1)
        return most / (self.rate * seconds)

    def delivered(self, since: float = 0.0, until: float | None = None) -> float:
        """Permits from one second to another, divided by what the rate allows."""
        until = self.seconds if until is None else until
        least, most = self.begin + round(since * SECOND), self.begin + round(until * SECOND)
        return sum(least <= instant < most for instant in self.all) / (self.rate * (until - since))

    @property
    def evenness(self) -> float:
        """The permits of the slowest process, divided by those of the fastest."""
        counts = [len(each) for each in self.grants]
        return min(counts) / max(counts) if any(counts) else 0.0


def together(orders: Sequence[Order], store: Store, *events: Event) -> Shares:
    """The grants of a process for each order, which share one limit in that store, or in the one whose URL the order names."""
    store.send("FLUSHALL")
    before = store.calls()
    begin, records = _carried_out([replace(order, url=order.url or store.url) for order in orders], events)
    left = [record for record in records if record is not None]
    errors = dict(sum((Counter(record.errors) for record in left), Counter()))
    calls = store.calls()
    calls = calls - before if calls >= before else calls  # fewer: it was started again
    return Shares(orders[0].rate, orders[0].seconds, begin, [record.grants for record in left], calls, errors)


# --- The processes


def _carried_out(orders: Sequence[Order], events: Sequence[Event]) -> tuple[int, list[Record | None]]:
    """The instant of the beginning, and a record for each; None for a worker that was killed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    workers = [subprocess.Popen([sys.executable, "-m", "helpers.fleet", json.dumps(asdict(order))], **pipes) for order in orders]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        begin = monotonic_ns() + SECOND // 10
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{begin}\n")
            worker.stdin.flush()
        for after, event in sorted(events, key=lambda each: each[0]):
            time.sleep(max(0.0, (begin - monotonic_ns()) / SECOND + after))
            event(workers)
        return begin, [_record(worker, max(order.seconds for order in orders) + 30) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()  # closes its pipes


def _record(worker: subprocess.Popen[str], timeout: float) -> Record | None:
    output, _ = worker.communicate(timeout=timeout)
    if worker.returncode < 0:
        return None
    assert worker.returncode == 0
    return Record(**json.loads(output))


# --- In the worker


def _limiter(order: Order) -> tuple[Callable[..., Awaitable[object]], Callable[[], Awaitable[object]]]:
    """How the limiter of an order is asked, and closed."""
    options = dict(order.options)
    if order.subject == "floor":
        return aiorate.Limiter(Fraction(round(order.rate), options["processes"])).acquire, partial(asyncio.sleep, 0)
    if order.subject == "budget":
        budget = RedisBudget(order.url, "bench", requests=order.rate, tokens=1000 * order.rate, **options)

        async def reserve() -> None:
            async with budget.reserve(tokens=1500) as lease:
                lease.settle(tokens=750)

        return reserve, budget.aclose
    limiter = RedisLimiter(order.url, "bench", order.rate, **options)
    return limiter.acquire, limiter.aclose


async def _work(order: Order) -> Record:
    acquire, close = _limiter(order)
    ask = partial(acquire, order.permits) if order.permits > 1 else acquire
    grants: list[int] = []
    errors: Counter[str] = Counter()
    print("ready", flush=True)
    begin = int(await asyncio.to_thread(sys.stdin.readline))
    end = begin + round(order.seconds * SECOND)

    async def one() -> None:
        count = 0
        while monotonic_ns() < end:
            try:
                await ask()
            except Exception as error:  # an outage is a figure, not the end of the run
                errors[type(error).__name__] += 1
                await asyncio.sleep(0.01)
                continue
            grants.extend([monotonic_ns()] * order.permits)
            count += 1
            if not count % _TURN:
                await asyncio.sleep(0)

    await asyncio.sleep(max(0.0, (begin - monotonic_ns()) / SECOND))
    tasks = [asyncio.create_task(one()) for _ in range(order.tasks)]
    await asyncio.wait(tasks, timeout=order.seconds)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=5)
    await close()
    return Record([instant for instant in grants if instant < end], dict(errors))


def main(text: str) -> None:
    """Carry out the order in that JSON text."""
    order = Order(**json.loads(text))
    print(json.dumps(asdict(asyncio.run(_work(order)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
