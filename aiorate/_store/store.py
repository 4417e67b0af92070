"""Sends the questions of scripts over one connection, and tells outages from refusals. Knows nothing of rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiorate._errors import kind_of
from aiorate._store.address import check_options, check_url
from aiorate._store.connections import connection_to, lends
from aiorate._store.failures import Unreachable, code_of, failure_of, is_local
from aiorate._store.script import SHA, TEXT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._store.connections import Command

__all__ = ["CALL_SECONDS", "CONNECT_SECONDS", "UNKNOWN", "Asked", "Store", "check_source", "node_of"]

CALL_SECONDS = 0.5  # for one answer
CONNECT_SECONDS = 2.0  # for one answer of a new connection
UNKNOWN = "?"  # a node that the client does not know yet
_KINDS = {"Redis", "RedisCluster", "Valkey", "ValkeyCluster"}
_CLIENTS = ("redis.asyncio", "valkey.asyncio")


Asked = tuple[str, "Sequence[str | bytes]"]
"""A question: the key, and the other arguments of the script."""


class Store:
    """A client of redis-py or valkey-py (asyncio), which is never closed here, or a URL, for which a connection is opened."""

    def __init__(self, source: object) -> None:
        library = _library(source) if isinstance(source, str) else None
        self._connection = connection_to(source, library, CONNECT_SECONDS)

    async def ask(self, questions: Sequence[Asked]) -> list[object]:
        """The script's reply to each question, or a `Refusal` or, where others got one, an `Unreachable` in its place.

        Raises `Unreachable` if nothing is answered, and `Refusal` if nothing can be.
        """
        try:
            replies = await self._replies(questions)
        except Exception as error:
            if len(questions) == 1 or not is_local(error):
                raise failure_of(error) from error
            # One of them cannot be sent: send each by itself.
            replies = [await self._reply(question) for question in questions]
        answers = [failure_of(reply) if isinstance(reply, Exception) else reply for reply in replies]
        failures = [answer for answer in answers if isinstance(answer, Unreachable) and not answer.of_key]
        if failures:
            await self._connection.renew()
        if len(failures) == len(answers):
            raise failures[0]  # nobody has an answer
        return answers

    @property
    def heard(self) -> int:
        """How many answers have come, as far as is known. The first call takes some: for the connection, a password and a script."""
        return self._connection.heard

    @property
    def settling(self) -> bool:
        """Whether the server is there, and a client that was given may be connecting, of which nothing can be heard."""
        return self._connection.settling

    async def _reply(self, question: Asked) -> object:
        try:
            return (await self._replies([question]))[0]
        except Exception as error:
            return error

    async def _replies(self, questions: Sequence[Asked]) -> list[object]:
        run = self._connection.run
        replies = await run([("EVALSHA", SHA, 1, key, *words) for key, words in questions])
        missing = [place for place, reply in enumerate(replies) if _is_missing(reply)]
        while missing:
            # The first question sends the text too: its server then has it for the others; in a cluster, each needs it.
            again: list[Command] = [("EVALSHA", SHA, 1, questions[place][0], *questions[place][1]) for place in missing]
            first = missing[0]
            again[0] = ("EVAL", TEXT, 1, questions[first][0], *questions[first][1])
            for place, reply in zip(missing, await run(again), strict=True):
                replies[place] = reply
            missing = [place for place in missing if place != first and _is_missing(replies[place])]
        return replies

    async def close(self) -> None:
        """Close the connection, if it was opened here."""
        await self._connection.close()


def check_source(source: object, alone: bool = False) -> None:
    """Raise TypeError or ValueError unless it is a URL or an asyncio client of redis-py or valkey-py.

    ``alone``: of a client, only the settings may be needed, since it is used in another event loop.
    """
    if isinstance(source, str):
        check_url(source)
        check_options(lambda: _library(source).ConnectionPool.from_url(source).make_connection())
        return
    kinds = {base.__name__ for base in type(source).__mro__ if base.__module__.startswith(_CLIENTS)}
    if isinstance(source, type) or not kinds & _KINDS or "Pipeline" in kinds:
        raise TypeError(
            f"RedisLimiter() takes a client of redis.asyncio or valkey.asyncio, or a URL, not {kind_of(source)}. Give the client that a"
            " pipeline or a subscription was made from; of a Sentinel, its master_for(name). A synchronous client would stop the loop."
        )
    if alone and not lends(source):
        raise TypeError(
            f"RedisLimiter(scope='process') asks the store in a thread, and this {kind_of(source)} belongs to an event loop. Give a URL,"
            " or a plain client of redis.asyncio or valkey.asyncio, which lends its settings. For a cluster, use scope='loop'."
        )


def node_of(source: Any, key: str) -> str:
    """The node of a cluster that has the key, as far as its client knows, or `UNKNOWN`; empty for other clients."""
    if not any(base.__name__ in ("RedisCluster", "ValkeyCluster") for base in type(source).__mro__):
        return ""
    try:
        return str(source.get_node_from_key(key).name)
    except Exception:  # it has yet to ask, or the key is on no node at present
        return UNKNOWN


def _library(url: str) -> Any:
    """redis-py, or valkey-py for its own URLs and where nothing else is there. Raises ImportError with what to install."""
    if not url.startswith("valkey"):
        try:
            import redis.asyncio as library
        except ImportError:
            pass
        else:
            return library
    try:
        import valkey.asyncio as other
    except ImportError:
        raise ImportError(
            "RedisLimiter() with a URL needs redis-py: pip install 'aiorate-limiter[redis]'. For valkey:// URLs, valkey-py."
        ) from None
    return other


def _is_missing(reply: object) -> bool:
    return isinstance(reply, Exception) and code_of(reply) == "NOSCRIPT"
