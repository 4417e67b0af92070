"""observe(): pauses, and quotas, of which only what remains is granted until their reset.

On a ManualClock, to the nanosecond. How responses of real clients arrive here is tested in tests/http/test_responses.py.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from helpers.driving import one_loop
from helpers.feedback import crowd_of, remaining, said, seconds
from helpers.strategies import EACH

from aiorate import Event, Limiter, RateSpec, TokenBucket
from aiorate.http import Feedback, Quota, read_feedback

pytestmark = one_loop


# Pauses.


async def test_a_pause_delays_every_request() -> None:
    """One response with 429 delays all requests in line, and later ones."""
    crowd = crowd_of()
    await crowd.queue(range(12))

    crowd.limiter.observe(said(pause=5))
    await crowd.queue([12, 13])
    await crowd.clock.run(60)

    assert [0.0] * 10 + [5.1, 5.2, 5.3, 5.4] == seconds(crowd)


async def test_pauses_merge_by_the_later_end() -> None:
    """It makes no difference whether a server or the program asked for them."""
    crowd = crowd_of()
    for pause in (3, 1, 5, 4):
        crowd.limiter.observe(said(pause=pause))
    crowd.limiter.pause(2)
    assert crowd.limiter.statistics().paused_until == 5.0

    crowd.limiter.pause(6)
    crowd.limiter.observe(said(pause=5.5))

    assert crowd.limiter.statistics().paused_until == 6.0


@pytest.mark.parametrize("feedback", [None, said(), said(pause=0), remaining(50, 1), Feedback(200, retry_after=1.0)])
async def test_no_feedback_ends_a_pause(feedback: Feedback | None) -> None:
    """python-telegram-bot/python-telegram-bot#5338: the success of other requests does not end the pause."""
    crowd = crowd_of()
    crowd.limiter.observe(said(pause=5))
    await crowd.clock.run(1)

    crowd.limiter.observe(feedback)

    assert crowd.limiter.statistics().paused_until == 5.0


async def test_a_pause_takes_a_timedelta() -> None:
    """Many HTTP clients and SDKs provide one."""
    crowd = crowd_of()

    crowd.limiter.pause(timedelta(minutes=1, microseconds=1))

    assert crowd.limiter.statistics().paused_until == 60.000001


@pytest.mark.parametrize("text", ["3", "Fri, 31 Dec 1999 23:59:59 GMT", ""])
async def test_pause_refuses_the_text_of_a_header(text: str) -> None:
    """The error says what to call: passing the header is the first idea, and its date form would fail later, in production."""
    crowd = crowd_of()

    with pytest.raises(TypeError, match=r"call observe\(aiorate\.http\.read_feedback\(status, headers\)\)"):
        crowd.limiter.pause(text)  # type: ignore[arg-type]

    assert crowd.limiter.statistics().paused_until is None


async def test_jitter_makes_a_pause_longer_and_never_shorter() -> None:
    """Clients that were refused together must not come back together, and none too early."""
    ends = set()
    for _ in range(50):
        crowd = crowd_of()
        crowd.limiter.observe(said(pause=2), jitter=1)
        ends.add(crowd.limiter.statistics().paused_until)

    assert all(end is not None and 2 <= end < 3 for end in ends)
    assert len(ends) > 40


async def test_jitter_is_drawn_once_for_simultaneous_responses() -> None:
    """The maximum of 200 draws is about the same for every client, and they would come back together."""
    crowd = crowd_of()
    crowd.limiter.observe(said(pause=2), jitter=1)
    end = crowd.limiter.statistics().paused_until

    for _ in range(200):
        crowd.limiter.observe(said(pause=2), jitter=1)

    assert end == crowd.limiter.statistics().paused_until


@pytest.mark.parametrize(("jitter", "error"), [("1", TypeError), (None, TypeError), (True, TypeError), (-1, ValueError)])
async def test_a_bad_jitter_changes_nothing(jitter: Any, error: type[Exception]) -> None:
    """Even the pause of the response is not applied, since the mistake is the caller's."""
    crowd = crowd_of()

    with pytest.raises(error, match=r"observe\(jitter\)"):
        crowd.limiter.observe(said(pause=2), jitter=jitter)

    assert crowd.limiter.statistics().paused_until is None


