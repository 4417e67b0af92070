"""What a store answers: keys it cannot take, answers that make no sense, values of another release."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
import redis.asyncio
import valkey.asyncio
from helpers.driving import LONG, one_loop
from helpers.stores import RealServer, TimedClient, fake_server, now

from aiorate import AllOf, EngineUnavailable, KeyedLimiter, Limiter
from aiorate.redis import RedisLimiter

HOSTILE = json.loads('"\\ud800"')


@one_loop
async def test_key_that_cannot_be_encoded_fails_where_it_is_given(store: RealServer) -> None:
    """20 honest users saw 1235 errors beside one key with a lone surrogate, as JSON may bring it."""
    with pytest.raises(ValueError, match=r"RedisLimiter\(name\).*'user:\\ud800' has a lone surrogate.*errors='replace'"):
        RedisLimiter(store.url, f"user:{HOSTILE}", "10/s")
    users = KeyedLimiter(lambda user: RedisLimiter(store.url, f"user:{user}", "1000/s"))
    names = [*(f"user {number}" for number in range(20)), HOSTILE]
    results = await asyncio.gather(*[users.acquire(name) for name in names for _ in range(5)], return_exceptions=True)

    assert [float] * 100 + [ValueError] * 5 == [type(result) for result in results]
    assert 20 == len(users)
    await users.aclose()


class OwnRedis(redis.asyncio.Redis):
    """A client whose class is the user's."""


class OwnValkey(valkey.asyncio.Valkey):
    """The same for valkey-py."""


@one_loop
@pytest.mark.parametrize("client", [redis.asyncio.Redis, valkey.asyncio.Valkey, OwnRedis, OwnValkey])
async def test_a_key_that_cannot_be_sent_fails_alone(store: RealServer, client: Any) -> None:
    """The client's encoding lacks a character. The other keys of the call are served, then and at the next call."""
    source = client.from_url(store.url, encoding="ascii")
    limiters = [RedisLimiter(source, name, "1000/s", on_unavailable="wait") for name in ("ann", "zo\u00eb", "bob")]
    for _ in range(3):
        results = await asyncio.gather(*[limiter.acquire() for limiter in limiters for _ in range(3)], return_exceptions=True)
        assert [float] * 3 + [EngineUnavailable] * 3 + [float] * 3 == [type(result) for result in results]
        assert "'ascii' codec can't encode" in str(results[3])
    for limiter in limiters:
        await limiter.aclose()
    await source.aclose()


@pytest.mark.asyncio(loop_factories=["virtual"])
async def test_a_key_that_another_release_wrote_delays_no_other(store: RealServer) -> None:
    """During an upgrade it is asked for again and again, and the task that asks must not pause for it."""
    store.send("SET", "aiorate:new", "aiorate/2 1")
    client = TimedClient(store)
    new, old = (RedisLimiter(client, name, "100/s", on_unavailable="wait") for name in ("new", "old"))
    waiting = asyncio.create_task(new.acquire())
    for _ in range(200):
        await old.acquire()

    assert pytest.approx(1.99, abs=1e-3) == now()
    assert client.calls <= 200 + 10
    store.send("DEL", "aiorate:new")
    assert 1.99 <= await waiting <= 2.25
    await new.aclose()
    await old.aclose()


class Odd(TimedClient):
    """A store that answers with a given number of slots."""

    def __init__(self, store: RealServer, granted: str) -> None:
        super().__init__(store)
        self.granted = granted

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        value, mark, slots = str(await super().execute_command(*args, **options)).rpartition("; ")
        return value + mark + " ".join([self.granted, *slots.split(" ")[1:]])


@pytest.mark.asyncio(loop_factories=["virtual"])
@pytest.mark.parametrize("granted", ["0", "-5", "1000000", "nan", "1.5", "one", ""])
@pytest.mark.parametrize("policy", [{}, {"on_unavailable": "wait"}])
async def test_a_bad_answer_is_an_outage(store: RealServer, granted: str, policy: dict[str, Any]) -> None:
    """An answer of 0 slots led to more questions without a pause, and -5 was accepted. Neither grants anything."""
    client = Odd(store, granted)
    limiter = RedisLimiter(client, "x", "10/s", **policy)
    waiting = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(10)

    assert client.calls < 60
    assert 0 == limiter.statistics().granted
    assert "degraded" == limiter.statistics().state
    assert waiting.done() is (policy == {})
    if not policy:
        assert "the store assigned" in str(waiting.exception()) or "the store answered" in str(waiting.exception())
    await limiter.aclose()
    await asyncio.wait([waiting])
    assert now() < 11


