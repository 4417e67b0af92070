"""RedisLimiter over real connections, on asyncio and uvloop: clients, URLs, servers that refuse, answer garbage, die, or never answer.

What is said of time here holds on any machine: never early, the bound, and that it comes at all.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import redis.asyncio
import valkey.asyncio
from helpers.driving import LONG, others, until
from helpers.stores import RealServer, fake_server

import aiorate
from aiorate import EngineUnavailable, KeyedLimiter, Rate
from aiorate.redis import RedisLimiter
from aiorate.redis.asking import Asked, Script
from aiorate.redis.script import SLOTS, Question, limits_of, read_answer
from aiorate.redis.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.asyncio


class Wrapped(redis.asyncio.Redis):
    """A client of the user's: what it does with commands is its own business, so they go through it."""


CLIENTS: dict[str, Callable[[str], Any]] = {
    "redis-py": redis.asyncio.Redis.from_url,
    "redis-py, text": lambda url: redis.asyncio.Redis.from_url(url, decode_responses=True),
    "redis-py, RESP2": lambda url: redis.asyncio.Redis.from_url(url, protocol=2),
    "redis-py, one connection in all": lambda url: redis.asyncio.Redis.from_url(url, max_connections=1),
    "redis-py, one connection for all": lambda url: redis.asyncio.Redis.from_url(url, single_connection_client=True),
    "redis-py, a subclass": Wrapped.from_url,
    "valkey-py": valkey.asyncio.Valkey.from_url,
    "url": lambda url: url,
    "valkey url": lambda url: url.replace("redis://", "valkey://"),
}


def ours() -> list[asyncio.Task[Any]]:
    """The tasks that ask a store."""
    return [task for task in others() if task.get_name() == "aiorate-redis"]


@pytest_asyncio.fixture(params=CLIENTS)
async def source(request: pytest.FixtureRequest, store: RealServer) -> AsyncIterator[Any]:
    made = CLIENTS[request.param](store.url)
    yield made
    if not isinstance(made, str):
        await made.aclose()


async def test_every_kind_of_client_works(store: RealServer, source: Any) -> None:
    """As it is: nothing of it is changed, and a client that was given is not closed. The script is not loaded yet."""
    limiter = RedisLimiter(source, "x", "1000/s")
    began = monotonic_ns()
    await asyncio.gather(*[limiter.acquire() for _ in range(20)])

    assert monotonic_ns() - began >= 19_000_000
    assert 1 == store.calls("eval")
    assert 1 <= store.calls("evalsha") <= 20
    await limiter.aclose()
    assert isinstance(source, str) or await source.ping()


async def test_a_script_that_was_flushed_is_sent_again(store: RealServer, source: Any) -> None:
    """As after a failover: nobody notices."""
    limiter = RedisLimiter(source, "x", "1000/s")
    for _ in range(3):
        store.send("SCRIPT", "FLUSH")
        await limiter.acquire()

    assert 3 == store.calls("eval")
    await limiter.aclose()


async def test_a_server_killed_and_restarted_empty_goes_unnoticed(running: RealServer) -> None:
    """Connections break, scripts and state are gone, and requests go on waiting."""
    with RealServer() as server:
        limiter = RedisLimiter(server.url, "x", "1000/s", on_unavailable="wait")
        await limiter.acquire()
        server.kill()
        waiting = [asyncio.create_task(limiter.acquire()) for _ in range(5)]
        await asyncio.sleep(0.05)  # some calls fail, or none: it comes to the same
        server.start()
        await asyncio.gather(*waiting)
        assert server.send("GET", limiter.key).startswith("aiorate/1 ")
        await limiter.aclose()


async def test_a_refused_connection_is_an_error_after_the_grace(running: RealServer) -> None:
    """A wrong port, or a server that was never started."""
    with RealServer() as server:
        server.kill()
    limiter = RedisLimiter(server.url, "x", "1000/s", grace=0.05)

    with pytest.raises(EngineUnavailable) as caught:
        await limiter.acquire()
    assert caught.value.__cause__ is not None
    await limiter.aclose()


