"""The errors of real servers, read by redis-py and by valkey-py: which are outages and which are refusals, and that all keep their code.

Each is produced by the command or the setting that produces it in production.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio
import valkey.asyncio
from helpers.driving import one_loop, until
from helpers.stores import RealServer, port_of_cluster

from aiorate import EngineUnavailable, Rate
from aiorate.redis import RedisLimiter
from aiorate.redis.connections import connection_to
from aiorate.redis.failures import Refusal, Unreachable, code_of, failure_of
from aiorate.redis.script import SHA, TEXT, Question, limits_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = one_loop

Command = tuple[str | bytes | int, ...]
LIBRARIES = {"redis-py": (redis.asyncio, redis.asyncio.Redis), "valkey-py": (valkey.asyncio, valkey.asyncio.Valkey)}
ASK_LIMITER: Command = ("EVAL", TEXT, 1, "aiorate:x", *Question(1, horizon=20_000).words(limits_of((Rate(10),), (1,))))
"""What a limiter of the name "x" sends."""
OUTAGES = ["READONLY", "MASTERDOWN", "OOM", "NOREPLICAS", "LOADING", "CLUSTERDOWN", "BUSY", "UNKILLABLE", "TRYAGAIN"]
REFUSALS = ["NOAUTH", "WRONGPASS", "NOPERM", "MOVED", "ASK", "EXECABORT", "NOSCRIPT", "WRONGTYPE"]
IN_A_CLUSTER = ["MOVED", "ASK", "TRYAGAIN"]


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[RealServer, RealServer]]:
    """A cluster of two: the first has the slots from 8192 on, and the second those before."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(RealServer("--cluster-enabled", "yes", port=port_of_cluster())) for _ in range(2))
        first.send("CLUSTER", "ADDSLOTS", *range(8192, 16384))
        second.send("CLUSTER", "ADDSLOTS", *range(8192))
        second.send("CLUSTER", "SET-CONFIG-EPOCH", 2)
        first.send("CLUSTER", "MEET", "127.0.0.1", second.port)
        yield first, second


@asynccontextmanager
async def trouble(code: str, request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, list[Command]]]:
    """A server that is in that trouble: its URL, and the commands of which the last meets the error."""
    if code in IN_A_CLUSTER:
        first, second = request.getfixturevalue("nodes")
        await until(lambda: all("cluster_state:ok" in node.send("CLUSTER", "INFO") for node in (first, second)))
        yield prepare_cluster(code, first, second)
        return
    options, port = (("--cluster-enabled", "yes"), port_of_cluster()) if code == "CLUSTERDOWN" else ((), 0)
    with RealServer(*options, port=port) as server:
        url, commands = server.url, [ASK_LIMITER]
        if code == "READONLY":
            server.send("REPLICAOF", "127.0.0.1", 1)
        elif code == "MASTERDOWN":
            server.send("CONFIG", "SET", "replica-serve-stale-data", "no")
            server.send("REPLICAOF", "127.0.0.1", 1)
        elif code == "OOM":
            server.send("CONFIG", "SET", "maxmemory", 1)
        elif code == "NOREPLICAS":
            server.send("CONFIG", "SET", "min-replicas-to-write", 1)
        elif code == "NOAUTH":
            server.send("CONFIG", "SET", "requirepass", "right")
        elif code == "WRONGPASS":
            server.send("CONFIG", "SET", "requirepass", "right")
            url = url.replace("//", "//:wrong@")
        elif code == "NOPERM":
            server.send("ACL", "SETUSER", "worker", "on", ">right", "~*", "+@all", "-eval", "-evalsha")
            url = url.replace("//", "//worker:right@")
        elif code == "WRONGTYPE":
            server.send("RPUSH", "aiorate:x", "1")
        elif code == "EXECABORT":
            commands = [("MULTI",), ("NO-SUCH-COMMAND",), ("EXEC",)]
        elif code == "NOSCRIPT":
            commands = [("EVALSHA", SHA, 1, "aiorate:x")]
        elif code == "LOADING":
            fill(server)
            with RealServer() as replica:
                replica.send("CONFIG", "SET", "key-load-delay", load_delay(replica))
                replica.send("REPLICAOF", "127.0.0.1", server.port)
                await until(lambda: "loading:1" in replica.send("INFO", "persistence"))
                yield replica.url, commands
            return
        elif code in ("BUSY", "UNKILLABLE"):
            server.send("CONFIG", "SET", "lua-time-limit", 1)
            before = "redis.call('SET', 'x', 1) " if code == "UNKILLABLE" else ""
            endless = asyncio.create_task(asyncio.to_thread(ignoring_errors, server, "EVAL", f"{before}while true do end", 0))
            await until(lambda: is_busy(server))
            try:
                yield url, [("SCRIPT", "KILL")] if code == "UNKILLABLE" else commands
            finally:
                server.kill()
                await endless
            return
        yield url, commands


