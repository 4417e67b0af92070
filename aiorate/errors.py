"""What can go wrong while asking for permits.

    LimiterError
     ├── WaitTooLong     (also a TimeoutError)  the wait would exceed max_wait
     ├── LineFull                               max_waiting are already in line
     └── LimiterClosed   (also a RuntimeError)  the limiter was closed

Wrong arguments are a ``ValueError`` (value) or a ``TypeError`` (kind), misuse is a ``RuntimeError``.
A call that raises any of them has changed nothing.
"""

from __future__ import annotations

__all__ = ["LimiterClosed", "LimiterError", "LineFull", "WaitTooLong"]


class LimiterError(Exception):
    """Base of what a limiter raises when it cannot grant permits in time."""


class WaitTooLong(LimiterError, TimeoutError):
    """The permits would come later than ``max_wait`` allows; raised at once, nothing is spent.

    ``wait`` is the estimate and ``max_wait`` the limit, both in seconds.
    """

    def __init__(self, message: str, wait: float, max_wait: float) -> None:
        super().__init__(message)
        self.wait = wait
        self.max_wait = max_wait

    def __reduce__(self) -> tuple[type[WaitTooLong], tuple[str, float, float]]:
        return type(self), (str(self), self.wait, self.max_wait)


class LineFull(LimiterError):
    """As many as ``max_waiting`` are waiting already; raised at once, nothing is spent."""


class LimiterClosed(LimiterError, RuntimeError):
    """The limiter was closed by ``aclose()``; applying a spec with the verb ``start`` reopens it."""
