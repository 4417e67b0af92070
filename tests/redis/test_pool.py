"""The pool of slots in hand: what is due, what lapses, what comes back. No store, no clock."""

from __future__ import annotations

from typing import Any

from aiorate import Rate
from aiorate._schedulers.amounts import Amounts
from aiorate._schedulers.interface import NOBODY_KNOWS
from aiorate._store.pool import Pool
from aiorate._store.slots import Run

MS = 1_000_000


class Told:
    """What a pool tells its store."""

    def __init__(self) -> None:
        self.wanted_at: list[int] = []

    def wanted(self, now: int) -> bool:
        self.wanted_at.append(now)
        return True


def pool_of(*parts: tuple[str, int], unit: bool = True, late: int = 5 * MS) -> tuple[Pool, Told]:
    pool, told = Pool([(Rate.parse(rate), burst, None) for rate, burst in parts], unit, late), Told()
    pool.wanted = told.wanted
    return pool, told


def slots(pool: Pool, n: int, first: int, every: int = MS, amounts: Any = (1,)) -> None:
    pool.asked = False
    pool.add(Run(amounts, n, 5 * MS, [(first, 1, every)]))


def test_slots_are_granted_as_they_fall_due_and_lapse() -> None:
    pool, told = pool_of(("1000/s", 1))
    assert NOBODY_KNOWS == pool.take(1, 0)
    assert [0] == told.wanted_at
    slots(pool, 10, MS)

    assert [MS, 1 * MS, 2 * MS] == [pool.take(1, now) for now in (0, MS, 2 * MS)]
    assert 9 * MS == pool.take(1, 14 * MS)  # those until 8 ms have lapsed
    assert (1, 6 * MS) == (pool.count, pool._spilled)


def test_a_large_request_gathers_slots_that_would_lapse() -> None:
    pool, _ = pool_of(("1000/s", 1))
    slots(pool, 20, 0)

    assert 9 * MS == pool.peek(10, 0) == pool.take(10, 0)
    assert 9 * MS == pool.take(10, 9 * MS)
    assert 10 == pool.count


def test_what_is_given_back_is_the_next_ones_until_it_would_have_lapsed() -> None:
    for after, expected in ((5 * MS, 0), (6 * MS, NOBODY_KNOWS)):
        pool, _ = pool_of(("1000/s", 1))
        slots(pool, 1, 0)
        pool.take(1, 2 * MS)
        pool.give_back(1, after, 2 * MS)
        assert expected == pool.take(1, after)


def test_reservations_gather_slots_of_others_and_only_the_first_is_lost() -> None:
    pool, _ = pool_of(("10/s", 1), ("100/s", 1), unit=False)
    for place, tokens in enumerate([40, 10, 30, 5, 50, 20]):  # each was for one request, and the first lapses
        pool.add(Run((1, tokens), 1, 4 * MS, [(place * 9 * MS, 1, 0)]))

    for tokens, *looks in ((40, 5, 18), (10, 18, 36), (30, 36), (5, 36)):
        for now in looks:
            assert looks[-1] * MS == pool.take(Amounts(("requests", "tokens"), (1, tokens)), now * MS)
    assert (2, [0, 0]) == (pool.count, pool.corrections)
    assert [(1, 20), (0, 10)] == sorted([run.amounts for run in pool.runs if not run.lapsed(36 * MS)], reverse=True)


def test_reservations_that_lapsed_do_not_come_back() -> None:
    """The schedule of the store would move back by time that is over, under slots that others still hold."""
    pool, _ = pool_of(("10/s", 1), ("100/s", 1), unit=False)
    slots(pool, 4, 0, 100 * MS, (1, 5))  # used by 5, 105, 205 and 305 ms
    assert 300 * MS == pool.take(Amounts(("requests", "tokens"), (1, 5)), 250 * MS)
    pool.give_up(None, 250 * MS)
    assert [-1, -5] == pool.corrections


def test_estimates_go_by_what_the_store_said_last() -> None:
    pool, _ = pool_of(("10/s", 1))
    pool.parts[0].full = 400 * MS
    assert [400 * MS, 500 * MS, 700 * MS] == [pool.peek(1, 0), pool.peek(2, 0), pool.peek(1, 0, 3)]
    assert [(0, 400 * MS)] == [standing[2:] for standing in pool._standings(0)]
    assert [(1, 500 * MS)] == [standing[2:] for standing in pool._standings(500 * MS)]


def test_bounds() -> None:
    pool, _ = pool_of(("1000/s", 3))
    assert 3 + 1005 == pool.bound(1000 * MS)
    assert 3 + 1005 + 8 == pool.bound(1000 * MS, 8)
