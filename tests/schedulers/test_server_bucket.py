"""ServerBucket: one level from what the server said and what was taken here. Under a strategy that never refuses."""

from __future__ import annotations

import tracemalloc

import pytest
from helpers.transcripts import S

from aiorate import BurstRatio, Scheduler, SlidingWindow, TicksAccumulator, TokenBucket, TokenPool
from aiorate.schedulers.capped import Capped


def plenty() -> TokenBucket:
    return TokenBucket("1000000/s", burst=1_000_000)


def told(left: int, size: int = 60, full_in: int | None = None, now: int = 0) -> Capped:
    """By default it refills at 1 per second."""
    capped = Capped(plenty())
    tell(capped, left, size, full_in, now)
    return capped


def tell(capped: Capped, left: int, size: int = 60, full_in: int | None = None, now: int = 0) -> None:
    assert capped.refill("requests", left, size, (size - left) * S if full_in is None else full_in, now, now)


def test_it_refills_and_is_never_more_than_full() -> None:
    """To the nanosecond: (60 - 10) in 50 s."""
    capped = told(10)

    assert [10, 10, 11, 59, 60, 60] == [capped.left(at) for at in (0, S - 1, S, 50 * S - 1, 50 * S, 99 * S)]
    assert [0, S, 50 * S, 50 * S] == [capped.peek(permits, 0) for permits in (10, 11, 60, 61)]


@pytest.mark.parametrize(("said", "left"), [(59, 50), (55, 50), (50, 50), (45, 45)])
def test_the_level_stays_while_the_servers_word_allows_it(said: int, left: int) -> None:
    """10 of 60 were just taken, and the server may have counted some of them, all or none."""
    capped = told(50)
    assert capped.take(10, 20 * S) == 20 * S

    tell(capped, said, now=20 * S)

    assert left == capped.left(20 * S)


@pytest.mark.parametrize(("passed", "left"), [(0, 10), (1, 11), (4, 14), (6, 16), (9, 19), (11, 58), (100, 59)])
def test_recent_grants_may_still_be_on_their_way(passed: int, left: int) -> None:
    """50 were taken of 60, and the server says 58: it has not seen them yet. Those of 10 s ago it has."""
    capped = told(1)
    assert capped.take(50, 70 * S) == 70 * S
    now = (70 + passed) * S

    tell(capped, 59 if passed == 100 else 58, now=now)

    assert left == capped.left(now)


def test_in_the_first_seconds_a_word_raises_nothing() -> None:
    """Grants before the first word are not known, and may be on their way too."""
    capped = told(10)
    tell(capped, 50, now=4 * S)
    assert 14 == capped.left(4 * S)

    tell(capped, 50, now=5 * S)

    assert 50 == capped.left(5 * S)


def test_another_size_and_time_count_the_same_level() -> None:
    """A permit is a permit, however fast the bucket fills."""
    capped = told(20)

    tell(capped, 50, 60, 2 * S)

    assert [20, 25] == [capped.left(at) for at in (0, S)]


def test_a_returned_grant_is_not_on_its_way() -> None:
    """It was cancelled, and the server will never see it."""
    capped = told(1)
    assert capped.take(40, 70 * S) == 70 * S
    tell(capped, 5, now=71 * S)

    capped.give_back(40, 72 * S, taken=70 * S)
    assert 6 == capped.left(72 * S)
    tell(capped, 50, now=72 * S)

    assert 50 == capped.left(72 * S)


