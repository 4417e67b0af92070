"""A strategy and what a server said beside it, asked as a limiter asks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiorate import Scheduler
from aiorate._schedulers.server_quotas import ServerQuotas

if TYPE_CHECKING:
    from collections.abc import Callable

ASKED_FOR_PERMITS = ("take", "peek", "give_back", "charge", "_shift", "available", "_standings", "_rested")


def _call(part: str, name: str) -> Callable[..., object]:
    return lambda self, *args, **more: getattr(getattr(self, part), name)(*args, **more)


def _read(name: str) -> Any:
    return property(lambda self: getattr(self.inner, name), lambda self, value: setattr(self.inner, name, value))


class Capped(Scheduler):
    """The strategy decides; the server may refuse. The first window that it told of may be given at once."""

    def __init__(self, inner: Scheduler, left: int | None = None, now: int = 0, until: int = 0) -> None:
        self.inner, self.told = inner, ServerQuotas(inner)
        self.lower, self.refill, self.left = self.told.lower, self.told.refill, self.told.left
        if left is not None:
            self.lower(left, now, until)

    take, peek, give_back, charge, _shift, available, _standings, _rested = (_call("told", name) for name in ASKED_FOR_PERMITS)  # type: ignore[assignment]
    set_rate, lag, bound, restart = (_call("inner", name) for name in ("set_rate", "lag", "bound", "restart"))  # type: ignore[assignment]
    rate, max_permits, books_since = map(_read, ("rate", "max_permits", "books_since"))
