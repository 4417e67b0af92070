"""What a server said of its limits, as a limiter heeds it. `aiorate.http.read_feedback` reads it from a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Feedback", "Quota"]


class Quota(Protocol):
    """One limit of a server."""

    @property
    def name(self) -> str:
        """Its name, such as ``requests`` or ``tokens``; empty if it has none."""
        ...

    @property
    def limit(self) -> int | None:
        """How much is allowed in a window."""
        ...

    @property
    def remaining(self) -> int | None:
        """How much is left."""
        ...

    @property
    def reset(self) -> float | None:
        """Seconds in which no more than that may be used."""
        ...

    @property
    def window(self) -> float | None:
        """Seconds of the policy."""
        ...

    @property
    def full_at_reset(self) -> bool:
        """Whether a part is back before the reset."""
        ...

    @property
    def unit(self) -> str:
        """What is counted, such as ``requests``."""
        ...


class Feedback(Protocol):
    """What one response said."""

    @property
    def pause(self) -> float | None:
        """Seconds in which nothing may be sent."""
        ...

    @property
    def quotas(self) -> Sequence[Quota]:
        """The limits it told of."""
        ...

    @property
    def source(self) -> str:
        """Who said so."""
        ...
