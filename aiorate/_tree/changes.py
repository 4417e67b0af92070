"""Changes of a limiter at run time, which hold for the requests in line too."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from aiorate._rate import Rate, duration_to_ns, ns_to_seconds
from aiorate._schedulers.amounts import count_of
from aiorate._schedulers.interface import Scheduler
from aiorate._tree.supply import SAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._feedback import Feedback, Quota
    from aiorate._rate import Number
    from aiorate._schedulers.amounts import Permits
    from aiorate._spec import RateSpec
    from aiorate._tree.node import Node


_MOST_LEVELS = 64  # a decision may pass all of them, each by about ten nested calls, and Python allows a thousand
_KEY = "a key or a budget"
_NEWS_NS = 1_000_000_000  # a pause that grows by less is not reported again: responses of many requests come one after the other


def pause(node: Node, ns: int) -> None:
    """Let time stand still for ``ns``. Pauses merge by the later end."""
    node.look_now()
    node.provider.pausing(ns)  # which may refuse it
    node.pause(ns, partial(on_pause_end, node, node.now()))
    node.changed()


def on_pause_end(node: Node, held_at: int, held_for: int) -> None:
    """Time goes on after it has stood still for ``held_for`` ns at the instant ``held_at``."""
    watch = node.watch
    if watch is not None:
        watch.pause_ended = held_at
    node.permitted.shift(held_for)


def follow(node: Node, ns: int, before: bool) -> bool:
    """A store pauses all its processes for ``ns``; 0: it does not. ``before``: whether it did so far. Returns whether it does."""
    if ns:
        until = node.paused_until
        if until is not None and until > node.read() + ns:
            node.resume()  # a longer one, which another process has ended
        node.pause(ns, partial(on_pause_end, node, node.now()))
    elif before:
        node.resume()
    return ns > 0


def pause_longer(node: Node, ns: int, jitter: int) -> int:
    """As `pause`, but only if it ends later than a present pause, and then longer by a random part of ``jitter`` ns.

    Returns its length, or 0 if that is not worth an event: it ends no later, or hardly.
    """
    node.look_now()
    before, until = node.paused_until, node.read() + ns
    if ns <= 0 or (before is not None and until <= before):
        return 0
    if jitter:
        from random import randrange

        # Drawn once for responses that come together: the longest of many draws would be the same for every client.
        ns += randrange(jitter)
    pause(node, ns)
    return ns if before is None or until - before >= _NEWS_NS else 0


def resume(node: Node) -> None:
    """End a pause now."""
    node.look_now()
    node.resume()
    node.provider.resumed()
    node.changed()


def cap(node: Node, dimension: str | None, quota: Quota, paused: bool, in_flight: int) -> None:
    """Heed what a server said is left of a quota, of one dimension if the limit has several; see `ServerQuotas.heed`."""
    from aiorate._schedulers.server_quotas import heeding

    now, scheduler = node.look_now(), cast("Any", node.scheduler)
    if dimension is not None:
        scheduler.cap(dimension, quota, paused, now, node.held_for, in_flight)
    else:
        node.permitted = cast("Any", heeding(node.permitted, quota, paused, now, node.held_for, in_flight))
    node.changed()


def refund(node: Node, permits: int) -> None:
    """Take back the permits, of any grant, here and in every shared limit."""
    counters = node.count()
    node.scheduler.give_back(permits, node.look_now())
    counters.refunded += permits
    counters.given_back += min(permits, count_of(node.granted - counters.given_back))
    if node.above is not None and (up := node.permits_above(permits)):
        refund(node.above, count_of(up))
    node.changed()


def charge(node: Node, permits: int) -> None:
    """Take the permits after the fact, as a debt, here and in every shared limit."""
    node.scheduler.charge(permits, node.look_now())
    node.count().charged += permits
    if node.above is not None and (up := node.permits_above(permits)):
        charge(node.above, count_of(up))
    node.changed()


def set_rate(node: Node, rate: Rate | str | Number, member: int | None) -> None:
    """Change the rate, or that of the member with that index. Raises TypeError and ValueError for an index that is none."""
    scheduler: Scheduler = node.scheduler
    if member is not None:
        if isinstance(member, bool) or not isinstance(member, int):
            raise TypeError(f"set_rate(member) must be the index of a member, an int, not {type(member).__name__}.")
        if not scheduler.members:
            raise ValueError(f"set_rate(member={member}): this strategy has a single rate and no members. Leave member= out.")
        if not 0 <= member < len(scheduler.members):
            raise ValueError(f"set_rate(member={member}): the strategy has {len(scheduler.members)} members, counted from 0.")
        scheduler = scheduler.members[member]
    scheduler.set_rate(Rate._of(rate), node.look_now())
    node.altered = True
    _rate_changed(node)


def move_rate(node: Node, rate: Rate) -> None:
    """Change the rate to one that was found by watching a server, and that may be forgotten: a key that has one may be evicted."""
    node.scheduler.set_rate(rate, node.look_now())
    _rate_changed(node)


def apply(node: Node, spec: RateSpec) -> None:
    """Apply rate, burst ratio and verb."""
    now = node.look_now()
    node.scheduler.apply(spec.rate, spec.burst_ratio, now)
    if spec.verb == "restart":
        node.scheduler.restart(now)
    if spec.verb == "stop":
        node.stop(partial(on_pause_end, node, now))
    elif spec.verb != "configure":
        node.start()
        node.closed = False
    node.altered = True
    _rate_changed(node)


def observe(
    node: Node, feedback: Feedback, jitter: int, limit_of: Callable[[Feedback, Quota], tuple[Node, str | None] | None] | None = None
) -> None:
    """Heed a server's pause, made longer by a random part of ``jitter`` ns, and its quotas: of requests, or those that have a limit."""
    from aiorate._feedback import check_feedback

    check_feedback(feedback)
    before, paused = node.granted, feedback.pause is not None
    news = pause_longer(node, duration_to_ns(feedback.pause or 0, "observe()"), jitter)
    for quota in feedback.quotas:
        if quota.remaining is None and quota.used is None:
            continue
        limit = limit_of(feedback, quota) if limit_of is not None else (node, None) if quota.unit == "requests" else None
        if limit is not None:
            in_flight = 0
            if feedback.in_flight is not None:  # what is granted by now is in flight too
                node.look_now()
                in_flight = feedback.in_flight + count_of(node.granted - before)
            cap(*limit, quota, paused, in_flight)
    if news:
        from aiorate._events import Event

        node.tell(Event("paused", node.name, seconds=ns_to_seconds(news), source=feedback.source))


