"""Keys through random histories, against a slow and plain model: for each limit one list and one scheduler, and a list of timers.

The model says the rule in one place: a request stands in its key's line; only who is first there, and due there, asks the shared limit,
in order of becoming due; both are spent in one step, or neither. Who is granted when must agree to the nanosecond.
"""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from helpers.driving import SECOND, SteppedClock, others, turns
from helpers.samples import examples, sampled
from helpers.strategies import EACH
from hypothesis import given
from hypothesis import strategies as st

import aiorate
from aiorate.testing import ManualClock
from aiorate.waiting.asyncio import view

CATCH_UP = SECOND // 50
MS = SECOND // 1000


class Request:
    """One that waits; ``key`` is None for who asks the shared limit itself."""

    def __init__(self, name: int, key: str | None, permits: int, since: int) -> None:
        self.name, self.key, self.permits, self.since = name, key, permits, since


class Limit:
    """A line, a scheduler and a time of its own, which stands still during a pause."""

    def __init__(self, scheduler: aiorate.Scheduler, clock: int) -> None:
        self.scheduler = scheduler
        self.clock = self.time = clock
        self.held_for = self.paused_until = 0
        self.line: list[Request] = []
        self.standing: Request | None = None  # of a key: what stands for its first in the shared line
        self.timer: tuple[int, int] | None = None  # when to look again, and which of all timers it is
        self.altered = False
        self.granted: list[tuple[int, int]] = []  # instant, permits
        self.largest = 1

    @property
    def held(self) -> bool:
        return self.clock < self.paused_until

    def move_to(self, clock: int) -> None:
        moves_on = min(max(self.clock, self.paused_until), clock)
        self.held_for += moves_on - self.clock
        self.time += clock - moves_on
        self.clock = clock
        if not self.held and self.held_for:
            self.scheduler.shift(self.held_for)
            self.held_for = 0

    def take(self, permits: int, since: int) -> None:
        assert self.scheduler.take(permits, self.time, max(since, self.time - CATCH_UP)) <= self.time
        self.granted.append((self.clock, permits))
        self.largest = max(self.largest, permits)

    def due(self, permits: int) -> int:
        return self.scheduler.peek(permits, self.time)


class Model:
    """Limits by key and one for all, moved on from timer to timer."""

    def __init__(self, shared: aiorate.Scheduler | None) -> None:
        self.clock = 0
        self.shared = None if shared is None else Limit(shared, 0)
        self.keys: dict[str, Limit] = {}
        self.granted: dict[int, int] = {}
        self.failed: set[int] = set()
        self.timers = count()

    @property
    def limits(self) -> list[Limit]:
        return [*self.keys.values(), *([] if self.shared is None else [self.shared])]

    def run_to(self, clock: int) -> None:
        """Look whenever a timer says so. Those of one instant come in the order in which they were set; a pool's task a turn later."""
        while woken := [limit for limit in self.limits if limit.timer is not None and limit.timer[0] <= clock]:
            first = min(woken, key=lambda limit: (limit.timer[0], self.by_task(limit), limit.timer[1]))  # type: ignore[index]
            assert first.timer is not None
            self.move_to(max(first.timer[0], self.clock))
            first.timer = None
            self.serve(first)
        self.move_to(clock)

    def by_task(self, limit: Limit) -> bool:
        return isinstance(limit.scheduler, aiorate.TokenPool) and any(limit is not self.shared or not each.key for each in limit.line)

    def move_to(self, clock: int) -> None:
        self.clock = clock
        for limit in self.limits:
            limit.move_to(clock)

    def arm(self, limit: Limit, reading: int | None) -> None:
        if reading is None:
            limit.timer = None
        elif limit.timer is None or limit.timer[0] != reading:
            limit.timer = reading, next(self.timers)

    def serve(self, limit: Limit) -> None:
        if limit is self.shared:
            self.serve_shared(limit)
        else:
            self.serve_key(limit)

    def serve_key(self, key: Limit) -> None:
        """Grant what is due in the key's line, and have its first stand in the shared one."""
        while key.line and not key.held:
            first = key.line[0]
            due = key.due(first.permits)
            if due > key.time:
                self.withdraw(key)
                return self.arm(key, key.clock + due - key.time)
            if self.shared is not None:
                if key.standing is not first:
                    self.withdraw(key)
                    most = self.shared.scheduler.max_permits
                    if most is not None and first.permits > most:
                        self.fail(first)
                        continue
                    if self.shared.line or self.shared.held or self.shared.due(first.permits) > self.shared.time:
                        key.standing = first
                        self.shared.line.append(Request(first.name, first.key, first.permits, self.shared.time))
                        if len(self.shared.line) == 1:
                            self.serve_shared(self.shared)
                if key.standing is first:
                    return self.arm(key, None)
                self.shared.take(first.permits, self.shared.time)
            key.take(first.permits, first.since)
            self.granted[first.name] = self.clock
            del key.line[0]
        self.withdraw(key)
        return self.arm(key, key.paused_until if key.line else None)

    def serve_shared(self, shared: Limit) -> None:
        """Grant what is due in the shared line; then look at the keys of those who were granted."""
        passed = []
        while shared.line and not shared.held:
            first = shared.line[0]
            due = shared.due(first.permits)
            if due > shared.time:
                self.arm(shared, shared.clock + due - shared.time)
                break
            shared.take(first.permits, first.since)
            self.granted[first.name] = self.clock
            del shared.line[0]
            if first.key is not None:
                key = self.keys[first.key]
                key.take(first.permits, key.time)  # nothing is made up for what the shared limit held up
                key.standing = None
                del key.line[0]
                passed.append(key)
        else:
            self.arm(shared, shared.paused_until if shared.line else None)
        for key in passed:
            self.serve_key(key)

    def withdraw(self, key: Limit) -> None:
        """Nobody stands for the key in the shared line any more."""
        if key.standing is not None:
            assert self.shared is not None
            name, key.standing = key.standing.name, None
            first = self.shared.line[0].name == name
            self.shared.line = [request for request in self.shared.line if request.name != name]
            if first:
                self.serve_shared(self.shared)

    def fail(self, request: Request) -> None:
        limit = self.of(request.key)
        limit.line.remove(request)
        self.failed.add(request.name)

    def of(self, key: str | None) -> Limit:
        limit = self.shared if key is None else self.keys[key]
        assert limit is not None
        return limit

    def path(self, key: str | None) -> list[Limit]:
        """The limits that a request of that key takes from."""
        return [self.of(key)] + ([] if key is None or self.shared is None else [self.shared])

    # What users do.

    def ask(self, name: int, key: str | None, permits: int) -> None:
        limit = self.of(key)
        limit.line.append(Request(name, key, permits, limit.time))
        if len(limit.line) == 1:
            self.serve(limit)

    def leave(self, name: int, key: str | None) -> None:
        limit = self.of(key)
        first = limit.line[0].name == name
        limit.line = [request for request in limit.line if request.name != name]
        if first:
            self.serve(limit)

    def try_acquire(self, key: str | None, permits: int) -> bool:
        limits = self.path(key)
        if any(limit.line or limit.held or limit.due(permits) > limit.time for limit in limits):
            return False
        for limit in limits:
            limit.take(permits, limit.time)
        return True

    def rate_changed(self, limit: Limit) -> None:
        limit.altered = True
        most = limit.scheduler.max_permits
        turned_away = [request for request in limit.line if most is not None and request.permits > most]
        for request in turned_away:
            if limit is self.shared and request.key is not None:
                limit.line.remove(request)
                key = self.of(request.key)
                key.standing = None
                self.fail(key.line[0])
            else:
                self.fail(request)
        self.serve(limit)
        for request in turned_away:
            if limit is self.shared and request.key is not None:
                self.serve(self.of(request.key))


EXACT = {"TokenBucket", "TokenBucket-paced", "SlidingWindow", "AllOf"}
"""Where a key that was evicted is granted at the very instants at which it would have been, had it been kept."""


class Pair:
    """A KeyedLimiter and its model, to which the same is done."""

    def __init__(self, kinds: dict[str, str], shared: str | None) -> None:
        self.clock = ManualClock()
        self.kinds = kinds
        self.keyed = aiorate.KeyedLimiter(self.make, shared=None if shared is None else self.limiter(shared), max_keys=2)
        self.model = Model(None if shared is None else self.begun(shared))
        self.names = count()
        self.asked: dict[int, str | None] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.granted: dict[int, int] = {}
        self.failed: set[int] = set()
        self.evicted = 0

    def begun(self, kind: str) -> aiorate.Scheduler:
        scheduler = EACH[kind]()
        scheduler.peek(1, self.clock.now())  # the first instant ever given starts a schedule
        return scheduler

    def limiter(self, kind: str) -> aiorate.Limiter:
        return aiorate.Limiter(self.begun(kind), clock=self.clock)

    def make(self, key: str) -> aiorate.Limiter:
        return self.limiter(self.kinds[key])

    def of(self, key: str | None) -> aiorate.Limiter:
        """The limiter; it is kept anew in the model too, if need be."""
        if key is None:
            assert self.keyed.shared is not None
            return self.keyed.shared
        if key not in self.keyed and not (key in self.model.keys and self.kinds[key] in EXACT):
            self.model.keys[key] = Limit(self.begun(self.kinds[key]), self.clock.now())
        limiter = self.keyed[key]
        self.evicted += sum(each not in self.keyed for each in self.model.keys)
        return limiter

    async def one(self, name: int, key: str | None, permits: int) -> None:
        try:
            await (self.of(None).acquire(permits) if key is None else self.keyed.acquire(key, permits))
            self.granted[name] = self.clock.now()
        except ValueError:
            self.failed.add(name)

    async def do(self, gap: int, what: str, key: str | None, number: int) -> None:
        model = self.model
        if model.shared is None and key is None:
            key = "a"
        await self.clock.run(gap / SECOND)
        model.run_to(self.clock.now())
        limiter = self.of(key)
        limit = model.of(key)
        most = [each.scheduler.max_permits for each in ([limit] if model.shared is None else [limit, model.shared])]
        permits = min([number, *(each for each in most if each is not None)])
        if what == "acquire":
            name = next(self.names)
            self.asked[name] = key
            del limiter
            self.tasks[name] = asyncio.ensure_future(self.one(name, key, permits))
            await turns(1)
            model.ask(name, key, permits)
        elif what == "try_acquire":
            expected = model.try_acquire(key, permits)
            assert expected is limiter.try_acquire(permits)
        elif what == "cancel":
            waiting = [name for name, asked in self.asked.items() if asked == key and not self.tasks[name].done()]
            if waiting:
                name = waiting[0 if number < 3 else number % len(waiting)]
                self.tasks[name].cancel()
                await self.clock.run(0)
                model.leave(name, key)
        elif what == "pause":
            limiter.pause(number / 10)
            limit.paused_until = max(limit.paused_until, model.clock + number * SECOND // 10)
            model.serve(limit)
        elif what == "resume":
            limiter.resume()
            limit.paused_until = model.clock
            limit.move_to(model.clock)
            model.serve(limit)
        elif what == "refund":
            limiter.refund(permits)
            for each in model.path(key):
                each.scheduler.give_back(permits, each.time)
                each.altered = True  # its bound is another
            for each in reversed(model.path(key)):
                model.serve(each)
        elif what == "charge":
            limiter.charge(number)
            for each in model.path(key):
                each.scheduler.charge(number, each.time)
            for each in reversed(model.path(key)):
                model.serve(each)
        elif what == "evict":
            self.keyed.evict()
        elif not isinstance(limiter.scheduler, aiorate.AllOf):
            rate = ("3/s", "7/s", "10/s", "40/s", "20/3s")[number % 5]
            limiter.set_rate(rate)
            limit.scheduler.set_rate(aiorate.Rate.parse(rate), limit.time)
            model.rate_changed(limit)
        await self.clock.run(0)
        self.compare()

    def compare(self) -> None:
        """What everybody can see."""
        model = self.model
        assert (model.granted, model.failed) == (self.granted, self.failed)
        for key, limit in model.keys.items():
            assert len(limit.line) == (self.keyed[key].statistics().waiting if key in self.keyed else 0)
        if model.shared is not None:
            assert len(model.shared.line) == self.of(None).statistics().waiting

    async def finish(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        await self.clock.run(0)
        assert (0, set()) == (self.clock.timers, others())
        for limit in self.model.limits:
            if not limit.altered:
                keeps_its_bounds(limit)


def keeps_its_bounds(limit: Limit) -> None:
    """No window holds more than the scheduler promises: here nothing is late, so nothing has to be made up for."""
    for window in (1, SECOND // 10, SECOND, 3 * SECOND):
        bound = limit.scheduler.bound(window, limit.largest)
        for begin, _ in limit.granted:
            assert bound is None or bound >= sum(permits for at, permits in limit.granted if begin <= at < begin + window)


GAPS = [0, 0, 0, 1, 10 * MS, 50 * MS, 100 * MS, 137 * MS, SECOND - 1, 3 * SECOND]
OFTEN = ["acquire"] * 6 + ["try_acquire", "cancel", "cancel", "evict"]
SELDOM = ["pause", "resume", "refund", "charge", "set_rate"]
STEPS = st.tuples(
    st.sampled_from(GAPS),
    st.sampled_from(OFTEN * 2 + SELDOM),
    st.sampled_from(["a", "a", "b", "c", "d", None]),
    st.sampled_from([1, 1, 1, 2, 3, 7]),
)


def run(kinds: dict[str, str], shared: str | None, steps: list[tuple[int, str, str | None, int]]) -> None:
    """One history."""

    async def history() -> None:
        pair = Pair(kinds, shared)
        for step in steps:
            await pair.do(*step)
        await pair.finish()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(history())


@pytest.mark.parametrize("kind", EACH)
def test_who_comes_just_after_a_request_that_the_shared_limit_held_up_is_not_booked_early(kind: str) -> None:
    """That the first of the key's line stood in another line is no late wake-up that the next one may make up for."""
    run(
        dict.fromkeys("abcd", kind),
        "SlidingWindow",
        [
            (0, "acquire", "a", 1),
            (0, "pause", None, 7),
            (0, "acquire", "a", 1),
            (700 * MS, "try_acquire", "a", 1),
            *[(0, "acquire", "a", 1)] * 6,
            (SECOND, "acquire", "a", 1),
        ],
    )


@sampled
@pytest.mark.parametrize("shared", [*EACH, None])
def test_keys_do_what_lists_and_schedulers_do(shared: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked, cancelled, paused, changed and evicted, and when: everybody is granted when the plain rule says."""
    # Wake-ups are kept a millisecond apart because loops fire early; a clock by hand does not.
    monkeypatch.setattr(view, "GRAIN_NS", 0)

    @examples(30)
    @given(st.fixed_dictionaries({key: st.sampled_from(list(EACH)) for key in "abcd"}), st.lists(STEPS, min_size=4, max_size=40))
    def compare(kinds: dict[str, str], steps: list[tuple[int, str, str | None, int]]) -> None:
        run(kinds, shared, steps)

    compare()


RETURNED = {"TokenPool", "TokenBucket", "TokenBucket-paced", "SlidingWindow", "CalendarWindow", "AllOf", None}
"""Where grants may come back in any order."""
TRACELESS = [name for name in EACH if name not in {"TokenPool-burst", "BurstCompensation-half", "BurstRatio"}]
"""The first rounds what it holds at every reading, to the later side. The others book slots of a backlog, as if they came late."""


class World:
    """Keys with a shared limit, on a clock of their own."""

    def __init__(self, kinds: dict[str, str], shared: str | None) -> None:
        self.clock = SteppedClock()
        self.kinds = kinds
        limit = None if shared is None else aiorate.Limiter(EACH[shared](), clock=self.clock)
        self.keyed = aiorate.KeyedLimiter(self.make, shared=limit)
        self.tasks: list[asyncio.Task[float]] = []
        for key in kinds:
            self.keyed[key].delay()  # every schedule begins at once

    def make(self, key: str) -> aiorate.Limiter:
        return aiorate.Limiter(EACH[self.kinds[key]](), clock=self.clock)

    async def come_and_go(self, keys: list[str], wait: bool, order: int) -> None:
        """Requests for these keys, all cancelled: in line, or as soon as one of them was granted but has not run."""
        tasks = [asyncio.ensure_future(self.keyed.acquire(key)) for key in keys]
        await turns(3)
        if wait and not any(task.done() for task in tasks):
            self.clock.fire()
        for place in range(len(tasks)):
            tasks[(place * order) % len(tasks)].cancel()
            if place % 2 and not wait:
                await turns(1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not any(task.done() and not task.cancelled() for task in tasks)

    def seen(self) -> list[float]:
        """How long each key would wait now."""
        return [self.keyed[key].delay() for key in self.kinds]


LEAVING = st.lists(
    st.tuples(st.sampled_from(GAPS), st.lists(st.sampled_from("abb"), min_size=1, max_size=9), st.booleans(), st.sampled_from([1, 5, 7])),
    min_size=1,
    max_size=8,
)


@sampled
@examples(150)
@given(one=st.sampled_from(TRACELESS), two=st.sampled_from(TRACELESS), shared=st.sampled_from([*TRACELESS, None]), steps=LEAVING)
def test_everybody_who_left_is_as_if_never_come(
    one: str, two: str, shared: str | None, steps: list[tuple[int, list[str], bool, int]]
) -> None:
    """In a key's line, in the shared one, or granted by both: neither limit has lost a permit, nor has it one too many."""

    async def main() -> None:
        noisy, quiet = World({"a": one, "b": two}, shared), World({"a": one, "b": two}, shared)
        for gap, keys, wait, order in steps:
            quiet.clock.set(noisy.clock.now() + gap)
            noisy.clock.set(quiet.clock.now())
            assert quiet.seen() == noisy.seen()
            for key in "ab":
                while True:
                    took = quiet.keyed.try_acquire(key)
                    assert took is noisy.keyed.try_acquire(key)
                    if not took:
                        break
            # Where several grants of one instant come back in another order, the laws promise no more than that none is created.
            await noisy.come_and_go(keys if RETURNED.issuperset({one, two, shared}) or not wait else keys[:1], wait, order)
            assert noisy.clock.timers == 0
            quiet.clock.set(noisy.clock.now())
            assert quiet.seen() == noisy.seen()
        quiet.clock.set(noisy.clock.now() + SECOND // 3)
        noisy.clock.set(quiet.clock.now())
        assert quiet.seen() == noisy.seen()

    asyncio.run(main())


@sampled
@pytest.mark.parametrize("kind", EACH)
def test_a_key_that_was_evicted_is_never_granted_sooner_than_one_that_was_kept(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or whoever makes the keys be evicted would get more than the rate."""
    monkeypatch.setattr(view, "GRAIN_NS", 0)

    @examples(40)
    @given(
        st.lists(
            st.tuples(st.sampled_from(GAPS), st.sampled_from(["acquire", "acquire", "acquire", "evict", "pause"]), st.integers(1, 3)),
            min_size=4,
            max_size=40,
        )
    )
    def compare(steps: list[tuple[int, str, int]]) -> None:
        async def main() -> None:
            clock = ManualClock()
            evicting, keeping = (aiorate.KeyedLimiter(lambda key: aiorate.Limiter(EACH[kind](), clock=clock)) for _ in range(2))
            kept = keeping["key"]
            kept.delay()
            evicting["key"].delay()
            granted: dict[str, list[int]] = {"evicting": [], "keeping": []}
            tasks = []

            async def ask(name: str, keyed: aiorate.KeyedLimiter[str], permits: int) -> None:
                await keyed.acquire("key", permits)
                granted[name].append(clock.now())

            for gap, what, number in [*steps, (20 * SECOND, "acquire", 1)]:
                await clock.run(gap / SECOND)
                if what == "evict":
                    evicting.evict()
                    keeping.evict()
                elif what == "pause":
                    kept.pause(number / 10)
                    evicting["key"].pause(number / 10)
                else:
                    permits = min(number, kept.scheduler.max_permits or number)
                    tasks.append(asyncio.ensure_future(ask("evicting", evicting, permits)))
                    tasks.append(asyncio.ensure_future(ask("keeping", keeping, permits)))
                await clock.run(0)
                assert kept is keeping["key"]
            await clock.run(100)
            await asyncio.gather(*tasks)

            if kind in EXACT:
                assert granted["keeping"] == granted["evicting"]
            assert all(sooner <= later for sooner, later in zip(granted["keeping"], granted["evicting"], strict=True))

        asyncio.run(main())

    compare()
