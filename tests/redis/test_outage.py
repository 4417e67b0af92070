"""A store that does not answer, in virtual time: four policies, a grace before any of them, and what comes back afterwards."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from helpers.driving import others
from helpers.outages import POLICIES, limiter_of, lines, outcome
from helpers.stores import RealServer, TimedClient, now
from redis.exceptions import AuthenticationError, InvalidResponse, NoPermissionError, ResponseError
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as NoAnswer

import aiorate
from aiorate.redis import RedisLimiter

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

# Those of a server that answers are in test_server_errors.py, as real servers give them.
OUTAGES = [
    NoConnection("refused"),
    NoAnswer("late"),
    InvalidResponse("?"),
    OSError(104, "reset"),
]
REFUSALS = [
    AuthenticationError("WRONGPASS invalid username-password pair"),
    NoPermissionError("NOPERM this user has no permissions to run the 'evalsha' command"),
    ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
    ResponseError("ERR unknown command 'EVALSHA'"),
]


@pytest.mark.parametrize("error", OUTAGES, ids=lambda error: type(error).__name__)
async def test_all_requests_fail_after_the_grace(store: RealServer, error: Exception) -> None:
    """Those in line then, and newcomers at once, each with a separate error and its cause."""
    limiter, client = limiter_of(store)
    client.error = error
    tasks = [asyncio.create_task(outcome(limiter.acquire())) for _ in range(3)]
    results = await asyncio.gather(*tasks)

    assert pytest.approx(1.0, abs=1e-3) == now()
    assert [aiorate.EngineUnavailable] * 3 == [type(result) for result in results]
    assert 3 == len({id(result) for result in results})
    assert {error} == {result.__cause__ for result in results}
    assert isinstance(results[0], ConnectionError)
    began = now()
    with pytest.raises(aiorate.EngineUnavailable, match="does not answer"):
        await limiter.acquire()
    assert began == now()
    assert "degraded" == limiter.statistics().state
    await limiter.aclose()
    assert not others()


@pytest.mark.parametrize("policy", POLICIES)
async def test_an_outage_within_the_grace_changes_nothing(store: RealServer, policy: str, caplog: pytest.LogCaptureFixture) -> None:
    """Requests wait for a restart of a second under every policy."""
    caplog.set_level(logging.DEBUG, "aiorate")
    limiter, client = limiter_of(store, policy)
    client.error = NoConnection()
    asyncio.get_running_loop().call_later(0.8, client.__setattr__, "error", None)

    assert 0.8 <= await limiter.acquire() <= 0.95
    assert [] == lines(caplog)
    assert "shared" == limiter.statistics().state
    await limiter.aclose()


@pytest.mark.parametrize("policy", POLICIES)
async def test_an_outage_logs_two_lines(store: RealServer, policy: str, caplog: pytest.LogCaptureFixture) -> None:
    """However many wait, and however often it is tried."""
    caplog.set_level(logging.DEBUG, "aiorate")
    events: list[aiorate.Event] = []
    limiter, client = limiter_of(store, policy, on_event=events.append)
    client.error = NoConnection("nobody there")
    tasks = [asyncio.create_task(outcome(limiter.acquire())) for _ in range(5)]
    for _ in range(20):
        await asyncio.sleep(0.25)
        tasks.append(asyncio.create_task(outcome(limiter.acquire())))
    client.error = None
    await asyncio.sleep(3)
    await asyncio.gather(*tasks)

    assert ["degraded", "restored"] == [event.kind for event in events]
    degraded, restored = lines(caplog)
    assert "'x': the store does not answer (nobody there" in degraded
    assert policy in degraded
    assert "answers again" in restored
    assert "shared" == limiter.statistics().state
    await limiter.aclose()


async def test_wait_serves_in_order_once_the_store_is_back(store: RealServer) -> None:
    """No error, and at the rate again. A request with a short max_wait is refused at once."""
    limiter, client = limiter_of(store, "wait")
    client.error = NoConnection()
    tasks = [asyncio.create_task(outcome(limiter.acquire())) for _ in range(3)]
    await asyncio.sleep(10)
    assert isinstance(await outcome(limiter.acquire(max_wait=5)), aiorate.WaitTooLong)
    assert float("inf") == limiter.delay() or limiter.delay() > 1e9
    client.error = None
    waited = await asyncio.gather(*tasks)

    assert 10 <= waited[0] <= 10.5
    assert [pytest.approx(0.1, abs=1e-3)] * 2 == [waited[1] - waited[0], waited[2] - waited[1]]
    await limiter.aclose()


async def test_max_wait_holds_from_the_first_moment_of_an_outage(store: RealServer) -> None:
    """Also for a request that joined before the outage was noticed; later ones are refused at once."""
    limiter, client = limiter_of(store, "wait")
    client.error = NoConnection("refused")
    assert isinstance(await outcome(limiter.acquire(max_wait=0.2)), aiorate.WaitTooLong)
    assert pytest.approx(0.2) == now()
    waiting = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(2)

    assert float("inf") == limiter.delay()
    with pytest.raises(aiorate.WaitTooLong, match="would wait inf s"):
        await limiter.acquire(max_wait=0.2)
    await limiter.aclose()
    await asyncio.wait([waiting])


async def test_a_part_of_the_rate_is_granted_locally(store: RealServer) -> None:
    """From the end of the grace, without a burst, and the store hears of it."""
    limiter, client = limiter_of(store, "local", rate="10/s", burst=4)
    client.error = NoConnection()
    granted = []
    for _ in range(6):
        await limiter.acquire()
        granted.append(now())

    assert [pytest.approx(1 + index / 5, abs=2e-2) for index in range(6)] == granted
    client.error = None
    while "shared" != limiter.statistics().state:
        await outcome(limiter.acquire())
        await asyncio.sleep(0.01)
    await limiter.aclose()


async def test_open_grants_everything_after_the_grace(store: RealServer) -> None:
    """Only when it was chosen, and only after the grace."""
    limiter, client = limiter_of(store, "open")
    client.error = NoConnection()
    waited = await asyncio.gather(*[outcome(limiter.acquire()) for _ in range(100)])

    assert [pytest.approx(1.0, abs=1e-3)] * 100 == waited
    await limiter.aclose()


@pytest.mark.parametrize("policy", ["raise", "wait"])
async def test_booked_slots_are_granted_during_an_outage(store: RealServer, policy: str) -> None:
    """Slots are slots, whether the store that assigned them lives or not."""
    limiter, client = limiter_of(store, policy, rate="1000/s", horizon=0.5, grace=0)
    tasks = [asyncio.create_task(outcome(limiter.acquire())) for _ in range(400)]
    await asyncio.sleep(0.001)
    client.error = NoConnection()
    await asyncio.sleep(0.3)

    assert 290 <= limiter.statistics().granted <= 302
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await limiter.aclose()


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_store_that_never_answers_is_given_up(store: RealServer, policy: str) -> None:
    """A call that hangs is an outage like any other, within half a second."""
    limiter, client = limiter_of(store, policy)
    client.hangs = True
    task = asyncio.create_task(outcome(limiter.acquire()))
    await asyncio.sleep(4)

    assert 1 <= client.calls <= 8
    if policy == "raise":
        assert isinstance(await task, aiorate.EngineUnavailable)
    elif policy == "wait":
        assert not task.done()
    else:
        assert 1.0 <= await task <= 1.8
    client.hangs = False
    await asyncio.sleep(2)
    assert task.done()
    await limiter.aclose()
    assert not others()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: str(error).split(" ")[0] + str(error)[-12:])
async def test_a_store_that_refuses_is_an_error_at_once(store: RealServer, error: Exception, policy: str) -> None:
    """Under every policy: neither local nor open, or a wrong password would be unlimited traffic. Put right, it works."""
    limiter, client = limiter_of(store, policy)
    client.error = error
    for _ in range(2):
        result = await outcome(limiter.acquire())
        assert isinstance(result, aiorate.EngineUnavailable)
        assert error is result.__cause__
    assert 0 == now()
    assert "shared" == limiter.statistics().state
    client.error = None

    assert 0 == await limiter.acquire()
    await limiter.aclose()


async def test_an_idle_process_does_not_ask_a_store_that_is_down(store: RealServer) -> None:
    """It keeps no task for it; the next request waits for an answer, and gets what that allows."""
    limiter, client = limiter_of(store)
    client.error = NoConnection()
    await outcome(limiter.acquire())
    await asyncio.sleep(5)
    calls = client.calls
    await asyncio.sleep(5)
    assert calls == client.calls
    assert not others()

    assert "degraded" == limiter.statistics().state
    assert isinstance(await outcome(limiter.acquire()), aiorate.EngineUnavailable)
    await asyncio.sleep(5)
    client.error = None
    assert 0 == await limiter.acquire()
    assert "shared" == limiter.statistics().state
    await limiter.aclose()


IDLE = 5.0  # seconds: after one, a store that is down is no longer asked


async def idle_outage(limiter: RedisLimiter, client: TimedClient) -> None:
    """The store was there and is down, the limiter knows it, and nothing was asked for a while."""
    latency, client.latency = client.latency, 0
    await limiter.acquire()
    client.latency, client.error = latency, NoConnection()
    waiting = asyncio.create_task(outcome(limiter.acquire()))
    await asyncio.sleep(2)
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.sleep(IDLE)
    assert "degraded" == limiter.statistics().state
    assert not others()


@pytest.mark.parametrize("max_wait", [None, 0.15])
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_request_after_an_unwatched_outage_asks_the_store(store: RealServer, policy: str, max_wait: float | None) -> None:
    """It is back, so no request is refused, granted without a limit, or granted a part of the rate: all wait for one answer."""
    limiter, client = limiter_of(store, policy)
    client.latency = 0.01
    await idle_outage(limiter, client)
    client.error = None
    waited = await asyncio.gather(*[limiter.acquire(max_wait=max_wait) for _ in range(2)])

    assert [pytest.approx(0.02, abs=1e-3), pytest.approx(0.12, abs=1e-3)] == waited
    assert "shared" == limiter.statistics().state
    await limiter.aclose()


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("raise", [aiorate.EngineUnavailable] * 2), ("wait", [aiorate.WaitTooLong] * 2), ("local", [0.01, 0.11]), ("open", [0.01] * 2)],
)
async def test_a_request_in_an_unwatched_outage_waits_for_one_call(store: RealServer, policy: str, expected: list[Any]) -> None:
    """It still goes on, and the grace does not begin again. Requests wait for the store at most until max_wait."""
    limiter, client = limiter_of(store, policy, rate="20/s")
    client.latency = 0.01
    await idle_outage(limiter, client)
    results = await asyncio.gather(*[outcome(limiter.acquire(max_wait=0.15)) for _ in range(2)])

    if policy in ("raise", "wait"):
        assert expected == [type(result) for result in results]
        assert pytest.approx(7.0 + (0.01 if policy == "raise" else 0.15), abs=1e-3) == now()
    else:
        assert pytest.approx(expected, abs=1e-3) == results
    assert "degraded" == limiter.statistics().state
    await limiter.aclose()


async def test_next_at_and_delay_are_infinite_during_an_outage(store: RealServer) -> None:
    """While the line waits for the store to come back, and not a number of years."""
    limiter, client = limiter_of(store, "wait")
    client.error = NoConnection()
    waiting = [asyncio.create_task(limiter.acquire(permits)) for permits in (1, 3)]
    await asyncio.sleep(2)

    assert float("inf") == limiter.statistics().next_at
    assert float("inf") == limiter.delay()
    assert "2 waiting" in repr(limiter)
    client.error = None
    await asyncio.wait(waiting)
    assert limiter.statistics().next_at is None
    await limiter.aclose()


@pytest.mark.parametrize("policy", POLICIES)
async def test_a_first_answer_may_take_several_round_trips(store: RealServer, policy: str) -> None:
    """A store far away is not down: connecting, the password and the script take longer than one answer."""
    limiter, client = limiter_of(store, policy, grace=2.0)
    client.latency = 0.4

    assert pytest.approx(0.8, abs=1e-3) == await limiter.acquire()
    client.latency = 0.1
    for _ in range(3):
        await limiter.acquire()
    assert "shared" == limiter.statistics().state
    await limiter.aclose()


async def test_a_pause_of_all_goes_on_through_an_outage(store: RealServer) -> None:
    """The store is not needed meanwhile, so an outage that ended before the pause is not reported."""
    limiter, client = limiter_of(store)
    other, _ = limiter_of(store)
    other.pause(4)
    await asyncio.sleep(0.01)
    waiting = asyncio.create_task(outcome(limiter.acquire()))
    await asyncio.sleep(0.5)
    client.error = NoConnection()
    await asyncio.sleep(3)
    client.error = None

    assert pytest.approx(3.99, abs=0.02) == await waiting
    assert "shared" == limiter.statistics().state
    await limiter.aclose()
    await other.aclose()


@pytest.mark.parametrize(("each_way", "booked"), [(0.2, 40), (0.7, 100)])
async def test_a_slow_answer_books_a_second_ahead_at_most(store: RealServer, each_way: float, booked: int) -> None:
    """A round trip, but at most a second: the next answer may be much faster."""
    limiter, client = limiter_of(store, rate="100/s", grace=5)
    client.latency = each_way
    tasks = [asyncio.create_task(limiter.acquire()) for _ in range(1_000)]
    await asyncio.sleep(each_way + 0.01)  # on its way back
    client.latency = 0
    await asyncio.sleep(each_way)

    assert booked == pytest.approx(limiter.scheduler.in_hand, abs=2)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await limiter.aclose()
