"""What platforms share or lack: kernel timers and their descriptors, fork, uvloop."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aiorate


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda limiter: pickle.loads(pickle.dumps(limiter))], ids=["copy", "deepcopy", "pickle"]
)
def test_a_limiter_refuses_to_be_copied(duplicate: Callable[[Any], Any], precise: bool) -> None:
    """A deep copy of a used limiter closed a descriptor that belonged to another loop by then."""
    used, unused = aiorate.Limiter("1000/s", precise=precise), aiorate.Limiter("1000/s", precise=precise)

    asyncio.run(used.acquire(3))

    held = () if duplicate is copy.copy else ({"limiter": used}, used.of(2))  # a shallow copy shares it
    for limiter in (used, unused, *held):
        with pytest.raises(TypeError, match=r"[Ss]hare it, or create another"):
            duplicate(limiter)
    assert 0 <= asyncio.run(used.acquire(3))


class Watched(asyncio.SelectorEventLoop):
    """A loop that runs a callback when asked whether it is closed."""

    when_asked: Callable[[], None] | None = None

    def is_closed(self) -> bool:
        done, self.when_asked = self.when_asked, None
        if done is not None:
            done()
        return super().is_closed()


def test_two_threads_may_get_kernel_timers_at_once() -> None:
    """The timers of all loops are in one dictionary, which grew during an iteration over it."""
    first, waited = Watched(), []

    def other_thread() -> None:
        waited.append(asyncio.run(aiorate.Limiter("1000/s", precise=True).acquire(2)))

    def meanwhile() -> None:
        thread.start()
        thread.join(0.5)  # it may wait for this thread

    thread = threading.Thread(target=other_thread)
    first.run_until_complete(aiorate.Limiter("1000/s", precise=True).acquire(2))
    first.when_asked = meanwhile
    asyncio.run(aiorate.Limiter("1000/s", precise=True).acquire(2))
    first.when_asked = None
    if thread.ident is not None:
        thread.join()
    first.close()

    assert len(waited) == (thread.ident is not None)


@pytest.mark.slow
def test_loops_in_many_threads_have_separate_kernel_timers() -> None:
    """3200 loops in 32 threads, as it was found: every one of them waits and goes on."""
    errors: list[BaseException] = []

    def one() -> None:
        try:
            for _ in range(100):
                asyncio.run(aiorate.Limiter("1000/s", precise=True).acquire(2))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(32)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert [] == errors


ROOT = str(Path(aiorate.__file__).parent)


IMPORT_ALL = (
    "import aiorate, aiorate.waiting.process.scope, aiorate.redis, aiorate.waiting.process.section, aiorate.waiting.asyncio.timerfd"
)


@pytest.mark.parametrize("platform", ["ios", "android", "wasi", "win32"])
def test_platforms_without_fork_import_everything(platform: str) -> None:
    """They lack os.register_at_fork(), which was guarded on Windows only."""
    run_python(f"import asyncio, random, threading, os, sys; del os.register_at_fork; sys.platform = {platform!r}; {IMPORT_ALL}")


def test_precise_falls_back_where_libraries_need_a_name() -> None:
    """On Windows ctypes.CDLL(None) raises TypeError, and so did every acquire of a precise limiter."""
    run_python(
        "import asyncio, sys; before = sys.platform; sys.platform = 'win32'; import aiorate, aiorate.waiting.asyncio.timerfd, ctypes;"
        "sys.platform = before\n"
        "def refuse(name, **options): raise TypeError(f'argument of type {type(name)} is not iterable')\n"
        "ctypes.CDLL = refuse\n"
        "limiter = aiorate.Limiter(aiorate.TokenBucket('1000/s', burst=1), precise=True)\n"
        "async def main(): return [await limiter.acquire() for _ in range(3)]\n"
        "assert len(asyncio.run(main())) == 3 and limiter.statistics().granted == 3"
    )


def run_python(program: str) -> None:
    """Run it in a separate process, which must succeed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(ROOT).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert 0 == done.returncode, done.stdout[-2000:] + done.stderr[-2000:]
