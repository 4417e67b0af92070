"""One budget for each key: a user, a team, an account. Keys come and go; a key that owes something is never dropped.

Knows nothing of how a rate is computed, of event loops, or of HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aiorate.budget import Budget
from aiorate.budget_options import not_a_budget
from aiorate.errors import LimiterClosed, kind_of
from aiorate.explained import explained
from aiorate.keyed_base import Keyed, refuse_keyed
from aiorate.limiter import Limiter
from aiorate.options import check_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Literal, Never, NoReturn

    from aiorate.events import Event
    from aiorate.feedback import Feedback
    from aiorate.lease import Lease, OnError
    from aiorate.rate import Duration
    from aiorate.waited import Waited

__all__ = ["KeyedBudget"]

K = TypeVar("K", bound="Hashable")

_OPTIONS = ("shared", "max_keys", "idle", "name", "on_event", "on_wait", "scope")
_OF_EACH_KEY = ("on_error", "max_waiting", "catch_up", "clock")


class KeyedBudget(Keyed[K, Budget]):
    """A budget for each key, made when the key is first used, and evicted when it owes nothing.

    ``factory(key)`` makes the `Budget` of a key. ``shared`` is a `Budget` that all keys share, or a function of the key that returns
    one, or None: ``shared=lambda user: teams[user.team]``, where ``teams`` is a KeyedBudget too. It is as ``shared`` of each key's
    budget: amounts are taken by the names of the dimensions, and a busy key delays no other. The function is called once for each key
    that is kept, and what it returned is kept while such a key is kept.

    A key is kept while it owes anything or is paused, while a lease of it is open, and while somebody holds its budget; ``max_keys``
    and ``idle`` are as in `KeyedLimiter`. ``on_event`` is called with an `aiorate.Event` for each evicted key; each budget has its own.
    ``on_wait`` is called with an `aiorate.Waited` for each reservation of any key that waited, and ``name`` is for all keys, as there.
    Raises TypeError and ValueError for wrong arguments. ``scope`` is as in `KeyedLimiter`, and that of all budgets.
    """

    __slots__ = ()

    _NAME = "KeyedBudget"
    _WANTED = "a Budget, such as Budget(requests='500/min')"

    @explained
    def __init__(
        self,
        factory: Callable[[K], Budget],
        *,
        shared: Budget | Callable[[K], Budget | None] | None = None,
        max_keys: int = 100_000,
        idle: Duration | None = None,
        name: str | None = None,
        on_event: Callable[[Event], object] | None = None,
        on_wait: Callable[[Waited], object] | None = None,
        scope: Literal["loop", "process"] = "loop",
        **unknown: Never,
    ) -> None:
        if unknown:
            from aiorate.wrong_arguments import unknown_options_of_budgets

            raise unknown_options_of_budgets(unknown, _OPTIONS, _OF_EACH_KEY)
        if not callable(factory) or isinstance(factory, type):
            raise TypeError(
                "KeyedBudget(factory) must be a function of the key, such as lambda key: Budget(requests='500/min', tokens='90_000/min'),"
                f" not {kind_of(factory)}: each key needs a separate budget."
            )
        refuse_keyed("KeyedBudget(shared)", shared)
        check_scope("KeyedBudget", scope)
        if shared is None or isinstance(shared, Budget):
            if shared is not None:
                self._check_budget("KeyedBudget(shared)", shared, scope == "process")
            super().__init__(factory, shared, None, max_keys, idle, name, on_event, on_wait, scope)
        elif callable(shared) and not isinstance(shared, (type, Limiter)):  # which can be called, as a decorator
            super().__init__(factory, None, shared, max_keys, idle, name, on_event, on_wait, scope)
        else:
            raise not_a_budget("KeyedBudget(shared)", shared)

    def _member(self, key: K, made: object) -> Budget:
        if not isinstance(made, Budget):
            raise TypeError
        self._check_scope_of(made)
        return made

    def _check_shared(self, what: str, shared: object) -> Budget:
        if not isinstance(shared, Budget):
            refuse_keyed(what, shared)
            raise TypeError(
                f"{what}: the function must return a Budget that several keys share, such as teams[user.team], or None,"
                f" not {kind_of(shared)}."
            )
        if isinstance(shared, _Closed):
            raise LimiterClosed(f"{what}: {_CLOSED}")
        self._check_budget(what, shared, self._guard is not None)
        return shared

    def _check_budget(self, what: str, shared: Budget, process: bool) -> None:
        self._check_scope_of_shared(what, process, shared)
        shared.check_shared(what)

    def _join(self, member: Budget, shared: Budget | None) -> None:
        if self._guard is not None and shared is None:
            self._guard.join(member.dispatcher, None)
        member.belong(shared)

    def _closed_member(self) -> Budget:
        return _Closed()

    # Asking.

    def reserve(
        self, key: K, /, *misplaced: Never, max_wait: Duration | None = None, on_error: OnError | None = None, **amounts: int
    ) -> Lease:
        """Reserve amounts of the key's budget, and of those that it shares: as `Budget.reserve`.

        Raises its errors, those of the factory and of ``shared``, and TypeError for a key that cannot be hashed.
        """
        return self[key].reserve(*misplaced, max_wait=max_wait, on_error=on_error, **amounts)

    def observe(self, key: K, feedback: Feedback | None, *, jitter: Duration = 0) -> None:
        """Heed what a server said of a key, as `Budget.observe` does: a pause is for that key only. Does nothing when closed."""
        if feedback is not None and self._closed is None:
            self[key].observe(feedback, jitter=jitter)


class _Closed(Budget):
    """The budget of all keys that a closed KeyedBudget lacks."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(requests=1)

    def reserve(self, *misplaced: object, **options: object) -> NoReturn:
        raise LimiterClosed(_CLOSED)


_CLOSED = "the KeyedBudget is closed, and adds no keys. Create a new one."
