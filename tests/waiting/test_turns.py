"""The loop always turns: callers that get permits at once let others run every 5 to 10 ms, and a herd of them costs no more than one."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import pytest
from helpers.driving import LONG, SECOND

import aiorate
from aiorate.testing import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

MS = 1_000_000


# Through limiters, in real time.


async def turned(step: Callable[[], Coroutine[Any, Any, object]], times: int = 3) -> bool:
    """Take steps until another task has run that often."""
    count = 0

    async def other() -> None:
        nonlocal count
        while True:
            count += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    end = monotonic_ns() + LONG * SECOND
    while count < times and monotonic_ns() < end:
        await step()
    task.cancel()
    return count >= times


@pytest.mark.asyncio(loop_factories=["asyncio", "uvloop"])
async def test_a_caller_that_never_waits_lets_others_run() -> None:
    """However it asks, and also if it goes from limiter to limiter."""
    limiters = [aiorate.Limiter(aiorate.TokenBucket("1/h", burst=10**9)) for _ in range(50)]
    place = 0

    async def block() -> None:
        async with limiters[0]:
            pass

    async def next_one() -> None:
        nonlocal place
        place += 1
        await limiters[place % 50].acquire()

    async def try_it() -> None:
        for _ in range(10):
            limiters[0].try_acquire()
        await limiters[0].acquire(2)

    for step in (limiters[0].acquire, block, next_one, try_it):
        assert await turned(step), step


# In virtual time, in which callers keep the loop busy for as long as they like.


class Loop(VirtualLoop):
    """A loop that can be blocked: time passes, and nothing runs. It counts the steps that it takes."""

    def __init__(self) -> None:
        self.blocked = self.steps = 0
        super().__init__()

    def time(self) -> float:
        return super().time() + self.blocked / SECOND

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        self.steps += 1
        return super().call_soon(callback, *args, context=context)


class Herd:
    """Callers that get a permit at once, and then each block the loop for ``body`` ns. ``turns`` has the ns of each iteration."""

    def __init__(self, body: int) -> None:
        self.body, self.loop = body, asyncio.get_running_loop()
        self.limiter = aiorate.Limiter(aiorate.TokenBucket("1/h", burst=10**9))
        self.went_on: list[int] = []
        self.turns: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, numbers: Iterable[int]) -> None:
        self.tasks += [asyncio.ensure_future(self._one(number)) for number in numbers]

    async def _one(self, number: int) -> None:
        await self.limiter.acquire()
        self.went_on.append(number)
        self.loop.blocked += self.body  # type: ignore[attr-defined]

    async def turn(self) -> None:
        before = self.loop.time()
        await asyncio.sleep(0)
        self.turns.append(round((self.loop.time() - before) * SECOND))

    async def end(self) -> None:
        while not all(task.done() for task in self.tasks):
            await self.turn()


def in_loop(main: Callable[[], Coroutine[Any, Any, object]]) -> None:
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())


def test_callers_go_on_in_order_of_arrival() -> None:
    """However many find the loop busy for too long, and are sent back; latecomers hold none of them up."""

    async def main() -> None:
        herd = Herd(2 * MS)
        herd.ask(range(1_000))
        await herd.turn()
        herd.ask(range(1_000, 1_500))
        await herd.end()
        assert [number for number in herd.went_on if number < 1_000] == list(range(1_000))
        assert [number for number in herd.went_on if number >= 1_000] == list(range(1_000, 1_500))

    in_loop(main)


def test_a_turn_ends_after_5_ms_and_one_body() -> None:
    async def main() -> None:
        for body in (MS // 2, MS, 3 * MS, 20 * MS):
            herd = Herd(body)
            herd.ask(range(200))
            await herd.end()
            assert max(herd.turns) < 5 * MS + body, body
            assert len(herd.turns) >= 200 * body / (5 * MS + body), body

    in_loop(main)


def test_the_cost_of_a_herd_is_linear() -> None:
    """Each caller is resumed about once; where each takes long, resuming some in vain costs little beside an iteration."""

    async def main() -> None:
        for body in (0, MS // 1000, MS // 50, MS // 4, 6 * MS):
            herd = Herd(body)
            loop: Any = herd.loop
            before = loop.steps
            herd.ask(range(1_000))
            await herd.end()
            steps = (loop.steps - before) / 1_000
            assert steps <= 4 + 70 * len(herd.turns) / 1_000 * (body >= MS // 4), (body, steps)

    in_loop(main)


def test_a_cancelled_caller_loses_its_place() -> None:
    """Whether it waits for its turn or was let through; what it was granted comes back."""

    async def main() -> None:
        herd = Herd(3 * MS)
        herd.ask(range(40))
        for number in range(5, 40, 5):
            await herd.turn()
            herd.tasks[number].cancel()
        await herd.end()
        assert herd.went_on == [number for number in range(40) if not herd.tasks[number].cancelled()]
        assert len(herd.went_on) <= 40 - 5
        assert herd.limiter.statistics().granted == len(herd.went_on)

    in_loop(main)


def test_busy_tasks_delay_no_waiting_caller_for_ever() -> None:
    """A task that runs first in each iteration, and finds a permit, uses up the time of most: every fourth lets a caller through."""

    async def main() -> None:
        herd = Herd(0)

        async def rival() -> None:
            for _ in range(16):
                await herd.limiter.acquire()
                herd.loop.blocked += 6 * MS  # type: ignore[attr-defined]
                await asyncio.sleep(0)

        busy = asyncio.ensure_future(rival())
        herd.ask(range(3))
        for _ in range(14):
            await herd.turn()
        assert herd.went_on == [0, 1, 2]
        assert not busy.done()
        await busy

    in_loop(main)
