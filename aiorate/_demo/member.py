"""One of several client processes of the demo: sends requests, and asks a limit that it has for itself or shares with the others.

It is told what to do in its arguments, says ``ready``, reads the instant (ns) at which to begin, and prints its `Report` as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from time import monotonic_ns

from aiorate import Limiter, Rate, TokenBucket
from aiorate._demo.load import Load, noting, run_load
from aiorate.redis import RedisLimiter

__all__ = ["Order", "Report"]

NAME = "aiorate-demo"  # of the shared limit, in the store


@dataclass(frozen=True, slots=True)
class Order:
    """What a client process is to do."""

    url: str
    """Where to send requests."""
    store: str
    """The URL of the store; empty: this process limits itself, and shares nothing."""
    rate: str
    seconds: float
    clients: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a client process did."""

    answered: int
    errors: list[str]
    grants: list[int]
    """The instants (ns) of its permits."""


async def carry_out(order: Order) -> Report:
    """Send requests from the instant that standard input names."""
    rate = Rate.parse(order.rate)
    load = Load(order.seconds)
    limiter: Limiter = Limiter(TokenBucket(rate, 1))
    if order.store:
        limiter = RedisLimiter(order.store, NAME, rate, on_unavailable="wait")
    grants: list[int] = []
    noting(limiter.scheduler, grants)
    print("ready", flush=True)
    begin = int(await asyncio.to_thread(sys.stdin.readline))
    await asyncio.sleep(max(0, begin - monotonic_ns()) / 1e9)
    await run_load(order.url, load, order.clients, limiter)
    return Report(load.total, load.errors, grants)


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(carry_out(Order(*json.loads(sys.argv[1])))))), flush=True)
