"""The script that books reservations, run by a real server that is told what time it is. Figures are exact, in us."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.stores import TIMED_BOOKINGS, RealServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiorate import Rate
from aiorate.redis.booking_script import BOOKINGS, MOST_NUMBERS, BookingAnswer, BookingQuestion, Limits, read_booking_answer
from aiorate.redis.failures import BadAnswer

EPOCH = 1_800_000_000_000_000
MS, SECOND = 1_000, 1_000_000
FAR = 10**12

KEY = "aiorate:x"
ONE = {"requests": ("10/s", 1)}
TWO = {"requests": ("10/s", 1), "tokens": ("1000/s", 500)}


class Client:
    """What a process does: it remembers what it was told last, and when."""

    def __init__(self, store: RealServer, dimensions: dict[str, tuple[str, int]], number: int = 1) -> None:
        self.store = store
        rates = [Rate.parse(rate) for rate, _ in dimensions.values()]
        self.limits = Limits(tuple(dimensions), rates, [burst for _, burst in dimensions.values()])
        self.number = number
        self.value, self.told_at = "", 0

    def ask(self, now: int, *requests: tuple[int, ...], **more: Any) -> BookingAnswer:
        """The answer ``now`` us after the beginning."""
        options: dict[str, Any] = {"horizon": FAR, "reach": FAR, "client": self.number, "remembered": self.value, **more}
        question = BookingQuestion(list(requests), age=now - self.told_at, **options)
        reply = self.store.send("EVAL", TIMED_BOOKINGS, 1, KEY, *question.words(self.limits), EPOCH + now)
        answer = read_booking_answer(reply, self.limits, question)
        self.value, self.told_at = answer.value, now
        return answer

    def starts(self, now: int, *requests: tuple[int, ...], **more: Any) -> list[float]:
        """When the reservations are booked for, in us after the beginning."""
        return [now + start for start in self.ask(now, *requests, **more).starts]


def test_the_tests_change_only_the_clock_of_the_script() -> None:
    """Otherwise they would prove nothing about it."""
    assert 1 == BOOKINGS.text.count("redis.call('TIME')")
    assert BOOKINGS.text == TIMED_BOOKINGS.replace("{0, ARGV[3]}", "redis.call('TIME')")


def test_bookings_of_all_clients_follow_each_other(store: RealServer) -> None:
    """Each amount is booked once, at the rate."""
    one, other = Client(store, ONE), Client(store, ONE, 2)

    assert [0, 100 * MS] == one.starts(0, (1,), (1,))
    assert [200 * MS] == other.starts(50 * MS, (1,))
    assert [300 * MS] == one.starts(50 * MS, (1,))


def test_a_reservation_is_due_when_all_dimensions_are(store: RealServer) -> None:
    """Here the tokens of the second take longer than its request, and those of the third do not."""
    client = Client(store, TWO)

    assert [0, 200 * MS, 300 * MS] == client.starts(0, (1, 400), (1, 300), (1, 10))


def test_a_rate_grants_any_amount_and_has_the_others_wait(store: RealServer) -> None:
    """Nothing is saved up, and the amount is owed."""
    client = Client(store, {"tokens": ("10/s", 1)})

    assert [0, 5 * SECOND] == client.starts(0, (50,), (20,))
    assert [100 * SECOND, 100.1 * SECOND] == client.starts(100 * SECOND, (1,), (1,))


def test_a_dimension_of_which_nothing_is_taken_does_not_matter(store: RealServer) -> None:
    """An amount of 0 neither waits nor moves it."""
    client = Client(store, TWO)
    client.ask(0, (1, 500))

    assert [100 * MS] == client.starts(0, (1, 0))
    assert [500 * MS] == client.starts(0, (0, 500))


def test_dimensions_are_known_by_their_names(store: RealServer) -> None:
    """In any order; one that a client does not have stays as it is."""
    one, other = Client(store, TWO), Client(store, dict(reversed(TWO.items())), 2)
    third = Client(store, ONE, 3)
    one.ask(0, (1, 500))

    assert [100 * MS] == third.starts(0, (1,))
    assert [500 * MS] == other.starts(0, (500, 1))


@pytest.mark.parametrize("name", ["a b", "a\nb", "ü", "%20", ";", "\udc80", "", "1 2 3 4"])
def test_a_dimension_may_have_any_name(store: RealServer, name: str) -> None:
    """Names of keywords are any text."""
    dimensions = {name: ("10/s", 1), "other": ("1/s", 1)}
    client = Client(store, dimensions)

    assert [0, 1 * SECOND] == client.starts(0, (1, 1), (1, 1))
    assert [2 * SECOND] == Client(store, dimensions, 2).starts(0, (1, 1))


def test_what_comes_back_makes_later_bookings_earlier(store: RealServer) -> None:
    """By as much, and never more than the bookings ahead had to wait."""
    client = Client(store, {"tokens": ("10/s", 1)})
    client.ask(0, (100,))
    client.ask(0, corrections=(-95,))

    assert [500 * MS, 600 * MS] == client.starts(0, (1,), (1,))
    client.ask(100 * SECOND, corrections=(-1000,))
    assert [100 * SECOND, 100.1 * SECOND] == client.starts(100 * SECOND, (1,), (1,))


def test_what_comes_back_after_it_was_full_is_lost(store: RealServer) -> None:
    """It had accrued again: others were granted the whole burst since."""
    one, other = Client(store, {"tokens": ("10/s", 100)}), Client(store, {"tokens": ("10/s", 100)}, 2)
    one.ask(0, (100,))
    other.ask(100 * SECOND, (100,))
    one.ask(101 * SECOND, corrections=(-90,), oldest=101 * SECOND)
    assert [105 * SECOND] == other.starts(101 * SECOND, (50,))

    other.ask(101 * SECOND, corrections=(-40,), oldest=1 * SECOND)
    assert [106 * SECOND] == other.starts(101 * SECOND, (50,))


def test_what_was_used_above_the_estimate_is_owed(store: RealServer) -> None:
    """By everybody."""
    one, other = Client(store, ONE), Client(store, ONE, 2)
    one.ask(0, corrections=(20,))

    assert [2 * SECOND] == other.starts(0, (1,))


def test_no_booking_is_before_those_in_hand(store: RealServer) -> None:
    """The line of a process is in order."""
    client = Client(store, ONE)

    assert [3 * SECOND, 3.1 * SECOND] == client.starts(0, (1,), (1,), begin=3 * SECOND)


def test_a_booking_that_would_be_late_is_refused(store: RealServer) -> None:
    """For callers that do not wait: the state stays as it was."""
    client = Client(store, ONE)

    assert [0] == client.starts(0, (1,), (1,), within=5 * MS)
    refused = client.ask(50 * MS, (1,), within=5 * MS)
    assert ([], 50 * MS) == (refused.starts, refused.wait)
    assert [100 * MS] == client.starts(95 * MS, (1,), within=5 * MS)


def test_a_far_reservation_waits_and_the_others_let_it_pass(store: RealServer) -> None:
    """It is not booked, since what comes back would be of no use to it. If it is not heard of for a while, others go on."""
    dimensions = {"tokens": ("10/s", 20)}
    one, other = Client(store, dimensions), Client(store, dimensions, 2)
    one.ask(0, (20,))

    assert 2 * SECOND == other.ask(0, (20,), reach=50 * MS).wait
    assert [] == one.starts(500 * MS, (1,))
    assert [] == other.starts(1 * SECOND, (20,), reach=50 * MS)
    assert [] == one.starts(2 * SECOND, (1,))
    assert [2 * SECOND] == other.starts(2 * SECOND, (20,), reach=50 * MS)
    assert [2.1 * SECOND] == one.starts(2 * SECOND, (1,))

    other.ask(2 * SECOND, (20,), reach=50 * MS, horizon=1 * SECOND)
    assert [4 * SECOND] == one.starts(4 * SECOND, (1,))


def test_a_pause_books_nothing(store: RealServer) -> None:
    """And nothing is saved up meanwhile."""
    client = Client(store, {"tokens": ("10/s", 20)})
    assert 5 * SECOND == client.ask(0, (1,), pause=5 * SECOND).paused
    assert [] == client.starts(4 * SECOND, (1,))

    assert [5 * SECOND, 5.1 * SECOND] == client.starts(5 * SECOND, (1,), (1,))
    client.ask(5 * SECOND, pause=100 * SECOND)
    assert [6 * SECOND] == client.starts(6 * SECOND, (1,), pause=0)


def test_a_process_has_its_part_of_what_is_ahead(store: RealServer) -> None:
    """A horizon at first, less the further all have booked, and one reservation at least."""
    requests = [(1,)] * 50
    one, other = Client(store, ONE), Client(store, ONE, 2)

    assert 11 == one.ask(0, *requests, horizon=1 * SECOND).granted
    assert 10 == other.ask(0, *requests, horizon=1 * SECOND).granted
    assert 5 == one.ask(0, *requests, horizon=1 * SECOND).granted
    assert 1 == one.ask(0, *requests, horizon=1 * SECOND, served=FAR).granted


def test_a_lost_state_is_restored_by_those_that_remember(store: RealServer) -> None:
    """With a horizon on top, since others may have booked as far ahead."""
    client = Client(store, ONE)
    client.ask(0, *[(1,)] * 20)
    store.send("FLUSHALL")

    assert [3 * SECOND] == client.starts(1 * SECOND, (1,), horizon=1 * SECOND, reach=FAR)


def test_the_key_is_gone_soon_after_it_has_no_effect(store: RealServer) -> None:
    """A second after all is full again."""
    client = Client(store, TWO)
    client.ask(0, (1, 300))

    assert 1000 < int(store.send("PTTL", KEY)) <= 1300


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ("5", "WRONGTYPE .* not of aiorate"),
        ("aiorate", "WRONGTYPE"),
        ("aiorate/1 1 0 0 0 0", "WRONGTYPE .* of a RedisLimiter"),
        ("aiorate-window/1 1 0 0 0 0", "WRONGTYPE .* of a RedisLimiter"),
        ("aiorate:budget/1 x 0 0 0 0 0 0", "WRONGTYPE"),
        ("aiorate:budget/2 1 0 0 0 0 0 0", "VERSION"),
    ],
)
def test_a_value_of_somebody_else_is_left_alone(store: RealServer, value: str, error: str) -> None:
    """An error that says so, and nothing is overwritten."""
    store.send("SET", KEY, value)

    with pytest.raises(OSError, match=error):
        Client(store, ONE).ask(0, (1,))
    assert value == store.send("GET", KEY)


@pytest.mark.parametrize(
    "reply",
    [
        *(
            b"",
            "",
            None,
            7,
            "OK",
            b"\xff",
            [1],
            "aiorate:budget/1 1 0 0 0 0 0 0 requests 0 0 0 0",
            "aiorate/1 1 0 0 0 0 0 0 requests 0 0 0 0; 0 0 0",
        ),
        "aiorate:budget/1 1 0 0 0 0 0 0 other 0 0 0 0; 0 0 0",
        "aiorate:budget/1 1 0 0 0 0 0 0 requests nan 0 0 0; 0 0 0",
        "aiorate:budget/1 1 0 0 0 0 0 0 requests 0 0 0; 0 0 0",
        "aiorate:budget/1 1 0 0 0 0 0 0 requests 0 0 0 0; 0 0 0 1 1 2 1",
        "aiorate:budget/1 1 0 5 0 0 0 0 requests 0 0 0 0; 0 0 0 1 1",
    ],
)
def test_a_malformed_answer_is_refused(reply: object) -> None:
    """A proxy, or another server: nothing is granted for it."""
    limits = Limits(("requests",), [Rate.parse("10/s")], [1])

    with pytest.raises(BadAnswer):
        read_booking_answer(reply, limits, BookingQuestion([(1,)]))


class Model:
    """The same by hand: of each dimension when it is full again, and what came back that the bookings ahead leave no time for."""

    def __init__(self, dimensions: dict[str, tuple[str, int]]) -> None:
        rates = [Rate.parse(rate) for rate, _ in dimensions.values()]
        self.intervals = [rate.period_ns / rate.permits / 1_000 for rate in rates]
        self.bursts = [burst for _, burst in dimensions.values()]
        self.full, self.back, self.latest = [0.0] * len(rates), [0.0] * len(rates), 0.0
        self.was_full = [0.0] * len(rates)

    def book(self, now: float, requests: list[tuple[int, ...]], corrections: tuple[int, ...], oldest: int) -> list[float]:
        places = range(len(self.full))
        self.was_full = [now if full <= now else was for full, was in zip(self.full, self.was_full, strict=True)]
        self.full, self.latest = [max(full, now) for full in self.full], max(self.latest, now)
        for j in places:
            self.full[j] += max(corrections[j], 0) * self.intervals[j]
            self.back[j] -= min(corrections[j], 0) if now - oldest >= self.was_full[j] else 0
        self.clip(now)
        starts, begin = [], now
        for amounts in requests:
            start = begin
            for j in places:
                if amounts[j]:
                    lacks = self.bursts[j] - min(amounts[j], self.bursts[j])
                    start = max(start, self.full[j] - (self.back[j] + lacks) * self.intervals[j])
            for j in places:
                if amounts[j]:
                    lacks = self.bursts[j] - min(amounts[j], self.bursts[j])
                    used = min(self.back[j], max(self.full[j] - start - lacks * self.intervals[j], 0) / self.intervals[j])
                    self.back[j] -= used
                    self.full[j] = max(self.full[j] - used * self.intervals[j], start) + amounts[j] * self.intervals[j]
            self.latest, begin = max(self.latest, start), start
            starts.append(start)
        self.clip(now)
        return starts

    def clip(self, now: float) -> None:
        for j, interval in enumerate(self.intervals):
            self.back[j] = min(self.back[j], (max(self.full[j], self.latest) - now) / interval)


DIMENSIONS = {"requests": ("10/s", 1), "tokens": ("100/s", 30), "units": ("7/s", 1)}
AMOUNTS = st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 5)).filter(any)
HISTORIES = st.lists(
    st.tuples(
        st.integers(0, 2 * SECOND),
        st.integers(0, 1),
        st.lists(AMOUNTS, max_size=4),
        st.tuples(st.integers(-3, 2), st.integers(-30, 20), st.integers(-4, 2)),
        st.sampled_from([0, 100 * MS, 2 * SECOND]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=HISTORIES)
def test_every_history_is_booked_as_the_model_says(store: RealServer, history: list[Any]) -> None:
    """Two clients, amounts of three dimensions, what came back and what is owed, at any instants."""
    store.send("FLUSHALL")
    clients, model, now = [Client(store, DIMENSIONS, number) for number in (1, 2)], Model(DIMENSIONS), 0
    for after, who, requests, corrections, oldest in history:
        now += after
        starts = clients[who].starts(now, *requests, corrections=corrections, oldest=oldest)

        assert [pytest.approx(start, abs=1) for start in model.book(now, requests, corrections, oldest)] == starts


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=HISTORIES)
def test_no_window_of_any_history_exceeds_the_bound(store: RealServer, history: list[Any]) -> None:
    """What is booked for it, less all that came back since the beginning; where nothing comes back, that is the bound as it is."""
    store.send("FLUSHALL")
    clients, now, back = [Client(store, DIMENSIONS, number) for number in (1, 2)], 0, [0, 0, 0]
    booked: list[tuple[float, tuple[int, ...]]] = []
    for after, who, requests, corrections, _ in history:
        now += after
        back = [total - min(correction, 0) for total, correction in zip(back, corrections, strict=True)]
        booked += zip(clients[who].starts(now, *requests, corrections=corrections), requests, strict=True)

    for place, (rate, burst) in enumerate(DIMENSIONS.values()):
        most = max(burst, *[amounts[place] for _, amounts in booked], 1) + back[place]
        per_us = Rate.parse(rate).per_second / SECOND
        for begin, _ in booked:
            for end, _ in booked:
                inside = sum(amounts[place] for start, amounts in booked if begin <= start <= end)
                assert inside <= most + max(end - begin, 0) * per_us + 1e-3


@pytest.mark.parametrize(("dimensions", "requests"), [(1, 256), (11, 256), (100, 30), (500, 6)])
def test_a_question_may_be_long(store: RealServer, dimensions: int, requests: int) -> None:
    """As many numbers as a ledger ever sends."""
    assert dimensions * requests <= MOST_NUMBERS
    client = Client(store, {f"dimension {number}": ("1000/s", 1) for number in range(dimensions)})

    assert requests == client.ask(0, *[(1,) * dimensions] * requests).granted
