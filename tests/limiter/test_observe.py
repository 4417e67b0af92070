"""observe(): pauses, and quotas, of which only what remains is granted until their reset.

On a ManualClock, to the nanosecond. How responses of real clients arrive here is tested in tests/http.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from helpers.driving import SECOND, Crowd, one_loop, turns
from helpers.feedback import crowd_of, granted, remaining, said, seconds
from helpers.strategies import EACH

from aiorate import AllOf, Event, KeyedLimiter, Limiter, SlidingWindow, TokenBucket, TokenPool, WaitTooLong
from aiorate.http import Feedback, Quota, read_feedback
from aiorate.testing import ManualClock

pytestmark = one_loop


async def test_what_a_server_says_applies_to_all_requests() -> None:
    """To those in line, and later ones. At first, a full bucket of ten permits at 10/s."""
    both = said(Quota(remaining=1, reset=10), pause=4)
    rows: list[tuple[list[tuple[Any, ...]], list[float]]] = [
        # Pauses merge by the later end, whoever asked for them; no other response ends one: those of other requests arrive late.
        ([(0, 12), (0, said(pause=5)), (0, 2)], [0] * 10 + [5.1, 5.2, 5.3, 5.4]),
        ([*((0, said(pause=pause)) for pause in (3, 1, 5, 4)), (0, "pause", 2), (0, 1)], [5]),
        ([(0, said(pause=5)), (0, "pause", 6), (0, said(pause=5.5)), (0, 1)], [6]),
        ([(0, said(pause=5)), (0, 1), (1, None), (0, said()), (0, said(pause=0)), (0, remaining(50, 1))], [5]),
        ([(0, said(pause=5)), (0, 1), (1, Feedback(200, retry_after=1.0))], [5]),
        # A quota of zero is a pause; a response may have both, and resume() ends the pause only.
        ([(0, read_feedback(200, {"RateLimit": '"default";r=0;t=30'})), (0, 2)], [30, 30]),
        ([(0, both), (0, 2)], [4, 10]),
        ([(0, both), (0, 2), (1, "resume")], [1, 10]),
        ([(0, said(Quota("second", remaining=1, reset=1), Quota("day", remaining=4, reset=1000))), (0, 6)], [0, 1, 1, 1, 1000, 1000]),
        # The limiter's time stands still during a pause, and the server's goes on.
        ([(0, "pause", 5), (3, remaining(1, 10)), (0, 3)], [5, 13, 13]),
        ([(0, remaining(1, 10)), (0, 2), (0, "pause", 4)], [0, 10]),
        ([(0, remaining(1, 10)), (0, 2), (0, "apply", "10,1,stop"), (4, "apply", "10,1,start")], [0, 10]),
        # Each response reports what remains after it. A late one reports more and changes nothing; a new window has a new quota.
        (
            [(0, remaining(3, 1)), (0, 20), *((0, remaining(left, 1)) for left in (2, 1, 2)), (1, remaining(1, 1))],
            [0] * 3 + [1] * 10 + [1.1] + [2] * 6,
        ),
        # Charges, refunds and a higher rate change the limiter's own schedule only; a lower rate applies after the reset.
        ([(0, remaining(1, 5)), (0, "charge", 9), (0, "refund", 9), (0, 3), (0, "refund", 3)], [0, 5, 5]),
        ([(0, remaining(1, 5)), (0, 2), (0, "set_rate", "1000/s"), (0, "apply", "2000,1,configure")], [0, 5]),
        ([(0, remaining(1, 5)), (0, 3), (4, "set_rate", "1/10s")], [0, 5, 5]),
        # reset() is the way out if a server reports nonsense.
        ([(0, said(Quota(remaining=1, reset=86_400), pause=3600)), (0, 3), (1, "reset")], [1, 1, 1]),
    ]
    for number, (steps, instants) in enumerate(rows):
        assert await granted(*steps) == instants, f"row {number}"


async def test_a_new_cap_applies_to_requests_in_line() -> None:
    assert await granted((0, 3), (0, remaining(1, 20)), scheduler=TokenPool("10/s")) == [0, 0.1, 20]
    assert await granted((0, 13), (0, remaining(1, 20)), scheduler=SlidingWindow("10/s")) == [0] * 10 + [1, 20, 20]


async def test_jitter_makes_a_pause_longer_and_never_shorter() -> None:
    """Clients that were refused together must not come back together; simultaneous responses draw it once, or all would get its maximum."""
    ends = set()
    for _ in range(50):
        crowd = crowd_of()
        for _ in range(5):
            crowd.limiter.observe(said(pause=2), jitter=1)
            ends.add(crowd.limiter.statistics().paused_until)

    assert all(end is not None and 2 <= end < 3 for end in ends)
    assert 40 < len(ends) <= 50


async def test_many_responses_make_one_event() -> None:
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


async def test_a_quota_limits_grants_until_its_reset() -> None:
    for name, make in EACH.items():
        crowd = crowd_of(make())
        await crowd.clock.run(3)

        crowd.limiter.observe(remaining(2, 7))
        await crowd.queue(range(6))
        await crowd.clock.run(6.999999999)
        before = len(crowd.granted)
        await crowd.clock.run(60)

        assert (before, len(crowd.granted), seconds(crowd)[2]) == (2, 6, 10.0), name


async def test_a_quota_is_lowered_to_its_policy() -> None:
    """10000 in 1000 s with 10000 left for 10 s are 100: draft 11, section 8.5. At least one, or no response would ever come again."""
    for policy, allowed in ((10, 10), (10_000, 100), (1, 1)):
        crowd = crowd_of(TokenBucket("1000/s", burst=1000))
        crowd.limiter.observe(remaining(10_000, 10, limit=policy, window=1000 if policy > 10 else 10))
        assert allowed == crowd.limiter.statistics().available


async def test_what_was_used_leaves_the_rest_of_a_limit() -> None:
    """Of the one that is told, or of the limiter's own of that period."""
    for rates, limit, available in (
        (["1200/min"], None, 50),
        (["50/s", "1200/min"], None, 50),
        (["20/s"], None, 100),
        (["20/s"], 1160, 10),
    ):
        crowd = crowd_of(AllOf(*(TokenBucket(rate, burst=100, initial=100) for rate in rates)))
        crowd.limiter.observe(said(Quota("weight", limit=limit, used=1150, window=60, reset=30)))

        assert available == crowd.limiter.statistics().available


