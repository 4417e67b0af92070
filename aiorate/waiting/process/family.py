"""A family: the limiters of a process that decide in one critical section, such as all keys and the limits that they share.

They have their inboxes and their timekeeper in common. A family knows its limiters weakly, so that one that is dropped is freed.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from aiorate.waiting.process.inboxes import Inboxes
from aiorate.waiting.process.section import Section
from aiorate.waiting.process.timekeeper import Timekeeper

if TYPE_CHECKING:
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.process.driver import ProcessDriver
    from aiorate.waiting.process.view import ProcessLoop

__all__ = ["Family"]


class Family:
    """What limiters have in common that decide in one section. ``name`` is a part of the name of the timekeeper's thread."""

    __slots__ = ("dispatchers", "drivers", "inboxes", "keeper", "name", "section", "views")

    dispatchers: WeakSet[Dispatcher]
    """The dispatchers that decide in the section."""
    drivers: WeakSet[ProcessDriver]
    """Their drivers, of those where a request had to wait."""
    inboxes: Inboxes
    keeper: Timekeeper
    """The timekeeper by the usual clock."""
    views: WeakValueDictionary[tuple[int, bool], ProcessLoop]
    """The view for each clock and ``precise``. By the id of the clock, which the view holds."""

    def __init__(self, name: str | None) -> None:
        self.name: str = f"aiorate-timekeeper:{name}" if name else "aiorate-timekeeper"
        self.section: Section = Section()
        self.dispatchers = WeakSet()
        self.begin()

    def begin(self) -> None:
        """Have no waiters and no threads, as at first, and in a child process after a fork."""
        self.drivers = WeakSet()
        self.views = WeakValueDictionary()
        self.inboxes = Inboxes(self.section)
        self.keeper = Timekeeper(self.section, monotonic_ns, self.name, self.inboxes.clear_closed)
