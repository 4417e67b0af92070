"""``scope="process"``: the thread that has the timers, and decisions of many threads."""

from __future__ import annotations

import gc
import logging
import signal
import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

import pytest
from helpers.driving import LONG, SECOND
from helpers.interrupts import Alarm
from helpers.threads import call_in_thread, in_thread, waiting

from aiorate import KeyedLimiter, Limiter, TokenBucket

MS = SECOND // 1000


def made(rate: str = "1/h", **options: Any) -> Limiter:
    """A limiter of the process without its first permit."""
    limiter = Limiter(TokenBucket(rate, burst=1), scope="process", **options)
    assert limiter.try_acquire()
    return limiter


def timers() -> list[threading.Thread]:
    """The threads of aiorate."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("aiorate")]


def ended(thread: threading.Thread) -> bool:
    thread.join(LONG)
    return not thread.is_alive()


def test_limits_that_share_one_have_one_thread_for_all_waiters() -> None:
    """It is a daemon."""
    assert all(ended(thread) for thread in timers())
    shared = Limiter(TokenBucket("1/h", burst=1), scope="process")
    keyed = KeyedLimiter[int](lambda key: Limiter(TokenBucket("1/h", burst=2), scope="process"), shared=shared, scope="process")
    assert keyed[0].try_acquire()
    asked = [in_thread(keyed[key].acquire_blocking) for key in range(8)]
    for key in range(8):
        waiting(keyed[key], 1)

    (thread,) = timers()
    assert thread.daemon
    for _ in range(8):
        shared.reset()
    for future in asked:
        future.result(LONG)


def test_an_idle_limiter_soon_has_no_thread() -> None:
    """It lingers a while, so that occasional waiters do not start one each time, and starts again."""
    limiter = made("100/s")
    for _ in range(2):
        limiter.acquire_blocking()
        limiter.acquire_blocking()
        assert all(ended(thread) for thread in timers())


def test_a_broken_clock_fails_the_waiter_not_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    """All waiters depend on that thread."""

    class Broken:
        breaks = False

        def now(self) -> int:
            if self.breaks:
                raise OSError("no clock")
            return monotonic_ns()

    clock = Broken()
    limiter, other = made("1/2s", clock=clock), made("100/s")
    waiter = in_thread(limiter.acquire_blocking)
    waiting(limiter, 1)
    with caplog.at_level(logging.CRITICAL, "aiorate"):
        clock.breaks = True
        with pytest.raises(OSError, match="no clock"):
            waiter.result(LONG)

    assert other.acquire_blocking() >= 0
    clock.breaks = False
    limiter.reset()
    assert limiter.acquire_blocking() == 0.0


def test_where_no_thread_can_start_waiters_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise they would wait for ever. The limiter works on once a thread can start."""
    limiter = made("1000/s")
    assert all(ended(thread) for thread in timers())

    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        limiter.statistics()
        with pytest.raises(RuntimeError, match="can't start new thread"):
            _again_and_again(limiter.acquire_blocking)  # one permit lies ready

    limiter.reset()
    limiter.acquire_blocking()
    limiter.acquire_blocking()
    gc.collect()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs SIGALRM")
def test_a_signal_handler_that_raises_leaves_no_limiter_locked() -> None:
    """On CPython 3.14, a lock of `with` would stay taken for ever after most signals that come as it is released."""
    before = signal.signal(signal.SIGALRM, _raise)
    try:
        for microseconds in range(20, 120):
            limiter = Limiter(TokenBucket("1/h", burst=10**9), scope="process")
            limiter.try_acquire(2)  # so that no signal comes while the thread starts
            with pytest.raises(Alarm):
                _repeat(lambda limiter=limiter: limiter.try_acquire(2), microseconds / 1e6)  # type: ignore[misc]
            assert call_in_thread(lambda limiter=limiter: limiter.try_acquire(2)), f"after {microseconds} µs"  # type: ignore[misc]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _repeat(use: Callable[[], object], seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    _again_and_again(use)


def _again_and_again(use: Callable[[], object]) -> None:
    while True:
        use()


def _raise(*_: object) -> None:
    raise Alarm
