"""The store: sends the script's questions over one connection, and says what kind of failure it was. Knows nothing of rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiorate.redis.script import SHA, TEXT, BadAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CALL_SECONDS", "Refusal", "Store", "Unreachable", "check_source"]

CALL_SECONDS = 0.5  # for one answer
_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")
# By name, because redis-py and valkey-py have classes of their own with the same ones.
_OUTAGE_CLASSES = {"ConnectionError", "TimeoutError", "InvalidResponse", "BusyLoadingError", "ClusterDownError", "ClusterError", "OSError"}
_REFUSAL_CLASSES = {"AuthenticationError", "AuthorizationError", "AuthenticationWrongNumberOfArgsError", "NoPermissionError"}
# Older servers wrap the error of a command that a script called into one of their own.
_OUTAGE_WORDS = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY ", "OOM ", "MISCONF", "NOREPLICAS", "UNBLOCKED")


class Unreachable(Exception):
    """No answer, or none that makes sense: it may come back."""


class Refusal(Exception):
    """The store answers, and refuses: a wrong password, a missing permission, a key of another type. Waiting does not help."""


class Store:
    """A client of redis-py or valkey-py (asyncio), or a URL to make one of. A client that was given is never closed here."""

    def __init__(self, source: object) -> None:
        self._source = source
        self._client: Any = None if isinstance(source, str) else source

    async def ask(self, questions: Sequence[tuple[str, list[str]]]) -> list[object]:
        """The script's reply for each key with its arguments, or `Refusal` in its place.

        Raises `Unreachable` if one of them got no answer, and `Refusal` if none can.
        """
        if self._client is None:
            self._client = _open(str(self._source))
        try:
            if len(questions) == 1:
                return [await self._ask_one(*questions[0])]
            return await self._ask_all(questions)
        except Exception as error:
            raise _kind(error) from error

    async def close(self) -> None:
        """Close the connection, if it was opened here."""
        client, self._client = self._client, None
        if client is self._source or client is None:
            self._client = client
            return
        try:
            await client.aclose()
        except Exception:  # it is broken already
            return

    async def _ask_one(self, key: str, words: list[str]) -> object:
        try:
            return await self._client.evalsha(SHA, 1, key, *words)
        except Exception as error:
            if not _is_missing(error):
                raise
        return await self._client.eval(TEXT, 1, key, *words)

    async def _ask_all(self, questions: Sequence[tuple[str, list[str]]]) -> list[object]:
        pipe = self._client.pipeline(transaction=False)
        for key, words in questions:
            pipe.evalsha(SHA, 1, key, *words)
        replies: list[object] = await pipe.execute(raise_on_error=False)
        for place, reply in enumerate(replies):
            if isinstance(reply, Exception) and _is_missing(reply):
                key, words = questions[place]
                try:
                    replies[place] = reply = await self._client.eval(TEXT, 1, key, *words)
                except Exception as error:
                    replies[place] = reply = error
            if isinstance(reply, Exception):
                kind = _kind(reply)
                if isinstance(kind, Unreachable):
                    raise reply
                kind.__cause__ = reply
                replies[place] = kind
        return replies


def check_source(source: object) -> None:
    """Raise TypeError or ValueError unless it is a URL or an asyncio client of redis-py or valkey-py."""
    if isinstance(source, str):
        scheme, mark, _ = source.partition("://")
        if not mark or scheme not in _SCHEMES:
            raise ValueError(f"RedisLimiter() takes a client or a URL such as 'redis://127.0.0.1:6379/0', not {_shown(source)!r}.")
        _library(source)
        return
    kind = type(source)
    if isinstance(source, type) or kind.__module__.partition(".")[0] not in ("redis", "valkey") or ".asyncio" not in _modules(kind):
        raise TypeError(
            f"RedisLimiter() takes a client of redis.asyncio or valkey.asyncio, or a URL, not {_shown(source)}."
            " A synchronous client cannot be shared with an event loop."
        )


def _modules(kind: type) -> str:
    return " ".join([base.__module__ for base in kind.__mro__])


def _shown(source: object) -> str:
    if isinstance(source, type):
        return f"the class {source.__name__}"
    if isinstance(source, str):
        return source.rpartition("@")[2][:40]  # no password
    return type(source).__name__


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
        raise ImportError("RedisLimiter() with a URL needs redis-py: pip install 'aiorate[redis]'. For valkey:// URLs, valkey-py.") from None
    return other


def _open(url: str) -> Any:
    """A client with one connection that neither retries nor waits for longer than a call may take."""
    library = _library(url)
    if library.__name__.startswith("valkey"):
        from valkey.asyncio.retry import Retry as ValkeyRetry
        from valkey.backoff import NoBackoff as ValkeyNoBackoff

        retry: Any = ValkeyRetry(ValkeyNoBackoff(), 0)
    else:
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        retry = Retry(NoBackoff(), 0)
    return library.from_url(
        url,
        socket_timeout=CALL_SECONDS,
        socket_connect_timeout=CALL_SECONDS,
        single_connection_client=True,
        retry=retry,
    )


def _is_missing(error: BaseException) -> bool:
    return type(error).__name__ == "NoScriptError" or "NOSCRIPT" in str(error)[:60]


def _kind(error: Exception) -> Unreachable | Refusal:
    """By the names of its classes, and by what the server said."""
    text = str(error) or type(error).__name__
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, BadAnswer):
        return Unreachable(text)
    if names & _REFUSAL_CLASSES:
        return Refusal(text)
    if names & _OUTAGE_CLASSES or any(word in text for word in _OUTAGE_WORDS):
        return Unreachable(text)
    return Refusal(text)
