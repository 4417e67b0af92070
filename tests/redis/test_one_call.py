"""One call asks for all limiters of a client: an error of one of them does not concern the others. In virtual time."""

from __future__ import annotations

import asyncio

import pytest
from helpers.driving import others
from helpers.stores import RealServer, TimedClient, now

import aiorate
from aiorate.redis import RedisLimiter

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


class Failing:
    """A clock that fails when it is told to."""

    broken = False

    def now(self) -> int:
        if self.broken:
            raise OSError("no clock")
        return round(now() * 1e9)


@pytest.mark.parametrize("begin", [0.0, 0.005], ids=["as it asks", "as it is answered"])
@pytest.mark.parametrize("alone", [False, True])
async def test_a_limiter_whose_clock_fails_fails_alone(store: RealServer, begin: float, alone: bool) -> None:
    """Its line is told, and no one else notices; mended, it goes on."""
    client, clock = TimedClient(store, latency=0.01), Failing()
    failing, well = RedisLimiter(client, "x", "100/s", clock=clock), RedisLimiter(client, "y", "100/s")
    await asyncio.gather(failing.acquire(), well.acquire())
    await asyncio.sleep(0.1)
    began = now()
    tasks = [asyncio.create_task(failing.acquire())]
    if not alone:
        tasks.append(asyncio.create_task(well.acquire()))
    while not failing.statistics().waiting:
        await asyncio.sleep(0)
    if begin:
        await asyncio.sleep(begin)
    clock.broken = True
    await asyncio.wait(tasks, timeout=60)
    clock.broken = False

    assert [OSError] + [type(None)] * (not alone) == [type(task.exception()) for task in tasks if task.done()]
    assert pytest.approx(0.0 if alone and not begin else 0.02, abs=1e-3) == now() - began
    async with asyncio.timeout(60):
        await asyncio.gather(failing.acquire(), well.acquire())
    for limiter in (failing, well):
        await limiter.aclose()
    assert not others()


@pytest.mark.parametrize("policy", ["raise", "wait", "open"])
async def test_a_node_that_is_down_keeps_only_its_keys_waiting(store: RealServer, policy: str) -> None:
    """Some replies of a call are errors, as those of a cluster may be, and the rest are answers: these go on at their rate."""
    client = TimedClient(store, latency=0.001)
    good, bad = (RedisLimiter(client, name, "100/s", on_unavailable=policy) for name in ("good", "bad"))  # type: ignore[arg-type]
    await asyncio.gather(good.acquire(), bad.acquire())

    async def forever() -> None:
        while True:
            await good.acquire()

    load = [asyncio.create_task(forever()) for _ in range(10)]
    client.lost.add(bad.key)
    waiting = asyncio.create_task(bad.acquire())
    await asyncio.sleep(3)
    before = good.statistics().granted
    await asyncio.sleep(2)

    assert pytest.approx(200, abs=4) == good.statistics().granted - before
    assert ["shared", "degraded"] == [good.statistics().state, bad.statistics().state]
    if policy == "raise":
        assert isinstance(waiting.exception(), aiorate.EngineUnavailable)
    elif policy == "open":
        assert pytest.approx(1.0, abs=0.05) == waiting.result()
    else:
        assert not waiting.done()
    client.lost.clear()
    if policy == "wait":
        assert pytest.approx(5.2, abs=0.3) == await waiting
    while "shared" != bad.statistics().state:
        await asyncio.wait([asyncio.create_task(bad.acquire())])
        await asyncio.sleep(0.1)
    for task in load:
        task.cancel()
    await asyncio.wait(load)
    for limiter in (good, bad):
        await limiter.aclose()
    assert not others()


async def test_closing_does_not_wait_for_a_node_that_is_down(store: RealServer) -> None:
    """What it has to say can be said to nobody."""
    client = TimedClient(store)
    good, bad = RedisLimiter(client, "good", "100/s"), RedisLimiter(client, "bad", "100/s")
    client.lost.add(bad.key)
    bad.charge(5)
    good.charge(5)
    await asyncio.sleep(0.1)
    async with asyncio.timeout(1):
        await bad.aclose()
        await good.aclose()
    await asyncio.sleep(1)

    assert not others()
