"""A worker that is limited to 50 calls a second, and answers Prometheus: permits, refusals, requests in line, waits.

``prometheus_client`` alone, without OpenTelemetry. The collector reads ``statistics()`` in the event loop of the limiter, because
``/metrics`` is answered there. Run as a program, it works for a second, asks itself for its metrics once, and prints them.
Press Ctrl-C during a longer run to end it: ``python metrics_prometheus.py 600``.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import httpx2
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from aiorate import Budget, Limiter, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from aiorate import Waited

registry = CollectorRegistry()
WAITS = Histogram("ratelimit_wait_seconds", "Waits of requests that waited.", ["limiter", "limited_by"], registry=registry)


def observe(waited: Waited) -> None:
    """Called for each request that waited. A name is a label, and a key never should be: each would be another time series."""
    WAITS.labels(waited.name or "", waited.limited_by or "rate").observe(waited.seconds)


class Limits:
    """Reads limiters when Prometheus asks."""

    def __init__(self, *limiters: Limiter | Budget) -> None:
        self.limiters = limiters

    def collect(self) -> Iterator[Metric]:
        granted = CounterMetricFamily("ratelimit_permits", "Permits granted.", labels=["limiter"])
        refused = CounterMetricFamily("ratelimit_refusals", "Requests refused.", labels=["limiter"])
        waiting = GaugeMetricFamily("ratelimit_waiting", "Requests in line.", labels=["limiter"])
        for limiter in self.limiters:
            now, name = limiter.statistics(), [limiter.name or ""]
            granted.add_metric(name, now.granted)
            refused.add_metric(name, now.refused)
            waiting.add_metric(name, now.waiting)
        yield from (granted, refused, waiting)


async def answer(request: web.Request) -> web.Response:
    """``/metrics``: in the event loop, so that the limiters may be asked."""
    return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def main(seconds: float) -> None:
    calls = Limiter(TokenBucket("50/s", burst=10), name="calls", on_wait=observe)
    model = Budget(requests=TokenBucket("20/s", 5), tokens=TokenBucket("400/s", 100), name="model", on_wait=observe)
    registry.register(Limits(calls, model))

    async def call() -> None:
        while True:
            await calls.acquire()

    async def ask() -> None:
        while True:
            async with model.reserve(tokens=50):
                pass

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    print(url, flush=True)
    workers = [asyncio.ensure_future(work()) for work in (call, call, ask, ask)]
    await asyncio.sleep(seconds)
    async with httpx2.AsyncClient() as prometheus:
        text = (await prometheus.get(url)).text
    print(*(line for line in text.splitlines() if "_bucket" not in line and "_created" not in line), sep="\n")
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0))
