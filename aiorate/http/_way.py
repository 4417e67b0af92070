"""The way of a request through its limit, for all HTTP adapters: which limiter, what cost, and what its response says.

Knows no HTTP client: a request is the object that ``key`` and ``cost`` are called with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from itertools import islice
from threading import RLock
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


class _UnderWay:
    """The requests of a limit that are not answered, in order: the permits of those that ask, and of those that were sent, and when."""

    __slots__ = ("asking", "epoch", "permits", "sent")

    def __init__(self) -> None:
        self.begin(-1)

    def begin(self, epoch: int) -> None:
        """Nothing is under way in that epoch of the limit's tree: requests of another loop, or of a parent process, are gone."""
        self.epoch: int = epoch
        self.asking: dict[int, int] = {}
        self.sent: dict[int, tuple[int, int]] = {}
        self.permits: int = 0
        """Of all that were sent."""

    def leave(self, number: int) -> None:
        """Forget that request."""
        self.asking.pop(number, None)
        self.permits -= self.sent.pop(number, (0, 0))[1]


class Sent:
    """A request on its way, until it is answered or lost: ``with sent:``, or no longer than this object lives."""

    __slots__ = ("_adaptive", "_at", "_granted", "_heed", "_under_way", "limit", "permits")

    def __init__(self, limit: Limiter | Budget | None, permits: int, heed: Callable[[Feedback | None], None] | None) -> None:
        self.limit, self.permits, self._heed = limit, permits, heed
        self._under_way = _UnderWay()
        if limit is not None and heed is not None:
            with _lock:
                self._under_way = _under_way.setdefault(limit, self._under_way)
                if self._under_way.epoch != limit._node.tree.epoch:
                    self._under_way.begin(limit._node.tree.epoch)

    def ask(self) -> Sent:
        """Note that it waits for its permits: ``with sent.ask():``."""
        with _lock:
            self._under_way.asking[id(self)] = self.permits
        return self

    def leave(self) -> Sent:
        """Note that it has its permits, and is sent now."""
        self._adaptive = adaptive_of(self.limit) if isinstance(self.limit, Limiter) else None
        self._granted = 0 if self._adaptive is None else self._adaptive._reading()
        self._at = 0 if self.limit is None else self.limit._node.read()
        with _lock:
            self._under_way.sent[id(self)] = self._at, self.permits
            self._under_way.permits += self.permits
        return self

    def hear(self, status: int, headers: Headers) -> None:
        """Have the limiter heed the response. What that says is left is less by all that is under way."""
        if self._heed is None:
            return
        feedback = read_feedback(status, headers)
        if self._adaptive is not None:
            feedback = teach(self._adaptive, feedback, status, self._granted)
        if feedback is not None and feedback.quotas:
            feedback = replace(feedback, in_flight=self._in_flight())
        self._heed(feedback)
        self._over()  # last: another thread may hear a response meanwhile

    def _in_flight(self) -> int:
        """The permits of all others that the server may not have counted when it answered this one."""
        with _lock:
            under_way, asking = self._under_way, self._under_way.asking
            while under_way.sent and next(iter(under_way.sent.values()))[0] <= self._at - _ARRIVED:
                under_way.leave(next(iter(under_way.sent)))
            sent = under_way.permits - under_way.sent.get(id(self), (0, 0))[1]
            if asking and isinstance(self.limit, Limiter):  # the first of them may have their permits, and not run yet
                granted = len(asking) - self.limit._node.line.waiting
                sent += sum(islice(asking.values(), max(granted, 0)))
            return sent

    def _over(self, *_: object) -> None:
        with _lock:
            self._under_way.leave(id(self))

    def __enter__(self) -> Sent:
        return self

    __exit__ = __del__ = _over


_under_way: WeakKeyDictionary[Limiter | Budget, _UnderWay] = WeakKeyDictionary()
_lock = RLock()  # which a finalizer may take again


