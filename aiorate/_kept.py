"""Which keys are kept, and which are checked next: not those used again lately. A check costs the same for any number of keys.

Keys used again stay for a *round*: as many uses as there are keys, and 8192 at least. Keys not used in a round are checked in the
next, two for each use. Keys that were used only once are checked while new keys come, and so make room for them at once.
Knows nothing of limiters: the caller decides whether a checked key may go.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

__all__ = ["Kept"]

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")

_SHORTEST_ROUND = 8_192  # uses: in a shorter round, keys that are used now and then would go, and be made again
_ROWS, _PLACES = 512, 8


class Kept(Generic[K, V]):
    """A dict of keys, ordered by how lately they were used."""

    __slots__ = ("_before", "_dropped", "_once", "_to_check", "used", "uses_left")

    def __init__(self) -> None:
        self.used: OrderedDict[K, V] = OrderedDict()
        """The keys used again in this round. A key that is found here needs nothing else."""
        self.uses_left: int = _SHORTEST_ROUND
        """Uses left in the round; each use counts it down. Below 0, two keys must be checked."""
        self._before: OrderedDict[K, V] = OrderedDict()  # used again in an earlier round, but not in this one
        self._once: OrderedDict[K, V] = OrderedDict()  # not used again since they were made or checked; the oldest first
        self._to_check = 0  # how many of `_once` are still to be checked after a round: those that were there when it ended
        self._dropped: _Dropped | None = None

    def find(self, key: K) -> V | None:
        """The value of a key that is not in `used`, and moves there; None if the key is not kept."""
        value = self._once.pop(key, None)
        if value is None:
            value = self._before.pop(key, None)
        if value is not None:
            self.used[key] = value
        return value

    def add(self, key: K, value: V) -> bool:
        """Keep a new key; returns whether others should make room for it.

        A key that was dropped lately is in use: it was dropped too soon, and others need not make room.
        """
        if self._dropped is not None and hash(key) in self._dropped:
            self.used[key] = value
            return False
        self._once[key] = value
        return True

    def oldest(self, besides: K) -> K | None:
        """The key that was made or checked first, of those not used since then, except ``besides``; None if there is no other."""
        key = next(iter(self._once), besides)
        if key == besides:
            return None
        self._once.move_to_end(key)
        return key

    def unused(self) -> K | None:
        """A key that was not used in the last round; None: all were checked, and another round begins."""
        if self._before:
            key = next(iter(self._before))
            self._once[key] = self._before[key]  # first: a signal handler may raise after any call, and a key must not be lost
            del self._before[key]
            return key
        if self._to_check and self._once:
            self._to_check -= 1
            key = next(iter(self._once))
            self._once.move_to_end(key)
            return key
        self._before, self.used = self.used, OrderedDict()
        self._to_check = len(self._once)
        self.uses_left = max(len(self), _SHORTEST_ROUND)
        return None

    def get(self, key: K) -> V | None:
        """The value of the key; does not count as a use."""
        for keys in (self._once, self._before, self.used):
            value = keys.get(key)  # in one step: another thread may move the key meanwhile
            if value is not None:
                return value
        return None

    def drop(self, key: K) -> None:
        """Remove the key, and remember that it was dropped."""
        for keys in (self._once, self._before, self.used):
            if key in keys:
                del keys[key]
                break
        if self._dropped is None:
            self._dropped = _Dropped()
        self._dropped.add(hash(key))

    def put_back(self, key: K, value: V) -> None:
        """Keep a key that was dropped after all."""
        self._once[key] = value

    def forget_dropped(self) -> None:
        """Treat keys that come back as new ones."""
        self._dropped = None

    def shrink(self) -> None:
        """Give memory back: a dict that lost most of its keys does not shrink."""
        self.used, self._before, self._once = OrderedDict(self.used), OrderedDict(self._before), OrderedDict(self._once)

    def values(self) -> list[V]:
        """The values of all keys."""
        return [*self._once.values(), *self._before.values(), *self.used.values()]

    def __len__(self) -> int:
        return len(self.used) + len(self._before) + len(self._once)

    def __iter__(self) -> Iterator[K]:
        return chain(self._once, self._before, self.used)

    def __contains__(self, key: object) -> bool:
        return key in self.used or key in self._once or key in self._before


class _Dropped:
    """The hashes of about 4000 keys that were dropped last, in 32 kB: eight for each row."""

    __slots__ = ("_hashes",)

    def __init__(self) -> None:
        self._hashes = array("q", bytes(8 * _ROWS * _PLACES))

    def __contains__(self, key: int) -> bool:
        row = key % _ROWS * _PLACES
        return key in self._hashes[row : row + _PLACES]

    def add(self, key: int) -> None:
        if key not in self:
            row = key % _ROWS * _PLACES
            self._hashes[row + 1 : row + _PLACES] = self._hashes[row : row + _PLACES - 1]
            self._hashes[row] = key