def _rate_changed(node: Node) -> None:
    """The scheduler has another rate: requests in line that can no longer be granted fail, and the others are timed again."""
    line = node.line
    node.count().unused = 0  # a part of a permit, measured by the old rate
    most = node.scheduler.max_permits
    if most is not None:
        for ticket, permits, _ in line:
            if node.exceeded(permits) is not None:
                ticket.set_result(ValueError(f"acquire({permits}) can no longer be granted: {most} is the most at once now."))
                line.leave(ticket, permits)
        node.check_below()
    node.changed()


def reset(node: Node) -> None:
    """Everything as new, except the requests in line."""
    node.look_now()
    parts = cast("list[Scheduler]", [node.scheduler])
    for part in parts:  # the list grows meanwhile
        if type(part).reset is Scheduler.reset:
            part.reset(0)  # raises, before anything changes
        parts += part.members
    node.start()
    node.resume()
    node.count().reset_at = node.now()
    node.offset -= 1  # so that what is granted from now on has a later instant than what was granted before
    node.scheduler.reset(node.now())
    node.permitted = node.scheduler
    watch = node.watch
    past = None
    if watch is not None:
        from aiorate._tree.watch import totals_of

        past = totals_of(node).past
    node.taken = node.meter.grabs = 0  # first: `Totals` are read at any time, and may be too low, but not too high
    node.count().clear()
    if watch is not None and past is not None:
        watch.past = past
    node.changed()


def share(node: Node, above: Node | None, permits_above: Callable[[Permits], Permits] = SAME) -> None:
    """From now on it belongs to a key or a budget, and every grant takes from the limit above too, if there is one.

    Raises ValueError if it does already, if requests wait here for which that limit was never asked, or unless both have the same scope.
    """
    if node.above is not None or node.scheduler._owner is _KEY:
        raise ValueError("it belongs to another key already: make one for each key.")
    if above is None:
        node.scheduler._owner = _KEY
        return
    if node.line.is_waited_in or node.returnable:
        raise ValueError("it is in use already: make one that is not.")
    top, levels = above, 2
    while top is not node and top.above is not None:
        top, levels = top.above, levels + 1
    if levels > _MOST_LEVELS:
        raise ValueError(f"it would be the limit of level {levels} in a row; {_MOST_LEVELS} are the most.")
    if top is node:
        raise ValueError("it is the limit that is shared, or one that this shares in turn: make one for each key.")
    node.scheduler._owner = _KEY
    node.share(above, permits_above)
