"""One limit for each key, and one that all keys share."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from weakref import ref

import pytest
import trio
import trio.testing
from helpers.driving import SECOND, Crowd, SteppedClock, one_loop, turns

import aiorate
from aiorate.testing import ManualClock, VirtualLoop


def virtually(main: Any) -> Any:
    """Run it in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


class Sent:
    """Tasks that each send one message to a chat; ``at`` says when, in order of sending."""

    def __init__(self, keyed: aiorate.KeyedLimiter[Any]) -> None:
        self.keyed = keyed
        self.at: list[tuple[float, Any]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def send(self, chat: Any, count: int = 1) -> None:
        self.tasks += [asyncio.ensure_future(self._send(chat)) for _ in range(count)]

    async def _send(self, chat: Any) -> None:
        await self.keyed.acquire(chat)
        self.at.append((round(asyncio.get_running_loop().time(), 6), chat))

    async def all(self) -> list[tuple[float, Any]]:
        await asyncio.gather(*self.tasks)
        return self.at


def test_each_key_has_a_limit_of_its_own() -> None:
    """A free key is granted in the same step of the loop, whatever another key does."""

    async def main() -> list[tuple[float, Any]]:
        sent = Sent(aiorate.KeyedLimiter(lambda chat: aiorate.TokenBucket("1/s", burst=1)))
        sent.send("a", 3)
        sent.send("b")
        return await sent.all()

    assert virtually(main) == [(0, "a"), (0, "b"), (1, "a"), (2, "a")]


def test_a_bot_with_a_limit_in_all_and_one_for_each_chat() -> None:
    """30/s in all and 1/s for each chat: 100 messages to one of them hold up no other."""

    async def main() -> list[tuple[float, Any]]:
        sent = Sent(aiorate.KeyedLimiter(lambda chat: aiorate.SlidingWindow("1/s"), shared=aiorate.SlidingWindow("30/s")))
        sent.send("busy", 100)
        for chat in range(50):
            sent.send(chat)
        return await sent.all()

    at = virtually(main)

    busy = [when for when, chat in at if chat == "busy"]
    assert busy == list(range(100))
    assert max(when for when, chat in at if chat != "busy") == 1.0
    assert all(sum(begin <= when < begin + 1 for when, _ in at) <= 30 for begin, _ in at)


@one_loop
@pytest.mark.parametrize("own", [aiorate.TokenBucket("1/s", burst=1), aiorate.SmoothBursty("1/s", max_stored=0)], ids=repr)
async def test_a_key_makes_up_nothing_for_what_the_shared_limit_held_up(own: aiorate.Scheduler) -> None:
    """It is no late event loop: two messages to a chat are a second apart, however long the first of them waited for others."""
    clock = ManualClock()
    shared = aiorate.Limiter("100/s", clock=clock)
    chat = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(own, clock=clock), shared=shared)["chat"]
    crowd = Crowd(chat, clock)
    await crowd.queue(range(4))
    await clock.run(0.5)
    shared.pause(1)
    await clock.run(4)

    assert [round(at / SECOND, 3) for at in crowd.granted.values()] == [0, 1.5, 2.5, 3.5]


@one_loop
@pytest.mark.parametrize("late", [0.001, 0.02])
async def test_two_limits_of_one_rate_lose_nothing_to_late_wake_ups(late: float) -> None:
    """What is made up for in the one is made up for in the other, or the delivered rate would fall with every late timer."""
    clock = SteppedClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock), shared=shared)
    crowd = Crowd(keyed["a"], clock)
    await crowd.queue(range(101))

    while len(crowd.granted) < 101:
        assert clock.next_timer is not None
        clock.set(clock.next_timer + round(late * SECOND))
        await turns(3)

    assert crowd.granted[100] <= 10 * SECOND + 2 * late * SECOND
    assert sorted(crowd.granted) == list(range(101))


def test_who_is_due_first_passes_the_shared_limit_first() -> None:
    """A key's next request stands behind those that became due before it, not behind all that were made before it."""

    async def main() -> list[tuple[float, Any]]:
        sent = Sent(aiorate.KeyedLimiter(lambda chat: aiorate.TokenBucket("1/s", burst=1), shared=aiorate.TokenBucket("2/s", burst=1)))
        for chat in "abcd":
            sent.send(chat, 2)
        return await sent.all()

    assert virtually(main) == [(0, "a"), (0.5, "b"), (1, "c"), (1.5, "d"), (2, "a"), (2.5, "b"), (3, "c"), (3.5, "d")]


