"""What makes a KeyedLimiter or KeyedBudget safe for threads, with ``scope="process"``. Imported when it is needed.

`Guard.lookups` is held for a few dict operations, in which nothing waits. A function of the user never runs while lookups wait: a key
is made under a lock of that key alone, so that other keys do not wait for it. Knows nothing of rates or of HTTP.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from aiorate.waiting.lock import Lock
from aiorate.waiting.process.scope import family_of, finish, join, widen
from aiorate.waiting.process.section import Section

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.process.family import Family

__all__ = ["Guard"]

T = TypeVar("T")

_awaited: dict[int, Making] = {}  # by thread: the key that it waits for while another thread makes it


class Guard:
    """The locks of the keys, and the family in which they decide: that of the limit that all keys share, or their own."""

    __slots__ = ("_making", "family", "lookups")

    def __init__(self, shared: Dispatcher | None) -> None:
        family = None if shared is None else family_of(shared)
        self.family: Family = widen([], None) if family is None else family
        self.lookups: Section = Section()
        """Runs what looks at the kept keys or changes them. A key is evicted from inside its limiter's section, so nothing waits here."""
        self._making: WeakValueDictionary[Hashable, Making] = WeakValueDictionary()

    def make(self, key: Hashable, call: Callable[[], T], circle: Callable[[], Exception]) -> T:
        """Call a function that makes the key, one thread at a time for each key. Raises what ``circle`` returns if it would never end.

        That is so if this thread makes the key already, or if the thread that does waits for this one, perhaps by way of others.
        """
        making, here = self.lookups.run(self._making_of, key), get_ident()
        try:
            _awaited[here] = making  # before it looks: of two threads that wait for each other, one at least sees the other
            if making.leads_to(here):
                raise circle()
            with making.lock:
                _awaited.pop(here, None)
                making.thread = here
                try:
                    return call()
                finally:
                    making.thread = 0
        finally:
            _awaited.pop(here, None)

    def _making_of(self, key: Hashable) -> Making:
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = Making()
        return making

    def join(self, member: Dispatcher, shared: Dispatcher | None) -> None:
        """Have a new member decide in the section of what it shares, or in that of the keys. Raises ValueError if it was used."""
        join(self.family if shared is None else family_of(shared), member)

    def begin_again(self) -> None:
        """In a child process: other threads may have been making keys when it forked."""
        self._making = WeakValueDictionary()
        _awaited.clear()

    async def finish(self) -> None:
        """Return once no thread is left, unless others of the family need it."""
        await finish(self.family)


class Making:
    """The making of one key, which other threads that need the key wait for."""

    __slots__ = ("__weakref__", "lock", "thread")

    def __init__(self) -> None:
        self.lock: Lock = Lock()
        self.thread: int = 0
        """The thread that makes the key now; 0: none."""

    def leads_to(self, thread: int) -> bool:
        """Whether that thread makes the key, or one for which the thread that makes it waits, and so on."""
        making: Making | None = self
        seen = set[int]()
        while making is not None and making.thread and making.thread not in seen:
            if making.thread == thread:
                return True
            seen.add(making.thread)
            making = _awaited.get(making.thread)
        return False
