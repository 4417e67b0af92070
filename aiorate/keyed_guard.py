"""What makes a KeyedLimiter or KeyedBudget safe for threads, with ``scope="process"``. Imported when it is needed.

Two locks, so that a function of the user never runs while lookups wait. `Guard.lookups` is held for a few dict operations, in which
nothing waits; `Guard.making` while a key is made. Knows nothing of rates or of HTTP.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from aiorate.waiting.process.scope import family_of, finish, join, widen
from aiorate.waiting.process.section import Section

if TYPE_CHECKING:
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.process.family import Family

__all__ = ["Guard"]


class Guard:
    """The locks of the keys, and the family in which they decide: that of the limit that all keys share, or their own."""

    __slots__ = ("family", "lookups", "making")

    def __init__(self, shared: Dispatcher | None) -> None:
        family = None if shared is None else family_of(shared)
        self.family: Family = widen([], None) if family is None else family
        self.lookups: Section = Section()
        """Runs what looks at the kept keys or changes them. A key is evicted from inside its limiter's section, so nothing waits here."""
        self.making: threading.RLock = threading.RLock()
        """Held while a key is made, also when its function makes another."""

    def join(self, member: Dispatcher, shared: Dispatcher | None) -> None:
        """Have a new member decide in the section of what it shares, or in that of the keys. Raises ValueError if it was used."""
        join(self.family if shared is None else family_of(shared), member)

    def begin_again(self) -> None:
        """In a child process: another thread may have been making a key when it forked."""
        self.making = threading.RLock()

    async def finish(self) -> None:
        """Return once no thread is left, unless others of the family need it."""
        await finish(self.family)
