"""The script that assigns time slots, run by a real server that is told what time it is. All figures are exact, in us."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from helpers.stores import TIMED, RealServer

from aiorate import Rate
from aiorate.redis.failures import BadAnswer
from aiorate.redis.script import TEXT, Answer, Question, limits_of, read_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

EPOCH = 1_800_000_000_000_000
MS, SECOND = 1_000, 1_000_000


class Client:
    """What a process does: it remembers what it was told last, and when."""

    def __init__(self, store: RealServer, *rates: str, burst: int | Sequence[int] = 1, horizon: float = 20 * MS, name: str = "x") -> None:
        self.store = store
        self.rates = [Rate.parse(rate) for rate in rates or ("1000/s",)]
        bursts = [burst] * len(self.rates) if isinstance(burst, int) else burst
        self.limits = limits_of(tuple(self.rates), tuple(bursts))
        self.horizon = horizon
        self.key = f"aiorate:{name}"
        self.value, self.told_at = "", 0

    def ask(self, now: int, want: int = 0, since_told: int | None = None, **more: Any) -> Answer:
        """The answer ``now`` us after the beginning. ``since_told`` is by the client's clock."""
        age = now - self.told_at if since_told is None else since_told
        question = Question(want, horizon=self.horizon, age=age, remembered=self.value, **more)
        reply = self.store.send("EVAL", TIMED, 1, self.key, *question.words(self.limits), EPOCH + now)
        answer = read_answer(reply, len(self.rates))
        self.value, self.told_at = answer.value, now
        return answer

    def slots(self, now: int, want: int, **more: Any) -> list[float]:
        """When the slots are, in us after the beginning."""
        answer = self.ask(now, want, **more)
        intervals = [rate.period_ns / rate.permits / 1000 for rate in self.rates]
        return [
            now + max(start + index * interval for start, interval in zip(answer.starts, intervals, strict=True))
            for index in range(answer.granted)
        ]


def test_the_tests_change_only_the_clock_of_the_script() -> None:
    """Otherwise they would prove nothing about it."""
    assert 1 == TEXT.count("redis.call('TIME')")
    assert TEXT == TIMED.replace("{0, ARGV[3]}", "redis.call('TIME')")


def test_slots_of_all_clients_follow_each_other(store: RealServer) -> None:
    """Each is assigned once, at the rate."""
    one, other = Client(store), Client(store)

    assert [0, 1 * MS, 2 * MS] == one.slots(0, 3)
    assert [3 * MS, 4 * MS] == other.slots(100, 2)
    assert [5 * MS] == one.slots(200, 1)


def test_time_that_nobody_uses_is_lost(store: RealServer) -> None:
    """With a burst of 1 nothing is saved up."""
    client = Client(store)
    client.slots(0, 1)

    assert [SECOND, SECOND + MS] == client.slots(SECOND, 2)


def test_a_burst_is_saved_up(store: RealServer) -> None:
    """Slots of the past are due at once."""
    client = Client(store, "10/s", burst=3)

    assert [-200 * MS, -100 * MS, 0] == client.slots(0, 4)
    assert [100 * MS] == client.slots(0, 4)


def test_a_question_gets_only_slots_within_the_horizon(store: RealServer) -> None:
    """A process books at most that far ahead, and less the further all have booked."""
    client = Client(store, horizon=20 * MS)

    assert 20 == client.ask(0, 1000).granted
    assert 20 == client.ask(0, 1000).granted  # 20 ms ahead
    assert 10 == client.ask(0, 1000).granted  # 40 ms ahead
    assert 8 == client.ask(0, 1000).granted  # 50 ms ahead
    assert 20 == client.ask(58 * MS, 1000).granted


def test_no_slot_is_assigned_that_comes_too_late(store: RealServer) -> None:
    """For callers that do not wait: a slot that nobody will use delays all others, so there may be none, and the state stays as it was."""
    client = Client(store, "10/s", burst=3, horizon=10 * SECOND)

    assert [-200 * MS, -100 * MS, 0] == client.slots(0, 9, within=0)
    assert [] == client.slots(99 * MS, 9, within=0)
    assert [100 * MS] == client.slots(99 * MS, 9, within=1 * MS)
    assert [200 * MS] == client.slots(99 * MS, 1)


def test_slots_are_assigned_by_whole_requests(store: RealServer) -> None:
    """Half of the slots that a request needs would lapse. Slots that the client has already count."""
    client = Client(store, "10/s", burst=7, horizon=10 * SECOND)

    assert 5 == client.ask(0, 10, within=0, unit=5).granted
    assert 0 == client.ask(0, 5, within=0, unit=5).granted
    assert 2 == client.ask(0, 2, within=0, unit=5, have=3).granted
    assert 0 == client.ask(0, 2, within=0, unit=5, have=3).granted


