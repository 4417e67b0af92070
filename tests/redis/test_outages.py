"""A store that does not answer, in virtual time: limiters, budgets and windows, under every policy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import permutations, product
from math import ceil
from typing import Any

import pytest
from helpers.driving import others
from helpers.outages import KINDS, POLICIES, lines, made, refuse, take, together
from helpers.stores import RealServer, TimedClient, now
from redis.exceptions import AuthenticationError, BusyLoadingError, InvalidResponse, ResponseError
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as NoAnswer

import aiorate
from aiorate import EngineUnavailable, LimiterClosed, WaitTooLong
from aiorate.redis import RedisLimiter

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])

ERRORS: list[Exception | None] = [
    NoConnection("gone"),
    NoAnswer("gone"),
    InvalidResponse("gone"),
    OSError(104, "gone"),
    ResponseError("BUSY gone"),
    BusyLoadingError("gone"),
    None,  # it hangs
]


def near(seconds: float, most: float = 1e-3) -> Any:
    return pytest.approx(seconds, abs=most)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_outage_goes_by_its_policy(store: RealServer, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing changes within the grace; then the policy decides; afterwards the limit is shared again. Two lines are logged."""
    caplog.set_level(logging.DEBUG, "aiorate")
    for policy, error in product(POLICIES, ERRORS):
        row = kind, policy, error
        store.send("FLUSHALL")
        caplog.clear()
        events: list[aiorate.Event] = []
        subject, client = made(store, kind, policy, on_event=events.append)
        assert isinstance(await take(subject), float), row
        await asyncio.sleep(2 - now() + ceil(now()))
        began = now()
        client.error, client.hangs = error, error is None
        tasks = [asyncio.create_task(take(subject)) for _ in range(3)]
        await asyncio.sleep(0.9)
        assert ("shared", [], []) == (subject.statistics().state, events, [task for task in tasks if task.done()]), row

        await asyncio.sleep(1.3)
        done = [task.result() for task in tasks if task.done()]
        match policy:
            case "raise":
                assert [EngineUnavailable] * 3 == [type(each) for each in done], row
                assert 3 == len({id(each) for each in done}), row
                assert all("(): the store " in str(each) and isinstance(each, ConnectionError) for each in done), (row, done)
                assert error is None or {error} == {each.__cause__ for each in done}, row
                began = now()
                assert (EngineUnavailable, began) == (type(await take(subject)), now()), row
            case "wait":
                assert [] == done, row
                assert isinstance(await take(subject, max_wait=0), WaitTooLong), row
            case "local":
                assert [near(done[0] + 0.2 * index) for index in range(3)] == done, row
                assert 1 <= done[0] - began <= 1.51, row
            case "open":
                assert [near(done[0])] * 3 == done, row
                assert 1 <= done[0] - began <= 1.51, row
        assert "degraded" == subject.statistics().state, row

        client.error, client.hangs = None, False
        back = now()
        await asyncio.sleep(3)
        assert isinstance(await take(subject), float), row
        if policy == "wait":
            waited = [task.result() for task in tasks]
            assert waited == sorted(waited), row
            assert waited[0] - back <= 1.1, row
            assert kind == "window" or waited[2] - waited[0] == near(0.2), row
        assert "shared" == subject.statistics().state, row
        assert ["degraded", "restored"] == [event.kind for event in events], row
        degraded, restored = lines(caplog)
        assert "'x': the store " in degraded, row
        assert policy in degraded, row
        assert "answers again" in restored, row
        await subject.aclose()
        assert not others(), row


async def test_max_wait_holds_from_the_first_moment_of_an_outage(store: RealServer) -> None:
    """Nobody knows how long a request will wait, so it waits for as long as it may, and is served if the store is back by then."""
    for kind in KINDS:
        store.send("FLUSHALL")
        subject, client = made(store, kind, "wait")
        client.error = NoConnection()
        began = now()
        assert isinstance(await take(subject, max_wait=0.2), WaitTooLong), kind
        assert began + 0.2 == near(now()), kind
        waiting = [asyncio.create_task(take(subject)) for _ in range(2)]
        await asyncio.sleep(2)
        for max_wait in (0.2, 0):
            began = now()
            assert isinstance(await take(subject, max_wait=max_wait), WaitTooLong), kind
            assert began + max_wait == near(now()), kind
        if isinstance(subject, RedisLimiter):
            assert "2 waiting" in repr(subject)
        waiting.append(asyncio.create_task(take(subject, max_wait=30)))
        client.error = None
        await asyncio.sleep(5)
        assert [float] * 3 == [type(await task) for task in waiting], kind
        await subject.aclose()


