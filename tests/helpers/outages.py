"""Limits of a store that can be made to fail, for tests of outages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError

from aiorate import CalendarWindow
from aiorate.redis import RedisBudget, RedisLimiter
from helpers.stores import TimedClient, now

if TYPE_CHECKING:
    from collections.abc import Awaitable

    import pytest

    from helpers.stores import RealServer


KINDS = ("limiter", "budget", "window")
POLICIES: dict[str, dict[str, Any]] = {
    "raise": {},
    "wait": {"on_unavailable": "wait"},
    "local": {"on_unavailable": "local", "local_share": 0.5},
    "open": {"on_unavailable": "open"},
}


def made(store: RealServer, kind: str, policy: str, client: Any = None, **options: Any) -> tuple[Any, TimedClient]:
    """A limit of ten a second with the name "x", and its client."""
    client = client or TimedClient(store)
    options = POLICIES[policy] | options
    if kind == "budget":
        return RedisBudget(client, "x", **{"requests": "10/s", "tokens": "1000/s", **options}), client
    limit = "10/s" if kind == "limiter" else CalendarWindow("10/s", "UTC")
    return RedisLimiter(client, "x", options.pop("rate", limit), **options), client


async def take(subject: Any, used: int | None = None, max_wait: float | None = None, **amounts: int) -> Any:
    """When it was granted, or the exception."""
    try:
        if isinstance(subject, RedisLimiter):
            await subject.acquire(max_wait=max_wait)
            return now()
        async with subject.reserve(max_wait=max_wait, **amounts) as lease:
            if used is not None:
                lease.settle(tokens=used)
            return now()
    except Exception as error:
        return error


async def together(*awaitables: Awaitable[Any]) -> list[Any]:
    return list(await asyncio.gather(*awaitables))


def refuse() -> Exception:
    return NoPermissionError("NOPERM this user has no permissions to run the 'evalsha' command")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What aiorate logged."""
    return [record.getMessage() for record in caplog.records if record.name == "aiorate"]
