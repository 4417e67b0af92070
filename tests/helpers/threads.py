"""Threads with and without event loops, stepped by hand: nothing here sleeps or depends on the speed of the machine."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import pytest
import trio

import aiorate
from aiorate.testing import ManualClock
from helpers.driving import LONG
from helpers.loops import FACTORIES


class Recorded(aiorate.TokenBucket):
    """A bucket that keeps the instants of its grants, in the order in which they were decided."""

    __slots__ = ("back", "grants", "hook")

    def __init__(self, rate: str, burst: int = 1) -> None:
        super().__init__(rate, burst)
        self.grants: list[int] = []
        self.back: list[int] = []
        """The instants of grants that came back."""
        self.hook: Callable[[], object] | None = None
        """Called once, in the middle of the next decision."""

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        hook, self.hook = self.hook, None
        if hook is not None:
            hook()
        at = super().take(permits, now, since)
        if at <= now:
            self.grants += [now] * permits
        return at

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        super().give_back(permits, now, taken)
        if taken is not None:
            self.back += [taken] * permits

    def kept(self) -> list[int]:
        """The instants of grants that did not come back."""
        kept = Counter(self.grants)
        kept.subtract(self.back)
        return list(kept.elements())

    def __deepcopy__(self, memo: object) -> Recorded:
        raise AssertionError("a rehearsal would be recorded too")


class LoopThread:
    """An asyncio or uvloop event loop that runs in a thread until the block is left."""

    def __init__(self, factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop) -> None:
        self.loop = factory()
        self.thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self) -> LoopThread:
        self.thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.loop.is_closed():
            self.call(self._cancel_all)
            self.stop()

    def call(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` in the loop, and return its result."""
        return _run_by(self.loop.call_soon_threadsafe, function).result(LONG)

    def start(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
        """Start a task, and return once it waits for the first time, or is done."""
        self.task: asyncio.Task[Any]
        done: Future[Any] = Future()

        def ended(task: asyncio.Task[Any]) -> None:
            if task.cancelled():
                done.set_exception(asyncio.CancelledError())
            elif task.exception() is not None:
                done.set_exception(task.exception())
            else:
                done.set_result(task.result())

        def create() -> None:
            self.task = self.loop.create_task(main())
            self.task.add_done_callback(ended)

        self.call(create)
        self.turn()
        return done

    def turn(self) -> None:
        """Let the loop run a few iterations."""
        for _ in range(4):
            self.call(int)

    def stop(self) -> None:
        """Stop and close the loop, with tasks that wait there."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(LONG)
        self.loop.close()

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()

    def stand_still(self) -> Blocked:
        """Block the loop until the block is left."""
        return Blocked(self)


class Blocked:
    """A blocked loop, which calls ``finally_call`` first when it goes on."""

    def __init__(self, thread: LoopThread) -> None:
        self.thread = thread
        self.begun, self.over = threading.Event(), threading.Event()
        self.finally_call: Callable[[], object] = int

    def _block(self) -> None:
        self.begun.set()
        assert self.over.wait(LONG)
        self.finally_call()

    def __enter__(self) -> Blocked:
        self.thread.loop.call_soon_threadsafe(self._block)
        assert self.begun.wait(LONG)
        return self

    def __exit__(self, *exc: object) -> None:
        self.over.set()


class TrioThread:
    """A trio run in a thread until the block is left, with the methods of `LoopThread` that tests use."""

    def __init__(self) -> None:
        self.thread = threading.Thread(target=trio.run, args=(self._main,))
        self._ready: Future[tuple[trio.lowlevel.TrioToken, trio.Nursery]] = Future()
        self.scope: trio.CancelScope

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._ready.set_result((trio.lowlevel.current_trio_token(), nursery))
            await trio.sleep_forever()

    def __enter__(self) -> TrioThread:
        self.thread.start()
        self.token, self.nursery = self._ready.result(LONG)
        return self

    def __exit__(self, *exc: object) -> None:
        trio.from_thread.run_sync(self.nursery.cancel_scope.cancel, trio_token=self.token)
        self.thread.join(LONG)

    def call(self, function: Callable[[], Any]) -> Any:
        return trio.from_thread.run_sync(function, trio_token=self.token)

    def turn(self) -> None:
        for _ in range(4):
            self.call(int)

    def start(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> Future[Any]:
        done: Future[Any] = Future()

        async def run() -> None:
            with trio.CancelScope() as self.scope:
                try:
                    done.set_result(await main())
                except Exception as error:
                    done.set_exception(error)
                finally:
                    if not done.done():
                        done.set_exception(asyncio.CancelledError())

        self.call(lambda: self.nursery.start_soon(run))
        self.turn()
        return done


KINDS = (*FACTORIES, "trio")


def loop_thread(kind: str) -> LoopThread | TrioThread:
    """A thread with a loop of that kind."""
    if kind == "trio":
        return TrioThread()
    return LoopThread(FACTORIES[kind])


def in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Call ``function`` in a thread without a loop."""
    return _run_by(lambda run: threading.Thread(target=run, daemon=True).start(), function)


def call_in_thread(function: Callable[[], Any]) -> Any:
    """Call ``function`` in a thread without a loop, and return its result."""
    return in_thread(function).result(LONG)


def waiting(limiter: aiorate.Limiter, count: int) -> None:
    """Return when ``count`` requests are in line."""
    ready = threading.Event()
    for _ in range(LONG * 1000):
        if limiter.statistics().waiting == count:
            return
        ready.wait(0.001)
    raise AssertionError(f"{limiter.statistics().waiting} wait, not {count}")


def _run_by(start: Callable[[Callable[[], None]], object], function: Callable[[], Any]) -> Future[Any]:
    """The future result of ``function``, which ``start`` lets run elsewhere."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    start(run)
    return done


EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def made(clock: ManualClock | None = None, rate: str = "10/s", **options: Any) -> aiorate.Limiter:
    """A process-wide limiter whose first permit is taken."""
    limiter = aiorate.Limiter(aiorate.TokenBucket(rate, burst=1), scope="process", clock=clock, **options)
    assert limiter.try_acquire()
    return limiter
