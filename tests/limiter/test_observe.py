"""What a server said, as the limiter heeds it: pauses, and quotas of which no more than what is left is granted until their reset.

By hand on a clock that is moved, to the nanosecond. How real clients bring the server's words is in tests/http/test_responses.py.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, one_loop, turns
from helpers.samples import examples, sampled
from helpers.strategies import EACH
from hypothesis import given
from hypothesis import strategies as st

from aiorate import Event, KeyedLimiter, Limiter, RateSpec, Scheduler, SlidingWindow, TokenBucket, TokenPool, WaitTooLong
from aiorate.http import Feedback, Quota, read_feedback
from aiorate.testing import ManualClock

pytestmark = one_loop


def said(*quotas: Quota, pause: float | None = None) -> Feedback:
    return Feedback(429 if pause else 200, pause, quotas, "a test")


def left(remaining: int, reset: float, **more: Any) -> Feedback:
    """So much remains, for so many seconds."""
    return said(Quota(remaining=remaining, reset=reset, **more))


def crowd_of(scheduler: Scheduler | None = None, **options: Any) -> Crowd:
    clock = ManualClock()
    return Crowd(Limiter(TokenBucket("10/s", burst=10) if scheduler is None else scheduler, clock=clock, **options), clock)


def seconds(crowd: Crowd) -> list[float]:
    return [at / SECOND for at in crowd.granted.values()]


# Pauses.


async def test_a_pause_holds_everybody_in_line() -> None:
    """One response with 429 is enough for all who wait, and for those who come."""
    crowd = crowd_of()
    await crowd.queue(range(12))

    crowd.limiter.observe(said(pause=5))
    await crowd.queue([12, 13])
    await crowd.clock.run(60)

    assert [0.0] * 10 + [5.1, 5.2, 5.3, 5.4] == seconds(crowd)


async def test_pauses_merge_by_the_later_end() -> None:
    """Whether a server or the program asked for them."""
    crowd = crowd_of()
    for pause in (3, 1, 5, 4):
        crowd.limiter.observe(said(pause=pause))
    crowd.limiter.pause(2)
    assert crowd.limiter.statistics().paused_until == 5.0

    crowd.limiter.pause(6)
    crowd.limiter.observe(said(pause=5.5))

    assert crowd.limiter.statistics().paused_until == 6.0


@pytest.mark.parametrize("feedback", [None, said(), said(pause=0), left(50, 1), Feedback(200, retry_after=1.0)])
async def test_nothing_that_a_server_says_ends_a_pause(feedback: Feedback | None) -> None:
    """python-telegram-bot/python-telegram-bot#5338: that others succeed says nothing of the one who was told to wait."""
    crowd = crowd_of()
    crowd.limiter.observe(said(pause=5))
    await crowd.clock.run(1)

    crowd.limiter.observe(feedback)

    assert crowd.limiter.statistics().paused_until == 5.0


async def test_a_pause_takes_a_timedelta() -> None:
    """As most HTTP clients and SDKs give it."""
    crowd = crowd_of()

    crowd.limiter.pause(timedelta(minutes=1, microseconds=1))

    assert crowd.limiter.statistics().paused_until == 60.000001


@pytest.mark.parametrize("text", ["3", "Fri, 31 Dec 1999 23:59:59 GMT", ""])
async def test_a_pause_for_a_text_says_what_to_do_with_a_header(text: str) -> None:
    """What is written first, and the date form would come later, in production."""
    crowd = crowd_of()

    with pytest.raises(TypeError, match=r"call observe\(aiorate\.http\.read_feedback\(status, headers\)\)"):
        crowd.limiter.pause(text)  # type: ignore[arg-type]

    assert crowd.limiter.statistics().paused_until is None


async def test_jitter_makes_a_pause_longer_and_never_shorter() -> None:
    """Clients that were sent away together must not come back together, and none too early."""
    ends = set()
    for _ in range(50):
        crowd = crowd_of()
        crowd.limiter.observe(said(pause=2), jitter=1)
        ends.add(crowd.limiter.statistics().paused_until)

    assert all(end is not None and 2 <= end < 3 for end in ends)
    assert len(ends) > 40