async def test_many_responses_make_one_event() -> None:
    """Two hundred answers of 429 in 0.2 s are one event; a longer pause, or a new one, is another."""
    events: list[Event] = []
    crowd = crowd_of(on_event=events.append)
    for _ in range(200):
        crowd.limiter.observe(said(pause=5))
        crowd.clock.advance(0.001)
    assert [5.0] == [event.seconds for event in events]

    crowd.limiter.observe(said(pause=10))
    crowd.clock.advance(60)
    crowd.limiter.observe(said(pause=0.5))

    assert [5.0, 10.0, 0.5] == [event.seconds for event in events]
    assert {("paused", "a test")} == {(event.kind, event.source) for event in events}


# Quotas.


@pytest.mark.parametrize("name", EACH)
async def test_a_quota_limits_grants_until_its_reset(name: str) -> None:
    """This holds with every strategy, and so with each driver."""
    crowd = crowd_of(EACH[name]())
    await crowd.clock.run(3)

    crowd.limiter.observe(remaining(2, 7))
    await crowd.queue(range(6))
    await crowd.clock.run(6.999999999)
    before = len(crowd.granted)
    await crowd.clock.run(60)

    assert (before, 6) == (2, len(crowd.granted))
    assert 10.0 == seconds(crowd)[2]


async def test_a_quota_of_zero_is_a_pause() -> None:
    """``r=0;t=30`` in a header stops all requests for 30 s."""
    crowd = crowd_of()

    crowd.limiter.observe(read_feedback(200, {"RateLimit": '"default";r=0;t=30'}))
    await crowd.queue(range(2))
    await crowd.clock.run(60)

    assert [30.0, 30.0] == seconds(crowd)


async def test_a_quota_is_lowered_to_its_policy() -> None:
    """10000 in 1000 s with 10000 left for 10 s are 100: draft 11, section 8.5. At least one, or no response would ever come again."""
    for policy, allowed in ((10, 10), (10_000, 100), (1, 1)):
        crowd = crowd_of(TokenBucket("1000/s", burst=1000))
        crowd.limiter.observe(remaining(10_000, 10, limit=policy, window=1000 if policy > 10 else 10))
        assert allowed == crowd.limiter.statistics().available


@pytest.mark.parametrize(
    "quota",
    [
        Quota(remaining=1, reset=30, unit="tokens", name="tokens"),
        Quota(remaining=1, reset=30, unit="concurrent-requests"),
        Quota(remaining=1, reset=30, full_at_reset=True),
        Quota(remaining=1),
        Quota(remaining=1, reset=0),
        Quota(limit=1, window=1),
        Quota(reset=30),
    ],
)
async def test_some_quotas_limit_no_requests(quota: Quota) -> None:
    """They are of tokens or of concurrency, of a bucket that refills before its reset, or lack a count or an end."""
    crowd = crowd_of()

    crowd.limiter.observe(said(quota))

    assert 10 == crowd.limiter.statistics().available


async def test_quotas_of_a_second_and_of_a_day_hold_side_by_side() -> None:
    """One permit left in this second does not mean one left for the day."""
    crowd = crowd_of()
    crowd.limiter.observe(said(Quota("second", remaining=1, reset=1), Quota("day", remaining=4, reset=1000)))
    await crowd.queue(range(6))
    await crowd.clock.run(2000)

    assert [0.0, 1.0, 1.0, 1.0, 1000.0, 1000.0] == seconds(crowd)


async def test_a_pause_does_not_move_a_window_reported_during_it() -> None:
    """At 3 s a server allows one request in the next 10 s. The pause until 5 s makes that neither shorter nor longer."""
    crowd = crowd_of()
    crowd.limiter.pause(5)
    await crowd.clock.run(3)

    crowd.limiter.observe(remaining(1, 10))
    assert crowd.limiter.delay() == 2.0
    await crowd.queue(range(3))
    delay = crowd.limiter.delay()
    await crowd.clock.run(60)

    assert (10.0, [5.0, 13.0, 13.0]) == (delay, seconds(crowd))


