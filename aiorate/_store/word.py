"""What a task waits for that something in another thread is to tell it."""

from __future__ import annotations

from functools import partial

from aiorate._loops.table import loop_here


class Word:
    """Told once, in any thread, to the task that makes it."""

    __slots__ = ("_loop", "_signal", "_told")

    def __init__(self) -> None:
        loop = loop_here()
        assert loop is not None  # a task runs
        self._loop, self._signal, self._told = loop, loop.signal(), False

    def tell(self) -> None:
        """Let the task go on."""
        self._told = True
        try:
            self._loop.post(partial(self._loop.wake, self._signal))
        except (RuntimeError, OSError):  # its loop is closed
            return

    async def heard(self) -> None:
        """Wait for it. The loop turns in any case."""
        await (self._loop.yield_once() if self._told else self._loop.wait(self._signal))