async def test_jitter_is_drawn_once_for_responses_that_come_together() -> None:
    """Of 200 draws the longest is the same for every client, and they would come back together after all."""
    crowd = crowd_of()
    crowd.limiter.observe(said(pause=2), jitter=1)
    end = crowd.limiter.statistics().paused_until

    for _ in range(200):
        crowd.limiter.observe(said(pause=2), jitter=1)

    assert end == crowd.limiter.statistics().paused_until


@pytest.mark.parametrize(("jitter", "error"), [("1", TypeError), (None, TypeError), (True, TypeError), (-1, ValueError)])
async def test_a_wrong_jitter_changes_nothing(jitter: Any, error: type[Exception]) -> None:
    """It is the caller's mistake, not the server's."""
    crowd = crowd_of()

    with pytest.raises(error, match=r"observe\(jitter\)"):
        crowd.limiter.observe(said(pause=2), jitter=jitter)

    assert crowd.limiter.statistics().paused_until is None


async def test_many_responses_make_one_event() -> None:
    """Two hundred answers of 429 within a moment are one pause, and one line of the log; a longer pause is told again."""
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
async def test_what_remains_is_all_that_is_granted_until_the_reset(name: str) -> None:
    """With every strategy, and each of the drivers."""
    crowd = crowd_of(EACH[name]())
    await crowd.clock.run(3)

    crowd.limiter.observe(left(2, 7))
    await crowd.queue(range(6))
    await crowd.clock.run(6.999999999)
    before = len(crowd.granted)
    await crowd.clock.run(60)

    assert (before, 6) == (2, len(crowd.granted))
    assert 10.0 == seconds(crowd)[2]


async def test_nothing_remains_and_a_reset_is_a_pause() -> None:
    """``r=0;t=30``, as read from the headers: nothing for 30 s."""
    crowd = crowd_of()

    crowd.limiter.observe(read_feedback(200, {"RateLimit": '"default";r=0;t=30'}))
    await crowd.queue(range(2))
    await crowd.clock.run(60)

    assert [30.0, 30.0] == seconds(crowd)


async def test_no_more_than_the_policy_allows() -> None:
    """10000 in 1000 s with 10000 left for 10 s are 100: draft 11, section 8.5. At least one, or nothing would ever be told again."""
    for policy, allowed in ((10, 10), (10_000, 100), (1, 1)):
        crowd = crowd_of(TokenBucket("1000/s", burst=1000))
        crowd.limiter.observe(left(10_000, 10, limit=policy, window=1000 if policy > 10 else 10))
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
async def test_what_holds_no_requests(quota: Quota) -> None:
    """Tokens are not requests, a bucket that is full at its reset has more before, and what names no end has none."""
    crowd = crowd_of()

    crowd.limiter.observe(said(quota))

    assert 10 == crowd.limiter.statistics().available


async def test_a_second_and_a_day_hold_side_by_side() -> None:
    """One left of this second must not be one left of this day."""
    crowd = crowd_of()
    crowd.limiter.observe(said(Quota("second", remaining=1, reset=1), Quota("day", remaining=4, reset=1000)))
    await crowd.queue(range(6))
    await crowd.clock.run(2000)

    assert [0.0, 1.0, 1.0, 1.0, 1000.0, 1000.0] == seconds(crowd)


async def test_a_window_that_was_told_of_during_a_pause_ends_at_its_own_end() -> None:
    """At 3 s: one in the next 10. The pause until 5 s makes that neither shorter nor longer."""
    crowd = crowd_of()
    crowd.limiter.pause(5)
    await crowd.clock.run(3)

    crowd.limiter.observe(left(1, 10))
    assert crowd.limiter.delay() == 2.0
    await crowd.queue(range(3))
    delay = crowd.limiter.delay()
    await crowd.clock.run(60)

    assert (10.0, [5.0, 13.0, 13.0]) == (delay, seconds(crowd))


