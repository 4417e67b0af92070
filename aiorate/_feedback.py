"""What a server says of its limits, as `aiorate.http.read_feedback` reads it from a response."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiorate._errors import check_count, kind_of
from aiorate._rate import duration_to_ns, ns_to_seconds

if TYPE_CHECKING:
    from aiorate._rate import Duration


@dataclass(frozen=True, slots=True)
class Quota:
    """One limit of a server, as far as the response reports it. None: not reported, or not readable.

    ``reset`` and ``window`` may be given as a timedelta, and are kept as seconds.
    """

    name: str = ""
    """``requests``, ``tokens``, ``input_tokens`` or ``output_tokens``, the name of a policy, or empty if it has none.

    GitHub's is the resource (``core``), Discord's the bucket, or ``global`` for its limit over all routes.
    """
    limit: int | None = None
    """How much the server allows in a window, 0 or more."""
    remaining: int | None = None
    """How much is left, 0 or more. May be larger than ``limit``; the server does not guarantee it."""
    reset: float | None = None
    """Seconds from now in which at most ``remaining`` may be used, 0 to 86400 (one day); see ``full_at_reset``."""
    window: float | None = None
    """Seconds of the policy, 1 to 86400: ``limit`` in each. A longer window is left out, since a shorter one would promise more."""
    full_at_reset: bool = False
    """True if all of ``limit`` is back at ``reset``, and a part of it before. So it is with OpenAI and Anthropic."""
    unit: str = "requests"
    """What is counted: ``requests``, ``tokens``, or the unit of a policy, such as ``content-bytes``."""
    reset_error: float = field(default=0.0, compare=False, repr=False)
    """Seconds by which ``reset`` may be too long or too short, 0 or more: 1 or 2 for a date, which is compared with the response's."""
    used: int | None = None
    """How much was used, 0 or more, if the server says that instead. The limit is that of your own rate per ``window``, if not reported."""

    def __init__(
        self,
        name: str = "",
        limit: int | None = None,
        remaining: int | None = None,
        reset: Duration | None = None,
        window: Duration | None = None,
        full_at_reset: bool = False,
        unit: str = "requests",
        reset_error: Duration = 0.0,
        used: int | None = None,
    ) -> None:
        _set(self, "name", name)
        _set(self, "unit", unit)
        for what, count in (("limit", limit), ("remaining", remaining), ("used", used)):
            if count is not None:
                check_count(f"Quota({what})", count, ", or None (unknown)")
            _set(self, what, count)
        for what, length in (("reset", reset), ("window", window), ("reset_error", reset_error)):
            _set(self, what, _seconds(f"Quota({what})", length))
        _set(self, "full_at_reset", full_at_reset)

    @property
    def rate(self) -> float | None:
        """The most per second that both the policy and ``remaining`` allow; None if neither is reported.

        A policy of 10000 in 1000 s with 10000 left for 10 s is a rate of 10, not of 1000: draft 11, section 8.5.
        ``remaining`` does not limit the rate if ``full_at_reset``.
        """
        rates = []
        if self.limit is not None and self.window:
            rates.append(self.limit / self.window)
        if self.remaining is not None and self.reset and not self.full_at_reset:
            rates.append(self.remaining / self.reset)
        return min(rates, default=None)


@dataclass(frozen=True, slots=True)
class Feedback:
    """What one response says of the server's limits. `read_feedback` makes it; make it yourself for a server with other headers.

    ``pause`` and ``retry_after`` may be given as a timedelta, and are kept as seconds.
    """

    status: int
    """The status of the response."""
    pause: float | None = None
    """Seconds from now during which nothing may be sent, 0 to 86400 (one day); None: no pause. 0: at once, said by the server itself."""
    quotas: tuple[Quota, ...] = ()
    """The limits that the response reports, those of tokens too. A ``pause`` already accounts for those in requests that are used up.

    Without a pause, a limit with nothing left and a reset grants nothing until then.
    """
    source: str = ""
    """Who said so, for logs: a header (``Retry-After``), a vendor (``GitHub``), or the status (``status 429``)."""
    retry_after: float | None = None
    """Seconds of Retry-After, 0 to 86400. With a 202 or a redirect it concerns that one resource, and does not pause."""
    in_flight: int | None = None
    """The permits of requests that were sent before this response came, and are not answered: the server may not have counted them."""

    def __init__(
        self,
        status: int,
        pause: Duration | None = None,
        quotas: tuple[Quota, ...] = (),
        source: str = "",
        retry_after: Duration | None = None,
        in_flight: int | None = None,
    ) -> None:
        if not isinstance(quotas, tuple) or not all(isinstance(quota, Quota) for quota in quotas):
            raise TypeError("Feedback(quotas) must be a tuple of aiorate.http.Quota.")
        _set(self, "status", status)
        _set(self, "pause", _seconds("Feedback(pause)", pause))
        _set(self, "quotas", quotas)
        _set(self, "source", source)
        _set(self, "retry_after", _seconds("Feedback(retry_after)", retry_after))
        if in_flight is not None:
            check_count("Feedback(in_flight)", in_flight, ", or None (unknown)")
        _set(self, "in_flight", in_flight)


def check_feedback(feedback: Feedback) -> None:
    """Raise TypeError unless it is a `Feedback`, which has checked its values."""
    if not isinstance(feedback, Feedback):
        raise TypeError(f"observe() takes an aiorate.http.Feedback, as read_feedback(status, headers) returns, not {kind_of(feedback)}.")


def _seconds(what: str, duration: Duration | None) -> float | None:
    if duration is None:
        return None
    ns = duration_to_ns(duration, what)
    return duration if isinstance(duration, (int, float)) else ns_to_seconds(ns)


_set = object.__setattr__
