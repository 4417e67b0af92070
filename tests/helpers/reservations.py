"""A process whose tasks reserve of a RedisBudget again and again, and what several of them got together.

Run as a program, it reads an `Order` as JSON from its first argument, prints ``ready``, waits for a line with the instant at which to
begin, and prints what it reserved as JSON. All instants are of the monotonic clock, which the processes of a machine share.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from aiorate.redis import RedisBudget

if TYPE_CHECKING:
    from collections.abc import Callable

    from helpers.local_store import Store

__all__ = ["Order", "Together", "together"]

TESTS = Path(__file__).parents[1]
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Order:
    """The work of one process: ``tasks`` that hold each reservation for about ``hold`` seconds, and use 30 to 70 % of the estimate."""

    url: str
    dimensions: dict[str, str]
    estimates: tuple[int, int]
    """The least and the most tokens that are reserved."""
    seconds: float = 5.0
    hold: float = 0.03
    tasks: int = 50
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Together:
    """What the processes got: instants (s from the beginning) with the tokens used, by process; and the calls of the store."""

    grants: list[list[tuple[float, int]]]
    calls: int

    @property
    def all(self) -> list[tuple[float, int]]:
        """All reservations, in order."""
        return sorted(grant for each in self.grants for grant in each)

    def sums(self, begin: float, end: float) -> tuple[int, int]:
        """Requests and tokens from ``begin`` until before ``end``."""
        tokens = [used for instant, used in self.all if begin <= instant < end]
        return len(tokens), sum(tokens)

    def fullest(self, window: float) -> tuple[int, int]:
        """The most requests and the most tokens in any window of that length, in seconds."""
        grants, most, first, tokens = self.all, [0, 0], 0, 0
        for place, (instant, used) in enumerate(grants):
            tokens += used
            while grants[first][0] <= instant - window:
                tokens -= grants[first][1]
                first += 1
            most = [max(most[0], place - first + 1), max(most[1], tokens)]
        return most[0], most[1]


async def work(order: Order, seed: int) -> list[tuple[int, int]]:
    """Carry the order out."""
    budget = RedisBudget(order.url, "budget", **order.options, **order.dimensions)
    numbers, grants = random.Random(seed), []
    print("ready", flush=True)
    begin = int(await asyncio.to_thread(sys.stdin.readline))
    end = begin + round(order.seconds * SECOND)
    await asyncio.sleep(max(0.0, (begin - monotonic_ns()) / SECOND))

    async def one() -> None:
        while monotonic_ns() < end:
            estimate = numbers.randint(*order.estimates)
            async with budget.reserve(tokens=estimate) as lease:
                used = round(estimate * numbers.uniform(0.3, 0.7))
                grants.append((monotonic_ns() - begin, used))
                await asyncio.sleep(order.hold * numbers.uniform(0.5, 1.5))
                lease.settle(tokens=used)

    tasks = [asyncio.create_task(one()) for _ in range(order.tasks)]
    await asyncio.wait(tasks, timeout=order.seconds)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await budget.aclose()
    return [grant for grant in grants if grant[0] < end - begin]


def together(store: Store, order: Order, count: int = 4, event: tuple[float, Callable[[list[Any]], object]] | None = None) -> Together:
    """Have ``count`` processes carry the order out. At the instant of the event, its function gets the processes; one may be killed."""
    store.send("FLUSHALL")
    before = store.calls()
    command = [sys.executable, "-m", "helpers.reservations", json.dumps(asdict(order))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen([*command, str(seed)], cwd=TESTS, **pipes) for seed in range(count)]  # type: ignore[call-overload]
    for worker in workers:
        assert "ready\n" == worker.stdout.readline()
    begin = monotonic_ns() + SECOND // 5
    for worker in workers:
        worker.stdin.write(f"{begin}\n")
        worker.stdin.flush()
    if event is not None:
        time.sleep(max(0.0, (begin - monotonic_ns()) / SECOND + event[0]))
        event[1](workers)
    texts = [worker.communicate()[0] for worker in workers]
    grants = [[(instant / SECOND, used) for instant, used in json.loads(text)] for text in texts if text]
    return Together(grants, store.calls() - before)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(work(Order(**json.loads(sys.argv[1])), int(sys.argv[2])))), flush=True)
