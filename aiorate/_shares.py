"""What a reservation takes, and of which limits: the dimensions of its budget, then those of the Limiter or the budget that this shares.

The two answer the same questions, so that a budget need not know which of them it shares.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiorate._errors import LimiterClosed
from aiorate._schedulers.amounts import Amounts
from aiorate._tree import changes
from aiorate._tree.grants import credit
from aiorate._tree.questions import available
from aiorate._tree.refusals import Refusals

if TYPE_CHECKING:
    from aiorate._feedback import Left
    from aiorate._schedulers.amounts import Permits
    from aiorate._schedulers.dimensions import Dimensions
    from aiorate._tree.limit import Limit, Taken
    from aiorate._tree.node import Node

__all__ = ["BudgetRefusals", "BudgetShares", "LimiterShare"]


class LimiterShare:
    """A Limiter that is the last dimension of a budget."""

    __slots__ = ("names", "node")
    default = 1

    def __init__(self, name: str, node: Node) -> None:
        self.names: tuple[str, ...] = (name,)
        self.node: Node = node

    @property
    def most(self) -> dict[str, int | None]:
        return {self.names[0]: self.node.max_permits}

    def part(self, permits: Permits, places: tuple[int, ...]) -> int:
        assert isinstance(permits, Amounts)
        return permits.of[places[0]]

    def waited_for(self, amounts: Amounts, places: tuple[int, ...]) -> int:
        return places[0]

    def available(self, name: str) -> int:
        return available(self.node)

    def correct(self, more: dict[str, int], taken: Taken) -> None:
        permits = more.get(self.names[0], 0)
        if permits > 0:
            changes.charge(self.node, permits)
        elif permits < 0:
            for limit, _, instant in taken:
                credit(limit, -permits, instant)
                limit.changed()

    def cap(self, name: str, quota: Left) -> None:
        changes.cap(self.node, quota.name, quota.left, quota.size, quota.ns, quota.error)

    def closed(self) -> str:
        return f"the shared Limiter {self.names[0]!r} is closed. Reopen it, or create a new Budget."

    def reason(self, permits: Permits, shared: bool = True) -> str:
        return f" for {self.names[0]}"


class BudgetShares:
    """The dimensions of a budget, by name: its own, and then those that are only in what it shares."""

    __slots__ = ("dimensions", "names", "node", "own", "places", "shared")
    default = 0
    """The amount of a dimension that a budget below lacks, where it is not named."""

    def __init__(self, own: tuple[str, ...], dimensions: Dimensions, node: Node) -> None:
        self.own: int = len(own)
        self.names: tuple[str, ...] = own
        self.dimensions: Dimensions = dimensions
        self.node: Node = node
        self.shared: LimiterShare | BudgetShares | None = None
        """What it shares with others."""
        self.places: tuple[int, ...] = ()
        """Where the dimensions of that are among these."""

    def share(self, shared: LimiterShare | BudgetShares) -> None:
        """Take from that too from now on."""
        names = (*self.names, *[name for name in shared.names if name not in self.names])
        places = tuple([names.index(name) for name in shared.names])
        # The node does not hold these: a key that nobody holds must be gone at once, for what it shares may go only then.
        self.node.tree.run(changes.share, self.node, shared.node, partial(shared.part, places=places))
        self.node.waited_above = partial(_note_dimension, self.dimensions, shared, places)
        self.names, self.places, self.shared = names, places, shared

    # What a budget below asks, too. In a decision.

    @property
    def most(self) -> dict[str, int | None]:
        """The largest amount of each dimension that can be granted at once, here and above; None: any."""
        most = dict(zip(self.names, self.dimensions.most, strict=False))
        for place, above in ({} if self.shared is None else self.shared.most).items():
            own = most.get(place)
            most[place] = above if own is None else own if above is None else min(own, above)
        return most

    def part(self, permits: Permits, places: tuple[int, ...]) -> Amounts:
        """What a reservation of a budget below takes here: its amounts at these places."""
        assert isinstance(permits, Amounts)
        if not self.node.line.is_waited_in:
            self.dimensions.waited_for = None
        return permits.part(places)

    def waited_for(self, amounts: Amounts, places: tuple[int, ...]) -> int | None:
        """The place, for the budget below, of the dimension for which its reservation waited here; None: it did not."""
        place = amounts.part(places).waited_for
        return None if place is None else places[place]

    def available(self, name: str) -> int:
        """How much of a dimension is available here and above. 0 while somebody waits, while paused, and once closed."""
        now, number = self.node.look_now(), self.names.index(name)
        if self.node.closed or self.node.held_at is not None or self.node.line:
            return 0
        amounts = [self.dimensions.available_of(number, now)] if number < self.own else []
        if self.shared is not None and name in self.shared.names:
            amounts.append(self.shared.available(name))
        return min(amounts)

    def correct(self, more: dict[str, int], taken: Taken) -> None:
        """Charge how much ``more`` was used than was taken, here and above; below 0 it comes back."""
        node = self.node
        now = node.look_now()
        instant, above = (taken[0][2], taken[1:]) if taken and taken[0][0] is node else (now, taken)
        for number, name in enumerate(self.names[: self.own]):
            if name in more:
                self.dimensions.correct(number, more[name], now, instant)
        if self.shared is not None:
            there = {name: amount for name, amount in more.items() if amount and name in self.shared.names}
            if there:
                self.shared.correct(there, above)
        node.changed()

    def cap(self, name: str, quota: Left) -> None:
        """Heed a server's quota of a dimension: of that here, or of the one above if only that has it."""
        number, node = self.names.index(name), self.node
        if number < self.own:
            now = node.look_now()
            self.dimensions.cap(number, quota.name, quota.left, quota.size, quota.ns, now, now + node.held_for, quota.error)
            node.changed()
        elif self.shared is not None:
            self.shared.cap(name, quota)

    def closed(self) -> str:
        """Which limit is closed, here or above, and what to do, as a sentence."""
        if self.node.closed or self.shared is None:
            named = repr(self.node.name) if self.node.name else f"of {' and '.join(self.names)}"
            return f"the shared budget {named} is closed. Create a new one, and the budgets that share it."
        return self.shared.closed()

    def reason(self, permits: Permits, shared: bool = True) -> str:
        """Why a reservation would wait, here or above, as a part of a sentence. ``shared``: for a budget below."""
        now = self.node.look_now() if shared else self.node.now()
        if self.node.line:
            return " in the line of the shared budget" if shared else " in line"
        if self.node.held_at is not None:
            return f" because the {'shared ' * shared}budget is paused"
        place = self.dimensions.last(permits, now)
        if place is None and self.shared is not None:
            return self.shared.reason(self.shared.part(permits, self.places))
        return f" for {self.names[0 if place is None else place]}"