@one_loop
@pytest.mark.parametrize("own", [aiorate.TokenBucket, aiorate.SlidingWindow], ids=lambda kind: kind.__name__)
async def test_a_cancelled_request_spends_neither_limit(own: Any) -> None:
    """Waiting in its key's line, in the shared one, or granted but not yet run."""
    clock = ManualClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)
    make = (lambda rate: aiorate.TokenBucket(rate, burst=1)) if own is aiorate.TokenBucket else aiorate.SlidingWindow
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(make("1/s"), clock=clock), shared=shared)
    await keyed.acquire("a")
    in_key, in_shared = asyncio.ensure_future(keyed.acquire("a")), asyncio.ensure_future(keyed.acquire("b"))
    await turns(3)
    in_key.cancel()
    in_shared.cancel()
    await turns(3)
    granted = asyncio.ensure_future(keyed.acquire("c"))
    next_one = asyncio.ensure_future(keyed.acquire("d"))
    await turns(3)

    clock.advance(1)
    granted.cancel()
    await turns(5)

    assert next_one.done()
    assert not next_one.cancelled()
    assert (shared.statistics().granted, keyed["b"].statistics().granted, keyed["c"].statistics().granted) == (2, 0, 0)
    assert keyed["c"].scheduler.peek(1, clock.now()) <= clock.now()
    assert not shared.statistics().waiting


@one_loop
async def test_a_pause_of_one_key_is_no_pause_of_the_others_and_one_of_the_shared_limit_is() -> None:
    """One flooded key froze all traffic [alexei-led/ccgram#171, python-telegram-bot/python-telegram-bot#3765]"""
    clock = ManualClock()
    shared = aiorate.Limiter("1000/s", clock=clock)
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter("10/s", clock=clock), shared=shared)
    keyed["a"].pause(5)

    assert not keyed.try_acquire("a")
    assert keyed.try_acquire("b")
    shared.pause(1)
    assert not keyed.try_acquire("c")
    waiting = asyncio.ensure_future(keyed.acquire("c"))
    await clock.run(1.001)  # b had the last permit
    assert waiting.done()
    await clock.run(4)
    assert keyed.try_acquire("a")


@one_loop
async def test_try_acquire_and_max_wait_ask_the_shared_limit_too() -> None:
    """Both are spent, or neither."""
    clock = ManualClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock), shared=shared)
    assert keyed.try_acquire("a")

    assert not keyed.try_acquire("b")
    with pytest.raises(aiorate.WaitTooLong):
        await keyed.acquire("b", max_wait=0.5)
    with pytest.raises(ValueError, match="1 is the most"):
        await keyed.acquire("b", 2)
    clock.advance(1)
    assert keyed.try_acquire("b")
    assert not keyed.try_acquire("a")
    clock.advance(1)
    assert keyed.try_acquire("a")


@one_loop
async def test_closing_the_shared_limit_sends_those_away_who_stand_in_it() -> None:
    """And those who come."""
    clock = ManualClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter("10/s", clock=clock), shared=shared)
    await keyed.acquire("a")
    waiting = asyncio.ensure_future(keyed.acquire("b"))
    await turns(3)

    await shared.aclose()
    await turns(3)

    with pytest.raises(aiorate.LimiterClosed):
        await waiting
    with pytest.raises(aiorate.LimiterClosed):
        await keyed.acquire("c")


@one_loop
async def test_a_key_that_owes_nothing_is_evicted_and_is_not_limited_sooner() -> None:
    """A full bucket is as good as a new one; one that is not full is kept."""
    clock = ManualClock()
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=2), clock=clock))
    for key in range(100):
        assert keyed.try_acquire(key)

    assert keyed.evict() == 0
    clock.advance(1)
    assert keyed.evict() == 100
    assert len(keyed) == 0
    assert [keyed.try_acquire(7) for _ in range(3)] == [True, True, False]


@one_loop
@pytest.mark.parametrize("why", ["rate", "pause", "debt", "line"])
async def test_a_key_that_is_not_as_a_new_one_is_kept(why: str) -> None:
    """A changed rate, a pause, a debt and a line would be forgotten."""
    clock = ManualClock()
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock))
    limiter = keyed["a"]
    waiting = None
    if why == "rate":
        limiter.set_rate("2/s")
    elif why == "pause":
        limiter.pause(1)
    elif why == "debt":
        limiter.charge(5)
    else:
        await limiter.acquire()
        waiting = asyncio.ensure_future(limiter.acquire())
        await turns(3)

    assert keyed.evict() == 0
    if waiting is not None:
        waiting.cancel()
        await turns(3)


