"""A worker process: tasks that ask one shared limiter again and again, and the instants of its grants.

It reads an `Order` as JSON from its first argument, says ``ready``, waits for a line with the instant at which to begin, and prints
a `Record` as JSON. It knows of no other worker.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from time import monotonic_ns, process_time
from typing import TYPE_CHECKING, Any

from benchmarks.measure import LOOPS
from benchmarks.shared_peers import SHARED
from benchmarks.subjects import closed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Order", "Record"]

_TURN = 64  # acquires of a task that may never suspend, before it lets the loop turn


@dataclass(frozen=True, slots=True)
class Order:
    """The work of one process."""

    url: str
    rate: float
    subject: str = "aiorate"
    options: dict[str, Any] = field(default_factory=dict)
    tasks: int = 50
    permits: int = 1
    """Permits of each acquire."""
    after: float = 0.0
    """Seconds after the beginning at which the tasks begin."""
    seconds: float = 5.0
    """Seconds from the beginning to the end."""
    timeout: float | None = None
    """Seconds after which a task cancels an acquire, and asks again."""
    clock: float = 0.0
    """Seconds by which the wall clock of the process is wrong."""
    loop: str = "asyncio"


@dataclass(frozen=True, slots=True)
class Record:
    """The result."""

    grants: list[int]
    """The instants (ns, of the clock that all processes of a machine share) of all permits, in order."""
    errors: dict[str, int]
    """How often an acquire raised, by the name of the class."""
    first_errors: list[int]
    """The instants of the first ten errors."""
    cpu: float
    """Seconds of the processor, from the beginning to the end."""


async def work(order: Order, begin: Callable[[], Awaitable[int]]) -> Record:
    """Carry the order out from the instant that ``begin`` returns."""
    calls = SHARED[order.subject](order.url, order.rate, order.options)
    assert calls.acquire is not None
    acquire: Callable[..., Awaitable[object]] = calls.acquire
    if order.permits > 1:
        acquire = partial(acquire, order.permits)
    grants: list[int] = []
    errors: dict[str, int] = {}
    first_errors: list[int] = []
    started = await begin()
    end = started + round(order.seconds * 1e9)

    async def one() -> None:
        count = 0
        while (now := monotonic_ns()) < end:
            try:
                if order.timeout is None:
                    await acquire()
                else:
                    async with asyncio.timeout(order.timeout):
                        await acquire()
            except TimeoutError:
                continue
            except Exception as error:  # any library's, which is counted
                errors[type(error).__name__] = errors.get(type(error).__name__, 0) + 1
                if len(first_errors) < 10:
                    first_errors.append(now)
                await asyncio.sleep(0.01)
                continue
            now = monotonic_ns()
            grants.extend([now] * order.permits)
            count += 1
            if not count % _TURN:
                await asyncio.sleep(0)

    await asyncio.sleep(max(0.0, (started - monotonic_ns()) / 1e9 + order.after))
    cpu = process_time()
    tasks = [asyncio.create_task(one()) for _ in range(order.tasks)]
    await asyncio.wait(tasks, timeout=order.seconds - order.after)
    cpu = process_time() - cpu
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=5)
    await closed(calls)
    return Record([instant for instant in grants if instant < end], errors, first_errors, cpu)


def main(text: str) -> None:
    """Carry out the order in that JSON text."""
    order = Order(**json.loads(text))
    if order.clock:
        _shift(order.clock)

    async def begin() -> int:
        print("ready", flush=True)
        return int(await asyncio.to_thread(sys.stdin.readline))

    loop = LOOPS[order.loop]()
    try:
        print(json.dumps(asdict(loop.run_until_complete(work(order, begin)))), flush=True)
    finally:
        loop.close()


def _shift(seconds: float) -> None:
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + round(seconds * 1e9)


if __name__ == "__main__":
    main(sys.argv[1])
