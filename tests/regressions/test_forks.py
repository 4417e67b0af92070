"""Processes forked while the parent holds permits, a line and timers. Each history is a separate program or process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest
from helpers.driving import descriptors
from helpers.forks import program
from helpers.platforms import needs_fork

import aiorate


@needs_fork
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("strategy", ['TokenPool("100/s")', 'TokenBucket("100/s", burst=1)', 'SlidingWindow("1/10ms")'])
def test_a_worker_process_uses_the_limiter_of_its_module(strategy: str, precise: bool) -> None:
    """The child of a ProcessPoolExecutor failed with "attached to a different loop" or, if precise, never woke."""
    printed = program(
        f"""
limiter = aiorate.Limiter(aiorate.{strategy}, precise=PRECISE)


async def ask(count):
    return [await limiter.acquire() for _ in range(count)]


def work():
    limiter.charge(20)  # so that it has to wait, unless the machine stands still for that long
    return len(asyncio.run(ask(3)))


async def main():
    await limiter.acquire()
    waiting = asyncio.create_task(ask(5))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as workers:
        print(await asyncio.get_running_loop().run_in_executor(workers, work))
    print(len(await waiting), limiter.statistics().granted)


asyncio.run(main())
""",
        PRECISE=precise,
    )

    assert "3\n5 6\n" == printed


@needs_fork
@pytest.mark.parametrize("precise", [False, True])
def test_waits_of_the_child_do_not_delay_the_parent(precise: bool) -> None:
    """The child shared the parent's kernel timer and set it for an hour later, so the parent slept on."""
    printed = program(
        """
limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), precise=PRECISE)


async def wait_in_vain():
    limiter.pause(3600)
    try:
        async with asyncio.timeout(0.2):
            await limiter.acquire()
    except TimeoutError:
        print("child")


async def main():
    await limiter.acquire()
    waiting = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    in_child(lambda: asyncio.run(wait_in_vain()))
    async with asyncio.timeout(100):
        waits = await asyncio.gather(*waiting)
    print(*(wait >= 0.1 * place - 1e-6 for place, wait in enumerate(waits, 1)))


asyncio.run(main())
""",
        PRECISE=precise,
    )

    assert "child\nTrue True True\n" == printed


@needs_fork
@pytest.mark.parametrize("precise", [False, True])
def test_the_child_starts_with_the_budget_and_nobody_in_line(precise: bool) -> None:
    """The child inherited the parent's line: it was full, and nobody there would ever move up."""
    printed = program(
        """
limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=10), precise=PRECISE, max_waiting=2)


async def ask():
    print(await limiter.acquire(max_wait=0))
    print(await limiter.acquire(2))
    try:
        async with asyncio.timeout(0.05):
            await limiter.acquire(10)
    except TimeoutError:
        print("waited in vain")


def look():
    print(limiter.statistics().waiting, limiter.try_acquire(3), limiter.try_acquire(3), limiter.try_acquire(1))


def run():
    limiter.statistics()
    asyncio.run(ask())


async def main():
    assert limiter.try_acquire(4)
    waiting = [asyncio.create_task(limiter.acquire(10)) for _ in range(2)]
    await asyncio.sleep(0)
    in_child(look)
    in_child(run)
    print(limiter.statistics().waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    print(limiter.try_acquire(6), limiter.try_acquire())


asyncio.run(main())
""",
        PRECISE=precise,
    )

    assert "0 True True False\n0.0\n0.0\nwaited in vain\n2\nTrue False\n" == printed


@needs_fork
def test_the_parents_line_is_gone_right_after_a_fork() -> None:
    """Within 5 ms after the parent's last look at its loop, the child was refused: False, LineFull, WaitTooLong."""

    async def ask(limiter: aiorate.Limiter) -> int:
        try:
            await limiter.acquire(max_wait=0)
        except aiorate.LimiterError:
            return 1
        return 0

    async def main(sort: int) -> int:
        limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=10), max_waiting=1)
        assert limiter.try_acquire(4)
        task = asyncio.ensure_future(limiter.acquire(10))
        await asyncio.sleep(0)
        process = os.fork()
        if process == 0:
            os._exit(asyncio.run(ask(limiter)) if sort else not limiter.try_acquire())
        _, status = os.waitpid(process, 0)  # noqa: ASYNC222
        task.cancel()
        return status

    assert [0] * 10 == [asyncio.run(main(sort)) for sort in (0, 1) * 5]


@needs_fork
def test_the_child_keeps_no_descriptor_of_the_parent() -> None:
    """The parent's kernel timer stayed open in the child for as long as the child lived."""

    async def main() -> int:
        limiter = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), precise=True)
        assert limiter.try_acquire()
        task = asyncio.ensure_future(limiter.acquire())
        await asyncio.sleep(0)
        process = os.fork()
        if process == 0:
            limiter.statistics()
            os._exit(descriptors())
        _, status = os.waitpid(process, 0)  # noqa: ASYNC222
        task.cancel()
        return status

    assert 0 == asyncio.run(main())


def test_blocking_calls_import_nothing_when_threads_run() -> None:
    """A fork during an import of another thread left the child waiting for that module."""
    code = (
        "import sys, aiorate; limiter = aiorate.Limiter('10/s', scope='process'); before = set(sys.modules);"
        "limiter.acquire_blocking(); print(*(set(sys.modules) - before))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []
