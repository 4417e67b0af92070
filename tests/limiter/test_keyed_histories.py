"""Random histories of keys: cancelled requests leave no trace, and eviction makes no request sooner."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import SECOND, SteppedClock, turns
from helpers.keyed_model import EXACT, GAPS
from helpers.samples import examples, sampled
from helpers.strategies import EACH
from hypothesis import given
from hypothesis import strategies as st

import aiorate
from aiorate.testing import ManualClock
from aiorate.waiting.asyncio import view

RETURNED = {"TokenPool", "TokenBucket", "TokenBucket-paced", "SlidingWindow", "CalendarWindow", "AllOf", None}
"""Strategies to which grants may be given back in any order."""
TRACELESS = [name for name in EACH if name not in {"TokenPool-burst", "BurstCompensation-half", "BurstRatio"}]
"""All but three: TokenPool-burst rounds its level down at each reading, and the other two book slots of a backlog as if they came late."""


class World:
    """Keys with a shared limit, on their own clock."""

    def __init__(self, kinds: dict[str, str], shared: str | None) -> None:
        self.clock = SteppedClock()
        self.kinds = kinds
        limit = None if shared is None else aiorate.Limiter(EACH[shared](), clock=self.clock)
        self.keyed = aiorate.KeyedLimiter(self.make, shared=limit)
        self.tasks: list[asyncio.Task[float]] = []
        for key in kinds:
            self.keyed[key].delay()  # every schedule begins now

    def make(self, key: str) -> aiorate.Limiter:
        return aiorate.Limiter(EACH[self.kinds[key]](), clock=self.clock)

    async def come_and_go(self, keys: list[str], wait: bool, order: int) -> None:
        """Make a request for each of these keys, and cancel all: in line, or once one of them is granted but has not run."""
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
        """The wait of a request for each key now, in seconds."""
        return [self.keyed[key].delay() for key in self.kinds]


LEAVING = st.lists(
    st.tuples(st.sampled_from(GAPS), st.lists(st.sampled_from("abb"), min_size=1, max_size=9), st.booleans(), st.sampled_from([1, 5, 7])),
    min_size=1,
    max_size=8,
)


@sampled
@examples(150)
@given(one=st.sampled_from(TRACELESS), two=st.sampled_from(TRACELESS), shared=st.sampled_from([*TRACELESS, None]), steps=LEAVING)
def test_cancelled_requests_leave_no_trace(one: str, two: str, shared: str | None, steps: list[tuple[int, list[str], bool, int]]) -> None:
    """Cancelled in its key's line, in the shared line, or once granted, a request leaves both limits with exactly their permits."""

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
            # If several grants of one instant come back in another order, the laws only promise that no permit is created.
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
def test_an_evicted_key_is_never_granted_sooner_than_a_kept_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a client that causes evictions would get more than the rate."""
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
