"""How commands reach the server: through a client that was given, or over one connection of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    Command = tuple[str | int, ...]

__all__ = ["Connection", "GivenClient", "OwnConnection", "said_by_server"]


class Connection(Protocol):
    """Runs commands, one call at a time."""

    async def run(self, commands: Sequence[Command]) -> list[object]:
        """Send them together. The reply to each, or the error that the server gave. Raises if there is no answer."""
        ...

    async def close(self) -> None:
        """Leave nothing open that was opened here; the next call opens it again."""
        ...


class GivenClient:
    """An asyncio client of redis-py or valkey-py, for one server, a cluster or through sentinels. It is never closed here."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def run(self, commands: Sequence[Command]) -> list[object]:
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

    async def close(self) -> None:
        """Nothing was opened here."""


class OwnConnection:
    """One connection to the server of a URL, by the library's class for it. That takes half the time of a call through a client.

    It has no timeout but for connecting, and does not try again: whoever calls sees to both.
    """

    def __init__(self, url: str, library: Any, connect_seconds: float) -> None:
        self._url = url
        self._library = library
        self._connect_seconds = connect_seconds
        self._connection: Any = None

    async def run(self, commands: Sequence[Command]) -> list[object]:
        connection = self._connection
        if connection is None:
            pool = self._library.ConnectionPool.from_url(self._url, socket_timeout=None, socket_connect_timeout=self._connect_seconds)
            self._connection = connection = pool.make_connection()
            await connection.connect()
        if len(commands) == 1:
            await connection.send_command(*commands[0])
        else:
            await connection.send_packed_command(connection.pack_commands(commands))
        replies: list[object] = []
        for _ in commands:
            try:
                replies.append(await connection.read_response())
            except Exception as error:
                if not said_by_server(error):
                    raise
                replies.append(error)
        return replies

    async def close(self) -> None:
        """Close the connection, whatever state it is in."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.disconnect()
            except Exception:  # it is broken already
                return


def said_by_server(error: object) -> bool:
    """Whether it is the answer to a command. By name, because redis-py and valkey-py have a class of their own each."""
    return any(kind.__name__ == "ResponseError" for kind in type(error).__mro__)