@one_loop
async def test_a_held_limiter_stays_the_limiter_of_its_key() -> None:
    """It may be evicted from the books, but not replaced."""
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.TokenBucket("1/s", burst=1), shared="100/s")
    held = keyed["a"]
    keyed.evict()

    assert keyed["a"] is held
    gone = ref(keyed["b"])
    gc.disable()
    try:
        keyed.evict()
        assert gone() is None  # at once: nothing of it refers to itself
    finally:
        gc.enable()


@one_loop
async def test_thousands_of_keys_once_each_leave_little_behind() -> None:
    """Idle keys that were never collected: 100 000 limiters a day [cristipufu/aspnetcore-redis-rate-limiting#61]"""
    clock = ManualClock()
    events: list[aiorate.Event] = []
    keyed = aiorate.KeyedLimiter(lambda key: aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock), on_event=events.append)
    for key in range(5_000):
        assert keyed.try_acquire(key)
        clock.set(clock.now() + SECOND // 1_000)

    assert len(keyed) < 400
    assert len(events) == 5_000 - len(keyed)
    assert {event.kind for event in events} == {"evicted"}
    assert clock.timers == 0


@one_loop
async def test_idle_keeps_a_key_for_a_while() -> None:
    """A key that comes back now and then need not be made anew."""
    clock = ManualClock()
    made: list[str] = []

    def make(key: str) -> aiorate.Limiter:
        made.append(key)
        return aiorate.Limiter(aiorate.TokenBucket("100/s", burst=1), clock=clock)

    keyed = aiorate.KeyedLimiter(make, idle=10)
    keyed.try_acquire("a")
    for second in range(1, 30):
        clock.advance(1)
        keyed.try_acquire(f"other {second}")
        if second == 5:
            assert "a" in keyed
    assert "a" not in keyed
    keyed.try_acquire("a")
    assert made.count("a") == 2


@pytest.mark.parametrize(
    ("make", "error", "hint"),
    [
        (lambda: aiorate.KeyedLimiter("10/s"), TypeError, "function of the key"),  # type: ignore[arg-type]
        (lambda: aiorate.KeyedLimiter(lambda key: "10/s", max_keys=0), ValueError, "max_keys"),
        (lambda: aiorate.KeyedLimiter(lambda key: "10/s", idle=-1), ValueError, "idle"),
        (lambda: aiorate.KeyedLimiter(lambda key: "10/s", shared=object()), TypeError, "rate"),  # type: ignore[arg-type]
        (lambda: aiorate.KeyedLimiter(lambda key: "1/s")["a", []], TypeError, "a key must be hashable.*'list'"),
        (lambda: aiorate.KeyedLimiter(lambda key: object())["a"], TypeError, "factory must return"),  # type: ignore[arg-type, return-value]
        (lambda: aiorate.KeyedLimiter(lambda key: "10/s")[["a"]], TypeError, "hashable"),  # type: ignore[index]
        (lambda: aiorate.KeyedLimiter(lambda key: "no rate")["a"], ValueError, "not a rate"),
    ],
)
def test_wrong_arguments_are_refused(make: Any, error: type[Exception], hint: str) -> None:
    """With what would be right."""
    with pytest.raises(error, match=hint):
        make()


def test_a_factory_that_fails_leaves_nothing_behind() -> None:
    """The next one who asks for the key may have more luck."""
    keyed: aiorate.KeyedLimiter[str] = aiorate.KeyedLimiter(lambda key: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        keyed.try_acquire("a")

    assert len(keyed) == 0


def test_one_limiter_for_two_keys_is_refused_where_they_share_a_limit() -> None:
    """It would be charged twice."""
    limiter = aiorate.Limiter("10/s")
    keyed = aiorate.KeyedLimiter(lambda key: limiter, shared="100/s")
    assert keyed["a"] is limiter

    with pytest.raises(ValueError, match="one for each key"):
        keyed["b"]


def test_under_trio_a_shared_limit_is_watched_though_no_task_waits_for_it() -> None:
    """Only the first of each key stands in its line, and they wait in their own."""
    at: list[tuple[float, str]] = []

    async def main() -> None:
        keyed = aiorate.KeyedLimiter(lambda key: aiorate.TokenBucket("1/s", burst=1), shared=aiorate.TokenBucket("2/s", burst=1))

        async def send(key: str) -> None:
            await keyed.acquire(key)
            at.append((round(trio.current_time(), 6), key))

        async with trio.open_nursery() as nursery:
            for key in "aabbccdd":
                nursery.start_soon(send, key)
                await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.1):
            await keyed.acquire("e")
        assert keyed.shared is not None
        assert keyed.shared.statistics().waiting == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    assert at == [(0, "a"), (0.5, "b"), (1, "c"), (1.5, "d"), (2, "a"), (2.5, "b"), (3, "c"), (3.5, "d")]


# How long it would take, with a line of its own before a line of all.


@one_loop
@pytest.mark.parametrize("waiters", [3, 100])
async def test_a_newcomer_is_told_when_both_lines_have_passed(waiters: int) -> None:
    """It stands behind those of its own key, however many they are, and they behind those of the other keys."""
    clock = SteppedClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock), shared=shared)
    assert keyed.try_acquire("a")
    crowd = Crowd(keyed["a"], clock)
    await crowd.queue(range(waiters))

    assert waiters + 1 == keyed["a"].delay()
    with pytest.raises(aiorate.WaitTooLong):
        await keyed.acquire("a", max_wait=waiters + 0.5)
    assert 0.1 == keyed["b"].delay()
    last = crowd.ask("last", max_wait=waiters + 1)
    await clock.run(waiters + 1)

    assert [(place + 1) * SECOND for place in range(waiters)] == [crowd.granted[place] for place in range(waiters)]
    assert waiters + 1 == last.result()
    await keyed.aclose()


