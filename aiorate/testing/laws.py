"""The laws that `aiorate.testing.check_scheduler` tries, each on histories that hypothesis invents and shortens.

Besides `aiorate.testing.histories`, nothing else in aiorate imports hypothesis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, given, settings

from aiorate.testing.histories import BACK, DAY, GIVING_BACK, History, Step, Trial, any_steps, same_future, steps
from aiorate.testing.receipts import giving_back_leaves_no_trace, giving_back_makes_nobody_sooner

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate.rate import Rate
    from aiorate.schedulers.interface import Scheduler

__all__ = ["LAWS", "run_law"]


def asking_changes_nothing(trial: Trial) -> None:
    """A question changes nothing, and neither does a refusal, at any instant."""
    asked = trial.begin()
    twin = asked.fork()
    for step in trial.sizes:
        permits = asked.permits(step.size)
        for now in (asked.now + step.gap[0], asked.now - DAY, asked.now):
            if asked.peek(permits, now) > now:
                assert not asked.take(permits, now=now), "take() grants what peek() refuses"
    same_future(asked, twin, trial.after)


def granted_on_time(trial: Trial) -> None:
    """A request is never granted before the instant named for it, and always at that instant or later."""
    past = trial.begin()
    for step in trial.sizes[:4]:
        permits = past.permits(step.size)
        at = past.due(permits)
        for now in (at, at + 1, at + abs(step.gap[0]) * DAY):
            assert past.fork().take(permits, now=now), f"due at {at} and still refused at {now}"
        if at > past.now:
            for now in (past.now - DAY, past.now - 1, past.now, (past.now + at) // 2, at - 1):
                assert not past.fork().take(permits, now=now), f"due at {at} and granted at {now}"


def more_is_never_sooner(trial: Trial) -> None:
    """More permits are never scheduled sooner than fewer."""
    past = trial.begin()
    sizes = sorted({past.permits(step.size) for step in trial.sizes} | {1, past.permits(0)})
    dues = [past.due(permits) for permits in sizes]
    assert dues == sorted(dues), f"{sizes} permits are due at {dues}"


def taking_makes_nobody_sooner(trial: Trial) -> None:
    """A take, at any instant, makes no later request sooner."""
    taken = trial.begin()
    twin = taken.fork()
    taken.run(trial.before, *GIVING_BACK, "set rate")
    for step in trial.sizes:
        permits, now = twin.permits(step.size), max(taken.now, twin.now) + abs(step.gap[0])
        assert taken.due(permits, now) >= twin.due(permits, now), f"{permits} permits are sooner at {now} because of a take"


def going_back_earns_nothing(trial: Trial) -> None:
    """A clock that goes back earns no credit: the same time does not count twice."""
    went = trial.begin()
    twin, there = went.fork(), went.now
    for step in trial.sizes:
        permits = went.permits(step.size)
        went.now = there - abs(step.gap[0]) * went.scheduler.rate.period_ns
        went.take(permits)
        went.now = there
        assert went.due(permits) >= twin.due(permits), f"{permits} permits are sooner at {there} after the clock went back"


def bound_holds(trial: Trial) -> None:
    """No window of any history holds more permits than bound() says, with permits given back in any order."""
    history = trial.fresh()
    for step in trial.before:
        history.run([step], "take late")
        history.check_bound()


def bound_holds_for_what_is_kept(trial: Trial) -> None:
    """Permits that come back by receipt, in any order, and are taken again at once do not exceed the bound."""
    history = trial.fresh().run(step._replace(does="take") for step in trial.sizes)
    for step in trial.before:
        history.run([step._replace(does=("swap first", "swap half")[step.size % 2])])
        history.check_bound()


def bound_holds_when_late(trial: Trial) -> None:
    """Requests that are booked from the instant at which they joined the line widen the bound's window by at most their lateness."""
    history = trial.fresh()
    if history.scheduler.books_since:
        for step in trial.before:
            history.run([step])
            history.check_bound()


def since_moves_no_grant(trial: Trial) -> None:
    """The time that a request has stood in line makes its own grant neither sooner nor later."""
    past = trial.begin()
    for step in trial.sizes:
        permits = past.permits(step.size)
        past.pass_time((0, "ns"), permits)
        at = past.peek(permits)
        for since in (past.now - DAY, past.now - past.catch_up, past.now, past.now + 1):
            fork = past.fork()
            granted = fork.take(permits, since)
            assert granted == (at <= past.now), f"due at {at}, but not with since={since}"
            assert granted or fork.answers[-1] == past.answers[-1], f"another instant is named with since={since}"
        past.pass_time(step.gap, permits)


