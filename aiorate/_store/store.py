"""How questions reach the server of a URL or a client, over one connection that is opened here or through the client of a cluster; and
what its errors mean.

Knows nothing of rates. No error shows any part of a URL: a password with a ``/``, ``#``, ``?`` or ``[`` that was not percent-encoded ends
up in the path, the fragment, the query or the host, and its beginning in the place of the port.
"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiorate._errors import kind_of
from aiorate._store.script import SHA, TEXT, Refusal, Unreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    Command = tuple[str | bytes | int, ...]


_CLUSTERS = {"RedisCluster", "ValkeyCluster"}
# Whoever asks here tries again by himself. While a connection is opened, each answer has its time.
_ALONE: dict[str, Any] = {
    "socket_timeout": 0.5,
    "socket_connect_timeout": 0.5,
    "retry": None,
    "retry_on_error": [],
    "retry_on_timeout": False,
}
_OUTAGES = {
    *("ConnectionError", "TimeoutError", "OSError", "ClusterError", "SlotNotCoveredError"),
    *("InvalidResponse", "ValueError", "TypeError", "LookupError"),  # what a parser raises for junk
    "AttributeError",  # what the client of a cluster raises where slots move: it has closed the connection
    *("BusyLoadingError", "ReadOnlyError", "ClusterDownError", "MasterDownError", "OutOfMemoryError", "TryAgainError"),
    *("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN", "UNBLOCKED", "UNKILLABLE"),
}
_REFUSALS = {"AuthenticationError", "AuthorizationError", "AuthenticationWrongNumberOfArgsError"}  # which are ConnectionErrors
_OF_CLUSTERS = {"RedisClusterException", "ValkeyClusterException"}  # no node of a cluster would do: their cause says why
# Servers before 7.0 wrap the error of a command that a script called.
_CODE = re.compile(r"(?:(?:ERR )?Error running script .*@user_script: ?\d+: )?-?([A-Z]+)(?: |$)")
Asked = tuple[bytes, "Sequence[str | bytes]"]
"""A question: the key, and the other arguments of the script."""


class Store:
    """A connection of the library's class for it, which takes half the time of a call through a client; or the client of a cluster.

    A client lends the settings of its connections: the one opened here does not count against its pool. That of a cluster has none, and is
    never closed here.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        if isinstance(source, str):
            self._pool = _library_of(source).ConnectionPool.from_url(source)
        else:
            self._pool = getattr(source, "connection_pool", None)
        self._connection: Any = None
        self.opening: bool = False
        """Whether it connects."""
        self.ticks: int = 0
        """For how many ticks of whoever asks nothing was heard; see `StoreClient`."""

    async def ask(self, questions: Sequence[Asked]) -> list[object]:
        """The script's reply to each question, or a `Refusal` or an `Unreachable` in its place."""
        try:
            if self._connection is None:
                self.opening = True
                await self._open()
                self.opening, self.ticks = False, 0
            replies = await self._run([("EVALSHA", SHA, 1, key, *words) for key, words in questions])
            missing = [place for place, reply in enumerate(replies) if isinstance(reply, Exception) and "NoScriptError" in kinds_of(reply)]
            if missing:
                self.ticks = 0
                # The first sends the text, and the server has it for the others.
                again: list[Command] = [("EVALSHA", SHA, 1, questions[place][0], *questions[place][1]) for place in missing]
                again[0] = ("EVAL", TEXT, *again[0][2:])
                for place, reply in zip(missing, await self._run(again), strict=True):
                    replies[place] = reply
        except Exception as error:
            return [failure_of(error)] * len(questions)
        finally:
            self.opening = False
        return [failure_of(reply) if isinstance(reply, Exception) else reply for reply in replies]

    async def _open(self) -> None:
        if self._pool is None:
            await self._source.initialize()  # not in many calls at once, which close each other's connections
            return
        connection = self._pool.connection_class(**{**self._pool.connection_kwargs, **_ALONE})
        await connection.connect()
        connection.socket_timeout = None  # from here on, whoever asks looks at its clock, which costs less
        self._connection = connection

    async def _run(self, commands: Sequence[Command]) -> list[object]:
        """Send them. Returns the reply to each, or the error that the server said. Raises if there is no answer."""
        connection, replies = self._connection, list[object]()
        if connection is not None:
            await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        for command in commands:
            try:
                replies.append(await (self._source.execute_command(*command) if connection is None else connection.read_response()))
            except Exception as error:
                if "ResponseError" not in kinds_of(error):
                    raise
                replies.append(error)
        return replies

    async def close(self) -> None:
        """Close the connection, if it was opened here. The next call resolves the address again: another server may be there by then."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # it is broken already
                await connection.disconnect()


def check_source(source: object, alone: bool = False) -> None:
    """Raise TypeError or ValueError unless it is a URL or an asyncio client of redis-py or valkey-py.

    ``alone``: only the settings of a client are of use, since it is for another event loop.
    """
    if isinstance(source, str):
        if not _is_sound(source):
            raise ValueError(
                "RedisLimiter() takes an asyncio client, or a URL such as 'redis://127.0.0.1:6379/0'. It begins with redis://, rediss://,"
                " valkey://, valkeys:// or unix://; the port must be a number in 0-65535; and the client has to know each option, after its"
                " '?'. Anywhere in it, write '/', '#', '?', '@' and '[' as urllib.parse.quote(password, safe='') does. This one is not"
                " shown here, since it may hold a password."
            )
        return
    kinds = {base.__name__ for base in type(source).__mro__ if base.__module__.startswith(("redis.asyncio", "valkey.asyncio"))}
    if kinds.isdisjoint({"Redis", "Valkey", *_CLUSTERS}) or "Pipeline" in kinds:
        raise TypeError(
            f"RedisLimiter() takes a client of redis.asyncio or valkey.asyncio, or a URL, not {kind_of(source)}. Give the client that a"
            " pipeline or a subscription was made from; of a Sentinel, its master_for(name). A synchronous client would stop the loop."
        )
    if alone and (is_cluster(source) or hasattr(getattr(source, "connection_pool", None), "sentinel_manager")):
        raise TypeError(
            f"RedisLimiter(scope='process') asks the store in a thread, and this {kind_of(source)} belongs to an event loop. Give a URL or"
            " another client, which lends its settings. For a cluster or a Sentinel, use scope='loop'."
        )


def is_cluster(source: object) -> bool:
    """Whether it is the client of a cluster."""
    return not _CLUSTERS.isdisjoint(kinds_of(source))


def _library_of(url: str) -> Any:
    """redis-py, or valkey-py for its own URLs and where nothing else is there. Raises ImportError with what to install."""
    for name in ("valkey",) if url.startswith("valkey") else ("redis", "valkey"):
        with suppress(ImportError):
            return import_module(f"{name}.asyncio")
    raise ImportError("RedisLimiter() with a URL needs redis-py: pip install 'aiorate-limiter[redis]'. For valkey:// URLs, valkey-py.")


def _is_sound(url: str) -> bool:
    """Whether a client can be made for it, and its credentials do not go on behind what looks like the host."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        _library_of(url).ConnectionPool.from_url(url).make_connection()
    except (TypeError, ValueError):
        return False
    return "@" in parts.netloc or "@" not in url


