"""Changes of a limiter at run time, which hold for the requests in line too."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiorate.rate import ns_to_seconds
from aiorate.schedulers.capped import Capped
from aiorate.schedulers.interface import Scheduler
from aiorate.waiting.waiters import NOBODY

if TYPE_CHECKING:
    from aiorate.feedback import Feedback
    from aiorate.rate import Number, Rate
    from aiorate.spec import RateSpec
    from aiorate.waiting.dispatcher import Dispatcher
    from aiorate.waiting.gate import Gate
    from aiorate.waiting.process.section import Section

__all__ = [
    "apply",
    "cap",
    "charge",
    "dismiss",
    "finish",
    "observe",
    "on_pause_end",
    "pause",
    "pause_longer",
    "refund",
    "reset",
    "resume",
    "set_rate",
    "share",
    "shut",
    "tell_of_pause",
]

_MOST_LEVELS = 64  # a decision may pass all of them, each by about ten nested calls, and Python allows a thousand
_KEY = "a key or a budget"
_NEWS_NS = 1_000_000_000  # a pause that grows by less is not reported again: responses of many requests come one after the other


def pause(dispatcher: Dispatcher, ns: int) -> None:
    """Let time stand still for ``ns``. Pauses merge by the later end."""
    dispatcher.look()
    dispatcher.watcher.pausing(ns)  # which may refuse it
    dispatcher.timeline.pause(ns, partial(on_pause_end, dispatcher, dispatcher.timeline.now()))
    dispatcher.changed()


def on_pause_end(dispatcher: Dispatcher, held_at: int, held_for: int) -> None:
    """Time goes on after it has stood still for ``held_for`` ns at the instant ``held_at``."""
    watch = dispatcher.extras.watch
    if watch is not None:
        watch.pause_ended = held_at, held_at + dispatcher.timeline.offset
    dispatcher.scheduler.shift(held_for)


def pause_longer(dispatcher: Dispatcher, ns: int, jitter: int) -> int:
    """As `pause`, but only if it ends later than a present pause, and then longer by a random part of ``jitter`` ns.

    Returns its length, or 0 if that is not worth an event: it ends no later, or hardly.
    """
    dispatcher.look()
    timeline = dispatcher.timeline
    before, until = timeline.paused_until, timeline.read() + ns
    if ns <= 0 or (before is not None and until <= before):
        return 0
    if jitter:
        from random import randrange

        # Drawn once for responses that come together: the longest of many draws would be the same for every client.
        ns += randrange(jitter)
    pause(dispatcher, ns)
    return ns if before is None or until - before >= _NEWS_NS else 0


def resume(dispatcher: Dispatcher) -> None:
    """End a pause now."""
    dispatcher.look()
    dispatcher.timeline.resume()
    dispatcher.watcher.resumed()
    dispatcher.changed()


def cap(dispatcher: Dispatcher, name: str, left: int, size: int, ns: int, error: int) -> None:
    """Heed what a server said is left of a quota; see `Capped.heed`. ``ns`` runs from now, during a pause too."""
    now, scheduler = dispatcher.look(), dispatcher.scheduler
    capped = scheduler if isinstance(scheduler, Capped) else Capped(scheduler)
    if capped.heed(name, left, size, ns, now, now + dispatcher.timeline.held_for, error):
        dispatcher.scheduler = capped
        dispatcher.changed()


def refund(dispatcher: Dispatcher, permits: int) -> None:
    """Take back the permits, of any grant, here and in every shared limit."""
    counters = dispatcher.counters
    dispatcher.scheduler.give_back(permits, dispatcher.look())
    counters.refunded += permits
    counters.given_back += min(permits, dispatcher.granted - counters.given_back)
    if dispatcher.gate is not None:
        refund(dispatcher.gate.shared, permits)
    dispatcher.changed()


def charge(dispatcher: Dispatcher, permits: int) -> None:
    """Take the permits after the fact, as a debt, here and in every shared limit."""
    dispatcher.scheduler.charge(permits, dispatcher.look())
    dispatcher.counters.charged += permits
    if dispatcher.gate is not None:
        charge(dispatcher.gate.shared, permits)
    dispatcher.changed()


def set_rate(dispatcher: Dispatcher, rate: Rate | str | Number, member: int | None) -> None:
    """Change the rate, or that of the member with that index. Raises TypeError and ValueError for an index that is none."""
    scheduler = dispatcher.scheduler
    if member is not None:
        if isinstance(member, bool) or not isinstance(member, int):
            raise TypeError(f"set_rate(member) must be the index of a member, an int, not {type(member).__name__}.")
        if not scheduler.members:
            raise ValueError(f"set_rate(member={member}): this strategy has a single rate and no members. Leave member= out.")
        if not 0 <= member < len(scheduler.members):
            raise ValueError(f"set_rate(member={member}): the strategy has {len(scheduler.members)} members, counted from 0.")
        scheduler = scheduler.members[member]
    scheduler.set_rate(scheduler.read_rate(rate), dispatcher.look())
    dispatcher.counters.altered = True
    _rate_changed(dispatcher)


def move_rate(dispatcher: Dispatcher, rate: Rate) -> None:
    """Change the rate to one that was found by watching a server, and that may be forgotten: a key that has one may be evicted."""
    dispatcher.scheduler.set_rate(rate, dispatcher.look())
    _rate_changed(dispatcher)


def apply(dispatcher: Dispatcher, spec: RateSpec) -> None:
    """Apply rate, burst ratio and verb."""
    now = dispatcher.look()
    dispatcher.scheduler.apply(spec.rate, spec.burst_ratio, now)
    if spec.verb == "restart":
        dispatcher.scheduler.restart(now)
    if spec.verb == "stop":
        dispatcher.timeline.stop(partial(on_pause_end, dispatcher, now))
    elif spec.verb != "configure":
        dispatcher.timeline.start()
        dispatcher.closed = False
    dispatcher.counters.altered = True
    _rate_changed(dispatcher)


def observe(dispatcher: Dispatcher, feedback: Feedback, jitter: int) -> None:
    """Heed a server's pause, made longer by a random part of ``jitter`` ns, and its quotas of requests."""
    from aiorate.feedback import check_feedback

    ns, told = check_feedback("observe()", feedback)
    news = pause_longer(dispatcher, ns, jitter)
    for quota in told:
        if quota.unit == "requests":
            cap(dispatcher, quota.name, quota.left, quota.size, quota.ns, quota.error)
    tell_of_pause(dispatcher, news, feedback)


