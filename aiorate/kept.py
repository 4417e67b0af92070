"""Which keys are kept, and which are looked at next: those used again lately are not, and each look costs the same, however many keys.

Keys used again stay for a *round*: as many uses as there are keys, and 8192 at least. What was not used in a round is looked at in the
next, two keys for each use. A key that was used once is looked at while new keys come, and so makes room for them at once.
Knows nothing of limiters: whoever looks at a key says whether it may go.
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

_SHORTEST_ROUND = 8_192  # uses: in a short round, keys that are used now and then would go, and be made again
_ROWS, _PLACES = 512, 8


class Kept(Generic[K, V]):
    """A dict of keys, by how lately they were used."""

    __slots__ = ("_before", "_dropped", "_once", "_to_look_at", "used", "uses_left")

    def __init__(self) -> None:
        self.used: OrderedDict[K, V] = OrderedDict()
        """Those used again in this round. A key that is found here needs nothing else."""
        self.uses_left: int = _SHORTEST_ROUND
        """How many uses are left of the round; to be counted down by each. Below 0: two keys are to be looked at."""
        self._before: OrderedDict[K, V] = OrderedDict()  # used again in an earlier round, but not in this one
        self._once: OrderedDict[K, V] = OrderedDict()  # not used again since they were made or looked at; the oldest first
        self._to_look_at = 0  # of `_once`, once the round is over: those that were there when it began
        self._dropped: _Dropped | None = None

    def find(self, key: K) -> V | None:
        """What is kept for a key that is not in `used`: it is from now on."""
        value = self._once.pop(key, None)
        if value is None:
            value = self._before.pop(key, None)
        if value is not None:
            self.used[key] = value
        return value

    def add(self, key: K, value: V) -> bool:
        """Keep a key that was just made; whether others should make room for it.

        One that was dropped lately is in use: it was dropped too soon, and nothing makes room for it.
        """
        if self._dropped is not None and hash(key) in self._dropped:
            self.used[key] = value
            return False
        self._once[key] = value
        return True

    def oldest(self, besides: K) -> K | None:
        """The key that was made or looked at first, of those that were not used since; None: there is none but the one ``besides``."""
        key = next(iter(self._once), besides)
        if key == besides:
            return None
        self._once.move_to_end(key)
        return key

    def unused(self) -> K | None:
        """A key that was not used in the round that is over; None: all were looked at, and another round begins."""
        if self._before:
            key, self._once[key] = self._before.popitem(last=False)
            return key
        if self._to_look_at and self._once:
            self._to_look_at -= 1
            key = next(iter(self._once))
            self._once.move_to_end(key)
            return key
        self._before, self.used = self.used, OrderedDict()
        self._to_look_at = len(self._once)
        self.uses_left = max(len(self), _SHORTEST_ROUND)
        return None

    def get(self, key: K) -> V | None:
        """What is kept for the key; looking is no use."""
        for keys in (self._once, self._before, self.used):
            if key in keys:
                return keys[key]
        return None

    def drop(self, key: K) -> None:
        """Keep that key no longer."""
        for keys in (self._once, self._before, self.used):
            if key in keys:
                del keys[key]
                break
        if self._dropped is None:
            self._dropped = _Dropped()
        self._dropped.add(hash(key))

    def put_back(self, key: K, value: V) -> None:
        """The key that was dropped is kept all the same."""
        self._once[key] = value

    def forget_dropped(self) -> None:
        """A key that comes back is a new one."""
        self._dropped = None

    def shrink(self) -> None:
        """Give memory back: a dict that lost most of its keys is as large as before."""
        self.used, self._before, self._once = OrderedDict(self.used), OrderedDict(self._before), OrderedDict(self._once)

    def values(self) -> list[V]:
        """What is kept for all keys."""
        return [*self._once.values(), *self._before.values(), *self.used.values()]

    def __len__(self) -> int:
        return len(self.used) + len(self._before) + len(self._once)

    def __iter__(self) -> Iterator[K]:
        return chain(self._once, self._before, self.used)

    def __contains__(self, key: object) -> bool:
        return key in self.used or key in self._once or key in self._before


class _Dropped:
    """The hashes of some 4000 keys that were dropped last, in 32 kB: eight for each row."""

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
