"""The errors of real servers, read by redis-py and by valkey-py: which are outages and which are refusals, and that all keep their code.

Each is produced by the command or the setting that produces it in production.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio
import valkey.asyncio
from helpers.driving import one_loop, until
from helpers.stores import RealServer, port_of_cluster

from aiorate import EngineUnavailable
from aiorate.redis import RedisLimiter

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = one_loop

CLIENTS: list[Any] = [redis.asyncio.Redis, valkey.asyncio.Valkey]
SETTINGS: dict[str, list[tuple[Any, ...]]] = {
    "READONLY": [("REPLICAOF", "127.0.0.1", 1)],
    "MASTERDOWN": [("CONFIG", "SET", "replica-serve-stale-data", "no"), ("REPLICAOF", "127.0.0.1", 1)],
    "OOM": [("CONFIG", "SET", "maxmemory", 1)],
    "NOREPLICAS": [("CONFIG", "SET", "min-replicas-to-write", 1)],
    "NOAUTH": [("CONFIG", "SET", "requirepass", "right")],
    "WRONGPASS": [("CONFIG", "SET", "requirepass", "right")],
    "NOPERM": [("ACL", "SETUSER", "worker", "on", ">right", "~*", "+@all", "-eval", "-evalsha")],
    "WRONGTYPE": [("RPUSH", "aiorate:x", "1")],
}
LOGINS = {"WRONGPASS": "//:wrong@", "NOPERM": "//worker:right@"}
OUTAGES = {"READONLY", "MASTERDOWN", "OOM", "NOREPLICAS", "CLUSTERDOWN", "BUSY"}


async def limiter_names(code: str, url: str) -> None:
    """A limiter tells of an outage after the grace and of a refusal at once, and names the code, whatever its client."""
    own = [type("Own", (client,), {}).from_url(url, retry=None) for client in CLIENTS]
    async with AsyncExitStack() as stack:
        for source in (url, *[client.from_url(url) for client in CLIENTS], *own):
            if not isinstance(source, str):
                stack.push_async_callback(source.aclose)
            limiter = RedisLimiter(source, "x", "10/s", grace=0.01 if code in OUTAGES else 3600)
            with pytest.raises(EngineUnavailable, match=f": {code} ") as caught:
                await limiter.acquire()
            assert ("the store refuses" in str(caught.value)) is (code not in OUTAGES), (code, source)
            await limiter.aclose()


async def test_an_error_is_an_outage_or_a_refusal_by_its_code(running: RealServer) -> None:
    """The libraries remove the code from the text of some errors, and have no class for others."""
    for code, commands in SETTINGS.items():
        with RealServer() as server:
            for command in commands:
                server.send(*command)
            await limiter_names(code, server.url.replace("//", LOGINS.get(code, "//")))


async def test_a_server_that_runs_a_long_script_is_an_outage(running: RealServer) -> None:
    with RealServer() as server:
        server.send("CONFIG", "SET", "lua-time-limit", 1)
        endless = asyncio.create_task(asyncio.to_thread(ignoring_errors, server, "EVAL", "while true do end", 0))
        await until(lambda: "BUSY" in said(server, "GET", "x"))
        try:
            await limiter_names("BUSY", server.url)
        finally:
            server.kill()
            await endless


def said(server: RealServer, *words: str | int) -> str:
    try:
        return str(server.send(*words))
    except OSError as error:
        return str(error)


def ignoring_errors(server: RealServer, *words: str | int) -> None:
    with suppress(OSError):
        server.send(*words)


async def test_a_node_of_a_cluster_is_no_plain_server(nodes: tuple[RealServer, RealServer]) -> None:
    """Another node, or one that is taking a key over, is named with its code; a cluster without all slots is down."""
    first, second = nodes
    await until(lambda: all("cluster_state:ok" in node.send("CLUSTER", "INFO") for node in nodes))
    slot = int(first.send("CLUSTER", "KEYSLOT", "aiorate:x"))
    owner, other = (first, second) if slot >= 8192 else (second, first)
    await limiter_names("MOVED", other.url)
    owner.send("CLUSTER", "SETSLOT", slot, "MIGRATING", other.send("CLUSTER", "MYID"))
    await limiter_names("ASK", owner.url)
    with RealServer("--cluster-enabled", "yes", port=port_of_cluster()) as alone:
        await limiter_names("CLUSTERDOWN", alone.url)


@pytest.fixture
def nodes() -> Iterator[tuple[RealServer, RealServer]]:
    """A cluster of two: the first has the slots from 8192 on, and the second those before."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(RealServer("--cluster-enabled", "yes", port=port_of_cluster())) for _ in range(2))
        first.send("CLUSTER", "ADDSLOTS", *range(8192, 16384))
        second.send("CLUSTER", "ADDSLOTS", *range(8192))
        second.send("CLUSTER", "SET-CONFIG-EPOCH", 2)
        first.send("CLUSTER", "MEET", "127.0.0.1", second.port)
        yield first, second


# The permissions that docs/redis.md names.

PAGE = (Path(__file__).parents[2] / "docs" / "redis.md").read_text(encoding="utf-8")
KEYS, *COMMANDS = re.findall(r"ACL SETUSER \S+ on \S+ (.*)", PAGE)[0].split()


def url_of(store: RealServer, *rights: str) -> str:
    """The URL of a user that has only these rights."""
    store.send("ACL", "SETUSER", "somebody", "reset", "on", ">secret", *rights)
    return f"redis://somebody:secret@127.0.0.1:{store.port}/0"


async def test_the_listed_permissions_are_enough(store: RealServer) -> None:
    url = url_of(store, KEYS, *COMMANDS)
    for source in (url, *[client.from_url(url) for client in CLIENTS]):
        limiter = RedisLimiter(source, "name", "1000/s")
        for _ in range(3):
            await limiter.acquire()
        await limiter.aclose()
        if not isinstance(source, str):
            await source.aclose()


async def test_each_listed_permission_is_needed(store: RealServer) -> None:
    """A page that asks for too much would be as wrong. The name of a limiter is the end of its key."""
    assert COMMANDS
    for rights in (*[(KEYS, *(each for each in COMMANDS if each != without)) for without in COMMANDS], ("~other:*", *COMMANDS)):
        store.send("SCRIPT", "FLUSH")
        limiter = RedisLimiter(url_of(store, *rights), "name", "1000/s", on_unavailable="open", grace=3600)
        with pytest.raises(EngineUnavailable, match="the store refuses"):
            await limiter.acquire()
        await limiter.aclose()