@pytest.mark.parametrize("hold", ["pause", "stop"])
async def test_a_pause_does_not_prolong_the_servers_window(hold: str) -> None:
    """The limiter's time stands still, and the server's goes on."""
    crowd = crowd_of()
    crowd.limiter.observe(left(1, 10))
    await crowd.queue(range(2))
    if hold == "pause":
        crowd.limiter.pause(4)
    else:
        crowd.limiter.apply(RateSpec(10, 1, "stop"))
    await crowd.clock.run(4)
    crowd.limiter.apply(RateSpec(10, 1, "start"))
    await crowd.clock.run(60)

    assert [0.0, 10.0] == seconds(crowd)


async def test_a_pause_and_what_remains_in_one_response() -> None:
    """GitHub's and Discord's answers tell of both."""
    crowd = crowd_of()

    crowd.limiter.observe(said(Quota(remaining=1, reset=10), pause=4))
    await crowd.queue(range(2))
    await crowd.clock.run(60)

    assert [4.0, 10.0] == seconds(crowd)


async def test_what_is_told_again_and_again() -> None:
    """Each response tells what remains after it. Late ones remain larger, and change nothing; a new window comes with its own."""
    crowd = crowd_of()
    crowd.limiter.observe(left(3, 1))
    await crowd.queue(range(20))
    for remaining in (2, 1, 2):
        crowd.limiter.observe(left(remaining, 1))
    await crowd.clock.run(1)
    assert 13 == crowd.limiter.statistics().granted  # three, and at 1 s all that the bucket has

    crowd.limiter.observe(left(1, 1))
    await crowd.clock.run(60)

    assert [0.0] * 3 + [1.0] * 10 + [1.1] + [2.0] * 6 == seconds(crowd)


# Looking and steering under a cap.


async def test_statistics_delay_and_max_wait_are_exact_under_a_cap() -> None:
    """A refusal at once, or a promise that is kept, also for those behind a line."""
    crowd = crowd_of()
    crowd.limiter.observe(left(2, 5))
    assert (2, 0.0, 5.0) == (crowd.limiter.statistics().available, crowd.limiter.delay(2), crowd.limiter.delay(3))

    await crowd.queue(range(3))
    statistics = crowd.limiter.statistics()
    assert (0, 5.0, 5.0, 5.1) == (statistics.available, statistics.next_at, crowd.limiter.delay(9), crowd.limiter.delay(10))
    with pytest.raises(WaitTooLong, match=r"would wait 5 s"):
        await crowd.limiter.acquire(max_wait=4.999)
    crowd.ask(3, max_wait=5)
    await crowd.clock.run(60)

    assert [0.0, 0.0, 5.0, 5.0] == seconds(crowd)


async def test_who_is_cancelled_in_line_leaves_what_remains() -> None:
    """Two are left, a request for three waits for more, and moves out of the way of those behind."""
    crowd = crowd_of()
    crowd.limiter.observe(left(2, 5))
    large = crowd.ask("large", 3)
    await crowd.queue(range(3))
    assert not crowd.granted

    large.cancel()
    await crowd.clock.run(60)

    assert [0.0, 0.0, 5.0] == seconds(crowd)


async def test_a_grant_that_is_handed_back_in_line_goes_to_the_next() -> None:
    """The cap ends, somebody is granted and cancelled in the same step, while another cap allows just one."""
    crowd = crowd_of(TokenBucket("10/s", burst=10))
    crowd.limiter.observe(said(Quota("short", remaining=1, reset=1), Quota("long", remaining=2, reset=9)))
    await crowd.queue(range(4))

    crowd.clock.advance(1)  # grants the second of them, who has not run yet
    crowd.tasks[1].cancel()
    await crowd.clock.run(7)
    assert [0, 2] == list(crowd.granted)

    await crowd.clock.run(60)
    assert [0.0, 1.0, 9.0] == seconds(crowd)


