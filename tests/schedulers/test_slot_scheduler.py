"""SlotScheduler: slots that a store assigned, granted when they are due, gathered, given back, and lapsed. All instants are exact."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest

from aiorate import Rate
from aiorate.schedulers.interface import NOBODY_KNOWS
from aiorate.schedulers.next_free import NextFree
from aiorate.schedulers.slot_scheduler import SlotScheduler
from aiorate.testing.histories import Trial
from aiorate.testing.laws import LAWS, giving_back_leaves_no_trace, run_law

MS = 1_000_000
SECOND = 1_000 * MS
SLACK = 5 * MS
NOW = 100 * SECOND


class Teller:
    """A link that passes on what it is told."""

    def __init__(self, wanted: Callable[[int], bool] = lambda now: False, charged: Callable[[int], None] = lambda permits: None) -> None:
        self.wanted, self.charged = wanted, charged


def booked(*rates: str, burst: int = 1, slots: int = 0, start: int = NOW) -> SlotScheduler:
    """With ``slots`` in hand, the first at ``start``."""
    each = [Rate.parse(rate) for rate in rates or ("1000/s",)]
    scheduler = SlotScheduler(each, [burst] * len(each), SLACK)
    scheduler.receipts = False
    if slots:
        scheduler.book([start] * len(each), slots, NOW, [start + slots * max(rate.interval_ns for rate in each)] * len(each), MS)
    return scheduler


def granted(scheduler: SlotScheduler, until: int, permits: int = 1, step: int = MS // 4) -> list[float]:
    """The ms after `NOW` at which a caller that asks all the time is granted."""
    return [(now - NOW) / MS for now in range(NOW, NOW + until, step) if scheduler.take(permits, now) <= now]


def test_slots_are_granted_when_they_are_due() -> None:
    """Each once, at its own instant."""
    assert [0, 1, 2] == granted(booked(slots=3), 10 * MS)


def test_slots_at_a_fractional_interval_are_never_early() -> None:
    """A third of a second is rounded up, for each slot by itself."""
    scheduler = booked("3/s", slots=4)
    dues = []
    for _ in range(4):
        dues.append(at := scheduler.peek(1, NOW))
        assert at > NOW + 10**9 or scheduler.take(1, at - 1) > at - 1
        scheduler.take(1, at)

    assert [0, 333_333_334, 666_666_667, 1_000_000_000] == [due - NOW for due in dues]


def test_slots_of_a_burst_are_due_and_lapse_from_their_arrival() -> None:
    """Those of a burst."""
    scheduler = booked(burst=3, slots=3, start=NOW - 2 * MS)
    assert 3 == scheduler.available(NOW)
    assert 0 == scheduler.ready(1, NOW + SLACK + MS)

    assert [0, 0.25, 0.5] == granted(scheduler, 10 * MS)


def test_a_slot_lapses_after_the_slack() -> None:
    """Or a loop that stood still would send at once what it had missed."""
    scheduler = booked(slots=10)

    at = NOW + 7 * MS
    assert [2, 3, 4, 5, 6, 7] == [(scheduler.take(1, at) - NOW) // MS for _ in range(6)]
    assert at < scheduler.take(1, at)
    assert 2 * MS == scheduler.lapsed


def test_slots_that_a_large_request_gathers_do_not_lapse() -> None:
    """Ten permits take ten slots, and the first is twice as old as the slack by then."""
    assert [9, 19] == granted(booked(slots=20), 30 * MS, permits=10, step=MS)


def test_slots_are_gathered_for_one_request_only() -> None:
    """Slots that lapsed before it came are not hoarded for the next large one: the bound counts the largest once."""
    scheduler = booked(slots=20)

    assert [] == granted(scheduler, 1, permits=4)
    at = NOW + 40 * MS
    assert 3 == scheduler.ready(4, at)
    scheduler.book([at], 1, at, [at + MS], MS)
    assert [at, at + 1] == [scheduler.take(4, at), min(at + 1, scheduler.take(4, at))]


def test_a_request_that_another_limit_holds_up_keeps_its_slots() -> None:
    """Or a key behind a shared limit would lose its own slot each time it waits for the other."""
    scheduler = booked(slots=3)
    scheduler.patient = True

    assert NOW + 2 * MS == scheduler.take(1, NOW + SECOND)
    assert NOW + SECOND < scheduler.take(1, NOW + SECOND)


def test_slots_come_back_by_receipt_to_where_they_were() -> None:
    """A caller that was granted and cancelled: the next in line has the very slot."""
    scheduler = booked(slots=4)
    scheduler.take(1, NOW, NOW)
    scheduler.take(2, NOW + 2 * MS, NOW)
    scheduler.take(1, NOW + 3 * MS, NOW)

    scheduler.give_back(1, NOW + 3 * MS, NOW)
    scheduler.give_back(1, NOW + 3 * MS, NOW + 3 * MS)
    assert [0, 3] == [(scheduler.take(1, NOW + 4 * MS) - NOW) // MS for _ in range(2)]


def test_part_of_a_request_comes_back() -> None:
    """The latest of its slots."""
    scheduler = booked(slots=5)
    scheduler.take(4, NOW + 3 * MS, NOW)

    scheduler.give_back(3, NOW + 3 * MS, NOW + 3 * MS)
    assert 4 == scheduler.ready(1, NOW + 3 * MS)
    assert [1, 2, 3, 4] == [(scheduler.take(1, NOW + 4 * MS) - NOW) // MS for _ in range(4)]


def test_slots_that_come_back_late_have_lapsed() -> None:
    """A receipt makes nobody's slot older than the slack."""
    scheduler = booked(slots=2)
    scheduler.take(1, NOW, NOW)

    scheduler.give_back(1, NOW + SECOND, NOW)
    assert NOW + SECOND < scheduler.take(1, NOW + SECOND)


