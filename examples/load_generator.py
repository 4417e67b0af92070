"""An open-loop load generator: requests start on schedule, and are measured from their scheduled start.

The server stalls once, for 0.6 s in the middle. A generator that waits for each answer before it sends the next request sees one
slow request, and misses the hundred that were due meanwhile (coordinated omission, after Gil Tene). Here each slot has its
scheduled start. Wait time is how late a request starts, service time is the server's, and response time, which a
user feels, is their sum.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from aiorate import Limiter, TicksAccumulator

RATE = "200/s"
REQUESTS = 500
STALLS_AT = 200  # the request during which the server stalls
STALL = 0.6  # seconds


@dataclass(frozen=True)
class Sample:
    """One request; times in seconds."""

    wait: float
    service: float

    @property
    def response(self) -> float:
        """From its scheduled start to the end of the answer."""
        return self.wait + self.service


def server() -> web.Application:
    """A server that answers all requests at once but one."""
    served = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal served
        served += 1
        if served == STALLS_AT:
            await asyncio.sleep(STALL)
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/", answer)
    return app


async def generate(url: str) -> list[Sample]:
    """Send the requests on schedule over one connection; the schedule never waits for the server."""
    # TicksAccumulator skips no slot: missed requests are sent as soon as possible.
    limiter = Limiter(TicksAccumulator(RATE))
    samples: list[Sample] = []
    async with aiohttp.ClientSession() as session, aclosing(limiter.slots()) as slots:
        async for slot in slots:
            started = time.monotonic()
            async with session.get(url) as response:
                await response.read()
            samples.append(Sample(wait=started - slot.scheduled_at, service=time.monotonic() - started))
            if slot.index + 1 == REQUESTS:
                break
    return samples


def percentile(values: list[float], percent: float) -> float:
    """The percentile by nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]


def report(samples: list[Sample]) -> None:
    """Print the three times side by side, in ms."""
    times = {
        "wait": [sample.wait for sample in samples],
        "service": [sample.service for sample in samples],
        "response": [sample.response for sample in samples],
    }
    print(f"{len(samples)} requests at {RATE} on one connection, one stall of {STALL} s. Milliseconds:\n")
    print("          ", *(f"{name:>9}" for name in times))
    for percent in (50, 90, 99, 100):
        print(
            f"{f'p{percent}' if percent < 100 else 'max':>10} ",
            *(f"{1_000 * percentile(values, percent):9.1f}" for values in times.values()),
        )
    late = sum(sample.wait > 0.05 for sample in samples)
    slow = sum(sample.service > 0.05 for sample in samples)
    print(f"\nService time alone shows {slow} slow request{'s' * (slow != 1)}; {late} others started more than 50 ms late.")


async def main() -> None:
    """Server and generator in one event loop."""
    runner = web.AppRunner(server(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        report(await generate(f"http://127.0.0.1:{runner.addresses[0][1]}/"))
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
