"""Families: limiters of a process that decide in one critical section, with one timekeeper and one inbox for each loop."""

from __future__ import annotations

import threading
import weakref

import pytest
from helpers.driving import LONG
from helpers.process import forget
from helpers.threads import LoopThread, in_thread, waiting

import aiorate
from aiorate.testing import ManualClock
from aiorate.waiting import changes
from aiorate.waiting.gate import Gate
from aiorate.waiting.process.scope import family_of, join


def made(name: str | None = None, clock: ManualClock | None = None, burst: int = 1) -> aiorate.Limiter:
    return aiorate.Limiter(aiorate.TokenBucket("1/h", burst=burst), scope="process", name=name, clock=clock)


def together(*limiters: aiorate.Limiter) -> None:
    """Have them all decide in the section of the first."""
    for limiter in limiters[1:]:
        join(family_of(limiters[0]._dispatcher), limiter._dispatcher)


def test_a_family_has_one_section_and_one_timekeeper() -> None:
    """However many of its limiters have waiters."""
    limiters = [made("of a family") for _ in range(5)]
    together(*limiters)
    assert 1 == len({limiter._dispatcher.section for limiter in limiters})
    for limiter in limiters:
        assert limiter.try_acquire()
    asked = [in_thread(limiter.acquire_blocking) for limiter in limiters]
    for limiter in limiters:
        waiting(limiter, 1)

    assert 1 == [thread.name for thread in threading.enumerate()].count("aiorate-timekeeper:of a family")
    for limiter in limiters:
        limiter.refund(1)
    for future in asked:
        future.result(LONG)


def test_a_limiter_of_one_loop_may_join() -> None:
    """So a part of aiorate can make limiters and have them decide together."""
    first, new = made(), aiorate.Limiter(aiorate.TokenBucket("1/h", burst=1))
    together(first, new)

    assert 0.0 == new.acquire_blocking()
    assert first._dispatcher.section is new._dispatcher.section


def test_places_join_with_their_limiter() -> None:
    """A request for a place and one for a permit are decided in the same section."""
    first = made()
    second = aiorate.Limiter("1/h", scope="process", max_concurrency=1)
    together(first, second)
    family = family_of(first._dispatcher)

    assert family is not None
    assert 3 == len(family.dispatchers)


def test_a_limiter_in_use_joins_no_other_family() -> None:
    """Another thread may be deciding in its section."""
    first, used = made(), made()
    assert used.try_acquire()
    with pytest.raises(ValueError, match="in use already"):
        together(first, used)

    assert first._dispatcher.section is not used._dispatcher.section


def test_a_retired_driver_leaves_no_trace() -> None:
    """The dispatcher of a dropped key is freed at once, without garbage collection."""
    first, key = made(), made()
    together(first, key)
    assert key.try_acquire()
    thread = threading.Thread(target=key.acquire_blocking)
    thread.start()
    waiting(key, 1)
    key.refund(1)
    thread.join(LONG)
    changes.dismiss(key._dispatcher)
    gone = weakref.ref(key._dispatcher)
    del key

    assert gone() is None


def test_a_closed_loop_is_found_for_the_whole_family() -> None:
    """Its requests leave all lines when any limiter of the family is asked."""
    clock = ManualClock()
    limiters = [made(clock=clock) for _ in range(3)]
    together(*limiters)
    kept = []
    with LoopThread() as thread:
        for limiter in limiters:
            assert limiter.try_acquire()
            thread.start(limiter.acquire)
            kept.append(thread.task)
            waiting(limiter, 1)
        thread.stop()
    assert not limiters[0].try_acquire()

    assert [0, 0, 0] == [len(limiter._dispatcher.line) for limiter in limiters]
    forget(kept)


def test_limiters_of_two_families_do_not_share() -> None:
    """A decision would need two sections, and threads could wait for each other."""
    first, second = made(), made()
    with pytest.raises(ValueError, match="scope"):
        changes.share(second._dispatcher, Gate(first._dispatcher), first._dispatcher.section)
