"""The limit before every request: which limiter it has to pass, with how many permits, and how long it may wait there.

What the HTTP adapters have in common. Knows no HTTP client: a request is whatever ``key`` and ``cost`` are called with. Of
aiorate it uses `Limiter`, and nothing that is not public.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from aiorate import Limiter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Limiters", "RequestLimit", "check_cost", "origin", "origin_of", "overrides_of", "parse_overrides"]

R = TypeVar("R")

_PORTS = {"http": 80, "https": 443}
_HTTP = {"ws": "http", "wss": "https"}
_OVERRIDES = ("cost", "max_wait")


class Limiters(Protocol):
    """One limiter for each key: a dict, or anything else that gives a `aiorate.Limiter` for ``limiters[key]``.

    A dict subclass with ``__missing__`` makes them on demand. KeyError means that a key has no limiter.
    """

    def __getitem__(self, key: str, /) -> Limiter:
        """The limiter for the key, the same one every time."""
        ...


class RequestLimit(Generic[R]):
    """Has each request wait for its permits. ``call`` is how errors name whoever built it.

    Raises TypeError unless there is a limiter, or limiters to choose from, and unless key and cost can be called.
    """

    __slots__ = ("_call", "_cost", "_key", "_limiters", "_max_wait", "_only")

    def __init__(
        self,
        call: str,
        limiter: Limiter | Limiters,
        key: Callable[[R], str] | None,
        cost: Callable[[R], int] | None,
        max_wait: float | None,
        default_key: Callable[[R], str],
    ) -> None:
        self._call = call
        self._only: Limiter | None = None
        self._limiters: Limiters = {}
        if isinstance(limiter, Limiter):
            self._only = limiter
            if key is not None:
                raise TypeError(
                    f"{call}: key= chooses among limiters, and only one was given. Leave key= out, or pass one limiter for each key:"
                    " a dict, or anything else that gives a Limiter for limiters[key]."
                )
        elif hasattr(type(limiter), "__getitem__") and not isinstance(limiter, Sequence):
            self._limiters = limiter
        else:
            raise TypeError(
                f"{call} takes a Limiter, or one limiter for each key (a dict of them), not {_kind(limiter)}. Write Limiter('100/s')."
            )
        _check_function(f"{call}: key", key, "lambda request: str(request.url)")
        _check_function(f"{call}: cost", cost, "lambda request: 1")
        _check_max_wait(f"{call}: max_wait", max_wait)
        self._key = default_key if key is None else key
        self._cost = cost
        self._max_wait = max_wait

    async def enter(self, request: R, overrides: Mapping[str, Any]) -> None:
        """Wait until the request may be sent. ``overrides`` are its own ``cost`` and ``max_wait``, which come before the limit's.

        A cost of 0 passes at once and spends nothing, whatever the limiter's state. Wrong costs, keys and waits raise before
        anything is spent.
        """
        cost = overrides["cost"] if "cost" in overrides else 1 if self._cost is None else self._cost(request)
        permits = check_cost(f"{self._call}: the cost of a request", cost)
        max_wait = overrides.get("max_wait", self._max_wait)
        _check_max_wait(f"{self._call}: max_wait", max_wait)
        if permits:
            limiter = self._chosen(self._key(request)) if self._only is None else self._only
            await limiter.acquire(permits, max_wait=max_wait)

    def _chosen(self, key: object) -> Limiter:
        if not isinstance(key, str):
            raise TypeError(f"{self._call}: key must return text, not {_kind(key)}.")
        try:
            limiter = self._limiters[key]
        except KeyError as error:
            raise LookupError(
                f"{self._call}: there is no limiter for {key!r}. Add one under exactly that key, pass key= to choose by something else,"
                " or give the dict a __missing__ that makes it."
            ) from error
        return _checked(f"{self._call}: under {key!r}", limiter)


def parse_overrides(what: str, overrides: object) -> Mapping[str, Any]:
    """A request's own overrides, as the mapping they must be; a clear error for anything else."""
    if not isinstance(overrides, dict):
        raise TypeError(f"{what} must be a dict such as {{'cost': 7}}, not {_kind(overrides)}.")
    known = cast("dict[str, Any]", overrides)
    for name in known:
        if name not in _OVERRIDES:
            raise ValueError(f"{what} knows {' and '.join(_OVERRIDES)}, not {name!r}.")
    return known


def check_cost(what: str, permits: object) -> int:
    """The permits, if they are an int of 0 or more; a clear error for anything else."""
    if isinstance(permits, bool) or not isinstance(permits, int):
        raise TypeError(f"{what} must be an int of 0 or more (0: not limited), not {_kind(permits)}.")
    if permits < 0:
        raise ValueError(f"{what} must be 0 or more (0: not limited); {permits} was given.")
    return permits


def origin(scheme: str, host: str, port: int | None) -> str:
    """``https://api.example.com:443``: lower case, and always with the port.

    A WebSocket begins with an HTTP request to the same server, so that ``wss`` counts as ``https`` and ``ws`` as ``http``.
    """
    scheme = scheme.lower()
    scheme = _HTTP.get(scheme, scheme)
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host.lower()}:{_PORTS.get(scheme, 0) if port is None else port}"


def _checked(what: str, limiter: object) -> Limiter:
    if not isinstance(limiter, Limiter):
        raise TypeError(f"{what} there must be a Limiter, not {_kind(limiter)}. Write Limiter('100/s').")
    return limiter


def _check_function(what: str, function: object, example: str) -> None:
    if function is not None and (not callable(function) or inspect.iscoroutinefunction(function)):
        given = "a coroutine function" if callable(function) else _kind(function)
        raise TypeError(f"{what} must be a plain function of the request, such as `{example}`, not {given}.")


def _check_max_wait(what: str, max_wait: float | None) -> None:
    if max_wait is None:
        return
    try:
        sensible = not isinstance(max_wait, bool) and isfinite(max_wait) and max_wait >= 0
    except (ValueError, OverflowError):  # a signalling NaN; beyond what a float can hold
        sensible = False
    except TypeError:
        raise TypeError(f"{what} must be a number of seconds or None (no bound), not {_kind(max_wait)}.") from None
    if not sensible:
        raise ValueError(f"{what} must be 0 seconds or more, or None (no bound); {max_wait!r} was given.")


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def origin_of(request: Any) -> str:
    """The origin of a request of httpx2 or httpx."""
    url = request.url
    return origin(url.scheme, url.raw_host.decode("ascii"), url.port)


def overrides_of(request: Any) -> Mapping[str, Any]:
    """The cost and max_wait that a request of httpx2 or httpx brings along."""
    overrides = request.extensions.get("aiorate")
    return {} if overrides is None else parse_overrides('extensions={"aiorate": ...}', overrides)