@one_loop
@pytest.mark.parametrize(
    "reply", [b":abc\r\n", b"*1\r\n:x\r\n", b"$-7\r\n", b"%1\r\n+a\r\n", b"*99999\r\n", b"+aiorate/1 0 0 0 0; -1 0\r\n", b"$1\r\n\xff\r\n"]
)
@pytest.mark.parametrize("client", [None, redis.asyncio.Redis, OwnRedis, valkey.asyncio.Valkey])
async def test_junk_is_an_outage(reply: bytes, client: Any) -> None:
    """Within the grace callers wait, and no policy takes it for a refusal."""

    async def junk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            for command in data.split(b"*")[1:]:
                writer.write(reply if b"EVAL" in command else b"+OK\r\n" if b"\r\n" in command else b"")
            await writer.drain()

    async with fake_server(junk) as url:
        source = url if client is None else client.from_url(url, protocol=2, decode_responses=True, socket_timeout=0.1, retry=None)
        limiter = RedisLimiter(source, "x", "10/s", on_unavailable="open", grace=0.05)
        async with asyncio.timeout(LONG):
            await limiter.acquire()
        assert "degraded" == limiter.statistics().state
        await limiter.aclose()
        if client is not None:
            await source.aclose()


def test_object_that_is_not_a_client_is_refused(store: RealServer) -> None:
    """A pipeline collects commands, and a subscription sends none; the error names what to pass."""
    one, other = redis.asyncio.Redis.from_url(store.url), valkey.asyncio.Valkey.from_url(store.url)
    cluster = redis.asyncio.RedisCluster.from_url(store.url)
    wrong: list[Any] = [one.pipeline(), one.pubsub(), one.monitor(), one.connection_pool, other.pipeline(), other.pubsub()]
    wrong += [cluster.pipeline(), redis.asyncio.Sentinel([("127.0.0.1", 1)]), one.lock("x"), redis.asyncio.Redis]
    for each in wrong:
        with pytest.raises(TypeError, match=r"not (the class )?\w+\. Give the client .* a pipeline or a subscription.*master_for\(name\)"):
            RedisLimiter(each, "x", "10/s")


@one_loop
async def test_two_rates_under_one_name_are_logged_once(store: RealServer, caplog: pytest.LogCaptureFixture) -> None:
    """Each limiter assigned slots by its own rate, with no warning."""
    caplog.set_level(logging.WARNING, "aiorate")
    same = [RedisLimiter(store.url, "same", rate, burst=3) for rate in ("1000/s", "1000/s")]
    differ = [RedisLimiter(store.url, "x", rate) for rate in ("1000/s", "2000/s", "3000/s")]
    differ.append(RedisLimiter(store.url, "x", "1000/s", burst=2))
    for limiter in same + differ:
        for _ in range(2):
            await limiter.acquire()

    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("limiter 'x': another RedisLimiter of this name has other rates or bursts.")
    for limiter in same + differ:
        await limiter.aclose()


def test_list_of_rates_for_a_limiter_is_an_all_of() -> None:
    """A RedisLimiter takes a list of rates, and so does a Limiter."""
    for rates in (["1/s", "10/min"], ("1/s", "10/min")):
        assert isinstance(Limiter(rates).scheduler, AllOf)


POLICIES: dict[str, dict[str, Any]] = {
    "raise": {},
    "wait": {"on_unavailable": "wait"},
    "local": {"on_unavailable": "local", "local_share": 0.5},
    "open": {"on_unavailable": "open"},
}


async def outcome(limiter: RedisLimiter, seconds: float) -> str:
    """Return ``granted``, the text of the error, or ``waiting`` after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            await limiter.acquire()
    except EngineUnavailable as error:
        return str(error)
    except TimeoutError:
        return "waiting"
    return "granted"


@pytest.mark.asyncio(loop_factories=["virtual"])
@pytest.mark.parametrize("value", ["aiorate/2 1800000000000000 0 0", "aiorate/2 7 1800000000000000 0 0 5", "aiorate/2 {}"])
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_value_of_another_release_is_an_outage(store: RealServer, value: str, policy: str) -> None:
    """A later release with another number in front made older processes grant at once; another word gave WRONGTYPE.

    Within the grace callers wait, and after it the policy decides, as in any outage. The value stays as it is.
    """
    store.send("SET", "aiorate:x", value)
    limiter = RedisLimiter(TimedClient(store), "x", "10/s", **POLICIES[policy])

    assert "waiting" == await outcome(limiter, 0.9)
    later = await outcome(limiter, 60.0)
    assert {"raise": "answers with an error", "wait": "waiting", "local": "granted", "open": "granted"}[policy] in later
    if policy == "raise":
        assert "VERSION the key aiorate:x was written by another release of aiorate, as aiorate/2; this release reads aiorate/1." in later
    assert value == store.send("GET", "aiorate:x")
    await limiter.aclose()


@one_loop
async def test_processes_go_on_once_the_other_release_is_gone(store: RealServer) -> None:
    """The outage ends when the value expires, without a restart."""
    store.send("SET", "aiorate:x", "aiorate/2 1800000000000000 0 0", "PX", 300)
    limiter = RedisLimiter(store.url, "x", "1000/s", on_unavailable="wait")
    await limiter.acquire()

    assert store.send("GET", limiter.key).startswith("aiorate/1 ")
    await limiter.aclose()
