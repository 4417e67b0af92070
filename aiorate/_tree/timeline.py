"""The limiter's own time, which stands still while it is paused.

Two time scales: a *reading* is of the tree's clock, an *instant* is the limiter's own time. Knows nothing of rates or of requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorate._tree.tree import Tree


class Timeline:
    """The clock less all the time spent paused or stopped, so that a schedule resumes where it was held up."""

    __slots__ = ("held_at", "offset", "paused_until", "stopped", "tree")

    def __init__(self, tree: Tree) -> None:
        self.tree: Tree = tree
        self.offset: int = 0  # how many ns the limiter's time is behind the clock
        self.paused_until: int | None = None
        """The reading at which a pause ends; None: not paused when it was last asked."""
        self.stopped: bool = False  # whether nothing moves until it is started
        self.held_at: int | None = None
        """The instant at which time stood still when it was last asked for; None: it moved."""

    def goes_on(self, held_at: int, ns: int) -> None:
        """Time goes on after it has stood still for ``ns`` at that instant."""

    def now(self) -> int:
        """The limiter's time."""
        if self.held_at is not None:
            if self.stopped or self.paused:
                return self.held_at
            self._release()
        tree = self.tree
        return tree.read() - tree.shift - self.offset

    @property
    def paused(self) -> bool:
        """Whether a pause goes on."""
        return self.paused_until is not None and self.tree.now() < self.paused_until

    def move(self, tree: Tree) -> None:
        """Go by the clock of another tree, without a jump in limiter time."""
        if self.tree.begun:
            change = tree.now() - self.tree.now()
            self.offset += change
            if self.paused_until is not None:
                self.paused_until += change
        self.tree = tree

    @property
    def held_for(self) -> int:
        """Nanoseconds for which time has stood still until now; 0: it moves."""
        return 0 if self.held_at is None else self.tree.now() - self.held_at - self.offset

    @property
    def pause_length(self) -> int:
        """The same until the end of a pause; 0: it moves, or the end is unknown."""
        return 0 if self.held_at is None or self.stopped else self._end - self.held_at - self.offset

    def reading_at(self, instant: int) -> int | None:
        """The reading of the clock at that instant; None: unknown until it is started."""
        if self.held_at is None:
            return instant + self.offset
        return None if self.stopped else instant - self.held_at + self._end

    def pause(self, ns: int) -> None:
        """Stand still for ``ns`` from now; pauses merge by the later end."""
        self.held_at, until = self.now(), self.tree.now() + ns
        self.paused_until = until if self.paused_until is None else max(until, self.paused_until)

    def resume(self) -> None:
        """End a pause."""
        self.now()
        self.paused_until = None
        self.now()

    def stop(self) -> None:
        """Stand still until started."""
        self.held_at, self.stopped = self.now(), True

    def start(self) -> None:
        """End a stop; a pause goes on until its end."""
        self.now()
        if self.stopped and not self.paused:
            self.paused_until = None
        self.stopped = False
        self.now()

    @property
    def _end(self) -> int:
        return self.tree.now() if self.paused_until is None else self.paused_until

    def _release(self) -> None:
        assert self.held_at is not None
        held_at, length = self.held_at, self._end - self.held_at - self.offset
        self.offset += length
        self.held_at = self.paused_until = None
        if length:
            self.goes_on(held_at, length)