async def test_booked_slots_are_granted_during_an_outage(store: RealServer) -> None:
    for policy in ("raise", "wait"):
        store.send("FLUSHALL")
        limiter, client = made(store, "limiter", policy, rate="1000/s", horizon=0.5, grace=0)
        tasks = [asyncio.create_task(take(limiter)) for _ in range(400)]
        await asyncio.sleep(0.001)
        client.error = NoConnection()
        await asyncio.sleep(0.3)

        assert 290 <= limiter.statistics().granted <= 302, policy
        await limiter.aclose()
        await asyncio.wait(tasks)


async def test_local_permits_are_charged_up_to_a_share_of_the_burst(store: RealServer) -> None:
    """What nobody used meanwhile has filled the bucket, so that it delays nobody then."""
    for busy in (False, True):
        store.send("FLUSHALL")
        (cut_off, client), (other, _) = (made(store, "limiter", "local", rate="10/s", burst=40) for _ in range(2))
        await together(*[take(each) for each in (cut_off, *[other] * 39)])
        client.error = NoConnection()
        began = now()
        tasks = [asyncio.create_task(take(cut_off)) for _ in range(30)]
        while now() < began + 5:
            await (take(other) if busy else asyncio.sleep(0.1))
        local = cut_off.statistics().granted - 1
        assert 20 <= local <= 21  # no burst
        client.error = None
        await asyncio.sleep(0.6)
        began = now()
        waited = float(await take(other)) - began
        assert 1.0 <= waited <= 2.5 if busy else waited <= 0.5, (busy, waited)
        await cut_off.aclose()
        await other.aclose()
        await asyncio.wait(tasks)


async def test_open_grants_all_and_counts_nothing(store: RealServer) -> None:
    budget, client = made(store, "budget", "open", tokens="100/s")
    assert 0.0 == await take(budget, tokens=100)
    client.error = NoConnection()
    assert [near(1.0)] * 5 == await together(*[take(budget, used=0, tokens=1000) for _ in range(5)])

    client.error = None
    await asyncio.sleep(2)
    begin = now()
    assert begin == await take(budget, tokens=100)
    assert near(begin + 1.0, 1e-2) == await take(budget, tokens=1)
    await budget.aclose()


async def test_the_store_hears_of_nothing_that_comes_back_in_an_outage(store: RealServer) -> None:
    """Not of the last slots of a question either: it would forgive others what they took."""
    for policy in ("local", "open"):
        budget, client = made(store, "budget", policy, requests="1000/s", grace=0)
        client.error = NoConnection()
        await together(*[take(budget, used=0, tokens=2) for _ in range(20)])
        assert [0, 0] == budget._pool.corrections
        await budget.aclose()


# What a process knows that does not ask all the time.


async def test_an_idle_process_does_not_ask_a_store_that_is_down(store: RealServer) -> None:
    """It keeps no task for it; the next request waits for an answer, and gets what that allows."""
    limiter, client = made(store, "limiter", "raise")
    client.error = NoConnection()
    await take(limiter)
    await asyncio.sleep(5)
    calls = client.calls
    await asyncio.sleep(5)
    assert (calls, set()) == (client.calls, others())
    assert isinstance(await take(limiter), EngineUnavailable)

    await asyncio.sleep(5)
    client.error = None
    assert now() == await take(limiter)
    assert "shared" == limiter.statistics().state
    await limiter.aclose()


@pytest.mark.parametrize("back", [True, False])
async def test_a_request_after_an_idle_outage_waits_for_one_call(store: RealServer, back: bool) -> None:
    """If the store is back, nobody is refused or granted too much; if not, the grace does not begin again. max_wait holds."""
    for policy, max_wait in product(POLICIES, (None, 0.15)):
        if not back and max_wait is None:
            continue
        store.send("FLUSHALL")
        limiter, client = made(store, "limiter", policy, rate="10/s" if back else "20/s")
        await limiter.acquire()
        client.error = NoConnection()
        waiting = asyncio.create_task(take(limiter))
        await asyncio.sleep(2)
        waiting.cancel()
        await asyncio.wait([waiting])
        await asyncio.sleep(5)
        assert ("degraded", set()) == (limiter.statistics().state, others()), policy

        client.latency, client.error, began = 0.01, None if back else client.error, now()
        got = await together(take(limiter, max_wait=max_wait), take(limiter, max_wait=max_wait))
        got = [type(each) if isinstance(each, Exception) else near(each - began) for each in got]
        if back:
            expected: list[Any] = [0.02, 0.12]
        else:
            expected = {"raise": [EngineUnavailable] * 2, "wait": [WaitTooLong] * 2, "local": [0.01, 0.11], "open": [0.01] * 2}[policy]
        assert expected == got, (policy, max_wait)
        assert ("shared" if back else "degraded") == limiter.statistics().state, policy
        await limiter.aclose()


