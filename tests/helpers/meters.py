"""What tests of the open meter need: the machine's clock moved by hand, and the meter open under other clocks too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiorate._tree.tree import Tree
from helpers.driving import SECOND, turns

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiorate


PLAIN = Tree._use


class Machine:
    """The machine's monotonic clock, which stands still until it is moved. Timers of loops run in real time."""

    def __init__(self, start_ns: int = SECOND) -> None:
        self.instant = start_ns

    def __call__(self) -> int:
        return self.instant

    async def advance(self, limiter: aiorate.Limiter, ns: int) -> None:
        """Move by that many ns, call statistics(), which grants what is due, and let the granted tasks run."""
        self.instant += ns
        limiter.statistics()
        await turns(8)


async def at_once(limiter: aiorate.Limiter) -> bool:
    """True if acquire() is granted without a wait; else its request is withdrawn."""
    coroutine = limiter.acquire()
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value == 0.0
    coroutine.close()
    return False


def steady() -> Callable[..., None]:
    """For `Tree._use`: the meter may be open under every clock, manual and virtual ones too.

    Under those clocks nothing is watched, so a limiter does not notice that another loop calls it until the meter shuts.
    """

    def use(self: Tree, loop: Any) -> None:
        PLAIN(self, loop)
        self.steady = self.steady or not (loop is None or self.threads)

    return use