async def test_some_quotas_limit_no_requests() -> None:
    """They are of tokens or of concurrency, of a bucket that refills before its reset, or lack a count or an end; or are huge."""
    for quota in (
        Quota(remaining=1, reset=30, unit="tokens", name="tokens"),
        Quota(remaining=1, reset=30, unit="concurrent-requests"),
        Quota(remaining=1, reset=30, full_at_reset=True),
        Quota(remaining=1),
        Quota(remaining=1, reset=0),
        Quota(limit=1, window=1),
        Quota(reset=30),
        Quota(remaining=10**100, reset=10**9, limit=10**400, window=10.0**100),
    ):
        crowd = crowd_of()

        crowd.limiter.observe(said(quota))

        assert crowd.limiter.statistics().available == 10, quota


async def test_statistics_delay_and_max_wait_are_exact_under_a_cap() -> None:
    crowd = crowd_of()
    crowd.limiter.observe(remaining(2, 5))
    assert (2, 0.0, 5.0) == (crowd.limiter.statistics().available, crowd.limiter.delay(2), crowd.limiter.delay(3))

    await crowd.queue(range(3))
    statistics = crowd.limiter.statistics()
    assert (0, 5.0, 5.0, 5.1) == (statistics.available, statistics.next_at, crowd.limiter.delay(9), crowd.limiter.delay(10))
    with pytest.raises(WaitTooLong, match=r"would wait 5 s"):
        await crowd.limiter.acquire(max_wait=4.999)
    crowd.ask(3, max_wait=5)
    await crowd.clock.run(60)

    assert [0.0, 0.0, 5.0, 5.0] == seconds(crowd)


async def test_feedback_only_ever_lowers_what_is_available() -> None:
    """For any sequence of responses: no grant is earlier than without them, and each window grants at most what was left of it."""

    async def follow(name: str, history: list[tuple[float, int, Feedback | None]]) -> list[tuple[int, int]]:
        clock = ManualClock()
        crowd = Crowd(Limiter(EACH[name](), clock=clock), clock)
        for who, (gap, permits, feedback) in enumerate(history):
            await clock.run(gap)
            crowd.limiter.observe(feedback)
            crowd.ask(who, permits)
            await turns(3)
        await clock.run(100)
        return [(crowd.granted[who], permits) for who, (_, permits, _) in enumerate(history)]

    def quota() -> Quota:
        count, time = [None, 0, 1, 2, 3, 4], [None, 0, 0.1, 0.3, 1, 1.05, 3]
        return Quota(remaining=dice.choice(count), reset=dice.choice(time), limit=dice.choice(count), window=dice.choice(time))

    def feedback() -> Feedback | None:
        quotas = tuple(quota() for _ in range(dice.randint(0, 3)))
        return dice.choice([None, Feedback(200, dice.choice([None, None, 0, 0.2, 1.5]), quotas)])

    dice = random.Random(3)
    for name in ("TokenPool", "BurstCompensation-half", "SmoothBursty", "TokenBucket", "SlidingWindow") * 8:
        history = [(dice.choice([0, 0.1, 0.3, 1, 1.05, 3]), dice.randint(1, 3), feedback()) for _ in range(dice.randint(1, 8))]
        told, untold = await follow(name, history), await follow(name, [(gap, permits, None) for gap, permits, _ in history])
        assert all(at >= without for (at, _), (without, _) in zip(told, untold, strict=True)), (name, history)

        now = 0
        for gap, _, response in history:
            now += round(gap * SECOND)
            for each in () if response is None else response.quotas:
                if each.remaining and each.reset:
                    until = now + round(each.reset * SECOND)
                    # At the instant itself some may have been granted before the response.
                    assert sum(permits for at, permits in told if now < at < until) <= each.remaining, (name, history)
            if response is not None and response.pause:
                assert not [at for at, _ in told if now < at < now + round(response.pause * SECOND)], (name, history)


