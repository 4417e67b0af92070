"""Where the permits of a limit come from: its own process, or a part that talks to a store, and is told what happens."""

from __future__ import annotations

__all__ = ["OWN", "Provider"]


class Provider:
    """Told by a node what other processes, or a task on the event loop, have to hear of.

    The defaults are those of a limiter whose permits come from its own process.
    """

    __slots__ = ()

    @property
    def state(self) -> str:
        """Where permits come from: ``local``, this process; ``shared``, a store; ``degraded``, a store that does not answer."""
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

    def moved(self) -> None:
        """The event loop is gone, or another one is used."""

    def shared(self) -> None:
        """Another limit is asked after this one."""

    def dismissed(self) -> None:
        """The limiter's key was evicted: nobody asks it again."""


OWN = Provider()
"""That of all limiters whose permits come from their own process."""