def _note_dimension(dimensions: Dimensions, shared: LimiterShare | BudgetShares, places: tuple[int, ...], permits: Permits) -> None:
    """The request, or one before it in line, waited for what is shared."""
    assert isinstance(permits, Amounts)
    dimensions.waited_for = shared.waited_for(permits, places)


class BudgetRefusals(Refusals):
    """The errors of `Budget.reserve`, which say for which dimension a call would wait."""

    __slots__ = ("_shares",)

    def __init__(self, shares: BudgetShares) -> None:
        super().__init__("reserve")
        self._shares = shares

    def named(self, permits: Permits) -> str:
        return "reserve()"

    def amounts(self, permits: Permits) -> dict[str, int]:
        assert isinstance(permits, Amounts)
        return dict(zip(self._shares.names, permits.of, strict=True))

    def dimension(self, permits: Permits) -> str | None:
        assert isinstance(permits, Amounts)
        return None if permits.waited_for is None else self._shares.names[permits.waited_for]

    def closed(self, node: Limit) -> LimiterClosed:
        shared = None if node.closed else self._shares.shared
        return LimiterClosed(f"reserve(): {'the budget is closed. Create a new one.' if shared is None else shared.closed()}")

    def reason(self, permits: Permits) -> str:
        return self._shares.reason(permits, shared=False)