# Some keys of a client only, and budgets.


async def test_a_node_that_is_down_keeps_only_its_keys_waiting(store: RealServer) -> None:
    """The client of a cluster is asked for each key by itself: those of other nodes go on at their rate."""
    for policy in POLICIES:
        store.send("FLUSHALL")
        client = type("RedisCluster", (TimedClient,), {})(store, latency=0.001)
        good, bad = (RedisLimiter(client, name, "50/s", **POLICIES[policy]) for name in ("good", "bad"))
        await asyncio.gather(good.acquire(), bad.acquire())
        load = [asyncio.create_task(forever(good.acquire)) for _ in range(3)]
        client.lost.add(bad.key)
        began = now()
        waiting = asyncio.create_task(take(bad))
        await asyncio.sleep(3)
        before = good.statistics().granted
        await asyncio.sleep(2)

        assert near(100, 4) == good.statistics().granted - before, policy
        assert ["shared", "degraded"] == [good.statistics().state, bad.statistics().state], policy
        assert policy != "raise" or isinstance(waiting.result(), EngineUnavailable)
        assert policy not in ("open", "local") or near(1.0, 0.05) == waiting.result() - began, policy
        assert (policy != "wait") is waiting.done()
        client.lost.clear()
        assert policy != "wait" or near(5.2, 0.3) == float(await waiting) - began
        while "shared" != bad.statistics().state:
            await take(bad)
            await asyncio.sleep(0.1)
        for task in load:
            task.cancel()
        await asyncio.wait(load)
        await good.aclose()
        await bad.aclose()
        assert not others()


async def forever(acquire: Callable[[], Any]) -> None:
    while True:
        await acquire()


async def test_a_credit_that_may_have_arrived_is_not_told_again(store: RealServer) -> None:
    """An answer that is lost may follow a script that ran: the same permits must not come back twice."""
    one, client = made(store, "budget", "wait", tokens="100/s")
    other, _ = made(store, "budget", "wait", tokens="100/s")
    async with one.reserve(tokens=1000) as lease:
        lease.settle(tokens=500)
    answered = client.execute_command

    async def lost(*args: Any, **options: Any) -> Any:
        await answered(*args, **options)
        raise NoConnection("the answer is lost")

    client.execute_command = lost  # type: ignore[method-assign]
    await asyncio.sleep(0.3)
    client.execute_command = answered  # type: ignore[method-assign]
    await asyncio.sleep(0.7)

    assert 4.9 <= float(await take(other, tokens=1))
    await one.aclose()
    await other.aclose()


# Closing and cancelling meanwhile.


async def test_closing_during_an_outage_does_not_wait_for_the_store(store: RealServer) -> None:
    """Requests in line fail, what is to be told is told to nobody, and no task is left; another limiter of the client is served later."""
    for kind, refusing in product(KINDS, (False, True)):
        store.send("FLUSHALL")
        subject, client = made(store, kind, "wait")
        other = RedisLimiter(client, "y", "10/s", on_unavailable="wait")
        await together(take(subject), take(other))
        if refusing:
            client.error = NoConnection()
        client.hangs = not refusing
        waiting = [asyncio.create_task(take(each)) for each in (subject, other)]
        await asyncio.sleep(0.25)
        began = now()
        await subject.aclose()
        assert now() - began <= 0.51, kind  # as long as a call may take
        assert isinstance(await waiting[0], LimiterClosed), kind

        client.served.clear()
        client.error, client.hangs = None, False
        assert float(await waiting[1]) <= now()
        assert {other.key} == client.served, kind
        await other.aclose()
        assert not others()


async def test_closing_while_the_store_refuses_asks_once(store: RealServer) -> None:
    for kind in KINDS:
        store.send("FLUSHALL")
        subject, client = made(store, kind, "wait")
        assert isinstance(await take(subject), float)
        client.error, calls = refuse(), client.calls
        subject.pause(5)
        await subject.aclose()
        assert client.calls - calls <= 2, kind
        assert not others()


async def test_the_tasks_of_a_client_may_be_cancelled(store: RealServer) -> None:
    """A program that cancels all its tasks, and goes on or ends: no request hangs, and neither does closing."""
    limiter, client = made(store, "limiter", "raise")
    client.hangs = True
    waiting = asyncio.create_task(take(limiter))
    await asyncio.sleep(0.01)
    for task in others() - {waiting}:
        task.cancel()
    assert isinstance(await waiting, RuntimeError)
    client.hangs = False
    assert 0 <= await limiter.acquire() < 0.01

    client.hangs = True
    limiter.charge(5)
    began = now()
    closing = asyncio.create_task(limiter.aclose())
    await asyncio.sleep(0.1)
    for task in others() - {closing}:
        task.cancel()
    await closing
    assert near(began + 0.1) == now()
    assert not others()