# Bad input.


async def test_observe_refuses_anything_but_feedback() -> None:
    """The error says what to call: users try status and headers, or the whole response."""
    crowd = crowd_of()

    for nonsense in ("3", 429, 3.5, True, b"", object(), {}, {"pause": 3}, [], Feedback, Limiter, (429, {})):
        with pytest.raises(TypeError, match=r"observe\(\)"):
            crowd.limiter.observe(nonsense)  # type: ignore[arg-type]

    assert (None, 10) == (crowd.limiter.statistics().paused_until, crowd.limiter.statistics().available)


async def test_impossible_feedback_cannot_be_made() -> None:
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda: Feedback(429, "3"), TypeError, "pause"),
        (lambda: Feedback(429, -1), ValueError, "pause"),
        (lambda: Feedback(429, float("nan")), ValueError, "pause"),
        (lambda: Feedback(429, 5, None), TypeError, "quotas"),
        (lambda: Feedback(429, 5, (None,)), TypeError, "quotas"),
        (lambda: remaining("5", 3), TypeError, "remaining"),
        (lambda: remaining(2.5, 3), TypeError, "remaining"),
        (lambda: remaining(True, 3), TypeError, "remaining"),
        (lambda: remaining(-1, 3), ValueError, "remaining"),
        (lambda: remaining(5, -3), ValueError, "reset"),
        (lambda: remaining(5, float("nan")), ValueError, "reset"),
        (lambda: remaining(5, 3, limit="5"), TypeError, "limit"),
        (lambda: remaining(5, 3, limit=-5), ValueError, "limit"),
        (lambda: remaining(5, 3, limit=5, window="1"), TypeError, "window"),
    ]
    for make, error, named in wrong:
        with pytest.raises(error, match=named):
            make()
    crowd = crowd_of()
    with pytest.raises(TypeError, match=r"pause\(\)"):
        crowd.limiter.pause("3")  # type: ignore[arg-type]  # the text of a header
    for jitter in ("1", None, True, -1):
        with pytest.raises((TypeError, ValueError), match=r"observe\(jitter"):
            crowd.limiter.observe(said(pause=2), jitter=jitter)  # type: ignore[arg-type]

    assert (None, 10) == (crowd.limiter.statistics().paused_until, crowd.limiter.statistics().available)


# Keys.


def keyed_of(clock: ManualClock, **options: Any) -> KeyedLimiter[str]:
    return KeyedLimiter(lambda key: Limiter(TokenBucket("10/s", burst=10), clock=clock), **options)


def paused(keyed: KeyedLimiter[str], *keys: str) -> list[float | None]:
    return [keyed[key].statistics().paused_until for key in keys]


async def test_feedback_for_a_key_concerns_no_other_key() -> None:
    keyed = keyed_of(ManualClock())

    keyed.observe("a", said(Quota(remaining=1, reset=9), pause=5))
    keyed.observe("b", None)

    assert paused(keyed, "a", "b", "c") == [5.0, None, None]
    assert keyed["b"].statistics().available == 10


async def test_global_feedback_pauses_the_shared_limit() -> None:
    """Discord's global limit. The quota of the route in the same response concerns its key."""
    clock = ManualClock()
    shared = Limiter(TokenBucket("50/s", burst=50), clock=clock)
    keyed = keyed_of(clock, shared=shared)

    headers = {"X-RateLimit-Global": "true", "Retry-After": "3", "X-RateLimit-Remaining": "4", "X-RateLimit-Reset-After": "9"}
    keyed.observe("a", read_feedback(429, headers))

    assert [None, None, 3.0] == [*paused(keyed, "a", "b"), shared.statistics().paused_until]
    clock.advance(4)
    assert not keyed.try_acquire("a", 5)
    assert keyed.try_acquire("b", 2)


async def test_without_a_shared_limit_global_feedback_pauses_the_key() -> None:
    """A pause of one key is better than none; once closed, nothing is heard: responses may still arrive while a program ends."""
    keyed = keyed_of(ManualClock())

    keyed.observe("a", read_feedback(429, {"X-RateLimit-Global": "true", "Retry-After": "3"}))
    assert paused(keyed, "a", "b") == [3.0, None]

    keyed = keyed_of(ManualClock())
    await keyed.aclose()
    keyed.observe("a", said(pause=5))
    assert len(keyed) == 0


async def test_a_key_with_a_quota_is_not_evicted() -> None:
    """A new limiter in its place would grant what the server has refused."""
    clock = ManualClock()
    keyed = keyed_of(clock)
    keyed.observe("a", remaining(1, 5))

    assert [0, 1] == [keyed.evict(), len(keyed)]
    clock.advance(5)
    assert [1, 0] == [keyed.evict(), len(keyed)]