@one_loop
async def test_a_key_behind_a_hundred_others_is_told_when_they_have_passed() -> None:
    """Each of them has one request in the shared line."""
    clock = SteppedClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter[Any](lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock), shared=shared)
    tasks = [asyncio.ensure_future(keyed.acquire(key)) for key in range(101)]
    await turns(3)

    assert 10.1 == keyed["new"].delay()
    assert 10.1 == keyed[1].delay()
    await clock.run(10)
    assert [key / 10 for key in range(101)] == [pytest.approx(task.result()) for task in tasks]
    await keyed.aclose()


@one_loop
async def test_a_limit_that_will_not_grant_leaves_nobody_an_estimate() -> None:
    """Stopped, or closed: neither has an end that anybody could know."""
    clock = SteppedClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("10/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock), shared=shared)
    assert keyed.try_acquire("a")
    crowd = Crowd(keyed["a"], clock)
    await crowd.queue(range(2))
    assert 3 == keyed["a"].delay()

    shared.apply("10,1,stop")
    assert float("inf") == keyed["a"].delay() == keyed["b"].delay()
    shared.apply("10,1,start")
    assert 3 == keyed["a"].delay()
    keyed["a"].apply("1,1,stop")
    assert [float("inf"), 0.1] == [keyed["a"].delay(), keyed["b"].delay()]
    keyed["a"].apply("1,1,start")
    await shared.aclose()
    assert float("inf") == keyed["b"].delay()
    await keyed.aclose()


@one_loop
async def test_whoever_asks_for_more_than_a_new_rate_allows_counts_for_nobody() -> None:
    """It will be sent away when its turn comes, and those behind it need not wait for it."""
    clock = SteppedClock()
    shared = aiorate.Limiter(aiorate.SlidingWindow("4/s"), clock=clock)
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=4), clock=clock), shared=shared)
    assert keyed.try_acquire("a", 4)
    crowd = Crowd(keyed["a"], clock)
    crowd.ask("large", 4)
    crowd.ask("small", 1)
    await turns(3)
    assert 6 == keyed["a"].delay()

    shared.set_rate("2/s")

    assert 2 == keyed["a"].delay()
    await clock.run(5)
    with pytest.raises(ValueError, match="2 is the most at once of the limit that is shared"):
        crowd.tasks["large"].result()
    assert crowd.tasks["small"].done()
    await keyed.aclose()


# Limits that fail, and loops that end.


class Fails(aiorate.TokenBucket):
    """Raises once, where it would grant."""

    __slots__ = ("fails",)

    def __init__(self, rate: str) -> None:
        super().__init__(rate, burst=1)
        self.fails = False

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if self.fails and self.peek(permits, now) <= now:
            self.fails = False
            raise OSError("broken")
        return super().take(permits, now, since)


