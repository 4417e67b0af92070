"""The permissions that docs/processes.md names are those that it takes: with all of them it works, and without any one it says which."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
import valkey.asyncio
from helpers.driving import one_loop
from helpers.stores import RealServer

from aiorate import EngineUnavailable
from aiorate.redis import RedisLimiter

pytestmark = one_loop

PAGE = (Path(__file__).parents[2] / "docs" / "processes.md").read_text(encoding="utf-8")
KEYS, *COMMANDS = re.findall(r"ACL SETUSER \S+ on \S+ (.*)", PAGE)[0].split()


def url_of(store: RealServer, *rights: str) -> str:
    """The URL of a user that has only these rights."""
    store.send("ACL", "SETUSER", "somebody", "reset", "on", ">secret", *rights)
    return f"redis://somebody:secret@127.0.0.1:{store.port}/0"


@pytest.mark.parametrize("client", ["a URL", "redis-py", "valkey-py"])
async def test_the_listed_permissions_are_enough(store: RealServer, client: str) -> None:
    """An operator need not give more."""
    url = url_of(store, KEYS, *COMMANDS)
    sources = {"a URL": str, "redis-py": redis.asyncio.Redis.from_url, "valkey-py": valkey.asyncio.Valkey.from_url}
    source: Any = sources[client](url)
    limiter = RedisLimiter(source, "name", "1000/s")

    for _ in range(3):
        await limiter.acquire()
    await limiter.aclose()
    if client != "a URL":
        await source.aclose()

    assert store.calls() >= 3


@pytest.mark.parametrize("without", COMMANDS)
async def test_each_listed_permission_is_needed(store: RealServer, without: str) -> None:
    """A page that asks for too much would be as wrong."""
    url = url_of(store, KEYS, *(command for command in COMMANDS if command != without))
    limiter = RedisLimiter(url, "name", "1000/s", on_unavailable="wait")

    with pytest.raises(EngineUnavailable, match="the store refuses"):
        await limiter.acquire()
    await limiter.aclose()


async def test_the_name_of_a_limiter_is_the_end_of_its_key(store: RealServer) -> None:
    """Rights for other keys are of no use."""
    limiter = RedisLimiter(url_of(store, "~other:*", *COMMANDS), "name", "1000/s")

    with pytest.raises(EngineUnavailable, match="the store refuses"):
        await limiter.acquire()
    await limiter.aclose()
