"""A limiter under a quota: estimates, cancellation, changes, and random histories of feedback."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import SECOND, Crowd, one_loop, turns
from helpers.feedback import crowd_of, remaining, said, seconds
from helpers.samples import examples, sampled
from helpers.strategies import EACH
from hypothesis import given
from hypothesis import strategies as st

from aiorate import Limiter, Scheduler, SlidingWindow, TokenBucket, TokenPool, WaitTooLong
from aiorate.http import Feedback, Quota
from aiorate.testing import ManualClock

pytestmark = one_loop


async def test_statistics_delay_and_max_wait_are_exact_under_a_cap() -> None:
    """WaitTooLong at once, or a wait that is kept, behind a line too."""
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


@pytest.mark.parametrize("scheduler", [TokenPool("10/s"), SlidingWindow("10/s")], ids=["filler", "alarm"])
async def test_a_new_cap_applies_to_requests_in_line(scheduler: Scheduler) -> None:
    """They wait for a permit that was due earlier, and whose timer is set."""
    crowd = crowd_of(scheduler)
    crowd.limiter.try_acquire(10)
    await crowd.queue(range(3))

    crowd.limiter.observe(remaining(1, 20))
    await crowd.clock.run(60)

    assert [20.0, 20.0] == [max(at, 20.0) for at in seconds(crowd)[1:]]
    assert seconds(crowd)[0] <= 1.0
    assert len(crowd.granted) == 3


async def test_a_cancelled_waiter_leaves_the_quota_to_others() -> None:
    """Two permits remain, a request for three waits for the reset, and once it is cancelled the next ones are granted."""
    crowd = crowd_of()
    crowd.limiter.observe(remaining(2, 5))
    large = crowd.ask("large", 3)
    await crowd.queue(range(3))
    assert not crowd.granted

    large.cancel()
    await crowd.clock.run(60)

    assert [0.0, 0.0, 5.0] == seconds(crowd)


async def test_a_grant_given_back_under_a_cap_goes_to_the_next() -> None:
    """A cap ends, a request is granted and cancelled in the same step, while another cap allows just one."""
    crowd = crowd_of(TokenBucket("10/s", burst=10))
    crowd.limiter.observe(said(Quota("short", remaining=1, reset=1), Quota("long", remaining=2, reset=9)))
    await crowd.queue(range(4))

    crowd.clock.advance(1)  # grants the second of them, whose task has not run yet
    crowd.tasks[1].cancel()
    await crowd.clock.run(7)
    assert [0, 2] == list(crowd.granted)

    await crowd.clock.run(60)
    assert [0.0, 1.0, 9.0] == seconds(crowd)


async def test_a_higher_rate_does_not_raise_a_quota() -> None:
    """A lower rate applies after the reset."""
    crowd = crowd_of()
    crowd.limiter.observe(remaining(1, 5))
    await crowd.queue(range(3))
    crowd.limiter.set_rate("1000/s")
    crowd.limiter.apply("2000,1,configure")
    await crowd.clock.run(4)
    assert [0.0] == seconds(crowd)
    assert crowd.limiter.rate.permits == 2000

    crowd.limiter.set_rate("1/10s")
    await crowd.clock.run(100)

    assert [0.0, 5.0, 5.0] == seconds(crowd)


async def test_refunds_and_charges_do_not_change_a_quota() -> None:
    """They change the limiter's own schedule only."""
    crowd = crowd_of()
    crowd.limiter.observe(remaining(2, 5))
    crowd.limiter.charge(9)
    crowd.limiter.refund(9)
    await crowd.queue(range(3))
    crowd.limiter.refund(3)
    await crowd.clock.run(60)

    assert [0.0, 0.0, 5.0] == seconds(crowd)


async def test_reset_forgets_pauses_and_quotas() -> None:
    """The limiter is as new; this is also the way out if a server reports nonsense."""
    crowd = crowd_of()
    crowd.limiter.observe(said(Quota(remaining=1, reset=86_400), pause=3600))
    await crowd.queue(range(3))

    crowd.limiter.reset()
    await turns(5)

    assert [0.0] * 3 == seconds(crowd)
    assert 7 == crowd.limiter.statistics().available


async def test_resume_ends_a_pause_and_not_a_quota() -> None:
    """A pause of a server too; what remains of its window stays."""
    crowd = crowd_of()
    crowd.limiter.observe(said(Quota(remaining=1, reset=10), pause=4))
    await crowd.queue(range(2))
    await crowd.clock.run(1)
    crowd.limiter.resume()
    await crowd.clock.run(60)

    assert [1.0, 10.0] == seconds(crowd)


async def test_a_cap_leaves_scheduler_rate_and_bound_unchanged() -> None:
    """Users see the scheduler that they passed."""
    bucket = TokenBucket("10/s", burst=10)
    crowd = crowd_of(bucket)
    bound = crowd.limiter.bound(1)

    crowd.limiter.observe(remaining(1, 5))

    assert crowd.limiter.scheduler is bucket
    assert bucket.rate == crowd.limiter.rate == crowd.limiter.statistics().rate
    assert bound == crowd.limiter.bound(1)


@pytest.mark.asyncio
async def test_the_meter_is_open_again_after_the_reset() -> None:
    """This needs no timer, here in a real loop."""
    limiter = Limiter(TokenBucket("100/s", burst=100))
    await limiter.acquire()
    limiter.observe(remaining(50, 0.3))
    assert limiter._dispatcher.scheduler is not limiter.scheduler

    await asyncio.sleep(0.31)
    await limiter.acquire()
    limiter.delay()  # notices the end of the cap; so does any call 5 ms after the last

    assert limiter._dispatcher.scheduler is limiter.scheduler
    assert limiter._dispatcher.meter.until > 0


async def test_an_idle_limiter_sets_no_timer_for_feedback() -> None:
    """Nothing waits for the end of the pause or of the window."""
    crowd = crowd_of()
    crowd.limiter.observe(said(Quota(remaining=1, reset=10), pause=4))

    assert crowd.clock.timers == 0


# Random histories.


counts = st.integers(0, 4)


times = st.sampled_from([0, 0.1, 0.3, 1, 1.05, 3])


quotas = st.builds(Quota, remaining=st.none() | counts, reset=st.none() | times, limit=st.none() | counts, window=st.none() | times)


feedbacks = st.builds(Feedback, st.just(200), st.sampled_from([None, None, 0, 0.2, 1.5]), st.lists(quotas, max_size=3).map(tuple))


steps = st.lists(st.tuples(times, st.integers(1, 3), st.none() | feedbacks), min_size=1, max_size=8)


async def follow(limiter: Limiter, clock: ManualClock, history: list[tuple[float, int, Feedback | None]]) -> list[tuple[int, int]]:
    """(instant, permits) of each grant, in the order of the requests."""
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
async def test_feedback_only_ever_lowers_what_is_available(name: str) -> None:
    """For any sequence of responses: no grant is earlier than without them, and each window grants at most what was left of it."""

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
                    # At the instant itself some may have been granted before the response.
                    assert sum(permits for at, permits in told if now < at < until) <= quota.remaining
            if feedback is not None and feedback.pause:
                assert not [at for at, _ in told if now < at < now + round(feedback.pause * SECOND)]

    await asyncio.to_thread(trial)