def test_several_rates_all_allow_what_is_due(store: RealServer) -> None:
    """The one that allows less decides."""
    client = Client(store, "3/s", "1/s", burst=(3, 2), horizon=10 * SECOND)

    assert 2 == client.ask(0, 9, within=0).granted
    assert 0 == client.ask(999 * MS, 9, within=0).granted
    assert 1 == client.ask(1 * SECOND, 9, within=0).granted


def test_a_question_gets_one_slot_however_far_all_booked(store: RealServer) -> None:
    """At a slow rate one slot is longer than the horizon."""
    client = Client(store, "1/s")

    assert [0] == client.slots(0, 5)
    assert [1 * SECOND] == client.slots(0, 5)
    assert [2 * SECOND] == client.slots(0, 5)


def test_an_interval_of_a_fractional_microsecond_does_not_drift(store: RealServer) -> None:
    """Three per second, a thousand times: to the microsecond."""
    client = Client(store, "3/s")
    slots = [client.slots(index * 300_000, 1)[0] for index in range(1_000)]

    assert pytest.approx(333_000_000, abs=1) == slots[-1] - slots[0]


def test_several_rates_all_hold(store: RealServer) -> None:
    """Five at ten per second, then one each second, as the slower rate has a burst of five."""
    client = Client(store, "10/s", "1/s", burst=(1, 5), horizon=10 * SECOND)

    assert [pytest.approx(slot * SECOND) for slot in (0, 0.1, 0.2, 0.3, 0.4, 1, 2)] == client.slots(0, 7)
    assert [3 * SECOND] == client.slots(0, 1)


def test_a_rate_that_did_not_rule_is_not_saved_up_for(store: RealServer) -> None:
    """A slot that one rate delayed counts for the others when it is, not when it might have been."""
    client = Client(store, "10/s", "1/s", burst=(3, 1), horizon=10 * SECOND)
    client.slots(0, 4)  # at 0, 1, 2 and 3 s

    assert pytest.approx((3 - 0.2 + 0.1) * SECOND) == client.ask(0).nexts[0]


def test_a_charge_delays_everybody(store: RealServer) -> None:
    """Permits that were used without a slot."""
    one, other = Client(store), Client(store)
    one.ask(0, charge=5)

    assert [5 * MS] == other.slots(0, 1)


def test_slots_come_back_while_they_are_the_last(store: RealServer) -> None:
    """A process that closes leaves no gap, unless later slots were assigned since."""
    one, other = Client(store), Client(store)
    one.slots(0, 10)
    one.ask(0, back=7)
    assert [3 * MS] == other.slots(0, 1)

    one.ask(0, back=3)  # what it remembers is of before the other's
    assert [4 * MS] == other.slots(0, 1)


# Pauses.


def test_a_pause_holds_everybody_and_merges_by_the_later_end(store: RealServer) -> None:
    """A server's Retry-After, told to one process."""
    one, other = Client(store), Client(store)
    one.ask(0, pause=5 * SECOND)
    one.ask(0, pause=1 * SECOND)
    answer = other.ask(2 * SECOND, 3)

    assert (0, 3 * SECOND) == (answer.granted, answer.paused)
    assert [5 * SECOND, 5 * SECOND + MS] == other.slots(5 * SECOND, 2)


def test_a_pause_leaves_no_burst_behind(store: RealServer) -> None:
    """Nothing is saved up meanwhile, or the line would be granted at once afterwards."""
    client = Client(store, "10/s", burst=10)
    client.slots(0, 10)
    client.ask(0, pause=60 * SECOND)

    assert [60 * SECOND, 60 * SECOND + 100 * MS] == client.slots(60 * SECOND + 150 * MS, 2)


def test_a_pause_ends_for_everybody(store: RealServer) -> None:
    """Whichever process began it."""
    one, other = Client(store), Client(store)
    one.ask(0, pause=60 * SECOND)
    other.ask(1 * SECOND, pause=0)

    assert [1 * SECOND] == one.slots(1 * SECOND, 1)


# A clock that is wrong, and state that is lost.


def test_a_clock_that_goes_back_has_not_moved(store: RealServer) -> None:
    """Nothing is booked twice, and no request waits until the clock is where it was."""
    one, other = Client(store), Client(store)
    one.slots(0, 10)

    answer = other.ask(-3600 * SECOND, 1)
    assert [10 * MS] == answer.starts
    answer = one.ask(-3600 * SECOND, 1, since_told=0)
    assert [11 * MS] == answer.starts


