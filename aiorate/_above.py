"""What a budget shares with others: a Limiter, which is one of its dimensions, or another budget, by the names of the dimensions.

The two answer the same questions, so that a budget need not know which of them it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aiorate._schedulers.dimensions import Amounts
from aiorate._tree import changes
from aiorate._tree.questions import available

if TYPE_CHECKING:
    from aiorate._budget import Budget
    from aiorate._feedback import Left
    from aiorate._limiter import Limiter
    from aiorate._tree.limit import Taken

__all__ = ["Above", "SharedBudget", "SharedLimiter"]


class Above(Protocol):
    """What a budget shares with others."""

    @property
    def limit(self) -> Limiter | Budget:
        """What was given."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """All dimensions of the budget that shares it: first its own, and then those that are only here."""
        ...

    @property
    def default(self) -> int:
        """The amount of a dimension that is only here, where it is not named."""
        ...

    @property
    def most(self) -> dict[str, int | None]:
        """The largest amount of each dimension here that can be granted at once; None: any."""
        ...

    def permits_of(self, permits: int) -> int:
        """What a request of these amounts takes here, or 0."""
        ...

    def waited_for(self, amounts: Amounts) -> int | None:
        """The place in `names` of the dimension for which that request waited here; None: it did not, or only for a pause to end."""
        ...

    def available(self, name: str) -> int | None:
        """How much of the dimension is available here; None: it is not here."""
        ...

    def correct(self, more: dict[str, int], taken: Taken) -> None:
        """As `Budget.correct`, of a request that took that here and above."""
        ...

    def cap(self, name: str, quota: Left) -> None:
        """Heed a server's quota of a dimension."""
        ...

    def closed(self) -> str:
        """Which limit is closed, here or above, and what to do, as a sentence."""
        ...

    def reason(self, permits: int) -> str:
        """Why the request would wait here, as a part of a sentence."""
        ...


class SharedLimiter:
    """A Limiter that is the last dimension of a budget."""

    __slots__ = ("limit", "names")
    default = 1

    def __init__(self, own: tuple[str, ...], name: str, limiter: Limiter) -> None:
        self.limit: Limiter = limiter
        self.names: tuple[str, ...] = (*own, name)

    @property
    def most(self) -> dict[str, int | None]:
        return {self.names[-1]: self.limit._node.max_permits}

    def permits_of(self, permits: int) -> int:
        assert isinstance(permits, Amounts)
        return permits.of[-1]

    def waited_for(self, amounts: Amounts) -> int | None:
        return len(self.names) - 1

    def available(self, name: str) -> int | None:
        return available(self.limit._node) if name == self.names[-1] else None

    def correct(self, more: dict[str, int], taken: Taken) -> None:
        permits = more.get(self.names[-1], 0)
        if permits > 0:
            changes.charge(self.limit._node, permits)
        elif permits < 0 and taken:
            _give_back(-permits, taken)

    def cap(self, name: str, quota: Left) -> None:
        changes.cap(self.limit._node, quota.name, quota.left, quota.size, quota.ns, quota.error)

    def closed(self) -> str:
        return f"the shared Limiter {self.names[-1]!r} is closed. Reopen it, or create a new Budget."

    def reason(self, permits: int) -> str:
        return f" for {self.names[-1]}"


class SharedBudget:
    """A budget that several budgets share. Amounts are taken by the names of its dimensions."""

    __slots__ = ("_places", "limit", "names")
    default = 0

    def __init__(self, own: tuple[str, ...], budget: Budget) -> None:
        self.limit: Budget = budget
        self.names: tuple[str, ...] = (*own, *(name for name in budget.dimensions if name not in own))
        self._places = tuple(self.names.index(name) for name in budget.dimensions)

    @property
    def most(self) -> dict[str, int | None]:
        return self.limit._most

    def permits_of(self, permits: int) -> int:
        assert isinstance(permits, Amounts)
        return self.limit._part(permits, self._places)

    def waited_for(self, amounts: Amounts) -> int | None:
        place = None if amounts.above is None else amounts.above.waited_for
        return None if place is None else self._places[place]

    def available(self, name: str) -> int | None:
        return self.limit._available_here(name) if name in self.limit.dimensions else None

    def correct(self, more: dict[str, int], taken: Taken) -> None:
        here = {name: amount for name, amount in more.items() if amount and name in self.limit.dimensions}
        if here:
            self.limit._correct(here, taken)

    def cap(self, name: str, quota: Left) -> None:
        self.limit._cap(name, quota)

    def closed(self) -> str:
        return self.limit._which_closed()

    def reason(self, permits: int) -> str:
        node = self.limit._node
        now = node.look_now()
        if node.queue.line:
            return " in the line of the shared budget"
        if node.timeline.held_at is not None:
            return " because the shared budget is paused"
        return self.limit._refusals.reason(self.permits_of(permits), node, now)


def _give_back(permits: int, taken: Taken) -> None:
    """Take back a part of what a request took of these limits."""
    for node, _, instant in taken:
        if node.counters.since is None or instant > node.counters.since:
            node.counters.given_back += permits
            (node.told or node.scheduler).give_back(permits, node.timeline.now(), instant)
        node.changed()
