"""Limiters of a store that can be made to fail, for tests of outages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiorate.redis import RedisLimiter
from helpers.stores import TimedClient, now

if TYPE_CHECKING:
    import pytest

    from helpers.stores import RealServer

__all__ = ["POLICIES", "limiter_of", "lines", "outcome"]


POLICIES: dict[str, dict[str, Any]] = {
    "raise": {},
    "wait": {"on_unavailable": "wait"},
    "local": {"on_unavailable": "local", "local_share": 0.5},
    "open": {"on_unavailable": "open"},
}


def limiter_of(store: RealServer, policy: str = "raise", **options: Any) -> tuple[RedisLimiter, TimedClient]:
    client = TimedClient(store)
    return RedisLimiter(client, "x", options.pop("rate", "10/s"), **POLICIES[policy], **options), client


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "aiorate"]


async def outcome(awaitable: Any) -> Any:
    """The exception that it raises, or the time it took."""
    began = now()
    try:
        await awaitable
    except Exception as error:
        return error
    return now() - began
