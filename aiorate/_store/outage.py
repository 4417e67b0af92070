"""An outage of the store, and what happens to requests meanwhile: nothing within the grace, then the policy."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiorate._errors import EngineUnavailable
from aiorate._events import Event
from aiorate._rate import NS_PER_SECOND, Rate, ns_to_seconds
from aiorate._store.failures import said, said_by_server
from aiorate._store.script import FORM, pack
from aiorate._store.slots import Part
from aiorate._store.twin import Twin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from aiorate._loops.clock import Handle
    from aiorate._store.place import Timers
    from aiorate._store.pool import Pool
    from aiorate._store.script import Question
    from aiorate._tree.node import Node

__all__ = ["POLICIES", "Local", "Outage"]

POLICIES = ("raise", "wait", "local", "open")
_US = 1_000  # ns


class Local:
    """A store of this process alone, with a ``share`` of the limits. It begins without a burst."""

    __slots__ = ("_begun", "_twin", "parts", "spent")

    def __init__(self, parts: Sequence[Part], share: Fraction) -> None:
        self.parts: tuple[Part, ...] = tuple([_part(part, share) for part in parts])
        """Its limits: a window is paced, too."""
        self._twin = Twin()
        self._begun = False
        self.spent: list[int] = [0] * len(parts)
        """Of each dimension."""

    def ask(self, question: Question, runs: Sequence[tuple[int, Sequence[int]]], reading: int) -> str:
        """The answer to that question."""
        limits: list[list[float]] = []
        for part in self.parts:
            more = 0 if self._begun else part.burst - 1
            limits.append([part.rate.period_ns / (part.rate.permits * _US), part.burst, more, 0, 0, 0, 0])
        self._begun = True
        return self._twin.ask(reading // _US, pack(question, limits, runs), f"{FORM} local")


def _part(part: Part, share: Fraction) -> Part:
    rate = Rate.exactly(part.rate.permits * share.numerator, part.rate.period_ns * share.denominator)
    return Part(rate, 1 if part.calendar is not None else max(part.burst * share.numerator // share.denominator, 1))


class Outage:
    """Since when the store has not answered, and what decides after that has lasted for ``grace`` ns. ``call`` is named in errors."""

    __slots__ = ("_call", "_grace", "_node", "_pool", "_share", "_timer", "began", "cause", "degraded", "local", "policy")

    def __init__(self, node: Node, pool: Pool, policy: str, grace: int, share: Fraction, call: str) -> None:
        self.policy: str = policy
        """Its name."""
        self._node, self._pool, self._call = node, pool, call
        self._grace: int = grace
        self._share: Fraction = share
        self._timer: Handle | None = None
        self.began: int | None = None
        """The reading at the first call without an answer; None: the store answers."""
        self.cause: BaseException | None = None
        """Of the last such call."""
        self.degraded: bool = False
        """Whether it has gone on for longer than the grace."""
        self.local: Local | None = None
        """The store meanwhile, by the policy ``"local"``; None: there is none."""

    @property
    def in_grace(self) -> bool:
        """Whether the store does not answer, for less than the grace."""
        return self.began is not None and not self.degraded

    def no_answer(self, began: int, cause: BaseException, timers: Timers | None) -> None:
        """A question got no answer. The store has been silent since the reading ``began``, as far as it was asked."""
        self.cause = cause
        if self.began is None:
            self.began = began
        if self.degraded:
            self._pool.asked_at = None  # to hear whether slots are still wanted
            if not self._pool.outage:
                self._decide()
                self._node.changed()
        elif not self._over():  # requests that do not wait were refused all through the grace, and set no timer
            self.await_end_of_grace(timers)

    def await_end_of_grace(self, timers: Timers | None) -> None:
        """Set the timer, if there is an outage and the grace is not over."""
        if self.began is not None and self.in_grace and self._timer is None and timers is not None:
            seconds = max(self.began + self._grace - self._node.read(), 0) / NS_PER_SECOND
            self._timer = timers.call_later(seconds, partial(self._on_grace, timers))

    def _on_grace(self, timers: Timers) -> None:
        self._timer = None
        if not self._over():
            self.await_end_of_grace(timers)  # a timer may be early

    def _over(self) -> bool:
        node = self._node
        if self.began is None or node.read() < self.began + self._grace:
            return False
        self.cancel()
        self.degraded = True
        self._decide()
        node.tell(Event("degraded", node.name, source=f"{self.why}; on_unavailable={self.policy!r}"))
        node.changed()
        return True

    def _decide(self) -> None:
        """The policy decides from now on."""
        pool = self._pool
        pool.unanswered()
        pool.outage = self.policy
        if self.policy == "raise":
            pool.error = self.error()
        elif self.policy == "local" and self.local is None:
            self.local = Local(pool.parts, self._share)
            pool.levels = [None] * len(pool.parts)

    def suspend(self) -> None:
        """The store was not asked for a while: requests wait until it is known whether it answers."""
        self._pool.outage, self._pool.error = "", None

    def ended(self) -> list[int]:
        """The store can be reached again. Returns what must be charged of each dimension: what was granted here, at most a share of the
        burst."""
        node, pool, local = self._node, self._pool, self.local
        length = node.read() - self.began if self.degraded and self.began is not None else 0
        owed = [0] * len(pool.parts)
        if local is not None:
            bursts = [int(part.burst * self._share) if part.burst > 1 else 0 for part in pool.parts]
            owed = [min(spent, burst) for spent, burst in zip(local.spent, bursts, strict=True)]
            pool.clear()
        self.forget()
        if length:
            node.tell(Event("restored", node.name, seconds=ns_to_seconds(length)))
        return owed

    def forget(self) -> None:
        """The store answers, or nobody waits for it: the grace begins with the next call without an answer."""
        self.cancel()
        self.began = self.cause = self.local = None
        self.degraded = False
        self.suspend()

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def why(self) -> str:
        """The error of the last such call."""
        return "" if self.cause is None else said(self.cause).rstrip(".")

    def error(self) -> EngineUnavailable:
        """The error for requests that cannot be served."""
        what = "answers with an error" if said_by_server(self.cause) else "does not answer"
        error = EngineUnavailable(
            f"{self._call}: the store {what}: {self.why}. It is asked again; on_unavailable= says what happens meanwhile."
        )
        error.__cause__ = self.cause
        return error

    def refusal(self, cause: BaseException) -> EngineUnavailable:
        """The error for requests while the store refuses."""
        error = EngineUnavailable(f"{self._call}: the store refuses: {said(cause)}")
        error.__cause__ = cause
        return error
