"""The way of a request through its limit, for all HTTP adapters: which limiter, what cost, and what its response says.

Knows no HTTP client: a request is anything that has a ``url``, and that ``key`` and ``cost`` take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from aiorate._errors import check_count, kind_of
from aiorate._limiters.adaptive import AdaptiveRate, adaptive_of
from aiorate._limiters.base import finish
from aiorate._limiters.budget import Budget
from aiorate._limiters.keyed import KeyedLimiter
from aiorate._limiters.limiter import Limiter
from aiorate._rate import duration_to_ns
from aiorate.http._feedback import read_feedback, teach

if TYPE_CHECKING:
    from collections.abc import Hashable

    from aiorate._feedback import Feedback
    from aiorate._rate import Duration
    from aiorate.http._feedback import Headers

    AnyLimiter = Limiter | AdaptiveRate | KeyedLimiter[Any] | Mapping[Any, Limiter | AdaptiveRate] | Budget
    Key = Callable[[Any], Hashable] | None
    Cost = Callable[[Any], int] | None
    Heed = Callable[[Feedback | None], None]

_ARRIVED = 5_000_000_000  # ns: what was sent so long before another request has reached the server before it


class Sent:
    """A request on its way, until it is answered or lost: ``with sent:``, or no longer than this object lives."""

    __slots__ = ("_at", "_heed", "_limit", "_under_way")

    def __init__(self, limit: Limiter | Budget | None, permits: int, heed: Heed | None) -> None:
        self._limit, self._heed = limit, heed
        self._at = 0 if limit is None else limit._node.tree.now(), id(self)
        self._under_way: dict[tuple[int, int], int] = {} if limit is None else _under_way.setdefault(limit, {})
        self._under_way[self._at] = permits

    def hear(self, status: int, headers: Headers) -> None:
        """Have the limiter observe the response. What is under way is taken from what that says is left."""
        if self._limit is not None and self._heed is not None:
            feedback, at = read_feedback(status, headers), self._at[0]
            if isinstance(self._limit, Limiter) and (adaptive := adaptive_of(self._limit)) is not None:
                feedback = teach(adaptive, feedback, status, at)
            if feedback is not None and feedback.quotas:
                for sent in list(self._under_way):
                    if sent[0] > at - _ARRIVED:
                        break
                    self._under_way.pop(sent, None)
                in_flight = sum(list(self._under_way.values())) - self._under_way.get(self._at, 0)
                feedback = replace(feedback, in_flight=in_flight)
            self._heed(feedback)
        self._over()  # last: another thread may hear a response meanwhile

    def _over(self, *_: object) -> None:
        self._under_way.pop(self._at, None)

    def __enter__(self) -> Sent:
        return self

    __exit__ = __del__ = _over


_under_way: WeakKeyDictionary[Limiter | Budget, dict[tuple[int, int], int]] = WeakKeyDictionary()
"""Of each limit, the permits of unanswered requests, by when they were sent. No operation on it needs a lock."""


class Way:
    """What an adapter was made with. ``call`` names it in error messages."""

    def __init__(self, call: str, limiter: AnyLimiter, key: Key, cost: Cost, max_wait: Duration | None, feedback: bool) -> None:
        limit = limiter.limiter if isinstance(limiter, AdaptiveRate) else limiter
        if not isinstance(limit, (Limiter, Budget, KeyedLimiter, Mapping)):
            raise TypeError(
                f"{call} takes a Limiter, a KeyedLimiter or a dict of limiters, an AdaptiveRate, or a Budget, not {kind_of(limit)}."
                " Write Limiter('100/s')."
            )
        if key is not None and isinstance(limit, (Limiter, Budget)):
            raise TypeError(f"{call}: there is only one limit. Leave key= out, or pass one limiter for each key, such as a KeyedLimiter.")
        if isinstance(limit, Budget) and not (cost is None and max_wait is None and feedback):
            raise TypeError(f"{call}: a Budget only observes responses. Give no other option, and reserve() around each request.")
        if max_wait is not None:
            duration_to_ns(max_wait, f"{call[:-1]}max_wait)")
        self._call, self._limit, self._key, self._cost, self._max_wait, self._feedback = call, limit, key, cost, max_wait, feedback
        self._sent: WeakKeyDictionary[Any, Sent] = WeakKeyDictionary()

    async def enter(self, request: Any, *, blocking: bool = False, **own: Any) -> Sent:
        """Wait until the request may be sent. Its own ``cost`` and ``max_wait`` replace those of all requests.

        With a cost of 0 it passes even a closed limiter at once, and its response is ignored. A wrong cost, key or wait raises
        before anything is spent.
        """
        own = own or getattr(request, "extensions", {}).get("aiorate", {})  # of httpx
        limit, permits, max_wait, heed = self._asked(request, **{"max_wait": self._max_wait, **own})
        if isinstance(limit, Limiter):
            if blocking:
                limit.acquire_blocking(permits, max_wait=max_wait)
            else:
                await limit.acquire(permits, max_wait=max_wait)
        sent = self._sent[request] = Sent(limit, permits, heed)
        return sent

    def enter_blocking(self, request: Any) -> Sent:
        return finish(self.enter(request, blocking=True))

    def hear(self, response: Any) -> None:
        """As `Sent.hear`, for hooks of httpx, which have the response alone."""
        if response.request in self._sent:
            self._sent[response.request].hear(response.status_code, response.headers)

    def _asked(
        self, request: Any, max_wait: Duration | None, cost: int | None = None
    ) -> tuple[Limiter | Budget | None, int, Duration | None, Heed | None]:
        permits = cost if cost is not None else 1 if self._cost is None else self._cost(request)
        check_count(f"{self._call}: the cost of a request", permits, " (0: not limited)")
        limit, heed = self._found(request) if permits else (None, None)
        return limit, permits, max_wait, heed if self._feedback else None

    def _found(self, request: Any) -> tuple[Limiter | Budget, Heed]:
        limits = self._limit
        if isinstance(limits, (Limiter, Budget)):
            return limits, limits.observe
        key = origin(request.url) if self._key is None else self._key(request)
        if key is None:
            raise TypeError(f"{self._call}: key must return text, or another key of the limiters, not None.")
        found = limits[key]
        limit = found.limiter if isinstance(found, AdaptiveRate) else found
        if not isinstance(limit, Limiter):
            raise TypeError(f"{self._call}: the limiter for {key!r} must be a Limiter, not {kind_of(limit)}. Write Limiter('100/s').")
        # By origin, a limit that a server calls global ends at that server.
        return limit, partial(limits.observe, key) if self._key and isinstance(limits, KeyedLimiter) else limit.observe


def origin(url: Any) -> str:
    """The origin of a URL of httpx or yarl, in lower case and with the port: ``https://api.example.com:443``.

    A WebSocket begins with an HTTP request to the same server, so ``wss`` counts as ``https`` and ``ws`` as ``http``.
    """
    scheme = {"ws": "http", "wss": "https"}.get(url.scheme) or url.scheme
    host = url.raw_host.decode("ascii") if isinstance(url.raw_host, bytes) else url.raw_host or ""
    return f"{scheme}://{f'[{host}]' if ':' in host else host.lower()}:{url.port or {'http': 80, 'https': 443}.get(scheme, 0)}"
