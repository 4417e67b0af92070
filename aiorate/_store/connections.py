"""How commands reach the server: over one connection that is opened here where possible, else through the client that was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiorate._store.failures import Unreachable, said_by_server

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Command = tuple[str | bytes | int, ...]

__all__ = ["GivenClient", "OwnConnection", "connection_to", "lends"]


class GivenClient:
    """An asyncio client of redis-py or valkey-py, such as one for a cluster, or of a class of the user's. It is never closed here."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._welcome: bool = False  # whether the server let us in, since it answered last
        self._knocking: OwnConnection | None = None
        self.settling: bool = False
        """Whether the server has let us in, and the client may be opening its connection, of which nothing can be heard."""

    @property
    def heard(self) -> int:
        """As of `OwnConnection`; nothing is known of the client's connections."""
        return 0 if self._knocking is None else self._knocking.heard + 2 * self.settling

    async def run(self, commands: Sequence[Command]) -> list[object]:
        """Send them together. Returns the reply to each, or the server's error. Raises if there is no answer."""
        if not self._welcome:
            await self._knock()
        try:
            replies = await self._run(commands)
        except BaseException:
            self._welcome = False
            raise
        finally:
            self.settling, self._knocking = False, None
        self._welcome = True
        return replies

    async def _knock(self) -> None:
        """Raise the error with which the server refuses a connection: the client would hide it, and try again and again."""
        pool = getattr(self._client, "connection_pool", None)
        if pool is not None:
            self._knocking = OwnConnection(pool.make_connection)
            try:
                await self._knocking.open()
            finally:
                await self._knocking.close()
            self.settling = True

    async def _run(self, commands: Sequence[Command]) -> list[object]:
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
        """Have the next call resolve the address again: another server may have taken over there."""
        # A client keeps its connections to a server that answers with an error.
        try:
            await self._client.connection_pool.disconnect(inuse_connections=False)
            if self._client.connection is not None:
                await self._client.connection.disconnect()
        except Exception:  # they are broken already, or it is a client for a cluster, which follows its nodes by itself
            return

    async def close(self) -> None:
        """Nothing was opened here."""


class OwnConnection:
    """One connection, of the library's class for it. A call takes half the time of one through a client.

    ``make`` makes one that is not connected yet. It should have no timeout except for connecting, and no retries: the caller has both.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._connection: Any = None
        self._answers: int = 0
        self.settling: bool = False

    @property
    def heard(self) -> int:
        """How many answers have come, those to the client's own commands while it connects included, and that the server is there."""
        return self._answers + (self._connection is not None and self._connection.is_connected)

    async def open(self) -> Any:
        """Connect, unless it is connected. Returns the connection."""
        connection = self._connection
        if connection is None:
            self._connection = connection = without_retries(self._make())
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

    async def run(self, commands: Sequence[Command]) -> list[object]:
        connection = await self.open()
        if len(commands) == 1:
            await connection.send_command(*commands[0])
        else:
            await connection.send_packed_command(connection.pack_commands(commands))
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
        """Close the connection, whatever state it is in."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.disconnect()
            except Exception:  # it is broken already
                return


class _NoRetries:
    """In place of a library's ``Retry``: whoever asks here tries again by himself, and has to know why."""

    async def call_with_retry(self, do: Callable[[], Awaitable[object]], fail: object, *args: object, **options: object) -> object:
        return await do()

    def get_retries(self) -> int:
        return 0


def without_retries(connection: Any) -> Any:
    """That connection, which repeats nothing by itself from now on."""
    connection.retry = _NoRetries()
    return connection


def connection_to(source: Any, library: Any, connect_seconds: float) -> GivenClient | OwnConnection:
    """The way to the server of a client, or to that of a URL through the library.

    A plain client only lends the settings of its connections: the one opened here does not count against its pool.
    """
    if isinstance(source, str):
        pool = library.ConnectionPool.from_url(source, socket_timeout=None, socket_connect_timeout=connect_seconds)
        return OwnConnection(pool.make_connection)
    if not lends(source):
        return GivenClient(source)
    pool = source.connection_pool
    return OwnConnection(lambda: pool.connection_class(**{**pool.connection_kwargs, "socket_timeout": None}))


def lends(source: Any) -> bool:
    """Whether that client lends its settings; False: it is of a class of the user's, or has one connection for all it does."""
    kind = type(source)
    plain = kind.__name__ in ("Redis", "Valkey") and kind.__module__ in ("redis.asyncio.client", "valkey.asyncio.client")
    return plain and source.connection is None
