"""shared= as a function of the key: teams of users, regions of teams, and what such functions can get wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from helpers.driving import Crowd, SteppedClock, in_ms, one_loop, turns
from helpers.feedback import said

from aiorate import KeyedLimiter, Limiter, LimiterClosed, TokenBucket
from aiorate.http import Quota
from aiorate.testing import ManualClock

pytestmark = one_loop


class Tree:
    """Users such as "a1" of team "a", the guest, who has no team, and one limit for all teams. A user has 5 permits, a team 3."""

    def __init__(self, users: int = 5, team: int = 3, all_of_them: int = 100, **options: Any) -> None:
        self.clock = SteppedClock()
        self.asked: list[str] = []
        self.top = self.bucket(all_of_them)
        self.teams = KeyedLimiter[str](lambda key: self.bucket(team), shared=lambda key: self.top, **options)
        self.users = KeyedLimiter[str](lambda user: self.bucket(users), shared=self.team_of, **options)

    def bucket(self, burst: int) -> Limiter:
        return Limiter(TokenBucket(burst, burst), clock=self.clock)

    def team_of(self, user: str) -> Limiter | None:
        self.asked.append(user)
        return None if user == "guest" else self.teams[user[:-1]]

    def left(self, user: str) -> list[int]:
        """What is available to the user alone, to the team and to all."""
        limiters = [self.users[user], self.teams[user[:-1]], self.top]
        return [limiter.scheduler.available(self.clock.now()) for limiter in limiters]


async def test_each_key_passes_the_limit_that_the_function_names() -> None:
    """Two users of a team share its permits; another team, and a key without one, do not."""
    tree = Tree()

    assert [True, True, True, False] == [tree.users.try_acquire(user) for user in ("a1", "a2", "a1", "a2")]
    assert [True, True] == [tree.users.try_acquire("b1"), tree.users.try_acquire("guest")]

    assert [3, 0, 96] == tree.left("a1")
    assert [4, 0, 96] == tree.left("a2")
    assert [4, 2, 96] == tree.left("b1")


async def test_a_function_is_asked_once_for_each_kept_key() -> None:
    """It may look into a database. A key that was evicted is a new one."""
    tree = Tree()
    for user in ("a1", "a2", "a1", "guest", "guest"):
        tree.users.try_acquire(user)
        tree.users.observe(user, said(pause=0))
        repr(tree.users[user])

    assert {"a1": 1, "a2": 1, "guest": 1} == Counter(tree.asked)
    tree.clock.advance(60)
    assert 3 == tree.users.evict()
    tree.users.try_acquire("a1")
    assert 2 == tree.asked.count("a1")


async def test_waiting_users_are_granted_as_all_levels_allow() -> None:
    """The team grants three at once and three each second; the users of another team are not delayed."""
    tree = Tree()
    crowds = {user: Crowd(tree.users[user], tree.clock) for user in ("a1", "a2", "b1")}
    for crowd in crowds.values():
        await crowd.queue(range(3))
    await tree.clock.run(3)

    assert {"a1": [0, 0, 0], "a2": [333, 666, 1000], "b1": [0, 0, 0]} == {user: in_ms(crowd) for user, crowd in crowds.items()}


@pytest.mark.parametrize("call", ["refund", "charge", "cancelled wait", "cancelled grant"])
async def test_what_comes_back_reaches_every_level(call: str) -> None:
    """Also a level above, of which the function of the users knows nothing."""
    tree = Tree()
    limiter = tree.users["a1"]
    assert limiter.try_acquire(3)
    if call == "refund":
        limiter.refund(2)
    elif call == "charge":
        limiter.charge(2)
    else:
        task = asyncio.ensure_future(limiter.acquire(2))
        await turns(3)
        if call == "cancelled grant":
            tree.clock.advance(2 / 3)
        task.cancel()
        await turns(3)
        tree.clock.advance(0 if call == "cancelled grant" else 2 / 3)
    now = {"refund": [4, 2, 99], "charge": [0, 0, 95]}.get(call, [5, 2, 100])

    assert now == tree.left("a1")


async def test_a_limit_that_kept_keys_share_is_kept() -> None:
    """max_keys is soft above the leaves; a team goes once none of its users is kept."""
    tree = Tree()
    tree.teams = KeyedLimiter[str](lambda team: tree.bucket(3), max_keys=1)
    for user in ("a1", "b1", "c1", "d1"):
        tree.users.try_acquire(user)
    tree.clock.advance(60)

    assert 0 == tree.teams.evict()
    assert ["a", "b", "c", "d"] == sorted(tree.teams)
    assert (4, 4) == (tree.users.evict(), tree.teams.evict())


async def test_many_keys_come_and_go_on_every_level() -> None:
    """Nothing is kept of ten thousand users of a thousand teams, apart from the last few."""
    tree = Tree(max_keys=50)
    for number in range(10_000):
        tree.users.try_acquire(f"{number // 10}-{number % 10}")
        tree.clock.advance(1)

    assert len(tree.users) < 60
    assert len(tree.teams) < 60


async def test_a_path_may_share_the_paths_above_it() -> None:
    """One KeyedLimiter for a whole tree: each path passes those that it lies in."""
    clock = ManualClock()
    tree: KeyedLimiter[str] = KeyedLimiter(
        lambda path: Limiter(TokenBucket("1/h", burst=8 // (1 + path.count("/"))), clock=clock),
        shared=lambda path: tree[path.rpartition("/")[0]] if "/" in path else None,
    )

    assert [True] * 2 + [False] == [tree.try_acquire("a/b/c") for _ in range(3)]
    assert [True] * 2 + [False] == [tree.try_acquire("a/b") for _ in range(3)]
    assert [True] * 4 + [False] == [tree.try_acquire("a") for _ in range(5)]
    assert ["a", "a/b", "a/b/c"] == sorted(tree)
    clock.advance(9 * 3600)
    assert (3, []) == (tree.evict(), list(tree))


async def test_a_global_quota_pauses_the_limit_that_the_key_shares() -> None:
    """The others go on."""
    tree = Tree()
    tree.users.observe("a1", said(Quota("global", limit=50, remaining=0, reset=3), pause=3))
    tree.users.observe("guest", said(Quota("global", limit=50, remaining=0, reset=3), pause=3))

    held = [limiter.statistics().paused_until for limiter in (tree.users["a1"], tree.teams["a"], tree.top, tree.teams["b"])]
    assert [None, 3.0, None, None] == held
    assert 3.0 == tree.users["guest"].statistics().paused_until
    assert [False, True, False] == [tree.users.try_acquire(user) for user in ("a2", "b1", "guest")]


async def test_a_closed_level_refuses_the_keys_below_it() -> None:
    """Requests in line, later ones, and those of keys that are made later. The keys of other teams go on."""
    tree = Tree()
    crowd = Crowd(tree.users["a1"], tree.clock)
    await crowd.queue(range(5))

    await tree.teams["a"].aclose()
    await turns(5)

    assert [LimiterClosed] * 2 == [type(task.exception()) for task in crowd.tasks.values() if task.exception() is not None]
    for user in ("a1", "a2"):
        with pytest.raises(LimiterClosed):
            await tree.users.acquire(user)
    assert tree.users.try_acquire("b1")
    await tree.teams.aclose()
    with pytest.raises(LimiterClosed):
        await tree.users.acquire("c1")


# What functions get wrong.


def by_key(function: Any, **options: Any) -> KeyedLimiter[str]:
    return KeyedLimiter(lambda key: "10/s", shared=function, **options)


async def plain(key: str) -> None:
    """An async function."""


@pytest.mark.parametrize(
    ("function", "error", "hint"),
    [
        (lambda key: "10/s", TypeError, r"shared\) for 'ann': the function must return a Limiter .*teams\[user\.team\].*not str\."),
        (lambda key: TokenBucket("1/s", 5), TypeError, "for 'ann': .*another limit for each key"),
        (lambda key: KeyedLimiter(lambda key: "1/s"), TypeError, r"for 'ann': a KeyedLimiter has .*tenants\[user\.tenant\]"),
        (lambda key: False, TypeError, "for 'ann': .*not bool"),
        (plain, TypeError, "for 'ann': .*plain one"),
        (lambda key: Limiter("1/s", scope="process"), ValueError, "for 'ann': .*scope='loop'"),
        (lambda key: Limiter("1/s", max_concurrency=2), ValueError, r"for 'ann': .*asyncio\.Semaphore\(2\)"),
        (lambda key: Limiter("1/s", max_waiting=2), ValueError, "for 'ann': .*max_waiting to"),
        (lambda: None, TypeError, "positional argument"),
    ],
)
async def test_wrong_results_of_a_shared_function_name_the_key(function: Any, error: type[Exception], hint: str) -> None:
    """Nothing is kept, and the next call asks again."""
    keyed = by_key(function)

    for _ in range(2):
        with pytest.raises(error, match=hint):
            keyed.try_acquire("ann")
    assert 0 == len(keyed)


async def test_an_error_of_a_function_has_a_note_with_the_key() -> None:
    """It is the function's own error. Nothing is kept, of this key or of those that were being made for it."""
    teams = by_key(lambda team: 1 // 0)
    users = by_key(lambda user: teams[user.upper()])

    with pytest.raises(ZeroDivisionError) as caught:
        await users.acquire("ann")

    assert [
        "KeyedLimiter: shared= raised this for the key 'ANN'.",
        "KeyedLimiter: shared= raised this for the key 'ann'.",
    ] == caught.value.__notes__
    assert (0, 0) == (len(users), len(teams))


async def test_a_failing_factory_spends_nothing_of_what_is_shared() -> None:
    """The function has named it by then."""
    shared = Limiter(TokenBucket("1/h", burst=1), clock=ManualClock())
    keyed = KeyedLimiter[str](lambda key: "no rate", shared=lambda key: shared)

    with pytest.raises(ValueError, match="the factory returned 'no rate' for 'ann'"):
        keyed.try_acquire("ann")

    assert (0, True) == (len(keyed), shared.try_acquire())


async def test_a_circle_of_shared_functions_is_refused() -> None:
    """A key that leads back to itself, at once or through other KeyedLimiters, and by the factory."""
    alone: KeyedLimiter[str] = by_key(lambda key: alone[key])
    first: KeyedLimiter[str] = by_key(lambda key: second[key])
    second: KeyedLimiter[str] = by_key(lambda key: third[key])
    third: KeyedLimiter[str] = by_key(lambda key: first[key])
    factory: KeyedLimiter[str] = KeyedLimiter(lambda key: factory[key])

    for keyed in (alone, first, second, factory):
        with pytest.raises(ValueError, match="'ann' cannot share itself"):
            keyed.try_acquire("ann")
    assert [0] * 4 == [len(keyed) for keyed in (alone, first, second, third)]


async def test_a_circle_through_a_limiter_made_before_is_refused() -> None:
    """The factory returns the limiter that the shared one shares in turn."""
    clock = ManualClock()
    top = Limiter("10/s", clock=clock)
    teams = by_key(lambda team: top)
    users = by_key(lambda user: teams["a"])
    around = KeyedLimiter[str](lambda key: top, shared=lambda key: users["ann"])

    with pytest.raises(ValueError, match="for 'x': it is the limit that is shared"):
        around["x"]
    assert users.try_acquire("ann")


async def test_a_function_that_leads_on_without_end_is_refused() -> None:
    """Each key shares the limit of the next one: a RecursionError would name none of them."""
    keyed: KeyedLimiter[int] = KeyedLimiter(lambda key: "1/s", shared=lambda key: keyed[key + 1])

    with pytest.raises(ValueError, match="to 64 after 64 of them"):
        keyed[0]
    assert 0 == len(keyed)


async def test_64_levels_work_and_more_are_refused() -> None:
    """A decision passes them in nested calls, of which Python allows about a thousand."""
    clock = SteppedClock()
    keyed: KeyedLimiter[int] = KeyedLimiter(
        lambda key: Limiter(TokenBucket("1/s", burst=1), clock=clock), shared=lambda key: keyed[key - 1] if key else None
    )
    for level in range(64):
        assert keyed[level] is keyed[level]
    crowd = Crowd(keyed[63], clock)
    await crowd.queue(range(3))
    await clock.run(2)

    assert [0, 1000, 2000] == in_ms(crowd)
    with pytest.raises(ValueError, match=r"for 64: .*64 are the most"):
        keyed[64]


async def test_a_dict_of_shared_limiters_names_its_method() -> None:
    """The limiters are known, and only the way to pass them is wrong."""
    teams: Any = {"ann": Limiter(TokenBucket("1/h", burst=1), clock=ManualClock())}
    with pytest.raises(TypeError, match=r"shared=limiters\.get"):
        by_key(teams)

    keyed = by_key(teams.get)
    assert [True, False, True] == [keyed.try_acquire(user) for user in ("ann", "ann", "bob")]


@pytest.mark.parametrize("shared", [KeyedLimiter[str](lambda key: "1/s"), KeyedLimiter, TokenBucket])
async def test_keys_or_a_class_as_shared_are_refused(shared: Any) -> None:
    """Both can be called with a key."""
    with pytest.raises(TypeError, match=r"KeyedLimiter\(shared\): .*(tenants\[user\.tenant\]|not )"):
        by_key(shared)


async def test_with_a_function_there_is_no_one_shared_limit() -> None:
    """``shared`` is None, repr() says why, and closing closes no limit that was made elsewhere."""
    tree = Tree()
    tree.users.try_acquire("a1")

    assert (None, "<KeyedLimiter of 1 keys, shared by key>") == (tree.users.shared, repr(tree.users))
    await tree.users.aclose()
    assert tree.teams.try_acquire("a")
