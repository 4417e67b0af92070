"""RedisLimiter: one limit for many processes. It is a Limiter whose time slots come from a store."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from aiorate.errors import kind_of
from aiorate.explained import explained
from aiorate.limiter import Limiter
from aiorate.rate import NO_BOUND, NS_PER_SECOND, Rate, duration_to_ns, ns_to_seconds
from aiorate.redis.demand import Demand
from aiorate.redis.immediate import AskOnce
from aiorate.redis.limits import calendar_of, rates_of
from aiorate.redis.options import check_name, horizon_of, lateness_of, share_of
from aiorate.redis.outage import Outage
from aiorate.redis.session import StoreSession
from aiorate.redis.slots import SlotLedger
from aiorate.redis.store import check_source
from aiorate.redis.windows import WindowLedger
from aiorate.schedulers.interface import check_permits
from aiorate.schedulers.quota_scheduler import QuotaScheduler
from aiorate.schedulers.slot_scheduler import SlotScheduler, check_memory
from aiorate.waiting.dispatcher import TURN
from aiorate.waiting.questions import max_permits, shares_on_demand

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any, Literal, Never

    from aiorate.events import Event
    from aiorate.rate import Duration, Number
    from aiorate.redis.ledger import Ledger
    from aiorate.redis.limits import OneLimit
    from aiorate.redis.place import Place
    from aiorate.spec import RateSpec
    from aiorate.waited import Waited
    from aiorate.waiting.clock import Clock

__all__ = ["RedisLimiter"]

_LOOP: Literal["loop"] = "loop"
_acquire = Limiter.acquire  # not by super(), which takes as long as a permit that is in hand


_OPTIONS = (
    *("burst", "lease", "horizon", "slack", "on_unavailable", "local_share", "grace", "max_waiting", "precise", "max_concurrency"),
    "scope",
)


class RedisLimiter(Limiter):
    """One limit for all processes that give the same name, through Redis or Valkey.

    ``client_or_url`` is a URL, or an asyncio client of redis-py or valkey-py, which is never closed here. A plain client only lends its
    settings to a connection that is opened here and does not count against its pool. ``rate`` is a rate, a
    ``TokenBucket("10/s", burst=20)``, a list of these that all hold, or a ``CalendarWindow("1000/day", "Europe/Berlin")`` alone.
    ``burst``, an int of 1 or more (default 1), or one for each, is for rates: a bucket has its own. The key in the store is
    ``aiorate:{name}``.

    The store assigns time slots by its own clock. Let R be the rate, b the burst and W any window in seconds: all processes together are
    granted at most ``b + R * (W + max(slack, lease, 0.5 / R))`` permits in it. If requests are for several permits, add the largest one
    for each process in which such a request gathers its slots. Slots begin when the store's answer arrives, so W also grows by as much
    as answers take longer to one process than to another. When the store loses its state, at most the slots booked ahead are granted a
    second time, and b once more where no process remembers.

    ``slack`` is how many seconds a slot may be used late, 0.001 or more: a busy event loop needs some. Where slots are rare it is half
    of the interval between two. ``horizon`` is how far ahead, in seconds, all processes together aim to book, which is what a process
    that dies wastes at most. ``lease`` is how many seconds ahead a process books the slots that it will use if use goes on as it does:
    callers then have a permit without waiting for the store, and a slot may be used as late as ``lease``. Without it, an `acquire` waits
    for an answer of the store at least, and `try_acquire` is an error. Only the store knows how long a wait is: `delay` is an estimate.

    A CalendarWindow is a quota that outlives the processes. Its windows are by the store's clock; its ``origin`` is not used. All processes
    together are granted at most n in a window, and none in its last ``slack`` seconds. A process takes an eighth of what is left at most,
    unless a request needs more, and what it does not use goes back at once, or after ``lease`` seconds. A `refund` brings permits of the
    present window back. If the store loses its state, nothing is granted for a second, in which the processes tell what they remember.

    When the store cannot be reached for longer than ``grace`` seconds, ``on_unavailable`` decides: ``"raise"`` `EngineUnavailable` for
    all requests; ``"wait"`` until it is back; ``"local"``, which grants ``local_share`` (of 1) of the rate in this process, so the shares
    of all processes should add up to 1; ``"open"``, no limit at all. Slots booked before are granted meanwhile. A store that refuses (a
    wrong password, a missing permission, a key of another type) is `EngineUnavailable` under every policy.

    `pause`, `observe` and `resume` are for all processes: those in which a request waits notice within a second, and slots booked before
    are granted first. A quota from a response is kept by the process that received it. `set_rate` is for this process, and a `refund`
    of slots brings nothing back: they have delayed others already.

    ``scope="process"`` serves any number of event loops, trio's too, and synchronous code in threads, through one connection in one
    thread. A child process after a fork has its own. It takes a URL, or a plain client that lends its settings.

    Every duration is a number of seconds or a timedelta. The other arguments are those of `Limiter`. For asyncio and uvloop, or any with
    ``scope="process"``. Raises TypeError and ValueError for wrong arguments.
    """

    __slots__ = ("_session",)

    @explained
    def __init__(
        self,
        client_or_url: Any,
        name: str,
        rate: OneLimit | Sequence[OneLimit],
        *,
        burst: int | Sequence[int] | None = None,
        lease: Duration = 0.0,
        horizon: Duration = 0.02,
        slack: Duration = 0.005,
        on_unavailable: Literal["raise", "wait", "local", "open"] = "raise",
        local_share: Number | None = None,
        grace: Duration = 1.0,
        max_waiting: int | None = None,
        precise: bool = False,
        clock: Clock | None = None,
        max_concurrency: int | None = None,
        on_event: Callable[[Event], object] | None = None,
        on_wait: Callable[[Waited], object] | None = None,
        scope: Literal["loop", "process"] = _LOOP,
        **unknown: Never,
    ) -> None:
        if unknown:
            from aiorate.wrong_arguments import unknown_options

            raise unknown_options("RedisLimiter()", unknown, _OPTIONS)
        if scope is not _LOOP:
            self._check_scope(scope)
        check_source(client_or_url, alone=scope != _LOOP)
        check_name("RedisLimiter", name)
        calendar = calendar_of(rate, burst)
        rates, bursts = rates_of(rate, burst) if calendar is None else ([calendar.rate], [1])
        for each, most in zip(rates, bursts, strict=True):
            check_memory("RedisLimiter(rate, burst)", each, most)
        at_most, leased = lateness_of("RedisLimiter", slack, lease)
        late = max(at_most, leased)
        ahead = horizon_of("RedisLimiter", horizon, 0.02)
        share = share_of("RedisLimiter", on_unavailable, local_share)
        outage = Outage(
            on_unavailable,
            duration_to_ns(grace, "RedisLimiter(grace)"),
            [Rate.exactly(rate.permits * share.numerator, rate.period_ns * share.denominator) for rate in rates],
            [max(1, burst * share.numerator // share.denominator) for burst in bursts],
            share,
        )
        ledger: Ledger
        if calendar is None:
            slots = SlotScheduler(rates, bursts, late)
            ledger = SlotLedger(slots, Demand(slots, leased, ahead, at_most))
        else:
            ledger = WindowLedger(QuotaScheduler(calendar), leased, at_most)
        super().__init__(
            ledger.scheduler,
            catch_up=Fraction(late, NS_PER_SECOND),
            max_waiting=max_waiting,
            precise=precise,
            clock=clock,
            name=name,
            max_concurrency=max_concurrency,
            on_event=on_event,
            on_wait=on_wait,
            scope=scope,
        )
        place: Place | None = None
        if scope != _LOOP:
            from aiorate.redis.process_place import ProcessPlace

            place = ProcessPlace(client_or_url, self.dispatcher)
        self._session = StoreSession(client_or_url, f"aiorate:{name}", self.dispatcher, ledger, outage, place)

    def _check_scope(self, scope: str) -> None:
        if not isinstance(scope, str):
            raise TypeError(f"RedisLimiter(scope) must be 'loop' or 'process', not {kind_of(scope)}.")
        if scope not in (_LOOP, "process"):
            raise ValueError(f"RedisLimiter(scope) must be 'loop' or 'process'; {scope!r} was given. Its limit is that of all processes.")

    @property
    def key(self) -> str:
        """The key in the store: text, written again by every call, and gone soon after the last."""
        return self._session.key

    def acquire(  # pyright: ignore[reportIncompatibleMethodOverride]  # it returns a coroutine: one await less
        self, permits: int = 1, *, max_wait: Duration | None = None
    ) -> Coroutine[Any, Any, float]:
        """As `Limiter.acquire`. With ``max_wait=0`` the store is asked once, and grants what is due now, or within ``slack`` seconds.

        The same holds for a ``max_wait`` shorter than an answer of the store takes: nothing could ever be granted within it.
        """
        if max_wait is None:
            return _acquire(self, permits)
        return self._acquire_within(permits, max_wait)

    async def _acquire_within(self, permits: int, max_wait: Duration) -> float:
        limit = duration_to_ns(max_wait, "acquire(max_wait)", NO_BOUND)
        dispatcher, session = self._dispatcher, self._session
        if (limit and limit >= session.answer_ns) or shares_on_demand(dispatcher):
            return await super().acquire(permits, max_wait=max_wait)
        check_permits("acquire()", permits, max_permits(dispatcher))
        once = AskOnce(dispatcher, session, limit, "acquire")
        ticket, _, asked = dispatcher.run(once.decide, permits, None, self._max_waiting)
        if ticket is None:
            return 0.0
        if ticket is TURN and dispatcher.loop is not None:  # refused in a starved loop
            await dispatcher.loop.turn()
            return await self._acquire_within(permits, max_wait)
        try:
            return ns_to_seconds((await dispatcher.wait(ticket, permits, asked))[0])
        finally:
            once.forget()

    def acquire_blocking(self, permits: int = 1, *, max_wait: Duration | None = None, timeout: None = None) -> float:
        """As `Limiter.acquire_blocking`. A short ``max_wait`` is as in `acquire`: with 0, the store is asked once."""
        dispatcher, session = self._dispatcher, self._session
        if max_wait is None or timeout is not None or dispatcher.section is None or shares_on_demand(dispatcher):
            return super().acquire_blocking(permits, max_wait=max_wait, timeout=timeout)
        limit = duration_to_ns(max_wait, "acquire_blocking(max_wait)", NO_BOUND)
        if limit and limit >= session.answer_ns:
            return super().acquire_blocking(permits, max_wait=max_wait)
        check_permits("acquire_blocking()", permits, max_permits(dispatcher))
        from aiorate.waiting.process.blocking import wait_blocking

        once = AskOnce(dispatcher, session, limit, "acquire_blocking")
        try:
            return ns_to_seconds(wait_blocking(dispatcher, permits, None, self._max_waiting, decide=once.decide)[0])
        finally:
            once.forget()

    def try_acquire(self, permits: int = 1) -> bool:
        """Take the permits if their slots are in hand and due, and nobody is in line; never waits, not even for the store.

        Needs a ``lease``: then a refusal has slots booked for the next try. Raises RuntimeError without one: it would always refuse.
        """
        if self._session.on_demand:
            raise RuntimeError(
                "try_acquire(): without a lease this process holds no permits of the store, and every call would be refused. Either"
                " await acquire(max_wait=0), which asks the store once and raises WaitTooLong if nothing is due, or make the limiter"
                " with a lease, such as RedisLimiter(..., lease=0.05), and permits are booked ahead."
            )
        return super().try_acquire(permits)

    def resume(self) -> None:
        """End a pause, for all processes. A key whose value has become unreadable starts again as new."""
        super().resume()

    def reset(self) -> None:
        """Raises RuntimeError: other processes share the limit and remember it. Use another name."""
        self.dispatcher.strategy.reset(0)

    def apply(self, spec: RateSpec | str) -> None:
        super().apply(spec)
        if not self.dispatcher.closed:
            self._session.reopen()

    async def aclose(self) -> None:
        """Fail the requests in line with `LimiterClosed`, and return slots to the store unless it has assigned later ones since.

        An answer that is on its way is awaited, for half a second at most: what comes with it goes back too.

        Once the last limiter of the client or URL is closed, no task, no timer, no thread and no connection that was opened here is left.
        Synchronous code writes ``asyncio.run(limiter.aclose())`` for one with ``scope="process"``.
        """
        await super().aclose()
        await self._session.aclose()
