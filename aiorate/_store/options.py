"""Checks what limits in stores are given: a server or a client, options and limits. ``call`` is the name of the class, for errors.

No error shows any part of a URL, because a password that was not percent-encoded may end up anywhere in it, even as the port.
"""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aiorate._errors import kind_of
from aiorate._rate import Rate
from aiorate._schedulers.calendar_window import CalendarWindow
from aiorate._schedulers.interface import check_permits
from aiorate._schedulers.token_bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._rate import Duration, Number
    from aiorate._store.slots import Limited

    OneLimit = Rate | str | Number | TokenBucket | CalendarWindow


_CLUSTERS = {"RedisCluster", "ValkeyCluster"}


def check_source(source: object, alone: bool = False) -> None:
    """Raise TypeError or ValueError unless it is a URL or an asyncio client; ``alone``: one that can lend its settings to another loop."""
    if isinstance(source, str):
        try:
            settings_of(source).make_connection()
            sound = "@" in urlsplit(source).netloc or "@" not in source  # else credentials go on behind what looks like the host
        except ImportError:
            raise
        except Exception:  # each library has errors of its own for options
            sound = False
        if not sound:
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
    """What has the class and the settings of connections; None for the client of a cluster.

    For a URL, redis-py makes it or, for valkey URLs and where redis-py is missing, valkey-py. Raises ImportError if neither is there.
    """
    if not isinstance(source, str):
        return getattr(source, "connection_pool", None)
    for name in ("valkey",) if source.startswith("valkey") else ("redis", "valkey"):
        with suppress(ImportError):
            return import_module(f"{name}.asyncio").ConnectionPool.from_url(source)
    raise ImportError("RedisLimiter() with a URL needs redis-py: pip install 'aiorate-limiter[redis]'. For valkey:// URLs, valkey-py.")


def is_cluster(source: object) -> bool:
    return not _CLUSTERS.isdisjoint(kind.__name__ for kind in type(source).__mro__)


def check_name(call: str, name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{call}(name) must be text, not {type(name).__name__}.")
    if not name:
        raise ValueError(f"{call}(name) must not be empty: processes with the same name share one limit.")
    if name.encode(errors="ignore").decode() != name:
        raise ValueError(f"{call}(name) must be text that UTF-8 can encode; {name[:40]!a} has a lone surrogate.")


def limits_of(call: str, limit: OneLimit | Sequence[OneLimit], burst: int | None, lease: Duration) -> list[Limited]:
    """The dimensions of a limiter. Raises TypeError and ValueError for wrong limits, and for a calendar with a burst or a lease."""
    limits: Sequence[object] = limit if isinstance(limit, (list, tuple)) else [limit]
    calendar = next((each for each in limits if isinstance(each, CalendarWindow)), None)
    if calendar is not None:
        if len(limits) > 1 or burst is not None or lease:
            raise ValueError(f"{call}(rate): a CalendarWindow must be the only limit, and has no burst and no lease.")
        return [(calendar.rate, calendar.rate.permits, deepcopy(calendar))]
    if burst is not None:
        check_permits(f"{call}(burst)", burst)
    if not limits:
        raise ValueError(f"{call}(rate) needs at least one limit, such as ['10/s', '500/min'].")
    return [limit_of(f"{call}(rate)", each, burst) for each in limits]


def limit_of(what: str, limit: object, burst: int | None = None) -> Limited:
    """The rate and the burst of a bucket, or of a rate, which has that ``burst``. Raises TypeError and ValueError."""
    own = burst
    if isinstance(limit, TokenBucket):
        rate, own = limit.rate, limit.burst
        if burst is not None:
            raise ValueError(f"{what}: {limit!r} has a burst already. Leave burst= out.")
        if deepcopy(limit).peek(own, 0) > 0:
            raise ValueError(f"{what}: the bucket in the store starts full. Give {limit!r} without initial= and start=.")
    else:
        try:
            rate = Rate.of(limit)  # type: ignore[arg-type]  # which says what is wrong
        except TypeError:
            hint = "A limiter also takes a CalendarWindow, or a list such as ['10/s', '100/min']; a budget has a dimension for each limit."
            raise TypeError(f"{what} must be a rate or a TokenBucket, not {kind_of(limit)}. {hint}") from None
    return rate, own, None
