"""SlotScheduler: grants from time slots that are assigned elsewhere, by a store that many processes share.

Slots come by `SlotScheduler.book`, at any time; a `Link` is told when more are wanted. Knows nothing of stores, loops or waiters.
A slot that nobody used lapses, which bounds what all processes together grant.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from aiorate._schedulers.interface import NOBODY_KNOWS, check_ask, check_give_back, check_permits, check_window
from aiorate._schedulers.next_free import NextFree
from aiorate._schedulers.slot_run import lapse_of, runs_of
from aiorate._schedulers.slots_in_hand import SlotsInHand
from aiorate._schedulers.supplied import MOST_NS, Fallback, Supplied, check_charge, peek_behind, standing_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._rate import Rate

__all__ = ["SlotScheduler", "check_memory"]

_ONE = 1


class SlotScheduler(Supplied):
    """Slots in hand, in order, and an estimate of when more are due.

    ``rates`` and ``bursts`` are those by which the store assigns. A slot lapses ``lapse`` ns after its time, or half an interval if that
    is longer, unless the first in line gathers slots for several permits, or keeps them until another limit grants it (`patient`).

    A copy is a rehearsal: it assumes that all slots after those in hand are its own, and calls nobody.
    """

    __slots__ = (
        "_ask_below",
        "_in_hand",
        "_lapse",
        "_next_free",
        "bursts",
        "rate",
        "rates",
    )
    rate: Rate
    spent: int
    refused: int

    def __init__(self, rates: Sequence[Rate], bursts: Sequence[int], lapse: int) -> None:
        super().__init__()
        self.rates: tuple[Rate, ...] = tuple(rates)
        """In order; another tuple once a rate is changed."""
        self.bursts: tuple[int, ...] = tuple(bursts)
        """One for each rate."""
        self._lapse: int = lapse
        self._in_hand: SlotsInHand = SlotsInHand()
        self._next_free: NextFree = NextFree(rates, bursts)  # after all slots that the store has assigned, as it said last
        self._ask_below: int = -1  # slots are wanted when a grant leaves this many or fewer; -1: only a refusal does
        self.rate = _slowest(self.rates)

    # What the store does.

    def book(
        self, starts: Sequence[int], count: int, now: int, nexts: Sequence[int], answer_ns: int, rates: Sequence[Rate] | None = None
    ) -> None:
        """Add ``count`` slots that the store assigned: those of rate j begin at ``starts[j]`` (ns), and a slot is when all rates allow it.

        ``nexts`` are the next free slots of the rates after them. ``rates`` are those for which the store was asked, where they have
        changed since.
        """
        if count:
            self._in_hand.add(runs_of(starts, rates or self.rates, count, now, self._lapse))
        self._next_free.follow(nexts)
        self.answer_ns = answer_ns
        self.asked_at = None

    def ask_below(self, count: int) -> None:
        """Want slots as soon as a grant leaves ``count`` or fewer; -1: only when a request is refused."""
        self._ask_below = count

    def last_run(self, now: int) -> int:
        """The number of slots of the latest run that are still ahead."""
        run = self._in_hand.last_run()
        return 0 if run is None else run.left - run.before(now)

    def returnable(self, now: int) -> int:
        return self.last_run(now)

    def clear(self) -> None:
        """Give up all slots in hand: they belong to another process."""
        self._in_hand.clear()

    def ready(self, permits: int, now: int) -> int:
        """The number of slots in hand that are of use while the first in line asks for ``permits``."""
        return self._in_hand.count - self._lapsed(permits, now)

    def ahead(self, now: int) -> int:
        """The number of slots in hand that are not due yet."""
        return self._in_hand.count - self._in_hand.before(now + 1)

    def due_by(self, instant: int, now: int) -> int:
        """The number of slots in hand that are of use now and due by that instant."""
        return max(self._in_hand.before(instant + 1) - self._lapsed(1, now), 0)

    @property
    def in_hand(self) -> int:
        return self._in_hand.count

    @property
    def lapsed(self) -> int:
        return self._in_hand.lapsed

    # A request.

    def take(self, permits: int, now: int, since: int | None = None) -> int:
        if permits is _ONE and type(now) is int:
            hand = self._in_hand
            run = hand.first
            if run is not None:
                at = -(-run.next // run.unit)
                if at < run.floor:
                    at = run.floor
                if at <= now <= at + run.lapse:
                    if since is not None or self._receipts:  # out of the line: it may come back
                        hand.note(run.next, 1, run, now)
                    run.next += run.step
                    run.left -= 1
                    hand.count -= 1
                    self.spent += 1
                    self.refused = 0
                    if not run.left:
                        hand.drop_first()
                    if hand.count <= self._ask_below:
                        self.want(now)
                    return at
            elif not self.rehearsal and self.fallback is None:
                self.refused = 1
                self.want(now)
                return self.look_again_at(now)
        check_ask("take()", permits, now, since)
        at, missing = self._due(permits, now)
        if missing or at > now:
            self.refused = permits
            self.want(now)
        if missing:
            if self.fallback is not None:
                at = max(at, self.fallback.at(missing, now))
            elif self.rehearsal:
                at = max(at, self._next_free.at(missing, now))
            else:
                return max(at, self.look_again_at(now))
        if at <= now:
            self._grant(permits, missing, now)
        return at

    def peek(self, permits: int, now: int, ahead: int = 0) -> int:
        check_ask("peek()", permits, now)
        if ahead:
            return peek_behind(self, permits, now, ahead)
        at, missing = self._due(permits, now)
        if not missing:
            return at
        if self.patient and not self.rehearsal:  # the caller is first in line, and calls take() only once this is due
            self.refused = permits
            self.want(now)
        if self.fallback is not None:
            return max(at, self.fallback.at(missing, now) if self.patient else _later(self.fallback, missing, now))
        if self.rehearsal:
            return max(at, self._next_free.at(missing, now))
        return max(at, self._next_free.last_slot(missing, now), now + self.answer_ns)

    def give_back(self, permits: int, now: int, taken: int | None = None) -> None:
        """Put the slots of that grant back, the latest first. Without a receipt, or with an old one, they are lost."""
        check_give_back(permits, now, taken)
        if taken is not None:
            self._in_hand.give_back(permits, taken)

    def charge(self, permits: int, now: int) -> None:
        """Have the store take the permits from all processes; here they delay what is booked from now on.

        Raises ValueError for a debt of more than 317 years.
        """
        check_permits("charge()", permits)
        check_charge(permits, self.rate)
        self._next_free.spend(permits, now)
        if self.link is not None:
            self.link.charged(permits)

    def take_ahead(self, permits: int, now: int) -> None:
        """As one request: first the slots in hand."""
        at = max(self.peek(permits, now), now)
        if at < NOBODY_KNOWS:
            self.take(permits, at)

    def _quotas(self) -> list[tuple[int, Rate]]:
        """The burst of each rate, of all processes together."""
        return list(zip(self.bursts, self.rates, strict=True))

    def _standings(self, now: int) -> list[tuple[int, int]]:
        """For each rate, the slots in hand that are due and those that the store had free when it answered last."""
        fallback = self.fallback
        if fallback is not None:
            return [standing_of(fallback, burst, now) for burst in self.bursts]
        in_hand = self.due_by(now, now)
        free = [self._next_free.standing(index, now) for index in range(len(self.rates))]
        return [(min(left + in_hand, burst), at) for (left, at), burst in zip(free, self.bursts, strict=True)]

    def set_rate(self, rate: Rate, now: int) -> None:
        """Change the rate by which this process has slots assigned. Raises RuntimeError where there are several."""
        if len(self.rates) > 1:
            raise RuntimeError("set_rate(): cannot change one of several rates. Create a new limiter of the same name with other rates.")
        check_memory("set_rate()", rate, self.bursts[0])
        self._next_free.set_rate(0, rate)
        self.rates, self.rate = (rate,), rate

    def lag(self, now: int) -> int:
        """How late (ns) the first slot in hand is."""
        at, missing = self._due(1, now)
        return 0 if missing else max(now - at, 0)

    def bound(self, window: int, largest: int = 1) -> int | None:
        """b + R (W + lapse), of all processes together, where half an interval is the shortest lapse.

        If requests are for several permits, ``largest`` more; and again for each further process that makes such requests.
        """
        check_window(window, largest)
        lapses = [lapse_of(rate, self._lapse) for rate in self.rates]
        most = min(
            # A slot that a slower rate delayed may be later than those of a faster one, and there is one at a time.
            burst + rate.permits_in(window + lapse) + (max(lapses) > lapse)
            for rate, burst, lapse in zip(self.rates, self.bursts, lapses, strict=True)
        )
        return most + (largest if largest > 1 else 0)

    def available(self, now: int) -> int:
        """The number of slots that are due."""
        return self.due_by(now, now)

    def _rested(self, now: int) -> bool:
        """Whether no slots are in hand or on their way."""
        return self.asked_at is None and self.fallback is None and not self.ready(1, now)

    def shift(self, ns: int) -> None:
        """Follow a pause: the limiter's time stood still for ``ns``, and the store's did not."""
        self._in_hand.shift(ns)
        self._next_free.shift(ns)
        if self.asked_at is not None:
            self.asked_at -= ns

    def __deepcopy__(self, memo: object) -> SlotScheduler:
        twin = SlotScheduler(self.rates, self.bursts, self._lapse)
        twin._in_hand, twin.patient = self._in_hand.copy(), self.patient
        twin._next_free = deepcopy(self._next_free)
        if self.asked_at is not None:
            twin._next_free.not_before = self.asked_at + self.answer_ns
        twin.fallback = deepcopy(self.fallback)
        twin.rehearsal, twin._receipts = True, False
        return twin

    def __repr__(self) -> str:
        rates = ", ".join(
            [f"{rate}" if burst == 1 else f"{rate} burst {burst}" for rate, burst in zip(self.rates, self.bursts, strict=True)]
        )
        return f"SlotScheduler({rates}, in_hand={self.in_hand})"

    def _lapsed(self, permits: int, now: int) -> int:
        """How many slots, the first in hand, have lapsed for such a request.

        A request that gathers slots for several permits may use the latest that lapsed meanwhile, one fewer than it needs. So a grant
        exceeds the slots that have not lapsed by at most that.
        """
        lapsed = self._in_hand.lapsed_by(now)
        return lapsed and max(lapsed - (permits if self.patient else permits - 1), 0)

    def _due(self, permits: int, now: int) -> tuple[int, int]:
        """When the slots in hand that serve the request are due, and how many are missing."""
        return self._in_hand.due(permits, self._lapsed(permits, now), now)

    def _grant(self, permits: int, missing: int, now: int) -> None:
        self._in_hand.take(permits - missing, self._lapsed(permits, now), now)
        self.spent += permits
        self.refused = 0
        if missing:
            (self.fallback or self._next_free).spend(missing, now)
        if self._in_hand.count <= self._ask_below:
            self.want(now)


def check_memory(call: str, rate: Rate, burst: int) -> None:
    """Raise ValueError unless a store can count how long that burst takes to come back."""
    if burst * rate.period_ns > MOST_NS * rate.permits:
        most = MOST_NS * rate.permits // rate.period_ns
        wanted = f"a burst of at most {most}" if most else "a faster rate"
        raise ValueError(f"{call}: at {rate} a burst of {burst} takes longer than 317 years to come back. Give {wanted}.")


def _slowest(rates: Sequence[Rate]) -> Rate:
    slowest = rates[0]
    for rate in rates[1:]:
        if rate.slower_than(slowest):
            slowest = rate
    return slowest


def _later(fallback: Fallback, permits: int, now: int) -> int:
    """When they are due; `NOBODY_KNOWS` if the policy refuses requests."""
    try:
        return fallback.at(permits, now)
    except ConnectionError:
        return NOBODY_KNOWS
