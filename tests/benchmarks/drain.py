"""What waiting and idling cost, printed as ratios: ``python tests/benchmarks/drain.py [drain idle import pace]``.

* Drain: 100 000 waiters served one after the other as fast as the limiter can, against 100 000 tasks that each await one bare
  future. The processor's time, from the making of the tasks to their end, and of that from when they are let go.
* Idle: bytes of 10 000 limiters that were used and are idle, and what they left in the event loop.
* Import: milliseconds of ``import aiorate`` after asyncio.
* Pace: delivered/asked of 100 tasks in a loop, by rate and strategy, and the share of a core that it took.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from statistics import median

import uvloop

import aiorate

WAITERS = 100_000
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
KINDS: dict[str, Callable[[], aiorate.Scheduler]] = {
    "filler": lambda: aiorate.TokenPool("1/h"),
    "alarm": lambda: aiorate.TokenBucket("1/h", burst=1),
}


async def many(wait: Callable[[], Awaitable[object]], go: Callable[[], None]) -> tuple[float, float]:
    """Seconds of the processor for all of them to stand in line, be let go, and end; and for the latter two."""
    gc.collect()
    begin = time.process_time()
    tasks = [asyncio.ensure_future(wait()) for _ in range(WAITERS)]
    await asyncio.sleep(0)
    let_go = time.process_time()
    go()
    await asyncio.wait(tasks)
    end = time.process_time()
    return end - begin, end - let_go


async def bare() -> tuple[float, float]:
    """The least that waiting can cost."""
    futures: list[asyncio.Future[None]] = []

    async def wait() -> None:
        future = asyncio.get_running_loop().create_future()
        futures.append(future)
        await future

    def go() -> None:
        for future in futures:
            future.set_result(None)

    return await many(wait, go)


async def limited(kind: str) -> tuple[float, float]:
    """All in line at a rate that is next to none, which is then raised."""
    limiter = aiorate.Limiter(KINDS[kind]())
    assert limiter.try_acquire()
    return await many(limiter.acquire, lambda: limiter.set_rate(10_000_000))


def drain() -> None:
    """The least of five, in turn, so that all see the same machine."""
    for name, factory in LOOPS.items():
        took: dict[str, list[tuple[float, float]]] = {"bare": [], **{kind: [] for kind in KINDS}}
        for _ in range(5):
            for kind, seconds in took.items():
                with asyncio.Runner(loop_factory=factory) as runner:
                    seconds.append(runner.run(bare() if kind == "bare" else limited(kind)))
        for place, what in enumerate(("all of it", "let go")):
            least = {kind: min(each[place] for each in seconds) for kind, seconds in took.items()}
            print(f"drain   {name:8} {what:10}", *(f"{kind} {each:.2f} s = {each / least['bare']:.2f}" for kind, each in least.items()))


async def idle() -> None:
    """Used once and idle."""
    gc.collect()
    tracemalloc.start()
    limiters = [aiorate.Limiter("1000/s") for _ in range(10_000)]
    for limiter in limiters:
        await limiter.acquire()
    gc.collect()
    size = tracemalloc.get_traced_memory()[0] / len(limiters)
    tracemalloc.stop()
    scheduled = len(asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]
    print(f"idle    {size:.0f} bytes a limiter; {len(asyncio.all_tasks()) - 1} tasks and {scheduled} timers of 10 000")


def imports() -> None:
    """Median of nine new interpreters."""
    code = "import asyncio, time; begin = time.perf_counter(); import aiorate; print(time.perf_counter() - begin)"
    took = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in range(9)]
    print(f"import  {1000 * median(took):.1f} ms")


async def hammer(scheduler: aiorate.Scheduler) -> float:
    """Permits per second that 100 tasks in a loop get in 3 s."""
    limiter, count, begin = aiorate.Limiter(scheduler), 0, time.perf_counter()

    async def worker() -> None:
        nonlocal count
        while time.perf_counter() - begin < 3:
            await limiter.acquire()
            count += 1

    await asyncio.gather(*(worker() for _ in range(100)))
    return count / (time.perf_counter() - begin)


def pace() -> None:
    """At 100 000/s a strategy that makes up for nothing is held back by the timers: 100 tasks, 1 ms or more for each turn."""
    for strategy in (aiorate.TokenPool, aiorate.BurstCompensation, aiorate.TicksAccumulator):
        for rate in (100, 1_000, 10_000, 100_000):
            for name, factory in LOOPS.items():
                before = time.process_time()
                with asyncio.Runner(loop_factory=factory) as runner:
                    ratio = runner.run(hammer(strategy(rate))) / rate
                share = (time.process_time() - before) / 3
                print(f"pace    {name:8} {strategy.__name__:18} {rate:7}/s: delivered/asked {ratio:.4f}, {share:4.0%} of a core")


if __name__ == "__main__":
    parts: dict[str, Callable[[], None]] = {"drain": drain, "idle": lambda: asyncio.run(idle()), "import": imports, "pace": pace}
    for part in sys.argv[1:] or parts:
        parts[part]()
