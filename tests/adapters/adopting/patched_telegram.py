"""What python-telegram-bot's AIORateLimiter promises, and what the patch mends. Run by test_adopting.py with the patched package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from telegram.error import RetryAfter
from telegram.ext import AIORateLimiter

from aiorate.testing import VirtualLoop


@pytest.fixture(autouse=True)
def _timedelta(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the next major release does; without it, the present one warns."""
    monkeypatch.setenv("PTB_TIMEDELTA", "true")


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    """Run in virtual time."""

    async def body() -> Any:
        return await main()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(body())


class Server:
    """Notes when it is called, answers after ``took`` seconds, and refuses the calls whose numbers are in ``refused``."""

    def __init__(self, limiter: AIORateLimiter, *, took: float = 0.0, refused: dict[int, int] | None = None) -> None:
        self.limiter, self.took, self.refused = limiter, took, refused or {}
        self.times: list[float] = []

    async def call(self) -> bool:
        number = len(self.times)
        self.times.append(round(asyncio.get_running_loop().time(), 6))
        await asyncio.sleep(self.took)
        if number in self.refused:
            raise RetryAfter(self.refused[number])
        return True

    async def send(self, chat: int | str | None, **data: Any) -> Any:
        if chat is not None:
            data["chat_id"] = chat
        return await self.limiter.process_request(self.call, (), {}, "sendMessage", data, None)


def test_all_chats_share_thirty_a_second() -> None:
    async def main() -> list[float]:
        server = Server(AIORateLimiter())
        await asyncio.gather(*(server.send(chat) for chat in range(1, 33)))
        return server.times

    assert [0.0] * 30 + [0.033334, 0.066667] == pytest.approx(run(main), abs=1e-5)


@pytest.mark.parametrize("chats", [(-1, "-1"), ("@name", "@name")])
def test_a_group_has_twenty_a_minute(chats: tuple[int | str, int | str]) -> None:
    async def main() -> list[float]:
        server = Server(AIORateLimiter())
        await asyncio.gather(*(server.send(chats[number % 2]) for number in range(22)))
        return server.times

    assert [0.0] * 20 + [3.0, 6.0] == pytest.approx(run(main), abs=1e-3)


def test_a_zero_turns_a_limit_off() -> None:
    async def main() -> list[float]:
        server = Server(AIORateLimiter(overall_max_rate=0, group_time_period=0))
        await asyncio.gather(*(server.send(-1) for _ in range(200)))
        return server.times

    assert [0.0] * 200 == run(main)


def test_paid_messages_have_another_limit() -> None:
    async def main() -> list[float]:
        server = Server(AIORateLimiter(group_max_rate=1, overall_max_rate=1))
        await asyncio.gather(*(server.send(-1, allow_paid_broadcast=True) for _ in range(1001)))
        return server.times

    assert [0.0] * 1000 + [0.001] == run(main)


def test_calls_without_a_chat_are_not_limited() -> None:
    async def main() -> list[float]:
        server = Server(AIORateLimiter(overall_max_rate=1))
        await asyncio.gather(*(server.send(None) for _ in range(100)))
        return server.times

    assert [0.0] * 100 == run(main)


@pytest.mark.parametrize("chat", [1, -1, None])
def test_retry_after_halts_all_while_others_succeed(chat: int | None) -> None:
    """Each success ended the halt in release 22.8, for everybody."""

    async def main() -> list[float]:
        server = Server(AIORateLimiter(max_retries=1), took=0.2, refused={0: 30})
        tasks = [asyncio.create_task(server.send(number)) for number in range(1, 11)]
        await asyncio.sleep(1)
        tasks += [asyncio.create_task(server.send(chat)) for _ in range(50)]
        tasks += [asyncio.create_task(server.send(1, allow_paid_broadcast=True))]
        await asyncio.gather(*tasks)
        return server.times

    times = run(main)

    assert [0.0] * 10 == times[:10]
    assert 10 + 50 + 1 + 1 == len(times)
    assert 30.3 <= times[10]  # 0.2 s until the answer, then 30.1


def test_the_line_goes_on_at_its_rate_after_a_halt() -> None:
    """All that waited were sent at once in release 22.8."""

    async def main() -> list[float]:
        server = Server(AIORateLimiter(max_retries=1), refused={0: 30})
        await asyncio.gather(*(server.send(number) for number in range(1, 301)))
        return server.times

    times = run(main)

    after = [at for at in times if at >= 30]
    assert max(sum(at <= other < at + 1 for other in after) for at in after) <= 60


def test_the_later_of_two_halts_counts() -> None:
    async def main() -> list[float]:
        server = Server(AIORateLimiter(max_retries=2), took=0.1, refused={0: 40, 1: 5})
        await asyncio.gather(server.send(1), server.send(2))
        return server.times

    assert [0.0, 0.0, 40.2, 40.2] == run(main)


def test_without_retries_the_error_is_raised() -> None:
    async def main() -> list[float]:
        server = Server(AIORateLimiter(), refused={0: 30})
        with pytest.raises(RetryAfter):
            await server.send(1)
        await server.send(1)
        return server.times

    assert [0.0, 0.0] == run(main)


def test_a_cancelled_message_spends_nothing_of_its_group() -> None:
    """It stood in line for the overall limit. Release 22.8 had taken the group's capacity by then."""

    async def main() -> list[float]:
        server = Server(AIORateLimiter(overall_max_rate=1, overall_time_period=10, group_max_rate=2, group_time_period=1000))
        await server.send(1)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(server.send(-1), 1)
        await server.send(-1)
        await server.send(-1)
        return server.times

    assert [0.0, 10.0, 20.0] == run(main)


def test_silent_groups_are_dropped() -> None:
    async def main() -> int:
        limiter = AIORateLimiter()
        server = Server(limiter)
        for group in range(1, 3001):
            await server.send(-group)
            await asyncio.sleep(1)
        return len(limiter._group_limiters)  # nothing else tells

    assert run(main) < 10


def test_one_limiter_serves_one_loop_after_another() -> None:
    limiter = AIORateLimiter()

    async def main() -> Any:
        return await Server(limiter).send(-1)

    assert [True, True] == [run(main), run(main)]