async def test_a_rate_that_is_raised_does_not_raise_what_remains() -> None:
    """And one that is lowered holds as well."""
    crowd = crowd_of()
    crowd.limiter.observe(left(1, 5))
    await crowd.queue(range(3))
    crowd.limiter.set_rate("1000/s")
    crowd.limiter.apply("2000,1,configure")
    await crowd.clock.run(4)
    assert [0.0] == seconds(crowd)
    assert crowd.limiter.rate.permits == 2000

    crowd.limiter.set_rate("1/10s")
    await crowd.clock.run(100)

    assert [0.0, 5.0, 5.0] == seconds(crowd)


async def test_refunds_and_charges_are_the_limiters_own() -> None:
    """Neither makes more of the server's window."""
    crowd = crowd_of()
    crowd.limiter.observe(left(2, 5))
    crowd.limiter.charge(9)
    crowd.limiter.refund(9)
    await crowd.queue(range(3))
    crowd.limiter.refund(3)
    await crowd.clock.run(60)

    assert [0.0, 0.0, 5.0] == seconds(crowd)


async def test_reset_forgets_what_a_server_said() -> None:
    """As a new limiter does, and the way out where a server talks nonsense."""
    crowd = crowd_of()
    crowd.limiter.observe(said(Quota(remaining=1, reset=86_400), pause=3600))
    await crowd.queue(range(3))

    crowd.limiter.reset()
    await turns(5)

    assert [0.0] * 3 == seconds(crowd)
    assert 7 == crowd.limiter.statistics().available


async def test_resume_ends_the_pause_and_not_the_window() -> None:
    """It says: whoever asked for it, a pause; what remains of the window stays so."""
    crowd = crowd_of()
    crowd.limiter.observe(said(Quota(remaining=1, reset=10), pause=4))
    await crowd.queue(range(2))
    await crowd.clock.run(1)
    crowd.limiter.resume()
    await crowd.clock.run(60)

    assert [1.0, 10.0] == seconds(crowd)


async def test_the_scheduler_is_the_users_own() -> None:
    """Whatever a server said."""
    bucket = TokenBucket("10/s", burst=10)
    crowd = crowd_of(bucket)
    bound = crowd.limiter.bound(1)

    crowd.limiter.observe(left(1, 5))

    assert crowd.limiter.scheduler is bucket
    assert bucket.rate == crowd.limiter.rate == crowd.limiter.statistics().rate
    assert bound == crowd.limiter.bound(1)


@pytest.mark.asyncio
async def test_after_the_reset_nothing_stands_in_the_way() -> None:
    """The shortest way to a permit is open again, in a real loop; no timer had to be set for that."""
    limiter = Limiter(TokenBucket("100/s", burst=100))
    await limiter.acquire()
    limiter.observe(left(50, 0.001))
    assert limiter.dispatcher.scheduler is not limiter.scheduler

    await asyncio.sleep(0.002)
    await limiter.acquire()
    limiter.delay()  # looks around; so does any call that comes 5 ms after another

    assert limiter.dispatcher.scheduler is limiter.scheduler
    assert limiter.dispatcher.fast_until > 0


async def test_nothing_is_left_behind_by_an_idle_limiter() -> None:
    """Nobody waits, so no timer is needed for the end of a pause or of a window."""
    crowd = crowd_of()
    crowd.limiter.observe(said(Quota(remaining=1, reset=10), pause=4))

    assert crowd.clock.timers == 0


# That it only ever lowers what is available, whatever is said, and when.

counts = st.integers(0, 4)
times = st.sampled_from([0, 0.1, 0.3, 1, 1.05, 3])
quotas = st.builds(Quota, remaining=st.none() | counts, reset=st.none() | times, limit=st.none() | counts, window=st.none() | times)
feedbacks = st.builds(Feedback, st.just(200), st.sampled_from([None, None, 0, 0.2, 1.5]), st.lists(quotas, max_size=3).map(tuple))
steps = st.lists(st.tuples(times, st.integers(1, 3), st.none() | feedbacks), min_size=1, max_size=8)