def test_state_an_old_replica_lacks_is_restored_by_a_client(store: RealServer) -> None:
    """A failover to a replica that had heard of less."""
    one, other = Client(store), Client(store)
    other.slots(0, 2)
    before = store.send("GET", one.key)
    one.slots(0, 18)
    store.send("SET", one.key, before)

    assert [20 * MS] == one.slots(1 * MS, 1)


def test_lost_state_is_restored_plus_one_horizon(store: RealServer) -> None:
    """The others may have booked that far ahead, and nothing must be booked twice."""
    one, other = Client(store, burst=300), Client(store, burst=300)
    one.slots(0, 300)
    one.slots(0, 10)
    store.send("FLUSHALL")

    assert [(11 - 4 + 20) * MS] == one.ask(4 * MS, 1).starts
    assert [(12 - 4 + 20) * MS] == other.ask(4 * MS, 1).starts


def test_state_that_expired_is_not_restored(store: RealServer) -> None:
    """A key that expired leaves a whole burst, without a horizon on top."""
    client = Client(store, burst=5)
    client.slots(0, 5)
    store.send("FLUSHALL")

    assert [-4 * MS] == client.ask(10 * SECOND, 1).starts


def test_a_lost_pause_is_restored_by_a_client(store: RealServer) -> None:
    """A store that is restarted must not end it."""
    client = Client(store)
    client.ask(0, pause=60 * SECOND)
    store.send("FLUSHALL")

    assert 50 * SECOND == client.ask(10 * SECOND, 1).paused


# The key.


def test_the_key_expires_once_it_equals_a_new_one(store: RealServer) -> None:
    """Never a fixed time: an hourly limit is kept for an hour, a fast one for a second."""
    Client(store, "1/h", name="slow").slots(0, 1)
    Client(store, "1000/s", burst=100, name="fast").slots(0, 1)

    assert 3600_000 < int(store.send("PTTL", "aiorate:slow")) <= 3601_000
    assert 0 < int(store.send("PTTL", "aiorate:fast")) <= 1_101


def test_a_key_is_kept_as_long_as_a_pause(store: RealServer) -> None:
    """However short the rate's own memory is."""
    Client(store).ask(0, pause=3600 * SECOND)

    assert 3600_000 < int(store.send("PTTL", "aiorate:x"))


@pytest.mark.parametrize(
    "value",
    [
        "",
        "5",
        "aiorate",
        "aiorate 1 0 0",
        "aiorate/1",
        "aiorate/1 x y z",
        "hello aiorate/1 1 2 3",
        "aiorate/1 1 nan 0",
        "aiorate/1 1 0 nan",
        "aiorate/1 1 0 1e300",
        "aiorate/1 1 0 0 -inf",
    ],
)
def test_a_value_of_somebody_else_is_left_alone(store: RealServer, value: str) -> None:
    """An error that says so, and nothing is overwritten."""
    store.send("SET", "aiorate:x", value)

    question = Question(1, horizon=1.0).words(limits_of((Rate(1),), (1,)))
    with pytest.raises(OSError, match="WRONGTYPE"):
        store.send("EVAL", TIMED, 1, "aiorate:x", *question, EPOCH)
    assert value == store.send("GET", "aiorate:x")


@pytest.mark.parametrize("value", ["aiorate/2 1 0 0", "aiorate/2 7 1 0 0", "aiorate/10 {}", "aiorate/1.1 1 0 0", "aiorate/", "aiorate/2"])
def test_a_value_of_another_version_is_left_alone(store: RealServer, value: str) -> None:
    """Another release may read it otherwise: an error that names both versions, and nothing is overwritten."""
    store.send("SET", "aiorate:x", value)

    question = Question(1, horizon=1.0).words(limits_of((Rate(1),), (1,)))
    with pytest.raises(OSError, match=f"-VERSION the key aiorate:x .* as {value.split()[0]}; this release reads aiorate/1"):
        store.send("EVAL", TIMED, 1, "aiorate:x", *question, EPOCH)
    assert value == store.send("GET", "aiorate:x")


@pytest.mark.parametrize(
    "reply",
    [
        *(b"", "", None, 7, "OK", b"\xff", [1]),
        *("aiorate/1 1 0 0; 1", "aiorate/1 1 0 nan; 1 0", "aiorate/1 1 0 1e300; 1 0", "aiorate/1 1 0 0; x 0"),
        *("aiorate 1 0 0; 1 0", "aiorate/2 1 0 0; 1 0"),
    ],
)
def test_a_malformed_answer_is_refused(reply: object) -> None:
    """A proxy, or another server: nothing is granted for it."""
    with pytest.raises(BadAnswer):
        read_answer(reply, 1)
