"""How many permits a process uses within a lease, of late: as many are worth taking ahead."""

from __future__ import annotations

__all__ = ["RecentUse"]


class RecentUse:
    """Measured over one to two leases of ``lease`` ns, so that few requests in a short time do not count as a high rate."""

    __slots__ = ("_lease", "_new", "_old")

    def __init__(self, lease: int) -> None:
        self._lease: int = lease
        # Permits spent and the reading, when the two latest spans began; None: nothing was measured.
        self._old: tuple[int, int] | None = None
        self._new: tuple[int, int] = (0, 0)

    def measure(self, spent: int, asked: int, reading: int) -> int:
        """How many permits the next lease will take, if use goes on as it did. ``spent`` counts all grants.

        The measurement begins after the ``asked`` permits of the first question, and again after two leases without a question: a
        process that makes one request in a while takes nothing ahead.
        """
        lease, old = self._lease, self._old
        age = reading - self._new[1]
        if old is None or age >= 2 * lease:
            old = self._new = spent + asked, reading
        elif age >= lease:
            old, self._new = self._new, (spent, reading)
        self._old = old
        return max(spent - old[0], 0) * lease // max(reading - old[1], lease)