class Way:
    """What an adapter was made with. ``call`` names it in error messages, and ``blocks`` tells whether its client is synchronous."""

    def __init__(
        self,
        call: str,
        limiter: Limiter | AdaptiveRate | Limiters | Budget,
        key: Callable[[Any], Hashable] | None,
        cost: Callable[[Any], int] | None,
        max_wait: Duration | None,
        feedback: bool,
        origin_of: Callable[[Any], str],
        own_of: Callable[[Any], dict[str, Any]],
        *,
        blocks: bool = False,
    ) -> None:
        limit = limiter.limiter if isinstance(limiter, AdaptiveRate) else limiter
        one = isinstance(limit, (Limiter, Budget))
        if not one and (isinstance(limit, (Sequence, type)) or not isinstance(limit, Limiters)):
            raise TypeError(
                f"{call} takes a Limiter, a KeyedLimiter or a dict of limiters, an AdaptiveRate, or a Budget, not {kind_of(limit)}."
                " Write Limiter('100/s')."
            )
        if one and key is not None:
            raise TypeError(f"{call}: there is only one limit. Leave key= out, or pass one limiter for each key, such as a KeyedLimiter.")
        if isinstance(limit, Budget) and not (cost is None and max_wait is None and feedback):
            raise TypeError(f"{call}: a Budget only observes responses. Give no other option, and reserve() around each request.")
        for name, function in (("key", key), ("cost", cost)):
            if function is not None and (not callable(function) or iscoroutinefunction(function)):
                given = "a coroutine function" if callable(function) else kind_of(function)
                raise TypeError(f"{call}: {name} must be a plain function of the request, such as `lambda request: 1`, not {given}.")
        if max_wait is not None:
            duration_to_ns(max_wait, f"{call}: max_wait", NO_BOUND)
        narrow = limit.scope == "loop" if isinstance(limit, KeyedLimiter) else isinstance(limit, (Limiter, Budget)) and not limit._may_block
        if blocks and narrow:
            raise RuntimeError(
                f"{call}: this limiter is for one event loop, and a synchronous client blocks its thread. Create it with"
                " scope='process', or use an AsyncClient."
            )
        self._call, self._limit, self._key, self._cost, self._max_wait, self._feedback = call, limit, key, cost, max_wait, feedback
        self._origin_of, self._own_of = origin_of, own_of
        self._sent: WeakKeyDictionary[Any, Sent] = WeakKeyDictionary()
        if isinstance(limit, Limiter):
            self._check_learns(limit)

    async def enter(self, request: Any) -> Sent:
        """Wait until the request may be sent. Its own ``cost`` and ``max_wait`` replace those of all requests.

        A request with a cost of 0 passes at once and spends nothing, even if the limiter is closed, and its response is ignored. A wrong
        cost, key or wait raises before anything is spent.
        """
        sent = self._sent[request] = self._asked(request)
        if isinstance(sent.limit, Limiter):
            with sent.ask():
                await sent.limit.acquire(sent.permits, max_wait=self._own_of(request).get("max_wait", self._max_wait))
        return sent.leave()

    def enter_blocking(self, request: Any) -> Sent:
        """As `enter`, for a synchronous client: blocks its thread."""
        sent = self._sent[request] = self._asked(request)
        if isinstance(sent.limit, Limiter):
            with sent.ask():
                sent.limit.acquire_blocking(sent.permits, max_wait=self._own_of(request).get("max_wait", self._max_wait))
        return sent.leave()

    def hear(self, request: Any, status: int, headers: Headers) -> None:
        """As `Sent.hear`, where the adapter has only the request."""
        if request in self._sent:
            self._sent[request].hear(status, headers)

    def _asked(self, request: Any) -> Sent:
        limit, own = self._limit, self._own_of(request)
        permits = own["cost"] if "cost" in own else 1 if self._cost is None else self._cost(request)
        check_count(f"{self._call}: the cost of a request", permits, " (0: not limited)")
        if not permits:
            return Sent(None, 0, None)
        if isinstance(limit, Budget):
            return Sent(limit, 1, limit.observe)
        key = None if isinstance(limit, Limiter) else (self._key or self._origin_of)(request)
        limiter = limit if isinstance(limit, Limiter) else self._chosen(limit, key)
        self._check_learns(limiter)
        if self._feedback and self._key is not None and isinstance(limit, KeyedLimiter):
            return Sent(limiter, permits, partial(limit.observe, key))
        # By origin, a limit that a server calls global ends at that server.
        return Sent(limiter, permits, limiter.observe if self._feedback else None)

    def _chosen(self, limiters: Limiters, key: object) -> Limiter:
        if key is None or isawaitable(key):  # a new coroutine each time would be a new key each time, without any limit
            raise TypeError(f"{self._call}: key must return text, or another key of the limiters, not {kind_of(key)}.")
        try:
            limiter = limiters[key]
        except KeyError as error:
            raise LookupError(
                f"{self._call}: there is no limiter for {key!r}. Add one under exactly that key, pass key= to choose by something else,"
                " or give the dict a __missing__ that makes it."
            ) from error
        limiter = limiter.limiter if isinstance(limiter, AdaptiveRate) else limiter
        if not isinstance(limiter, Limiter):
            raise TypeError(f"{self._call}: the limiter for {key!r} must be a Limiter, not {kind_of(limiter)}. Write Limiter('100/s').")
        return limiter

    def _check_learns(self, limiter: Limiter) -> None:
        if not self._feedback and adaptive_of(limiter) is not None:
            raise TypeError(f"{self._call}: feedback=False, but an AdaptiveRate learns from responses. Leave feedback out.")


def origin(scheme: str, host: str, port: int | None) -> str:
    """The origin in lower case, always with the port: ``https://api.example.com:443``.

    A WebSocket begins with an HTTP request to the same server, so ``wss`` counts as ``https`` and ``ws`` as ``http``.
    """
    scheme = {"ws": "http", "wss": "https"}.get(scheme.lower(), scheme.lower())
    host = f"[{host}]" if ":" in host else host.lower()
    return f"{scheme}://{host}:{port or {'http': 80, 'https': 443}.get(scheme, 0)}"