async def follow(limiter: Limiter, clock: ManualClock, history: list[tuple[float, int, Feedback | None]]) -> list[tuple[int, int]]:
    """The instants of the grants, in the order of asking, and their permits."""
    crowd = Crowd(limiter, clock)
    for name, (gap, permits, feedback) in enumerate(history):
        await clock.run(gap)
        limiter.observe(feedback)
        crowd.ask(name, permits)
        await turns(3)
    await clock.run(100)
    return [(crowd.granted[name], permits) for name, (_, permits, _) in enumerate(history)]


@sampled
@pytest.mark.parametrize("name", ["TokenPool", "BurstCompensation-half", "SmoothBursty", "TokenBucket", "SlidingWindow"])
async def test_it_only_ever_lowers_what_is_available(name: str) -> None:
    """Any sequence of responses: nobody is granted earlier than without them, and no more within a window than was left of it."""

    @examples(40)
    @given(steps)
    def trial(history: list[tuple[float, int, Feedback | None]]) -> None:
        asyncio.run(compare(history))

    async def compare(history: list[tuple[float, int, Feedback | None]]) -> None:
        grants: list[list[tuple[int, int]]] = []
        for heeds in (True, False):
            clock = ManualClock()
            limiter = Limiter(EACH[name](), clock=clock)
            grants.append(await follow(limiter, clock, [(gap, n, feedback if heeds else None) for gap, n, feedback in history]))
        told, untold = grants
        assert all(at >= without for (at, _), (without, _) in zip(told, untold, strict=True))

        now = 0
        for gap, _, feedback in history:
            now += round(gap * SECOND)
            for quota in () if feedback is None else feedback.quotas:
                if quota.remaining and quota.reset:
                    until = now + round(quota.reset * SECOND)
                    # At the very instant some may have been granted before the server spoke.
                    assert sum(permits for at, permits in told if now < at < until) <= quota.remaining
            if feedback is not None and feedback.pause:
                assert not [at for at, _ in told if now < at < now + round(feedback.pause * SECOND)]

    await asyncio.to_thread(trial)


# Bad input.


@pytest.mark.parametrize("nonsense", ["3", 429, 3.5, True, b"", object(), {}, {"pause": 3}, [], Feedback, Limiter, (429, {})])
async def test_nonsense_is_refused_and_says_what_to_do(nonsense: Any) -> None:
    """Status and headers, or the whole response, is what is tried first."""
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
        (left("5", 3), TypeError),
        (left(2.5, 3), TypeError),
        (left(True, 3), TypeError),
        (left(-1, 3), ValueError),
        (left(5, "3"), TypeError),
        (left(5, -3), ValueError),
        (left(5, float("nan")), ValueError),
        (left(5, 3, limit="5"), TypeError),
        (left(5, 3, limit=-5), ValueError),
        (left(5, 3, limit=5, window="1"), TypeError),
        (said(Quota(remaining=5, reset=3), Quota(remaining=-1, reset=3), pause=3), ValueError),
    ],
)
async def test_feedback_of_ones_own_that_cannot_be_is_refused_whole(feedback: Any, error: type[Exception]) -> None:
    """A call that raises has changed nothing: not the pause either, where only a quota is wrong."""
    crowd = crowd_of()

    with pytest.raises(error, match=r"observe\(\)"):
        crowd.limiter.observe(feedback)

    assert (None, 10) == (crowd.limiter.statistics().paused_until, crowd.limiter.statistics().available)


async def test_the_largest_numbers_are_as_good_as_any() -> None:
    """A quota of a googol, in a window of a googol seconds."""
    crowd = crowd_of()

    crowd.limiter.observe(left(10**100, 10**9, limit=10**400, window=10.0**100))

    assert 10 == crowd.limiter.statistics().available


# Keys.


def keyed_of(clock: ManualClock, **options: Any) -> KeyedLimiter[str]:
    return KeyedLimiter(lambda key: Limiter(TokenBucket("10/s", burst=10), clock=clock), **options)


