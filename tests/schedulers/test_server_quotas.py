"""What a server said about its own limit, around the user's strategy: a number until an instant, or a bucket that it refills."""

from __future__ import annotations

import random

from helpers.capped import Capped
from helpers.strategies import EACH
from helpers.transcripts import S

from aiorate import Limiter, TokenBucket
from aiorate._schedulers.server_quotas import ServerQuotas
from aiorate.http import Feedback, Quota
from aiorate.testing import ManualClock, simulate


def full(burst: int = 10) -> TokenBucket:
    return TokenBucket("10/s", burst=burst)


def test_what_is_left_is_granted_and_more_only_at_the_reset() -> None:
    """Three of ten; the rest of the bucket waits for the server's window to end. It names no instant before the strategy does."""
    assert simulate(Capped(full(), 3, 0, 30 * S), [0] * 5) == [0, 0, 0, 30 * S, 30 * S]
    assert simulate(Capped(full(), 0, 0, 5 * S), [0, S]) == [5 * S, 5 * S]
    assert simulate(Capped(TokenBucket("1/10s", burst=1), 1, 0, S), [0, 0]) == [0, 10 * S]
    assert simulate(Capped(full(), 0, 0, S), [S] * 12) == simulate(full(), [S] * 12)  # from its end on, it has no effect


def test_a_request_for_more_than_is_left_waits_and_leaves_it() -> None:
    """All or nothing: three are left, five are asked for, and the three can still be granted."""
    capped = Capped(full(), 3, 0, 5 * S)
    assert capped.take(5, 0) == capped.peek(5, S) == 5 * S
    assert [capped.take(3, 0), capped.take(1, 0), capped.take(5, 5 * S)] == [0, 5 * S, 5 * S]


def test_a_second_a_minute_and_a_day_hold_side_by_side() -> None:
    """One left of this second does not become one left of this day, and the day is not forgotten with the second."""
    quotas = [(1, S), (3, 60 * S), (5, 86_400 * S)]
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        capped = Capped(full(), quotas[order[0]][0], 0, quotas[order[0]][1])
        for place in order[1:]:
            capped.lower(quotas[place][0], 0, quotas[place][1])
        assert simulate(capped, [0] * 7) == [0, S, S, 60 * S, 60 * S, 86_400 * S, 86_400 * S]


def test_an_earlier_cap_holds_until_its_own_end() -> None:
    """Responses overtake each other: one that promises more, for as long or less, changes nothing."""
    capped = Capped(full(), 2, 0, 5 * S)
    for left, until, kept in ((2, 5 * S, 2), (9, 5 * S, 2), (3, S, 2), (1, 5 * S, 1)):
        capped.lower(left, 0, until)
        assert kept == capped.left(0)
    assert [capped.take(1, 0), capped.take(1, 0)] == [0, 5 * S]


def test_permits_in_flight_may_not_be_counted() -> None:
    """49 left and 19 in flight are 30. Words that agree with that keep it, until the later end; others used what a word does not have."""
    capped = Capped(full(1_000))
    for left, until, in_flight in (49, 60, 19), (48, 61, 19), (30, 61, 0):
        capped.lower(left, 0, until * S, in_flight)
    assert (capped.left(0), capped.left(61 * S)) == (30, None)
    capped.lower(25, 0, 61 * S, 10)
    assert [capped.left(0), capped.take(15, 0), capped.take(1, 0)] == [15, 0, 61 * S]

    lost = Capped(full(1_000))  # 100 never arrive: one may go, and a later response gives the others back
    assert [lost.lower(99, 0, 60 * S, 100), lost.left(0), lost.take(1, 0)] == [None, 1, 0]
    assert [lost.lower(50, 0, 60 * S, 90), lost.lower(98, 0, 60 * S), lost.left(0)] == [None, None, 50]

    capped.refill("requests", 49, 50, S, 61 * S, 61 * S, 0, 19)  # a bucket fills at the rate that was told
    assert [capped.left(at) for at in (61 * S, 62 * S)] == [30, 31]
    for left, in_flight, kept in ((49, 30, 30), (30, 0, 30), (20, 5, 15)):
        capped.refill("requests", left, 50, (50 - left) * S, 61 * S, 61 * S, 0, in_flight)
        assert kept == capped.left(61 * S)


