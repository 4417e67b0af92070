"""What the store's scripts answer, beside models by hand: run by a real server that is told what time it is. Figures in us are exact."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.stores import TIMED, TIMED_BOOKINGS, TIMED_WINDOWS, RealServer
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorate import Rate
from aiorate._store.booking_script import BOOKINGS, BookingAnswer, BookingQuestion, Limits, read_booking_answer
from aiorate._store.script import SLOTS, Answer, Question, limits_of, read_answer
from aiorate._store.window_script import WINDOWS

EPOCH = 1_800_000_000_000_000
MS, SECOND = 1_000, 1_000_000
FAR = 10**12
KEY = "aiorate:x"
histories = settings(max_examples=40)


class Client:
    """What a process does: it remembers what it was told last, and when."""

    def __init__(self, store: RealServer) -> None:
        self.store = store
        self.value, self.told_at = "", 0.0

    def send(self, script: str, words: list[Any], now: float) -> Any:
        return self.store.send("EVAL", script, 1, KEY, *words, EPOCH + round(now))

    def told(self, answer: Any, now: float) -> Any:
        if answer.value:
            self.value, self.told_at = answer.value, now
        return answer


def test_the_tests_change_only_the_clock_of_the_scripts() -> None:
    for script, timed in ((SLOTS, TIMED), (BOOKINGS, TIMED_BOOKINGS), (WINDOWS, TIMED_WINDOWS)):
        assert 1 == script.text.count("redis.call('TIME')")
        assert script.text == timed.replace("{0, ARGV[3]}", "redis.call('TIME')")


# Slots of rates.


class SlotClient(Client):
    def __init__(self, store: RealServer, *limits: tuple[str, int], horizon: float = FAR) -> None:
        super().__init__(store)
        self.rates, self.horizon = [Rate.parse(rate) for rate, _ in limits], horizon
        self.limits = limits_of(tuple(self.rates), tuple(burst for _, burst in limits))

    def ask(self, now: float, want: int = 0, since_told: float | None = None, **more: Any) -> Answer:
        """The answer ``now`` us after the beginning. ``since_told`` is by the client's clock."""
        age = now - self.told_at if since_told is None else since_told
        words = Question(want, horizon=self.horizon, age=age, remembered=self.value, **more).words(self.limits)
        return self.told(read_answer(self.send(TIMED, words, now), len(self.rates)), now)  # type: ignore[no-any-return]

    def slots(self, now: float, want: int, **more: Any) -> list[float]:
        """When the slots are, in us after the beginning."""
        answer = self.ask(now, want, **more)
        intervals = [rate.period_ns / rate.permits / 1000 for rate in self.rates]
        starts = list(zip(answer.starts, intervals, strict=True))
        return [now + max(start + index * interval for start, interval in starts) for index in range(answer.granted)]


LIMITS = [("10/s", 3), ("7/s", 1), ("2/s", 20)]


@histories
@given(
    places=st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
    history=st.lists(st.tuples(st.integers(0, 2 * SECOND), st.integers(0, 1), st.integers(0, 6), st.integers(0, 3)), max_size=12),
)
def test_slots_are_those_of_buckets_asked_one_by_one(store: RealServer, places: list[int], history: list[Any]) -> None:
    """Two clients, one to three rates with and without bursts, and charges, at any instants: each slot is when all buckets have one."""
    store.send("FLUSHALL")
    limits = [LIMITS[place] for place in places]
    clients, now = [SlotClient(store, *limits) for _ in range(2)], 0
    intervals = [Rate.parse(rate).period_ns / Rate.parse(rate).permits / 1000 for rate, _ in limits]
    tolerances = [(burst - 1) * interval for (_, burst), interval in zip(limits, intervals, strict=True)]
    free = [-tolerance for tolerance in tolerances]
    for after, who, want, charge in history:
        now += after
        free = [
            max(each, now - tolerance) + charge * interval for each, tolerance, interval in zip(free, tolerances, intervals, strict=True)
        ]
        expected = []
        for _ in range(want):
            expected.append(max(free))
            free = [max(each, expected[-1] - tolerance) + step for each, tolerance, step in zip(free, tolerances, intervals, strict=True)]

        assert [pytest.approx(slot, abs=1) for slot in expected] == clients[who].slots(now, want, charge=charge)