def test_a_refund_brings_no_slot_back() -> None:
    """Nobody knows which it was, and it has delayed others already."""
    scheduler = booked(slots=1)
    scheduler.take(1, NOW)

    scheduler.give_back(1, NOW)
    assert 0 == scheduler.ready(1, NOW)


def test_several_rates_make_slots_that_all_allow() -> None:
    """The faster rate rules as long as the slower has a burst left, and exactly from where it has none."""
    rates = [Rate.parse("10/s"), Rate.parse("1/s")]
    scheduler = SlotScheduler(rates, [1, 5], SLACK)
    scheduler.book([NOW, NOW - 4 * SECOND], 8, NOW, [NOW + SECOND, NOW + 4 * SECOND], MS)

    dues = [scheduler.peek(count, NOW) - NOW for count in range(1, 9)]
    assert [0, 100, 200, 300, 400, 1000, 2000, 3000] == [due // MS for due in dues]


# Slots that are not in hand.


def test_wanted_is_called_once_until_an_answer_comes() -> None:
    """And nobody is woken by a timer for what the answer tells."""
    told: list[int] = []
    scheduler = booked()
    scheduler.link = Teller(lambda now: told.append(now) is None)

    assert NOBODY_KNOWS == scheduler.take(1, NOW)
    assert NOBODY_KNOWS == scheduler.take(1, NOW + MS)
    scheduler.book([NOW], 1, NOW, [NOW + MS], MS)
    assert NOW == scheduler.take(1, NOW)
    assert NOBODY_KNOWS == scheduler.take(1, NOW + 2 * MS)
    assert [NOW, NOW + 2 * MS] == told


def test_a_request_looks_again_if_the_link_does_not_ask() -> None:
    """Without an event loop nobody asks the store."""
    scheduler = booked()
    scheduler.link = Teller(lambda now: False)

    assert NOW < scheduler.take(1, NOW) < NOW + SECOND


def test_a_lease_asks_before_the_last_slot_is_gone() -> None:
    """So that nobody waits for the store."""
    told: list[int] = []
    scheduler = booked("1/ns", slots=10)
    scheduler.link = Teller(lambda now: told.append(scheduler.in_hand) is None)
    scheduler.ask_below(5)
    for _ in range(8):
        scheduler.take(1, NOW + 100)

    assert [5] == told


def test_an_estimate_begins_where_the_store_stands() -> None:
    """What others have booked is known from the last answer, and an answer takes its time."""
    scheduler = booked()
    assert NOW + MS == scheduler.peek(1, NOW)
    scheduler.book([NOW], 0, NOW, [NOW + 50 * MS], 2 * MS)

    assert NOW + 50 * MS == scheduler.peek(1, NOW)
    assert NOW + 52 * MS == scheduler.peek(3, NOW)
    assert NOW + 92 * MS == scheduler.peek(1, NOW + 90 * MS)


def test_a_charge_is_told_and_counts_in_estimates_at_once() -> None:
    """A question about the wait does not wait for the store."""
    told: list[int] = []
    scheduler = booked()
    scheduler.book([NOW], 0, NOW, [NOW], MS)
    scheduler.link = Teller(charged=told.append)
    scheduler.charge(100, NOW)

    assert NOW + 100 * MS == scheduler.peek(1, NOW)
    assert [100] == told


def test_a_pause_does_not_move_the_slots() -> None:
    """The limiter's time stands still, the store's does not."""
    scheduler = booked(slots=10)
    scheduler.shift(4 * MS)

    assert NOW - 4 * MS == scheduler.take(1, NOW)


@pytest.mark.parametrize("burst", [1, 3])
@pytest.mark.parametrize("rates", [("10/s",), ("10/s", "30/10s"), ("7/s", "3/s", "1/250ms")])
@pytest.mark.parametrize("law", [law for law in LAWS if law is not giving_back_leaves_no_trace], ids=lambda law: law.__name__)
def test_a_rehearsal_keeps_the_laws(law: Callable[[Trial], None], rates: tuple[str, ...], burst: int) -> None:
    """A copy assumes that all further slots are its own: then it is a scheduler as any other, but nothing comes back to it."""

    def rehearsal() -> SlotScheduler:
        return deepcopy(booked(*rates, burst=burst))

    run_law(law, rehearsal, 6)


@pytest.mark.parametrize("burst", [1, 4])
def test_its_part_of_the_rate_is_what_it_says(burst: int) -> None:
    """While the store is away: from nothing, up to the burst, in whole ticks."""
    local = NextFree([Rate.parse("3/s")], [burst], [NOW])
    dues = []
    for _ in range(4):
        dues.append(at := local.at(1, NOW))
        local.spend(1, at)

    assert [0, 333_333_334, 666_666_667, 1_000_000_000] == [due - NOW for due in dues]
    later = NOW + 60 * SECOND
    for _ in range(burst):
        assert later == local.at(1, later)
        local.spend(1, later)
    assert later < local.at(1, later)


def test_the_bound_is_the_printed_formula() -> None:
    """b + R (W + slack), and the largest request more."""
    scheduler = booked("1000/s", burst=5)

    assert 5 + 1_005 == scheduler.bound(SECOND)
    assert 5 + 1_005 + 10 == scheduler.bound(SECOND, 10)


def test_reset_and_set_rate_of_several_are_refused() -> None:
    """The store would not know of it."""
    with pytest.raises(RuntimeError, match="Use another name"):
        booked().reset(NOW)
    with pytest.raises(RuntimeError, match="one of several rates"):
        booked("10/s", "1/s").set_rate(Rate.parse("5/s"), NOW)


def test_it_lags_by_as_much_as_its_first_slot_is_late() -> None:
    """Without a slot in hand nobody can say, and a slot that is yet to come is on time."""
    scheduler = booked(slots=3, start=NOW + MS)

    assert [0, 0, 2 * MS] == [scheduler.lag(NOW + ms * MS) for ms in (0, 1, 3)]
    assert 0 == booked().lag(NOW)


def test_a_charge_needs_no_link() -> None:
    """A scheduler by itself may be charged, as any other."""
    scheduler = booked(slots=2)
    scheduler.charge(1, NOW)

    assert [0, 1] == granted(scheduler, 10 * MS)


def test_an_answer_under_way_is_as_far_away_after_a_pause() -> None:
    """The store was asked before the limiter's time stood still, and its own time went on."""
    scheduler = booked()
    scheduler.book([NOW], 0, NOW, [NOW], 10 * MS)
    scheduler.link = Teller(lambda now: True)
    scheduler.take(1, NOW)
    assert NOW + 10 * MS == deepcopy(scheduler).peek(1, NOW)

    scheduler.shift(4 * MS)
    assert NOW + 6 * MS == deepcopy(scheduler).peek(1, NOW)
    twin = deepcopy(scheduler)
    twin.shift(2 * MS)
    assert NOW + 4 * MS == twin.peek(1, NOW)


def test_a_rehearsal_has_the_slots_of_every_answer() -> None:
    """Two answers left a gap between them: it is the same in the copy, and what the copy grants is not granted here."""
    scheduler = booked(slots=2)
    scheduler.book([NOW + 10 * MS], 2, NOW, [NOW + 12 * MS], MS)
    twin = deepcopy(scheduler)

    assert [0, 1, 10, 11, 12] == granted(twin, 13 * MS)
    assert 4 == scheduler.in_hand
    assert [0, 1, 10, 11] == granted(scheduler, 13 * MS)


def test_a_lease_asks_when_a_request_for_several_leaves_little() -> None:
    """As it does for one."""
    told: list[int] = []
    scheduler = booked("1/ns", slots=10)
    scheduler.link = Teller(lambda now: told.append(scheduler.in_hand) is None)
    scheduler.ask_below(5)

    assert scheduler.take(4, NOW + 100) <= NOW + 100
    assert [] == told
    assert scheduler.take(3, NOW + 100) <= NOW + 100
    assert [3] == told


def test_nobody_can_estimate_while_the_policy_refuses() -> None:
    """peek() raises nothing; take() raises the error of the policy."""

    class Refused:
        def at(self, permits: int, now: int) -> int:
            raise ConnectionError("gone")

        def spend(self, permits: int, now: int) -> None:
            raise AssertionError("nothing was granted")

    scheduler = booked(slots=1)
    scheduler.fallback = Refused()

    assert NOW == scheduler.peek(1, NOW)
    assert NOBODY_KNOWS == scheduler.peek(2, NOW)
    with pytest.raises(ConnectionError, match="gone"):
        scheduler.take(2, NOW)
    assert NOW == scheduler.take(1, NOW)
