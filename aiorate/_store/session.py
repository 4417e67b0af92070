"""One limit's talk with a server: when to ask, and what becomes of requests in an outage. `StoreClient` sends the questions.

The wall clock of this machine decides nothing: the store says what time it is.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from aiorate._errors import EngineUnavailable
from aiorate._events import Event
from aiorate._loops.table import running_loop
from aiorate._rate import NS_PER_SECOND, duration_to_ns, exact, ns_to_seconds
from aiorate._schedulers.amounts import count_of
from aiorate._store.client import client_of
from aiorate._store.options import check_name, check_source
from aiorate._store.script import FORM, MOST_RUNS, Refusal, pack, read_answer
from aiorate._store.slots import MS, US
from aiorate._store.talk import FLUSH_NS, Talk
from aiorate._store.twin import Local
from aiorate._tree.refusals import too_long

if TYPE_CHECKING:
    from aiorate._loops.loop import Ticket
    from aiorate._rate import Duration, Number
    from aiorate._schedulers.amounts import Permits
    from aiorate._store.client import Asked, StoreClient
    from aiorate._store.pool import Pool
    from aiorate._store.script import Answer, Unreachable
    from aiorate._store.talk import Runs
    from aiorate._tree.limit import Limit


KEY = "aiorate:"  # what keys in the store begin with
_POLICIES = ("raise", "wait", "local", "open")
_INTEREST_NS = NS_PER_SECOND  # how long a lost store is asked after somebody last wanted something
_FRESH_NS = NS_PER_SECOND  # how long requests that ask once rely on the latest answer
_ONCE_NS = NS_PER_SECOND * 9 // 10  # how long they wait
_OVER = 1 << 189  # when an outage ends, while it goes on
_SINCE = 1 << 190  # their `since`: later than any instant
_LONGEST_ANSWER_NS = NS_PER_SECOND  # a slower round trip counts as this
_OPEN = Fraction(10**30)  # what "open" has of the limits: no amount takes any time
_LATEST_UNIX_NS = 10**19  # the year 2286


class StoreSession(Talk):
    """Between a limit and the client that asks the store. Slots are asked for once half of those that came last are gone.

    In an outage the policy decides after the grace. A request that may wait for less than an answer takes asks once: it stands in line for
    one answer, which grants or refuses it.
    """

    def __init__(
        self, call: str, kind: str, source: object, name: object, scope: object, policy: str, share: Number | None, **durations: Duration
    ) -> None:
        """Check what `RedisLimiter`, or whatever is called, was given. Raises TypeError and ValueError."""
        check_source(source, alone=scope == "process")
        check_name(call, name)
        self._source, self._kind, self._policy, self._key = source, kind, policy, f"{KEY}{name}"
        horizon, lease, slack, self._grace = [duration_to_ns(each, f"{call}({of})") for of, each in durations.items()]
        self._durations = horizon, lease if kind == "limiter" else 0, slack  # of reservations, nothing is taken ahead
        self.late: int = max(slack, lease)  # how late a slot may be used that was taken ahead
        if self.late < MS:
            raise ValueError(f"{call}(slack={durations['slack']!r}) must be at least 0.001 seconds: event loops are late.")
        if policy not in _POLICIES:
            raise ValueError(f"{call}(on_unavailable) must be one of {', '.join(_POLICIES)}, not {policy!r}.")
        if (policy == "local") is (share is None):
            raise ValueError(f"{call}(): on_unavailable='local' needs local_share, its part of the rate, and no other policy has it.")
        self._share: Fraction = Fraction(0) if share is None else Fraction(*exact(share, f"{call}(local_share)"))
        if share is not None and not 0 < self._share <= 1:
            raise ValueError(f"{call}(local_share={share!r}) must be more than 0 and at most 1.")

    def begin(self, node: Limit, pool: Pool) -> None:
        """Provide for that limit from now on."""
        self.client: StoreClient | None = None  # None: nothing was asked yet in this event loop
        self._told: str = ""  # the value of the key when the store last answered, ...
        self._told_at: int = 0  # ... and the reading then
        # What the store's clock is ahead of readings: at first the machine's, as good a guess as any.
        self._clock: int = 0 if pool.calendar is None else pool.calendar._origin
        self._came: int = 0  # how many slots came last
        # The reading at the first unanswered call, and what failed last. Once that has lasted for longer than the grace, it is degraded.
        self._lost: tuple[int, Unreachable] | None = None
        self._local: Local | None = None  # the store meanwhile, with the policies "local" and "open"
        self._asked_at: int = 0  # the reading when the client was last told to ask
        self._asked: list[Ticket] = []  # the requests of the question under way, if they ask once
        super().__init__(node, pool, *self._durations)

    # What the pool and the node tell.

    def wanted(self, now: int) -> bool:
        """Returns whether to wait for the store, which is asked. Raises EngineUnavailable."""
        pool, node, local = self._pool, self._node, self._local
        here = pool.outage not in ("", "wait")  # whether the policy answers at once
        asks = (here or not self._enough(now) or bool(self._once(lacking=True))) and self._tell()
        if here and local is not None:
            runs, within = self._wants() if node.held_at is None else ([], -1.0)
            if runs:
                sent, asked = self._ask_for(runs, within, 0.0, self._clock)
                self._take_back(sent, nothing=True)  # of what the store is yet to hear
                answer = local.ask(asked, now)  # at this instant: what is due at once is due in this decision
                self._book(answer, sent._replace(parts=local.parts), now)
                self._refuse(answer)
        elif here and self._lost is not None and pool.refused and pool.find(pool.refused)[1] is None:
            raise self._error(f"the store does not answer, and is asked again: {self._lost[1]}", self._lost[1])
        return asks and not here

    @property
    def on_demand(self) -> bool:
        return not (self._lease and self._open)

    def moved(self) -> None:
        """Another event loop is used, which may have asked already."""
        if self.client is not None and not self.client.here:
            self._forget()

    def forked(self) -> None:
        super().forked()
        self.client = None

    def _unanswered(self, nothing: bool = False) -> None:
        """The question under way, if any, has no answer."""
        sent, self._sent = self._sent, None
        if sent is not None:
            self._take_back(sent, nothing)

    def _forget(self) -> None:
        self._no_timer()
        self._unanswered()
        self.client = None
        self._pool.unanswered()

    # Asking.

    @property
    def _open(self) -> bool:
        """Whether the store can be asked from here: not outside a loop."""
        return not self._node.closed and (self._node.tree.threads or running_loop() is not None)

    def _tell(self, gone: int = 0) -> bool:
        """Have the client of this loop ask. Returns whether there is one."""
        if not self._open:
            return False
        self._asked_at = self._node.tree.now()
        self.moved()
        if self.client is None:
            self.client = client_of(self._source, self._key, self._node.tree.threads)
            self._node.tree.add(self._node)
        self.client.wake(self)
        return True

    def _enough(self, now: int) -> bool:
        """Whether more than half of the slots that came last are left, without those that the first in line gathers, and some last until
        others could be here."""
        pool = self._pool
        if not pool.count or not pool.unit:
            return bool(pool.count) and not self._uncovered(now)
        return 2 * pool.usable(count_of(self._first() or 1), now) > self._came and pool.last_due() > now + pool.answer_ns

    def _wants(self) -> tuple[Runs, float]:
        """The runs to ask for, and ``within`` of `Talk._ask_for`. Requests that ask once come first."""
        pool, self._asked = self._pool, self._once(lacking=True)[:MOST_RUNS]
        if self._asked:
            return [pool.slots_of(pool.need(ticket.wanted)) for ticket in self._asked], self._slack / US
        return self._lack(), -1.0

    def question(self) -> Asked | None:
        """What to ask now; None: nothing."""
        node, reading, closed = self._node, self._node.tree.now(), self._node.closed
        if closed and self._lost is not None:
            return None
        runs, within = ([], -1.0) if closed or node.held_at is not None else self._wants()
        gone = self._pool.give_up(self._tail, node.now()) if closed else 0
        probes = self.state == "degraded" and reading - self._asked_at < _INTEREST_NS
        if not (self.busy or runs or gone or probes or (node.held_at is not None and node.first() is not None)):
            if self.state == "shared":
                self._lost = None
            elif self._local is None or not self._lease:  # requests wait until it is known whether the store answers
                self._pool.outage = ""
            self._pool.asked = False
            if (first := self._first()) and self._pool.lacks(first, node.now()):
                node.changed()  # nothing is on its way that would wake it
            return None
        age, gone = (reading - self._told_at) / US, 0 if any(self._pool.corrections) else gone
        unix = min(max(self._clock + reading, 3 * self._pool.rate.period_ns), _LATEST_UNIX_NS)
        self._sent, asked = self._ask_for(runs, within, age, unix, gone)
        return self._key.encode(), [pack(asked), self._told or f"{FORM} {self._kind}"]  # whatever encoding the client has

    # What the client hears.

    def answered(self, reply: object) -> None:
        """Hear the script's reply, or a `Refusal`. Raises `Unreachable` if it makes no sense."""
        node, pool, sent, received = self._node, self._pool, self._sent, self._node.tree.now()
        if sent is None:  # its question was forgotten
            return
        if isinstance(reply, Refusal):  # requests in line fail, whatever the policy
            self._restored()
            self.failed(self._error(f"the store refuses: {reply}", reply))
            return
        windows = 0 if pool.calendar is None else 1
        answer = read_answer(reply, len(sent.parts) - windows, windows, len(sent.runs))
        took = max(min(received - sent.at, _LONGEST_ANSWER_NS), 1)
        pool.answer_ns = (3 * pool.answer_ns + took) // 4 if self._told else took
        self._clock = int(answer.numbers[1 if answer.value else 0]) * US - (sent.at + received) // 2
        self._restored()
        if not answer.value:  # our guess of the time was wrong: the question did nothing
            self._unanswered(nothing=True)
            self._tell()
            return
        self._told, self._told_at, self._sent = answer.value, received, None
        self._book(answer, sent, received - node.offset)
        if answer.runs:
            self._came = sum([n for n, _, _ in answer.runs])
            pool.asks_below = self._came // 2 if self._lease else -1
        if self._news:
            self._tell()
        if not node.closed:  # else the next question returns these slots
            self._follow(answer.numbers[2])
            self._refuse(answer)
            node.changed()
            if not pool.unit and pool.count:
                self._later(FLUSH_NS)

    def unreachable(self, failure: Unreachable, silent: float) -> bool:
        """No answer, nor any for ``silent`` seconds before the question. Returns whether to ask again."""
        sent = self._sent
        if sent is not None:
            self._unanswered()
            self._lost = sent.at - round(silent * NS_PER_SECOND) if self._lost is None else self._lost[0], failure
            self._go_by_policy()
            self._refuse(None)
        return not self._node.closed

    def _go_by_policy(self) -> None:
        assert self._lost is not None  # since the first call without an answer
        node, pool, policy, (since, failure) = self._node, self._pool, self._policy, self._lost
        if self.state == "shared":
            left = since + self._grace - node.tree.now()
            if left > 0:
                self._later(left)
                return
            self.state = "degraded"
            node.tell(Event("degraded", node.name, source=f"{str(failure).rstrip('.')}; on_unavailable={policy!r}"))
        pool.unanswered()  # to hear whether slots are still wanted
        if pool.outage:
            return
        pool.outage = policy
        if policy in ("local", "open") and self._local is None:
            self._local = Local(pool.parts, self._share or _OPEN)
            pool.alone = range(node.now(), _OVER)
            for part in pool.parts:
                part.forget()
        node.changed()

    def _restored(self) -> None:
        """The store can be reached. Charge what was granted here in an outage, at most a share of the burst."""
        if self._lost is None:
            return
        node, pool, local, length = self._node, self._pool, self._local, self._node.tree.now() - self._lost[0]
        if self.state == "degraded":
            node.tell(Event("restored", node.name, seconds=ns_to_seconds(length)))
        self._lost, self.state, self._local, pool.outage = None, "shared", None, ""
        if local is not None:
            pool.clear()
            pool.alone = range(pool.alone.start, node.now() + 1)
            most = [int(part.burst * self._share) if part.burst > 1 else 0 for part in pool.parts]
            pool.correct([*map(min, local.spent, most)], node.now() + 1)

    def _error(self, text: str, failure: Unreachable | Refusal) -> EngineUnavailable:
        error = EngineUnavailable(f"{'reserve()' if self._kind.startswith('budget') else 'acquire()'}: {text}")
        error.__cause__ = failure.__cause__
        return error

    def failed(self, error: BaseException) -> None:
        """The store refuses, or the client's task or this limit's clock failed: nobody may hang."""
        self._unanswered()
        self._pool.unanswered()
        if not self._node.closed:
            self._node.fail(error)
            self._node.changed()

    # Requests that ask once.

    def once(self, permits: Permits, most_ns: int) -> tuple[int, int] | None:
        """Refuse it if others wait for longer than an answer takes, the next slot is known to be late, or the store is lost."""
        node, pool, now = self._node, self._pool, self._node.now()
        if most_ns >= max(pool.answer_ns, 1) or (node.above is not None and node.above.on_demand):
            return None
        if self._told_at < node.tree.now() - _FRESH_NS:  # permits may have come back since
            for part in pool.parts:
                part.forget()
        wait = node.wait_for(permits, now)
        lost = not self._open or pool.outage == "wait" or node.held_at is not None or (self._lost is not None and self.state == "shared")
        most = _ONCE_NS if pool.lacks(permits, now) else self._slack
        if node.line.is_waited_in and not self._once():  # they may wait for the same answer, or for permits
            most = pool.answer_ns
        if lost or wait is None or wait > most:
            node.wait_counters.refused += 1
            raise too_long(permits, most_ns, wait)
        return _ONCE_NS, _SINCE

    def _once(self, lacking: bool = False) -> list[Ticket]:
        """Those in line that ask once, if nobody waits before them; ``lacking``: those without enough slots."""
        first = self._node.line.first_request()
        if first is None or first.since < _SINCE:
            return []
        return [each for each in (self._uncovered(self._node.now()) if lacking else self._node.line) if each.since >= _SINCE]

    def _refuse(self, answer: Answer | None) -> None:
        """Refuse those that asked once and got nothing; without an answer, all of them."""
        over = self._once() if answer is None else [ticket for ticket, run in zip(self._asked, answer.runs, strict=False) if not run[0]]
        if over:
            self._node.expire(over)

    # Later.

    def _on_timer(self) -> None:
        self._timer = None
        if self._lost is not None and self.state == "shared":
            self._go_by_policy()
        pool, node = self._pool, self._node
        waits = node.first() is not None
        if not waits and not pool.unit:  # those for whom they were have left
            pool.give_up(None, node.now())
        if waits and node.paused:
            self._tell()
        elif pool.asked or (pool.count and not pool.unit):  # the next question tells of them
            self._later(FLUSH_NS)
        elif any(pool.corrections):
            self._tell()

    async def aclose(self) -> None:
        """Tell the store what it is yet to hear, and return the slots in hand."""
        client = self.client
        if client is not None and client.here:
            await client.detach(self)
        self._node.tree.run(self._leave)

    def _leave(self) -> None:
        if self._node.closed:  # and not opened again meanwhile
            self._pool.clear()
            self._forget()
