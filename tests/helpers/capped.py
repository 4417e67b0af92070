"""A strategy and what a server said beside it, asked as a limiter asks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate import Rate, Scheduler
from aiorate._schedulers.server_quotas import ServerQuotas

if TYPE_CHECKING:
    from collections.abc import Callable

ASKED_FOR_PERMITS = ("take", "peek", "give_back", "charge", "shift", "available", "_standings", "_rested")


def _from(part: str, name: str) -> Callable[..., object]:
    def call(self: object, *args: int, **more: int) -> object:
        return getattr(getattr(self, part), name)(*args, **more)

    return call


class Capped(Scheduler):
    """The strategy decides; the server may refuse. The first window that it told of may be given at once."""

    def __init__(self, inner: Scheduler, left: int | None = None, now: int = 0, until: int = 0) -> None:
        self.inner, self.told = inner, ServerQuotas(inner)
        self.lower, self.refill, self.left = self.told.lower, self.told.refill, self.told.left
        if left is not None:
            self.lower(left, now, until)

    take, peek, give_back, charge, shift, available, _standings, _rested = (_from("told", name) for name in ASKED_FOR_PERMITS)  # type: ignore[assignment]
    set_rate, lag, bound, restart, _quotas = (  # type: ignore[assignment]
        _from("inner", name) for name in ("set_rate", "lag", "bound", "restart", "_quotas")
    )

    @property
    def rate(self) -> Rate:  # type: ignore[override]
        return self.inner.rate

    @property
    def max_permits(self) -> int | None:  # type: ignore[override]
        return self.inner.max_permits

    @property
    def books_since(self) -> bool:  # type: ignore[override]
        return self.inner.books_since

    @property
    def _receipts(self) -> bool:  # type: ignore[override]
        return self.inner._receipts

    @_receipts.setter
    def _receipts(self, value: bool) -> None:
        self.inner._receipts = value
