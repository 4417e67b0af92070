"""How questions reach the server: over one connection that is opened here where possible, else through the client that was given.

Tells outages from refusals. Knows nothing of rates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from aiorate._store.address import lends, library_of
from aiorate._store.failures import Unreachable, code_of, failure_of, said_by_server
from aiorate._store.script import SHA, TEXT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Command = tuple[str | bytes | int, ...]

__all__ = ["CONNECT_SECONDS", "Asked", "Store", "store_of"]

CONNECT_SECONDS = 2.0  # for one answer of a new connection


Asked = tuple[bytes, "Sequence[str | bytes]"]
"""A question: the key, and the other arguments of the script."""


class Store(ABC):
    """A server that has the script."""

    heard: int = 0
    """How many answers have come, as far as is known. The first call takes some: for the connection, a password and a script."""
    settling: bool = False
    """Whether the server is there, and a client that was given may be connecting, of which nothing can be heard."""

    async def ask(self, questions: Sequence[Asked]) -> list[object]:
        """The script's reply to each question, or a `Refusal` or an `Unreachable` in its place."""
        try:
            replies = await self._replies(questions)
        except Exception as error:
            return [failure_of(error)] * len(questions)
        return [failure_of(reply) if isinstance(reply, Exception) else reply for reply in replies]

    async def _replies(self, questions: Sequence[Asked]) -> list[object]:
        replies = await self._run([("EVALSHA", SHA, 1, key, *words) for key, words in questions])
        missing = [place for place, reply in enumerate(replies) if isinstance(reply, Exception) and code_of(reply) == "NOSCRIPT"]
        while missing:
            # The first question sends the text too: its server then has it for the others; in a cluster, each needs it.
            first, *others = missing
            again: list[Command] = [("EVAL", TEXT, 1, questions[first][0], *questions[first][1])]
            again += [("EVALSHA", SHA, 1, questions[place][0], *questions[place][1]) for place in others]
            for place, reply in zip(missing, await self._run(again), strict=True):
                replies[place] = reply
            missing = [place for place in others if isinstance(reply := replies[place], Exception) and code_of(reply) == "NOSCRIPT"]
        return replies

    @abstractmethod
    async def _run(self, commands: Sequence[Command]) -> list[object]:
        """Send them together. Returns the reply to each, or the server's error. Raises if there is no answer."""

    @abstractmethod
    async def renew(self) -> None:
        """Have the next call resolve the address again: another server may have taken over there."""

    async def close(self) -> None:
        """Close the connection, if it was opened here."""


class _Given(Store):
    """An asyncio client of redis-py or valkey-py, such as one for a cluster, or of a class of the user's. It is never closed here."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._welcome: bool = False  # whether the server let us in, since it answered last
        self._knocking: _Own | None = None

    @property
    def heard(self) -> int:  # type: ignore[override]
        return 0 if self._knocking is None else self._knocking.heard + 2 * self.settling

    async def _run(self, commands: Sequence[Command]) -> list[object]:
        if not self._welcome:
            await self._knock()
        self._welcome = False
        try:
            replies = await self._through(commands)
        finally:
            self.settling, self._knocking = False, None
        self._welcome = True
        return replies

    async def _knock(self) -> None:
        """Raise the error with which the server refuses a connection: the client would hide it, and try again and again."""
        pool = getattr(self._client, "connection_pool", None)
        if pool is not None:
            self._knocking = _Own(pool.make_connection)
            try:
                await self._knocking.open()
            finally:
                await self._knocking.close()
            self.settling = True

    async def _through(self, commands: Sequence[Command]) -> list[object]:
        if len(commands) == 1:
            try:
                return [await self._client.execute_command(*commands[0])]
            except Exception as error:
                if not said_by_server(error):
                    raise
                return [error]
        pipe = self._client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        replies: list[object] = await pipe.execute(raise_on_error=False)
        return replies

    async def renew(self) -> None:
        # A client keeps its connections to a server that answers with an error.
        try:
            await self._client.connection_pool.disconnect(inuse_connections=False)
            if self._client.connection is not None:
                await self._client.connection.disconnect()
        except Exception:  # they are broken already, or it is a client for a cluster, which follows its nodes by itself
            return


class _Own(Store):
    """One connection, of the library's class for it. A call takes half the time of one through a client.

    ``make`` makes one that is not connected yet. It should have no timeout except for connecting.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._connection: Any = None
        self._answers: int = 0

    @property
    def heard(self) -> int:  # type: ignore[override]
        """Also the answers to the client's own commands while it connects, and that the server is there."""
        return self._answers + (self._connection is not None and self._connection.is_connected)

    async def open(self) -> Any:
        """Connect, unless it is connected. Returns the connection."""
        connection = self._connection
        if connection is None:
            self._connection = connection = self._make()
            connection.retry = _NoRetries()
            read = connection.read_response

            async def read_and_count(*args: Any, **options: Any) -> Any:
                try:
                    answer = await read(*args, **options)
                except Exception as error:
                    self._answers += said_by_server(error)
                    raise
                self._answers += 1
                return answer

            connection.read_response = read_and_count
            await connection.connect()
            del connection.read_response
        return connection

    async def _run(self, commands: Sequence[Command]) -> list[object]:
        connection = self._connection or await self.open()
        await connection.send_packed_command(b"".join([_packed(command) for command in commands]), check_health=False)
        replies: list[object] = []
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except (ValueError, TypeError, LookupError) as error:
                raise Unreachable(f"the client cannot read the answer ({error})") from error
            except Exception as error:
                if not said_by_server(error):
                    raise
                replies.append(error)
            self._answers += 1
        return replies

    async def renew(self) -> None:
        await self.close()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.disconnect()
            except Exception:  # it is broken already
                return


def _packed(command: Command) -> bytes:
    """As the library does it, in a quarter of the time."""
    words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


class _NoRetries:
    """In place of a library's ``Retry``: whoever asks here tries again by himself, and has to know why."""

    async def call_with_retry(self, do: Callable[[], Awaitable[object]], fail: object, *args: object, **options: object) -> object:
        return await do()

    def get_retries(self) -> int:
        return 0


def store_of(source: Any) -> Store:
    """The way to the server of a client, or to that of a URL.

    A plain client only lends the settings of its connections: the one opened here does not count against its pool.
    """
    if isinstance(source, str):
        pool = library_of(source).ConnectionPool.from_url(source, socket_timeout=None, socket_connect_timeout=CONNECT_SECONDS)
        return _Own(pool.make_connection)
    if not lends(source):
        return _Given(source)
    pool = source.connection_pool
    return _Own(lambda: pool.connection_class(**{**pool.connection_kwargs, "socket_timeout": None}))
