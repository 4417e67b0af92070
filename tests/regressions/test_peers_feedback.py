"""Defects that other libraries had with a server's words: pauses, and headers. Each is named by its report."""

from __future__ import annotations

import asyncio

import httpx2
import pytest
from helpers.driving import SECOND, Crowd, one_loop, until

from aiorate import BurstCompensation, KeyedLimiter, Limiter, Scheduler, SlidingWindow, TokenBucket, TokenPool
from aiorate.http import Feedback, hooks, limit_transport, read_feedback
from aiorate.testing import ManualClock, VirtualLoop

virtual = pytest.mark.asyncio(loop_factories=["virtual"])


@virtual
@pytest.mark.parametrize(
    "scheduler",
    [TokenPool("100/s"), BurstCompensation("100/s"), TokenBucket("100/s", burst=1), TokenBucket("100/s", burst=5)],
    ids=lambda scheduler: repr(scheduler).split(",")[0].split("(")[0],
)
async def test_after_a_pause_the_spacing_follows_the_rate(scheduler: Scheduler) -> None:
    """SGrondin/bottleneck (README), sidekiq/sidekiq#5315: all waiters started at once. Here a thousand do not."""
    loop, limiter, granted = asyncio.get_running_loop(), Limiter(scheduler), []
    assert isinstance(loop, VirtualLoop)

    async def work() -> None:
        await limiter.acquire()
        granted.append(round(loop.time() * SECOND))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(1000):
            tasks.create_task(work())
        await asyncio.sleep(0.095)
        before = len(granted)
        limiter.observe(Feedback(429, pause=5.0))

    gaps = {after - at for at, after in zip(granted[before:], granted[before + 1 :], strict=False)}
    assert [at for at in granted[before:] if at < 5_095_000_000] == []
    assert {SECOND // 100} == gaps
    assert granted[before] <= 5_095_000_000 + SECOND // 100


@virtual
async def test_windows_go_on_after_a_pause() -> None:
    """A window promises its permits in any period, at once if it can; no permits pile up during the pause."""
    loop, limiter, granted = asyncio.get_running_loop(), Limiter(SlidingWindow("100/s")), []

    async def work() -> None:
        await limiter.acquire()
        granted.append(loop.time())

    async with asyncio.TaskGroup() as tasks:
        for _ in range(1000):
            tasks.create_task(work())
        await asyncio.sleep(0.5)
        limiter.observe(Feedback(429, pause=5.0))

    assert [0.0] * 100 + [5.0 + number // 100 for number in range(100, 1000)] == granted


@one_loop
async def test_pause_is_not_ended_by_other_responses() -> None:
    """python-telegram-bot/python-telegram-bot#5338: somebody else's success ended the pause early.

    Ten requests are on their way. The first returns 429, one a shorter wait, and the others a normal answer.
    """
    clock = ManualClock()
    limiter = Limiter(TokenBucket("10/s", burst=20), clock=clock)
    release = [asyncio.Event() for _ in range(10)]
    answers: list[tuple[int, dict[str, str]]] = [(429, {"Retry-After": "5"}), (429, {"Retry-After": "1"})]
    answers += [(200, {"X-RateLimit-Remaining": "50", "X-RateLimit-Reset": "1"})] * 7 + [(503, {"Retry-After": "0"})]

    async def answer(request: httpx2.Request) -> httpx2.Response:
        number = int(request.url.path[1:])
        await release[number].wait()
        return httpx2.Response(answers[number][0], headers=answers[number][1])

    transport = limit_transport(httpx2.MockTransport(answer), limiter)
    async with httpx2.AsyncClient(transport=transport, base_url="http://example.com") as client:
        requests = [asyncio.create_task(client.get(f"/{number}")) for number in range(10)]
        await until(lambda: limiter.statistics().granted == 10)
        for number in range(10):
            release[number].set()
            await requests[number]
            assert limiter.statistics().paused_until == 5.0
            clock.advance(0.25)

    assert not limiter.try_acquire()


@one_loop
async def test_a_flooded_key_stops_no_other() -> None:
    """alexei-led/ccgram#171, python-telegram-bot/python-telegram-bot#3765: one flooded chat froze all traffic."""
    clock = ManualClock()
    keyed: KeyedLimiter[str] = KeyedLimiter(lambda key: Limiter("1/s", clock=clock), shared=Limiter(TokenBucket("30/s", 30), clock=clock))
    flooded, other = Crowd(keyed["flooded"], clock), Crowd(keyed["other"], clock)
    await flooded.queue(range(3))

    keyed.observe("flooded", read_feedback(429, {"Retry-After": "30"}))
    await other.queue(range(3))
    await clock.run(60)

    assert [0.0, 31.0, 32.0] == [at / SECOND for at in flooded.granted.values()]
    assert [0.0, 1.0, 2.0] == [at / SECOND for at in other.granted.values()]


@one_loop
async def test_flooded_server_stops_no_other_server() -> None:
    """The same, through a client whose keys are the origins."""
    clock = ManualClock()
    keyed: KeyedLimiter[str] = KeyedLimiter(lambda origin: Limiter(TokenBucket("10/s", 10), clock=clock))
    transport = httpx2.MockTransport(lambda request: httpx2.Response(429 if request.url.host == "flooded" else 200))

    async with httpx2.AsyncClient(transport=transport, event_hooks=hooks(keyed)) as client:
        for host in ("flooded", "other", "other"):
            await client.get(f"http://{host}/")

    assert [1.0, None] == [keyed[f"http://{host}:80"].statistics().paused_until for host in ("flooded", "other")]


UNREADABLE = ["soon", "-1", "\u0663", "Fri, 99 Foo 9999 99:99:99 GMT", "\ud800", "", ",", "0x10", "1_0", "nan", "9" * 5000]


@one_loop
@pytest.mark.parametrize("value", UNREADABLE, ids=lambda value: ascii(value[:10]))
async def test_unreadable_retry_after_breaks_no_request(value: str) -> None:
    """sdebruyn/fabric-dw-mcp-cli#238: the client crashed. On a success it means nothing; a 429 without a time pauses for a second."""
    limiter = Limiter(TokenBucket("10/s", burst=10), clock=ManualClock())
    statuses = iter((200, 429))

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(next(statuses), headers=[(b"Retry-After", value.encode("utf-8", "surrogatepass"))])

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), event_hooks=hooks(limiter)) as client:
        for paused_until in (None, 1.0):
            await client.get("http://example.com/")
            assert paused_until == limiter.statistics().paused_until
