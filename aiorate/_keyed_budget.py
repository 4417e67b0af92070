"""One budget for each key: a user, a team, an account. Keys come and go; a key that owes something is never dropped.

Knows nothing of how a rate is computed, of event loops, or of HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from aiorate._budget import Budget
from aiorate._keyed_base import Keyed

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Literal

    from aiorate._budget import Lease, OnError
    from aiorate._events import Event, Waited
    from aiorate._feedback import Feedback
    from aiorate._rate import Duration


K = TypeVar("K", bound="Hashable")


class KeyedBudget(Keyed[K, Budget]):
    """A budget for each key: for each user, team or account.

    Your function returns the `Budget` of a key, and is called the first time the key is seen. Keys are dropped when they are unused, as by
    a `KeyedLimiter`.

    Args:
        factory: A function of the key that returns its `Budget`.
        shared: A `Budget` that all keys go through as well, or a function of the key that returns one, or None. Amounts are taken from
            both, by the names of the dimensions.
        max_keys: How many keys to keep, as far as unused ones can be dropped.
        idle: How many seconds to keep a key after its last use, or a timedelta, instead of counting the uses of others.
        name: Shown in logs, metrics and ``repr()``, for all keys.
        on_event: Called with an `Event` when a key is dropped.
        on_wait: Called with a `Waited` after each wait for any key; see `watch`.
        scope: ``"loop"`` or ``"process"``, as for a `Limiter`.
    """

    _KIND = Budget
    _NAME = "KeyedBudget"
    _WANTED = "a Budget, such as Budget(requests='500/min')"

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
    ) -> None:
        super().__init__(factory, shared, max_keys, idle, name, on_event, on_wait, scope)

    # Asking.

    def reserve(self, key: K, /, *, max_wait: Duration | None = None, on_error: OnError | None = None, **amounts: int) -> Lease:
        """Reserve amounts for a key, of its budget and of those it shares; see `Budget.reserve`."""
        return self[key].reserve(max_wait=max_wait, on_error=on_error, **amounts)

    def observe(self, key: K, feedback: Feedback | None, *, jitter: Duration = 0) -> None:
        """Apply what a server's response said about a key; see `Budget.observe`. Only that key is paused."""
        if feedback is not None and not self._closed:
            self[key].observe(feedback, jitter=jitter)