async def test_a_wrong_password_is_told_at_once(store: RealServer) -> None:
    """It would be no better after the grace."""
    store.send("ACL", "SETUSER", "worker", "on", ">right", "~*", "+@all")
    limiter = RedisLimiter(store.url.replace("//", "//worker:wrong@"), "x", "10/s", on_unavailable="open", grace=3600)

    with pytest.raises(EngineUnavailable, match=r"refuses.*(WRONGPASS|invalid username)"):
        await limiter.acquire()
    await limiter.aclose()
    limiter = RedisLimiter(store.url.replace("//", "//worker:right@"), "x", "10/s")
    await limiter.acquire()
    await limiter.aclose()


@pytest.mark.parametrize("rights", [("~*", "+@all", "-eval", "-evalsha"), ("~other:*", "+@all"), ("~*", "+eval", "+evalsha", "+get")])
async def test_a_missing_permission_is_told_at_once(store: RealServer, rights: tuple[str, ...]) -> None:
    """For the command, for the key, or for what the script does."""
    store.send("ACL", "SETUSER", "narrow", "reset", "on", ">right", *rights, "+hello", "+client", "+ping", "+select")
    limiter = RedisLimiter(store.url.replace("//", "//narrow:right@"), "x", "10/s", on_unavailable="local", local_share=1, grace=3600)

    with pytest.raises(EngineUnavailable, match="refuses"):
        await limiter.acquire()
    await limiter.aclose()


@pytest.mark.parametrize("command", [("RPUSH", "aiorate:x", "1"), ("SET", "aiorate:x", "hello")])
async def test_a_key_of_another_kind_is_told_and_left_alone(store: RealServer, command: tuple[str, ...]) -> None:
    """Somebody else uses that name."""
    store.send(*command)
    limiter = RedisLimiter(store.url, "x", "10/s", on_unavailable="wait")

    with pytest.raises(EngineUnavailable, match="WRONGTYPE"):
        await limiter.acquire()
    await limiter.aclose()


@pytest.mark.parametrize("reply", [b"+OK\r\n", b"$5\r\nhello\r\n", b":1\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\xff\r\n", b""])
async def test_a_server_that_answers_garbage_is_an_outage(reply: bytes) -> None:
    """Something else listens on that port. Nothing is granted for it."""

    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536) and reply:
            writer.write(reply * 8)
            await writer.drain()

    async with fake_server(garbage) as url:
        limiter = RedisLimiter(url, "x", "10/s", grace=0.02)
        with pytest.raises(EngineUnavailable):
            await limiter.acquire()
        await limiter.aclose()
        assert not ours()


async def test_a_server_that_never_answers_is_given_up() -> None:
    """It takes the connection, and that is all. Nobody hangs."""

    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with fake_server(silence) as url:
        limiter = RedisLimiter(url, "x", "10/s", grace=0.1)
        with pytest.raises(EngineUnavailable):
            await limiter.acquire()
        await limiter.aclose()
        assert not ours()


async def test_all_limiters_of_a_client_share_a_task_and_a_connection(store: RealServer) -> None:
    """However many keys there are."""
    keyed = KeyedLimiter(lambda key: RedisLimiter(store.url, f"chat:{key}", "1000/s"), shared="100000/s")
    before = store.calls()
    await asyncio.gather(*[keyed.acquire(key) for key in range(200) for _ in range(3)])

    assert 1 == len(ours())
    assert 2 == len([line for line in store.send("CLIENT", "LIST").splitlines() if line])  # with the one that asks
    assert store.calls() - before <= 3 * 600
    await keyed.aclose()
    await until(lambda: not ours())


