"""What a limit in a store is given: a URL or a client, and whether it can be used. Nothing of a URL that may hold a password is shown.

A password with a ``/``, ``#``, ``?`` or ``[`` that was not percent-encoded ends up in the path, the fragment, the query or the host, and
its beginning in the place of the port. So no error quotes any part of a URL that does not parse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiorate._errors import kind_of

if TYPE_CHECKING:
    from urllib.parse import SplitResult

__all__ = ["check_source", "identity", "is_cluster", "lends", "library_of"]

_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")
_MAY_HAVE_AT = ("username=", "password=", "client_name=")
_EXAMPLE = "RedisLimiter() takes an asyncio client, or a URL such as 'redis://127.0.0.1:6379/0'"
_ENCODE = "In a password, write '/', '#', '?', '@' and '[' as urllib.parse.quote(password, safe='') does."
_NOT_SHOWN = "It is not shown here, since it may hold a password."
_CLUSTERS = {"RedisCluster", "ValkeyCluster"}
_KINDS = {"Redis", "Valkey", *_CLUSTERS}
_CLIENTS = ("redis.asyncio", "valkey.asyncio")


def check_source(source: object, alone: bool = False) -> None:
    """Raise TypeError or ValueError unless it is a URL or an asyncio client of redis-py or valkey-py.

    ``alone``: of a client, only the settings may be needed, since it is used in another event loop.
    """
    if isinstance(source, str):
        problem = _problem_of(source)
        if problem:
            raise ValueError(f"{_EXAMPLE}{problem} {_NOT_SHOWN}")
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


def lends(source: Any) -> bool:
    """Whether that client lends its settings; False: it is of a class of the user's, or has one connection for all it does."""
    kind = type(source)
    plain = kind.__name__ in ("Redis", "Valkey") and kind.__module__ in ("redis.asyncio.client", "valkey.asyncio.client")
    return plain and source.connection is None


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


def _problem_of(url: str) -> str:
    """What is wrong with a URL, without a word of it; empty if a client can be made for it."""
    parts = _split(url)
    if parts is None:
        return f", and this one cannot be read: the port must be a number in 0-65535. {_ENCODE}"
    if problem := _misread(url, parts):
        return problem
    library = library_of(url)
    try:
        library.ConnectionPool.from_url(url).make_connection()
    except (TypeError, ValueError):
        return ", and this one has an option, after its '?', that the client does not know or cannot read."
    return ""


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts


def _misread(url: str, parts: SplitResult) -> str:
    """What is wrong with a URL that can be split: it is of something else, or its credentials go on behind what looks like the host."""
    if "://" not in url or url.partition("://")[0] not in _SCHEMES:
        return f": it begins with one of {', '.join(f'{each}://' for each in _SCHEMES)}."
    path = parts.path if parts.scheme != "unix" or ":" in parts.netloc else ""  # a socket's name may have an @
    words = parts.query.split("&")
    if "@" not in parts.netloc and (
        "@" in path + parts.fragment or any("@" in each and not each.startswith(_MAY_HAVE_AT) for each in words)
    ):
        return f", and this one has an '@' after its host: a character in the password ends it. {_ENCODE}"
    return ""
