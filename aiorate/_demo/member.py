"""One of several client processes of the demo: sends requests under its own limit, or under one that all share.

Each line of its input is an `Order` as JSON. It says ``ready``, reads the instant (ns) at which to begin, and prints its `Report` as
JSON. It ends when its input is closed, which happens however the demo ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from time import monotonic_ns
from typing import Any

from redis.asyncio import Redis

from aiorate import Limiter, Rate, TokenBucket
from aiorate._demo.load import Load, noting, run_load
from aiorate.redis import RedisLimiter

__all__ = ["Order", "Report"]


@dataclass(frozen=True, slots=True)
class Order:
    """The work of a client process."""

    url: str
    """Where to send requests."""
    store: str
    """The URL of the store; empty: this process has its own limit."""
    name: str
    """Of the shared limit."""
    rate: str
    seconds: float
    clients: int


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a client process."""

    answered: int
    errors: list[str]
    grants: list[int]
    """The instants (ns) of its permits."""
    answer: int = 0
    """How long (ns) the slowest answer of the store took: its slots are that much later than the store meant them, at most."""


class TimedClient(Redis):
    """A client that notes how long (ns) its slowest answer took."""

    slowest: int = 0

    async def execute_command(self, *words: Any, **options: Any) -> Any:
        """Run the command as the client does, and time it."""
        execute: Any = super().execute_command
        asked = monotonic_ns()
        answer = await execute(*words, **options)
        self.slowest = max(self.slowest, monotonic_ns() - asked)
        return answer


async def carry_out(order: Order) -> Report:
    """Send requests from the instant that standard input gives."""
    rate = Rate.parse(order.rate)
    load = Load(order.seconds)
    limiter: Limiter = Limiter(TokenBucket(rate, 1))
    client: Any = None
    if order.store:
        client = TimedClient.from_url(order.store)
        limiter = RedisLimiter(client, order.name, rate, on_unavailable="wait")
    grants: list[int] = []
    noting(limiter.scheduler, grants)
    print("ready", flush=True)
    begin = int(await asyncio.to_thread(sys.stdin.readline))
    await asyncio.sleep(max(0, begin - monotonic_ns()) / 1e9)
    await run_load(order.url, load, order.clients, limiter)
    await limiter.aclose()
    if client is None:
        return Report(load.total, load.errors, grants)
    await client.aclose()
    return Report(load.total, load.errors, grants, client.slowest)


async def main() -> None:
    """Carry out one order after the other."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(asdict(await carry_out(Order(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
