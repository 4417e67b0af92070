"""Capped, around the user's strategy: exact answers, and the laws that apply to it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from copy import deepcopy

import pytest
from helpers.strategies import EACH
from helpers.transcripts import S

from aiorate import Scheduler, TokenBucket
from aiorate.schedulers.capped import Capped
from aiorate.testing import check_scheduler, simulate
from aiorate.testing.laws import LAWS, run_law

# These laws hold under any cap. The others are about the permits or the rate that a cap takes away, or about a constant added to all
# instants, which is the length of a pause to a cap.
UNDER_ANY_CAP = (
    "asking_changes_nothing",
    "granted_on_time",
    "more_is_never_sooner",
    "going_back_earns_nothing",
    "taking_makes_nobody_sooner",
    "giving_back_leaves_no_trace",
    "bound_holds",
    "bound_holds_for_what_is_kept",
    "bound_holds_when_late",
    "since_moves_no_grant",
    "stock_is_there",
    "set_rate_forgives_nothing",
)


def full(burst: int = 10) -> TokenBucket:
    return TokenBucket("10/s", burst=burst)


def test_what_is_left_is_granted_and_more_only_at_the_reset() -> None:
    """Three of ten; the rest of the bucket waits for the server's window to end."""
    assert simulate(Capped(full(), 3, 0, 30 * S), [0] * 5) == [0, 0, 0, 30 * S, 30 * S]


def test_with_nothing_left_all_wait_for_the_reset() -> None:
    """As a quota of tokens that is used up."""
    assert simulate(Capped(full(), 0, 0, 5 * S), [0, S]) == [5 * S, 5 * S]


def test_a_request_for_more_than_is_left_waits_and_leaves_it() -> None:
    """All or nothing: three are left, five are asked for, and the three can still be granted."""
    capped = Capped(full(), 3, 0, 5 * S)

    assert 5 * S == capped.take(5, 0) == capped.peek(5, S)
    assert 0 == capped.take(3, 0)
    assert 5 * S == capped.take(1, 0)
    assert 5 * S == capped.take(5, 5 * S)


def test_it_names_no_instant_before_the_strategy_does() -> None:
    """A slow strategy stays slow: the cap ends at 1 s, and the next permit is due at 10 s."""
    capped = Capped(TokenBucket("1/10s", burst=1), 1, 0, S)

    assert [0, 10 * S] == [capped.take(1, 0), capped.take(1, 0)]


def test_a_cap_that_has_ended_has_no_effect() -> None:
    """From the instant of its end on, it has no effect."""
    capped, bare = Capped(full(), 0, 0, S), full()

    assert [bare.take(1, S) for _ in range(12)] == [capped.take(1, S) for _ in range(12)]
    assert capped.rested(2 * S) == bare.rested(2 * S)


def test_a_second_a_minute_and_a_day_hold_side_by_side() -> None:
    """One left of this second does not become one left of this day, and the day is not forgotten with the second."""
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        quotas = [(1, S), (3, 60 * S), (5, 86_400 * S)]
        capped = Capped(full(), *_first(quotas, order))
        for place in order[1:]:
            left, until = quotas[place]
            assert capped.lower(left, 0, until)

        assert simulate(capped, [0] * 7) == [0, S, S, 60 * S, 60 * S, 86_400 * S, 86_400 * S]


def _first(quotas: list[tuple[int, int]], order: tuple[int, ...]) -> tuple[int, int, int]:
    left, until = quotas[order[0]]
    return left, 0, until


def test_an_earlier_cap_holds_until_its_own_end() -> None:
    """Responses overtake each other: one that promises more, for as long or less, changes nothing."""
    capped = Capped(full(), 2, 0, 5 * S)

    assert [False, False, False] == [capped.lower(2, 0, 5 * S), capped.lower(9, 0, 5 * S), capped.lower(3, 0, S)]
    assert capped.lower(1, 0, 5 * S)
    assert [0, 5 * S] == [capped.take(1, 0), capped.take(1, 0)]