def lateness_costs_no_rate(trial: Trial) -> None:
    """A request that is served late, but booked from the instant at which it joined the line, delays nobody."""
    late = trial.begin()
    if _books_since(late.scheduler):
        late.now = max(late.now, late.due(late.permits(0)))
        late.take(late.permits(0))
        prompt, joined = late.fork(), late.now
        for step in trial.sizes:
            permits = late.permits(step.size)
            prompt.now = max(prompt.now, prompt.due(permits))
            prompt.take(permits, joined)
            at = late.due(permits)
            assert at == max(prompt.now, late.now), f"due at {at}, and at {prompt.now} if all earlier requests are served on time"
            late.now = at + late.catch_up * abs(step.gap[0]) // 365
            late.take(permits, joined)


def _books_since(scheduler: Scheduler) -> bool:
    """Whether the scheduler honours `since`, and all its members do."""
    return scheduler.books_since and all(map(_books_since, scheduler.members))


def set_rate_forgives_nothing(trial: Trial) -> None:
    """The same rate again changes nothing, and a slower rate makes nobody sooner."""
    changed = trial.fresh().run(step for step in trial.before if step.gap not in BACK)
    changed.pass_time(trial.sizes[0].gap)
    same, slower = changed.fork(), changed.fork()
    rate = changed.scheduler.rate
    if same.set_rate(rate.permits):
        slower.set_rate(max(1, rate.permits // 2))
        most = slower.scheduler.max_permits
        for step in trial.sizes:
            permits = changed.permits(step.size)
            changed.now += abs(step.gap[0]) * rate.period_ns // (3 * rate.permits)
            at = changed.due(permits)
            assert same.due(permits, changed.now) == at, f"{permits} permits are no longer due at {at}, though the rate is the same"
            if most is None or permits <= most:
                assert slower.due(permits, changed.now) >= at, f"{permits} permits are sooner than {at}, though the rate is slower"


def shifting_changes_nothing(trial: Trial) -> None:
    """Adding a constant to all instants changes nothing else. A scheduler that follows the calendar learns it by `shift`."""
    here = trial.fresh()
    for constant in (1, DAY + 1, 1_000_000 * DAY + 7, -365 * DAY - 3):
        scheduler = trial.factory()
        scheduler.shift(-constant)
        there = History(scheduler, constant, trial.told)
        same_future(here.fork(), there, trial.before)


def stock_is_there(trial: Trial) -> None:
    """The permits that stock() counts are granted, then or later, in portions of any size. Counting them changes nothing."""
    past = trial.begin()
    twin = past.fork()
    ready = past.stock()
    assert ready >= 0
    for step in trial.sizes:
        permits = min(past.permits(step.size), ready)
        if permits:
            past.now += abs(step.gap[0])
            assert past.take(permits), f"{ready} permits were in stock, and {permits} of them are refused"
            ready -= permits
    counted = twin.fork()
    counted.stock()
    same_future(counted, twin, trial.after)


def charging_delays(trial: Trial) -> None:
    """A charge delays later requests as a take does where the take is due, and by no less where it is not. It makes nobody sooner."""
    past = trial.begin()
    for step in trial.sizes[:3]:
        past.pass_time(step.gap)
        permits = past.permits(step.size)
        charged, more, taken = past.fork(), past.fork(), past.fork()
        charged.charge(permits)
        more.charge(permits + 1)
        for ask in sorted({1, permits, past.permits(0)}):
            assert past.due(ask) <= charged.due(ask) <= more.due(ask), f"{ask} permits are sooner after a charge"
        if taken.take(permits):
            same_future(charged, taken, [step for step in trial.after if step.does in ("take", "take all")])


def rehearsing_foretells(trial: Trial) -> None:
    """A rehearsal answers what the scheduler would, and nothing that is taken from it is taken from the scheduler."""
    past = trial.begin()
    twin, real = past.fork(), past.fork()
    rehearsal = past.scheduler.rehearse()
    for step in trial.sizes:
        permits = real.permits(step.size)
        real.now += abs(step.gap[0])
        at, said = real.due(permits), max(rehearsal.peek(permits, real.now), real.now)
        assert said == at, f"due at {at}, and {said} in a rehearsal"
        real.now = at
        real.take(permits)
        rehearsal.take(permits, at)
    same_future(past, twin, trial.after)


def grabbing_takes_one_permit(trial: Trial) -> None:
    """A grab of the scheduler's meter does what a take of one permit does, or nothing."""
    grabbed = trial.begin()
    twin = grabbed.fork()
    for step in trial.sizes:
        grabbed.pass_time(step.gap)
        twin.pass_time(step.gap)
        assert grabbed.grab() == twin.take(1), "take() does not do what the meter does"
    same_future(grabbed, twin, [step for step in trial.after if step.does in ("take", "take all", "grab")])


def no_drift(trial: Trial) -> None:
    """Under load, a rate's permits take exactly its period, at the start and after a thousand million of them."""
    load = trial.fresh()
    rate, most = load.scheduler.rate, load.scheduler.max_permits
    for _ in range(8):  # until bursts and stores are used up
        _serve(load, 1_000 * rate.permits if most is None else load.permits(0))
    parts, periods = _parts(rate, most, [load.permits(step.size) for step in trial.sizes[:8]])
    for _ in range(2):
        for permits in parts:
            _serve(load, permits)
    for jump in (0, 0, 10**9, 0):
        if jump and most is None:
            _serve(load, (jump // rate.permits + 1) * rate.permits)
        first, *_ = [_serve(load, permits) for permits in parts]
        took = load.due(parts[0]) - first
        if periods:
            assert took == periods * rate.period_ns, f"{periods} periods of {rate.period_ns} ns took {took} ns"
        else:  # a period has too many requests: it is not slower here, and the bound says that it is not faster
            assert (took - 1) * rate.permits < sum(parts) * rate.period_ns, f"{sum(parts)} permits at {rate} took {took} ns"


def _parts(rate: Rate, most: int | None, sizes: list[int]) -> tuple[list[int], int]:
    """Requests that add up to whole periods, and the number of periods; 0: a period has too many requests."""
    if most is None:
        periods = -(-sum(sizes) // rate.permits)
        rest = periods * rate.permits - sum(sizes)
        return sizes + [rest] * (rest > 0), periods
    # Requests of one size that divides a window use it up exactly.
    size = max(n for n in range(1, min(most, 1_000) + 1) if rate.permits % n == 0 and n <= max(sizes))
    count = rate.permits // size
    return ([size] * count, 1) if count <= 1_000 else ([most] * 1_000, 0)


def _serve(load: History, permits: int) -> int:
    """Take permits as soon as they are due; returns that instant."""
    load.now = load.due(permits)
    assert load.take(permits), f"due at {load.now} and still refused"
    return load.now


# The most telling first, because only the first broken law is reported.
LAWS: tuple[Callable[[Trial], None], ...] = (
    asking_changes_nothing,
    granted_on_time,
    more_is_never_sooner,
    going_back_earns_nothing,
    taking_makes_nobody_sooner,
    giving_back_leaves_no_trace,
    bound_holds,
    bound_holds_for_what_is_kept,
    bound_holds_when_late,
    since_moves_no_grant,
    lateness_costs_no_rate,
    stock_is_there,
    charging_delays,
    set_rate_forgives_nothing,
    shifting_changes_nothing,
    rehearsing_foretells,
    grabbing_takes_one_permit,
    no_drift,
    giving_back_makes_nobody_sooner,
)
"""The laws in the order in which they are tried."""


def run_law(law: Callable[[Trial], None], factory: Callable[[], Scheduler], examples: int) -> None:
    """Try a law on ``examples`` histories. Raises AssertionError with the law and the shortest history that breaks it."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,  # the same histories in each run, because a check that fails now and then teaches nothing
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
    )
    @given(any_steps, steps)
    def trial(before: list[Step], after: list[Step]) -> None:
        told: list[str] = []
        try:
            law(Trial(factory, before, after, told))
        except Exception as error:
            what = str(error) if isinstance(error, AssertionError) else repr(error)
            history = "\n  ".join(told[-60:])
            raise AssertionError(f"{law.__name__}: {what}\nThe law: {law.__doc__}\nThe history:\n  {history}") from error

    trial()
