"""Real processes over one file: the bound, whatever is killed, stopped or forked."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from helpers.forks import program

from aiorate import EngineUnavailable
from aiorate._store.pool import Pool
from aiorate.file import FileLimiter

RATE, LATE = 500, 0.01


def worker(path: Path, log: int) -> int:
    """Ask all the time, in a child process, and write down when that was decided: a task may be slow to go on. Returns its number."""
    pid = os.fork()
    if pid:
        return pid

    own = Pool.take

    def take(pool: Pool, permits: Any, now: int, since: int | None = None) -> int:
        at = own(pool, permits, now, since)
        if at <= now:
            os.write(log, struct.pack("<q", now))
        return at

    Pool.take = take  # type: ignore[method-assign]  # in this process

    async def work(limiter: FileLimiter) -> None:
        while True:
            await limiter.acquire()

    async def main() -> None:
        limiter = FileLimiter(path, RATE)
        await asyncio.gather(*[work(limiter) for _ in range(25)])

    try:
        asyncio.run(main())
    finally:
        os._exit(1)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL  # it had no error of its own


def most_in(window: float, granted: list[int]) -> int:
    most, begin = 0, 0
    for end, at in enumerate(granted):
        while at - granted[begin] > window * 1e9:
            begin += 1
        most = max(most, end - begin + 1)
    return most


@pytest.mark.parametrize(("kills", "pause"), [(0, 0.0), (25, 0.03), pytest.param(1000, 0.05, marks=pytest.mark.slow)])
def test_eight_processes_keep_the_bound_and_nobody_hangs(path: Path, kills: int, pause: float) -> None:
    """Killed at random instants and replaced. A process that is killed costs the slots in its hand, and nothing later."""
    log = os.open(f"{path}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    random, workers = Random(kills), [worker(path, log) for _ in range(8)]
    for _ in range(kills):
        time.sleep(random.expovariate(1 / pause))
        number = random.randrange(8)
        kill(workers[number])
        workers[number] = worker(path, log)
    time.sleep(1.5)
    for pid in workers:
        kill(pid)
    os.close(log)
    data = Path(f"{path}.log").read_bytes()
    granted = sorted([at for (at,) in struct.iter_unpack("<q", data[: len(data) // 8 * 8])])

    for window in (0.01, 0.05, 0.2, 1.0):
        assert most_in(window, granted) <= 1 + RATE * (window + LATE), window
    assert len([at for at in granted if at > granted[-1] - 1_000_000_000]) > RATE // 10  # on any machine


HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "r+b")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
time.sleep(60)
"""


def test_a_stopped_process_that_has_the_lock_holds_up_no_loop(path: Path) -> None:
    """Those who wait have an error after a second, and the loop has turned all the time; it goes on as soon as the lock is free."""
    assert FileLimiter(path, 100).try_acquire()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    holder.stdout.readline()
    os.kill(holder.pid, signal.SIGSTOP)
    turns = 0

    async def turning() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    async def main() -> None:
        limiter, loop = FileLimiter(path, 100), asyncio.ensure_future(turning())
        assert limiter.try_acquire() is False
        began = time.monotonic()
        errors = await asyncio.gather(*[limiter.acquire() for _ in range(50)], return_exceptions=True)
        assert {type(error) for error in errors} == {EngineUnavailable}
        assert "locked by another process for a second" in str(errors[0])
        assert (time.monotonic() - began >= 0.9, turns > 100) == (True, True)
        with pytest.raises(EngineUnavailable):
            limiter.try_acquire()
        with pytest.raises(EngineUnavailable):
            await asyncio.to_thread(limiter.acquire_blocking)
        holder.kill()
        holder.wait()
        await limiter.acquire()
        loop.cancel()

    try:
        asyncio.run(main())
    finally:
        holder.kill()
        holder.communicate()


FORKING = """
from aiorate.file import FileLimiter
limiter, leased = FileLimiter(PATH, "1/h"), FileLimiter(PATH, 1000, lease=1.0, name="leased")

async def use():
    await limiter.acquire()
    for _ in range(20):
        await leased.acquire()
    print("parent", leased.scheduler.count > 0)

def child():
    print("child", limiter.try_acquire(), leased.scheduler.count)

async def both():
    await use()
    in_child(child)  # with the loop running, in the middle of everything
    print("again", limiter.try_acquire())

asyncio.run(both())
in_child(lambda: asyncio.run(asyncio.wait_for(leased.acquire(), 5)))
with leased:
    in_child(leased.acquire_blocking)
print("done")
"""


def test_a_child_process_has_nothing_of_its_parent_but_the_file(path: Path) -> None:
    out = program(FORKING, PATH=str(path)).splitlines()

    assert out == ["parent True", "child False 0", "again False", "done"]
