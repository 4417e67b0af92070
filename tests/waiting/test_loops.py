"""The table of event loops: which loop runs here, one view for all limiters of a loop, and a kind of loop that aiorate does not know."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from asyncio import _set_running_loop
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import pytest
from helpers.driving import SECOND
from helpers.threads import call_in_thread
from helpers.toy_loop import TOY, ToyLoop

import aiorate
from aiorate.testing import ManualClock
from aiorate.waiting import loops
from aiorate.waiting.turnstile import LOOP_CHECK_NS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiorate.waiting.clock import Clock

MS = SECOND // 1000


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ToyLoop:
    """A toy loop, whose row stands in the table by the name of this module."""
    monkeypatch.setitem(loops.KINDS, __name__, lambda: TOY)
    return ToyLoop()


async def note(loop: ToyLoop, limiter: aiorate.Limiter, noted: list[float], permits: int = 1) -> None:
    """Note the seconds since the start at which the permits are granted."""
    await limiter.acquire(permits)
    noted.append((loop.now - 5 * SECOND) / SECOND)


def test_a_limiter_waits_in_a_new_kind_of_loop(toy: ToyLoop) -> None:
    """Only the row of the table names the new kind."""
    limiter, noted = aiorate.Limiter("1/s"), list[float]()

    for _ in range(3):
        toy.spawn(note(toy, limiter, noted))
    toy.run()

    assert noted == [0.0, 1.0, 2.0]


def test_the_token_pool_waits_in_a_new_kind_of_loop(toy: ToyLoop) -> None:
    """The view chooses the driver, so the pool needs no task of asyncio's."""
    limiter, noted = aiorate.Limiter(aiorate.TokenPool("1/s", pool=1)), list[float]()

    for _ in range(3):
        toy.spawn(note(toy, limiter, noted))
    toy.run()

    assert noted == [0.0, 1.0, 2.0]


def test_a_cancelled_waiter_of_a_new_loop_hands_on(toy: ToyLoop) -> None:
    """The next in line takes its place in the schedule."""
    limiter, noted = aiorate.Limiter("1/s"), list[float]()
    first, second = note(toy, limiter, noted), note(toy, limiter, noted)
    toy.spawn(limiter.acquire())
    toy.spawn(first)
    toy.spawn(second)

    toy.call_at(toy.now + 500 * MS, first.close)
    toy.run()

    assert noted == [1.0]
    assert limiter.statistics().cancelled == 1


def test_max_wait_ends_in_a_new_kind_of_loop(toy: ToyLoop) -> None:
    """Deadlines use the timers of the view."""
    limiter, errors = aiorate.Limiter("1/s"), list[Exception]()

    async def impatient() -> None:
        await limiter.acquire()
        limiter.pause(3600)
        try:
            await limiter.acquire(max_wait=7200)
        except aiorate.WaitTooLong as error:
            errors.append(error)

    toy.spawn(impatient())
    toy.call_at(toy.now + 100 * SECOND, lambda: limiter.pause(9000))
    toy.run()

    assert len(errors) == 1
    assert toy.now == (5 + 7200) * SECOND


def test_a_new_kind_of_loop_runs_its_other_tasks(toy: ToyLoop) -> None:
    """A task that always gets permits at once is suspended after 5 to 10 ms, as in all loops."""
    limiter, order = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1000)), list[int]()

    async def busy(number: int) -> None:
        for _ in range(20):
            await limiter.acquire()
            toy.now += MS
            order.append(number)

    toy.spawn(busy(1))
    toy.spawn(busy(2))
    toy.run()

    assert [1] * 20 + [2] * 20 == sorted(order)
    assert 5 <= order.index(2) <= 10


def test_a_process_wide_limiter_serves_a_new_kind_of_loop(toy: ToyLoop) -> None:
    """Its tasks are woken through the port of their loop."""
    clock = ManualClock()
    limiter, noted = aiorate.Limiter("1/s", scope="process", clock=clock), list[float]()
    toy.spawn(note(toy, limiter, noted))
    toy.spawn(note(toy, limiter, noted))
    toy.run()
    before = len(noted)

    clock.advance(1)
    toy.run()

    assert (before, len(noted)) == (1, 2)


