"""The timekeeper's thread: one at a time, while an alarm is set, and gone afterwards."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from time import monotonic_ns

import pytest
from helpers.driving import LONG, SECOND
from helpers.threads import in_thread

import aiorate
from aiorate.waiting.process.section import Section
from aiorate.waiting.process.timekeeper import LINGER_NS, Timekeeper


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def kept(name: str, section: Section, check: object = int) -> Timekeeper:
    return Timekeeper(section, monotonic_ns, name, check)  # type: ignore[arg-type]


def test_alarms_come_in_order_and_never_early() -> None:
    """In whatever order they were set, and also when one comes before all others."""
    section = Section()
    keeper = kept("order", section)
    begin, done = monotonic_ns(), threading.Event()
    seen: list[tuple[str, int]] = []

    def at(ns: int, name: str) -> None:
        section.run(keeper.call_at, begin + ns, lambda: seen.append((name, monotonic_ns() - begin)))

    at(30_000_000, "c")
    section.run(keeper.call_at, begin + 40_000_000, done.set)
    at(10_000_000, "a")
    at(20_000_000, "b")
    assert done.wait(LONG)

    assert ["a", "b", "c"] == [name for name, _ in seen]
    assert all(at >= least for (_, at), least in zip(seen, (10_000_000, 20_000_000, 30_000_000), strict=True))


def test_an_alarm_before_all_others_does_not_wait_for_them() -> None:
    """Nor for the next check, a second later. The machine may be slow once, but not each time."""
    section = Section()
    keeper = kept("early", section)
    section.run(keeper.call_at, monotonic_ns() + 3600 * SECOND, int)
    for _ in range(20):
        done = threading.Event()
        threading.Event().wait(0.01)  # it sleeps again
        begin = monotonic_ns()
        section.run(keeper.call_at, begin, done.set)
        assert done.wait(LONG)
        if monotonic_ns() - begin < SECOND // 2:
            return
    pytest.fail("it slept on, each time")


def test_one_thread_however_many_alarms_are_set() -> None:
    """Also by many threads at once; and it is a daemon."""
    section = Section()
    keeper = kept("only one", section)
    for future in [in_thread(lambda: section.run(keeper.call_at, monotonic_ns() + 3600 * SECOND, int)) for _ in range(20)]:
        future.result(LONG)

    assert [True] == [thread.daemon for thread in threads("only one")]
    assert section.run(keeper.stop) is None, "it is needed"


def test_it_ends_without_alarms_and_starts_again() -> None:
    """It lingers first: occasional waiters do not start a thread each time."""
    section = Section()
    keeper = kept("lingers", section)
    for _ in range(2):
        alarm = section.run(keeper.call_at, monotonic_ns() + 3600 * SECOND, int)
        (thread,) = threads("lingers")
        begin = monotonic_ns()
        section.run(alarm.cancel)
        done = threading.Event()
        section.run(keeper.call_at, monotonic_ns(), done.set)
        assert done.wait(LONG)
        thread.join(LONG)

        assert monotonic_ns() - begin >= LINGER_NS
        assert not threads("lingers")


def test_a_cancelled_alarm_does_not_come() -> None:
    """Nor does it keep the thread for longer than it lingers."""
    section = Section()
    keeper = kept("cancelled", section)
    seen: list[int] = []
    done = threading.Event()
    section.run(keeper.call_at, monotonic_ns() + 3600 * SECOND, int)  # the thread sleeps already

    def cancelled() -> None:
        alarm = keeper.call_at(monotonic_ns() + 5_000_000, lambda: seen.append(1))
        alarm.cancel()
        alarm.cancel()

    section.run(cancelled)
    section.run(keeper.call_at, monotonic_ns() + 10_000_000, done.set)
    assert done.wait(LONG)

    assert not seen
    section.run(keeper.stop)


def test_cancelled_alarms_do_not_pile_up() -> None:
    """A thousand alarms that are set and cancelled behind one that stays; what they would have called is freed at once."""
    section = Section()
    keeper = kept("many", section)
    stays = section.run(keeper.call_at, monotonic_ns() + 3600 * SECOND, int)

    class Called:
        def call(self) -> None: ...

    for _ in range(1000):
        called = Called()
        gone = weakref.ref(called)
        section.run(section.run(keeper.call_at, monotonic_ns() + 1800 * SECOND, called.call).cancel)
        del called
        assert gone() is None

    assert sum(type(each) is type(stays) for each in gc.get_objects()) < 100
    section.run(stays.cancel)


def test_stopped_it_ends_at_once() -> None:
    """However long it would have lingered."""
    section = Section()
    keeper = kept("stopped", section)
    section.run(section.run(keeper.call_at, monotonic_ns() + 3600 * SECOND, int).cancel)
    thread = section.run(keeper.stop)
    assert thread is not None
    thread.join(LONG)

    assert not thread.is_alive()
    assert section.run(keeper.stop) is None


def test_it_is_freed_while_its_thread_lingers() -> None:
    """The thread keeps only the lock on which it sleeps."""
    section = Section()
    keeper = kept("freed", section)
    done = threading.Event()
    section.run(keeper.call_at, monotonic_ns(), done.set)
    assert done.wait(LONG)
    gone = weakref.ref(keeper)
    del keeper
    for _ in range(LONG * 1000):
        if gone() is None:
            break
        threading.Event().wait(0.001)  # while the thread looks, it holds the timekeeper

    assert gone() is None


def test_errors_do_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    """An alarm, a check or the clock may fail: all waiters depend on this thread."""
    section = Section()
    broken = [False]

    def read() -> int:
        if broken[0]:
            raise OSError("no clock")
        return monotonic_ns()

    keeper = Timekeeper(section, read, "fails", lambda: 1 / 0)
    first, second = threading.Event(), threading.Event()
    with caplog.at_level(logging.CRITICAL, "aiorate"):
        section.run(keeper.call_at, monotonic_ns(), lambda: (first.set(), 1 / 0))  # type: ignore[arg-type, func-returns-value]
        assert first.wait(LONG)
        broken[0] = True
        section.run(keeper.call_at, monotonic_ns() + 3600 * SECOND, second.set)  # with a broken clock, the alarm is called at once

        assert second.wait(LONG)


def test_where_no_thread_can_start_waiters_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise they would wait for ever. The limiter works on once a thread can start."""
    limiter = aiorate.Limiter(aiorate.TokenBucket("1000/s", burst=1), scope="process")
    assert limiter.try_acquire()

    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        limiter.charge(1000)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            limiter.acquire_blocking()

    limiter.reset()
    limiter.acquire_blocking()
    limiter.acquire_blocking()
    gc.collect()
