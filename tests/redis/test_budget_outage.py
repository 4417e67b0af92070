"""A RedisBudget whose store does not answer, refuses, or comes back empty. In virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from helpers.driving import others
from helpers.outages import POLICIES
from helpers.stores import RealServer, TimedClient, now
from redis.exceptions import ConnectionError as NoConnection

from aiorate import EngineUnavailable, Event, WaitTooLong
from aiorate.redis import RedisBudget

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


def budget_of(store: RealServer, policy: str, **options: Any) -> tuple[RedisBudget, TimedClient]:
    client = TimedClient(store)
    return RedisBudget(client, "x", requests="10/s", tokens="100/s", **POLICIES[policy], **options), client


async def outcome(budget: RedisBudget, used: int | None = None, **amounts: int) -> float | str:
    """When it was granted, or the error."""
    try:
        async with budget.reserve(**amounts) as lease:
            if used is not None:
                lease.settle(tokens=used)
            return now()
    except EngineUnavailable as error:
        return str(error)


@pytest.mark.parametrize("policy", POLICIES)
async def test_an_outage_within_the_grace_changes_nothing(store: RealServer, policy: str) -> None:
    """Reservations wait under every policy, and are granted at the rates afterwards."""
    budget, client = budget_of(store, policy)
    client.error = NoConnection("gone")
    asyncio.get_running_loop().call_later(0.8, client.__setattr__, "error", None)
    instants = await asyncio.gather(*[outcome(budget, tokens=20) for _ in range(3)])

    assert 0.8 <= instants[0] <= 0.95
    assert [pytest.approx(0.2, abs=1e-3)] * 2 == [later - earlier for earlier, later in pairwise(instants)]
    await budget.aclose()
    assert not others()


async def test_raise_fails_all_after_the_grace(store: RealServer) -> None:
    """Those in line then, and newcomers at once."""
    budget, client = budget_of(store, "raise")
    client.error = NoConnection("gone")

    errors = await asyncio.gather(*[outcome(budget) for _ in range(3)])
    assert pytest.approx(1.0, abs=1e-3) == now()
    assert all("reserve(): the store does not answer: gone" in str(error) for error in errors)
    assert "does not answer" in str(await outcome(budget))
    assert "degraded" == budget.statistics().state
    client.error = None
    await asyncio.sleep(2)
    assert isinstance(await outcome(budget), float)
    assert "shared" == budget.statistics().state
    await budget.aclose()


async def test_wait_serves_in_order_once_the_store_is_back(store: RealServer) -> None:
    """No error, and at the rates again. A reservation with a short max_wait is refused."""
    budget, client = budget_of(store, "wait")
    client.error = NoConnection("gone")
    waiting = [asyncio.create_task(outcome(budget, tokens=10)) for _ in range(3)]
    await asyncio.sleep(5)
    with pytest.raises(WaitTooLong):
        await budget.reserve(max_wait=1).__aenter__()
    client.error = None
    instants = await asyncio.gather(*waiting)

    assert 5 <= instants[0] <= 5.6
    assert [pytest.approx(0.1, abs=1e-3)] * 2 == [later - earlier for earlier, later in pairwise(instants)]
    await budget.aclose()


async def test_local_grants_a_share_and_charges_it_afterwards(store: RealServer) -> None:
    """Half of each dimension. Nobody else used the time of the outage, so that only what the share exceeds is owed."""
    events: list[Event] = []
    budget, client = budget_of(store, "local", on_event=events.append)
    client.error = NoConnection("gone")
    instants = await asyncio.gather(*[outcome(budget, tokens=10) for _ in range(5)])

    assert [pytest.approx(1.0 + 0.2 * index, abs=1e-3) for index in range(5)] == instants
    client.error = None
    await asyncio.sleep(1)
    assert isinstance(await outcome(budget), float)
    assert ["degraded", "restored"] == [event.kind for event in events]
    await budget.aclose()


async def test_open_grants_all_and_counts_nothing(store: RealServer) -> None:
    """What comes back of such a reservation is nobody's: the store never heard of it."""
    budget, client = budget_of(store, "open")
    assert 0.0 == await outcome(budget, tokens=100)
    client.error = NoConnection("gone")
    instants = await asyncio.gather(*[outcome(budget, used=0, tokens=1000) for _ in range(5)])

    assert [pytest.approx(1.0, abs=1e-3)] * 5 == instants
    client.error = None
    await asyncio.sleep(2)
    begin = now()
    assert begin == await outcome(budget, tokens=100)
    assert pytest.approx(begin + 1.0, abs=1e-2) == await outcome(budget, tokens=1)
    await budget.aclose()


async def test_a_refusal_fails_under_every_policy(store: RealServer) -> None:
    """The key of a RedisLimiter, say: nothing is granted, and the error names the reason."""
    from aiorate.redis import RedisLimiter

    limiter = RedisLimiter(TimedClient(store), "x", "10/s")
    await limiter.acquire()
    for policy in POLICIES:
        budget, _ = budget_of(store, policy)
        assert "WRONGTYPE the key aiorate:x is that of a RedisLimiter. Give the RedisBudget another name" in str(await outcome(budget))
        await budget.aclose()
    await limiter.aclose()


async def test_a_store_that_comes_back_empty_is_told_what_was_booked(store: RealServer) -> None:
    """The process that remembers has the others wait, too."""
    one, other = budget_of(store, "wait")[0], budget_of(store, "wait")[0]
    await outcome(one, tokens=200)
    store.send("FLUSHALL")
    waiting = asyncio.create_task(outcome(one, tokens=1))
    await asyncio.sleep(0.01)

    assert 2.0 <= float(await outcome(other, tokens=1))
    assert 2.0 <= float(await waiting)
    await one.aclose()
    await other.aclose()


async def test_a_credit_that_may_have_arrived_is_not_told_again(store: RealServer) -> None:
    """An answer that is lost may follow a script that ran: the same permits must not come back twice."""
    one, client = budget_of(store, "wait")
    other, _ = budget_of(store, "wait")
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

    assert 4.9 <= float(await outcome(other, tokens=1))
    await one.aclose()
    await other.aclose()