def test_none_of_very_many_caps_is_exceeded() -> None:
    """Two hundred different responses cost no memory each, and gain no permit."""
    dice = random.Random("many")
    for _ in range(20):
        capped, now, said, granted = Capped(full(1_000), 1_000, 0, S), 0, [], []
        for _ in range(200):
            now += dice.randrange(S // 50)
            left, until = dice.randrange(60), now + dice.choice((S // 10, S, 9 * S)) + dice.randrange(S // 100)
            capped.lower(left, now, until)
            said.append((left, now, until))
            granted += [(len(said), now)] * sum(capped.take(1, now) <= now for _ in range(dice.randrange(4)))

        for number, (left, _, until) in enumerate(said, 1):
            assert sum(when >= number and at < until for when, at in granted) <= left


def test_many_caps_do_not_starve_a_sliding_window() -> None:
    """A server that allows 100 in any minute tells after each request what is left for a whole minute: at a steady rate that is half.

    Some of the many caps become one, which ends later than necessary, but not later with each response. So the rate stays above half.
    """
    capped, now, sent = Capped(full(1_000), 100, 0, 1), 0, deque[int]()
    for _ in range(2_000):
        now = max(now + S, capped.peek(1, now))
        assert capped.take(1, now) <= now
        sent.append(now)
        while sent[0] <= now - 60 * S:
            sent.popleft()
        capped.lower(100 - len(sent), now, now + 60 * S)

    assert 2_000 * 60 * S > 50 * now


def test_a_request_that_waited_for_the_reset_was_not_late() -> None:
    """Booked from the reset, or the next would come sooner than the interval. A late timer still costs nothing."""
    for now, due in ((S, S + S // 10), (S + S // 50, S + S // 10)):
        bare = full(1)
        assert bare.take(1, 0) == 0
        capped = Capped(bare, 0, 0, S)

        assert capped.take(1, now, since=now - S // 50) <= now

        assert capped.peek(1, now) == due


@pytest.mark.parametrize("when", [0, 1, S])
def test_a_returned_grant_is_left_again(when: int) -> None:
    """By receipt: a cancelled request was not sent."""
    capped = Capped(full(), 1, 0, 5 * S)
    assert capped.take(1, when) == when

    capped.give_back(1, when, taken=when)

    assert [when, 5 * S] == [capped.take(1, when), capped.take(1, when)]


def test_a_grant_from_before_the_cap_does_not_raise_it() -> None:
    """Or every cancellation would raise what the server allowed. At the same instant, the credit is at most what was taken since."""
    for taken in (0, S):
        bare = full()
        assert bare.take(1, taken) == taken
        capped = Capped(bare, 1, S, 5 * S)

        capped.give_back(1, S, taken=taken)

        assert [S, 5 * S] == [capped.take(1, S), capped.take(1, S)]


def test_a_refund_fills_the_bucket_and_not_the_servers_window() -> None:
    """Without a receipt it is not known whether the server counted it."""
    capped = Capped(full(), 1, 0, 5 * S)
    assert capped.take(1, 0) == 0

    capped.give_back(1, 0)

    assert capped.take(1, 0) == 5 * S
    assert capped.inner.peek(10, 0) == 0


def test_a_charge_is_owed_to_the_strategy_alone() -> None:
    """The server itself tells the effect on its window."""
    capped = Capped(full(), 3, 0, 5 * S)

    capped.charge(9, 0)

    assert [0, S // 10, 2 * S // 10, 5 * S] == [capped.take(1, at) for at in (0, S // 10, 2 * S // 10, 3 * S // 10)]


def test_available_is_the_lesser() -> None:
    """The figure of `statistics()`."""
    capped = Capped(full(), 3, 0, 5 * S)
    assert [3, 3, 10] == [capped.available(0), capped.available(S), capped.available(5 * S)]
    capped.take(2, 0)
    assert capped.available(0) == 1
    assert Capped(full(2), 3, 0, 5 * S).available(0) == 2


def test_a_pause_does_not_move_the_end_of_the_servers_window() -> None:
    """The limiter's time stood still for 3 s, and the server's did not."""
    capped = Capped(full(), 1, 0, 5 * S)
    assert capped.take(1, 0) == 0

    capped.shift(3 * S)

    assert capped.peek(1, 0) == 2 * S


def test_reset_forgets_what_the_server_said() -> None:
    """A new limiter would not know it."""
    capped = Capped(full(), 0, 0, 5 * S)

    capped.reset(S)

    assert [S] * 10 == [capped.take(1, S) for _ in range(10)]


@pytest.mark.parametrize("name", EACH)
def test_all_other_answers_are_the_strategys(name: str) -> None:
    """The guarantee, the rate and the largest request are those of the strategy that the user chose."""
    bare, capped = EACH[name](), Capped(EACH[name](), 3, 0, 5 * S)

    assert bare.rate == capped.rate
    assert bare.max_permits == capped.max_permits
    assert bare.books_since == capped.books_since
    assert len(bare.members) == len(capped.members)
    assert bare.bound(S) == capped.bound(S)
    assert bare.bound_when_late(S, 1, S) == capped.bound_when_late(S, 1, S)
    assert bare.lag(S) == capped.lag(S)
    assert bare.spilled == capped.spilled
    assert repr(bare) == repr(capped)
    capped.restart(S)
    bare.restart(S)
    assert bare.peek(1, 9 * S) == capped.peek(1, 9 * S)


CAPS: dict[str, Callable[[Scheduler], Scheduler]] = {
    "few": lambda inner: Capped(inner, 3, 0, 2 * S),
    "none": lambda inner: Capped(inner, 0, 0, S),
    "two": lambda inner: _with(Capped(inner, 2, 0, S // 2), (5, 3 * S)),
    "bucket": lambda inner: _bucket(Capped(inner)),
}


def _bucket(capped: Capped) -> Capped:
    assert capped.refill("a bucket of 7", 2, 7, 4 * S, 0, 0)
    return capped


def _with(capped: Capped, *quotas: tuple[int, int]) -> Capped:
    for left, until in quotas:
        capped.lower(left, 0, until)
    return capped


TRIED = [("TokenPool", "two", 10), ("SlidingWindow", "two", 10), ("SmoothBursty", "none", 10)]
TRIED += [("TokenPool", "bucket", 10), ("SlidingWindow", "bucket", 10)]
TRIED += [pytest.param(name, cap, 40, marks=pytest.mark.slow) for name in EACH for cap in ("two", "bucket")]


@pytest.mark.parametrize("law", [law for law in LAWS if law.__name__ in UNDER_ANY_CAP], ids=lambda law: law.__name__)
@pytest.mark.parametrize(("name", "cap", "examples"), TRIED)
def test_the_laws_hold_under_a_cap(name: str, cap: str, examples: int, law: Callable[..., None]) -> None:
    """A cap is one more reason to refuse, and refusals obey the laws."""
    run_law(law, lambda: CAPS[cap](EACH[name]()), examples)


@pytest.mark.parametrize("name", ["TokenPool", "TokenBucket", "SlidingWindow"])
def test_all_laws_hold_once_the_cap_has_ended(name: str) -> None:
    """It may stay around the strategy while requests wait."""
    check_scheduler(lambda: Capped(EACH[name](), 3, -(10**30), -(10**29)), examples=3)


@pytest.mark.parametrize("name", EACH)
def test_a_copy_changes_nothing_in_the_original(name: str) -> None:
    """An estimate uses such a copy."""
    capped = Capped(EACH[name](), 2, 0, 5 * S)
    copy = deepcopy(capped)

    simulate(copy, [0] * 4)

    assert [2, None] == [capped.left(0), capped.left(5 * S)]
