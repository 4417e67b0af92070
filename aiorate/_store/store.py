"""How questions reach the server: over one connection that is opened here, or through the client of a cluster.

Tells outages from refusals. Knows nothing of rates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiorate._store.address import library_of
from aiorate._store.failures import Unreachable, code_of, failure_of, said_by_server
from aiorate._store.script import SHA, TEXT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Command = tuple[str | bytes | int, ...]


CONNECT_SECONDS = 2.0  # for one answer of a new connection


Asked = tuple[bytes, "Sequence[str | bytes]"]
"""A question: the key, and the other arguments of the script."""


class Store:
    """The client of a cluster, which is never closed here."""

    heard: int = 0
    """How many answers have come, as far as is known. The first call takes some: for the connection, a password and a script."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def ask(self, questions: Sequence[Asked]) -> list[object]:
        """The script's reply to each question, or a `Refusal` or an `Unreachable` in its place."""
        try:
            replies = await self._run([("EVALSHA", SHA, 1, key, *words) for key, words in questions])
            missing = [place for place, reply in enumerate(replies) if isinstance(reply, Exception) and code_of(reply) == "NOSCRIPT"]
            if missing:
                # The first sends the text, and the server has it for the others.
                again: list[Command] = [("EVALSHA", SHA, 1, questions[place][0], *questions[place][1]) for place in missing]
                again[0] = ("EVAL", TEXT, *again[0][2:])
                for place, reply in zip(missing, await self._run(again), strict=True):
                    replies[place] = reply
        except Exception as error:
            return [failure_of(error)] * len(questions)
        return [failure_of(reply) if isinstance(reply, Exception) else reply for reply in replies]

    async def _run(self, commands: Sequence[Command]) -> list[object]:
        """Send them. Returns the reply to each, or the error; for a cluster, there is only one. Raises if there is no answer."""
        return [await self._one(command) for command in commands]

    async def _one(self, command: Command) -> object:
        try:
            await self._client.initialize()  # not in many calls at once, which close each other's connections
            return await self._client.execute_command(*command)
        except AttributeError as error:  # where slots move, they do too
            return Unreachable(f"the client closed the connection ({error})")
        except Exception as error:
            return error

    async def close(self) -> None:
        """Close the connection, if it was opened here. The next call resolves the address again: another server may be there by then."""


class _Connection(Store):
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

    async def _open(self) -> Any:
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
        connection = self._connection or await self._open()
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

    A client lends the settings of its connections: the one opened here does not count against its pool. That of a cluster has none.
    """
    if isinstance(source, str):
        pool = library_of(source).ConnectionPool.from_url(source, socket_connect_timeout=CONNECT_SECONDS)
    else:
        pool = getattr(source, "connection_pool", None)
    if pool is None:
        return Store(source)
    return _Connection(lambda: pool.connection_class(**{**pool.connection_kwargs, "socket_timeout": None}))
