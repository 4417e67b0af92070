"""Real connections: clients, URLs, servers that refuse, answer garbage, die or never answer, and clusters. Nothing is early; all ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from functools import partial
from itertools import product
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio
import valkey.asyncio
from helpers.driving import LONG, others, until
from helpers.outages import POLICIES
from helpers.stores import RealServer, fake_server, port_of_cluster
from helpers.wire import wire
from redis.asyncio.cluster import RedisCluster
from valkey.asyncio.cluster import ValkeyCluster

from aiorate import EngineUnavailable, KeyedBudget, KeyedLimiter, WaitTooLong
from aiorate.redis import RedisBudget, RedisLimiter

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.asyncio


CLIENTS: dict[str, Callable[[str], Any]] = {
    "redis-py": redis.asyncio.Redis.from_url,
    "redis-py, text": lambda url: redis.asyncio.Redis.from_url(url, decode_responses=True),
    "redis-py, RESP2": lambda url: redis.asyncio.Redis.from_url(url, protocol=2),
    "redis-py, one connection in all": lambda url: redis.asyncio.Redis.from_url(url, max_connections=1),
    "redis-py, one connection for all": lambda url: redis.asyncio.Redis.from_url(url, single_connection_client=True),
    "redis-py, a subclass": type("Own", (redis.asyncio.Redis,), {}).from_url,
    "valkey-py": valkey.asyncio.Valkey.from_url,
    "url": lambda url: url,
    "valkey url": lambda url: url.replace("redis://", "valkey://"),
}


def ours() -> list[asyncio.Task[Any]]:
    """The tasks that ask a store."""
    return [task for task in others() if task.get_name() == "aiorate-redis"]


async def test_open_grants_at_once_where_time_passes() -> None:
    limiter = RedisLimiter("redis://127.0.0.1:1", "x", "40/s", on_unavailable="open", grace=0)
    await limiter.acquire()
    for _ in range(20):
        await asyncio.gather(*[limiter.acquire(max_wait=0) for _ in range(5)])
    await limiter.aclose()


async def test_every_kind_of_client_works(store: RealServer) -> None:
    """As it is: nothing of it is changed, and a client that was given is not closed. A script that is not loaded, or flushed, is sent."""
    for name, made in CLIENTS.items():
        store.send("FLUSHALL")
        store.send("SCRIPT", "FLUSH")
        store.send("CONFIG", "RESETSTAT")
        source = made(store.url)
        limiter, budget = RedisLimiter(source, "x", "1000/s"), RedisBudget(source, "y", requests="1000/s", tokens="100_000/s")
        began = monotonic_ns()
        await asyncio.gather(*[limiter.acquire() for _ in range(20)])
        assert monotonic_ns() - began >= 19_000_000, name
        assert 1 == store.calls("eval"), name
        assert 1 <= store.calls("evalsha") <= 20, name
        for _ in range(2):
            store.send("SCRIPT", "FLUSH")
            await limiter.acquire()
        assert 3 == store.calls("eval"), name
        async with budget.reserve(tokens=10) as lease:
            lease.settle(tokens=5)
        await limiter.aclose()
        await budget.aclose()
        assert not ours(), name
        assert isinstance(source, str) or await source.ping(), name
        if not isinstance(source, str):
            await source.aclose()


async def test_a_server_that_answers_garbage_or_nothing_is_an_outage() -> None:
    """Something else listens on that port. Nothing is granted for it, and nobody hangs."""
    for reply in (b"+OK\r\n", b"$5\r\nhello\r\n", b":1\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\xff\r\n", b"", None):

        async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: bytes | None = reply) -> None:
            if reply is None:
                await asyncio.Event().wait()
            while await reader.read(65536) and reply:
                writer.write(reply * 8)
                await writer.drain()

        async with fake_server(garbage) as url:
            limiter = RedisLimiter(url, "x", "10/s", grace=0.02)
            with pytest.raises(EngineUnavailable):
                await limiter.acquire()
            await limiter.aclose()
            assert not ours(), reply


async def test_budgets_and_limiters_of_a_client_go_in_one_call(store: RealServer) -> None:
    """Whatever their scripts. A server that has lost these hears each once, not once for each key."""
    client = redis.asyncio.Redis.from_url(store.url)
    budgets = KeyedBudget(lambda key: RedisBudget(client, f"budget:{key}", requests="1000/s", tokens="100_000/s"))
    limiters = KeyedLimiter(lambda key: RedisLimiter(client, f"limiter:{key}", "1000/s"))

    async def one(key: int) -> None:
        async with budgets.reserve(key, tokens=3):
            await limiters.acquire(key)

    async with asyncio.timeout(LONG):
        await asyncio.gather(*[one(key) for key in range(50)])
    assert store.calls("eval") <= 20
    assert 1 == sum("evalsha" in line or "cmd=eval" in line for line in store.send("CLIENT", "LIST").splitlines())
    await budgets.aclose()
    await limiters.aclose()
    await client.aclose()


# Clusters.


@contextmanager
def cluster(*slots: range) -> Iterator[list[RealServer]]:
    """A primary for each range, that know of each other soon. One that is down does not keep the others from answering."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                RealServer(
                    *("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "500"),
                    port=port_of_cluster(),
                )
            )
            for _ in slots
        ]
        for epoch, (node, its) in enumerate(zip(nodes, slots, strict=True), 1):
            node.send("CLUSTER", "ADDSLOTS", *its)
            node.send("CLUSTER", "SET-CONFIG-EPOCH", epoch)
            if node is not nodes[0]:
                nodes[0].send("CLUSTER", "MEET", "127.0.0.1", node.port)
        yield nodes


