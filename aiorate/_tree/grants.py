"""What a request takes of each limit on its way, from all or none, and how that comes back.

A path goes from the request's own limit up, with the permits and the instant at each. The highest limit takes first.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from aiorate._schedulers.interface import NOBODY_KNOWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._schedulers.amounts import Permits
    from aiorate._tree.limit import Source, Taken

    L = TypeVar("L", bound=Source)

__all__ = ["credit", "hold", "kept", "limited_by", "take_all", "undo"]


def take_all(path: Sequence[tuple[L, Permits, int]], instants: Sequence[int | None], waited: bool = False) -> tuple[int, L | None]:
    """Take from the limits of the path, each booked since its instant; from all or none.

    Returns the instant for which the lowest scheduled it, and None; or when it is due, and the limit that refused. ``waited``: the
    request, or one before it, stood in the lines above.
    """
    at = NOBODY_KNOWS
    before: int | None = None
    for index in range(len(path) - 1, -1, -1):
        limit, permits, now = path[index]
        if waited:
            if before is not None and limit.since < before and limit.waited_above is not None:
                limit.waited_above(permits)
            before = now
        try:
            at = limit.permitted.take(permits, now, instants[index])
        except Exception as error:
            _take_none(path[index + 1 :])
            limit.fail(error)
            raise
        if at > now:
            _take_none(path[index + 1 :])
            return at, limit
        limit.taken += permits
    return at, None


def _take_none(path: Sequence[tuple[Source, Permits, int]]) -> None:
    """Take those back."""
    for limit, permits, instant in path:
        limit.permitted.give_back(permits, instant, instant)
        limit.taken -= permits


def limited_by(path: Taken) -> str | None:
    """The highest limit in whose line the request, or one before it, waited."""
    own = path[0][0]
    for (above, _, now), (below, _, _) in pairwise(reversed(path)):
        if below.since < now:
            return "max_concurrency" if above.is_places else None if below is own and own.is_places else above.name or "shared"
    return "max_concurrency" if own.is_places else None


def hold(taken: Taken, tasks: int = 0) -> None:
    """The grant may come back, so takes are recorded; ``tasks`` of it, 1 or none, have yet to go on."""
    for limit, _, _ in taken:
        limit.resuming += tasks
        limit.returnable += 1
        limit.scheduler._receipts = True


def kept(taken: Taken, tasks: int = 0) -> None:
    """The grant stands, and its task went on or never will. The last that may come back stops the recording."""
    for limit, _, _ in taken:
        limit.resuming -= tasks
        if limit.returnable:
            limit.returnable -= 1
        if not limit.returnable:
            limit.scheduler._receipts = False


def credit(limit: Source, permits: Permits, taken: int) -> None:
    """Permits that were taken at that instant come back. Those of before a reset stay spent."""
    counters = limit.count()
    if counters.reset_at is None or taken > counters.reset_at:
        counters.given_back += permits
        limit.permitted.give_back(permits, limit.now(), taken)


def undo(taken: Taken, held: bool = True, look: bool = True, tasks: int = 0) -> None:
    """What a request took comes back, as it was not made, and the next moves up. A grant of before a reset stays spent."""
    failed: Exception | None = None
    for limit, permits, instant in taken:
        limit.count().cancelled += not limit.is_places  # a request for a place is one of the limit above
        try:
            credit(limit, permits, instant)
        except Exception as error:  # of a strategy: the other limits get theirs back all the same
            failed = error
    if held:
        kept(taken, tasks)
    if look:
        for limit, _, _ in taken:
            limit.look_if_alive()
    if failed is not None:
        raise failed