def test_a_task_of_a_new_loop_is_known_inside_its_block(toy: ToyLoop) -> None:
    """The row says which task runs, so a second entry by the same task is an error and no deadlock."""
    limiter, errors = aiorate.Limiter("1/s", max_concurrency=1), list[Exception]()

    async def twice() -> None:
        async with limiter:
            try:
                await limiter.__aenter__()
            except RuntimeError as error:
                errors.append(error)

    toy.spawn(twice())
    toy.run()

    assert "inside" in str(errors[0])


class Stranger:
    """A loop of a kind that no row knows."""


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """A stranger that says it is the running loop of this thread."""
    stranger = Stranger()
    _set_running_loop(stranger)  # type: ignore[arg-type]
    yield stranger
    _set_running_loop(None)


@pytest.mark.parametrize("scope", ["loop", "process"])
def test_a_loop_of_an_unknown_kind_is_an_error(stranger: Stranger, scope: Any) -> None:
    """It is not taken for trio's: the error names its class, and says which loops there are."""
    limiter = aiorate.Limiter("1/s", scope=scope)

    with pytest.raises(RuntimeError, match=r"test_loops\.Stranger") as caught:
        limiter.acquire().send(None)

    assert "trio" in str(caught.value)


async def view(clock: Clock | None = None, precise: bool = False) -> Any:
    return loops.view_of(loops.running_loop(), clock, precise)


def test_limiters_of_a_loop_share_one_view() -> None:
    """So each of thousands of limiters is small, and they watch their loop once."""

    async def main() -> None:
        first = await view()

        assert first is await view()
        assert first is not await view(precise=True)
        assert first is not await view(ManualClock())

    asyncio.run(main())


def test_the_watch_of_a_loop_is_shared() -> None:
    """A caller that goes from limiter to limiter starves its loop as much as one that stays."""
    seen = []

    async def main() -> None:
        first, second = await view(), await view()
        seen.append(first.starved())
        end = monotonic_ns() + LOOP_CHECK_NS
        while monotonic_ns() < end:
            pass
        seen.append(second.starved())
        await second.turn()
        seen.append(first.starved())

    asyncio.run(main())

    assert seen == [False, True, False]


def test_a_caller_of_another_thread_finds_no_loop_starved() -> None:
    """It has no place in the turnstile of that loop."""

    async def main() -> None:
        here = await view()
        here.starved()
        end = monotonic_ns() + LOOP_CHECK_NS
        while monotonic_ns() < end:
            pass

        assert not call_in_thread(here.starved)
        assert here.starved()

    asyncio.run(main())


def test_a_view_is_freed_with_its_last_limiter() -> None:
    """Neither the view nor the table of views keeps a loop that was closed."""
    native = asyncio.new_event_loop()
    kept = native.run_until_complete(view())
    native.close()
    loop, shared = weakref.ref(native), weakref.ref(kept)

    del native, kept
    gc.collect()

    assert loop() is None
    assert shared() is None


def test_a_new_loop_has_a_new_view() -> None:
    """Views are found by the id of the loop, which may be used again once a loop is freed."""
    seen = []
    for _ in range(5):
        native = asyncio.new_event_loop()
        kept = native.run_until_complete(view())
        seen.append(kept.native is native)
        native.close()
        del native, kept
        gc.collect()

    assert seen == [True] * 5


def test_after_a_fork_the_view_is_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent's view knows that it is the parent's, and the child's limiters share another."""

    async def main() -> None:
        parents = await view()
        monkeypatch.setattr(os, "getpid", lambda: -1)
        childs = await view()

        assert parents.forked
        assert not childs.forked
        assert childs is await view()

    asyncio.run(main())


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still."""

    def time(self) -> float:
        return 1.0


def test_a_loop_in_virtual_time_is_also_watched_by_real_time() -> None:
    """Limiters of the loop go by its time; those of the whole process, whose clock is the machine's, by real time."""
    native = VirtualLoop()

    async def main() -> None:
        own, real = await view(), loops.view_here()
        assert real is not None

        assert SECOND == own.read()
        assert real.read is monotonic_ns
        assert own.turnstile is not real.turnstile
        assert real is loops.view_here()

    native.run_until_complete(main())
    native.close()


def test_a_thread_without_a_loop_has_no_view() -> None:
    """There is nothing that it could starve."""

    async def main() -> None:
        assert loops.view_here() is not None
        assert call_in_thread(loops.view_here) is None

    asyncio.run(main())

    assert loops.view_here() is None
