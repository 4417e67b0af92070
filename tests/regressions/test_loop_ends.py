"""Event loops that end while callers wait, forks, copies, and platforms that lack something."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from helpers.driving import SteppedClock, descriptors, one_loop, turns
from helpers.forks import program
from helpers.loops import FACTORIES
from helpers.platforms import needs_fork
from helpers.strategies import EACH

import aiorate
from aiorate import Limiter, Scheduler, TokenBucket, TokenPool
from aiorate._tree.deciding import decisions
from aiorate._tree.threads import clear_closed
from aiorate.testing import ManualClock, VirtualLoop

CLEANING: dict[str, tuple[Callable[[], asyncio.AbstractEventLoop], Callable[[], Scheduler], int]] = {
    "virtual": (VirtualLoop, lambda: TokenBucket("10/s", burst=5), 150),
    **{name: (factory, lambda: TokenPool("2000/s"), 20) for name, factory in FACTORIES.items()},
}


@pytest.mark.parametrize("case", CLEANING)
def test_tasks_cleaning_up_at_shutdown_get_permits(case: str, caplog: pytest.LogCaptureFixture) -> None:
    """``asyncio.run()`` cancels the filler together with the tasks that then clean up; 90 of 150 got a RuntimeError."""
    loop, strategy, workers = CLEANING[case]
    limiter = Limiter(strategy())
    ends: list[object] = []

    async def work() -> None:
        try:
            while True:
                await limiter.acquire()
        finally:
            try:
                ends.append(await limiter.acquire() >= 0)
            except Exception as error:
                ends.append(error)

    async def main() -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        await asyncio.sleep(0.005)
        return tasks

    with caplog.at_level(logging.DEBUG, "asyncio"), asyncio.Runner(loop_factory=loop) as runner:
        tasks = runner.run(main())
    tasks.clear()
    gc.collect()

    assert [True] * workers == ends
    assert [] == [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("strategy", ["TokenPool", "TokenBucket"])
def test_loop_closed_between_grant_and_run_logs_nothing(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grant went to the next in line, which a closed loop cannot wake: "Exception ignored in" on stderr."""
    noise: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", noise.append)
    clock, native = SteppedClock(), asyncio.new_event_loop()
    native.set_exception_handler(lambda _, context: None)  # the program left tasks pending
    limiter = Limiter(EACH[strategy](), clock=clock)
    while limiter.try_acquire():
        pass

    async def begin() -> list[asyncio.Task[float]]:
        tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(3)]
        await turns(3)
        return tasks

    tasks = native.run_until_complete(begin())
    clock.fire()
    native.close()
    tasks.clear()
    gc.collect()

    assert [] == [str(each.exc_value) for each in noise]
    assert 0 == limiter.statistics().waiting
    clock.advance(3600)
    assert limiter.try_acquire()


@one_loop
async def test_clock_moved_after_its_loop_was_closed_raises_nothing() -> None:
    """A ManualClock outlives the loop. Its timer then granted to waiters that nothing can wake: RuntimeError."""
    clock = ManualClock()
    limiter = Limiter(TokenBucket("1/s", burst=1), clock=clock)

    def other_thread() -> None:
        native = asyncio.new_event_loop()
        native.set_exception_handler(lambda _, context: None)

        async def begin() -> list[asyncio.Task[float]]:
            assert limiter.try_acquire()
            tasks = [asyncio.ensure_future(limiter.acquire()) for _ in range(3)]
            await turns(3)
            return tasks

        native.run_until_complete(begin())
        native.close()

    await asyncio.to_thread(other_thread)

    clock.advance(10)


def test_trio_as_a_guest_of_asyncio_has_its_own_driver() -> None:
    """trio's tasks were given asyncio's futures, which trio cannot await."""

    async def guest() -> float:
        limiter = Limiter("20/s")
        await limiter.acquire()
        return await limiter.acquire()

    async def host() -> float:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(guest, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=done.set_result)
        limiter = Limiter("20/s")
        await limiter.acquire()
        await limiter.acquire()
        waited: float = (await done).unwrap()
        return waited

    assert 0 < asyncio.run(host())


@needs_fork
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("strategy", ['TokenPool("100/s")', 'TokenBucket("100/s", burst=1)'])
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


def test_blocking_calls_import_nothing_when_threads_run(tmp_path: Path) -> None:
    """A fork during an import of another thread left the child waiting for that module."""
    for made in ("aiorate.Limiter('10/s', scope='process')", "aiorate.file.FileLimiter(sys.argv[1], '10/s')"):
        code = f"import sys, aiorate.file; limiter = {made}; before = set(sys.modules);"
        code += "limiter.acquire_blocking(); print(*(set(sys.modules) - before))"

        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "limits")], capture_output=True, text=True, check=True)

        assert done.stdout.split() == [], made


def test_a_program_with_a_task_of_a_closed_loop_ends() -> None:
    """The task was collected as the interpreter ended, and a thread was begun for it, which can no longer run: the program hung."""
    code = """
import asyncio, threading, time, aiorate._tree.deciding
aiorate._tree.deciding.LINGER_NS = 0
limiter, loop = aiorate.Limiter("1/h", scope="process"), asyncio.new_event_loop()
tasks = [loop.create_task(limiter.acquire()) for _ in range(2)]
loop.run_until_complete(asyncio.sleep(0.01))
loop.close()
while threading.active_count() > 1:
    time.sleep(0.01)"""
    assert 0 == subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True).returncode


def test_a_loop_that_ends_as_its_task_goes_on_keeps_the_grant() -> None:
    """It is noted later, and another thread looked for closed loops meanwhile: the permit was granted once more."""
    limiter = Limiter(TokenBucket("1000/s", burst=1), scope="process")

    async def main() -> None:
        await limiter.acquire()
        await limiter.acquire()

    asyncio.run(main())
    decisions.run(clear_closed)
    assert (limiter.statistics().granted, limiter.statistics().cancelled) == (2, 0)


def test_the_lines_of_a_closed_loop_are_not_full() -> None:
    """For some milliseconds, those who wait for a place there counted in the next loop."""
    limiter = Limiter(TokenBucket("1/s", burst=1), max_concurrency=1, max_waiting=2)
    tasks: list[asyncio.Task[float]] = []

    async def wait() -> None:
        tasks.extend(asyncio.ensure_future(limiter.__aenter__()) for _ in range(3))
        await turns(2)

    async def ask() -> None:
        async with asyncio.timeout(0):
            await limiter.acquire()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # "Task was destroyed but it is pending!"
    loop.run_until_complete(wait())
    loop.close()
    with pytest.raises(TimeoutError):
        asyncio.run(ask())
