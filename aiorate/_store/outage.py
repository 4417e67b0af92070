"""An outage of the store, and what happens to requests meanwhile: nothing within the grace, then the policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._errors import EngineUnavailable
from aiorate._events import Event
from aiorate._rate import Rate, ns_to_seconds
from aiorate._store.failures import said, said_by_server
from aiorate._store.script import FORM, pack, read_answer
from aiorate._store.slots import Part
from aiorate._store.twin import Twin

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from aiorate._loops.loop import Handle
    from aiorate._store.options import Terms
    from aiorate._store.pool import Pool
    from aiorate._store.script import Answer, Question
    from aiorate._tree.node import Node


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

    def ask(self, question: Question, runs: Sequence[tuple[int, tuple[int, ...]]], reading: int, whole: bool) -> Answer:
        """The answer to that question."""
        limits: list[list[float]] = []
        for part in self.parts:
            more = 0 if self._begun else part.burst - 1
            limits.append([part.rate.period_ns / (part.rate.permits * _US), part.burst, more, 0, 0, 0, 0])
        self._begun = True
        reply = self._twin.ask(reading // _US, pack(question._replace(took=-1), limits, runs), f"{FORM} local")
        answer = read_answer(reply, len(self.parts), 0, [n for n, _ in runs], whole)
        for (n, _, _), (_, need) in zip(answer.runs, runs, strict=False):
            self.spent = [own + n * of for own, of in zip(self.spent, need, strict=True)]
        return answer


def _part(part: Part, share: Fraction) -> Part:
    rate = Rate.exactly(part.rate.permits * share.numerator, part.rate.period_ns * share.denominator)
    return Part(rate, 1 if part.calendar is not None else max(part.burst * share.numerator // share.denominator, 1))


class Outage:
    """Since when the store has not answered, and what decides after that has lasted for the grace."""

    __slots__ = ("_cause", "_node", "_pool", "_terms", "_timer", "began", "degraded", "local")

    def __init__(self, node: Node, pool: Pool, terms: Terms) -> None:
        self._node, self._pool, self._terms = node, pool, terms
        self._timer: Handle | None = None
        self.began: int | None = None
        """The reading at the first call without an answer; None: the store answers."""
        self._cause: BaseException | None = None  # of the last such call
        self.degraded: bool = False
        """Whether it has gone on for longer than the grace."""
        self.local: Local | None = None
        """The store meanwhile, by the policy ``"local"``; None: there is none."""

    @property
    def in_grace(self) -> bool:
        """Whether the store does not answer, for less than the grace."""
        return self.began is not None and not self.degraded

    def no_answer(self, began: int, cause: BaseException) -> None:
        """A question got no answer. The store has been silent since the reading ``began``, as far as it was asked."""
        self._cause = cause
        if self.began is None:
            self.began = began
        if self.degraded:
            self._pool.asked_at = None  # to hear whether slots are still wanted
            if not self._pool.outage:
                self._decide()
                self._node.changed()
        else:
            self.await_end_of_grace()

    def await_end_of_grace(self) -> None:
        """Set the timer, if there is an outage and the grace is not over."""
        loop, began = self._node.loop, self.began
        if began is None or self.degraded or loop is None or self._timer is not None:
            return
        ends = began + self._terms.grace
        if self._node.read() < ends:
            self._timer = loop.call_at(ends, self._on_grace)  # which may be early
        else:
            self.degraded = True
            self._decide()
            self._node.tell(Event("degraded", self._node.name, source=f"{self._why}; on_unavailable={self._terms.policy!r}"))
            self._node.changed()

    def _on_grace(self) -> None:
        self._timer = None
        self.await_end_of_grace()

    def _decide(self) -> None:
        """The policy decides from now on."""
        pool, policy = self._pool, self._terms.policy
        pool.unanswered()
        pool.outage = policy
        if policy == "raise":
            what = "answers with an error" if said_by_server(self._cause) else "does not answer"
            text = f"the store {what}: {self._why}. It is asked again; on_unavailable= says what happens meanwhile."
            pool.error = self._error(text, self._cause)
        elif policy == "local" and self.local is None:
            self.local = Local(pool.parts, self._terms.share)
            pool.levels = [None] * len(pool.parts)

    def suspend(self) -> None:
        """The store was not asked for a while: requests wait until it is known whether it answers."""
        self._pool.outage, self._pool.error = "", None

    def ended(self) -> None:
        """The store can be reached again. What was granted here meanwhile is charged, at most a share of the burst."""
        node, pool, local = self._node, self._pool, self.local
        length = node.read() - self.began if self.degraded and self.began is not None else 0
        self.forget()
        if local is not None:
            bursts = [int(part.burst * self._terms.share) if part.burst > 1 else 0 for part in pool.parts]
            pool.clear()
            owed = [min(spent, burst) for spent, burst in zip(local.spent, bursts, strict=True)]
            if any(owed):
                pool.correct(owed, node.now())
        if length:
            node.tell(Event("restored", node.name, seconds=ns_to_seconds(length)))

    def forget(self) -> None:
        """The store answers, or nobody waits for it: the grace begins with the next call without an answer."""
        self.cancel()
        self.began = self._cause = self.local = None
        self.degraded = False
        self.suspend()

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _why(self) -> str:
        return "" if self._cause is None else said(self._cause).rstrip(".")

    def refusal(self, cause: BaseException) -> EngineUnavailable:
        """The error for requests while the store refuses."""
        return self._error(f"the store refuses: {said(cause)}", cause)

    def _error(self, text: str, cause: BaseException | None) -> EngineUnavailable:
        error = EngineUnavailable(f"{self._terms.call}: {text}")
        error.__cause__ = cause
        return error
