"""What a session and the store have told each other: what the store is yet to hear, what is under way, and what it said last."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from aiorate._schedulers.amounts import Permits

__all__ = ["NO_MEMORY", "Memory", "News", "Sent"]

_US = 1_000  # ns


class News:
    """Permits that were used without slots, and how a pause of all processes changed. False if there is nothing to tell."""

    __slots__ = ("charged", "pause_at", "resumes")

    def __init__(self, charged: Permits = 0, resumes: bool = False, pause_at: int | None = None) -> None:
        self.charged: Permits = charged
        self.resumes: bool = resumes
        """Whether a pause is over."""
        self.pause_at: int | None = pause_at
        """The reading at which a pause is to end. It began after ``resumes``."""

    def __bool__(self) -> bool:
        return bool(self.charged or self.resumes or self.pause_at is not None)

    def pause(self, until: int) -> None:
        """A pause began that ends at that reading. Pauses merge by the later end."""
        self.pause_at = until if self.pause_at is None else max(until, self.pause_at)

    def resume(self) -> None:
        """The pause is over."""
        self.pause_at, self.resumes = None, True

    def take(self, reading: int) -> News:
        """Remove and return what the next question tells. The end of a pause and the next pause take two questions."""
        if self.pause_at is not None and self.pause_at <= reading:
            self.pause_at = None
        if not self:
            return _NOTHING
        taken = News(self.charged, self.resumes, None if self.resumes else self.pause_at)
        self.charged, self.resumes, self.pause_at = 0, False, self.pause_at if self.resumes else None
        return taken

    def again(self, news: News) -> None:
        """The store may not have heard what was taken: tell it again, before what came later."""
        self.charged += news.charged
        if not self.resumes and news.pause_at is not None:
            self.pause(news.pause_at)
        self.resumes |= news.resumes

    def pause_us(self, reading: int) -> float:
        """As the script takes it: the us until a pause is to end, 0 if a pause is over, -1 if nothing changed."""
        if self.resumes:
            return 0
        return -1 if self.pause_at is None else (self.pause_at - reading) / _US


_NOTHING = News()


class Sent(NamedTuple):
    """The question under way."""

    at: int
    """The reading when it was sent."""
    news: News
    closed: bool
    """Whether the limiter was closed by then."""


class Memory(NamedTuple):
    """What the store said last."""

    value: str = ""
    at: int = 0
    """The reading when the answer came."""
    unused: float = inf
    """Permits that went by unused, by the store's count."""
    with_slots: str = ""
    """The value when it assigned slots last. If that is still the value, they are the last of all."""


NO_MEMORY = Memory()
