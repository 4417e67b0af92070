"""The finder: what it makes of answers, at exact instants. Pure arithmetic: no clock, no limiter."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorate._limiters.finder import Finder

SECOND = 1_000_000_000
TRIP = SECOND // 10


class Client:
    """Uses every permit of a finder, and hears of each ``trip`` later."""

    def __init__(self, rate: float = 100, lowest: float = 1, highest: float = 1000, refused: float = 0.02, trip: int = TRIP) -> None:
        self.finder = Finder(rate, lowest, highest, refused)
        self.trip = trip
        self.now = self.stood = 0

    def granted(self, count: int) -> None:
        for _ in range(count):
            self.now += int(SECOND / self.finder.rate)
            self.finder.succeeded(self.now + self.trip, self.trip, self.stood)

    def refused(self, count: int = 1, pause: int = 0) -> None:
        for _ in range(count):
            self.now += int(SECOND / self.finder.rate)
            self.finder.throttled(self.now + self.trip, self.trip, self.stood, pause)
            self.stood += pause

    @property
    def rate(self) -> float:
        return round(self.finder.rate, 2)


def test_a_climb_doubles_its_step_up_to_a_quarter() -> None:
    """Slow enough to cost little, and fast enough to find the ceiling."""
    client = Client(rate=10, highest=100)
    rates = [client.rate]

    for _ in range(500):
        client.granted(1)
        if client.rate != rates[-1]:
            rates.append(client.rate)

    steps = [round(after / before - 1, 2) for before, after in pairwise(rates)]
    assert steps[:5] == [0.01, 0.02, 0.04, 0.08, 0.16]
    assert set(steps[5:-1]) == {0.25}
    assert rates[-1] == 100


def test_a_refusal_ends_a_climb_at_the_rate_before_its_step() -> None:
    """And a little below, so that the server's bucket can fill."""
    client = Client()
    before = client.rate
    while client.rate <= 120:
        before = client.rate
        client.granted(1)

    client.refused()

    assert client.rate == pytest.approx(before * 0.98, abs=0.02)


def test_refusals_of_one_flight_are_one() -> None:
    """They were granted before the first of them was known."""
    client = Client()
    client.granted(50)
    client.finder.throttled(client.now + TRIP, TRIP, 0, 0)
    once = client.rate

    for later in range(2):
        client.finder.throttled(client.now + TRIP + later, TRIP, 0, 0)

    assert client.rate == once


def test_what_was_granted_between_refusals_is_the_rate() -> None:
    """Every second request is refused: the server gives half."""
    client = Client(trip=1000)

    for _ in range(200):
        client.refused()
        client.granted(1)

    assert client.rate < 60


def test_a_server_that_refuses_all_is_asked_ever_more_rarely() -> None:
    """Whatever the lowest rate is, and each time after half as long again. Then the rate is nearly what it was, even after minutes."""
    for refusals in (6, 15):
        client = Client(lowest=50)
        client.granted(100)
        before = client.rate
        client.refused(3)
        asked = [client.now]

        for _ in range(refusals):
            client.refused()
            asked.append(client.now)
        client.granted(1)

        gaps = [later - earlier for earlier, later in pairwise(asked)]
        assert gaps[:2] == [TRIP, TRIP]
        assert all(1.3 < later / earlier < 1.51 for earlier, later in pairwise(gaps[2:])), refusals
        assert client.rate > 0.8 * before


def test_an_answer_to_an_earlier_request_ends_no_drought() -> None:
    """It says nothing of the server now."""
    client = Client()
    client.granted(100)
    client.refused(6)

    client.finder.succeeded(client.now + TRIP, 10 * SECOND, 0)
    assert not client.finder.settled

    client.granted(1)
    assert client.finder.settled


def test_rounds_are_as_long_as_the_last_drought() -> None:
    """A shorter one would not see the next. After an outage of minutes it climbs at once."""
    for refusals in (8, 20):
        client = Client()
        client.granted(100)
        client.refused(3)
        began = client.now
        client.refused(refusals)
        client.granted(1)
        settled, drought, since = client.rate, client.now - began, client.now

        while client.rate <= settled:
            client.granted(1)

        least, most = (0, SECOND) if drought > 60 * SECOND else (drought, 2 * drought)
        assert least <= client.now - since < most


def test_a_climb_is_paid_for_before_the_next() -> None:
    """72 answers for one refusal, where two per cent may be refused, seven in ten of them by climbs.

    A pause is paid for by its length: a lesson of ten seconds is repeated after twelve minutes at the earliest.
    """
    for pause in (0, 10 * SECOND):
        client = Client(trip=1000)
        while client.rate < 130:
            client.granted(1)
        client.refused(pause=pause)
        settled, since, answers = client.rate, client.now, 0
        while client.rate == settled:
            client.granted(1)
            answers += 1
        if pause:
            assert 714 * SECOND <= client.now - since <= 740 * SECOND
        else:
            assert 72 <= answers <= 105


def test_a_short_run_before_a_long_pause_halves_the_rate() -> None:
    """Unless it was a climb: the rate itself is too high."""
    client = Client()
    client.granted(5)

    client.refused(pause=1000 * SECOND)

    assert client.rate == pytest.approx(49, abs=0.1)


def test_demand_below_the_rate_does_not_raise_it() -> None:
    """What is not used is not known to be allowed."""
    finder = Finder(100, 1, 10_000, 0.02)

    for number in range(10_000):
        finder.succeeded(number * SECOND // 20, TRIP, 0)

    assert finder.rate == 100


def test_a_clock_that_stands_still_or_goes_back_does_no_harm() -> None:
    """Neither divides by zero nor runs away."""
    finder = Finder(100, 1, 1000, 0.02)

    for now in [5, 5, 5, 3, 0, -7] * 100:
        finder.succeeded(now, 0, 0)
        finder.throttled(now, 10**18, 0, 0)

    assert 1 <= finder.rate <= 1000
    finder = Finder(1e11, 1, 1e12, 0.5)
    for _ in range(3):  # the distance of single requests is at least a nanosecond
        finder.throttled(0, 0, 0, 0)
    assert finder.rate == 1e9


ANSWERS = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(-(10**9), 10**12),  # since the answer before
        st.integers(0, 10**13),
        st.sampled_from([0, 0, 0, 10**9, 86_400 * 10**9]),
    ),
    max_size=300,
)


@settings(max_examples=60)
@given(ANSWERS, st.floats(1e-9, 1e6), st.floats(1, 1e6), st.floats(1e-6, 0.999))
def test_the_rate_stays_within_its_range(answers: list[tuple[bool, int, int, int]], lowest: float, factor: float, refused: float) -> None:
    """Whatever a server, a clock or a caller says, but for single requests in a drought."""
    highest = lowest * factor
    finder = Finder((lowest + highest) / 2, lowest, highest, refused)
    now = 0

    for granted, passed, took, pause in answers:
        now += passed
        if granted:
            finder.succeeded(now, took, 0)
        else:
            finder.throttled(now, took, 0, pause)
        assert 0 < finder.rate <= highest
        assert finder.rate >= lowest or not finder.settled
