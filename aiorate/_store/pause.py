"""A pause of all processes, as one limit begins and follows it. It waits here, and may be ended by another process."""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from aiorate._rate import NS_PER_SECOND
from aiorate._store.slots import MOST_NS
from aiorate._tree.changes import on_pause_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiorate._loops.clock import Handle
    from aiorate._store.place import Timers
    from aiorate._tree.node import Node

__all__ = ["NewsOfPause", "SharedPause"]

_US = 1_000  # ns
_RECHECK_SECONDS = 1.0  # how often a process in which a request waits asks whether a pause goes on


class NewsOfPause(NamedTuple):
    """What the store is to hear. False if there is nothing to tell."""

    resumes: bool = False
    """Whether a pause is over."""
    until: int | None = None
    """The reading at which a pause is to end, which began after that."""

    def __bool__(self) -> bool:
        return self.resumes or self.until is not None

    def us(self, reading: int) -> float:
        """As the script takes it: the us until a pause is to end, 0 if a pause is over, -1 if nothing changed."""
        return 0 if self.resumes else -1 if self.until is None else (self.until - reading) / _US

    def then(self, later: NewsOfPause) -> NewsOfPause:
        """Both, the other one later. Pauses merge by the later end."""
        if later.resumes:
            return later
        untils = [until for until in (self.until, later.until) if until is not None]
        return NewsOfPause(self.resumes, max(untils, default=None))


class SharedPause:
    """Keeps a limit's time in step with the store. ``tell`` has the store asked."""

    __slots__ = ("_followed", "_node", "_tell", "_timer", "news", "rechecks")

    def __init__(self, node: Node, tell: Callable[[], None]) -> None:
        self._node, self._tell = node, tell
        self._timer: Handle | None = None
        self._followed: bool = False  # whether the store pauses all processes
        self.news: NewsOfPause = NewsOfPause()
        """What the store is yet to hear."""
        self.rechecks: bool = False
        """Whether the next question asks for nothing else than whether the pause goes on."""

    def begin(self, ns: int) -> None:
        """Pause all processes. Raises ValueError for more than 317 years."""
        if ns > MOST_NS:
            seconds, longest = ns // NS_PER_SECOND, MOST_NS // NS_PER_SECOND
            raise ValueError(f"pause({seconds}): a limit in a store is paused for at most {longest} seconds, which are 317 years.")
        self.news = self.news.then(NewsOfPause(until=self._node.read() + ns))
        self._tell()

    def end(self) -> None:
        """The pause is over, for all processes."""
        self.news = NewsOfPause(resumes=True)
        self._tell()

    def take(self, reading: int) -> NewsOfPause:
        """Remove and return what the next question tells. The end of a pause and the next pause take two questions."""
        news = self.news
        if news.until is not None and news.until <= reading:
            news = news._replace(until=None)
        self.news = NewsOfPause(until=news.until) if news.resumes else NewsOfPause()
        if self.news:
            self._tell()  # in the next question
        return NewsOfPause(resumes=True) if news.resumes else news

    def untold(self, news: NewsOfPause) -> None:
        """The store may not have heard what was taken: tell it again, before what came later."""
        self.news = news.then(self.news)

    def follow(self, us: float) -> None:
        """The store pauses all processes for ``us``; 0: it does not."""
        node, unsaid = self._node, self.news.until is not None
        if us > 0:
            self._followed = True
            ns, until = ceil(us * _US), node.paused_until
            if not unsaid and until is not None and until > node.read() + ns:
                node.resume()  # a longer one, which another process has ended
            node.pause(ns, partial(on_pause_end, self._node, node.now()))
        elif self._followed and not unsaid:
            self._followed = False
            node.resume()

    def recheck_later(self, timers: Timers) -> None:
        """A request waits for the end of the pause: ask in a second, and again, whether it goes on."""
        node = self._node
        until = node.paused_until
        if self._followed and self._timer is None and until is not None and until - node.read() > _RECHECK_SECONDS * NS_PER_SECOND:
            self._timer = timers.call_later(_RECHECK_SECONDS, self._recheck)

    def _recheck(self) -> None:
        self._timer = None
        if self._node.first() is not None and self._node.paused:
            self.rechecks = True
            self._tell()

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