async def test_the_script_is_sent_once_for_all_keys_of_a_call(store: RealServer) -> None:
    """A server that has lost it hears it once: 200 times one after the other would take longer than a call may."""
    limits = limits_of((Rate(1000),), (1,))
    connection = Store(store.url)
    for _ in range(2):
        store.send("SCRIPT", "FLUSH")
        before = store.calls("eval")
        # Not through limiters: on a busy machine they may give a call up, and ask once more.
        replies = await connection.ask([Asked(SLOTS, f"aiorate:chat:{key}", Question(1).words(limits)) for key in range(200)])
        assert [1] * 200 == [read_answer(reply, 1).granted for reply in replies]
        assert 1 == store.calls("eval") - before
    await connection.close()


async def test_one_call_asks_different_scripts(store: RealServer) -> None:
    """Each is sent once if the server lacks it, and each reply is that of its own question."""
    connection = Store(store.url)
    echo, double = Script.of("return ARGV[1]"), Script.of("return ARGV[1] .. ARGV[1]")
    for evals in (2, 0):
        before = store.calls("eval")
        replies = await connection.ask([Asked((echo, double)[key % 2], f"aiorate:{key}", [f"{key}"]) for key in range(6)])

        assert [b"0", b"11", b"2", b"33", b"4", b"55"] == replies
        assert evals == store.calls("eval") - before
    await connection.close()


async def test_more_keys_than_one_call_takes_go_with_the_next(store: RealServer) -> None:
    """The first in the first call, so that the loop turns in between."""
    # However slow the machine is, no slot lapses before it is used.
    limiters = [RedisLimiter(store.url, f"host:{key}", "1000/s", slack=LONG) for key in range(600)]
    order: list[int] = []

    async def one(key: int) -> None:
        await limiters[key].acquire()
        order.append(key)

    await asyncio.gather(*[one(key) for key in range(600)])
    assert sorted(order) == list(range(600))
    assert set(range(200)) <= set(order[:256])
    for limiter in limiters:
        await limiter.aclose()


async def test_a_client_with_a_reused_id_has_its_own_server(store: RealServer) -> None:
    """A client is known by its identity, which is free for another once it is gone, while the task that asks still lives."""
    client = redis.asyncio.Redis.from_url(store.url)
    await RedisLimiter(client, "x", "1000/s").acquire()
    kept = weakref.ref(client)
    del client
    gc.collect()

    assert ours()
    assert kept() is not None
    for task in ours():
        task.cancel()
    await asyncio.wait(ours())
    gc.collect()
    assert kept() is None


async def test_a_key_behind_a_redis_limit_makes_progress(store: RealServer) -> None:
    """Both limits come from the store, and each request takes one slot of either."""
    shared = RedisLimiter(store.url, "all", "200/s")
    keyed = KeyedLimiter(lambda key: RedisLimiter(store.url, f"chat:{key}", "100/s"), shared=shared)
    await asyncio.gather(*[keyed.acquire(key) for key in range(4) for _ in range(5)])

    assert 20 == shared.statistics().granted
    await keyed.aclose()
    await shared.aclose()


async def test_keys_that_are_idle_are_evicted(store: RealServer) -> None:
    """The store knows what they owe."""
    keyed = KeyedLimiter(lambda key: RedisLimiter(store.url, f"chat:{key}", "1000/s"))
    await asyncio.gather(*[keyed.acquire(key) for key in range(10)])

    assert 10 == keyed.evict()
    await until(lambda: not ours())


async def test_a_request_of_an_http_client_takes_a_slot(store: RealServer) -> None:
    """The hooks take it as any limiter, and what the server says is told to all processes."""
    import httpx2
    from helpers.server import Server

    from aiorate.http import hooks

    async with Server() as server:
        limiter, other = RedisLimiter(store.url, "api", "1000/s"), RedisLimiter(store.url, "api", "1000/s")
        async with httpx2.AsyncClient(event_hooks=hooks(limiter)) as client:
            for _ in range(3):
                await client.get(server.url)
        assert 3 == limiter.statistics().granted
        limiter.observe(aiorate.http.Feedback(429, pause=0.05))
        await until(lambda: store.send("GET", limiter.key).split(" ")[2] != "0")
        began = monotonic_ns()
        await other.acquire()
        assert monotonic_ns() - began > 1_000_000
        await limiter.aclose()
        await other.aclose()
