"""A ledger: what a limiter takes from a store by one script, slots or the permits of a window, as its session sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from aiorate._schedulers.amounts import Permits
    from aiorate._schedulers.supplied import Supplied
    from aiorate._store.asking import Asked
    from aiorate._store.crowd import Crowd
    from aiorate._store.immediate import Immediate

__all__ = ["Asking", "Ledger", "Reply"]


class Asking(Protocol):
    """A question, in the words of every script. Durations are in us."""

    want: int
    """Permits that are lacking."""
    back: int
    """Permits in hand that nobody here will use."""
    charge: Permits
    """Permits that were used without asking."""
    pause: float
    """How long to pause all processes from now; 0: a pause is over, -1: nothing changed."""


class Reply(Protocol):
    """An answer, in the words of every script."""

    @property
    def granted(self) -> int:
        """How many permits it assigned; below 0: the question was not understood, and is to be asked again."""
        ...

    @property
    def paused(self) -> float:
        """How many us all processes are paused."""
        ...


class Ledger(Protocol):
    """Supplies a scheduler: says what to ask, and books what is answered. Readings and instants are in ns."""

    slack: int
    """How late a permit may be used, in ns."""
    lease: int
    """How far ahead permits are taken that nobody asked for yet, in ns; 0: not at all."""

    keeps: bool
    """Whether permits in hand stay of use until they are given back."""

    @property
    def scheduler(self) -> Supplied:
        """The scheduler that it supplies."""
        ...

    @property
    def limits(self) -> object:
        """What the ledgers of one key must have in common."""
        ...

    def is_met(self, line: Crowd, now: int) -> bool:
        """Whether the store need not be asked yet."""
        ...

    def spare(self, line: Crowd, now: int) -> bool:
        """Whether permits are in hand that nobody in line can use, and that are to go back at once."""
        ...

    def draw(self, line: Crowd | None, immediate: Immediate, reading: int, now: int) -> Asking:
        """What to ask for now, on behalf of that line; None: nothing is granted, because of a pause or close."""
        ...

    def give_up(self, asking: Asking, now: int) -> None:
        """Have the question return what is in hand: the limiter is closed."""
        ...

    def written(self, key: str, asking: Asking, reading: int) -> Asked:
        """The question as the script takes it. It is the one under way from now on."""
        ...

    def read(self, reply: object) -> Reply:
        """The script's reply to the question under way. Raises `BadAnswer` if it makes no sense."""
        ...

    def heard(self, sent_at: int, received: int) -> float:
        """Remember what the answer said, in any case. Returns how many permits went by unused since the answer before."""
        ...

    def book(self, now: int) -> None:
        """Book what the answer assigned."""
        ...
