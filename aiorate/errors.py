"""The exceptions of a limiter.

    LimiterError
     ├── WaitTooLong       (also a TimeoutError)     the wait would be longer than max_wait
     ├── LineFull                                    max_waiting requests are in line already
     ├── LimiterClosed     (also a RuntimeError)     the limiter is closed
     └── EngineUnavailable (also a ConnectionError)  the store of a shared limit does not answer, or refuses

A wrong value raises ``ValueError``, a wrong type ``TypeError``, and misuse ``RuntimeError``.
A call that raises has changed nothing.
"""

from __future__ import annotations

__all__ = ["EngineUnavailable", "LimiterClosed", "LimiterError", "LineFull", "WaitTooLong", "kind_of"]


class LimiterError(Exception):
    """Base of the exceptions that a limiter raises instead of granting permits."""


class WaitTooLong(LimiterError, TimeoutError):
    """The permits would come later than ``max_wait`` allows. Raised at once, or when so long has passed; nothing is spent.

    ``wait`` is the estimated wait and ``max_wait`` the limit, both in seconds.
    """

    def __init__(self, message: str, wait: float, max_wait: float) -> None:
        super().__init__(message)
        self.wait: float = wait
        self.max_wait: float = max_wait

    def __reduce__(self) -> tuple[type[WaitTooLong], tuple[str, float, float]]:
        return type(self), (str(self), self.wait, self.max_wait)


class LineFull(LimiterError):
    """``max_waiting`` requests are in line already. Raised at once; nothing is spent."""


class LimiterClosed(LimiterError, RuntimeError):
    """The limiter was closed by ``aclose()``.

    Make another limiter, or reopen the closed one: ``limiter.apply("100,1.0,start")`` opens it at 100 per second.
    """


class EngineUnavailable(LimiterError, ConnectionError):
    """The store of a limit that processes share does not answer, or refuses. Its ``__cause__`` says why. Nothing is spent."""


def kind_of(value: object) -> str:
    """What an error says was given in place of something else: the name of its class, and of a class that it is one."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