@one_loop
@pytest.mark.parametrize("in_line", [True, False])
async def test_a_key_whose_strategy_fails_spends_nothing_of_the_shared_limit(in_line: bool) -> None:
    """It was asked first, and has its permit back when the key's own limit fails."""
    clock = SteppedClock()
    strategy = Fails("1/s")
    shared = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=2), clock=clock)
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(strategy, clock=clock), shared=shared)
    if in_line:
        assert keyed.try_acquire("a")
        crowd = Crowd(keyed["a"], clock)
        await crowd.queue(["first", "second"])
    strategy.fails = True
    await clock.run(1)

    if in_line:
        assert {"OSError: broken"} == {f"{type(task.exception()).__name__}: {task.exception()}" for task in crowd.tasks.values()}
    else:
        with pytest.raises(OSError, match="broken"):
            keyed.try_acquire("a")
    assert [True, not in_line] == [shared.try_acquire(), shared.try_acquire()]
    assert (0, clock.timers) == (shared.statistics().waiting, 0)
    await keyed.aclose()


@one_loop
async def test_a_limiter_in_whose_line_somebody_stands_is_refused_as_a_key() -> None:
    """Those in line never asked the shared limit. Once they are served, the limiter may be a key."""
    clock = ManualClock()
    made = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter[str](lambda key: made, shared=aiorate.Limiter("10/s", clock=clock))
    assert made.try_acquire()
    waiting = asyncio.ensure_future(made.acquire())
    await turns(2)

    with pytest.raises(ValueError, match="in use already"):
        keyed["a"]
    await clock.run(1)
    assert 1 == await waiting
    assert not keyed.try_acquire("a")
    await clock.run(1)
    assert keyed.try_acquire("a")


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_limiter_that_was_used_before_is_a_key_like_any_other() -> None:
    """What it granted in advance is settled: nothing passes the shared limit unseen."""
    made = aiorate.Limiter(aiorate.TicksAccumulator("10/s"))
    for _ in range(3):
        await made.acquire()
    await asyncio.sleep(10)
    assert all(made.try_acquire() for _ in range(3))
    keyed = aiorate.KeyedLimiter[str](lambda key: made, shared=aiorate.TokenBucket("1/s", burst=2))

    assert [True, True, False] == [keyed.try_acquire("a") for _ in range(3)]
    assert 8 == keyed["a"].statistics().granted


@one_loop
async def test_a_key_that_was_just_used_is_not_evicted() -> None:
    """What it granted in advance is settled first: then it is seen to owe."""
    clock = ManualClock(SECOND)
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.TokenBucket("1000000/s", burst=100), clock=clock))
    assert all(keyed.try_acquire("a") for _ in range(5))

    assert 0 == keyed.evict()
    assert 5 == keyed["a"].statistics().granted
    clock.advance(0.000005)
    assert 1 == keyed.evict()


@pytest.mark.parametrize("first", ["key", "shared"])
def test_in_the_next_event_loop_nobody_of_the_last_one_stands_in_either_line(first: str) -> None:
    """Whichever of the two is asked first there."""
    clock = ManualClock()
    shared = aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock)
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock), shared=shared)
    assert keyed.try_acquire("a")
    clock.advance(1)
    assert shared.try_acquire()
    tasks: list[asyncio.Task[float]] = []

    async def wait() -> None:
        tasks.append(asyncio.ensure_future(keyed.acquire("a")))
        await turns(3)
        assert (1, 1) == (shared.statistics().waiting, keyed["a"].statistics().waiting)

    async def ask() -> None:
        if first == "shared":
            assert not shared.try_acquire()
        assert not keyed.try_acquire("a")
        await clock.run(1)
        assert keyed.try_acquire("a")
        assert (0, 0) == (shared.statistics().waiting, keyed["a"].statistics().waiting)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait())
    asyncio.run(ask())
    with pytest.raises(RuntimeError, match="moved to another event loop"):
        loop.run_until_complete(tasks[0])
    loop.close()


def test_a_key_in_whose_line_a_closed_loop_left_somebody_is_evicted() -> None:
    """Nobody will ever be granted there, and it owes nothing any more."""
    clock = ManualClock()
    keyed = aiorate.KeyedLimiter[str](lambda key: aiorate.Limiter(aiorate.TokenBucket("1/s", burst=1), clock=clock))
    assert keyed.try_acquire("a")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # "Task was destroyed but it is pending!"
    task = loop.create_task(keyed.acquire("a"))
    loop.run_until_complete(turns(3))
    loop.close()
    clock.advance(1)

    assert 0 == keyed.evict()  # the task that will never run holds it
    assert not task.done()
    del task
    gc.collect()
    assert 1 == keyed.evict()