def prepare_cluster(code: str, first: RealServer, second: RealServer) -> tuple[str, list[Command]]:
    slot = int(first.send("CLUSTER", "KEYSLOT", "aiorate:x"))
    owner, other = (first, second) if slot >= 8192 else (second, first)
    if code == "MOVED":
        return other.url, [ASK_LIMITER]
    if code == "ASK":
        owner.send("CLUSTER", "SETSLOT", slot, "MIGRATING", other.send("CLUSTER", "MYID"))
        return owner.url, [ASK_LIMITER]
    other.send("CLUSTER", "SETSLOT", slot, "IMPORTING", owner.send("CLUSTER", "MYID"))
    return other.url, [("ASKING",), ("MGET", "{aiorate:x}1", "{aiorate:x}2")]


def fill(server: RealServer) -> None:
    """60 MB, which a replica takes its time to load."""
    server.send("CONFIG", "SET", "rdbcompression", "no")
    with suppress(OSError):  # older servers have no such setting, or no delay
        server.send("CONFIG", "SET", "repl-diskless-sync-delay", 0)
    server.send("EVAL", "for i = 1, 3000 do redis.call('SET', 'key:' .. i, string.rep('x', 20000)) end", 0)


def load_delay(replica: RealServer) -> int:
    """The us for each of 3000 keys: 30 s in all, and an answer every 0.1 s; 3 s in all where a server answers after every 2 MB only."""
    try:
        replica.send("CONFIG", "SET", "loading-process-events-interval-bytes", 200_000)
    except OSError:  # older servers have no such setting
        return 1_000
    return 10_000


def ignoring_errors(server: RealServer, *words: str | int) -> None:
    with suppress(OSError):
        server.send(*words)


def is_busy(server: RealServer) -> bool:
    try:
        server.send("GET", "x")
    except OSError as error:
        return "BUSY" in str(error)
    return False


async def met(url: str, commands: list[Command], library: Any) -> Exception:
    """The error that the last command meets, or the connection before it."""
    connection = connection_to(url, library, 5.0)
    try:
        *_, last = await connection.run(commands)
    except Exception as error:
        return error
    finally:
        await connection.close()
    assert isinstance(last, Exception), last
    return last


@pytest.mark.parametrize("code", [*OUTAGES, *REFUSALS])
async def test_an_error_is_an_outage_or_a_refusal_by_its_code(code: str, request: pytest.FixtureRequest) -> None:
    """The libraries remove the code from the text of some errors, and have no class for others.

    A limiter tells of an outage after the grace and of a refusal at once, and names the code.
    """
    async with trouble(code, request) as (url, commands):
        for library, client in LIBRARIES.values():
            error = await met(url, commands, library)
            assert code == code_of(error), repr(str(error))
            failure = failure_of(error)
            assert (Unreachable if code in OUTAGES else Refusal) is type(failure)
            assert str(failure).startswith(f"{code} ")
            assert error is failure.__cause__
            if commands == [ASK_LIMITER]:
                through_its_own = type("Own", (client,), {}).from_url(url, retry=None)
                for source in [through_its_own] if code == "LOADING" else [url, client.from_url(url), through_its_own]:
                    await limiter_names(code, source)


async def limiter_names(code: str, source: Any) -> None:
    limiter = RedisLimiter(source, "x", "10/s", grace=0.01 if code in OUTAGES else 3600)
    with pytest.raises(EngineUnavailable, match=f": {code} ") as caught:
        await limiter.acquire()
    assert ("the store refuses" in str(caught.value)) is (code in REFUSALS)
    await limiter.aclose()
    if not isinstance(source, str):
        await source.aclose()