# A store that refuses, answers nonsense, or has something else under the key.


REFUSALS = [
    refuse(),
    AuthenticationError("WRONGPASS invalid username-password pair"),
    ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
    ResponseError("ERR unknown command 'EVALSHA'"),
]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_store_that_refuses_is_an_error_at_once(store: RealServer, kind: str) -> None:
    """Under every policy: neither local nor open, or a wrong password would be unlimited traffic. Put right, it works."""
    for policy, error in product(POLICIES, REFUSALS):
        row = kind, policy, error
        store.send("FLUSHALL")
        subject, client = made(store, kind, policy)
        client.error, began = error, now()
        for _ in range(2):
            result = await take(subject)
            assert isinstance(result, EngineUnavailable), row
            assert error is result.__cause__, row
        assert (began, "shared") == (now(), subject.statistics().state), row
        client.error = None
        assert began == await take(subject), row
        await subject.aclose()


class Changed(TimedClient):
    """The store's answers, changed on the way."""

    change: Callable[[str], object] | None = None

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        reply = await super().execute_command(*args, **options)
        return reply if self.change is None else self.change(str(reply))


CHANGES: dict[str, Callable[[str], object]] = {
    **{repr(reply): lambda text, reply=reply: reply for reply in (b"", "", None, 7, "OK", b"\xff", [1])},  # type: ignore[misc]
    "half": lambda text: text[: len(text) // 2],
    "a word less": lambda text: text.rpartition(" ")[0],
    "a word more": lambda text: f"{text} 1 2 3",
    "without the end": lambda text: text.partition(";")[0],
    "another beginning": lambda text: f"hello {text}",
    "of another release": lambda text: text.replace("/2", "/3", 1),
    **{f"last {word}": lambda text, word=word: f"{text.rpartition(' ')[0]} {word}" for word in ("x", "nan", "1e300")},  # type: ignore[misc]
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_malformed_answer_is_an_outage(store: RealServer, kind: str) -> None:
    for name, change in CHANGES.items():
        store.send("FLUSHALL")
        client = Changed(store)
        subject, _ = made(store, kind, "raise", client, grace=0.3)
        client.change, began = change, now()

        assert isinstance(await take(subject), EngineUnavailable), (kind, name)
        assert now() == pytest.approx(began + 0.3, abs=1e-3), (kind, name)
        assert 0 == subject.statistics().granted, (kind, name)
        client.change = None
        while isinstance(await take(subject), EngineUnavailable):  # until that is heard
            await asyncio.sleep(0.1)
        await subject.aclose()
        assert not others()


VALUES = [
    *("", "5", "aiorate", "hello aiorate/2 limiter 1 2 3", "aiorate/2", "aiorate/2 limiter", "aiorate/2 limiter 1 0 0", "aiorate/2 x y z"),
    *("aiorate/2 limiter 1 0 0 0 0 0 nan 1 0 0", "aiorate/2 limiter 1 0 0 0 0 0 -1 1 1e300 0", "aiorate/2 window 1 2 3"),
    "aiorate/2 budget:requests,tokens 1 0 0 x 0 0 0 1 0 0 0 0",
]
RELEASES = ["aiorate/1 1 0 0", "aiorate/20 {}", "aiorate/2.1 1 0 0", "aiorate/", "aiorate/1"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_value_of_somebody_else_is_left_alone(store: RealServer, kind: str) -> None:
    """An error that says so, at once, and nothing is overwritten. That of another release names both."""
    for value in VALUES:
        store.send("SET", "aiorate:x", value)
        subject, _ = made(store, kind, "wait")
        assert "WRONGTYPE" in str(await take(subject)), (kind, value)
        assert value == store.send("GET", "aiorate:x"), (kind, value)
        await subject.aclose()
    for value in RELEASES:
        store.send("SET", "aiorate:x", value)
        subject, _ = made(store, kind, "raise", grace=0.1)
        form = value.split()[0]
        said = str(await take(subject))
        assert f" holds {form}" in said, (kind, value, said)
        assert "and no sound aiorate/2 " in said, (kind, value, said)
        assert value == store.send("GET", "aiorate:x"), (kind, value)
        await subject.aclose()


async def test_one_name_has_one_kind_of_limit(store: RealServer) -> None:
    for first, second in permutations(KINDS, 2):
        store.send("FLUSHALL")
        one, other = made(store, first, "raise")[0], made(store, second, "open")[0]
        assert isinstance(await take(one), float)
        said = str(await take(other))
        assert "WRONGTYPE the key aiorate:x " in said, (first, second, said)
        await one.aclose()
        await other.aclose()