async def complete(nodes: list[RealServer]) -> None:
    """Return when each node knows all others, and all slots."""
    for hint in ("cluster_state:ok", f"cluster_known_nodes:{len(nodes)}"):
        await until(lambda hint=hint: all(hint in node.send("CLUSTER", "INFO") for node in nodes))


async def test_keys_of_all_slots_are_served(running: RealServer) -> None:
    """A limiter is one key, and so is a budget whatever its dimensions: each is on one node, and all are asked for in one go."""
    with cluster(range(8192), range(8192, 16384)) as nodes:
        await complete(nodes)
        client = RedisCluster.from_url(nodes[0].url)
        limiters = KeyedLimiter(lambda key: RedisLimiter(client, f"key:{key}", "1000/s", on_unavailable="wait"))
        budgets = KeyedBudget(lambda key: RedisBudget(client, f"b:{key}", requests="1000/s", tokens="9000/s", on_unavailable="wait"))

        async def one(key: int) -> None:
            await limiters.acquire(key)
            async with budgets.reserve(key, tokens=9) as lease:
                lease.settle(tokens=1)

        for _ in range(2):
            await asyncio.gather(*[one(key) for key in range(20) for _ in range(3)])
        assert all(node.calls() for node in nodes)
        await limiters.aclose()
        await budgets.aclose()
        await client.aclose()


# A wrong password, a store far away, and one that swallows what it is sent.


def clients_at(port: int, **login: Any) -> dict[str, Any]:
    """Every kind of client that may be given, of both libraries. The constructors have retries, which from_url has not."""
    at = {"host": "127.0.0.1", "port": port, **login}
    credentials = f":{login['password']}@" if login else ""
    url = f"redis://{credentials}127.0.0.1:{port}/0"
    made: dict[str, Any] = {"url": url, "valkey url": url.replace("redis://", "valkey://")}
    for library, kind in ((redis.asyncio, redis.asyncio.Redis), (valkey.asyncio, valkey.asyncio.Valkey)):
        name, sentinel = kind.__name__, library.Sentinel([])  # type: ignore[attr-defined]
        sentinel.discover_master = partial(found, port)
        made |= {
            f"{name}()": kind(**at),
            f"{name}.from_url": kind.from_url(url),
            f"{name}, a pool": kind(connection_pool=library.ConnectionPool(**at)),  # type: ignore[attr-defined]
            f"{name}, one connection": kind(single_connection_client=True, **at),
            f"{name}, a subclass": type("Own", (kind,), {})(**at),
            f"{name}, of a sentinel": sentinel.master_for("service", **login),
        }
    return made


async def found(port: int, service: str) -> tuple[str, int]:
    """What a sentinel says of the service."""
    return "127.0.0.1", port


