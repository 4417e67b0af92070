"""The way of a request through its limit, for all HTTP adapters: which limiter, what cost, and what its response says.

Knows no HTTP client: a request is the object that ``key`` and ``cost`` are called with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from aiorate import Budget, KeyedLimiter, Limiter
from aiorate._errors import check_count, kind_of
from aiorate._rate import NO_BOUND, duration_to_ns
from aiorate.adaptive import AdaptiveRate, adaptive_of
from aiorate.http._feedback import read_feedback, teach

if TYPE_CHECKING:
    from collections.abc import Hashable

    from aiorate._feedback import Feedback
    from aiorate._rate import Duration
    from aiorate.http._feedback import Headers

_ARRIVED = 5_000_000_000  # ns: what was sent so long before another request has reached the server before it


@runtime_checkable
class Limiters(Protocol):
    """A limiter for each key: a dict, or any other object that returns an `aiorate.Limiter`, or an AdaptiveRate, for ``limiters[key]``.

    A subclass of dict with ``__missing__`` makes limiters on demand. KeyError means that a key has no limiter.
    """

    def __getitem__(self, key: Any, /) -> Limiter | AdaptiveRate:
        """The limiter for the key, the same one at every call."""
        ...


class Sent:
    """A request on its way, until it is answered or lost: ``with sent:``, or no longer than this object lives."""

    __slots__ = ("_heed", "_sent", "_under_way", "limit", "max_wait", "permits")

    def __init__(
        self, limit: Limiter | Budget | None, permits: int, max_wait: Duration | None, heed: Callable[[Feedback | None], None] | None
    ) -> None:
        self.limit, self.permits, self.max_wait, self._heed = limit, permits, max_wait, heed
        self._sent, self._under_way = (0, 0), {} if limit is None else _under_way.setdefault(limit, {})

    def leave(self) -> Sent:
        """Note that it has its permits, and is sent now."""
        if self.limit is not None:
            self._sent = self.limit._node.read(), id(self)
            self._under_way[self._sent] = self.permits
        return self

    def hear(self, status: int, headers: Headers) -> None:
        """Have the limiter heed the response. What that says is left is less by all that is under way."""
        if self.limit is not None and self._heed is not None:
            feedback, at = read_feedback(status, headers), self._sent[0]
            if isinstance(self.limit, Limiter) and (adaptive := adaptive_of(self.limit)) is not None:
                feedback = teach(adaptive, feedback, status, at)
            if feedback is not None and feedback.quotas:
                for sent in list(self._under_way):
                    if sent[0] > at - _ARRIVED:
                        break
                    self._under_way.pop(sent, None)
                # Some others have their permits, and have not run yet.
                in_flight = sum(list(self._under_way.values()), self.limit._node.resuming) - self._under_way.get(self._sent, 0)
                feedback = replace(feedback, in_flight=in_flight)
            self._heed(feedback)
        self._over()  # last: another thread may hear a response meanwhile

    def _over(self, *_: object) -> None:
        self._under_way.pop(self._sent, None)

    def __enter__(self) -> Sent:
        return self

    __exit__ = __del__ = _over


_under_way: WeakKeyDictionary[Limiter | Budget, dict[tuple[int, int], int]] = WeakKeyDictionary()
"""Of each limit, the permits of requests that are not answered, by when they were sent. No operation on it needs a lock."""


@dataclass(eq=False)
class Way:
    """What an adapter was made with. ``call`` names it in error messages."""

    call: str
    limiter: Limiter | AdaptiveRate | Limiters | Budget
    key: Callable[[Any], Hashable] | None
    cost: Callable[[Any], int] | None
    max_wait: Duration | None
    feedback: bool
    origin_of: Callable[[Any], str]
    blocks: bool = False

    def __post_init__(self) -> None:
        limiter, call, key, cost, max_wait = self.limiter, self.call, self.key, self.cost, self.max_wait
        limit = limiter.limiter if isinstance(limiter, AdaptiveRate) else limiter
        one = isinstance(limit, (Limiter, Budget))
        if not one and (isinstance(limit, (Sequence, type)) or not isinstance(limit, Limiters)):
            raise TypeError(
                f"{call} takes a Limiter, a KeyedLimiter or a dict of limiters, an AdaptiveRate, or a Budget, not {kind_of(limit)}."
                " Write Limiter('100/s')."
            )
        if one and key is not None:
            raise TypeError(f"{call}: there is only one limit. Leave key= out, or pass one limiter for each key, such as a KeyedLimiter.")
        if isinstance(limit, Budget) and not (cost is None and max_wait is None and self.feedback):
            raise TypeError(f"{call}: a Budget only observes responses. Give no other option, and reserve() around each request.")
        narrow = limit.scope == "loop" if isinstance(limit, KeyedLimiter) else isinstance(limit, (Limiter, Budget)) and not limit._may_block
        if self.blocks and narrow:
            raise RuntimeError(f"{call}: this limiter is for one event loop. For a synchronous client, create it with scope='process'.")
        for name, function in (("key", key), ("cost", cost)):
            if function is not None and not callable(function):
                raise TypeError(f"{call}: {name} must be a function of the request, such as `lambda request: 1`, not {kind_of(function)}.")
        if max_wait is not None:
            duration_to_ns(max_wait, f"{call[:-1]}max_wait)", NO_BOUND)
        self._limit = limit
        self._sent: WeakKeyDictionary[Any, Sent] = WeakKeyDictionary()

    async def enter(self, request: Any, **own: Any) -> Sent:
        """Wait until the request may be sent. Its own ``cost`` and ``max_wait`` replace those of all requests.

        A request with a cost of 0 passes at once and spends nothing, even if the limiter is closed, and its response is ignored. A wrong
        cost, key or wait raises before anything is spent.
        """
        sent = self._asked(request, **{"max_wait": self.max_wait, **own})
        if isinstance(sent.limit, Limiter):
            await sent.limit.acquire(sent.permits, max_wait=sent.max_wait)
        return sent.leave()

    def enter_blocking(self, request: Any, **own: Any) -> Sent:
        """As `enter`, for a synchronous client: blocks its thread."""
        sent = self._asked(request, **{"max_wait": self.max_wait, **own})
        if isinstance(sent.limit, Limiter):
            sent.limit.acquire_blocking(sent.permits, max_wait=sent.max_wait)
        return sent.leave()

    def hear(self, response: Any) -> None:
        """As `Sent.hear`, of a response of httpx, whose hooks have nothing else."""
        if response.request in self._sent:
            self._sent[response.request].hear(response.status_code, response.headers)

    def _asked(self, request: Any, max_wait: Duration | None, cost: int | None = None) -> Sent:
        permits = cost if cost is not None else 1 if self.cost is None else self.cost(request)
        check_count(f"{self.call}: the cost of a request", permits, " (0: not limited)")
        limit = self._limit if permits else None
        if limit is None or isinstance(limit, (Limiter, Budget)):
            heed = None if limit is None else limit.observe
        else:
            key = (self.key or self.origin_of)(request)
            if key is None:
                raise TypeError(f"{self.call}: key must return text, or another key of the limiters, not None.")
            found = limit[key]
            found = found.limiter if isinstance(found, AdaptiveRate) else found
            if not isinstance(found, Limiter):
                raise TypeError(f"{self.call}: the limiter for {key!r} must be a Limiter, not {kind_of(found)}. Write Limiter('100/s').")
            # By origin, a limit that a server calls global ends at that server.
            heed = partial(limit.observe, key) if self.key and isinstance(limit, KeyedLimiter) else found.observe
            limit = found
        sent = self._sent[request] = Sent(limit, permits, max_wait, heed if self.feedback else None)
        return sent


def origin(scheme: str, host: str, port: int | None) -> str:
    """The origin in lower case, always with the port: ``https://api.example.com:443``.

    A WebSocket begins with an HTTP request to the same server, so ``wss`` counts as ``https`` and ``ws`` as ``http``.
    """
    scheme = {"ws": "http", "wss": "https"}.get(scheme.lower(), scheme.lower())
    host = f"[{host}]" if ":" in host else host.lower()
    return f"{scheme}://{host}:{port or {'http': 80, 'https': 443}.get(scheme, 0)}"
