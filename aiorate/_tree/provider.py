"""Where the permits of a limit come from: this process, or a store that several processes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate._schedulers.amounts import Permits


class Provider:
    """Told by a limit what other processes have to hear of; by default, there are none."""

    __slots__ = ()

    @property
    def state(self) -> str:
        """``local``; ``shared``: permits come from a store; ``degraded``: from one that does not answer."""
        return "local"

    @property
    def busy(self) -> bool:
        """Whether a store is yet to hear or to answer something."""
        return False

    @property
    def on_demand(self) -> bool:
        """Whether permits come only once a request waits for them."""
        return False

    def pausing(self, ns: int) -> None:
        """The limiter is about to be paused for ``ns`` from now. May raise to refuse the pause."""

    def resumed(self) -> None:
        """A pause was ended."""

    def held_up(self) -> None:
        """A request waits for the end of a pause."""

    def once(self, permits: Permits, most_ns: int) -> tuple[int, int] | None:
        """Instead of ``most_ns``, for how long a request waits for a store's answer, and since when; None: it waits as all others do."""
        return None

    def look(self) -> None:
        """Somebody is about to be told what is left: learn it, if that takes no time."""

    def closed(self) -> None:
        """The limiter was closed."""

    async def aclose(self) -> None:
        """Return once the last answer of a store has come."""

    def moved(self) -> None:
        """The event loop is gone, or another one is used."""

    def shared(self) -> None:
        """Another limit is asked after this one."""


OWN = Provider()
"""That of all limiters whose permits come from their own process."""