def tell_of_pause(dispatcher: Dispatcher, ns: int, feedback: Feedback) -> None:
    """Tell of a pause of ``ns`` that a server asked for; 0 is not worth an event."""
    if ns:
        from aiorate.events import Event

        notices = dispatcher.notices
        notices.tell(Event("paused", notices.name, seconds=ns_to_seconds(ns), source=feedback.source), dispatcher.loop)


def _rate_changed(dispatcher: Dispatcher) -> None:
    """The scheduler has another rate: requests in line that can no longer be granted fail, and the others are timed again."""
    line = dispatcher.line
    dispatcher.counters.unused = 0  # a part of a permit, measured by the old rate
    most = dispatcher.scheduler.max_permits
    if most is not None:
        for ticket, permits, _ in line:
            if permits > most:
                ticket.set_result(ValueError(f"acquire({permits}) can no longer be granted: {most} is the most at once now."))
                line.leave(ticket, permits)
    dispatcher.changed()


def reset(dispatcher: Dispatcher) -> None:
    """Everything as new, except the requests in line."""
    timeline, parts = dispatcher.timeline, [dispatcher.strategy]
    for part in parts:  # the list grows meanwhile
        if type(part).reset is Scheduler.reset:
            part.reset(0)  # raises, before anything changes
        parts += part.members
    timeline.start()
    timeline.resume()
    dispatcher.scheduler.reset(timeline.now())
    watch = dispatcher.extras.watch
    past = None if watch is None else watch.counted(dispatcher)
    dispatcher.taken = dispatcher.meter.grabs = 0  # first: `Totals` are read at any time, and may be too low, but not too high
    dispatcher.counters.clear()
    dispatcher.notices.forget()
    if watch is not None and past is not None:
        watch.past = past
    dispatcher.counters.since = timeline.now()
    dispatcher.changed()


def shut(dispatcher: Dispatcher, error: BaseException) -> None:
    """Fail every request in line, and grant nothing from now on."""
    dispatcher.look()
    dispatcher.closed = True
    dispatcher.fail(error)
    dispatcher.serve()


async def finish(dispatcher: Dispatcher) -> None:
    """After `shut`: return once no task and no timer is left."""
    if dispatcher.waiters is not NOBODY:
        await dispatcher.waiters.driver.aclose()


def share(dispatcher: Dispatcher, gate: Gate | None, section: Section | None = None) -> None:
    """From now on it belongs to a key or a budget, and every grant takes from the shared limit behind the gate too, if there is one.

    Raises ValueError if it does already, if requests wait here for which the shared limit was never asked, or unless all decide in
    that critical section (None: in one event loop).
    """
    if dispatcher.section is not section or (gate is not None and gate.shared.section is not section):
        raise ValueError(
            "its scope is the process, and it cannot be one of several limits. Make one with scope='loop'."
            if section is None
            else "its scope is one event loop. Make one with scope='process'."
        )
    if dispatcher.gate is not None or dispatcher.strategy.owner is _KEY:
        raise ValueError("it belongs to another key already: make one for each key.")
    if gate is None:
        dispatcher.strategy.owner = _KEY
        return
    if dispatcher.waiters.head is not None or dispatcher.counters.returnable:
        raise ValueError("it is in use already: make one that is not.")
    shared, levels = gate.shared, 2
    while shared is not dispatcher and shared.gate is not None:
        shared, levels = shared.gate.shared, levels + 1
    if levels > _MOST_LEVELS:
        raise ValueError(f"it would be the limit of level {levels} in a row; {_MOST_LEVELS} are the most.")
    if shared is dispatcher:
        raise ValueError("it is the limit that is shared, or one that this shares in turn: make one for each key.")
    dispatcher.strategy.owner = _KEY
    dispatcher.gate = gate
    dispatcher.watcher.shared()
    dispatcher.open_meter()


def dismiss(dispatcher: Dispatcher) -> None:
    """Part with the driver, which refers to its dispatcher, so that both are freed at once. The next request that waits gets another."""
    dispatcher.watcher.dismissed()
    if dispatcher.waiters is not NOBODY:
        dispatcher.waiters.retire()
        dispatcher.waiters = NOBODY
