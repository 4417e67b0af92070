"""The script that counts the permits of windows, run by a real server that is told what time it is. Windows of 10 s, of 100 permits."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.stores import TIMED_WINDOWS, RealServer

from aiorate.redis.failures import BadAnswer
from aiorate.redis.window_script import WINDOWS, WindowAnswer, WindowQuestion, read_window_answer

EPOCH = 1_800_000_000_000_000
SECOND = 1_000_000
KEY = "aiorate:x"


class Client:
    """What a process does: it remembers what it was told last, and names the windows around the present."""

    def __init__(self, store: RealServer, permits: int = 100, period: int = 10, shift: float = 0.0) -> None:
        self.store, self.permits, self.period, self.shift = store, permits, period, shift
        self.value, self.told_at = "", 0.0

    def ask(self, now: float, want: int = 0, *, around: float | None = None, age: float | None = None, **more: Any) -> WindowAnswer:
        """The answer ``now`` seconds after the beginning. ``around``: when the client thinks it is."""
        present = now if around is None else around
        begin = present - self.period
        first = (begin - self.shift) // self.period + 1
        ends = [begin, *[(first + index) * self.period + self.shift for index in range(5)]]
        question = WindowQuestion(want, age=(now - self.told_at if age is None else age) * SECOND, remembered=self.value, **more)
        words = question.words(self.permits, self.period * SECOND, [EPOCH + round(end * SECOND) for end in ends])
        answer = read_window_answer(self.store.send("EVAL", TIMED_WINDOWS, 1, KEY, *words, EPOCH + round(now * SECOND)))
        if answer.value:
            self.value, self.told_at = answer.value, now
        return answer


def test_the_tests_change_only_the_clock_of_the_script() -> None:
    """Otherwise they would prove nothing about it."""
    assert 1 == WINDOWS.text.count("redis.call('TIME')")
    assert WINDOWS.text == TIMED_WINDOWS.replace("{0, ARGV[3]}", "redis.call('TIME')")


def test_a_process_takes_a_part_of_what_is_left(store: RealServer) -> None:
    """An eighth, so that a killed process loses little; all of it in a few calls."""
    client, calls, total = Client(store), 0, 0
    while total < 100:
        granted = client.ask(1, 100).granted
        assert granted == -(-(100 - total) // 8)
        total, calls = total + granted, calls + 1

    assert calls <= 32
    assert 0 == client.ask(9.999_999, 100).granted
    assert 13 == client.ask(10, 100).granted


def test_the_edge_belongs_to_the_next_window(store: RealServer) -> None:
    """To the microsecond."""
    client = Client(store)
    assert EPOCH + 10 * SECOND == client.ask(9.999_999, 1).ends
    assert (EPOCH + 20 * SECOND, 1) == (client.ask(10, 1).ends, client.ask(10).taken)


def test_a_request_is_all_or_nothing(store: RealServer) -> None:
    """What a request cannot use stays for others."""
    client = Client(store)
    assert 90 == client.ask(1, 200, least=90).granted
    assert 0 == client.ask(1, 200, least=11).granted
    assert 10 == client.ask(1, 200, at_once=200).granted


def test_permits_go_back_to_their_window_only(store: RealServer) -> None:
    """Those of an earlier one would let this one have more."""
    client = Client(store)
    window = client.ask(1, 50, least=50).ends
    assert 30 == client.ask(1, back=20, window=window).taken
    client.ask(11, 5, least=5)
    assert 5 == client.ask(11, back=20, window=window).taken
    assert 0 == client.ask(11, back=20, window=window + 10 * SECOND).taken


def test_a_debt_is_paid_by_the_next_windows(store: RealServer) -> None:
    """Also by those in which nobody asks."""
    client = Client(store)
    client.ask(1, charge=350)
    assert int(store.send("PTTL", KEY)) > 39_000
    assert 150 == client.ask(21).taken
    assert 50 == client.ask(31).taken
    client.ask(31, charge=200)
    assert 0 == client.ask(71).taken


def test_a_window_that_was_not_named_changes_nothing(store: RealServer) -> None:
    """The answer is the time, and the client asks again."""
    client = Client(store)
    answer = client.ask(1, 10, around=500, charge=5, pause=9)
    assert ("", EPOCH + SECOND, -1) == (answer.value, answer.now, answer.granted)
    assert "0" == store.send("EXISTS", KEY)
    assert -1 == client.ask(1, 10, around=-500).granted


def test_a_window_goes_on_whatever_other_processes_name(store: RealServer) -> None:
    """Of two calendars, that of the process which asked first in the window holds."""
    one, other = Client(store), Client(store, shift=3)
    ends = one.ask(1, 50, least=50).ends
    assert (ends, 50) == other.ask(2)[3:5]
    assert (EPOCH + 13 * SECOND, 0) == other.ask(10)[3:5]
    assert (EPOCH + 13 * SECOND, 0) == one.ask(11)[3:5]


@pytest.mark.parametrize("back", [0.5, 3.0, 10.0])
def test_a_clock_that_goes_back_stays_in_its_window(store: RealServer, back: float) -> None:
    """Over an edge too: no window is counted again from 0."""
    one, other = Client(store), Client(store)
    one.ask(9, 100, at_once=100)
    ends = one.ask(11, 60, least=60).ends

    answer = other.ask(11 - back, 100, at_once=100)
    assert (ends, 40) == (answer.ends, answer.granted)
    assert 0 == one.ask(19.9, 1).granted


def test_a_clock_that_was_far_ahead_blocks_nobody_for_ever(store: RealServer) -> None:
    """What was granted meanwhile counts in the window of now."""
    client = Client(store)
    client.ask(1, 30, least=30)
    client.ask(86_400, 20, least=20)

    assert (EPOCH + 10 * SECOND, 20) == client.ask(2)[3:5]
    assert 0 == client.ask(11).taken


# State that is lost.


def test_lost_state_is_restored_before_anything_is_granted(store: RealServer) -> None:
    """For a second all processes may tell what they remember; then exactly the rest is left."""
    clients = [Client(store) for _ in range(4)]
    for share, client in enumerate(clients, start=10):
        client.ask(1, share, least=share)
    store.send("FLUSHALL")

    assert [0] * 4 == [client.ask(1.1 + place / 10, 100).granted for place, client in enumerate(clients)]
    assert 0 < clients[0].ask(1.5, 100).settling <= 0.6 * SECOND
    assert (54, 46) == (clients[0].ask(2.1, 100, at_once=100).granted, 46)
    assert 100 == clients[1].ask(2.2).taken


def test_a_new_process_that_comes_first_is_told_too(store: RealServer) -> None:
    """What it was granted counts on top of what others remember, and nothing is granted for a second."""
    old, new = Client(store), Client(store)
    old.ask(1, 60, least=60)
    store.send("FLUSHALL")
    new.ask(2, 6, least=6)

    answer = old.ask(3, 100)
    assert (66, 0) == (answer.taken, answer.granted)
    assert 34 == old.ask(4.1, 100, at_once=100).granted
    assert 100 == new.ask(5).taken


def test_state_of_an_earlier_window_is_not_restored(store: RealServer) -> None:
    """The window is over, and the key was to expire."""
    client = Client(store)
    client.ask(1, 60, least=60)
    store.send("FLUSHALL")

    assert 100 == client.ask(11, 100, at_once=100).granted


def test_a_replica_that_lags_is_told(store: RealServer) -> None:
    """The state is an older copy: it counts again from what the clients remember."""
    one, other = Client(store), Client(store)
    one.ask(1, 30, least=30)
    copy = store.send("GET", KEY)
    other.ask(1, 30, least=30)
    one.ask(1, 20, least=20)
    store.send("SET", KEY, copy)

    assert 0 == other.ask(1.1, 40, least=40).granted
    one.ask(1.2)
    assert 20 == other.ask(2.3, 100, at_once=100).granted


def test_a_pause_holds_until_its_end_and_is_restored(store: RealServer) -> None:
    """Windows go on meanwhile."""
    one, other = Client(store), Client(store)
    one.ask(1, pause=60 * SECOND)
    assert (0, 50 * SECOND) == (other.ask(11, 5).granted, other.ask(11, 5).paused)
    store.send("FLUSHALL")
    assert pytest.approx(40 * SECOND) == one.ask(21).paused
    other.ask(22, pause=0)
    assert 5 == one.ask(22, 5, least=5).granted


# The key.


def test_the_key_stays_until_the_window_has_ended(store: RealServer) -> None:
    """And for as long as a pause or a debt."""
    client = Client(store, period=86_400)
    client.ask(3_600, 1)
    assert 82_800_000 < int(store.send("PTTL", KEY)) <= 82_801_000
    client.ask(3_600, pause=7 * 86_400 * SECOND)
    assert int(store.send("PTTL", KEY)) > 7 * 86_400_000


@pytest.mark.parametrize(
    "value", ["", "5", "aiorate/1 1 0 0 0 1", "aiorate-window/1", "aiorate-window/1 1 2 3", "aiorate-window/1 1 2 3 4 5 6 7 nan"]
)
def test_a_value_of_somebody_else_is_left_alone(store: RealServer, value: str) -> None:
    """That of a limiter with rates too; but the end of a pause mends one that is ours."""
    store.send("SET", KEY, value)
    with pytest.raises(OSError, match="WRONGTYPE"):
        Client(store).ask(1, 1)
    assert value == store.send("GET", KEY)
    if value.startswith("aiorate-window/1"):
        assert 1 == Client(store).ask(1, 1, pause=0).granted


def test_a_value_of_another_version_is_left_alone(store: RealServer) -> None:
    """It names both."""
    store.send("SET", KEY, "aiorate-window/2 1 2 3")
    with pytest.raises(OSError, match="as aiorate-window/2; this release reads aiorate-window/1"):
        Client(store).ask(1, 1)


@pytest.mark.parametrize(
    "reply",
    [
        *(b"", "", None, 7, "OK", b"\xff", [1]),
        *("aiorate-window/1 1 2 3 4 5 6 7 8; -1", "aiorate-window/1 1 2 3 4 5 6 7; 1", "aiorate-window/1 1 2 3 4 5 6 7 nan; 1"),
        *("aiorate-window/1 1 2 3 4 5 6 7 1e300; 1", "aiorate-window/1 1 2 3 4 5 6 7 8; x", "aiorate/1 1 2 3 4 5 6 7 8; 1"),
    ],
)
def test_a_malformed_answer_is_refused(reply: object) -> None:
    """A proxy, or another server: nothing is granted for it."""
    with pytest.raises(BadAnswer):
        read_window_answer(reply)
