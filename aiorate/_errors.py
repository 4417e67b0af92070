"""The exceptions of a limiter, and what its error messages have in common.

A wrong value raises ``ValueError``, a wrong type ``TypeError``, and misuse ``RuntimeError``.
A call that raises has changed nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn


class LimiterError(Exception):
    """Base of the exceptions that a limiter raises instead of granting permits."""


class WaitTooLong(LimiterError, TimeoutError):
    """The permits would come later than ``max_wait`` allows. Raised at once, or after ``max_wait``; nothing is spent.

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

    Create a new limiter, or reopen the closed one: ``limiter.apply("100,1.0,start")`` opens it at 100 per second.
    """


class EngineUnavailable(LimiterError, ConnectionError):
    """The store of a limit that processes share does not answer, or refuses. ``__cause__`` says why. Nothing is spent."""


for _error in (LimiterError, WaitTooLong, LineFull, LimiterClosed, EngineUnavailable):
    _error.__module__ = "aiorate"  # where users import it from: tracebacks show that


def kind_of(value: object) -> str:
    """The value's type, as an error names it."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def shown(value: object) -> str:
    """The value's ``repr()``, for an error, but not too long."""
    return f"an int of {value.bit_length()} bits" if isinstance(value, int) and abs(value) >= 10**30 else repr(value)[:80]


def called(what: str, value: object) -> str:
    """The call as written: of ``"Limiter(catch_up)"`` and -1, ``"Limiter(catch_up=-1)"``; of ``"acquire()"`` and 0, ``"acquire(0)"``."""
    if not what.endswith(")"):
        return f"{what}: {shown(value)}"
    return f"{what[:-1]}{'' if what.endswith('()') else '='}{shown(value)})"


class Shared:
    """What can only be shared, and refuses to be copied."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: the copy would grant the same permits again. Share it.")


def check_count(what: str, count: object, also: str = "", *, least: int = 0) -> None:
    """Raise TypeError or ValueError that begins with ``what`` unless it is an int, ``least`` or more. ``also`` names other values."""
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{what} must be an int of {least} or more{also}, not {kind_of(count)}.")
    if count < least:
        raise ValueError(f"{called(what, count)} must be {least} or more{also}.")
