"""What a `StoreClient` asks a store, and for whom: the question of a session, and the session. Knows nothing of rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorate._store.client import StoreClient

__all__ = ["Asked", "Session"]


Asked = tuple[str, "Sequence[str | bytes]"]
"""A question: the key, and the other arguments of the script."""


class Session(Protocol):
    """A limit's talk with the store. The client calls it in its event loop, in any order, whenever something happens."""

    @property
    def client(self) -> StoreClient | None:
        """The client that asks for it; None: none. It is called only by that one."""
        ...

    @property
    def key(self) -> str:
        """The key in the store."""
        ...

    @property
    def limits(self) -> object:
        """What all sessions of one key must have in common."""
        ...

    @property
    def in_grace(self) -> bool:
        """Whether the store does not answer, and the limit's policy for that does not apply yet. Then it is asked more often."""
        ...

    def question(self) -> Asked | None:
        """What to ask now; None: nothing."""
        ...

    def answered(self, reply: object) -> None:
        """The script's reply to the question. Raises `BadAnswer` if it makes no sense."""
        ...

    def unreachable(self, cause: BaseException, silent: float) -> None:
        """The store did not answer, and had not for ``silent`` seconds before the question. It will be asked again."""
        ...

    def late(self, cause: BaseException) -> None:
        """The answer takes long enough to count as an outage. It may still come."""
        ...

    def alive(self) -> None:
        """It is far away, and there: the answer is on its way."""
        ...

    def refused(self, cause: BaseException) -> None:
        """The store will not answer until somebody mends the reason."""
        ...

    def failed(self, error: BaseException) -> None:
        """The client's task ended with that error, or another call of this session raised it."""
        ...

    def forked(self) -> None:
        """This is a child process now: the connection, and all that was assigned, is the parent's."""
        ...