def kinds_of(error: object) -> list[str]:
    """The names of its classes."""
    return [kind.__name__ for kind in type(error).__mro__]


def failure_of(error: BaseException) -> Unreachable | Refusal:
    """An outage, which may pass, or a refusal, which lasts until somebody puts it right. The error is the ``__cause__``.

    The name of the class decides, which redis-py and valkey-py share, or else the code, the first word of what the server said. No other
    part of the text decides: a message may quote the name of a limiter.
    """
    name, text = type(error).__name__, " ".join(str(error).split())
    if name != "ResponseError":
        text = f"{name}: {text}" if text else name
    elif found := _CODE.match(text):
        text = text[found.start(1) :]
    failure = Unreachable(text) if _is_outage(error) else Refusal(text)
    failure.__cause__ = error
    return failure


def _is_outage(error: BaseException) -> bool:
    kinds = kinds_of(error)
    if not _OF_CLUSTERS.isdisjoint(kinds) and error.__cause__ is not None:
        return _is_outage(error.__cause__)
    if _REFUSALS.isdisjoint(kinds) and "ResponseError" in kinds and (code := _CODE.match(str(error))):
        kinds.append(code[1])
    return _REFUSALS.isdisjoint(kinds) and not _OUTAGES.isdisjoint(kinds)