async def test_a_wrong_password_is_a_refusal_with_every_client(running: RealServer) -> None:
    """redis-py repeats it until the call is given up, so it counted as an outage: "open" granted all, and "wait" waited for ever."""
    with RealServer() as server, RealServer("--cluster-enabled", "yes", port=port_of_cluster()) as node:
        for each in (server, node):
            each.send("CONFIG", "SET", "requirepass", "right")
        for login in ({"password": "wrong"}, {}):
            sources = clients_at(server.port, **login)
            sources |= {kind.__name__: kind(host="127.0.0.1", port=node.port, **login) for kind in (RedisCluster, ValkeyCluster)}
            for (name, source), policy, scope in product(sources.items(), POLICIES, ("loop", "process")):
                if scope == "loop" or isinstance(source, str) or name.endswith("()"):
                    await is_refused(source, {"scope": scope, "grace": 3600, **POLICIES[policy]}, (name, login, policy))
            for source in sources.values():
                if not isinstance(source, str):
                    await source.aclose()


async def is_refused(source: Any, options: Any, row: object) -> None:
    """At once, and each time."""
    limiter, budget = RedisLimiter(source, "x", "10/s", **options), RedisBudget(source, "y", tokens="10/s", **options)
    for asked in (limiter.acquire, partial(limiter.acquire, max_wait=0), budget.reserve(tokens=1).__aenter__):
        with pytest.raises(EngineUnavailable, match="the store refuses"):
            print(row, await asked())
    await limiter.aclose()
    await budget.aclose()


async def test_a_store_far_away_is_no_outage_at_the_first_call(store: RealServer) -> None:
    """Each answer while it connects is a sign of life. There are half a dozen, each of which takes 0.12 s here: together too long."""

    async def first(name: str, source: Any) -> None:
        limiter = RedisLimiter(source, name, "100/s")
        assert await limiter.acquire() >= 0.3, name
        assert "shared" == limiter.statistics().state, name
        await limiter.aclose()
        if not isinstance(source, str):
            await source.aclose()

    store.send("SCRIPT", "FLUSH")
    with wire(store.port, 0.06) as long:
        await asyncio.gather(*[first(*each) for each in clients_at(long.port).items()])


async def test_max_wait_of_0_is_answered_within_a_second_by_a_store_that_swallows(store: RealServer) -> None:
    with wire(store.port) as line:
        for scope in ("loop", "process"):
            limiter = RedisLimiter(f"redis://127.0.0.1:{line.port}/0", scope, "100/s", on_unavailable="wait", scope=scope)  # type: ignore[arg-type]
            await limiter.acquire()
            line.hangs = True
            for pause in (0.0, 0.3, 0.6):
                await asyncio.sleep(pause)
                began = monotonic_ns()
                with pytest.raises(WaitTooLong):
                    await limiter.acquire(max_wait=0)
                assert monotonic_ns() - began <= 1_500_000_000, (scope, pause)  # half a second for a busy machine
            line.hangs = False
            await limiter.aclose()


# The errors of real servers: which are outages and which are refusals, and that all name the reason. Each is made as in production.


LIBRARIES: list[Any] = [redis.asyncio.Redis, valkey.asyncio.Valkey]
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
CLASSES = {"READONLY": "ReadOnly", "OOM": "OutOfMemory", "MASTERDOWN": "MasterDown", "CLUSTERDOWN": "ClusterDown", "MOVED": "Moved"}
CLASSES |= {"ASK": "Ask", "NOPERM": "NoPermission", "NOAUTH": "Authentication", "WRONGPASS": "Authentication"}  # of both libraries


async def limiter_names(code: str, url: str) -> None:
    """A limiter tells of an outage after the grace and of a refusal at once, and names the code or its class, whatever its client."""
    own = [type("Own", (client,), {}).from_url(url, retry=None) for client in LIBRARIES]
    async with AsyncExitStack() as stack:
        for source in (url, *[client.from_url(url) for client in LIBRARIES], *own):
            if not isinstance(source, str):
                stack.push_async_callback(source.aclose)
            limiter = RedisLimiter(source, "x", "10/s", grace=0.01 if code in OUTAGES else 3600)
            with pytest.raises(EngineUnavailable, match=f": ({code} |{CLASSES.get(code)}Error: )") as caught:
                await limiter.acquire()
            assert ("the store refuses" in str(caught.value)) is (code not in OUTAGES), (code, source)
            await limiter.aclose()


async def test_an_error_is_an_outage_or_a_refusal_by_its_code(running: RealServer) -> None:
    """The libraries remove the code from the text of errors that have a class."""
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
    for source in (url, *[client.from_url(url) for client in LIBRARIES]):
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
