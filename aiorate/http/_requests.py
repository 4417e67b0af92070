"""The limit before a request: its limiter, permits and longest wait; and the feedback of its response. All HTTP adapters share it.

Knows no HTTP client: a request is the object that ``key`` and ``cost`` are called with. Uses only public names of aiorate.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from aiorate import Budget, KeyedLimiter, Limiter
from aiorate._errors import check_count, kind_of
from aiorate._rate import NO_BOUND, duration_to_ns
from aiorate.adaptive import AdaptiveRate, adaptive_of
from aiorate.http._feedback import named_by_server, read_feedback, throttles

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from aiorate._feedback import Feedback
    from aiorate._rate import Duration
    from aiorate.http._feedback import Headers


R = TypeVar("R")
Observe = Callable[[int, "Headers"], None]
"""Called with the status and the headers of a response."""
Heed = Callable[["Feedback | None"], None]
"""Called with what they say of limits."""

_PORTS = {"http": 80, "https": 443}
_HTTP = {"ws": "http", "wss": "https"}
_OVERRIDES = ("cost", "max_wait")


@runtime_checkable
class Limiters(Protocol):
    """A limiter for each key: a dict, or any other object that returns an `aiorate.Limiter`, or an AdaptiveRate, for ``limiters[key]``.

    A subclass of dict with ``__missing__`` makes limiters on demand. KeyError means that a key has no limiter.
    """

    def __getitem__(self, key: Any, /) -> Limiter | AdaptiveRate:
        """The limiter for the key, the same one at every call."""
        ...


class RequestLimit(Generic[R]):
    """Makes each request wait for its permits, and its limiter heed the response. ``call`` names the adapter in error messages.

    Raises TypeError unless ``limiter`` is a limiter or maps keys to limiters, and unless ``key`` and ``cost`` are plain functions.
    """

    __slots__ = ("_budget", "_by_origin", "_call", "_cost", "_feedback", "_key", "_limiters", "_max_wait", "_only")

    def __init__(
        self,
        call: str,
        limiter: Limiter | AdaptiveRate | Limiters | Budget,
        key: Callable[[R], Hashable] | None,
        cost: Callable[[R], int] | None,
        max_wait: Duration | None,
        default_key: Callable[[R], Hashable],
        feedback: bool,
    ) -> None:
        self._call = call
        self._only: Limiter | None = None
        self._budget: Budget | None = None
        self._limiters: Limiters = {}
        if not isinstance(feedback, bool):
            raise TypeError(f"{call}: feedback must be True or False, not {kind_of(feedback)}.")
        if isinstance(limiter, Budget):
            self._budget = limiter
            if key is not None or cost is not None or max_wait is not None or not feedback:
                raise TypeError(f"{call}: a Budget only observes responses. Give no other option, and reserve() around each request.")
        elif isinstance(limiter, (Limiter, AdaptiveRate)):
            self._only = limiter if isinstance(limiter, Limiter) else limiter.limiter
            if not feedback:
                self._check_learns(self._only)
            if key is not None:
                raise TypeError(
                    f"{call}: key= chooses among limiters, and there is only one. Leave key= out, or pass one limiter for each key:"
                    " a dict, or anything else that gives a Limiter for limiters[key]."
                )
        elif isinstance(limiter, Limiters) and not isinstance(limiter, (Sequence, type)):
            self._limiters = limiter
        else:
            raise TypeError(
                f"{call} takes a Limiter, a KeyedLimiter or a dict of limiters, an AdaptiveRate, or a Budget, not {kind_of(limiter)}."
                " Write Limiter('100/s')."
            )
        _check_function(f"{call}: key", key, "lambda request: str(request.url)")
        _check_function(f"{call}: cost", cost, "lambda request: 1")
        if max_wait is not None:
            duration_to_ns(max_wait, f"{call}: max_wait", NO_BOUND)
        self._key = default_key if key is None else key
        self._by_origin = key is None
        self._cost = cost
        self._max_wait = max_wait
        self._feedback = feedback

    def check_blocking(self) -> None:
        """Raise RuntimeError if the limiter is for one event loop, and so cannot limit synchronous code."""
        limiter, limiters = self._only or self._budget, self._limiters
        narrow = limiters.scope == "loop" if isinstance(limiters, KeyedLimiter) else limiter is not None and not limiter._may_block
        if narrow:
            raise RuntimeError(
                f"{self._call}: this limiter is for one event loop, and a synchronous client blocks its thread. Create it with"
                " scope='process', or use an AsyncClient."
            )

    async def enter(self, request: R, overrides: Mapping[str, Any]) -> Observe | None:
        """Wait until the request may be sent. ``overrides`` are its own ``cost`` and ``max_wait``, which replace the limit's.

        Returns the function to call with the status and headers of the response; None: ignore it. A request with a cost of 0 passes at
        once and spends nothing, even if the limiter is closed, and its response is ignored. A wrong cost, key or wait raises before
        anything is spent.
        """
        limiter, permits, max_wait, heed = self._wanted(request, overrides)
        if limiter is not None:
            await limiter.acquire(permits, max_wait=max_wait)
        return self._hearing(limiter, heed)

    def enter_blocking(self, request: R, overrides: Mapping[str, Any]) -> Observe | None:
        """As `enter`, for a synchronous client: blocks its thread."""
        limiter, permits, max_wait, heed = self._wanted(request, overrides)
        if limiter is not None:
            limiter.acquire_blocking(permits, max_wait=max_wait)
        return self._hearing(limiter, heed)

    def _hearing(self, limiter: Limiter | None, heed: Heed | None) -> Observe | None:
        """What hears of the response to a request that was granted just now."""
        adaptive = None if limiter is None else adaptive_of(limiter)
        if heed is None:
            if limiter is not None:
                self._check_learns(limiter)
            return None
        return partial(_tell, heed) if adaptive is None else partial(_learn, adaptive, adaptive._reading(), heed)

    def _check_learns(self, limiter: Limiter) -> None:
        if adaptive_of(limiter) is not None:
            raise TypeError(
                f"{self._call}: feedback=False, but an AdaptiveRate learns from responses. Leave feedback out, or pass a Limiter without"
                " an AdaptiveRate."
            )

    def _wanted(self, request: R, overrides: Mapping[str, Any]) -> tuple[Limiter | None, int, Duration | None, Heed | None]:
        """The limiter, permits and longest wait of a request, and what hears of its response. No limiter: it need not wait."""
        cost = overrides["cost"] if "cost" in overrides else 1 if self._cost is None else self._cost(request)
        permits = check_cost(f"{self._call}: the cost of a request", cost)
        max_wait = overrides.get("max_wait", self._max_wait)
        if max_wait is not None:
            duration_to_ns(max_wait, f"{self._call}: max_wait", NO_BOUND)
        if not permits:
            return None, 0, None, None
        if self._budget is not None:
            return None, 0, None, self._budget.observe
        key = None if self._only is not None else self._key(request)
        limiter = self._chosen(key) if self._only is None else self._only
        if not self._feedback:
            return limiter, permits, max_wait, None
        if isinstance(self._limiters, KeyedLimiter) and not self._by_origin:
            return limiter, permits, max_wait, partial(self._limiters.observe, key)
        return limiter, permits, max_wait, limiter.observe  # keyed by origin: a limit that a server calls global ends at that server

    def _chosen(self, key: object) -> Limiter:
        if key is None or inspect.isawaitable(key):  # a new coroutine each time would be a new key each time, without any limit
            raise TypeError(f"{self._call}: key must return text, or another key of the limiters, not {kind_of(key)}.")
        try:
            limiter = self._limiters[key]
        except KeyError as error:
            raise LookupError(
                f"{self._call}: there is no limiter for {key!r}. Add one under exactly that key, pass key= to choose by something else,"
                " or give the dict a __missing__ that makes it."
            ) from error
        except TypeError:
            try:
                hash(key)
            except TypeError as error:
                raise TypeError(f"{self._call}: key must return a hashable value, such as text or a tuple of texts: {error}.") from error
            raise
        return _checked(f"{self._call}: the limiter for {key!r}", limiter)


def _tell(heed: Heed, status: int, headers: Headers) -> None:
    heed(read_feedback(status, headers))


def _learn(adaptive: AdaptiveRate, granted: int, heed: Heed, status: int, headers: Headers) -> None:
    """As `_tell`; and the AdaptiveRate hears of it too, unless the server failed for another reason than the rate.

    A pause whose length the server did not name is left out: the rate is lowered instead. ``granted`` is the reading at the grant.
    """
    feedback = read_feedback(status, headers)
    if throttles(status, feedback):
        feedback = named_by_server(feedback)
        adaptive._heed(True, feedback, granted)
    elif status < 500:
        adaptive._heed(False, feedback, granted)
    heed(feedback)


def parse_overrides(what: str, overrides: object) -> Mapping[str, Any]:
    """The overrides of a request. Raises TypeError or ValueError, beginning with ``what``, for any other object."""
    if not isinstance(overrides, dict):
        raise TypeError(f"{what} must be a dict such as {{'cost': 7}}, not {kind_of(overrides)}.")
    known = cast("dict[str, Any]", overrides)
    for name in known:
        if name not in _OVERRIDES:
            raise ValueError(f"{what} takes {' and '.join(_OVERRIDES)}, not {name!r}.")
    return known


def check_cost(what: str, permits: object) -> int:
    """The permits, an int of 0 or more. Raises TypeError or ValueError, beginning with ``what``, for any other object."""
    check_count(what, permits, " (0: not limited)")
    return cast("int", permits)


def origin(scheme: str, host: str, port: int | None) -> str:
    """The origin in lower case, always with the port: ``https://api.example.com:443``.

    A WebSocket begins with an HTTP request to the same server, so ``wss`` counts as ``https`` and ``ws`` as ``http``.
    """
    scheme = scheme.lower()
    scheme = _HTTP.get(scheme, scheme)
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host.lower()}:{_PORTS.get(scheme, 0) if port is None else port}"


def _checked(what: str, limiter: object) -> Limiter:
    if isinstance(limiter, AdaptiveRate):
        return limiter.limiter
    if not isinstance(limiter, Limiter):
        raise TypeError(f"{what} must be a Limiter, not {kind_of(limiter)}. Write Limiter('100/s').")
    return limiter


def _check_function(what: str, function: object, example: str) -> None:
    if function is not None and (not callable(function) or inspect.iscoroutinefunction(function)):
        given = "a coroutine function" if callable(function) else kind_of(function)
        raise TypeError(f"{what} must be a plain function of the request, such as `{example}`, not {given}.")


def origin_of(request: Any) -> str:
    """The origin of a request of httpx2 or httpx."""
    url = request.url
    return origin(url.scheme, url.raw_host.decode("ascii"), url.port)


def overrides_of(request: Any) -> Mapping[str, Any]:
    """The cost and max_wait that a request of httpx2 or httpx carries."""
    overrides = request.extensions.get("aiorate")
    return {} if overrides is None else parse_overrides('extensions={"aiorate": ...}', overrides)