def test_none_of_very_many_caps_is_exceeded() -> None:
    """Some of two hundred different responses become one, and gain no permit."""
    dice = random.Random("many")
    capped, now, said, granted = Capped(full(1_000), 1_000, 0, S), 0, [], []
    for _ in range(200):
        now += dice.randrange(S // 50)
        left, until = dice.randrange(60), now + dice.choice((S // 10, S, 9 * S)) + dice.randrange(S // 100)
        capped.lower(left, now, until)
        said.append((left, now, until))
        granted += [(len(said), now)] * sum(capped.take(1, now) <= now for _ in range(dice.randrange(4)))
    for number, (left, _, until) in enumerate(said, 1):
        assert sum(when >= number and at < until for when, at in granted) <= left


def test_a_request_that_waited_for_the_server_was_not_late() -> None:
    """Booked from the reset, or the next would come sooner than the interval. A late timer still costs nothing."""
    for refills in (False, True):
        for now in (S, S + S // 50):
            bare = full(1)
            assert bare.take(1, 0) == 0
            capped = Capped(bare) if refills else Capped(bare, 0, 0, S)
            if refills:
                capped.refill("requests", 0, 10, 10 * S, 0, 0)
            assert capped.take(1, now, since=S - S // 50) <= now
            assert capped.peek(1, now) == bare.peek(1, now) == S + S // 10 or refills


def test_a_returned_grant_is_left_again() -> None:
    """By receipt: a cancelled request was not sent. One from before the cap does not raise it, or every cancellation would."""
    for when in (0, 1, S):
        capped = Capped(full(), 1, 0, 5 * S)
        assert capped.take(1, when) == when
        capped.give_back(1, when, taken=when)
        assert [capped.take(1, when), capped.take(1, when)] == [when, 5 * S]
    for taken in (0, S):
        bare = full()
        assert bare.take(1, taken) == taken
        capped = Capped(bare, 1, S, 5 * S)
        capped.give_back(1, S, taken=taken)
        assert [capped.take(1, S), capped.take(1, S)] == [S, 5 * S]


def test_refunds_and_charges_are_the_strategys_alone() -> None:
    """Without a receipt it is not known whether the server counted it; and the server itself tells the effect of a charge."""
    refunded, charged = Capped(full(), 1, 0, 5 * S), Capped(full(), 3, 0, 5 * S)
    refunded.take(1, 0)
    refunded.give_back(1, 0)
    charged.charge(9, 0)
    assert (refunded.take(1, 0), refunded.inner.peek(10, 0)) == (5 * S, 0)
    assert [charged.take(1, at * S // 10) for at in range(4)] == [0, S // 10, 2 * S // 10, 5 * S]


def test_a_cap_shows_in_what_is_available() -> None:
    """A pause does not move its end: the limiter's time stood still, the server's did not. A reset forgets it."""
    capped = Capped(full(), 3, 0, 5 * S)
    assert [capped.available(at * S) for at in (0, 1, 5)] == [3, 3, 10]
    assert capped._standings(0) == [(10, full().rate, 3, 5 * S)]
    capped.take(2, 0)
    assert capped.available(0) == 1
    assert Capped(full(2), 3, 0, 5 * S).available(0) == 2
    capped._shift(3 * S)
    assert capped.peek(2, 0) == 2 * S


def test_the_strategy_stays_the_users() -> None:
    """Its rate, guarantee and largest request are those that the user chose, and changes reach it. A reset forgets what was said."""
    for name, make in EACH.items():
        strategy = make()
        limiter = Limiter(strategy, clock=ManualClock())
        limiter.observe(Feedback(200, quotas=(Quota(remaining=0, reset=5),)))
        assert (limiter.scheduler, limiter.rate, limiter.try_acquire()) == (strategy, strategy.rate, False), name
        assert limiter.bound(1.0) == Limiter(make(), clock=ManualClock()).bound(1.0)
        if not strategy.members:
            limiter.set_rate("50/s")
            assert strategy.rate.per_second == 50
        limiter.reset()
        assert limiter.try_acquire(), name


# A bucket: one level from what the server said and what was taken here.


def told(left: int, size: int = 60, full_in: int | None = None) -> Capped:
    """By default it refills at 1 per second, under a strategy that never refuses."""
    capped = Capped(TokenBucket("1000000/s", burst=1_000_000))
    tell(capped, left, size, full_in)
    return capped


def tell(capped: Capped, left: int, size: int = 60, full_in: int | None = None, now: int = 0) -> None:
    capped.refill("requests", left, size, (size - left) * S if full_in is None else full_in, now, now)


def test_it_refills_and_is_never_more_than_full() -> None:
    """To the nanosecond: (60 - 10) in 50 s. A later word with another size counts the same level."""
    capped = told(10)
    assert [capped.left(at) for at in (0, S - 1, S, 50 * S - 1, 50 * S, 99 * S)] == [10, 10, 11, 59, 60, 60]
    assert [capped.peek(permits, 0) for permits in (10, 11, 60, 61)] == [0, S, 50 * S, 50 * S]
    capped = told(20)
    tell(capped, 50, 60, 2 * S)
    assert [capped.left(at) for at in (0, S)] == [20, 25]


def test_grants_that_the_server_may_not_have_seen_count() -> None:
    """10 of 60 were just taken, and it may have counted some of them, all or none. Those of 10 s ago it has seen."""
    for said, left in [(59, 50), (55, 50), (50, 50), (45, 45)]:
        capped = told(50)
        assert capped.take(10, 20 * S) == 20 * S
        tell(capped, said, now=20 * S)
        assert capped.left(20 * S) == left
    for passed, left in [(0, 10), (1, 11), (4, 14), (6, 58), (11, 58), (100, 59)]:
        capped = told(1)
        assert capped.take(50, 70 * S) == 70 * S
        tell(capped, 58, now=70 * S)
        now = (70 + passed) * S
        tell(capped, 59 if passed == 100 else 58, now=now)
        assert capped.left(now) == left, passed


def test_a_return_adds_no_more_than_was_taken_since_the_word() -> None:
    """A cancelled request is not on its way. What was taken before the word adds nothing."""
    capped = told(1)
    assert capped.take(40, 70 * S) == 70 * S
    tell(capped, 5, now=71 * S)
    capped.give_back(40, 72 * S, taken=70 * S)
    assert capped.left(72 * S) == 6
    tell(capped, 50, now=76 * S)
    assert capped.left(76 * S) == 50

    same = told(10)  # the instant of the word: once only
    assert same.take(3, 0) == 0
    lefts = []
    for _ in range(3):
        same.give_back(2, 0, taken=0)
        lefts.append(same.left(0))
    assert lefts == [9, 10, 10]


def test_words_without_a_rate_keep_the_rate() -> None:
    """A full bucket does not say how fast it fills: a first word like that changes nothing. A pause lets requests arrive."""
    capped = Capped(full())
    for word in [(60, 60, S), (61, 60, S), (0, 0, S), (1, 60, 0)]:
        capped.refill("requests", *word, 0, 0)
        assert capped.left(0) is None
    for word, left, later in [((60, 60, S), 60, 60), ((61, 60, 0), 60, 60), ((5, 5, 0), 5, 5), ((30, 60, 0), 30, 31)]:
        capped = told(0, 60, 60 * S)
        capped.refill("requests", *word, 20 * S, 20 * S)
        assert (capped.left(20 * S), capped.left(21 * S)) == (left, later)
    paused = told(1)
    assert paused.take(1, 0) == 0
    paused._shift(10 * S)
    tell(paused, 50)
    assert paused.left(0) == 49


def test_of_too_many_windows_the_last_two_become_one() -> None:
    quotas = ServerQuotas(TokenBucket(10**6, burst=10**6))
    for number in range(10, 340, 10):
        quotas.lower(number, 0, number * S)

    assert [10 * S, 310 * S, 330 * S] == [quotas.peek(permits, 0) for permits in (11, 311, 321)]
