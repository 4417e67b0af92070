"""What a limit in a store is given: a URL or a client, and whether it can be used.

No error shows any part of a URL: a password with a ``/``, ``#``, ``?`` or ``[`` that was not percent-encoded ends up in the path, the
fragment, the query or the host, and its beginning in the place of the port.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from aiorate._errors import kind_of

_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")
_MAY_HAVE_AT = ("username=", "password=", "client_name=")
_CLUSTERS = {"RedisCluster", "ValkeyCluster"}
_KINDS = {"Redis", "Valkey", *_CLUSTERS}
_CLIENTS = ("redis.asyncio", "valkey.asyncio")


def check_source(source: object, alone: bool = False) -> None:
    """Raise TypeError or ValueError unless it is a URL or an asyncio client of redis-py or valkey-py.

    ``alone``: only the settings of a client are of use, since it is for another event loop.
    """
    if isinstance(source, str):
        if not _is_sound(source):
            raise ValueError(
                "RedisLimiter() takes an asyncio client, or a URL such as 'redis://127.0.0.1:6379/0'. The URL begins with one of"
                f" {', '.join(f'{each}://' for each in _SCHEMES)}; the port must be a number in 0-65535; and the client has to know each"
                " option, after its '?'. In a password, write '/', '#', '?', '@' and '[' as urllib.parse.quote(password, safe='') does."
                " This one is not shown here, since it may hold a password."
            )
        return
    kinds = {base.__name__ for base in type(source).__mro__ if base.__module__.startswith(_CLIENTS)}
    if isinstance(source, type) or not kinds & _KINDS or "Pipeline" in kinds:
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
    return any(base.__name__ in _CLUSTERS for base in type(source).__mro__)


def identity(source: object) -> object:
    """By which it is told from others, for as long as somebody holds it."""
    return source if isinstance(source, str) else id(source)


def library_of(url: str) -> Any:
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


def _is_sound(url: str) -> bool:
    """Whether a client can be made for it, and its credentials do not go on behind what looks like the host."""
    scheme, separator, _ = url.partition("://")
    if scheme not in _SCHEMES or not separator:
        return False
    try:
        parts = urlsplit(url)
        _ = parts.port
        library_of(url).ConnectionPool.from_url(url).make_connection()
    except (TypeError, ValueError):
        return False
    path = parts.path if scheme != "unix" or ":" in parts.netloc else ""  # a socket's name may have an @
    words = [word for word in parts.query.split("&") if not word.startswith(_MAY_HAVE_AT)]
    return "@" in parts.netloc or "@" not in "".join([path, parts.fragment, *words])
