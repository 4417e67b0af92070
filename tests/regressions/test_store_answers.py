"""Stores that fail over or answer oddly, values of another release, keys that cannot be sent, and credentials."""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import redis.asyncio
import valkey.asyncio
from helpers.driving import LONG, one_loop, until
from helpers.stores import RealServer, TimedClient, now
from helpers.wire import wire
from redis.exceptions import ConnectionError as NoConnection

from aiorate import EngineUnavailable, KeyedLimiter, WaitTooLong
from aiorate.redis import RedisBudget, RedisLimiter

HOSTILE = json.loads('"\\ud800"')


POLICIES: dict[str, dict[str, Any]] = {
    "raise": {},
    "wait": {"on_unavailable": "wait"},
    "local": {"on_unavailable": "local", "local_share": 0.5},
    "open": {"on_unavailable": "open"},
}


class Pair:
    """A primary, its replica, and an address that leads to the primary until it is moved."""

    def __init__(self, primary: RealServer, replica: RealServer, address: Any) -> None:
        self.primary, self.replica, self.address = primary, replica, address
        self.url = f"redis://127.0.0.1:{address.port}/0"

    async def demote(self) -> None:
        """Promote the replica. The primary follows it, answers READONLY, and keeps its connections open."""
        await until(lambda: "master_link_status:up" in self.replica.send("INFO", "replication"))
        self.replica.send("REPLICAOF", "NO", "ONE")
        self.primary.send("REPLICAOF", "127.0.0.1", self.replica.port)

    def move(self) -> None:
        """Lead new connections to the former replica."""
        self.address.target = self.replica.port


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    with RealServer() as primary, RealServer() as replica, wire(primary.port) as address:
        primary.send("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        replica.send("REPLICAOF", "127.0.0.1", primary.port)
        yield Pair(primary, replica, address)


@one_loop
@pytest.mark.parametrize("source", [str, redis.asyncio.Redis.from_url], ids=["url", "redis-py"])
async def test_a_failover_ends_when_the_address_moves(source: Any) -> None:
    """ReadOnlyError has lost its code, so it counted as a refusal, and the connection to the old server stayed open for ever.

    Within the grace no policy raises an error.
    """
    async with pair() as servers, asyncio.timeout(LONG):
        client = source(servers.url)
        limiters = [RedisLimiter(client, name, "1000/s", grace=LONG, **options) for name, options in POLICIES.items()]
        await asyncio.gather(*[limiter.acquire() for limiter in limiters])
        await servers.demote()
        waiting = [asyncio.create_task(limiter.acquire()) for limiter in limiters for _ in range(10)]
        await until(lambda: servers.primary.calls() > 8)
        servers.move()
        await asyncio.gather(*waiting)

        assert servers.replica.calls() > 0
        for limiter in limiters:
            await limiter.aclose()
        if client is not servers.url:
            await client.aclose()


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_refusal_after_an_outage_ends_the_outage(store: RealServer) -> None:
    """A restart with another password was an outage for ever: "open" granted all, and "raise" named the wrong reason."""
    client = TimedClient(store)
    limiter = RedisLimiter(client, "x", "10/s", **POLICIES["open"])
    client.error = NoConnection("it is restarted")
    asking = [asyncio.create_task(limiter.acquire()) for _ in range(200)]
    await asyncio.sleep(5)
    store.send("SET", limiter.key, "of another program")
    client.error = None

    for _ in range(50):
        await asyncio.sleep(0.1)
        if limiter.statistics().state == "shared":
            break
    for _ in range(20):
        with pytest.raises(EngineUnavailable, match="the store refuses: WRONGTYPE"):
            await limiter.acquire()
        await asyncio.sleep(0.1)
    store.send("DEL", limiter.key)
    async with asyncio.timeout(60):
        await limiter.acquire()
    await asyncio.gather(*asking, return_exceptions=True)
    await limiter.aclose()


@one_loop
async def test_key_that_cannot_be_encoded_fails_where_it_is_given(store: RealServer) -> None:
    """20 honest users saw 1235 errors beside one key with a lone surrogate, as JSON may bring it."""
    with pytest.raises(ValueError, match=r"RedisLimiter\(name\).*surrogate"):
        RedisLimiter(store.url, f"user:{HOSTILE}", "10/s")
    users = KeyedLimiter(lambda user: RedisLimiter(store.url, f"user:{user}", "1000/s"))
    names = [*(f"user {number}" for number in range(20)), HOSTILE]
    results = await asyncio.gather(*[users.acquire(name) for name in names for _ in range(5)], return_exceptions=True)

    assert [float] * 100 + [ValueError] * 5 == [type(result) for result in results]
    assert 20 == len(users)
    await users.aclose()


@one_loop
async def test_the_encoding_of_a_client_does_not_matter(store: RealServer) -> None:
    """That of the client lacks a character. One that is given, too."""
    own = type("Own", (valkey.asyncio.Valkey,), {})
    for source in (valkey.asyncio.Valkey.from_url(store.url, encoding="ascii"), own.from_url(store.url, encoding="ascii")):
        limiters = [RedisLimiter(source, name, "1000/s") for name in ("ann", "zo\u00eb", "bob")]
        await asyncio.gather(*[limiter.acquire() for limiter in limiters for _ in range(2)])
        for limiter in limiters:
            await limiter.acquire()
            await limiter.aclose()
        await source.aclose()


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_key_that_another_release_wrote_delays_no_other(store: RealServer) -> None:
    """During an upgrade. It is refused, whatever the policy."""
    store.send("SET", "aiorate:new", "aiorate/3 1")
    client = TimedClient(store)
    new, old = (RedisLimiter(client, name, "100/s", on_unavailable="wait") for name in ("new", "old"))
    with pytest.raises(EngineUnavailable, match=r"holds aiorate/3 1, and no sound aiorate/2 limiter"):
        await new.acquire()
    for _ in range(200):
        await old.acquire()

    assert pytest.approx(1.99, abs=1e-3) == now()
    assert client.calls <= 200 + 10
    store.send("DEL", "aiorate:new")
    await new.acquire()
    await new.aclose()
    await old.aclose()


def test_object_that_is_not_a_client_is_refused(store: RealServer) -> None:
    """A pipeline collects commands, and a subscription sends none; the error names what to pass."""
    one, other = redis.asyncio.Redis.from_url(store.url), valkey.asyncio.Valkey.from_url(store.url)
    cluster = redis.asyncio.RedisCluster.from_url(store.url)
    wrong: list[Any] = [one.pipeline(), one.pubsub(), one.monitor(), one.connection_pool, other.pipeline(), other.pubsub()]
    wrong += [cluster.pipeline(), redis.asyncio.Sentinel([("127.0.0.1", 1)]), one.lock("x"), redis.asyncio.Redis]
    for each in wrong:
        with pytest.raises(TypeError, match="Give the client"):
            RedisLimiter(each, "x", "10/s")


PARTS = ["s3cr", "1234", "t0pp", "w0rd"]


URLS = [
    "redis://:s3cr#t0pp@127.0.0.1:1/0",
    "redis://:s3cr?t0pp=w0rd@127.0.0.1:1/0",
    "redis://:s3cr[t0pp@127.0.0.1:1/0",
    "redis://:s3cr@t0pp@127.0.0.1:1/0",
    "redis://:s3cr%t0pp@127.0.0.1:1/0",
    "redis://:s3cr\u2100t0pp@127.0.0.1:1/0",  # NFKC turns it into a/c, with a slash
    "redis://:1234/t0pp@127.0.0.1:1/0",
    "redis://s3cr:t0pp@127.0.0.1:99999/0",
    "redis://127.0.0.1:1?password=s3cr&t0pp=w0rd",
    "redis://127.0.0.1:1?username=me@corp&password=s3cr",
    ":s3cr@127.0.0.1:1",
    "s3cr://127.0.0.1",
    "http://user:s3cr@127.0.0.1",
    "unix://:s3cr/t0pp@/tmp/none.sock",
    "rediss://:s3cr@127.0.0.1:1",
]


def is_silent(text: str) -> bool:
    """True if no part of a credential is in the text."""
    return not any(part in text for part in PARTS)


def chain(error: BaseException) -> str:
    """Return everything that a program may log of the error, including causes that Python does not show by itself."""
    texts: list[str] = []
    following: BaseException | None = error
    while following is not None:
        texts += [str(following), repr(following), *traceback.format_exception_only(following)]
        following = following.__cause__ or following.__context__
    return "\n".join(texts)


@one_loop
async def test_no_part_of_a_password_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    """The error "Port could not be cast to integer value as 's3cr'" showed the beginning of a password with a # in it."""
    for url in URLS:
        caplog.set_level(logging.DEBUG)
        with pytest.raises((ValueError, EngineUnavailable)) as caught:
            await RedisLimiter(url, "x", "10/s", grace=0).acquire()

        assert is_silent(chain(caught.value)), url
        assert isinstance(caught.value, EngineUnavailable) or "a URL such as 'redis://127.0.0.1:6379/0'" in str(caught.value), url
        assert is_silent(caplog.text), url


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_an_amount_larger_than_any_float_is_booked(store: RealServer) -> None:
    """Of a rate any amount is granted, and later ones wait for as long as the store can count."""
    for amount in [2**63, 10**30, 10**400]:
        budget = RedisBudget(TimedClient(store), f"x{amount}", tokens="1000/s")
        async with budget.reserve(tokens=amount):
            pass

        with pytest.raises(WaitTooLong):
            await budget.reserve(tokens=1, max_wait=1e6).__aenter__()
        await budget.aclose()


class _FarCluster(TimedClient):
    """Its client takes many round trips to connect, and begins anew if it is not left to."""

    connected = False

    async def initialize(self) -> None:
        await asyncio.sleep(0 if self.connected else 3)
        self.connected = True


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_cluster_far_away_is_reached_in_the_end(store: RealServer) -> None:
    """Each attempt was given up after half a second: "wait" waited for ever, and "open" had no limit. Closing does not take that long."""
    for patient in (True, False):
        client = type("RedisCluster", (_FarCluster,), {})(store)
        limiter = RedisLimiter(client, "x", "10/s", on_unavailable="wait")
        began = now()
        with suppress(TimeoutError):
            async with asyncio.timeout(10 if patient else 2):
                await limiter.acquire()
        await limiter.aclose()
        assert (patient, True) == (client.connected, now() - began < (5 if patient else 2.8))


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_max_wait_of_0_is_asked_for_beside_those_who_wait_for_an_answer(store: RealServer) -> None:
    """Whoever came while another waited for a store 20 ms away was refused, with a bucket that was full."""
    limiter = RedisLimiter(TimedClient(store, latency=0.01), "x", "100/s", burst=50)
    await limiter.acquire()
    waiting = [asyncio.create_task(limiter.acquire()) for _ in range(3)]
    await asyncio.sleep(0.005)
    assert await limiter.acquire(max_wait=0) <= 0.05
    await asyncio.gather(*waiting)
    await limiter.aclose()