@pytest.mark.parametrize("taken", [0, S // 2, S])
def test_returns_of_grants_before_the_word_add_nothing(taken: int) -> None:
    """Not even at the very instant of the word, where the order is not known."""
    capped = Capped(plenty())
    assert capped.take(5, taken) == taken
    tell(capped, 10, now=S)

    capped.give_back(5, S, taken=taken)

    assert 10 == capped.left(S)


def test_returns_of_the_words_instant_are_those_taken_since() -> None:
    """Once only."""
    capped = told(10)
    assert capped.take(3, 0) == 0

    lefts = []
    for _ in range(3):
        capped.give_back(2, 0, taken=0)
        lefts.append(capped.left(0))

    assert [9, 10, 10] == lefts


def test_returns_that_would_have_spilled_add_nothing() -> None:
    """Not more than if it had never been taken: the bucket would have been full 2 permits before the next take."""
    capped = told(1, 10, 9 * S)
    assert capped.take(5, 20 * S) == 20 * S
    assert capped.take(8, 23 * S) == 23 * S

    lefts = []
    for permits in (1, 2, 2):
        capped.give_back(permits, 23 * S, taken=20 * S)
        lefts.append(capped.left(23 * S))

    assert [1, 2, 2] == lefts


def test_a_pause_lets_requests_arrive() -> None:
    """The limiter's time stands still for 10 s; the server's and the network's go on."""
    capped = told(1)
    assert capped.take(1, 0) == 0

    capped.shift(10 * S)
    tell(capped, 50)

    assert 50 == capped.left(0)


def test_a_request_that_waited_for_the_bucket_was_not_late() -> None:
    """Booked from the instant at which the bucket had the permit, or the next would come sooner than the interval."""
    for now in (S, S + S // 50):
        bare = TokenBucket("10/s", burst=1)
        assert bare.take(1, 0) == 0
        capped = Capped(bare)
        assert capped.refill("requests", 0, 10, 10 * S, 0, 0)

        assert capped.take(1, now, since=S - S // 50) <= now

        assert bare.peek(1, now) == S + S // 10


@pytest.mark.parametrize(
    ("scheduler", "lowers"),
    [
        (TokenBucket("1/s", burst=60), False),
        (TokenBucket("1/s", burst=61), True),
        (TokenBucket("11/10s", burst=1), True),
        (TokenPool("1/2s"), False),
        (TokenPool("1/2s", burst_ratio=4), True),
        (BurstRatio("1/2s", 4), True),
        (SlidingWindow("60/min"), False),
        (SlidingWindow("61/min"), True),
        (TicksAccumulator("1/h"), True),
    ],
    ids=repr,
)
def test_a_word_ends_once_the_strategy_is_the_slower(scheduler: Scheduler, lowers: bool) -> None:
    """Once the bucket is full: 60 at once, and 1 per second."""
    capped = Capped(scheduler)
    tell(capped, 59)

    assert [False, not lowers] == [capped.ended(at) for at in (S - 1, S)]


def test_invented_names_cost_no_memory() -> None:
    """Each response could bring another name."""
    capped = told(1)
    tracemalloc.start()
    for name in range(3000):
        assert capped.refill(f"{name}", 50, 60, S, 0, 0)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert grown < 100_000


@pytest.mark.parametrize("word", [(60, 60, S), (61, 60, S), (0, 0, S), (1, 60, 0)])
def test_a_first_word_without_a_rate_changes_nothing(word: tuple[int, int, int]) -> None:
    """A full bucket does not say how fast it fills."""
    capped = Capped(plenty())

    assert not capped.refill("requests", *word, 0, 0)

    assert capped.left(0) is None


def test_a_bucket_without_a_size_changes_nothing() -> None:
    """Not even if a size was told before."""
    capped = told(10)

    assert not capped.refill("requests", 0, 0, S, 0, 0)

    assert 10 == capped.left(0)


@pytest.mark.parametrize(
    ("word", "left", "later"), [((60, 60, S), 60, 60), ((61, 60, 0), 60, 60), ((5, 5, 0), 5, 5), ((30, 60, 0), 30, 31)]
)
def test_a_later_word_without_a_rate_keeps_the_rate(word: tuple[int, int, int], left: int, later: int) -> None:
    """It still tells the level and the size."""
    capped = told(0, 60, 60 * S)

    assert capped.refill("requests", *word, 20 * S, 20 * S)

    assert (left, later) == (capped.left(20 * S), capped.left(21 * S))


def test_a_bucket_that_shrank_to_nearly_nothing_can_be_asked() -> None:
    """It fills within a nanosecond."""
    capped = told(0, 60_000, 1)
    capped.refill("requests", 1, 1, 0, S, S)

    assert not capped.ended(S)