def paused(keyed: KeyedLimiter[str], *keys: str) -> list[float | None]:
    return [keyed[key].statistics().paused_until for key in keys]


async def test_a_key_heeds_what_was_said_of_it_and_no_other() -> None:
    """F7: one flooded key must not stop them all."""
    keyed = keyed_of(ManualClock())

    keyed.observe("a", said(Quota(remaining=1, reset=9), pause=5))
    keyed.observe("b", None)

    assert [5.0, None] == paused(keyed, "a", "b")
    assert [10, None] == [keyed["b"].statistics().available, keyed["c"].statistics().paused_until]


async def test_what_concerns_all_keys_pauses_the_shared_limit() -> None:
    """Discord's global limit. What the same response says of its route concerns its route."""
    clock = ManualClock()
    shared = Limiter(TokenBucket("50/s", burst=50), clock=clock)
    keyed = keyed_of(clock, shared=shared)

    headers = {"X-RateLimit-Global": "true", "Retry-After": "3", "X-RateLimit-Remaining": "4", "X-RateLimit-Reset-After": "9"}
    keyed.observe("a", read_feedback(429, headers))

    assert [None, None, 3.0] == [*paused(keyed, "a", "b"), shared.statistics().paused_until]
    clock.advance(4)
    assert not keyed.try_acquire("a", 5)
    assert keyed.try_acquire("b", 2)


async def test_without_a_shared_limit_the_key_heeds_it() -> None:
    """It is better than nobody."""
    keyed = keyed_of(ManualClock())

    keyed.observe("a", read_feedback(429, {"X-RateLimit-Global": "true", "Retry-After": "3"}))

    assert [3.0, None] == paused(keyed, "a", "b")


async def test_a_policy_called_global_of_which_some_remains_concerns_the_key() -> None:
    """The name alone says nothing."""
    clock = ManualClock()
    keyed = keyed_of(clock, shared=Limiter("50/s", clock=clock))

    keyed.observe("a", said(Quota("global", limit=100, remaining=7, reset=3), pause=2))

    assert keyed.shared is not None
    assert [2.0, None] == [*paused(keyed, "a"), keyed.shared.statistics().paused_until]


async def test_a_closed_one_does_nothing() -> None:
    """Responses are still on their way when a program ends."""
    keyed = keyed_of(ManualClock())
    await keyed.aclose()

    keyed.observe("a", said(pause=5))

    assert 0 == len(keyed)


async def test_wrong_keys_and_nonsense_are_refused() -> None:
    """As everywhere."""
    keyed: Any = keyed_of(ManualClock())

    with pytest.raises(TypeError, match="must be hashable"):
        keyed.observe([], said(pause=5))
    with pytest.raises(TypeError, match=r"read_feedback\(status, headers\)"):
        keyed.observe("a", 429)
    with pytest.raises(TypeError, match=r"observe\(jitter\)"):
        keyed.observe("a", said(pause=5), jitter="1")

    assert [None] == paused(keyed, "a")


async def test_a_key_that_is_capped_is_not_evicted() -> None:
    """A new one in its place would grant what the server has said is not there."""
    clock = ManualClock()
    keyed = keyed_of(clock)
    keyed.observe("a", left(1, 5))

    assert [0, 1] == [keyed.evict(), len(keyed)]
    clock.advance(5)
    assert [1, 0] == [keyed.evict(), len(keyed)]


@pytest.mark.parametrize("scheduler", [TokenPool("10/s"), SlidingWindow("10/s")], ids=["filler", "alarm"])
async def test_a_lower_cap_finds_those_in_line(scheduler: Scheduler) -> None:
    """They wait for a permit that was due earlier, and the timer is set for that."""
    crowd = crowd_of(scheduler)
    crowd.limiter.try_acquire(10)
    await crowd.queue(range(3))

    crowd.limiter.observe(left(1, 20))
    await crowd.clock.run(60)

    assert [20.0, 20.0] == [max(at, 20.0) for at in seconds(crowd)[1:]]
    assert seconds(crowd)[0] <= 1.0
    assert len(crowd.granted) == 3