def test_a_question_gets_only_slots_within_the_horizon(store: RealServer) -> None:
    """A process books at most that far ahead, less the further all have booked, and one slot at least."""
    client = SlotClient(store, ("1000/s", 1), horizon=20 * MS)

    assert [20, 20, 10, 8] == [client.ask(0, 1000).granted for _ in range(4)]
    assert 20 == client.ask(58 * MS, 1000).granted
    client.ask(58 * MS, charge=1000)
    assert 1 == client.ask(58 * MS, 1000).granted


def test_a_clock_of_the_store_that_goes_back_has_not_moved(store: RealServer) -> None:
    one, other = SlotClient(store, ("1000/s", 1)), SlotClient(store, ("1000/s", 1))
    one.slots(0, 10)

    assert [10 * MS] == other.ask(-3600 * SECOND, 1).starts
    assert [11 * MS] == one.ask(-3600 * SECOND, 1, since_told=0).starts


def test_lost_slots_are_restored_plus_one_horizon(store: RealServer) -> None:
    """The others may have booked that far ahead, and nothing must be booked twice. A state that was to expire is not restored."""
    one, other = (SlotClient(store, ("1000/s", 300), horizon=20 * MS) for _ in range(2))
    one.slots(0, 300)
    one.slots(0, 10)
    store.send("FLUSHALL")
    assert [(11 - 4 + 20) * MS] == one.ask(4 * MS, 1).starts
    assert [(12 - 4 + 20) * MS] == other.ask(4 * MS, 1).starts

    store.send("FLUSHALL")
    assert [-299 * MS] == one.ask(10 * SECOND, 1).starts


# Bookings of budgets.


class BookingClient(Client):
    def __init__(self, store: RealServer, dimensions: dict[str, tuple[str, int]], number: int = 1) -> None:
        super().__init__(store)
        rates = [Rate.parse(rate) for rate, _ in dimensions.values()]
        self.limits = Limits(tuple(dimensions), rates, [burst for _, burst in dimensions.values()])
        self.number = number

    def ask(self, now: float, *requests: tuple[int, ...], **more: Any) -> BookingAnswer:
        options: dict[str, Any] = {"horizon": FAR, "reach": FAR, "client": self.number, "remembered": self.value, **more}
        question = BookingQuestion(list(requests), age=now - self.told_at, **options)
        reply = self.send(TIMED_BOOKINGS, question.words(self.limits), now)
        return self.told(read_booking_answer(reply, self.limits, question), now)  # type: ignore[no-any-return]

    def starts(self, now: float, *requests: tuple[int, ...], **more: Any) -> list[float]:
        """When the reservations are booked for, in us after the beginning."""
        return [now + start for start in self.ask(now, *requests, **more).starts]


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


@histories
@given(history=HISTORIES)
def test_every_history_is_booked_as_the_model_says(store: RealServer, history: list[Any]) -> None:
    """Two clients, amounts of three dimensions, what came back and what is owed, at any instants."""
    store.send("FLUSHALL")
    clients, model, now = [BookingClient(store, DIMENSIONS, number) for number in (1, 2)], Model(DIMENSIONS), 0
    for after, who, requests, corrections, oldest in history:
        now += after
        starts = clients[who].starts(now, *requests, corrections=corrections, oldest=oldest)

        assert [pytest.approx(start, abs=1) for start in model.book(now, requests, corrections, oldest)] == starts


ONE = {"requests": ("10/s", 1)}
TWO = {"requests": ("10/s", 1), "tokens": ("1000/s", 500)}


def test_dimensions_are_known_by_their_names(store: RealServer) -> None:
    one, other, third = (BookingClient(store, each, 1) for each in (TWO, dict(reversed(TWO.items())), ONE))
    one.ask(0, (1, 500))
    assert [100 * MS] == third.starts(0, (1,))
    assert [500 * MS] == other.starts(0, (500, 1))

    for name in ("a b", "a\nb", "ü", "%20", ";", "\udc80", "", "1 2 3 4"):
        store.send("FLUSHALL")
        dimensions = {name: ("10/s", 1), "other": ("1/s", 1)}
        assert [0, 1 * SECOND] == BookingClient(store, dimensions).starts(0, (1, 1), (1, 1)), name
        assert [2 * SECOND] == BookingClient(store, dimensions, 2).starts(0, (1, 1)), name
