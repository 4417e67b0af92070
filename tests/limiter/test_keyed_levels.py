"""Four levels of keys: a hundred thousand users of ten thousand teams, and what a busy tenant costs the others."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, SteppedClock, in_ms, one_loop

from aiorate import Budget, KeyedBudget, KeyedLimiter, Limiter, TokenBucket
from aiorate.testing import VirtualLoop

MANY = 100_000


class Users:
    """Users, teams of ten, four regions, and one limit for all: users of limiters, or of budgets of requests and tokens."""

    def __init__(self, kind: str, many: int = MANY, levels: int = 4) -> None:
        self.kind = kind
        made: Any = self.limiter if kind == "limiters" else self.budget
        keyed: Any = KeyedLimiter if kind == "limiters" else KeyedBudget
        self.top = made(10 * many)
        self.regions = keyed(lambda region: made(10 * many), shared=self.top)
        self.teams = keyed(lambda team: made(50), shared=(lambda team: self.regions[team % 4]) if levels > 3 else self.top)
        above = {1: None, 2: self.top}.get(levels, lambda user: self.teams[user // 10])
        self.users = keyed(lambda user: made(5), shared=above, max_keys=many)

    def limiter(self, burst: int) -> Limiter:
        return Limiter(TokenBucket("1/s", burst))

    def budget(self, burst: int) -> Budget:
        return Budget(requests=TokenBucket("1/s", burst), tokens=TokenBucket("1/s", burst))

    async def use(self, user: int) -> None:
        if self.kind == "limiters":
            await self.users.acquire(user)
        else:
            async with self.users.reserve(user, tokens=2) as lease:
                lease.settle(tokens=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["limiters", "budgets"])
def test_four_levels_of_a_hundred_thousand_keys(kind: str) -> None:
    """All are kept while they owe, every level has counted every use, and all go once nothing is owed."""

    async def main() -> None:
        tree = Users(kind)
        for user in range(MANY):
            await tree.use(user)
        assert [MANY, MANY // 10, 4] == [len(keyed) for keyed in (tree.users, tree.teams, tree.regions)]
        levels = [tree.users[7], tree.teams[0], tree.regions[0], tree.top]
        assert [1, 10, MANY // 4, MANY] == [level.statistics().granted for level in levels]
        del levels
        await asyncio.sleep(10 * MANY)
        assert [MANY, MANY // 10, 4] == [keyed.evict() for keyed in (tree.users, tree.teams, tree.regions)]

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["limiters", "budgets"])
def test_the_cost_grows_with_the_levels_only(kind: str) -> None:
    """An acquire on four levels costs about twice one on two, which takes the same way through one level."""

    async def main(levels: int) -> float:
        tree = Users(kind, 200, levels)
        for user in range(200):
            await tree.use(user)
        begun = time.process_time()
        for user in range(200):
            for _ in range(3):
                await tree.use(user)
        return time.process_time() - begun

    def best(levels: int) -> float:
        return min(asyncio.run(main(levels)) for _ in range(5))

    assert best(4) < 4 * best(2)


@one_loop
@pytest.mark.parametrize("busy", ["user", "team", "region"])
async def test_a_busy_tenant_delays_nobody_else(busy: str) -> None:
    """A thousand waiting requests of one user, team or region delay another user by one request of each line that it meets."""
    clock = SteppedClock()

    def make(rate: int) -> Limiter:
        return Limiter(TokenBucket(rate, 1), clock=clock)

    top = make(100)
    regions = KeyedLimiter[str](lambda key: make(50), shared=top)
    teams = KeyedLimiter[str](lambda key: make(20), shared=lambda key: regions[key[:1]])
    users = KeyedLimiter[str](lambda key: make(20), shared=lambda key: teams[key[:2]])
    flood = {"user": ["aa0"], "team": [f"aa{number}" for number in range(10)], "region": [f"a{x}{y}" for x in "abcde" for y in range(2)]}
    for user in flood[busy]:
        await Crowd(users[user], clock).queue(range(1_000 // len(flood[busy])))
    await clock.run(2)
    quiet = {user: Crowd(users[user], clock) for user in ("bbx", "abx", "aax")}
    begun = clock.now()
    for crowd in quiet.values():
        await crowd.queue([0])
    await clock.run(1)

    waited = {user: (at - begun * 1_000 // SECOND) for user, crowd in quiet.items() for at in in_ms(crowd)}
    # One interval, and one request of each other line at every level that they share: of ten users at 20/s, or of two users in each of
    # five teams at 50/s. The user of another region waits for none.
    most = {"user": (20, 40, 100), "team": (20, 40, 550), "region": (20, 320, 320)}[busy]
    assert all(wait <= limit for wait, limit in zip(waited.values(), most, strict=True)), waited