@pytest.mark.parametrize("hold", ["pause", "stop"])
async def test_a_pause_does_not_prolong_the_servers_window(hold: str) -> None:
    """The limiter's time stands still during it, and the server's goes on."""
    crowd = crowd_of()
    crowd.limiter.observe(remaining(1, 10))
    await crowd.queue(range(2))
    if hold == "pause":
        crowd.limiter.pause(4)
    else:
        crowd.limiter.apply(RateSpec(10, 1, "stop"))
    await crowd.clock.run(4)
    crowd.limiter.apply(RateSpec(10, 1, "start"))
    await crowd.clock.run(60)

    assert [0.0, 10.0] == seconds(crowd)


async def test_one_response_may_have_a_pause_and_a_quota() -> None:
    """Responses of GitHub and Discord have both."""
    crowd = crowd_of()

    crowd.limiter.observe(said(Quota(remaining=1, reset=10), pause=4))
    await crowd.queue(range(2))
    await crowd.clock.run(60)

    assert [4.0, 10.0] == seconds(crowd)


async def test_late_responses_do_not_raise_a_quota() -> None:
    """Each response reports what remains after it. A late one reports more and changes nothing; a new window has a new quota."""
    crowd = crowd_of()
    crowd.limiter.observe(remaining(3, 1))
    await crowd.queue(range(20))
    for permits in (2, 1, 2):
        crowd.limiter.observe(remaining(permits, 1))
    await crowd.clock.run(1)
    assert 13 == crowd.limiter.statistics().granted  # three, and at 1 s all ten of the bucket

    crowd.limiter.observe(remaining(1, 1))
    await crowd.clock.run(60)

    assert [0.0] * 3 + [1.0] * 10 + [1.1] + [2.0] * 6 == seconds(crowd)


# Bad input.


@pytest.mark.parametrize("nonsense", ["3", 429, 3.5, True, b"", object(), {}, {"pause": 3}, [], Feedback, Limiter, (429, {})])
async def test_observe_refuses_anything_but_feedback(nonsense: Any) -> None:
    """The error says what to call: users try status and headers, or the whole response."""
    crowd = crowd_of()

    with pytest.raises(TypeError, match=r"observe\(\)"):
        crowd.limiter.observe(nonsense)
    with pytest.raises(TypeError, match=r"read_feedback\(status, headers\)"):
        crowd.limiter.observe("3")  # type: ignore[arg-type]

    assert (None, 10) == (crowd.limiter.statistics().paused_until, crowd.limiter.statistics().available)


@pytest.mark.parametrize(
    ("feedback", "error"),
    [
        (Feedback(429, "3"), TypeError),
        (Feedback(429, -1), ValueError),
        (Feedback(429, float("nan")), ValueError),
        (Feedback(429, float("inf")), ValueError),
        (Feedback(429, 5, None), TypeError),
        (Feedback(429, 5, (None,)), TypeError),
        (Feedback(429, 5, source=None), TypeError),
        (remaining("5", 3), TypeError),
        (remaining(2.5, 3), TypeError),
        (remaining(True, 3), TypeError),
        (remaining(-1, 3), ValueError),
        (remaining(5, "3"), TypeError),
        (remaining(5, -3), ValueError),
        (remaining(5, float("nan")), ValueError),
        (remaining(5, 3, limit="5"), TypeError),
        (remaining(5, 3, limit=-5), ValueError),
        (remaining(5, 3, limit=5, window="1"), TypeError),
        (said(Quota(remaining=5, reset=3), Quota(remaining=-1, reset=3), pause=3), ValueError),
    ],
)
async def test_impossible_feedback_changes_nothing(feedback: Any, error: type[Exception]) -> None:
    """Not even its pause is applied if only a quota is wrong."""
    crowd = crowd_of()

    with pytest.raises(error, match=r"observe\(\)"):
        crowd.limiter.observe(feedback)

    assert (None, 10) == (crowd.limiter.statistics().paused_until, crowd.limiter.statistics().available)


async def test_huge_quotas_are_accepted() -> None:
    """A quota of a googol, in a window of a googol seconds."""
    crowd = crowd_of()

    crowd.limiter.observe(remaining(10**100, 10**9, limit=10**400, window=10.0**100))

    assert 10 == crowd.limiter.statistics().available
