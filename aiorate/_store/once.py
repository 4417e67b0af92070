"""Requests that may wait for less than an answer of the store takes: they stand in line for one answer, which grants or refuses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorate._rate import NS_PER_SECOND
from aiorate._store.script import MOST_RUNS
from aiorate._tree.questions import above_on_demand, wait_for
from aiorate._tree.refusals import Refusals

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._errors import LimiterClosed, WaitTooLong
    from aiorate._schedulers.amounts import Permits
    from aiorate._store.options import Terms
    from aiorate._store.pool import Pool
    from aiorate._store.script import Answer
    from aiorate._tree.limit import Limit, Taken
    from aiorate._tree.line import Request
    from aiorate._tree.node import Node


_ANSWER_NS = NS_PER_SECOND * 9 // 10  # for which they wait
_SINCE = 1 << 190  # since when they stand in line, and the ns that they may wait: later than any instant


class _Refusals(Refusals):
    """The errors of others, with the ns that such a request may wait."""

    __slots__ = ("_limit", "_of")

    def __init__(self, of: Refusals, limit: int) -> None:
        self._of, self._limit = of, limit

    def closed(self, node: Limit) -> LimiterClosed:
        return self._of.closed(node)

    def too_long(self, permits: Permits, limit: int, wait: int | None) -> WaitTooLong:
        return self._of.too_long(permits, self._limit, wait)

    overdue = too_long  # type: ignore[assignment]  # the names of its arguments differ


class Once:
    """Those of one limit. ``may_ask`` says whether an answer is to be expected."""

    __slots__ = ("_asked", "_may_ask", "_node", "_pool", "_refusals", "_some", "_terms")

    def __init__(self, node: Node, pool: Pool, terms: Terms, refusals: Refusals, may_ask: Callable[[], bool]) -> None:
        self._node, self._pool, self._terms, self._refusals, self._may_ask = node, pool, terms, refusals, may_ask
        self._some: bool = False  # whether there may be any in line
        self._asked: list[Request] = []  # those that were in line when the store was asked last

    def serves(self, limit: int) -> bool:
        """Whether a request that may wait for ``limit`` ns is one. Below a limit that has to be asked as well, none is."""
        return limit < max(self._pool.answer_ns, 1) and not above_on_demand(self._node)

    async def take(self, permits: Permits, limit: int) -> tuple[int, Taken]:
        """Take the permits if they are due. Returns the ns waited for the answer, and what was taken. Raises the error otherwise."""
        node, tree, refusals = self._node, self._node.tree, _Refusals(self._refusals, limit)
        ticket, _, asked, taken = tree.ask(node, permits, _ANSWER_NS, self, refusals, _SINCE + limit)
        if ticket is None:
            return 0, taken
        waited, _, taken = await tree.wait(node, ticket, permits, asked, _ANSWER_NS, self, refusals, _SINCE + limit)
        return waited, taken

    def take_blocking(self, permits: Permits, limit: int) -> tuple[int, Taken]:
        """As `take`, in a thread without an event loop, which it blocks."""
        return self._node.tree.wait_blocking(self._node, permits, _ANSWER_NS, self, _Refusals(self._refusals, limit), _SINCE + limit)

    # In decisions.

    def check(self, permits: Permits, refusals: Refusals) -> None:
        """Before such a request stands in line: raise its error if there will be no answer."""
        node = self._node
        if not self._may_ask() or self._pool.outage == "wait" or node.held_at is not None:
            node.noted.refused += 1
            raise refusals.too_long(permits, 0, wait_for(node, permits, node.now()))
        self._some = True

    def _in_line(self) -> list[Request]:
        found = [request for request in self._node.line if request[2] >= _SINCE] if self._some else []
        self._some = bool(found)
        return found

    def first(self) -> list[Permits]:
        """Those that are asked for before all others: nobody waits before them, and no lease has permits for them."""
        self._asked = self._in_line()[:MOST_RUNS]
        first = self._node.first() if self._some else None
        alone = isinstance(first, tuple) and first[2] >= _SINCE and not self._terms.lease
        return [permits for _, permits, _ in self._asked] if alone else []

    def refuse(self, requests: list[Request] | None = None) -> None:
        """Those are not granted; by default, all in line."""
        requests = self._in_line() if requests is None else requests
        over = [(ticket, permits, 0, _Refusals(self._refusals, since - _SINCE)) for ticket, permits, since in requests if not ticket.done()]
        if over:
            self._node.expire(over)

    def end(self, answer: Answer | None) -> None:
        """After an answer to a question for them alone, or to one for all in line, which granted none of them: None.

        Those for which there are slots use them within the slack; and those that came after the question, or whose slots lapsed while
        the process stood still, are asked for again.
        """
        node, tree, asked = self._node, self._node.tree, self._asked
        over = asked if answer is None else [request for request, run in zip(asked, answer.runs, strict=False) if not run[0]]
        for request in self._in_line():
            ticket, permits, since = request
            if ticket.done():
                continue
            lacks = self._pool.lacks(permits, node.now())
            if request in over and (lacks or answer is not None):
                self.refuse([request])
            elif not lacks:
                tree.limit_wait(node, ticket, permits, node.read(), self._terms.slack, _Refusals(self._refusals, since - _SINCE))
