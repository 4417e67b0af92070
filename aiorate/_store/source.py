"""A source: the URL of a server, or a client; and what the errors of its library mean.

No error shows any part of a URL: a password with a ``/``, ``#``, ``?`` or ``[`` that was not percent-encoded ends up in the path, the
fragment, the query or the host, and its beginning in the place of the port.
"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from aiorate._errors import kind_of
from aiorate._store.script import Refusal, Unreachable

_CLUSTERS = {"RedisCluster", "ValkeyCluster"}
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


def settings_of(source: Any) -> Any:
    """What has the class and the settings of its connections; None: it is the client of a cluster."""
    return _library_of(source).ConnectionPool.from_url(source) if isinstance(source, str) else getattr(source, "connection_pool", None)


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
